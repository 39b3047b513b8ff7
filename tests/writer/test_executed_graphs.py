"""Recording the graphs that TensorFlow runs: `graphs="executed"`.

Each of the eight trainings runs in two processes, once without a recording and once with a recording.
"""

from __future__ import annotations

import collections
import json
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.tsl.profiler.protobuf import xplane_pb2

import tfdbg_arrow
from tests.programs.running import run_to_end
from tests.sampling import mostly_slow
from tfdbg_arrow.errors import SettingError
from tfdbg_arrow.query import Logdir, first_nonfinite, read_reasons
from tfdbg_arrow.query.wording import nonfinite_facts, op_text
from tfdbg_arrow.spool.names import GraphLinks
from tfdbg_arrow.writer.graphs.executed import ExecutedGraphs
from tfdbg_arrow.writer.graphs.node_defs import MARK, OWN_NAME_PREFIX

from . import trainings
from .programs import PROGRAMS
from .subprocesses import run_python

FAST_RECORDINGS = (("deep_gradients", "native"), ("switch", "native"))
IDLE = {"Const", "Enter", "Exit", "Identity", "LoopCond", "Merge", "NextIteration", "NoOp", "Switch", "_Arg", "_Retval"}


def record(logdir: Path, function: Any, *arguments: Any, **settings: Any) -> Any:
    with tfdbg_arrow.capture(logdir, graphs="executed", **settings):
        return function(*arguments)


def rows(logdir: Path, query: str) -> list[tuple[Any, ...]]:
    with Logdir(logdir) as opened:
        return list(opened.sql(query).fetchall())


def run_training(name: str, steps: int, *settings: object) -> Any:
    process = run_to_end("-m", "tests.writer.trainings", name, str(steps), *map(str, settings))
    assert process.returncode == 0, process.stderr
    assert "RuntimeWarning" not in process.stderr, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("mlp", "cnn"),
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("mixed_precision", "transformer", "rnn")),
    ],
)
def test_a_training_that_xla_compiles_keeps_its_numbers(name: str, tmp_path: Path) -> None:
    compiled = trainings.COMPILED + name
    wanted = run_training(compiled, 16)
    assert wanted == run_training(compiled, 16, tmp_path / "shapes", "auto", "SHAPE")
    got = run_training(compiled, 16, tmp_path / "health", "auto", "FULL_HEALTH")
    # XLA rounds `a * b + c` only once. If something also reads the product, XLA rounds the product separately.
    assert got["last_loss"] == pytest.approx(wanted["last_loss"], rel=1e-3)
    assert rows(tmp_path / "health", "SELECT count(*) > 1000 FROM tensor_health") == [(True,)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "health_backend", "num_steps"),
    [
        *((name, "native", 40) for name in trainings.TRAININGS if name != "mirrored"),
        *(
            pytest.param(name, health_backend, 200, marks=pytest.mark.exhaustive)
            for name in trainings.TRAININGS
            for health_backend in ("native", "tensorflow")
        ),
    ],
)
def test_a_training_is_bit_identical(name: str, health_backend: str, num_steps: int, tmp_path: Path) -> None:
    recorded = run_training(name, num_steps, tmp_path, "auto", "FULL_HEALTH", health_backend)
    assert run_training(name, num_steps) == recorded
    assert rows(tmp_path, "SELECT DISTINCT health_backend FROM run") == [(health_backend,)]
    assert rows(tmp_path, "SELECT count(*) > 300 FROM tensor_health") == [(True,)]


X = np.array([[100.0, -100.0, 0.5], [1.0, 2.0, 3.0]], np.float32)
SMALL = np.array([1e-8, 2e-8, -3e-9], np.float32)


def log_softmax(x: Any) -> Any:
    return tf.math.log(tf.nn.softmax(x))


def scaled_up_and_down(x: Any) -> Any:
    return (x * 1e38) * 1e-38


def log_plus_one(x: Any) -> Any:
    return tf.math.log(x * 1e-10 + 1.0)


def exp_minus_one(x: Any) -> Any:
    return tf.exp(x * 1e-10) - 1.0


def hoisted(x: Any) -> Any:
    return tf.add_n([x * 3e38, x * -3e38])


def folded_through_reshape(x: Any) -> Any:
    return tf.reshape(tf.reshape(x * 1e38, [-1]) * 1e-38, [3, 2]) + tf.zeros([3, 2])


def divided_by_root(x: Any) -> Any:
    return x / tf.sqrt(tf.square(x) + 1.0)


def same_terms(x: Any) -> Any:
    return tf.add_n([x, x, x]) + tf.transpose(tf.transpose(x))


REWRITES = (
    log_softmax,
    scaled_up_and_down,
    log_plus_one,
    exp_minus_one,
    hoisted,
    folded_through_reshape,
    divided_by_root,
    same_terms,
)


@pytest.mark.parametrize("program", REWRITES)
def test_a_rewritten_program_keeps_its_numbers(program: Any, tmp_path: Path) -> None:
    x = tf.constant(X)
    expected = tf.function(program)(x).numpy()
    actual = record(tmp_path, tf.function(program), x).numpy()
    assert actual.tobytes() == expected.tobytes()
    bad = not np.all(np.isfinite(expected))
    assert (tfdbg_arrow.first_nonfinite(tmp_path) is not None) == bad


def test_the_fused_op_is_recorded(tmp_path: Path) -> None:
    function = tf.function(log_softmax)
    actual = record(tmp_path, function, tf.constant(X)).numpy()
    assert actual.min() == -200.0
    assert rows(tmp_path, "SELECT op_name, op_type FROM tensor_health WHERE scope = 'graph' ORDER BY op_name") == [
        ("Log", "LogSoftmax"),
        ("x", "Placeholder"),
    ]
    assert rows(tmp_path, "SELECT op_type FROM executed_op WHERE op_name = 'Log'") == [("LogSoftmax",)]
    assert rows(tmp_path, "SELECT op_type FROM graph_op WHERE op_name = 'Log'") == [("Log",)]
    assert rows(
        tmp_path,
        "SELECT source_node_name, source_output_slot FROM executed_op_input WHERE node_name = 'Log' AND NOT is_control",
    ) == [("x", 0)]


def inner(x: Any) -> Any:
    return tf.nn.relu(x * 2.0 + 1.0)


def with_loops(x: Any) -> Any:
    total = x
    for step in tf.range(3):
        if step > 0:  # noqa: SIM108
            total = inner(total) * 0.5
        else:
            total = tf.math.log(tf.nn.softmax(total))
    return total, tf.reduce_sum(inner(x))


def ran(logdir: Path, function: Any, *arguments: Any) -> collections.Counter[tuple[str, str]]:
    """Returns how often each node (name, op type) ran in a call, according to TensorFlow's own profiler.

    Nodes that only pass a tensor on are left out, because the profiler of some TensorFlow versions does not see them.
    """
    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=3, python_tracer_level=0)
    tf.profiler.experimental.start(str(logdir), options)
    function(*arguments)
    tf.profiler.experimental.stop()
    (path,) = logdir.rglob("*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    names = (
        plane.event_metadata[event.metadata_id].name
        for plane in space.planes
        for line in plane.lines
        for event in line.events
    )
    matches = (re.fullmatch(r"([\w./-]+):(\w+)", name) for name in names)
    found = collections.Counter((match[1], match[2]) for match in matches if match and match[2] not in IDLE)
    path.unlink()
    return found


def test_each_node_that_ran_has_its_rows(tmp_path: Path) -> None:
    """Compares the rows with the output of TensorFlow's own profiler."""
    function = tf.function(with_loops)
    x = tf.constant(X)
    function(x)
    expected = ran(tmp_path / "profile", function, x)
    assert expected["while/body/_1/while/cond/else/_59/while/cond/Log", "LogSoftmax"] == 1
    with tfdbg_arrow.capture(tmp_path / "logdir", graphs="executed"):
        function(x)
        actual = ran(tmp_path / "profile", function, x)
    actual = collections.Counter({key: number for key, number in actual.items() if "Tfdbg" not in key[1]})
    assert actual == expected
    recorded = collections.Counter(
        {
            (name, op_type): number
            for name, op_type, number in rows(
                tmp_path / "logdir",
                "SELECT e.node_name, e.op_type, count(*) FROM tensor_health AS t "
                "JOIN executed_op AS e USING (graph_id, op_name, call_site) "
                "WHERE t.execution_index = (SELECT max(execution_index) FROM execution WHERE graph_id IS NOT NULL) "
                "AND e.output_dtypes = '[\"float32\"]' GROUP BY ALL",
            )
        }
    )
    integers = {("while/body/_1/while/add", "AddV2"), ("while/body/_1/while/add_1", "AddV2")}
    masks = {key for key in expected if key[1] in ("Greater", "Less")}
    assert {key: number for key, number in expected.items() if key not in integers | masks} == {
        key: number for key, number in recorded.items() if key in expected
    }
    assert {op_type for name, op_type in recorded if (name, op_type) not in expected} <= IDLE


def convolutional(x: Any) -> Any:
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Lambda(tf.nn.local_response_normalization),
            layers.Conv2D(8, 3),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.AveragePooling2D(2),
            layers.Flatten(),
            layers.LayerNormalization(),
            layers.Dense(16, activation="gelu"),
            layers.Dropout(0.2),
            layers.Dense(10),
        ]
    )
    optimizer = keras.optimizers.Adam()

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.log_softmax(model(x, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    step()
    return step


@pytest.mark.slow
def test_a_training_runs_the_same_kernels(tmp_path: Path) -> None:
    """TensorFlow chooses some kernels after its optimizer, depending on a node's neighbors."""
    x = tf.random.stateless_normal([8, 16, 16, 3], [1, 2])

    def types() -> collections.Counter[str]:
        found: collections.Counter[str] = collections.Counter()
        for (_, op_type), number in ran(tmp_path / "profile", convolutional(x)).items():
            if "Tfdbg" not in op_type:
                found[op_type] += number
        return found

    expected = types()
    assert expected["_MklNativeMaxPoolGrad"] == 1 or not any(op_type.startswith("_Mkl") for op_type in expected)
    assert record(tmp_path / "logdir", types) == expected


def test_a_pipeline_gives_the_same_batches(tmp_path: Path) -> None:
    def batches() -> list[list[float]]:
        dataset = tf.data.Dataset.range(8).shuffle(8, seed=1).map(lambda i: tf.cast(i, tf.float32) * 1.5).batch(4)
        return [batch.numpy().tolist() for _ in range(3) for batch in dataset.cache()]

    assert record(tmp_path, batches) == batches()
    assert rows(tmp_path, "SELECT count(*) > 0 FROM tensor_health WHERE op_type = 'Mul'") == [(True,)]


def test_the_optimizer_is_silent_without_a_recording(tmp_path: Path) -> None:
    record(tmp_path / "first", tf.function(with_loops), tf.constant(X))
    function = tf.function(with_loops)
    context.context().export_run_metadata()  # clears the data of earlier functions
    context.context().enable_graph_collection()
    try:
        function(tf.constant(X))
        metadata = context.context().export_run_metadata()
    finally:
        context.context().disable_graph_collection()
    nodes = [
        node
        for collected in metadata.function_graphs
        for graph in (collected.pre_optimization_graph, collected.post_optimization_graph)
        for node in graph.node
    ]
    assert len(nodes) > 50
    assert not any(node.op.startswith("Tfdbg") or "_tfdbg_arrow_graph" in node.attr for node in nodes)


@pytest.mark.slow
def test_a_function_outlives_its_recording_and_is_recorded_again(tmp_path: Path) -> None:
    function = tf.function(with_loops)
    x = tf.constant(X)
    expected = [tensor.numpy().tobytes() for tensor in function(x)]
    results = []
    for name in ("first", "second"):
        results.append(record(tmp_path / name, function, x))
        results.append(function(x))
    for result in results:
        assert [tensor.numpy().tobytes() for tensor in result] == expected
    query = (
        "SELECT op_name, op_type, call_site, count(*) FROM tensor_health WHERE scope = 'graph' "
        "GROUP BY ALL ORDER BY ALL"
    )
    assert rows(tmp_path / "first", query) == rows(tmp_path / "second", query)


def test_skipped_steps_run_without_record_ops(tmp_path: Path) -> None:
    function = tf.function(with_loops)
    x = tf.constant(X)
    with tfdbg_arrow.capture(tmp_path / "logdir", graphs="executed", steps=2):
        for step in range(4):
            tfdbg_arrow.mark(step=step)
            types = {op_type for _, op_type in ran(tmp_path / "profile", function, x)}
            assert "LogSoftmax" in types
            assert ("TfdbgArrowRecordThrough" in types) == (step % 2 == 0)
    query = "SELECT DISTINCT step FROM tensor_health WHERE scope = 'graph' ORDER BY 1"
    assert rows(tmp_path / "logdir", query) == [(0,), (2,)]


def test_exports_contain_no_marking_attribute(tmp_path: Path) -> None:
    function = tf.function(with_loops)
    with tfdbg_arrow.capture(tmp_path / "logdir", graphs="executed"):
        concrete = function.get_concrete_function(tf.TensorSpec([2, 3]))
        assert all(op.get_attr(MARK) > 0 for op in concrete.graph.get_operations())
        text = str(concrete.graph.as_graph_def())
        module = tf.Module()
        module.function = function
        tf.saved_model.save(module, str(tmp_path / "model"), signatures=concrete)
    assert "tfdbg" not in text.lower()
    assert b"tfdbg" not in (tmp_path / "model" / "saved_model.pb").read_bytes().lower()


KILLED = """
import os, signal, sys
import tensorflow as tf
import tfdbg_arrow

@tf.function
def step(x):
    return tf.math.log(tf.nn.softmax(x)) / tf.abs(x)

tfdbg_arrow.enable(sys.argv[1], graphs="executed")
for _ in range(3):
    step(tf.constant([[100.0, -100.0, 0.0]]))
os.kill(os.getpid(), signal.SIGKILL)
"""


@tf.function
def fused(x: Any) -> Any:
    return tf.math.log(tf.nn.relu(x))


def fused_in_a_branch(x: Any) -> Any:
    return tf.cond(tf.reduce_any(x < 1.0), lambda: fused(x), lambda: tf.exp(x))


def fused_in_a_loop(x: Any) -> Any:
    for _ in tf.range(1):
        x = fused(x)
    return x


@pytest.mark.parametrize(
    "program",
    mostly_slow([fused, lambda x: fused(x), fused_in_a_branch, fused_in_a_loop], fast=[fused, fused_in_a_loop]),
)
def test_a_function_whose_ops_were_all_fused_has_rows_and_lines(program: Any, tmp_path: Path) -> None:
    record(tmp_path, tf.function(program), tf.constant([0.0, 2.0]))
    found = tfdbg_arrow.first_nonfinite(tmp_path)
    assert found is not None
    assert (found.op_type, found.ran_as) == ("Log", "_UnaryOpsComposition in place of Relu and Log")
    assert found.source is not None
    assert found.source.code == "return tf.math.log(tf.nn.relu(x))"


STEERING = IDLE - {"Const"}


@pytest.fixture(
    scope="module",
    params=[
        ("second_order", "native"),
        *(
            pytest.param((name, backend), marks=() if (name, backend) in FAST_RECORDINGS else pytest.mark.slow)
            for name in ("deep_gradients", "keras_fit", "same_function_twice", "switch")
            for backend in ("native", "tensorflow")
        ),
    ],
    ids="-".join,
)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of a program with a health backend."""
    name, health_backend = request.param
    logdir = tmp_path_factory.mktemp(name)
    record(logdir, PROGRAMS[name].run, health_backend=health_backend)
    return logdir


@pytest.mark.slow
def test_each_node_belongs_to_an_op_of_the_program(recorded: Path) -> None:
    unknown = "SELECT op_type, node_name FROM executed_op WHERE graph_id IS NULL OR coalesce(op_name, made_for) IS NULL"
    assert [row for row in rows(recorded, unknown) if row[0] not in STEERING] == []


def test_each_row_has_the_graph_in_which_its_node_ran(recorded: Path) -> None:
    without_node = (
        "SELECT h.op_name, h.executed_graph_id FROM tensor_health AS h WHERE scope = 'graph' AND NOT EXISTS ("
        "SELECT 1 FROM executed_op AS e WHERE e.executed_graph_id = h.executed_graph_id AND e.graph_id = h.graph_id "
        "AND e.call_site = h.call_site AND coalesce(e.op_name, e.node_name) = h.op_name "
        "AND e.op_type IN (h.op_type, '_Arg'))"
    )
    assert rows(recorded, without_node) == []
    assert rows(recorded, "SELECT count(*) > 0 FROM tensor_health WHERE executed_graph_id IS NOT NULL") == [(True,)]
    outside = "SELECT op_type FROM tensor_health WHERE scope <> 'graph' AND executed_graph_id IS NOT NULL"
    assert rows(recorded, outside) == []


def test_a_step_has_the_graph_that_was_optimized_for_it(tmp_path: Path) -> None:
    function = tf.function(lambda x: tf.math.log(tf.nn.softmax(x)))
    x = tf.Variable([0.0, 1.0])
    with tfdbg_arrow.capture(tmp_path):
        for _ in range(2):
            function(x)
            with tf.GradientTape():
                function(x)  # TensorFlow optimizes another graph, which also returns inputs of the gradient
    found = rows(tmp_path, "SELECT DISTINCT step_id, executed_graph_id FROM tensor_health WHERE scope = 'graph'")
    assert len(found) == 4
    assert len({executed_graph_id for _, executed_graph_id in found}) == 2


@pytest.mark.slow
def test_a_check_waits_until_its_constant_input_is_recorded(tmp_path: Path) -> None:
    def program(x: Any) -> Any:
        return x + tf.debugging.check_numerics(tf.math.log(tf.zeros([3])), "bad")

    for attempt in range(5):
        with pytest.raises(tf.errors.InvalidArgumentError):
            record(tmp_path / str(attempt), tf.function(program), tf.ones([3]))
        found = tfdbg_arrow.first_nonfinite(tmp_path / str(attempt))
        assert found is not None
        assert (found.op_name, found.op_type, found.num_neg_inf) == ("Log", "Log", 3)
        assert found.ran_as == "Const in place of Log"


def test_a_function_call_that_was_computed_in_advance_names_its_ops(tmp_path: Path) -> None:
    @tf.function
    def logarithm(value: Any) -> Any:
        return tf.math.log(value) * 2.0  # computed in advance

    with tfdbg_arrow.capture(tmp_path), tf.Graph().as_default(), tf.compat.v1.Session() as session:
        session.run(logarithm(tf.constant(0.0)))
    found = tfdbg_arrow.first_nonfinite(tmp_path)
    assert found is not None
    assert (found.op_type, found.ran_as, found.is_expected) == ("Log", "Const in place of Log and Mul", False)
    assert found.source is not None
    assert (found.source.code or "").endswith("# computed in advance")
    explanation = read_reasons(tmp_path, found.event_index, run_id=found.run_id).explanation
    assert explanation is not None
    assert explanation.sentence.startswith("Log of constants: TensorFlow computed the result in advance")


@pytest.mark.slow
def test_the_defaults_of_graphs(tmp_path: Path) -> None:
    choices: dict[str, tuple[dict[str, Any], str]] = {
        "default": ({}, "executed"),
        "traced": ({"graphs": "traced"}, "traced"),
        "tensorflow": ({"health_backend": "tensorflow"}, "executed"),
        "tensorflow stopped": ({"health_backend": "tensorflow", "on_nonfinite": "raise"}, "executed"),
        "stopped": ({"on_nonfinite": "raise"}, "executed"),
        "filtered": ({"op_regex": "Log"}, "traced"),
        "chosen": ({"values": "Log"}, "traced"),
        "both": ({"values": "Log", "graphs": "executed"}, "executed"),
    }
    for name, (settings, graphs) in choices.items():
        with tfdbg_arrow.capture(tmp_path / name, **settings):
            tf.function(log_softmax)(tf.constant(X[1]))
        ((text,),) = rows(tmp_path / name, "SELECT settings FROM run")
        assert json.loads(text)["graphs"] == graphs
        types = {op_type for (op_type,) in rows(tmp_path / name, "SELECT op_type FROM tensor_health")}
        assert ("LogSoftmax" in types) == (graphs == "executed")


@pytest.mark.slow
def test_a_killed_program_leaves_the_rows_that_it_recorded(tmp_path: Path) -> None:
    run_python(tmp_path / "killed.py", KILLED, tmp_path / "logdir", returncode=-9)
    tfdbg_arrow.recover(tmp_path / "logdir")
    query = "SELECT op_name, op_type, count(*) FROM tensor_health WHERE scope = 'graph' GROUP BY ALL ORDER BY ALL"
    found = rows(tmp_path / "logdir", query)
    assert ("Log", "LogSoftmax", 3) in found
    culprit = tfdbg_arrow.first_nonfinite(tmp_path / "logdir")
    assert culprit is not None
    assert culprit.op_type == "RealDiv"


def test_threads_record_their_own_calls(tmp_path: Path) -> None:
    function = tf.function(with_loops)
    x = tf.constant(X)

    def run_in_threads() -> None:
        import threading

        threads = [threading.Thread(target=lambda: [function(x) for _ in range(5)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    record(tmp_path, run_in_threads)
    counts = rows(
        tmp_path,
        "SELECT DISTINCT count(*) FROM tensor_health WHERE scope = 'graph' GROUP BY step_id",
    )
    assert len(counts) == 1
    assert rows(tmp_path, "SELECT count(DISTINCT step_id) FROM tensor_health WHERE scope = 'graph'") == [(20,)]


def test_a_program_without_optimizers_is_recorded_unchanged(tmp_path: Path) -> None:
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        record(tmp_path, tf.function(log_softmax), tf.constant(X))
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    types = {op_type for (op_type,) in rows(tmp_path, "SELECT op_type FROM tensor_health WHERE scope = 'graph'")}
    assert types == {"Log", "Placeholder", "Softmax"}


def test_an_invalid_value_of_graphs_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="graphs is 'optimized'"):
        tfdbg_arrow.enable(tmp_path, graphs="optimized")


def constant() -> Any:
    return tf.constant(np.nan)


def unchanged(x: Any) -> Any:
    return x


@pytest.mark.parametrize(
    ("function", "arguments", "op_type"), [(constant, (), "Const"), (unchanged, (np.nan,), "Placeholder")]
)
def test_a_function_that_tensorflow_does_not_optimize_is_recorded(
    function: Any, arguments: tuple[Any, ...], op_type: str, tmp_path: Path
) -> None:
    record(tmp_path, tf.function(function), *map(tf.constant, arguments))
    assert rows(tmp_path, "SELECT op_type FROM tensor_health WHERE scope = 'graph'") == [(op_type,)]
    assert rows(tmp_path, "SELECT * FROM capture_stat") == []


def test_remaining_outputs_of_an_identity_n_do_not_get_wrong_slots(tmp_path: Path) -> None:
    def program(x: Any) -> Any:
        unused, bad, again = tf.identity_n([x * 2.0, tf.math.log(x), x * 3.0])
        assert unused is not None
        return bad + 1.0, again

    record(tmp_path, tf.function(program), tf.constant([0.0, 1.0]))
    found = rows(tmp_path, "SELECT op_name, output_slot, num_neg_inf FROM tensor_health WHERE op_type = 'IdentityN'")
    assert found == []
    first = tfdbg_arrow.first_nonfinite(tmp_path)
    assert (first.op_type, first.is_origin) == ("Log", True)


def test_a_small_function_is_recorded_if_the_default_graph_has_ops(tmp_path: Path) -> None:
    with tf.compat.v1.get_default_graph().as_default() as graph:
        tf.constant(1.0)
    assert graph.get_operations()
    record(tmp_path, tf.function(lambda: tf.constant([1.0], name="small")))
    assert rows(tmp_path, "SELECT op_type FROM tensor_health WHERE op_name = 'small'") == [("Const",)]


def session_runs(config: Any = None) -> Any:
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        x = tf.compat.v1.placeholder(tf.float32, [2, 3])
        outside = log_softmax(x)
        inside = tf.function(log_softmax)(x)
        return session.run(outside, {x: X}), session.run(inside, {x: X})


def test_sessions_run_the_same_as_without_a_recording(tmp_path: Path) -> None:
    wanted = session_runs()
    outside, inside = record(tmp_path, session_runs)
    assert (outside.tobytes(), inside.tobytes()) == (wanted[0].tobytes(), wanted[1].tobytes())
    found = rows(
        tmp_path,
        "SELECT execution_index, call_site, op_type FROM tensor_health "
        "WHERE scope = 'graph' AND op_name = 'Log' ORDER BY 1",
    )
    assert found == [(0, "", "LogSoftmax"), (1, "PartitionedCall", "LogSoftmax")]
    assert tfdbg_arrow.first_nonfinite(tmp_path) is None
    assert rows(tmp_path, "SELECT * FROM capture_stat") == []


def test_a_session_without_optimizers_is_recorded_unchanged(tmp_path: Path) -> None:
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True

    def run() -> Any:
        with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
            x = tf.compat.v1.placeholder(tf.float32, [2, 3])
            outside = log_softmax(x)
            called = tf.function(log_softmax)(x)  # TensorFlow optimizes the functions that a call runs
            branch = tf.cond(x[0, 0] < 1e9, lambda: log_softmax(x), lambda: x)
            return [session.run(fetch, {x: X}) for fetch in (outside, called, branch, branch)]

    record(tmp_path, run)
    types = rows(
        tmp_path,
        "SELECT execution_index, op_type FROM tensor_health "
        "WHERE op_type IN ('Softmax', 'Log', 'LogSoftmax') ORDER BY ALL",
    )
    assert types == [(index, op_type) for index in range(4) for op_type in ("Log", "Softmax")]
    assert rows(tmp_path, "SELECT * FROM capture_stat") == []


def test_earlier_sessions_keep_their_settings(tmp_path: Path) -> None:
    off = tf.compat.v1.ConfigProto()
    off.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [2, 3])
        y = log_softmax(x)
        sessions = [tf.compat.v1.Session(config=off), tf.compat.v1.Session()]
        with tfdbg_arrow.capture(tmp_path, graphs="traced"):
            for session in sessions:
                session.run(y, {x: X})
    types = rows(tmp_path, "SELECT execution_index, op_type FROM tensor_health WHERE op_name = 'Log'")
    assert types == [(1, "LogSoftmax")]
    assert rows(tmp_path, "SELECT stat, subject FROM capture_stat ORDER BY ALL") == [
        ("changed", "Session"),
        ("unobservable", "Session"),
    ]


def test_unused_outputs_in_a_session_are_recorded_once_for_each_run(tmp_path: Path) -> None:
    def run() -> Any:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            x = tf.compat.v1.placeholder(tf.float32, [4], name="x")
            low, high = tf.split(x * 2.0, 2, name="halves")
            constant = tf.constant([1.0, 2.0], name="constant")
            unneeded = tf.math.log(x, name="unneeded")
            ran = tf.exp(low, name="target")
            data = np.arange(4, dtype=np.float32)
            session.run([high, constant], {x: data})
            session.run([low, ran.op], {x: data})
            return session.run([high, x], {x: data, low: np.float32([5.0, 6.0])}), unneeded

    record(tmp_path, run)
    found = rows(
        tmp_path,
        "SELECT execution_index, op_name, output_slot, count(*) FROM tensor_health "
        "WHERE scope = 'graph' AND op_name IN ('x', 'halves', 'constant', 'unneeded', 'target') "
        "GROUP BY ALL ORDER BY ALL",
    )
    assert found == [
        (0, "constant", 0, 1),
        (0, "halves", 0, 1),
        (0, "halves", 1, 1),
        (0, "x", 0, 1),
        (1, "halves", 0, 1),
        (1, "halves", 1, 1),
        (1, "target", 0, 1),
        (1, "x", 0, 1),
        (2, "halves", 1, 1),
        (2, "x", 0, 1),
    ]


def test_a_function_that_tensorflow_cannot_optimize_is_reported_as_unrecorded(tmp_path: Path) -> None:
    """Some versions of TensorFlow cannot optimize a graph with this dtype and run it unchanged."""
    dtype = tf.dtypes.experimental.float8_e5m2

    @tf.function
    def program(x: tf.Tensor) -> tf.Tensor:
        return tf.math.log(tf.cast(tf.cast(x, dtype), tf.float32)) + tf.cast(
            tf.cast(tf.constant([1.0]), dtype), tf.float32
        )

    with tfdbg_arrow.capture(tmp_path, graphs="executed"):
        for _ in range(2):
            assert program(tf.constant([1.0])).numpy() == [1.0]
    logs = rows(tmp_path, "SELECT count(*) FROM tensor_health WHERE op_type = 'Log'")
    stats = rows(tmp_path, "SELECT stat, subject LIKE '%program%', reason LIKE 'ran unrecorded%' FROM capture_stat")
    assert (logs, stats) in [([(2,)], []), ([(0,)], [("unobservable", True, True)])]


def test_the_answer_names_all_lines_that_tensorflow_computed_as_one_op(tmp_path: Path) -> None:
    weights = tf.Variable([0.0, 0.0])

    @tf.function
    def step() -> Any:
        x = weights.read_value()
        accuracy = tf.reduce_mean(tf.exp(x / tf.reduce_sum(x)))  # first
        loss = tf.reduce_sum(tf.exp(x / tf.reduce_sum(x)))  # second
        other = tf.reduce_sum(tf.exp((x + 1.0) / tf.reduce_sum(x + 1.0)))
        weights.assign_sub(tf.fill([2], loss))
        return accuracy, other

    record(tmp_path, step)
    found = first_nonfinite(tmp_path)
    assert found is not None
    assert found.source is not None
    lines = [line.code for line in (found.source, *found.equal_lines)]
    assert found.op_type == "RealDiv"
    assert [(line or "").rpartition("# ")[2] for line in lines] == ["first", "second"]
    first, second = found.source.lineno, found.equal_lines[0].lineno
    assert op_text(found) == f"truediv:0 (RealDiv), computed once for lines {first} and {second}"
    assert ("same op", f"{__file__}:{second}: {lines[1]}") in nonfinite_facts(found)


def test_a_graph_without_nodes_of_the_program_has_no_rows() -> None:
    own = (f"{OWN_NAME_PREFIX}run_1_", "NoOp", "", 3, "", None, [], None, None)
    node = ("y", "Log", "/CPU:0", 3, "log", "", [("x", 1, False), ("z", 0, True)], [1], None)
    found: list[tuple[str, Any]] = []
    optimizer = SimpleNamespace(
        take_executed_graphs=lambda: [(1, [own]), (2, []), (3, [node])],
        take_unreadable_graphs=lambda: 0,
        take_masked_outputs=list,
    )
    executed = ExecutedGraphs(
        optimizer,
        links=GraphLinks(),
        append_columns=lambda table, columns, *notes: (
            found.append((table, {name: list(columns[name]) for name in columns})),
            [note() for note in notes],
        ),
        lock=nullcontext(),
        generation=1,
        keeps_ops=False,
        judge=SimpleNamespace(),  # type: ignore[arg-type]
        note_failure=lambda what, error: pytest.fail(f"{what}: {error}"),
        failing=None,
    )
    executed.write()
    assert executed.has_run(own[0])
    assert found == [
        ("executed_op_input", {
            "executed_graph_id": [3, 3], "node_name": ["y", "y"], "input_index": [0, 1], "source_node_name": ["x", "z"],
            "source_output_slot": [1, None], "is_control": [False, True],
        }),
        ("executed_op", {
            "executed_graph_id": [3], "node_name": ["y"], "op_type": ["Log"], "graph_id": [3], "op_name": ["log"],
            "made_for": [None], "call_site": [""], "device_name": ["/CPU:0"], "interface_index": [None],
            "output_dtypes": ['["float32"]'],
        }),
    ]  # fmt: skip
