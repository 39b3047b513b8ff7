"""Test that TensorFlow's reader and monitors find the same facts in exported dumps as in TensorFlow's own dumps.

Each test records a program that resembles a program in TensorFlow's tests of Debugger V2, and exports the recording.
The test then checks the same facts as TensorFlow's test. The expected values follow from the program, not from our
tables.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import debug_event_pb2
from tensorflow.python.debug.lib.debug_events_monitors import BaseMonitor, InfNanMonitor
from tensorflow.python.debug.lib.debug_events_reader import DebugDataReader
from tensorflow.python.ops import gen_debug_ops

import tfdbg_arrow
from tests.programs.running import run_to_end
from tests.writer.debugger_v2.dumps import MODES, opened
from tfdbg_arrow.debugger_v2.export import export_logdir

SUMMARIES = ("CURT_HEALTH", "CONCISE_HEALTH", "FULL_HEALTH", "SHAPE")
WITH_TRACES = tuple(mode for mode in MODES if mode != "NO_TENSOR")
FLOAT32, BOOL, FLOAT16 = (dtype.as_datatype_enum for dtype in (tf.float32, tf.bool, tf.float16))
Run = Callable[[], Any]


def export(directory: Path, run: Run, mode: str = "FULL_HEALTH", *, graphs: str = "traced", **settings: Any) -> Path:
    """Records a program, and returns the exported dump."""
    with tfdbg_arrow.capture(directory / "logdir", mode, graphs=graphs, **settings):
        run()
    (exported,) = export_logdir(directory / "logdir", directory / "dump")
    return exported.dump


@contextmanager
def exported(directory: Path, run: Run, mode: str = "FULL_HEALTH", **settings: Any) -> Iterator[DebugDataReader]:
    """Yields TensorFlow's reader of the export of a program."""
    with opened(export(directory, run, mode, **settings)) as reader:
        yield reader


def of_types(reader: DebugDataReader, *op_types: str) -> list[Any]:
    """Returns the graph tensors of ops of some types, in the order of the dump.

    The order of the dump is the order of arrival. A tensor arrives after the tensors from which it is computed, but
    constants may arrive later. Tensors that do not depend on each other arrive in any order.
    """
    return [trace for trace in reader.graph_execution_traces() if trace.op_type in op_types]


def values(reader: DebugDataReader, traces: Sequence[Any]) -> list[Any]:
    return [reader.graph_execution_trace_to_tensor_value(trace).tolist() for trace in traces]


def healthy_scalar(mode: str) -> list[float]:
    """Returns the summary of a positive finite float32 scalar, without the id of the tensor."""
    return {
        "CURT_HEALTH": [0],
        "CONCISE_HEALTH": [1, 0, 0, 0],
        "FULL_HEALTH": [-1, FLOAT32, 0, 1, 0, 0, 0, 0, 0, 1],
        "SHAPE": [FLOAT32, 0, 1, 0, 0, 0, 0, 0, 0],
    }[mode]


# Eager ops.


def greatest_common_divisor() -> tf.Tensor:
    a, b, zero = tf.constant(48.0), tf.constant(18.0), tf.constant(0.0)
    while b > zero:
        a, b = b, a % b
    return a


@pytest.mark.parametrize("mode", MODES)
def test_eager_ops_are_executions_without_graphs(mode: str, tmp_path: Path) -> None:
    with exported(tmp_path, greatest_common_divisor, mode) as reader:
        executions = reader.executions()
        assert [each.op_type for each in executions] == [*["Greater", "FloorMod"] * 3, "Greater"]
        assert [digest.op_type for digest in reader.executions(digest=True)] == [each.op_type for each in executions]
        times = [each.wall_time for each in executions]
        assert times == sorted(times)
        assert times[0] >= reader.starting_wall_time()
        assert {each.graph_id for each in executions} == {""}
        assert {each.num_outputs for each in executions} == {1}
        # For example, 48 % 18 == 12 is compared with 0, and then divides 18.
        for number in (1, 3):
            (made,) = executions[number].output_tensor_ids
            assert made == executions[number + 1].input_tensor_ids[0] == executions[number + 2].input_tensor_ids[1]
        for each in executions:
            _, stack = reader.read_execution_stack_trace(each)
            assert (stack[-1][0], stack[-1][2]) != ("<unknown>", "<unknown>")
            assert any((path, name) == (__file__, "greatest_common_divisor") for path, _, name in stack)
        modulos = [each for each in executions if each.op_type == "FloorMod"]
        if mode == "NO_TENSOR":
            assert [each.debug_tensor_values for each in executions] == [None] * 7
        elif mode == "FULL_TENSOR":
            found = [reader.execution_to_tensor_values(each)[0].item() for each in executions]
            assert found == [True, 12.0, True, 6.0, True, 0.0, False]
        else:
            expected = [[-1, *healthy_scalar(mode)] for _ in range(3)]
            if mode == "FULL_HEALTH":
                expected[2][-2:] = [1, 0]  # the last number is zero
            assert [list(each.debug_tensor_values) for each in modulos] == [[each] for each in expected]
        assert reader.graph_execution_traces() == []
        assert reader.graph_op_digests() == []


ARRAYS = {
    "empty": np.zeros([0], np.float32),
    "scalar": np.array(42.0, np.float32),
    "negative_infinity": np.array([3.0, -np.inf]),
    "nan_in_a_matrix": np.array([[0.0, 0.0], [np.nan, 0.0]]),
    "all_kinds": np.array([[0.0, np.inf, -1.0], [np.nan, -np.inf, -0.0]], np.float32),
    "large_float16": np.pad(np.array([[np.nan]], np.float16), 49),
    "large_float32": np.pad(np.array([[-np.inf, 1.0]], np.float32), 48),
    "large_float64": np.append(np.zeros(9700), np.nan),
    "high_rank": np.arange(48.0).reshape(1, 2, 3, 1, 2, 1, 4),
}


@pytest.mark.parametrize("mode", SUMMARIES)
def test_summaries_are_those_of_tensorflows_own_op(mode: str, tmp_path: Path) -> None:
    tensors = [tf.constant(array) for array in ARRAYS.values()]
    number = debug_event_pb2.TensorDebugMode.Value(mode)

    def run() -> None:
        for tensor in tensors:
            tf.raw_ops.Neg(x=tensor)

    with exported(tmp_path, run, mode) as reader:
        for name, tensor, execution in zip(ARRAYS, tensors, reader.executions(), strict=True):
            expected = gen_debug_ops.debug_numeric_summary_v2(
                -tensor, tensor_debug_mode=number, tensor_id=-1, output_dtype=tf.float64
            )
            assert execution.debug_tensor_values[0] == pytest.approx(expected.numpy().tolist()), name


# Functions.


@pytest.mark.parametrize("mode", SUMMARIES)
def test_bad_float16_values_in_a_function(mode: str, tmp_path: Path) -> None:
    @tf.function
    def logarithm(x: tf.Tensor) -> tf.Tensor:
        return tf.math.log(x * 2.0)

    x = tf.constant([0.0, -1.0, 0.5, np.inf], tf.float16)
    with exported(tmp_path, lambda: logarithm(x), mode) as reader:
        product, log = of_types(reader, "Mul", "Log")
        assert (product.op_type, log.op_type) == ("Mul", "Log")
        for trace, expected in (
            (product, [1, (4, 0, 1, 0), (1, 1, 1)]),
            (log, [1, (4, 1, 1, 1), (0, 1, 0)]),
        ):
            bad, counts, signs = expected
            tensor_id = reader.graph_execution_trace_to_tensor_id(trace)
            assert list(trace.debug_tensor_value) == [
                tensor_id,
                *{
                    "CURT_HEALTH": [bad],
                    "CONCISE_HEALTH": counts,
                    "FULL_HEALTH": [-1, FLOAT16, 1, *counts, *signs],
                    "SHAPE": [FLOAT16, 1, 4, 4, 0, 0, 0, 0, 0],
                }[mode],
            ]


def test_boolean_tensors_have_shapes(tmp_path: Path) -> None:
    @tf.function
    def nor(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.logical_not(tf.logical_or(x, y))

    x = tf.constant([[False, True, True], [False, False, True]])
    with exported(tmp_path, lambda: nor(x, ~x), "SHAPE") as reader:
        found = of_types(reader, "LogicalOr", "LogicalNot")
        assert [trace.op_type for trace in found] == ["LogicalOr", "LogicalNot"]
        assert [list(trace.debug_tensor_value[1:]) for trace in found] == [[BOOL, 2, 6, 2, 3, 0, 0, 0, 0]] * 2


@pytest.mark.parametrize("graphs", ["traced", "executed"])
@pytest.mark.parametrize("mode", WITH_TRACES)
def test_nested_functions(mode: str, graphs: str, tmp_path: Path) -> None:
    @tf.function
    def root_of_sum(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.sqrt(x + y)

    @tf.function
    def outer(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.exp(root_of_sum(x, y) - 2.0)

    x, y = tf.constant(4.0), tf.constant(5.0)
    with exported(tmp_path, lambda: outer(x, y), mode, graphs=graphs) as reader:
        (execution,) = reader.executions()
        assert execution.op_type.startswith("__inference_outer_")
        found = of_types(reader, "AddV2", "Sqrt", "Sub", "Exp")
        assert [trace.op_type for trace in found] == ["AddV2", "Sqrt", "Sub", "Exp"]
        inner_id, outer_id = found[0].graph_id, found[3].graph_id
        assert [trace.graph_ids for trace in found] == [(outer_id, inner_id)] * 2 + [(outer_id,)] * 2
        assert execution.graph_id == outer_id
        assert [reader.graph_by_id(each).name for each in (outer_id, inner_id)] == ["outer", "root_of_sum"]
        assert reader.graph_by_id(outer_id).inner_graph_ids == [inner_id]
        ids = [reader.graph_execution_trace_to_tensor_id(trace) for trace in found]
        if mode == "FULL_TENSOR":
            assert values(reader, found) == pytest.approx([9.0, 3.0, 1.0, np.e])
            assert reader.execution_to_tensor_values(execution)[0].item() == pytest.approx(np.e)
        else:
            summaries = [list(trace.debug_tensor_value) for trace in found]
            assert summaries == [[tensor_id, *healthy_scalar(mode)] for tensor_id in ids]


class Floor:
    @tf.function
    def method(self, x: tf.Tensor) -> tf.Tensor:
        return tf.floor(x) * 3.0


def test_graphs_of_one_function_or_of_one_name_are_told_apart(tmp_path: Path) -> None:
    inputs = [tf.constant(2.5), tf.constant(2.5, tf.float64)]
    owners = [Floor(), Floor()]

    def run() -> None:
        for _ in range(2):
            for x in inputs:
                owners[0].method(x)
        for _ in range(2):
            for owner in owners:
                owner.method(inputs[0])

    with exported(tmp_path, run, "NO_TENSOR") as reader:
        executions = reader.executions()
        assert all(each.op_type.startswith("__inference_method_") for each in executions)
        ids = [each.graph_id for each in executions]
        single, double, other = ids[0], ids[1], ids[5]
        assert ids == [single, double, single, double, single, other, single, other]
        assert len({single, double, other}) == 3
        assert {reader.graph_by_id(each).name for each in ids} == {"method"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"op_regex": "Sqrt"}, [("Sqrt", [2.0, 3.0])]),
        ({"op_regex": "(Unique|Sqrt)"}, [("Unique", [4.0, 9.0]), ("Sqrt", [2.0, 3.0]), ("Unique", [0, 0, 1])]),
        ({"op_regex": "(?!Sqrt|Sum|Placeholder|Const|Identity)"}, [("Unique", [4.0, 9.0]), ("Unique", [0, 0, 1])]),
        ({"tensor_dtypes": ["int32"], "op_regex": "Unique"}, [("Unique", [0, 0, 1])]),
        ({"tensor_dtypes": lambda dtype: dtype.is_integer, "op_regex": "(Unique|Sum)"}, [("Unique", [0, 0, 1])]),
        (
            {"tensor_dtypes": (tf.float32,), "op_regex": "(Unique|Sum|Sqrt)"},
            [("Unique", [4.0, 9.0]), ("Sqrt", [2.0, 3.0]), ("Sum", 5.0)],
        ),
    ],
    ids=["op", "ops", "other_ops", "dtype", "dtype_by_function", "dtype_and_ops"],
)
def test_filters_choose_the_traces(settings: dict[str, Any], expected: list[Any], tmp_path: Path) -> None:
    @tf.function
    def sum_of_roots(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        different, indices = tf.unique(x)
        return tf.reduce_sum(tf.sqrt(different)), indices

    x = tf.constant([4.0, 4.0, 9.0])
    with exported(tmp_path, lambda: sum_of_roots(x), "FULL_TENSOR", **settings) as reader:
        # No op depends on the indices, so they arrive in any order, and are compared last.
        found = sorted(reader.graph_execution_traces(), key=lambda trace: trace.output_slot)
        assert list(zip([trace.op_type for trace in found], values(reader, found), strict=True)) == expected
        # The dump has all ops, even if only some tensors are traced.
        assert {"Unique", "Sqrt", "Sum"} <= {op.op_type for op in reader.graph_op_digests()}


@pytest.mark.parametrize("mode", ["SHAPE", "FULL_TENSOR"])
def test_a_loop_is_traced_in_each_iteration(mode: str, tmp_path: Path) -> None:
    @tf.function
    def repeated(x: tf.Tensor, times: tf.Tensor) -> tf.Tensor:
        i = tf.constant(0)
        while i < times:
            x = x * 3.0 - 1.0
            i += 1
        return x

    x, times = tf.constant(1.0), tf.constant(4)
    with exported(tmp_path, lambda: repeated(x, times), mode) as reader:
        (execution,) = reader.executions()
        assert (len(execution.input_tensor_ids), len(execution.output_tensor_ids)) == (2, 1)
        traces = of_types(reader, "Less", "Mul", "Sub")
        places = {
            op_type: [place for place, trace in enumerate(traces) if trace.op_type == op_type]
            for op_type in ("Less", "Mul", "Sub")
        }
        assert [len(of_type) for of_type in places.values()] == [5, 4, 4]
        # The loop may test the condition of later iterations before it has computed this iteration.
        for less, product, difference in zip(places["Less"], places["Mul"], places["Sub"], strict=False):
            assert less < product < difference
        assert [trace.op_type for trace in traces if trace.op_type != "Less"] == ["Mul", "Sub"] * 4
        assert {trace.output_slot for trace in traces} == {0}
        less, product, difference = ({trace.graph_id for trace in of_types(reader, each)} for each in
                                     ("Less", "Mul", "Sub"))  # fmt: skip
        # The condition and the body are two graphs in the same outer graph.
        assert product == difference != less
        assert {trace.graph_ids[0] for trace in traces} == {execution.graph_id}
        assert {len(trace.graph_ids) for trace in traces} == {2}
        if mode == "FULL_TENSOR":
            assert values(reader, of_types(reader, "Less")) == [True] * 4 + [False]
            assert values(reader, of_types(reader, "Mul")) == [3.0, 6.0, 15.0, 42.0]
            assert reader.execution_to_tensor_values(execution)[0].item() == 41.0


def test_nothing_is_recorded_after_the_end(tmp_path: Path) -> None:
    dump = export(tmp_path, lambda: None)
    tf.unique(tf.constant([1.0, 1.0]))
    with opened(dump) as reader:
        assert (reader.executions(), reader.graph_execution_traces(), reader.source_file_list()) == ([], [], ())


# Threads.


@pytest.mark.parametrize("mode", WITH_TRACES)
def test_calls_from_several_threads(mode: str, tmp_path: Path) -> None:
    x, y = tf.Variable(10.0), tf.Variable(3.0)
    num_threads = 3

    @tf.function
    def increase() -> tf.Tensor:
        return x.assign_add(y * 2.0)

    def run() -> None:
        increase()
        threads = [threading.Thread(target=increase) for _ in range(num_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with exported(tmp_path, run, mode) as reader:
        assert x.numpy() == 34.0
        for found in (reader.executions(), reader.graph_execution_traces()):
            times = [each.wall_time for each in found]
            assert times == sorted(times)
        calls = [each for each in reader.executions() if each.op_type.startswith("__inference_increase_")]
        assert len(calls) == 1 + num_threads  # Debugger V2 itself has only the call of the main thread
        products = of_types(reader, "Mul")
        assert len(products) == 1 + num_threads
        assert len(of_types(reader, "ReadVariableOp")) == 2 * (1 + num_threads)
        if mode == "FULL_TENSOR":
            assert values(reader, products) == [6.0] * 4
        else:
            assert [list(trace.debug_tensor_value[1:]) for trace in products] == [healthy_scalar(mode)] * 4


# The circular buffer.


@pytest.mark.parametrize("size", [4, -1])
def test_a_circular_buffer_keeps_the_last_events(size: int, tmp_path: Path) -> None:
    @tf.function
    def halve(x: tf.Tensor) -> tf.Tensor:
        return x / 2.0

    x = tf.constant(1024.0)

    def run() -> None:
        value = x
        for _ in range(10):
            value = halve(value)

    with exported(tmp_path, run, "FULL_TENSOR", circular_buffer_size=size, op_regex="RealDiv|__.*") as reader:
        expected = [1024.0 / 2**number for number in range(1, 11)]
        kept = expected if size == -1 else expected[-size:]
        assert values(reader, of_types(reader, "RealDiv")) == kept
        results = [reader.execution_to_tensor_values(each) for each in reader.executions()]
        assert [each.item() for (each,) in results] == kept


# The reader's methods that read, and its monitors.


def unique_sum() -> None:
    @tf.function
    def summed(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        different, indices = tf.unique(x)
        return tf.reduce_sum(different), indices

    summed(tf.constant([2.0, 6.0, 2.0, 1.0]))
    tf.matmul(tf.constant([[1.0, 2.0]]), tf.constant([[3.0], [4.0]]))


class Listener(BaseMonitor):
    """Stores the events that TensorFlow's reader reports."""

    def __init__(self, reader: DebugDataReader) -> None:
        super().__init__(reader)
        self.executions: list[tuple[int, Any]] = []
        self.traces: list[tuple[int, Any]] = []

    def on_execution(self, execution_index: int, execution: Any) -> None:
        self.executions.append((execution_index, execution))

    def on_graph_execution_trace(self, graph_execution_trace_index: int, graph_execution_trace: Any) -> None:
        self.traces.append((graph_execution_trace_index, graph_execution_trace))


@pytest.mark.parametrize("mode", ["NO_TENSOR", "CONCISE_HEALTH", "FULL_TENSOR"])
def test_a_monitor_is_told_of_each_event_once(mode: str, tmp_path: Path) -> None:
    dump = export(tmp_path, unique_sum, mode)
    with DebugDataReader(str(dump)) as reader:
        listener = Listener(reader)
        reader.update()
        reader.update()
        assert [index for index, _ in listener.executions] == [0, 1]
        (_, call), (_, product) = listener.executions
        assert call.op_type.startswith("__inference_summed_")
        assert (len(call.input_tensor_ids), call.num_outputs, len(call.output_tensor_device_ids)) == (1, 2, 2)
        assert call.graph_id
        assert (product.op_type, len(product.input_tensor_ids), product.num_outputs) == ("MatMul", 2, 1)
        assert len(product.output_tensor_device_ids) == 1
        assert product.graph_id == ""
        assert [index for index, _ in listener.traces] == list(range(len(listener.traces)))
        traces = [trace for _, trace in listener.traces if trace.op_type in ("Placeholder", "Unique", "Sum")]
        # No op depends on the indices, so they arrive in any order, and are compared last.
        traces.sort(key=lambda trace: trace.output_slot)
        places = [(trace.op_type, trace.output_slot) for trace in traces]
        if mode == "NO_TENSOR":
            assert (product.debug_tensor_values, listener.traces) == (None, [])
        elif mode == "CONCISE_HEALTH":  # this mode has no summaries of integers
            assert list(product.debug_tensor_values) == [[-1, 1, 0, 0, 0]]
            assert places == [("Placeholder", 0), ("Unique", 0), ("Sum", 0)]
            assert [list(trace.debug_tensor_value[1:]) for trace in traces] == [[size, 0, 0, 0] for size in (4, 3, 1)]
        else:
            assert product.debug_tensor_values is None
            assert [each.tolist() for each in reader.execution_to_tensor_values(product)] == [[[11.0]]]
            assert places == [("Placeholder", 0), ("Unique", 0), ("Sum", 0), ("Unique", 1)]
            assert [trace.debug_tensor_value for trace in traces] == [None] * 4
            assert values(reader, traces) == [[2.0, 6.0, 2.0, 1.0], [2.0, 6.0, 1.0], 9.0, [0, 1, 0, 2]]


def five_of_each() -> None:
    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.sin(x)

    for number in range(5):
        step(tf.fill([number + 1], 0.5))


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (1, 3, (1, 3)),
        (0, 3, (0, 3)),
        (0, -1, (0, -1)),
        (None, 3, (0, 3)),
        (2, None, (2, None)),
        (None, None, (0, None)),
    ],
)
def test_events_are_read_in_ranges(
    begin: int | None, end: int | None, expected: tuple[int, int | None], tmp_path: Path
) -> None:
    chosen = slice(*expected)
    with exported(tmp_path, five_of_each, "SHAPE", op_regex="Sin|__.*|Fill") as reader:
        for read in (reader.executions, reader.graph_execution_traces):
            whole = [each.to_json() for each in read()]
            assert len(whole) >= 5
            assert [each.to_json() for each in read(begin=begin, end=end)] == whole[chosen]
            digests = [each.to_json() for each in read(digest=True, begin=begin, end=end)]
            assert digests == [each.to_json() for each in read(digest=True)][chosen]


def test_threads_read_at_random(tmp_path: Path) -> None:
    with exported(tmp_path, five_of_each) as reader, ThreadPoolExecutor(4) as pool:
        executions, traces = reader.executions(digest=True), reader.graph_execution_traces(digest=True)
        files = reader.source_file_list()
        assert len(files) > 1
        for _ in range(5):
            found = list(pool.map(reader.read_execution, reversed(executions)))
            assert [each.op_type for each in found] == [each.op_type for each in reversed(executions)]
            read = list(pool.map(reader.read_graph_execution_trace, reversed(traces)))
            assert [each.op_name for each in read] == [each.op_name for each in reversed(traces)]
            texts = dict(zip(files, pool.map(lambda key: reader.source_lines(*key), files), strict=True))
        (mine,) = [lines for (_, path), lines in texts.items() if path == __file__]
        assert mine == Path(__file__).read_text("utf-8").split("\n")


def test_what_the_reader_returns_can_be_sent_as_json(tmp_path: Path) -> None:
    with exported(tmp_path, unique_sum) as reader:
        graphs = {op.graph_id for op in reader.graph_op_digests()}
        for each in (
            *reader.executions(digest=True),
            *reader.executions(),
            *reader.graph_execution_traces(digest=True),
            *reader.graph_execution_traces(),
            *reader.graph_op_digests(),
            *(reader.graph_by_id(graph_id) for graph_id in graphs),
        ):
            text = json.dumps(each.to_json(), sort_keys=True)
            assert json.dumps(json.loads(text), sort_keys=True) == text


# The monitor names the same ops that TensorFlow's check of numerics must name.


def overflow() -> None:
    total, count = tf.Variable(1.0), tf.Variable(0)

    @tf.function
    def grow() -> None:
        while count < 200:
            total.assign(total * 2.0)
            count.assign_add(1)

    grow()


def bad_constant() -> None:
    @tf.function
    def add_nan(x: tf.Tensor) -> tf.Tensor:
        return x + tf.constant(np.nan)

    add_nan(tf.Variable(3.0))


def branch() -> None:
    @tf.function
    def logarithm(x: tf.Tensor) -> tf.Tensor:
        return tf.math.log(x) if tf.reduce_sum(x) < 0.0 else tf.math.log(-x)

    logarithm(tf.constant([1.0, 2.0, 3.0], tf.bfloat16))


def data_set() -> None:
    def negative(x: tf.Tensor) -> tf.Tensor:
        return tf.math.log([[-1.0, 1.0], [3.0, 5.0]]) + tf.cast(x, tf.float32)

    next(iter(tf.data.Dataset.range(3).map(negative)))


def custom_gradient() -> None:
    @tf.custom_gradient
    def sine(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        @tf.function
        def gradient(dy: tf.Tensor) -> tf.Tensor:
            return tf.math.log(-dy)

        return tf.sin(x), gradient

    x = tf.constant(-2.0, tf.float16)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = sine(x)
    tape.gradient(y, x)


@pytest.mark.parametrize(
    ("run", "op_type", "dtype", "shape", "counts", "input_types", "function"),
    [
        (overflow, "Mul", tf.float32, (), (0, 1, 0), ["ReadVariableOp", "Const"], "grow"),
        (bad_constant, "Const", tf.float32, (), (0, 0, 1), [], "add_nan"),
        (branch, "Log", tf.bfloat16, (3,), (0, 0, 3), ["Neg"], "logarithm"),
        (data_set, "Log", tf.float32, (2, 2), (0, 0, 1), ["Const"], "negative"),
        (custom_gradient, "Log", tf.float16, (), (0, 0, 1), ["Neg"], "gradient"),
    ],
)
def test_an_alert_names_the_op_with_its_inputs_and_line(
    run: Run, op_type: str, dtype: tf.DType, shape: tuple[int, ...], counts: tuple[int, ...],
    input_types: list[str], function: str, tmp_path: Path,
) -> None:  # fmt: skip
    dump = export(tmp_path, run)
    with DebugDataReader(str(dump)) as reader:
        monitor = InfNanMonitor(reader)
        reader.update()
        alert = next(alert for alert in monitor.alerts() if alert.op_type == op_type)  # other alerts may arrive earlier
        assert (alert.op_type, alert.num_neg_inf, alert.num_pos_inf, alert.num_nan) == (op_type, *counts)
        assert (alert.size, alert.output_slot) == (np.prod(shape, dtype=int), 0)
        trace = reader.graph_execution_traces()[alert.graph_execution_trace_index]
        assert list(trace.debug_tensor_value[2:4]) == [dtype.as_datatype_enum, len(shape)]
        graph = reader.graph_by_id(trace.graph_id)
        op = graph.get_op_creation_digest(trace.op_name)
        sources = [graph.get_op_creation_digest(name.partition(":")[0]) for name in op.input_names or ()]
        assert [source.op_type for source in sources] == input_types
        _, stack = reader.read_graph_op_creation_stack_trace(op)
        assert [name for path, _, name in stack if path == __file__][-1] == function


# Several devices.


@pytest.mark.slow
def test_replicas_are_traced_on_their_devices(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    words = ("-m", "parity.record", "tfdbg_arrow", "FULL_TENSOR", tmp_path, "mirrored_strategy")
    end = run_to_end(*words, environment=environment, timeout_s=300)
    assert end.returncode == 0, end.stderr
    export_logdir(tmp_path / "logdir", tmp_path / "dump")
    with opened(tmp_path / "dump") as reader:
        of_devices = {
            device: [trace for trace in reader.graph_execution_traces() if trace.device_name.endswith(device)]
            for device in ("CPU:0", "CPU:1")
        }
        op_types = {
            device: Counter(trace.op_type for trace in traces if trace.op_type in ("Exp", "Sum", "Mul"))
            for device, traces in of_devices.items()
        }
        assert op_types["CPU:1"]["Exp"] == op_types["CPU:0"]["Exp"] == 2  # one Exp in each step
        exps = {
            device: values(reader, [trace for trace in traces if trace.op_type == "Exp"])
            for device, traces in of_devices.items()
        }
        assert exps["CPU:0"] == exps["CPU:1"]
        assert exps["CPU:0"][0] == pytest.approx(np.exp([1.0, -2.0]).tolist())
        calls = [each.op_type for each in reader.executions() if each.op_type.startswith("__inference_step_")]
        assert len(calls) == 2


# Whole models.


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["CURT_HEALTH", "FULL_TENSOR"])
def test_a_recurrent_model_is_trained_and_asked(mode: str, tmp_path: Path) -> None:
    zeros = {"kernel_initializer": "zeros"}
    model = keras.Sequential(
        [
            keras.Input((3, 4)),
            keras.layers.LSTM(10, recurrent_initializer="zeros", **zeros),
            keras.layers.Dense(1, **zeros),
        ]
    )
    model.compile(loss="mse", optimizer="sgd", jit_compile=False)
    x, y = np.ones([5, 3, 4], np.float32), np.ones([5, 1], np.float32)

    def run() -> None:
        assert model.predict(x, verbose=0).tolist() == [[0.0]] * 5
        losses = model.fit(x, y, epochs=3, verbose=0).history["loss"]
        assert losses == pytest.approx([1.0, 0.96, 0.9224], abs=1e-3)

    with exported(tmp_path, run, mode) as reader:
        op_types = Counter(trace.op_type for trace in reader.graph_execution_traces(digest=True))
        assert {"MatMul", "Sigmoid", "Tanh", "SigmoidGrad", "TanhGrad", "BiasAdd"} <= op_types.keys(), op_types
        assert any("one_step" in execution.op_type for execution in reader.executions())
        if mode == "FULL_TENSOR":
            assert {tuple(np.shape(each)) for each in values(reader, of_types(reader, "Tanh"))} == {(5, 10)}


@pytest.mark.slow
def test_a_convolutional_model_is_trained(tmp_path: Path) -> None:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            keras.layers.Conv2D(4, 3, activation="relu6"),
            keras.layers.Conv2D(2, 3, activation="relu6"),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(loss="mse", optimizer="sgd", jit_compile=False)
    x, y = np.ones([2, 8, 8, 3], np.float32), np.zeros([2, 1], np.float32)

    with exported(tmp_path, lambda: model.fit(x, y, verbose=0), "FULL_TENSOR") as reader:
        shapes = {
            op_type: [np.shape(each) for each in values(reader, of_types(reader, op_type))]
            for op_type in ("Conv2D", "Relu6", "Relu6Grad", "Conv2DBackpropFilter")
        }
        outputs = [(2, 6, 6, 4), (2, 4, 4, 2)]
        assert shapes["Conv2D"] == shapes["Relu6"] == outputs
        assert shapes["Relu6Grad"] == outputs[::-1]
        # The gradient of the first filter does not depend on the gradient of the second, so they arrive in any order.
        assert sorted(shapes["Conv2DBackpropFilter"]) == [(3, 3, 3, 4), (3, 3, 4, 2)]
