"""Tensors whose elements TensorFlow's own ops count on the device of the tensor.

Here, the device is the CPU, so the rows must equal the rows of the native core. For the graphs for GPUs, the tests
check that each op has a kernel on GPUs.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels

import tfdbg_arrow
from tfdbg_arrow.errors import NonFiniteError
from tfdbg_arrow.query import first_nonfinite
from tfdbg_arrow.writer.backend import native_core
from tfdbg_arrow.writer.graphs.compiled_rows import RESHAPED, SAME_TENSOR
from tfdbg_arrow.writer.hooks.runtime import library_paths
from tfdbg_arrow.writer.settings import TensorDebugMode
from tfdbg_arrow.writer.tensorflow_backend.summary import _has_kernel, device_graphs, small_dtypes

from .tables import rows
from .test_graph_editing import MARK, PROGRAMS, imported, make_recording, marked, real_graph
from .test_inside_xla import COUNTS, MAGNITUDES, special

MODES = ("SHAPE", "CURT_HEALTH", "CONCISE_HEALTH", "FULL_HEALTH", "FULL_NUMERICS")
ALL_DTYPES = (1 << 60) - 1
FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "complex64", "complex128")
OTHERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
GPU = "/job:localhost/replica:0/task:0/device:GPU:0"
HAS_GPU_KERNELS = any(
    kernel.device_type == "GPU" for kernel in kernels.get_registered_kernels_for_op("DenseBincount").kernel
)


@pytest.fixture(scope="module", autouse=True)
def _libraries() -> None:
    """Loads TensorFlow's libraries into the core, as the first recording of a process does."""
    native_core().load_tensorflow(*library_paths())


def branches(x: tf.Tensor) -> Any:
    total = x
    for i in tf.range(4):
        for k in tf.range(2):
            total = tf.math.log(total) if i > k else total + 1.0
        if i == 1:
            total = tf.math.sqrt(total - 5.0)
    return total * 2.0, tf.reduce_sum(total)


def calls(x: tf.Tensor) -> Any:
    @tf.function
    def root(y: tf.Tensor) -> tf.Tensor:
        return tf.math.sqrt(y - 1.0) / y

    with tf.GradientTape() as tape:
        tape.watch(x)
        y = root(root(x) + 3.0) + tf.add_n([root(x), x, x])
    return y, tape.gradient(y, x)


def arrays(x: tf.Tensor) -> Any:
    written = tf.TensorArray(tf.float32, size=3)
    for i in tf.range(3):
        written = written.write(i, x * tf.cast(i, tf.float32))
    return written.stack(), tf.map_fn(lambda y: tf.math.reciprocal(y) + 1.0, x), tf.vectorized_map(tf.math.exp, x)


def choices(x: tf.Tensor) -> Any:
    index = tf.cast(tf.reduce_sum(x), tf.int32)
    y = tf.switch_case(index, [lambda: x + 1.0, lambda: tf.math.log(x - 1.0), lambda: x * 3.0])
    z = tf.cond(tf.reduce_any(y > 1.0), lambda: y / 0.0, lambda: tf.cond(x[0] > 0.0, lambda: y, lambda: -y))
    return y * z + 1.0


def constants(x: tf.Tensor) -> Any:
    table = tf.constant(np.linspace(-1, 1, 200, dtype=np.float32))
    return tf.gather(table, tf.cast(x, tf.int32)) * x + table[:2]


PLAIN: tuple[Callable[[tf.Tensor], Any], ...] = (branches, calls, arrays, choices, constants)


def traced(program: Callable[..., Any], *args: Any, knows_shapes: bool) -> Any:
    signature = None if knows_shapes else [tf.TensorSpec([None], tensor.dtype) for tensor in args]
    return tf.function(program, input_signature=signature)


def record(
    logdir: Path, program: Callable[..., Any], *args: Any, knows_shapes: bool = True, **settings: Any
) -> list[bytes]:
    """Records a program and returns its results. With `knows_shapes`, known shapes are small, and the host counts."""
    function = traced(program, *args, knows_shapes=knows_shapes)
    with tfdbg_arrow.capture(logdir, graphs="executed", **settings):
        results = [function(*args) for _ in range(3)]
    return [np.asarray(tensor).tobytes() for tensor in tf.nest.flatten(results)]


LABELS = ("scope", "op_name", "op_type", "output_slot", "call_site", "iteration", "dtype", "rank", "size")


def graph_rows(logdir: Path) -> collections.Counter[tuple[Any, ...]]:
    """Counts equal rows of graph tensors, without columns that differ between recordings. Rounds mean and stddev."""
    found: collections.Counter[tuple[Any, ...]] = collections.Counter()
    for row in rows(logdir, "tensor_health"):
        if row["graph_id"] is not None:
            magnitudes = (None if row[name] is None else float(f"{row[name]:.11g}") for name in MAGNITUDES)
            facts = (*(row[name] for name in (*LABELS, "has_inf_or_nan", *COUNTS)), str(row["shape"]), *magnitudes)
            found[facts] += 1
    return found


@pytest.mark.slow
@pytest.mark.parametrize("knows_shapes", [True, False])
@pytest.mark.parametrize("program", PLAIN)
def test_a_program_keeps_its_numbers_and_has_the_rows_of_the_native_core(
    program: Callable[[tf.Tensor], Any], knows_shapes: bool, tmp_path: Path
) -> None:
    x = tf.constant([0.25, 1.5])
    function = traced(program, x, knows_shapes=knows_shapes)
    wanted = [np.asarray(tensor).tobytes() for tensor in tf.nest.flatten([function(x) for _ in range(3)])]
    for backend in ("native", "tensorflow"):
        assert record(tmp_path / backend, program, x, knows_shapes=knows_shapes, health_backend=backend) == wanted
        (run,) = rows(tmp_path / backend, "run")
        assert run["health_backend"] == backend
        assert run["settings"]["graphs"] == "executed" if isinstance(run["settings"], dict) else True
        assert rows(tmp_path / backend, "capture_stat") == []
    native, device = graph_rows(tmp_path / "native"), graph_rows(tmp_path / "tensorflow")
    assert device == native
    assert sum(native.values()) > 10
    bugs = [first_nonfinite(tmp_path / backend) for backend in ("native", "tensorflow")]
    assert bugs[0] is None or (bugs[0].op_name, bugs[0].source) == (bugs[1].op_name, bugs[1].source)


@pytest.mark.parametrize(
    "program",
    [tf.linalg.det, lambda x: tf.linalg.qr(x)[1], lambda x: tf.linalg.slogdet(x)[1], tf.math.log, tf.identity],
)
def test_a_graph_of_one_op_has_the_rows_of_the_native_core(program: Callable[[tf.Tensor], Any], tmp_path: Path) -> None:
    """TensorFlow optimizes such a graph again after record ops were added. Some of the ops can fail."""
    x = tf.constant([[1.0, 2.0], [2.0, 4.0]])
    results = [record(tmp_path / backend, program, x, health_backend=backend) for backend in ("native", "tensorflow")]
    assert results[0] == results[1]
    assert graph_rows(tmp_path / "native") == graph_rows(tmp_path / "tensorflow")
    numbers = {row["executed_graph_id"] for row in rows(tmp_path / "tensorflow", "tensor_health")} - {None}
    assert len(numbers) == len({row["executed_graph_id"] for row in rows(tmp_path / "tensorflow", "executed_op")}) == 1


def reshaped(*tensors: tf.Tensor) -> Any:
    deep = [tf.reshape(t, [1] * 10 + [-1]) for t in tensors]
    return [(tf.reshape(t, [-1, 1]), t[:0], tf.identity(t), d) for t, d in zip(tensors, deep, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("knows_shapes", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_every_dtype_and_shape_has_the_row_of_the_native_core(mode: str, knows_shapes: bool, tmp_path: Path) -> None:
    inputs = [tf.constant(special(dtype)) for dtype in (*FLOATS, *OTHERS)]
    for backend in ("native", "tensorflow"):
        settings = {"tensor_debug_mode": mode, "tensor_dtypes": lambda dtype: True}
        settings |= {} if knows_shapes else {"exact_subnormals": True}
        record(tmp_path / backend, reshaped, *inputs, knows_shapes=knows_shapes, health_backend=backend, **settings)
    native, device = graph_rows(tmp_path / "native"), graph_rows(tmp_path / "tensorflow")
    assert device == native
    assert {row[LABELS.index("dtype")] for row in native} >= {tensor.dtype.name for tensor in inputs}
    assert {row[LABELS.index("rank")] for row in native} >= {1, 2, 11}


def without_subnormals(dtype: str) -> Any:
    """Returns the special numbers of a dtype, with its subnormal numbers replaced by zeros."""
    values = special(dtype)
    if dtype in ("float64", "float32", "bfloat16"):
        values[np.abs(values.astype(np.float64)) < float(ml_dtypes.finfo(values.dtype).smallest_normal)] = 0
    return values


@pytest.mark.parametrize("mode", ["CONCISE_HEALTH", "FULL_HEALTH"])
def test_subnormal_numbers_count_as_zeros(mode: str, tmp_path: Path) -> None:
    settings = {"tensor_debug_mode": mode, "tensor_dtypes": lambda dtype: True}
    for backend, numbers in {"native": without_subnormals, "tensorflow": special}.items():
        inputs = [tf.constant(numbers(dtype)) for dtype in FLOATS]
        record(tmp_path / backend, reshaped, *inputs, knows_shapes=False, health_backend=backend, **settings)
    assert graph_rows(tmp_path / "tensorflow") == graph_rows(tmp_path / "native")


def eager_rows(logdir: Path) -> list[tuple[Any, ...]]:
    return [
        (*(row[name] for name in (*LABELS, "has_inf_or_nan", *COUNTS, *MAGNITUDES)), str(row["shape"]))
        for row in rows(logdir, "tensor_health")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["SHAPE", "CONCISE_HEALTH", "FULL_HEALTH", "FULL_NUMERICS"])
def test_a_large_eager_tensor_has_the_row_of_the_native_core(mode: str, tmp_path: Path) -> None:
    """The elements of a large tensor are counted on its device. A smaller tensor is copied to the host."""
    odd = np.resize(special("float32"), (2, 1 << 20))

    def program() -> None:
        for dtype in (tf.float32, tf.float64, tf.float16, tf.complex64, tf.int64, tf.bool, tf.string):
            tensor = tf.zeros(odd.shape, dtype) if dtype in (tf.string, tf.bool) else tf.cast(tf.constant(odd), dtype)
            tf.reshape(tensor, [-1])
            tf.identity(tensor[:1, :100])

    for backend in ("native", "tensorflow"):
        settings = {"tensor_debug_mode": mode, "tensor_dtypes": lambda dtype: True, "exact_subnormals": True}
        with tfdbg_arrow.capture(tmp_path / backend, health_backend=backend, **settings):
            program()
        assert rows(tmp_path / backend, "capture_stat") == []
    assert eager_rows(tmp_path / "tensorflow") == eager_rows(tmp_path / "native")


def test_a_large_eager_tensor_that_cannot_be_counted_on_its_device_is_counted_on_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr("tfdbg_arrow.writer.tensorflow_backend.backend.count_on_device", fail)
    with (
        pytest.warns(RuntimeWarning, match="no such kernel"),
        tfdbg_arrow.capture(tmp_path, health_backend="tensorflow"),
    ):
        tf.zeros([2, 1 << 20]) / 0.0
    (quotient,) = (row for row in rows(tmp_path, "tensor_health") if row["op_type"] == "RealDiv")
    assert quotient["num_nan"] == 2 << 20
    stats = {(row["stat"], row["subject"], row["reason"]) for row in rows(tmp_path, "capture_stat")}
    assert stats == {("failed", "counting an eager tensor on its device", "RuntimeError: no such kernel")}


def test_tensors_computed_before_a_failed_check_are_recorded(tmp_path: Path) -> None:
    @tf.function
    def checked(x: tf.Tensor) -> tf.Tensor:
        y = tf.debugging.assert_all_finite(tf.math.log(x), "not finite")
        z = tf.debugging.assert_all_finite(tf.math.sqrt(y), "not finite")
        return z + 1.0

    with tfdbg_arrow.capture(tmp_path, health_backend="tensorflow", graphs="executed"):
        for value in (2.0, 0.5, 0.0):
            if value == 2.0:
                checked(tf.constant([value]))
            else:
                with pytest.raises(tf.errors.InvalidArgumentError, match="not finite"):
                    checked(tf.constant([value]))
    in_graphs = [row for row in rows(tmp_path, "tensor_health") if row["graph_id"] is not None]
    bad = collections.Counter((row["op_type"], row["has_inf_or_nan"]) for row in in_graphs)
    assert (bad["Log", True], bad["Log", False], bad["Sqrt", True]) == (1, 2, 1)


@pytest.mark.parametrize("graphs", ["executed", "traced"])
def test_a_bad_value_of_a_graph_stops_the_program(graphs: str, tmp_path: Path) -> None:
    settings = {"health_backend": "tensorflow", "on_nonfinite": "raise", "graphs": graphs}
    with tfdbg_arrow.capture(tmp_path, **settings), pytest.raises(NonFiniteError) as stopped:
        tf.function(lambda x: tf.math.log(x) + 1.0)(tf.constant([0.0]))
    assert stopped.value.nonfinite.op_type == "Log"


# Graphs for GPUs.


@pytest.mark.skipif(not HAS_GPU_KERNELS, reason="this TensorFlow was built without kernels for GPUs")
@pytest.mark.parametrize("mode", MODES)
def test_floats_and_complex_numbers_are_counted_on_gpus(mode: str) -> None:
    found = device_graphs(TensorDebugMode[mode], dtype_mask=ALL_DTYPES, device_types=["GPU"], is_exact=False)
    for dtype in (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128, tf.int64, tf.bool):
        assert dtype.as_datatype_enum in found
    assert tf.int32.as_datatype_enum not in found, "TensorFlow keeps int32 in host memory"


@pytest.mark.skipif(not HAS_GPU_KERNELS, reason="this TensorFlow was built without kernels for GPUs")
@pytest.mark.parametrize("mode", ["SHAPE", "FULL_HEALTH", "FULL_NUMERICS"])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("is_small", [True, False])
def test_each_added_node_can_run_on_a_gpu(is_small: bool, program: Any, mode: str, tmp_path: Path) -> None:
    graph, _ = real_graph(program, is_lowered=True)
    for node in graph.node:
        node.device = GPU
        node.attr[MARK].i = marked(5)
    recording = make_recording(tmp_path, int(TensorDebugMode[mode]))
    ops = [(op.name, op.name, op.type, [7] * len(op.outputs), False) for op in imported(graph).get_operations()]
    recording.add_program_graph(5, ops, [], {})
    counting = device_graphs(TensorDebugMode[mode], dtype_mask=ALL_DTYPES, device_types=["GPU"], is_exact=False)
    recording.set_summary_graphs(["GPU"], counting, small_dtypes(TensorDebugMode[mode], device_types=["GPU"]))
    if is_small:
        recording.add_small_tensors([7])
    edited = tf.compat.v1.GraphDef.FromString(recording.with_record_ops(graph.SerializeToString()))
    given = {node.name for node in graph.node}
    added = [node for node in edited.node if node.name not in given]
    assert {node.device for node in added} == {GPU}
    for node in added:
        assert _has_kernel(node, "GPU"), node
    imported(edited)  # checks for cycles and wrong dtypes
    records = [node for node in added if node.op == "TfdbgArrowRecordDevice"]
    counted = [key for node in records for key in node.attr["nodes"].list.i]
    num_elsewhere = sum(node.op == "TfdbgArrowRecordConstant" for node in added)
    assert len(counted) > 3 * len(records), "tensors that are computed together are copied to the host together"
    assert len(counted) > num_elsewhere
    assert all(node.attr["num_parts"].i == (mode != "SHAPE") for node in records)


def edited_for_gpu(program: Any, directory: Path, *, is_small: bool, shapes: dict[str, list[int]] | None = None) -> Any:
    """Returns the GraphDef of a function with record ops, as for a GPU.

    Args:
        program: The function.
        directory: The directory of the spool.
        is_small: Whether all tensors are small.
        shapes: The shapes of reshaped tensors that are known, by op name.
    """
    return edited_graph_for_gpu(real_graph(program, is_lowered=False)[0], directory, is_small=is_small, shapes=shapes)


def edited_graph_for_gpu(
    graph: Any, directory: Path, *, is_small: bool, shapes: dict[str, list[int]] | None = None
) -> Any:
    """Returns a GraphDef with record ops, as for a GPU. edited_for_gpu() describes the arguments."""
    for node in graph.node:
        node.device = GPU
        node.attr[MARK].i = marked(5)
    recording = make_recording(directory)
    keys = {node.name: index for index, node in enumerate(graph.node)}
    outputs = {op.name: len(op.outputs) for op in imported(graph).get_operations()}
    ops = [(node.name, node.name, node.op, [keys[node.name]] * outputs[node.name], False) for node in graph.node]
    recording.add_program_graph(5, ops, [], {})
    mode = TensorDebugMode.FULL_HEALTH
    graphs = device_graphs(mode, dtype_mask=ALL_DTYPES, device_types=["CPU"], is_exact=False)
    recording.set_summary_graphs(["GPU"], graphs, small_dtypes(mode, device_types=["CPU"]))
    recording.set_same_elements(sorted(SAME_TENSOR), sorted(RESHAPED))
    recording.add_shapes({keys[name]: shape for name, shape in (shapes or {}).items()})
    if is_small:
        recording.add_small_tensors(list(keys.values()))
    return tf.compat.v1.GraphDef.FromString(recording.with_record_ops(graph.SerializeToString()))


def added_ops(edited: Any) -> collections.Counter[str]:
    """Counts the added nodes by op, without ops that a graph has only once."""
    return collections.Counter(
        node.op
        for node in edited.node
        if node.name.startswith("tfdbg_arrow_record_")
        and node.op not in ("Const", "ConcatV2", "TfdbgArrowRecordDevice")
        and not node.name.endswith("/bytes")
    )


@pytest.mark.parametrize("is_small", [True, False])
def test_a_graph_without_loops_copies_one_tensor_to_the_host(is_small: bool, tmp_path: Path) -> None:
    edited = edited_for_gpu(
        lambda x: tf.nn.softmax(tf.math.log(x) * 2.0) + tf.math.sqrt(x), tmp_path, is_small=is_small
    )
    own, sources = summarized(edited)
    (record_op,) = (node for node in edited.node if node.op == "TfdbgArrowRecordDevice")
    by_name = {node.name: node for node in edited.node}
    (parts, *shapes), controls = split_inputs(record_op)
    assert by_name[parts].op == "ConcatV2"
    # The shapes are in host memory.
    assert len(shapes) == (1 if is_small else len(own))
    assert {by_name[name.partition(":")[0]].op for name in shapes} == {"TfdbgArrowView"}
    assert controls == list(sources) == ["Identity"]
    if is_small:
        assert added_ops(edited) == {}
    else:
        assert added_ops(edited) == dict.fromkeys(
            ("TfdbgArrowView", "RightShift", "Bitcast", "DenseBincount"), len(own)
        )


def split_inputs(node: Any) -> tuple[list[str], list[str]]:
    """Returns the tensors that a node takes, and the nodes for which it only waits."""
    data = [name for name in node.input if not name.startswith("^")]
    return data, [name.removeprefix("^") for name in node.input if name.startswith("^")]


def test_the_consumers_of_a_large_tensor_run_after_the_last_node_that_reads_it(tmp_path: Path) -> None:
    """When the consumers run, no other node holds the tensor, so TensorFlow can reuse its memory for the result."""
    edited = edited_for_gpu(lambda x: tf.math.sqrt(tf.math.log(x)), tmp_path, is_small=False)
    by_name = {node.name: node for node in edited.node}
    (data,), (control,) = split_inputs(by_name["Sqrt"])
    reader = by_name[control]
    assert (data, reader.op) == ("Log", "RightShift")
    assert by_name[reader.input[0]].input[0] == "Log"


def test_the_consumers_of_a_small_tensor_wait_for_nothing(tmp_path: Path) -> None:
    edited = edited_for_gpu(lambda x: tf.math.sqrt(tf.math.log(x)), tmp_path, is_small=True)
    (square_root,) = (node for node in edited.node if node.name == "Sqrt")
    assert list(square_root.input) == ["Log"]


def sums(x: tf.Tensor) -> Any:
    y = tf.math.log(x, name="log")
    shaped = tf.squeeze(tf.expand_dims(tf.math.sqrt(x, name="sqrt"), 0, name="expanded"), 0, name="squeezed")
    part = tf.math.exp(y, name="exp")[:2]
    return tf.raw_ops.AddN(inputs=[y, shaped], name="sum"), tf.raw_ops.AddN(inputs=[part, part], name="parts") * 2.0


def test_the_terms_of_a_sum_are_copied(tmp_path: Path) -> None:
    """A sum reuses the memory of the first term that nothing else holds. Another tensor may share this memory."""
    edited = edited_for_gpu(sums, tmp_path, is_small=True)
    by_name = {node.name: node for node in edited.node}
    copies = {node.name: node.input[0] for node in edited.node if node.op == "Snapshot"}
    assert {"log", "sqrt", "exp"} <= set(copies.values())
    assert not {"sum", "parts", "Mul", "mul"} & set(copies.values())
    waiting = {by_name[name].input[0] for name in split_inputs(by_name["sum"])[1]}
    assert "log" in waiting, "the sum runs after the copy, and nothing else holds the term then"


def test_tensors_are_copied_in_a_graph_with_references_to_variables(tmp_path: Path) -> None:
    """An op can write to the memory of a variable of TensorFlow 1 while something else holds this memory."""

    def program(x: tf.Tensor) -> Any:
        variable = tf.raw_ops.VariableV2(shape=[2], dtype=tf.float32)
        return tf.math.log(tf.raw_ops.Identity(input=variable) + x)

    with tf.Graph().as_default() as graph:
        program(tf.compat.v1.placeholder(tf.float32, [2]))
    edited = edited_graph_for_gpu(graph.as_graph_def(), tmp_path, is_small=True)
    copied = {node.input[0] for node in edited.node if node.op == "Snapshot"}
    assert {"Identity", "Log"} <= copied


def convolution_gradients(x: tf.Tensor) -> Any:
    image = tf.math.log(tf.reshape(x, [1, -1, 1, 1]), name="image")
    gradient = tf.math.sqrt(image, name="gradient")
    return (
        tf.raw_ops.Conv2DBackpropFilter(
            input=image, filter_sizes=[1, 1, 1, 1], out_backprop=gradient, strides=[1] * 4, padding="SAME"
        ),
        tf.raw_ops.BiasAddGrad(out_backprop=gradient),
    )


@pytest.mark.parametrize("is_small", [True, False])
def test_the_gradients_of_a_filter_and_a_bias_wait_for_the_same_nodes(is_small: bool, tmp_path: Path) -> None:
    """With oneDNN, TensorFlow merges the two gradients only in this case, and the merged kernel rounds differently."""
    edited = edited_for_gpu(convolution_gradients, tmp_path, is_small=is_small)
    waiting = {node.op: set(split_inputs(node)[1]) for node in edited.node}
    assert waiting["Conv2DBackpropFilter"] == waiting["BiasAddGrad"]
    assert bool(waiting["BiasAddGrad"]) == (not is_small)


def alike(x: tf.Tensor) -> Any:
    y = tf.math.log(x, name="log")
    flat = tf.reshape(y, [-1], name="flat")
    return (
        tf.expand_dims(flat, 0) * 2.0,
        tf.squeeze(tf.reshape(y, [3, 1, 2]), name="squeezed") + 1.0,
        tf.stop_gradient(tf.raw_ops.Snapshot(input=tf.identity(y))) * 3.0,
        tf.raw_ops.PreventGradient(input=tf.transpose(y)) * 4.0,
    )


@pytest.mark.parametrize("is_small", [True, False])
def test_a_tensor_with_the_elements_of_another_one_is_not_counted_again(is_small: bool, tmp_path: Path) -> None:
    edited = edited_for_gpu(alike, tmp_path, is_small=is_small, shapes={"flat": [6], "squeezed": [3, 2]})
    own, sources = summarized(edited)
    assert sources["flat"] == sources["Identity"] == "log"
    assert {"squeezed", "ExpandDims", "Snapshot", "StopGradient", "transpose", "PreventGradient"} < set(sources)
    by_name = {node.name: node for node in edited.node}
    assert not {by_name[name].op for name in own} & (SAME_TENSOR | RESHAPED)
    ops = added_ops(edited)
    assert ops["Snapshot"] == 0
    assert ops["DenseBincount"] == (0 if is_small else len(own))
    # Only reshaped tensors of unknown shape need a node that reads the shape.
    shapes = [node for node in edited.node if node.op == "TfdbgArrowView" and node.attr["num_views"].i == 0]
    assert {node.input[0] for node in shapes} == {"ExpandDims", "Reshape", "transpose"}


def summarized(edited: Any) -> tuple[list[str], dict[str, str]]:
    """Returns the nodes whose outputs are counted or copied, and the node whose counts each other node reuses."""
    (record_op,) = (node for node in edited.node if node.op == "TfdbgArrowRecordDevice")
    given = [node.name for node in edited.node if not node.name.startswith("tfdbg_arrow_record_")]
    names = [given[key] for key in record_op.attr["nodes"].list.i]
    same_as = record_op.attr["same_as"].list.i
    own = [name for name, source in zip(names, same_as, strict=True) if source < 0]
    return own, {name: names[source] for name, source in zip(names, same_as, strict=True) if source >= 0}


@pytest.mark.slow
@pytest.mark.parametrize("knows_shapes", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_a_tensor_that_is_not_counted_again_has_the_row_of_the_native_core(
    mode: str, knows_shapes: bool, tmp_path: Path
) -> None:
    def program(flat: tf.Tensor) -> Any:
        return alike(tf.reshape(flat, [-1, 3]))

    x = tf.constant([1.0, 0.0, 2.0, -1.0, 4.0, 0.5])
    for backend in ("native", "tensorflow"):
        record(
            tmp_path / backend, program, x, knows_shapes=knows_shapes, health_backend=backend, tensor_debug_mode=mode
        )
    native = graph_rows(tmp_path / "native")
    assert graph_rows(tmp_path / "tensorflow") == native
    assert {"ExpandDims", "Reshape", "Transpose"} <= {row[LABELS.index("op_type")] for row in native}


class Counter(tf.Module):
    """Reads a variable before and after writing to it."""

    def __init__(self) -> None:
        super().__init__()
        self.count = tf.Variable([1.0, -2.0])
        self.rate = tf.Variable([0.0, 3.0])

    def step(self, x: tf.Tensor) -> Any:
        before = self.count.read_value() * x + self.count.read_value() / self.rate.read_value()
        self.count.assign_add(tf.math.log(before))
        return before + self.count.read_value() * self.count.read_value() - self.rate.read_value()


def test_a_variable_is_counted_once_between_two_writes(tmp_path: Path) -> None:
    counter = Counter()
    edited = edited_for_gpu(lambda x: counter.step(x[0, :2]), tmp_path, is_small=True)
    by_name = {node.name: node for node in edited.node}
    own, sources = summarized(edited)
    reads = {name for name in (*own, *sources) if by_name[name].op == "ReadVariableOp"}
    assert len(reads) == 6
    handles = collections.Counter(by_name[name].input[0] for name in reads & set(own))
    assert sorted(handles.values()) == [1, 2], "the written variable is counted before and after"
    assert all(by_name[name].input[0] == by_name[sources[name]].input[0] for name in reads - set(own))


def test_a_variable_that_is_read_again_has_the_rows_of_the_native_core(tmp_path: Path) -> None:
    x = tf.constant([0.5, 2.0])
    for backend in ("native", "tensorflow"):
        record(tmp_path / backend, Counter().step, x, health_backend=backend)
    native = graph_rows(tmp_path / "native")
    assert graph_rows(tmp_path / "tensorflow") == native
    assert sum(count for row, count in native.items() if row[LABELS.index("op_type")] == "ReadVariableOp") >= 18
