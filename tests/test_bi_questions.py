"""Test the SQL of docs/bi.md on a Keras training whose answers are known, and on other logdirs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.query import export, open_logdir
from tfdbg_arrow.query.logdir.public_views import views_sql

from .compat.make_golden import GOLDEN

ROOT = Path(__file__).resolve().parents[1]
QUESTION = re.compile(r"^### (.*?)\n(.*?)(?=^#|\Z)", re.MULTILINE | re.DOTALL)
SQL = re.compile(r"^```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGE = (ROOT / "docs" / "bi.md").read_text(encoding="utf-8")
QUESTIONS = {heading: SQL.findall(body) for heading, body in QUESTION.findall(PAGE)}
FIRST_LAYER = "Which layer went bad first?"
HEAT_MAP = "How many tensors are bad, by layer and step?"
GRADIENT = "How large is the gradient in each step?"
OVERFLOW = "Which ops are slowly going to overflow?"
ZEROS = "Which layers have dead rectifiers?"
LINES = "Which lines of code make the most bad tensors?"
FIRST_TIME = "When did each run make its first bad value?"
HEADROOM = "Which dtype does each layer use, and how much room is left?"
NOT_RECORDED = "What was not recorded, and why?"
FUNCTIONS = "Which functions run most?"
COLUMNS = {
    FIRST_LAYER: "run_id place step op dtype num_nan num_inf size num_bad",
    HEAT_MAP: "run_id place step num_bad num_tensors",
    GRADIENT: "run_id step gradient_norm num_tensors num_bad",
    OVERFLOW: "run_id layer op_name dtype last_step first_value last_value bits_per_step steps_left",
    ZEROS: "run_id layer op_name zero_share zero_share_in_last_step",
    LINES: "run_id file_path lineno code num_bad first_step",
    FIRST_TIME: "run_id started is_clean_end tensor_debug_mode num_bad first_step first_seconds",
    HEADROOM: "run_id layer dtype num_tensors largest_magnitude largest_number headroom_bits",
    NOT_RECORDED: "run_id stat reason num_subjects example num_events",
    FUNCTIONS: "run_id graph_name num_calls num_steps num_tensors num_elements seconds",
}
GOLDEN_LOGDIRS = sorted(path for path in GOLDEN.glob("*/*") if path.is_dir())
NUM_STEPS = 5
BAD_STEP = 4
NUM_BAD = {
    "net/gain": 1,
    "net/centre": 2,
    "net/widen": 1,
    "net/join": 2,
    "net/head": 3,
    "net/dead": 3,
    "(loss)": 9,
    "(gradient)": 1,
    "(optimizer)": 3,
    "(forward)": 2,
}
"""Number of bad tensors in BAD_STEP by place. `(forward)` is what the training step returns."""
BITS = math.log2(10)


class Gain(keras.layers.Layer):
    def call(self, inputs: Any) -> Any:
        return inputs * 10.0  # overflows first


class Centre(keras.layers.Layer):
    def call(self, inputs: Any) -> Any:
        return inputs - tf.reduce_mean(inputs, axis=0, keepdims=True)  # makes the first NaN


def train(factor: float) -> None:
    """Trains on [[1, 2], [3, 4]], which the factor multiplies in each step.

    `gain` computes 10 times its input in float16, so it overflows when the input reaches 6,551. `centre` then computes
    Inf - Inf. `dead` is a layer that returns only zeros. The learning rate is 0, so nothing else changes.
    """
    bias = keras.initializers.Constant(-1e9)
    inputs = keras.Input((2,))
    encoded = keras.layers.Dense(2, "relu", kernel_initializer="identity", trainable=False, name="encoder")(inputs)
    centred = Centre(name="centre", dtype="float16")(Gain(name="gain", dtype="float16")(encoded))
    widened = keras.layers.Activation("linear", name="widen")(centred)
    dead = keras.layers.Dense(3, "relu", bias_initializer=bias, name="dead")(inputs)
    joined = keras.layers.Concatenate(name="join")([widened, dead])
    model = keras.Model(
        inputs, keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", name="head")(joined), name="net"
    )
    model.compile(keras.optimizers.SGD(0.0), "mse")
    features = np.array([[1, 2], [3, 4]], np.float32)
    for step in range(NUM_STEPS):
        tfdbg_arrow.mark(step=step)
        model.train_on_batch(features * np.float32(factor**step), np.zeros((2, 1), np.float32))


@dataclass(frozen=True)
class Answer:
    """The columns and rows of a query; the run ids of the first two runs are replaced by `bad` and `healthy`."""

    columns: list[str]
    rows: list[tuple[Any, ...]]

    def of(self, run: str) -> list[tuple[Any, ...]]:
        return [row[1:] for row in self.rows if row[0] == run]


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A logdir with a run that goes bad in step 4, and then a healthy run."""
    path = tmp_path_factory.mktemp("bi") / "logdir"
    for factor in (10.0, 1.0):
        with tfdbg_arrow.capture(path, "FULL_NUMERICS"):
            train(factor)
    return path


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A logdir with a healthy run of which only every second step was recorded."""
    path = tmp_path_factory.mktemp("bi") / "healthy"
    with tfdbg_arrow.capture(path, steps="::2"):
        train(1.0)
    return path


@pytest.fixture(scope="module", params=["open_logdir", "views script", "exported database"])
def connected(request: pytest.FixtureRequest, logdir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """What runs SQL on the logdir, for each way to connect that the page names."""
    if request.param == "open_logdir":
        with open_logdir(logdir) as opened:
            yield opened
        return
    database = tmp_path_factory.mktemp("bi") / "logdir.duckdb"
    if request.param == "exported database":
        export(logdir, database, format="duckdb")
    with duckdb.connect(str(database)) as connection:
        if request.param == "views script":
            connection.execute(views_sql(str(logdir)))
        yield connection


def ask(connection: Any, heading: str) -> Answer:
    runs = connection.sql("SELECT run_id FROM run ORDER BY wall_time_ns").fetchall()
    names = dict(zip((run_id for (run_id,) in runs), ("bad", "healthy"), strict=False))
    (sql,) = QUESTIONS[heading]
    found = connection.sql(sql)
    return Answer(found.columns, [(names.get(run_id), *rest) for run_id, *rest in found.fetchall()])


def place_of(code: str) -> tuple[str, int, str]:
    """Returns the path, line number and text of the only line of this file that starts with a text."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    ((lineno, line),) = [(n, line.strip()) for n, line in enumerate(lines, 1) if line.strip().startswith(code)]
    return __file__, lineno, line


def test_the_page_has_ten_questions_with_one_query_each() -> None:
    assert list(QUESTIONS) == list(COLUMNS)
    assert {heading: len(queries) for heading, queries in QUESTIONS.items()} == dict.fromkeys(COLUMNS, 1)
    assert len(SQL.findall(PAGE)) == len(COLUMNS) == 10


def test_the_dashboard_asks_questions_of_the_page() -> None:
    dashboard = (ROOT / "examples" / "dashboard.py").read_text(encoding="utf-8")
    assert re.findall(r'answer\(database, "(.*?)"', dashboard) == [FIRST_TIME, FIRST_LAYER, HEAT_MAP, GRADIENT]


@pytest.mark.parametrize("heading", COLUMNS)
def test_the_columns_on_every_logdir(heading: str, connected: Any) -> None:
    answer = ask(connected, heading)
    assert answer.columns == COLUMNS[heading].split()
    assert answer.rows


@pytest.mark.parametrize("golden", GOLDEN_LOGDIRS, ids=[f"{path.parent.name}-{path.name}" for path in GOLDEN_LOGDIRS])
def test_a_golden_logdir_answers_every_question(golden: Path) -> None:
    with open_logdir(golden) as opened:
        answers = {heading: ask(opened, heading) for heading in COLUMNS}
        ((num_bad,),) = opened.rows("SELECT count(*) FROM tensor_health WHERE has_inf_or_nan")
        ((num_runs,),) = opened.rows("SELECT count(*) FROM run")
    assert {heading: " ".join(answer.columns) for heading, answer in answers.items()} == COLUMNS
    assert len(answers[FIRST_TIME].rows) == num_runs
    assert sum(row[4] for row in answers[FIRST_TIME].rows) == num_bad


def test_which_layer_went_bad_first(connected: Any) -> None:
    answer = ask(connected, FIRST_LAYER)
    layers = [(place, step, *rest) for place, step, _, *rest in answer.of("bad") if place.startswith("net/")]
    assert layers == [
        ("net/gain", BAD_STEP, "float16", 0, 4, 4, 1),
        ("net/centre", BAD_STEP, "float16", 0, 2, 2, 2),
        ("net/widen", BAD_STEP, "float32", 4, 0, 4, 1),
        ("net/join", BAD_STEP, "float32", 4, 0, 10, 2),
        ("net/head", BAD_STEP, "float32", 2, 0, 2, 3),
        ("net/dead", BAD_STEP, "float32", 6, 0, 6, 3),
    ]
    assert [row[0] for row in answer.of("bad") if row[0] not in ("(loss)", "(forward)")] == [
        *("net/gain", "net/centre", "net/widen", "net/join", "net/head"),
        *("(gradient)", "net/dead", "(optimizer)"),
    ]
    assert {row[0]: row[-1] for row in answer.of("bad")} == NUM_BAD
    assert answer.of("healthy") == []


def test_bad_tensors_by_layer_and_step(connected: Any) -> None:
    answer = ask(connected, HEAT_MAP)
    assert [row[:3] for row in answer.of("bad") if row[2]] == [
        (place, BAD_STEP, num_bad) for place, num_bad in sorted(NUM_BAD.items())
    ]
    assert {row[:2] for row in answer.of("bad")} == {row[:2] for row in answer.of("healthy")}
    assert [row for row in answer.of("healthy") if row[2] != 0] == []
    assert [row for row in answer.of("healthy") if row[0] == "net/centre"] == [
        ("net/centre", step, 0, 2) for step in range(NUM_STEPS)
    ]


def test_the_gradient_norm_by_step(connected: Any) -> None:
    """The head's input is [[-10, -10, 0, 0, 0], [10, 10, 0, 0, 0]], and the loss's gradient is [-20, 20]."""
    answer = ask(connected, GRADIENT)
    norm = math.hypot(400.0, 400.0)
    assert answer.of("bad") == [
        *((step, pytest.approx(norm * 100.0**step), 3, 0) for step in range(BAD_STEP)),
        (BAD_STEP, None, 3, 3),
    ]
    assert answer.of("healthy") == [(step, pytest.approx(norm), 3, 0) for step in range(NUM_STEPS)]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "function"])
def test_the_gradient_norm_of_a_loop_with_an_eager_optimizer(compiled: bool, tmp_path: Path) -> None:
    weights = [keras.Variable([3.0, 0.0]), keras.Variable([[4.0]])]
    optimizer = keras.optimizers.SGD(0.0)

    def loss() -> Any:
        return tf.add_n([tf.nn.l2_loss(weight) for weight in weights])

    compute = tf.function(loss) if compiled else loss
    with tfdbg_arrow.capture(tmp_path, "FULL_NUMERICS"):
        for step in range(2):
            tfdbg_arrow.mark(step=step)
            with tf.GradientTape() as tape:
                value = compute()
            optimizer.apply(tape.gradient(value, [weight.value for weight in weights]), weights)
    with open_logdir(tmp_path) as opened:
        assert ask(opened, GRADIENT).of("bad") == [(step, pytest.approx(5.0), 2, 0) for step in range(2)]


def test_which_ops_overflow_slowly(connected: Any) -> None:
    answer = ask(connected, OVERFLOW)

    def growth(layer: str, last_step: int, first: float, last: float) -> tuple[Any, ...]:
        steps_left = math.log2(65504 / last) / BITS
        return layer, "float16", last_step, first, last, pytest.approx(BITS), pytest.approx(steps_left)

    assert [(row[0], *row[2:]) for row in answer.of("bad") if row[2] == "float16"] == [
        growth("net/gain", 4, 4.0, 40_000.0),
        growth("net/gain", 3, 40.0, 40_000.0),
        growth("net/centre", 3, 30.0, 30_000.0),
        growth("net/centre", 3, 10.0, 10_000.0),
    ]
    assert answer.of("healthy") == []


def test_which_layers_have_dead_rectifiers(connected: Any) -> None:
    answer = ask(connected, ZEROS)
    for run in ("bad", "healthy"):
        assert [(layer, *shares) for layer, _, *shares in answer.of(run)] == [
            ("net/dead", 1.0, 1.0),
            ("net/encoder", 0.0, 0.0),
        ]


def test_which_lines_make_the_most_bad_tensors(connected: Any) -> None:
    answer = ask(connected, LINES)
    assert answer.of("bad") == [
        (*place_of("model.train_on_batch("), 24, BAD_STEP),
        (*place_of("return inputs - tf.reduce_mean("), 2, BAD_STEP),
        (*place_of("return inputs * 10.0"), 1, BAD_STEP),
    ]
    assert answer.of("healthy") == []


def test_when_each_run_made_its_first_bad_value(connected: Any) -> None:
    answer = ask(connected, FIRST_TIME)
    ((started, *bad, seconds),) = answer.of("bad")
    assert bad == [True, "FULL_NUMERICS", sum(NUM_BAD.values()), BAD_STEP]
    ((wall_time_ns, first_ns),) = connected.sql(
        "SELECT r.wall_time_ns, min(h.wall_time_ns) FROM run AS r JOIN tensor_health AS h USING (run_id) "
        "WHERE h.has_inf_or_nan GROUP BY ALL"
    ).fetchall()
    assert seconds == pytest.approx((first_ns - wall_time_ns) / 1e9)
    ((healthy_started, *healthy),) = answer.of("healthy")
    assert healthy == [True, "FULL_NUMERICS", 0, None, None]
    assert started < healthy_started


def test_the_dtype_and_headroom_of_each_layer(connected: Any) -> None:
    answer = ask(connected, HEADROOM)
    float16, float32 = float(np.finfo(np.float16).max), float(np.finfo(np.float32).max)

    def headroom(layer: str, dtype: str, count: int, largest: float, limit: float) -> tuple[Any, ...]:
        return layer, dtype, count, largest, limit, pytest.approx(math.log2(limit / largest))

    bad = answer.of("bad")
    assert [row[:2] for row in bad] == [
        ("net/gain", "float16"),
        ("net/centre", "float16"),
        ("net/dead", "float32"),
        ("net/head", "float32"),
        ("net/encoder", "float32"),
        ("net/join", "float32"),
        ("net/widen", "float32"),
    ]
    assert bad[:2] == [
        headroom("net/gain", "float16", 15, 40_000.0, float16),
        headroom("net/centre", "float16", 10, 30_000.0, float16),
    ]
    assert headroom("net/widen", "float32", 5, 10_000.0, float32) in bad
    assert headroom("net/gain", "float16", 15, 40.0, float16) in answer.of("healthy")


def test_what_was_not_recorded(connected: Any, healthy: Path) -> None:
    """All that is missing are the outputs of dtypes without health (variables' handles), and the steps left out."""
    ((num_handles,),) = connected.sql(
        "SELECT DISTINCT count(*) FROM graph_op_output WHERE not_recorded_reason = 'dtype' GROUP BY run_id"
    ).fetchall()
    for run in ("bad", "healthy"):
        ((*what, example, num_events),) = ask(connected, NOT_RECORDED).of(run)
        assert (what, num_events) == (["not selected", "dtype", num_handles], None)
        assert isinstance(example, str)
    with open_logdir(healthy) as opened:
        skipped, *_ = ask(opened, NOT_RECORDED).rows
    assert skipped[1:] == ("disabled", "schedule", 2, "step 1", None)


def test_which_functions_run_most(connected: Any) -> None:
    answer = ask(connected, FUNCTIONS)
    ((in_steps,),) = connected.sql(
        "SELECT DISTINCT (count(*), CAST(sum(size) AS BIGINT)) FROM tensor_health "
        "WHERE scope <> 'external' AND step IS NOT NULL GROUP BY run_id"
    ).fetchall()
    for run in ("bad", "healthy"):
        ((name, num_calls, num_steps, num_tensors, num_elements, seconds),) = answer.of(run)
        assert (name, num_calls, num_steps) == ("one_step_on_data", NUM_STEPS, NUM_STEPS)
        assert (num_tensors, num_elements) == in_steps
        assert seconds > 0


def test_a_healthy_logdir(healthy: Path) -> None:
    """The default mode has no magnitudes, and the recording has steps 0, 2 and 4."""
    with open_logdir(healthy) as opened:
        answers = {heading: ask(opened, heading) for heading in COLUMNS}
    empty = {heading for heading, answer in answers.items() if not answer.rows}
    assert empty == {FIRST_LAYER, OVERFLOW, LINES}
    assert [row[1:] for row in answers[GRADIENT].rows] == [(step, None, 3, 0) for step in (0, 2, 4)]
    assert {row[2:4] for row in answers[HEAT_MAP].rows if row[1] == "net/centre"} == {(0, 0), (2, 0), (4, 0)}
    assert {row[4:] for row in answers[HEADROOM].rows if row[1] == "net/gain"} == {(None, 65504.0, None)}
    assert [row[2:] for row in answers[FIRST_TIME].rows] == [(True, "FULL_HEALTH", 0, None, None)]
