"""Test that public views, alert rules and all questions have the same answers on Spark and on DuckDB."""

from __future__ import annotations

import dataclasses
import datetime
import math
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.link.test_documented_queries import QUERIES
from tests.programs.running import run_to_end
from tfdbg_arrow.errors import BrokenPartError, LogdirError, QueryError
from tfdbg_arrow.query import (
    Logdir,
    builtin_rules,
    first_nan,
    first_nonfinite,
    open_logdir,
    public_views,
    source_lines,
)
from tfdbg_arrow.query.alert_rules.answer import alerts
from tfdbg_arrow.query.coverage import coverage
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.spark import SparkLogdir, register
from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.storage.layout import manifest_path

from .builder import CLEAN, INF, NAN, RunBuilder
from .manifests import resealed
from .test_alerts import CASES
from .test_effects import Step
from .test_first_nonfinite import chain, loop

pytestmark = pytest.mark.slow

NUM_RUNS_OF_CASES = 4
"""Spark takes a second for each run, however small the run is."""

PROGRAM = """
    import sys
    import tensorflow as tf
    import tfdbg_arrow

    @tf.function
    def step(x):
        for _ in tf.range(2):
            x = x * x  # overflows
        return tf.math.log(x - x)

    weight = tf.Variable([1e20, 2.0])
    with tfdbg_arrow.capture(sys.argv[1], tensor_debug_mode="FULL_TENSOR", histograms=True):
        for number in range(2):
            tfdbg_arrow.mark(step=number)
            weight.assign(step(weight))
"""


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a logdir with runs with all cases of the alert rules, a recorded run of TensorFlow, and other runs.

    The other runs have loops, expected bad values, lost eager ops, and optimized graphs.
    """
    path = tmp_path_factory.mktemp("spark") / "logdir"
    for index in range(NUM_RUNS_OF_CASES):
        run = RunBuilder(f"run-{index:02}")
        stack = run.stack(
            ("/site/tensorflow/ops.py", 1, "log", None, "framework"), ("/home/me/train.py", 3, "f", "x", "user")
        )
        execution = run.execution("Log", inputs=[7], outputs={8: "float32"}, stack=stack)
        for _, build, *_ in CASES[index::NUM_RUNS_OF_CASES]:
            build(run)
        run.add("mark", event_index=execution, label="step", value="1")
        run.write(path)
    for build_run in (looped, expected, eager, optimized):
        build_run().write(path)
    program_file = path.with_name("program.py")
    program_file.write_text(textwrap.dedent(PROGRAM))
    done = run_to_end(program_file, path)
    assert done.returncode == 0, done.stderr
    return path


def optimized() -> RunBuilder:
    """Returns a run in which log(softmax(x)) ran as LogSoftmax, and a loop returns its input unchanged."""
    run = RunBuilder("run-optimized")
    graph = run.graph("f").op("x", "Placeholder").op("Softmax", inputs=["x"]).op("Log", inputs=["Softmax"])
    graph.op("out", "Neg", ["Log"]).function("f", ["x"], ["out"])
    executed = run.executed().node("x", "_Arg", of=graph, op="x", index=0)
    executed.node("Log", "LogSoftmax", ["x"], of=graph, op="Log").node("made", "Abs", ["Log"], of=graph, made_for="out")
    executed.node("enter", "Enter", ["made"]).node("merge", "Merge", ["enter", "next"])
    executed.node("switch", "Switch", ["merge"]).node("next", "NextIteration", ["switch:1"])
    executed.node("exit", "Exit", ["switch"]).node("out", "Neg", ["exit"], of=graph, op="out")
    call = run.execution("f", inputs=[7], outputs={8: "float32"}, graph=graph)
    run.tensor(graph, "x", CLEAN, execution=call)
    run.tensor(graph, "Log", NAN, execution=call, op_type="LogSoftmax")
    run.tensor(graph, "out", NAN, execution=call)
    return run


def looped() -> RunBuilder:
    run = RunBuilder("run-looped", worker="worker:1")
    body, cond, outer = loop(run)
    call = run.execution("__inference_train_2", graph=outer)
    run.tensors(outer, {"start": CLEAN, "konst": CLEAN}, execution=call)
    for iteration in range(5):
        place = {"execution": call, "frame": 77, "iteration": iteration}
        run.tensor(cond, "Mean", NAN if iteration > 3 else CLEAN, site="while/cond/_10", **place)
        run.tensor(body, "v", NAN if iteration > 3 else CLEAN, site="while/body/_9", **place)
        run.tensor(body, "add", NAN if iteration >= 3 else CLEAN, site="while/body/_9", **place)
    run.tensor(outer, "after", NAN, execution=call)
    return chain(run)


def expected() -> RunBuilder:
    run = RunBuilder("run-expected")
    Step(run).call(INF, is_applied=False)
    return run


def eager() -> RunBuilder:
    """Returns a run of eager ops on a bad tensor from outside. Some ops were lost. Names are in several scripts."""
    run = RunBuilder("run-eager", wall_time_ns=1_600_000_000_000_000_000)
    graph = run.graph("Größe 数").op("лог'\\n", "Log", dtypes=("float32", "int32"), not_recorded="xla")
    graph.op("handle", "Placeholder", dtypes=("resource",), not_recorded="dtype")
    first = run.execution("Mul", inputs=[1, 2], outputs={3: "float32"})
    run.external(1, NAN, execution=first)
    run.eager(first, NAN, tensor_id=3)
    del run.rows["execution"][first + 1 :]
    second = run.execution("Neg", inputs=[3], outputs={4: "float32"})
    run.eager(second, NAN, tensor_id=4)
    run.rows["execution"][second]["execution_index"] += 3
    for number in (3, None):
        run.add(
            "capture_stat", event_index=run.next_event_index, stat="dropped", subject="s", reason="r", num_events=number
        )
    run.add("capture_stat", event_index=0, stat="disabled", subject="steps", reason="not asked for", num_events=4)
    return run


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    assert shutil.which("java"), (
        "Spark needs Java 17 or newer; install it, for example with `apt-get install openjdk-17-jre-headless`"
    )
    from pyspark.sql import SparkSession

    # Use few resources: one thread, only the C1 compiler, and no code generation for queries of a few rows.
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYSPARK_PYTHON", sys.executable)  # the Python of Spark's workers
        session = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def on_spark(spark: Any, logdir: Path) -> SparkLogdir:
    return SparkLogdir(spark, logdir)


@pytest.fixture(scope="module")
def on_duckdb(logdir: Path) -> Iterator[Logdir]:
    with open_logdir(logdir) as opened:
        yield opened


@pytest.fixture(scope="module")
def recorded(on_duckdb: Logdir) -> str:
    """Returns the ID of the run recorded from TensorFlow."""
    return next(run.run_id for run in on_duckdb.runs() if not run.run_id.startswith("run-"))


def comparable(row: tuple[Any, ...]) -> tuple[str, ...]:
    """Returns a row as texts, which can be sorted. Floats have 12 digits, because further digits of sums may differ."""
    return tuple(f"{cell:.12g}" if isinstance(cell, float) else repr(cell) for cell in row)


def assert_same_rows(on_spark: SparkLogdir, on_duckdb: Logdir, query: str) -> int:
    columns, rows = on_duckdb.table(query)
    found = on_spark.table(query)
    assert found[0] == columns
    assert sorted(map(comparable, found[1])) == sorted(map(comparable, rows))
    return len(rows)


@pytest.mark.parametrize("name", [table.name for table in TABLES])
def test_tables(on_spark: SparkLogdir, on_duckdb: Logdir, name: str) -> None:
    assert_same_rows(on_spark, on_duckdb, f"SELECT * FROM {name}")


@pytest.mark.parametrize("name", [view.name for view in public_views() if view.name != "alert"])
def test_views(on_spark: SparkLogdir, on_duckdb: Logdir, name: str) -> None:
    assert assert_same_rows(on_spark, on_duckdb, f"SELECT * FROM {name}") > 0


@pytest.mark.parametrize(
    "heading",
    [
        pytest.param(name, marks=pytest.mark.exhaustive if number else ())
        for number, name in enumerate(name for name, query in QUERIES.items() if "RECURSIVE" not in query)
    ],
)
def test_documented_queries_that_follow_values(on_spark: SparkLogdir, on_duckdb: Logdir, heading: str) -> None:
    assert_same_rows(on_spark, on_duckdb, QUERIES[heading])


IN_EVERY_RUN = ("gradient_norm_spike", "dead_relu")


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(rule, id=rule.kind, marks=() if rule.kind in IN_EVERY_RUN else pytest.mark.exhaustive)
        for rule in builtin_rules()
    ],
)
def test_rules(on_spark: SparkLogdir, on_duckdb: Logdir, rule: Any) -> None:
    ours, theirs = (alerts(engine, kinds=[rule.kind], run_id="all", limit=1000) for engine in (on_duckdb, on_spark))
    assert ours.num_found[rule.kind] > 0
    assert (theirs.num_found, theirs.num_cut) == (ours.num_found, ours.num_cut)
    for our, their in zip(ours.alerts, theirs.alerts, strict=True):
        assert math.isclose(our.value, their.value, rel_tol=1e-12)  # the order of the sums differs
        assert dataclasses.replace(their, value=our.value) == our


@pytest.mark.exhaustive
def test_the_view_of_all_alerts(on_spark: SparkLogdir, on_duckdb: Logdir) -> None:
    assert assert_same_rows(on_spark, on_duckdb, "SELECT * FROM alert") > 0
    assert {kind for (kind,) in on_duckdb.rows("SELECT DISTINCT kind FROM alert")} == {
        rule.kind for rule in builtin_rules()
    }


def last_bad(engine: Engine, run_id: str) -> int:
    rows = engine.rows("SELECT max(event_index) FROM tensor_health WHERE run_id = ? AND has_inf_or_nan", [run_id])
    return int(rows[0][0])


Question = Callable[[Any, str], Any]
"""A function that asks an engine a question. The second argument of the function is the ID of the recorded run."""
QUESTIONS: dict[str, Question] = {
    "runs": lambda engine, _: engine.runs(),
    "info": lambda engine, _: engine.info(),
    "coverage": lambda engine, _: engine.coverage(run_id="all"),
    "coverage of a run": lambda engine, _: coverage(engine, run_id="run-eager"),
    "first of all runs": lambda engine, _: engine.first_nonfinite(run_id="all"),
    "first of the newest run": lambda engine, _: engine.first_nonfinite(),
    "the newest run": lambda engine, _: engine.about_runs(),
    "coverage of the newest run": lambda engine, _: engine.coverage(),
    "alerts of the newest run": lambda engine, _: engine.alerts(kinds=["nonfinite"]),
    "first in a loop": lambda engine, _: first_nonfinite(engine, run_id="run-looped"),
    "first that is expected": lambda engine, _: first_nonfinite(engine, run_id="run-expected"),
    "first that was recorded": lambda engine, recorded: first_nonfinite(engine, run_id=recorded),
    "first NaN": lambda engine, recorded: first_nan(engine, run_id=recorded),
    "first infinity": lambda engine, recorded: first_nonfinite(engine, kinds=["inf"], run_id=recorded),
    "bad tensors": lambda engine, _: engine.nonfinite(run_id="all", limit=6),
    "bad tensors of a run": lambda engine, recorded: engine.nonfinite(run_id=recorded),
    "provenance in a loop": lambda engine, _: engine.provenance(last_bad(engine, "run-looped"), run_id="run-looped"),
    "provenance over steps": lambda engine, recorded: engine.provenance(last_bad(engine, recorded), run_id=recorded),
    "provenance of eager ops": lambda engine, _: engine.provenance(last_bad(engine, "run-eager"), run_id="run-eager"),
    "alerts of a run": lambda engine, recorded: engine.alerts(kinds=["nonfinite"], run_id=recorded, limit=2),
    "history": lambda engine, _: engine.history("Log|ReLU.*|add:0", run_id="all", limit=30),
    "history with values": lambda engine, recorded: engine.history(
        ".*[mM]ul.*", run_id=recorded, steps=(1, None), after=3, num_values=2
    ),
    "distributions": lambda engine, recorded: engine.distributions(".*[mM]ul.*", run_id=recorded),
    "source": lambda engine, recorded: source_lines(
        engine, engine.first_nonfinite(run_id=recorded).source, run_id=recorded
    ),
}


ASKED_AGAIN = (
    *("coverage of a run", "first of all runs", "first in a loop", "first infinity"),
    *("bad tensors of a run", "alerts of a run", "provenance over steps"),
    *("first that is expected", "first NaN", "history with values", "provenance of eager ops"),
)
"""Questions that are another question in other words, or the same question about another run."""


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(ask, id=name, marks=pytest.mark.exhaustive if name in ASKED_AGAIN else ())
        for name, ask in QUESTIONS.items()
    ],
)
def test_questions(on_spark: SparkLogdir, on_duckdb: Logdir, recorded: str, ask: Question) -> None:
    answer = ask(on_duckdb, recorded)
    assert answer
    assert repr(ask(on_spark, recorded)) == repr(answer)  # as text, because NaN is not equal to itself


def test_values_have_python_types(on_spark: SparkLogdir, recorded: str) -> None:
    rows = on_spark.rows(
        "SELECT h.wall_time, v.shape, v.value FROM tensor_health AS h JOIN tensor_value AS v "
        "ON v.run_id = h.run_id AND v.event_index = h.event_index WHERE h.run_id = ? AND h.op_type IS NOT NULL LIMIT 1",
        [recorded],
    )
    assert [[type(cell) for cell in row] for row in rows] == [[datetime.datetime, list, bytes]]
    assert rows[0][0].tzinfo is None


@pytest.mark.parametrize("query", ["SELECT nothing FROM run", "SELEC 1", "SELECT ?"])
def test_an_error_of_spark_is_a_query_error(on_spark: SparkLogdir, query: str) -> None:
    with pytest.raises(QueryError) as caught:
        on_spark.rows(query)
    assert "\n" not in str(caught.value)


def test_an_unknown_run_is_a_query_error(on_spark: SparkLogdir) -> None:
    with pytest.raises(QueryError, match="run 'run-x' is not in"):
        on_spark.first_nonfinite(run_id="run-x")


def test_a_url_is_refused(spark: Any) -> None:
    with pytest.raises(LogdirError, match="memory://logdir; expected a local path"):
        SparkLogdir(spark, "memory://logdir")


def test_several_logdirs_with_special_characters_in_their_names(
    spark: Any, on_spark: SparkLogdir, tmp_path: Path
) -> None:
    logdir = chain(RunBuilder("run-a")).write(tmp_path / "a [1] {b,c} é%20*?", parts=2)
    other = SparkLogdir(spark, logdir)
    assert [run.run_id for run in other.runs()] == ["run-a"]
    assert len(on_spark.runs()) > 1
    register(spark, logdir)
    assert [row.run_id for row in spark.sql("SELECT run_id FROM run").collect()] == ["run-a"]
    with open_logdir(logdir) as same:
        assert other.first_nonfinite() == same.first_nonfinite()

    # Add a new run, and replace a part by another part.
    chain(RunBuilder("run-b")).write(logdir)
    other.refresh()
    assert [run.run_id for run in other.runs()] == ["run-a", "run-b"]
    part = next((logdir / "run" / "run=run-b").iterdir())
    all_runs = "SELECT run_id FROM run ORDER BY run_id"
    moved = part.rename(part.with_name("part-000007.parquet"))
    manifest = logdir / manifest_path("run-b")
    moved_in = manifest.read_text().replace("run/run=run-b/part-000000", "run/run=run-b/part-000007")
    manifest.write_text(resealed(moved_in))
    assert other.table(all_runs) == (("run_id",), [("run-a",), ("run-b",)])

    moved.write_bytes(b"PAR1 and no more")
    with pytest.raises(BrokenPartError, match=r"part-000007\.parquet cannot be read as Parquet"):
        other.table(all_runs)
