"""Runs the corpus under one recorder, as a separate process: `python -m parity.record RECORDER MODE DIRECTORY`.

With `debugger_v2`, the module reads the dump with TensorFlow's own reader, and writes the result to
DIRECTORY/debugger_v2.json. With `tfdbg_arrow`, the result is DIRECTORY/logdir. DIRECTORY/failed.json lists the programs
that raised an error.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.debug.lib import debug_events_reader
from tensorflow.python.eager import context as eager_context

import tfdbg_arrow

from .programs import CORPUS
from .recording import UNREADABLE, Execution, Graph, GraphOp, Recording, Stack, Trace, Value, tensor_value


def prepare() -> None:
    """Creates two devices.

    Switches off the optimizer passes that change numbers depending on which tensors are read.
    """
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    passes = (
        "remapping",
        "layout_optimizer",
        "pin_to_host_optimization",
        "constant_folding",
        "arithmetic_optimization",
    )
    tf.config.optimizer.set_experimental_options(dict.fromkeys(passes, False))


def run_corpus(names: list[str]) -> dict[str, str]:
    """Runs each program as if it were the only one. Returns the errors of the programs that failed."""
    failed: dict[str, str] = {}
    for name in names:
        eager_context.context()._clear_caches()
        keras.utils.set_random_seed(1)
        try:
            CORPUS[name]()
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    return failed


def record_with_debugger_v2(mode: str, directory: Path, names: list[str]) -> dict[str, str]:
    dump_root = str(directory / "dump")
    tf.debugging.experimental.enable_dump_debug_info(dump_root, mode, circular_buffer_size=-1)
    failed = run_corpus(names)
    tf.debugging.experimental.disable_dump_debug_info()
    with debug_events_reader.DebugDataReader(dump_root) as reader:
        reader.update()
        _read(reader, mode).write(directory / "debugger_v2.json")
    return failed


def record_with_tfdbg_arrow(mode: str, directory: Path, names: list[str]) -> dict[str, str]:
    with tfdbg_arrow.capture(directory / "logdir", mode, graphs="traced"):
        return run_corpus(names)


def _read(reader: Any, mode: str) -> Recording:
    by_id = reader._graph_by_id
    stacks: dict[tuple[str, ...], Stack] = {}

    def stack_of(ids: tuple[str, ...], read: Callable[[Any], Any], item: Any) -> Stack:
        if ids not in stacks:
            stacks[ids] = tuple((path, line, func) for path, line, func in read(item)[1])
        return stacks[ids]

    traces = reader.graph_execution_traces()
    recording = Recording(
        mode=mode,
        graphs=[Graph(graph_id=g.graph_id, name=g.name, outer_graph_id=g.outer_graph_id) for g in by_id.values()],
        ops=[
            GraphOp(
                graph_id=op.graph_id,
                op_name=op.op_name,
                op_type=op.op_type,
                num_outputs=op.num_outputs,
                input_names=tuple(op.input_names or ()),
                stack=stack_of(op.stack_frame_ids, reader.read_graph_op_creation_stack_trace, op),
            )
            for op in reader.graph_op_digests()
        ],
        executions=[
            Execution(
                op_type=e.op_type,
                graph_id=e.graph_id or None,
                input_ids=tuple(e.input_tensor_ids or ()),
                output_ids=tuple(e.output_tensor_ids or ()),
                values=_execution_values(reader, e, mode),
                stack=stack_of(e.stack_frame_ids, reader.read_execution_stack_trace, e),
            )
            for e in reader.executions()
        ],
        traces=[
            Trace(
                graph_id=t.graph_id,
                op_name=t.op_name,
                op_type=t.op_type,
                output_slot=t.output_slot,
                device_name=t.device_name,
                value=_trace_value(reader, t, mode),
            )
            for t in traces
        ],
    )
    for host, path in reader.source_file_list():
        recording.source_files[path] = "\n".join(reader.source_lines(host, path))
    return recording


def _execution_values(reader: Any, execution: Any, mode: str) -> tuple[Value, ...]:
    """Returns the values in the dump. The dump has values only for the outputs that numpy can hold."""
    if mode == "FULL_TENSOR":
        try:
            return tuple(map(_full, reader.execution_to_tensor_values(execution)))
        except ValueError:
            return (UNREADABLE,)
    return tuple(_summary(value, mode) for value in execution.debug_tensor_values or ())


def _trace_value(reader: Any, trace: Any, mode: str) -> Value:
    if mode != "FULL_TENSOR":
        return _summary(trace.debug_tensor_value, mode)
    try:
        return _full(reader.graph_execution_trace_to_tensor_value(trace))
    except ValueError:
        # The reader cannot return the values, but the file contains them.
        proto = reader._reader.read_graph_execution_traces_event(trace.locator).graph_execution_trace.tensor_proto
        if proto.dtype != tf.string.as_datatype_enum:
            return UNREADABLE
        return _full(np.asarray(tf.io.parse_tensor(proto.SerializeToString(), tf.string).numpy(), np.object_))


def _summary(value: Any, mode: str) -> Value:
    """Returns the summary vector without the tensor's ID."""
    return tuple(value[1:]) if value and mode != "NO_TENSOR" else None


def _full(array: Any) -> Value:
    if array is None:
        return None
    if array.dtype == np.object_:
        return ("string", array.shape, tuple(item.decode("latin-1") for item in array.ravel()))
    return tensor_value(array.dtype.name, array.shape, array.tobytes())


def main(recorder: str, mode: str, directory: Path, names: list[str]) -> None:
    warnings.simplefilter("ignore")
    prepare()
    record = {"debugger_v2": record_with_debugger_v2, "tfdbg_arrow": record_with_tfdbg_arrow}[recorder]
    failed = record(mode, directory, names or list(CORPUS))
    (directory / "failed.json").write_text(json.dumps(failed), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
