"""TensorFlow's reader finds in an exported dump what follows from the recorded program.

`tests/writer/debugger_v2/test_export_recorded.py` compares all that the reader finds in each mode with our tables.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import debug_event_pb2
from tensorflow.python.debug.lib.debug_events_reader import DebugDataReader
from tensorflow.python.ops import gen_debug_ops

import tfdbg_arrow
from tests.programs.running import run_to_end
from tests.writer.debugger_v2.dumps import opened
from tfdbg_arrow.debugger_v2.export import export_logdir

SUMMARIES = ("CURT_HEALTH", "CONCISE_HEALTH", "FULL_HEALTH", "SHAPE")


@contextmanager
def exported(directory: Path, run: Callable[[], object], mode: str = "FULL_HEALTH") -> Iterator[DebugDataReader]:
    """Records a program, and yields TensorFlow's reader of the export."""
    with tfdbg_arrow.capture(directory / "logdir", mode, graphs="traced"):
        run()
    (run_in_dump,) = export_logdir(directory / "logdir", directory / "dump")
    with opened(run_in_dump.dump) as reader:
        yield reader


def of_types(reader: DebugDataReader, *op_types: str) -> list[Any]:
    """Returns the graph tensors of ops of some types, in the order of the dump.

    The order of the dump is the order of arrival. A tensor arrives after the tensors from which it is computed, but
    constants may arrive later. Tensors that do not depend on each other arrive in any order.
    """
    return [trace for trace in reader.graph_execution_traces() if trace.op_type in op_types]


def values(reader: DebugDataReader, traces: Sequence[Any]) -> list[Any]:
    return [reader.graph_execution_trace_to_tensor_value(trace).tolist() for trace in traces]


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


def test_calls_from_several_threads(tmp_path: Path) -> None:
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

    with exported(tmp_path, run, "FULL_TENSOR") as reader:
        assert x.numpy() == 34.0
        for found in (reader.executions(), reader.graph_execution_traces()):
            times = [each.wall_time for each in found]
            assert times == sorted(times)
        calls = [each for each in reader.executions() if each.op_type.startswith("__inference_increase_")]
        assert len(calls) == 1 + num_threads  # Debugger V2 itself has only the call of the main thread
        products = of_types(reader, "Mul")
        assert len(products) == 1 + num_threads
        assert len(of_types(reader, "ReadVariableOp")) == 2 * (1 + num_threads)
        assert values(reader, products) == [6.0] * 4


def five_of_each() -> None:
    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.sin(x)

    for number in range(5):
        step(tf.fill([number + 1], 0.5))


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
