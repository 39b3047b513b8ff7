"""Small handmade dumps in which each part that a test changes has a name."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from tfdbg_arrow.debugger_v2.file_sets import FILES, frame
from tfdbg_arrow.debugger_v2.protos.debug_event_pb2 import DebugEvent, TensorDebugMode
from tfdbg_arrow.debugger_v2.protos.tensor_pb2 import DataType

START_S = 1_795_000_000.0
CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
Dump = dict[str, list[bytes]]
"""Records by file."""


def event(after_us: int) -> Any:
    return DebugEvent(wall_time=START_S + after_us / 1e6)


def metadata(*, run_id: str = "recording-1") -> bytes:
    made = event(0)
    made.debug_metadata.tensorflow_version = "2.21.0"
    made.debug_metadata.file_version = "debug.Event:1"
    made.debug_metadata.tfdbg_run_id = run_id
    return made.SerializeToString()


def source_file(path: str, *lines: str) -> bytes:
    made = event(1)
    made.source_file.file_path, made.source_file.host_name = path, "host"
    made.source_file.lines.extend(lines)
    return made.SerializeToString()


def stack_frame(id_: str, *, file_index: int, line: int, func: str) -> bytes:
    made = event(2)
    made.stack_frame_with_id.id = id_
    place = made.stack_frame_with_id.file_line_col
    place.file_index, place.line, place.func = file_index, line, func
    return made.SerializeToString()


def device(id_: int = 1, name: str = CPU) -> bytes:
    made = event(3)
    made.debugged_device.device_id, made.debugged_device.device_name = id_, name
    return made.SerializeToString()


def graph(id_: str, name: str, *, outer: str = "") -> bytes:
    made = event(4)
    made.debugged_graph.graph_id, made.debugged_graph.graph_name = id_, name
    made.debugged_graph.outer_context_id = outer
    return made.SerializeToString()


def graph_op(graph_id: str, name: str, type_: str, *inputs: str, stack: tuple[str, ...] = ("f0", "f1")) -> bytes:
    made = event(5)
    op = made.graph_op_creation
    op.graph_id, op.op_name, op.op_type, op.num_outputs = graph_id, name, type_, 1
    op.input_names.extend(inputs)
    op.code_location.host_name = "host"
    op.code_location.stack_frame_ids.extend(stack)
    op.output_tensor_ids.append(7)
    return made.SerializeToString()


def full_health(tensor: Any, *counts: int, tensor_id: float = 7, rank: int = 1) -> None:
    """Fills a TensorProto with a summary of float32 elements: counts of -Inf, +Inf, NaN, negative, zero, positive."""
    tensor.dtype = DataType.DT_DOUBLE
    tensor.tensor_shape.dim.add().size = 11
    tensor.tensor_content = struct.pack("<11d", tensor_id, -1, 1, rank, sum(counts), *counts)


def execution(after_us: int, op_type: str, *, graph_id: str = "", counts: tuple[int, ...] = (0, 0, 0, 0, 0, 2)) -> Any:
    made = event(after_us)
    call = made.execution
    call.op_type, call.graph_id, call.num_outputs = op_type, graph_id, 1
    call.input_tensor_ids.extend((10, 300))
    call.output_tensor_ids.append(1000 + after_us)
    call.tensor_debug_mode = TensorDebugMode.FULL_HEALTH
    full_health(call.tensor_protos.add(), *counts, tensor_id=-1)
    call.code_location.host_name = "host"
    call.code_location.stack_frame_ids.extend(("f0", "f1"))
    call.output_tensor_device_ids.append(1)
    return made


def trace(after_us: int, graph_id: str, op_name: str, *, counts: tuple[int, ...] = (0, 0, 0, 0, 0, 2)) -> Any:
    made = event(after_us)
    computed = made.graph_execution_trace
    computed.tfdbg_context_id, computed.op_name, computed.device_name = graph_id, op_name, CPU
    computed.tensor_debug_mode = TensorDebugMode.FULL_HEALTH
    full_health(computed.tensor_proto, *counts)
    return made


def small_dump() -> Dump:
    """Returns a dump of two functions: a softmax that underflows to zero, and the logarithm of this softmax."""
    return {
        "metadata": [metadata()],
        "source_files": [source_file("/home/ada/train.py", "import tensorflow as tf", "", "loss(model(x))")],
        "stack_frames": [
            stack_frame("f0", file_index=0, line=3, func="<module>"),
            stack_frame("f1", file_index=0, line=1, func="loss"),
        ],
        "graphs": [
            device(),
            graph("g-model", "model"),
            graph_op("g-model", "x", "Placeholder"),
            graph_op("g-model", "Softmax", "Softmax", "x:0"),
            graph("g-loss", "loss"),
            graph_op("g-loss", "probs", "Placeholder"),
            graph_op("g-loss", "Log", "Log", "probs:0"),
            graph_op("g-loss", "Neg", "Neg", "Log:0"),
        ],
        "execution": [
            made.SerializeToString()
            for made in (
                execution(100, "RandomUniform"),
                execution(200, "__inference_model_7", graph_id="g-model", counts=(0, 0, 0, 0, 1, 1)),
                execution(300, "__forward_loss_9", counts=(0, 1, 0, 0, 0, 1)),
                execution(400, "AddV2", counts=(0, 1, 0, 0, 0, 1)),
            )
        ],
        "graph_execution_traces": [
            made.SerializeToString()
            for made in (
                trace(150, "g-model", "Softmax", counts=(0, 0, 0, 0, 1, 1)),
                trace(250, "g-loss", "Log", counts=(1, 0, 0, 1, 0, 0)),
                trace(260, "g-loss", "Neg", counts=(0, 1, 0, 0, 0, 1)),
                trace(500, "g-model", "Softmax", counts=(0, 0, 0, 0, 1, 1)),
            )
        ],
    }


def write_dump(directory: Path, dump: Dump, *, prefix: str = "tfdbg_events.1795000000.host") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for file in FILES:
        if file in dump:
            (directory / f"{prefix}.{file}").write_bytes(b"".join(frame(record) for record in dump[file]))
    return directory
