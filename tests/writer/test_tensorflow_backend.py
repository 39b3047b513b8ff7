"""The TensorFlow backend records the same as the native backend.

`test_device_summaries.py` tests graphs that are recorded as TensorFlow's optimizer leaves them.
"""

from __future__ import annotations

import collections
import gc
import re
import threading
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pyarrow.dataset as ds
import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.errors import RecordingError
from tfdbg_arrow.writer import backend
from tfdbg_arrow.writer.graphs.node_defs import OWN_NAME_PREFIX
from tfdbg_arrow.writer.graphs.summary_columns import COUNT_COLUMNS, NUM_FINITE_COLUMN
from tfdbg_arrow.writer.hooks import runtime
from tfdbg_arrow.writer.native import reference
from tfdbg_arrow.writer.settings import TensorDebugMode
from tfdbg_arrow.writer.tensorflow_backend import summary

from .magnitudes import RELATIVE_TOLERANCE
from .subprocesses import run_python

IN_EVERY_RUN = ("CONCISE_HEALTH", "FULL_HEALTH", "FULL_TENSOR")
MODES = ("NO_TENSOR", "CURT_HEALTH", "CONCISE_HEALTH", "FULL_HEALTH", "FULL_NUMERICS", "SHAPE", "FULL_TENSOR")
DTYPES = tuple(reference.TENSORFLOW_DTYPES)
ROUNDED = ("mean_finite", "stddev_finite", "max_abs_finite")
KINDS = ("neg_inf", "pos_inf", "nan", "neg_finite", "zero", "pos_finite")

Rows = list[dict[str, Any]]


class Recorded:
    """The tables of a recorded program."""

    def __init__(self, logdir: Path) -> None:
        self._logdir = logdir

    def rows(self, table: str) -> Rows:
        data = ds.dataset(self._logdir / table).to_table()
        rows: Rows = (data.sort_by("event_index") if "event_index" in data.column_names else data).to_pylist()
        return rows

    def tensors(self, **wanted: Any) -> Rows:
        return [row for row in self.rows("tensor_health") if all(row[key] == wanted[key] for key in wanted)]

    def device_names(self) -> dict[int, str]:
        return {row["device_id"]: row["device_name"] for row in self.rows("device")}

    def stats(self) -> list[tuple[str, str, str]]:
        return [(row["stat"], row["subject"], row["reason"]) for row in self.rows("capture_stat")]


def record(
    logdir: Path,
    program: Callable[[], Any],
    mode: str = "FULL_HEALTH",
    *,
    backend_name: str = "tensorflow",
    **more: Any,
) -> Recorded:
    with tfdbg_arrow.capture(logdir, mode, health_backend=backend_name, exact_subnormals=True, **more):
        program()
    return Recorded(logdir)


# Programs.


def nested() -> None:
    """Runs nested functions, a branch, a loop, gradients inside and outside of functions, and eager ops."""
    weight = tf.Variable([1.5, -2.0])

    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        return tf.math.log(x) * weight

    @tf.function
    def outer(x: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        index = tf.constant(0)
        while index < count:
            x = inner(x)
            x = x + 1.0 if tf.reduce_sum(x) > 0.0 else x - 1.0
            index += 1
        return x

    @tf.function
    def gradient(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(inner(tf.sqrt(x)))
        return tape.gradient(loss, weight)

    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(outer(tf.constant([4.0, 0.0]), tf.constant(3)))
    tape.gradient(loss, weight)
    gradient(tf.constant([[2.0, 3.0], [0.0, -1.0]]))
    quotient = tf.constant([1.0, 0.0]) / tf.constant([0.0, 0.0])
    tf.add_n([tf.cast(quotient, tf.float64)] * 25)


def elements(dtype_name: str, size: int = 67) -> npt.NDArray[Any]:
    """Returns random bits that include one element of each kind."""
    dtype = np.dtype(tf.as_dtype(dtype_name).as_numpy_dtype)
    raw = np.random.default_rng(size).integers(0, 256, size * dtype.itemsize, dtype=np.uint8)
    values: npt.NDArray[Any] = (raw & 1 if dtype_name == "bool" else raw).view(dtype)
    if dtype.kind not in "biu" and size:
        part = np.dtype({"complex64": "float32", "complex128": "float64"}.get(dtype_name, dtype))
        finfo: Any = ml_dtypes.finfo
        least = float(finfo(part).smallest_subnormal)
        with np.errstate(all="ignore"):
            kinds = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, least, -least, 1.0], part)
        values[: len(kinds)] = kinds[:size]
        numbers = values.view(part)
        with np.errstate(all="ignore"):
            numbers[np.isnan(numbers)] = np.nan  # no computation makes a signaling NaN
    return values


def all_dtypes() -> None:
    """Makes tensors of each dtype, some of them empty, in a graph without static shapes and in eager code."""
    arrays = [elements(name) for name in DTYPES] + [elements(name, 0).reshape(0, 3) for name in DTYPES]
    small = np.array([3e-310, -5e-324, 0.0, 2e-308])
    arrays += [small, small[:2], np.append(small, 1e308), np.full(3, 0.1), np.array(np.nan, np.float32), np.array(-2.5)]
    arrays += [np.array([3e-310 + 4e-310j, 0]), np.array([1e308 + 1e308j]), np.array([np.inf, -np.inf])]
    tensors = [tf.constant(array) for array in arrays]

    @tf.function(input_signature=[[tf.TensorSpec(None, tensor.dtype) for tensor in tensors]])
    def pass_on(given: list[tf.Tensor]) -> list[tf.Tensor]:
        return [tf.reshape(tensor, tf.shape(tensor)) for tensor in given]  # TensorFlow removes an Identity

    pass_on(tensors)
    for tensor in tensors:
        tf.identity(tensor)


# Comparison with the native backend.


@pytest.fixture(scope="module")
def natively(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Recorded]:
    """Records programs with the native backend, each once for all tests."""
    known: dict[tuple[str, str], Recorded] = {}

    def get(program: Callable[[], None], mode: str, **more: Any) -> Recorded:
        key = (program.__name__, mode)
        if key not in known:
            logdir = tmp_path_factory.mktemp("native")
            known[key] = record(logdir, program, mode, backend_name="native", graphs="traced", **more)
        return known[key]

    return get


def without_number(name: str | None) -> str | None:
    """Returns a name without TensorFlow's counters: `while_cond_17_x`, `__inference_step_9_12`, `while/345`."""
    return name if name is None else re.sub(r"(__\w+?|_(?:cond|body|true|false))(_\d+)+|\b\d+$", r"\1", name)


def comparable(recorded: Recorded) -> Rows:
    """Returns rows without columns that depend on the run, on the order in which kernels end, or on the backend."""
    places = {"first_bad_index", "num_bad_slices", "scalar_value"}
    left_out = {"run_id", "event_index", "wall_time_ns", "wall_time", "step_id", "frame_id", "tensor_id", "device_id"}
    devices = recorded.device_names()
    kept = [
        {key: row[key] for key in row if key not in left_out | places}
        | {name: without_number(row[name]) for name in ("op_type", "op_name")}
        | {"device": devices[row["device_id"]]}
        for row in recorded.tensors()
    ]
    return sorted(kept, key=lambda row: str([row[key] for key in row if key not in ROUNDED]))


def assert_same_tensors(got: Recorded, wanted: Recorded) -> None:
    got_rows, wanted_rows = (comparable(recorded) for recorded in (got, wanted))
    assert len(got_rows) == len(wanted_rows)
    for got_row, wanted_row in zip(got_rows, wanted_rows, strict=True):
        tolerance = max((wanted_row["max_abs_finite"] or 0.0) * RELATIVE_TOLERANCE, 5e-324)
        for name in ROUNDED:
            a, b = got_row.pop(name), wanted_row.pop(name)
            assert a == b or (a is not None and b is not None and abs(a - b) <= tolerance), (name, a, b, wanted_row)
        assert got_row == wanted_row


LONG_MODE = pytest.param("FULL_NUMERICS", marks=pytest.mark.exhaustive)
"""TensorFlow is slow to compile the summaries of this mode for each dtype. test_an_eager_row_equals_the_twins covers
the mode."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode", [mode if mode in IN_EVERY_RUN else pytest.param(mode, marks=pytest.mark.exhaustive) for mode in MODES]
)
def test_a_program_has_the_history_of_the_native_backend(
    mode: str, tmp_path: Path, natively: Callable[..., Recorded]
) -> None:
    got, wanted = record(tmp_path, nested, mode, graphs="traced"), natively(nested, mode)
    assert [row["health_backend"] for row in got.rows("run")] == ["tensorflow"]
    assert got.stats() == []
    assert_same_tensors(got, wanted)
    for table, columns in {
        "execution": ("execution_index", "op_type", "graph_id", "num_inputs", "num_outputs", "thread_id"),
        "execution_input": ("execution_index", "input_index"),
        "execution_output": ("execution_index", "output_slot", "dtype"),
        "graph_op": ("graph_id", "op_name", "op_type", "num_outputs"),
        "graph_op_output": ("graph_id", "op_name", "output_slot", "dtype", "static_shape", "is_recorded"),
        "graph_call": ("graph_id", "op_name", "attribute", "callee_graph_id"),
    }.items():
        histories = [
            sorted(
                str([without_number(row[name]) if name in ("op_name", "op_type") else row[name] for name in columns])
                for row in recorded.rows(table)
            )
            for recorded in (got, wanted)
        ]
        assert histories[0] == histories[1], table


@pytest.mark.parametrize("mode", ["SHAPE", "FULL_HEALTH", LONG_MODE, "FULL_TENSOR"])
def test_every_dtype_has_the_rows_of_the_native_backend(
    mode: str, tmp_path: Path, natively: Callable[..., Recorded]
) -> None:
    got = record(tmp_path, all_dtypes, mode, tensor_dtypes=DTYPES, graphs="traced")
    assert got.stats() == []
    assert {row["dtype"] for row in got.tensors(scope="graph")} == set(DTYPES)
    assert_same_tensors(got, natively(all_dtypes, mode, tensor_dtypes=DTYPES))


def test_full_tensor_keeps_the_elements(tmp_path: Path) -> None:
    recorded = record(tmp_path, all_dtypes, "FULL_TENSOR", graphs="traced")
    values = {row["event_index"]: row for row in recorded.rows("tensor_value")}
    tensors = recorded.tensors()
    assert set(values) == {row["event_index"] for row in tensors}
    for dtype in DTYPES:
        found = [values[row["event_index"]]["value"] for row in tensors if row["dtype"] == dtype and row["size"] == 67]
        assert found == [elements(dtype).tobytes()] * 5  # argument, result, call, external, eager op


# Errors that only this backend could make.


def test_a_shape_with_many_dimensions_is_complete(tmp_path: Path) -> None:
    shape = [1, 2, 1, 2, 1, 2, 1, 3]

    @tf.function(input_signature=[tf.TensorSpec(shape), tf.TensorSpec(None)])
    def f(known: tf.Tensor, unknown: tf.Tensor) -> Any:
        return known + 1.0, unknown + 1.0

    recorded = record(tmp_path, lambda: f(tf.ones(shape), tf.ones(shape)), graphs="traced")
    shapes = {row["op_name"]: (row["rank"], row["shape"], row["size"]) for row in recorded.tensors(scope="graph")}
    assert shapes["add"] == shapes["known"] == shapes["add_1"] == shapes["unknown"] == (8, shape, 24)
    assert [row["num_pos_finite"] for row in recorded.tensors(op_name="add_1")] == [24]
    assert {(row["rank"], str(row["shape"])) for row in recorded.tensors(scope="execution")} == {
        (8, str(shape)),
        (1, "[8]"),  # the dims of tf.ones
        (0, "[]"),
    } & {(row["rank"], str(row["shape"])) for row in recorded.tensors(scope="execution")}


@pytest.mark.parametrize("mode", ["SHAPE", "FULL_HEALTH", LONG_MODE])
def test_any_rank_can_be_measured(mode: str, tmp_path: Path) -> None:
    """TensorFlow's element-wise ops accept ranks up to 8. If a summary failed, the user's function would fail, too."""
    tensors = [tf.reshape(tf.constant(elements(name, 60)), [1] * 27 + [3, 4, 5]) for name in DTYPES]

    @tf.function(input_signature=[[tf.TensorSpec(None, tensor.dtype) for tensor in tensors]])
    def f(given: list[tf.Tensor]) -> list[tf.Tensor]:
        return [tf.identity(tensor) for tensor in given]

    recorded = record(tmp_path, lambda: f(tensors), mode, tensor_dtypes=DTYPES)
    assert recorded.stats() == []
    assert len(recorded.tensors(scope="graph", op_type="Placeholder")) == len(DTYPES)
    for row in recorded.tensors():
        if mode != "SHAPE":
            assert sum(row[f"num_{kind}"] for kind in KINDS) == 60
        assert row["shape"] == [1] * 27 + [3, 4, 5]


TWO_DEVICES = """
    import sys
    import numpy as np
    import tensorflow as tf
    from tensorflow.python.eager import context as eager_context
    import tfdbg_arrow
    from tfdbg_arrow.writer.hooks import runtime

    logdir, mode, graphs = sys.argv[1:]
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    runtime.has_accelerator = lambda: True
    # Without subnormal numbers, which the backends count as different kinds.
    values = np.tile(np.float32([4.0, -1.0, 0.0, np.inf, 1e30, -np.inf, np.nan, 9.0]), 1 << 18)

    def step(x, v):
        with tf.device("/CPU:1"):
            y = tf.sqrt(x)
            large = tf.math.log(y)
        with tf.device("/CPU:0"):
            z = tf.exp(y)
            chosen = tf.argmax(z)
            rows = tf.reshape(tf.strings.to_number(tf.strings.as_string(y[:8])), [2, 4])
        with tf.device("/CPU:1"):
            v.assign_add(tf.reduce_sum(rows[0]) + tf.reduce_max(large))
        return y + z, tf.cast(tf.shape(rows)[0], tf.float32) / v, chosen

    def run():
        with tf.device("/CPU:1"):
            v = tf.Variable(1.0)
            x = tf.constant(values) * 1.0
            small = tf.linspace(-1.0, 1.0, 7) / 0.0
        function = tf.function(step)
        return function(x, v), function(x, v), tf.sort(small), v.read_value()

    eager_context.context().enable_run_metadata()
    results = []
    for backend in ("tensorflow", "native"):
        with tfdbg_arrow.capture(f"{logdir}/{backend}", mode, health_backend=backend, graphs=graphs):
            results.append([np.asarray(tensor).tobytes() for tensor in tf.nest.flatten(run())])
        if backend == "tensorflow":
            functions = eager_context.context().export_run_metadata().function_graphs
            ran = [function.post_optimization_graph for function in functions]
    assert results[0] == results[1]

    def counting_devices(graphs):
        return sorted({node.device[-5:] for graph in graphs for node in graph.node if node.op == "DenseBincount"})

    is_step = [any(node.op == "AsString" for node in graph.node) for graph in ran]
    print(counting_devices(graph for graph, is_it in zip(ran, is_step) if is_it))
    print(counting_devices(graph for graph, is_it in zip(ran, is_step) if not is_it))
"""


@pytest.mark.slow
@pytest.mark.parametrize("graphs", ["auto", "traced"])
@pytest.mark.parametrize("mode", ["FULL_HEALTH", LONG_MODE])
def test_a_program_on_two_devices_has_the_rows_of_the_native_backend(mode: str, graphs: str, tmp_path: Path) -> None:
    """Uses two CPUs as a host and an accelerator. Each tensor is measured on its own device."""
    printed = run_python(tmp_path / "program.py", TWO_DEVICES, tmp_path, mode, graphs).splitlines()
    devices = str(["CPU:0", "CPU:1"])
    # The host measures magnitudes of eager tensors.
    assert printed[-2:] == [devices, devices if mode == "FULL_HEALTH" else "[]"]  # for the function and eager tensors
    recorded = Recorded(tmp_path / "tensorflow")
    assert [row["health_backend"] for row in recorded.rows("run")] == ["tensorflow"]
    assert recorded.stats() == []
    rows = _rows_with_devices(recorded)
    assert rows == _rows_with_devices(Recorded(tmp_path / "native"))
    device_of = {facts[1]: facts[0] for facts in rows if facts[2] == "graph"}
    assert [device_of[op_type] for op_type in ("Sqrt", "Log", "Exp", "Reshape")] == ["CPU:1", "CPU:1", "CPU:0", "CPU:0"]


def _rows_with_devices(recorded: Recorded) -> collections.Counter[tuple[Any, ...]]:
    """Counts the equal rows, without the numbers in the names of functions, and with rounded sums."""
    names = recorded.device_names()
    labels = ("scope", "op_name", "output_slot", "dtype", "has_inf_or_nan")
    counts = ("size", "num_nan", "num_neg_inf", "num_pos_inf", "num_neg_finite", "num_zero", "num_pos_finite")
    measured = ("min_finite", "max_finite", *ROUNDED)
    return collections.Counter(
        (
            names.get(row["device_id"], "")[-5:],
            (row["op_type"] or "").rstrip("_0123456789"),
            *(row[label] for label in (*labels, *counts)),
            str(row["shape"]),
            *(None if row[name] is None else float(f"{row[name]:.9g}") for name in measured),
        )
        for row in recorded.tensors()
    )


def test_a_deterministic_gpu_does_not_use_the_op_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """DenseBincount does not run on such a GPU."""
    assert not runtime.refuses_counting_on_accelerators()
    monkeypatch.setattr(runtime, "is_op_determinism_enabled", lambda: True)
    assert not runtime.refuses_counting_on_accelerators()
    monkeypatch.setattr(runtime, "has_accelerator", lambda: True)
    assert runtime.refuses_counting_on_accelerators()


def with_gradients() -> None:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return x * 2.0

    x = tf.constant([1.0, 2.0])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = f(x) * x
    assert tape.gradient(y, x).numpy().tolist() == [4.0, 8.0]
    with tf.autodiff.ForwardAccumulator(x, tf.ones([2])) as accumulator:
        y = f(x) * x
    assert accumulator.jvp(y).numpy().tolist() == [4.0, 8.0]


def test_ops_of_the_recorder_are_not_recorded(tmp_path: Path) -> None:
    recorded = record(tmp_path, with_gradients, "FULL_NUMERICS")
    types = {row["op_type"] for row in recorded.rows("graph_op") + recorded.rows("execution")}
    assert "Mul" in types
    assert not types & {"DenseBincount", "Bitcast", "Cast"}
    assert not [op_type for op_type in types if op_type.startswith("TfdbgArrow")]
    assert not [row for row in recorded.rows("graph_op") if row["op_name"].startswith(OWN_NAME_PREFIX)]


def test_check_numerics_works_during_a_recording(tmp_path: Path) -> None:
    def program() -> None:
        with_gradients()
        with pytest.raises(tf.errors.InvalidArgumentError, match="-Inf"):
            tf.math.log(tf.constant(0.0))

    tf.debugging.enable_check_numerics()
    try:
        recorded = record(tmp_path, program)
    finally:
        tf.debugging.disable_check_numerics()
    assert recorded.stats() == []
    assert recorded.tensors(scope="graph", op_type="Mul")


def test_a_tape_keeps_no_tensors_of_the_recorder(tmp_path: Path) -> None:
    """A persistent tape would keep every tensor that a measurement makes."""
    x = tf.random.normal([64])

    def num_eager_tensors() -> int:
        gc.collect()
        return sum(type(thing) is type(x) for thing in gc.get_objects())

    def grown() -> int:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            before = num_eager_tensors()
            y = tf.nn.relu(x)
            for _ in range(5):
                y = tf.nn.relu(y)
            after = num_eager_tensors()
        return after - before

    bare = grown()
    sizes: list[int] = []
    record(tmp_path, lambda: sizes.append(grown()))
    assert sizes == [bare]


def test_recording_without_the_native_core_raises_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "native_core", lambda: None)
    for name in ("auto", "native", "tensorflow"):
        with pytest.raises(RecordingError) as caught:
            tfdbg_arrow.enable(tmp_path, health_backend=name)
        for part in ("without its native core", "install a C++17 compiler", "tfdbg_arrow again", "pip install"):
            assert part in str(caught.value)
        assert not tfdbg_arrow.is_recording()
        assert list(tmp_path.glob("spool/*")) == []
    monkeypatch.undo()
    assert record(tmp_path, lambda: tf.sqrt(tf.constant(4.0))).tensors(op_type="Sqrt")


@pytest.mark.parametrize("name", ["native", "tensorflow"])
def test_a_core_that_does_not_fit_tensorflow_raises_an_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "library_paths", lambda: ("no_framework.so", "no_cc.so", "no_python.so"))
    with pytest.raises(RecordingError, match=r"does not fit this version of TensorFlow: .*recording supports"):
        tfdbg_arrow.enable(tmp_path, health_backend=name)
    assert not tfdbg_arrow.is_recording()
    assert list(tmp_path.glob("spool/*")) == []


def test_threads_record_at_the_same_time(tmp_path: Path) -> None:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(3):
            x = tf.tanh(x)
        return x

    def work() -> None:
        for _ in range(10):
            f(tf.constant([1.0])) * 2.0

    def program() -> None:
        f(tf.constant([1.0]))
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    recorded = record(tmp_path, program)
    assert len(recorded.tensors(op_type="Tanh")) == 3 * 41
    assert len(recorded.tensors(op_type="Mul")) == 40
    assert len({row["execution_index"] for row in recorded.rows("execution")}) == len(recorded.rows("execution"))


def kinds_of(classes: npt.NDArray[Any]) -> list[float]:
    """Returns the six counts, given how many elements are in each class."""
    positive, negative = classes.reshape(2, -1)
    return [
        negative[-2], positive[-2], negative[-1] + positive[-1],
        negative[2:-2].sum(), negative[:2].sum() + positive[:2].sum(), positive[2:-2].sum(),
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_array_of_any_layout_is_measured(dtype: str) -> None:
    for array in (elements(dtype), elements(dtype, 1), elements(dtype, 0).reshape(2, 0), elements(dtype)[::-2]):
        row = summary.measure_array(array, mode=TensorDebugMode.FULL_HEALTH)
        assert row[COUNT_COLUMNS].tolist() == list(astuple(reference.summarize(array)))


def test_an_array_of_another_byte_order_is_measured() -> None:
    row = summary.measure_array(np.array([1.0, np.inf, np.nan, -2.0], ">f4"), mode=TensorDebugMode.FULL_HEALTH)
    assert row[COUNT_COLUMNS].tolist() == [0, 1, 1, 1, 0, 1]


@pytest.mark.parametrize("dtype", [name for name in DTYPES if summary.can_measure(tf.as_dtype(name))])
@pytest.mark.parametrize("mode", [TensorDebugMode.FULL_HEALTH, TensorDebugMode.FULL_NUMERICS])
def test_a_graph_that_counts_equals_its_twin(dtype: str, mode: TensorDebugMode) -> None:
    number = tf.as_dtype(dtype).as_datatype_enum
    graphs = summary.device_graphs(mode, dtype_mask=1 << number, device_types=["CPU"], is_exact=True)
    num_classes, graph_def = graphs[number]
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(tf.compat.v1.GraphDef.FromString(graph_def), name="")
        view_dtype = graph.get_tensor_by_name("tensor:0").dtype.as_numpy_dtype
        with tf.compat.v1.Session(graph=graph) as session:
            for array in (elements(dtype), elements(dtype, 1), elements(dtype, 0).reshape(2, 0)):
                part = session.run("part:0", {"tensor:0": array.reshape(1, -1).view(view_dtype)})
                twin = summary.measure_array(array, mode=mode)
                if mode is TensorDebugMode.FULL_HEALTH:
                    assert kinds_of(part) == twin[COUNT_COLUMNS].tolist()
                    continue
                row = [*kinds_of(part[:num_classes]), *part[num_classes:]]
                wanted = twin[COUNT_COLUMNS.start : NUM_FINITE_COLUMN]
                rounded = slice(9, 12)  # mean, stddev and the largest modulus
                assert row[:9] == wanted[:9].tolist()
                tolerance = max(min(wanted[11], 1e308) * RELATIVE_TOLERANCE, 5e-324)
                np.testing.assert_allclose(row[rounded], wanted[rounded], rtol=0, atol=tolerance)
