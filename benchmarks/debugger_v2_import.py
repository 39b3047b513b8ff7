"""Measures how fast a large Debugger V2 dump is imported, and how much memory the import takes.

The script generates the dump, with the same records as TensorFlow writes in mode FULL_HEALTH. The program has 40
functions with 50 ops each, and eager ops between the calls. One event in five is an execution. The other events are
graph traces. With stacks of 24 frames, as in a real dump, an execution takes about 1,100 bytes.

    python benchmarks/debugger_v2_import.py [--events 1000000] [--python]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

from tfdbg_arrow.debugger_v2.file_sets import frame
from tfdbg_arrow.debugger_v2.protos.debug_event_pb2 import DebugEvent, TensorDebugMode
from tfdbg_arrow.debugger_v2.protos.tensor_pb2 import DataType

NUM_GRAPHS = 40
OPS_A_GRAPH = 50
NUM_FRAMES = 24
NUM_CALL_SITES = 60
EVENTS_A_CALL = OPS_A_GRAPH
_START_S = 1_795_000_000.0
_DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"


def write_dump(directory: Path, *, num_events: int) -> None:
    """Writes a dump with this number of executions and graph traces."""
    rng = random.Random(0)

    def new_id() -> str:
        return str(uuid.UUID(int=rng.getrandbits(128)))

    time_s = _START_S

    def event() -> DebugEvent:
        nonlocal time_s
        time_s += 1e-5
        return DebugEvent(wall_time=time_s)

    prefix = directory / f"tfdbg_events.{int(_START_S)}.bench"
    files = {
        name: open(f"{prefix}.{name}", "wb")  # noqa: SIM115
        for name in ("metadata", "source_files", "stack_frames", "graphs", "execution", "graph_execution_traces")
    }

    def write(name: str, message: DebugEvent) -> None:
        files[name].write(frame(message.SerializeToString()))

    message = event()
    message.debug_metadata.tensorflow_version, message.debug_metadata.file_version = "2.21.0", "debug.Event:1"
    message.debug_metadata.tfdbg_run_id = new_id()
    write("metadata", message)
    message = event()
    message.source_file.file_path, message.source_file.host_name = "/home/ada/train.py", "bench"
    message.source_file.lines.extend(f"x = f({line})" for line in range(2000))
    write("source_files", message)
    frames = []
    for line in range(400):
        message = event()
        message.stack_frame_with_id.id = new_id()
        frames.append(message.stack_frame_with_id.id)
        place = message.stack_frame_with_id.file_line_col
        place.file_index, place.line, place.func = 0, line + 1, f"function_{line % 30}"
        write("stack_frames", message)
    message = event()
    message.debugged_device.device_name, message.debugged_device.device_id = _DEVICE, 1
    write("graphs", message)
    graphs = []
    for number in range(NUM_GRAPHS):
        message = event()
        message.debugged_graph.graph_id, message.debugged_graph.graph_name = new_id(), f"step_{number}"
        graphs.append(message.debugged_graph.graph_id)
        write("graphs", message)
        for index in range(OPS_A_GRAPH):
            message = event()
            op = message.graph_op_creation
            op.op_type, op.op_name = "MatMul", f"model/layer_{index}/MatMul"
            op.graph_name, op.graph_id, op.num_outputs = f"step_{number}", graphs[-1], 1
            op.input_names.extend(f"model/layer_{i}/MatMul:0" for i in range(max(0, index - 2), index))
            op.output_tensor_ids.append(number * OPS_A_GRAPH + index)
            op.code_location.host_name = "bench"
            op.code_location.stack_frame_ids.extend(rng.sample(frames, NUM_FRAMES))
            write("graphs", message)
    stacks = [rng.sample(frames, NUM_FRAMES) for _ in range(NUM_CALL_SITES)]
    traces = _trace_templates(graphs)
    written = tensor_id = 0
    while written < num_events:
        # Write some eager ops, then a call of a function.
        for place in range(OPS_A_GRAPH // 4):
            is_call = place == OPS_A_GRAPH // 4 - 1
            graph = rng.randrange(NUM_GRAPHS)
            if is_call:
                for index in range(OPS_A_GRAPH):
                    time_s += 1e-5
                    # Build the bytes by hand: creating a million protobuf messages takes a minute.
                    head, tail = traces[graph][index]
                    content = struct.pack("<8d", 2, 4096, 0, 0, 0, rng.randrange(4096), 7, 100)
                    record = b"\x09" + struct.pack("<d", time_s) + head + content + tail
                    files["graph_execution_traces"].write(frame(record))
                written += OPS_A_GRAPH
            message = event()
            execution = message.execution
            execution.op_type = f"__inference_step_{graph}_{graph + 100}" if is_call else f"Op{place}"
            execution.graph_id = graphs[graph] if is_call else ""
            execution.num_outputs = 1
            execution.input_tensor_ids.extend((tensor_id, tensor_id + 1, tensor_id + 2))
            execution.output_tensor_ids.append(tensor_id + 3)
            tensor_id += 3
            execution.tensor_debug_mode = TensorDebugMode.FULL_HEALTH
            tensor = execution.tensor_protos.add()
            tensor.dtype = DataType.DT_DOUBLE
            tensor.tensor_shape.dim.add().size = 11
            tensor.tensor_content = struct.pack("<11d", -1, -1, 1, 2, 64, 0, 0, 0, rng.randrange(64), 3, 9)
            execution.code_location.host_name = "bench"
            execution.code_location.stack_frame_ids.extend(stacks[rng.randrange(NUM_CALL_SITES)])
            execution.output_tensor_device_ids.append(1)
            write("execution", message)
            written += 1
    for file in files.values():
        file.close()


def _trace_templates(graphs: list[str]) -> list[list[tuple[bytes, bytes]]]:
    """Returns, for each op of each graph, the bytes before and after the measured part of the op's traces."""
    marker = struct.pack("<8d", *[0.123] * 8)
    made = []
    for number, graph_id in enumerate(graphs):
        row = []
        for index in range(OPS_A_GRAPH):
            message = DebugEvent()
            trace = message.graph_execution_trace
            trace.tfdbg_context_id, trace.op_name = graph_id, f"model/layer_{index}/MatMul"
            trace.tensor_debug_mode, trace.device_name = TensorDebugMode.FULL_HEALTH, _DEVICE
            trace.tensor_proto.dtype = DataType.DT_DOUBLE
            trace.tensor_proto.tensor_shape.dim.add().size = 11
            trace.tensor_proto.tensor_content = struct.pack("<3d", number * OPS_A_GRAPH + index, -1, 1) + marker
            head, tail = message.SerializeToString().split(marker)
            row.append((head, tail))
        made.append(row)
    return made


_CHILD = """
import json, resource, sys
from tfdbg_arrow.debugger_v2 import importer
from tfdbg_arrow.debugger_v2.scan import PythonScanner
if sys.argv[3] == "python":
    importer.event_scanner = PythonScanner
found = importer.import_dump(sys.argv[1], sys.argv[2])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
used = resource.getrusage(resource.RUSAGE_SELF)
cpu = used.ru_utime + used.ru_stime
run = found.runs[0]
print(json.dumps({"seconds": found.seconds, "cpu": cpu, "peak": peak, "rows": run.rows, "dropped": run.dropped}))
"""


def main() -> None:
    """Generates the dump, imports it in a separate process and prints time and memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=1_000_000, help="executions and graph traces")
    parser.add_argument("--python", action="store_true", help="do not use the native core")
    parser.add_argument("--directory", type=Path, help="keep the dump here, and reuse it if it exists")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        dump = arguments.directory or Path(scratch) / "dump"
        if not dump.is_dir():
            dump.mkdir(parents=True)
            write_dump(dump, num_events=arguments.events)
        size = sum(path.stat().st_size for path in dump.iterdir())
        logdir = os.path.join(scratch, "logdir")
        how = "python" if arguments.python else "native"
        found = json.loads(subprocess.check_output([sys.executable, "-c", _CHILD, str(dump), logdir, how]))
        out = sum(path.stat().st_size for path in Path(logdir).rglob("*.parquet"))
    events = found["rows"]["execution"] + found["rows"]["tensor_health"] - found["rows"]["execution_output"]
    print(f"{events:,} events, {size / 1e6:,.0f} MB, to {out / 1e6:,.0f} MB of Parquet, {how} scanner")
    print(f"{found['seconds']:.2f} s: {events / found['seconds']:,.0f} events/s")
    print(f"peak memory {found['peak'] / 1e6:,.0f} MB")
    print(f"{found['cpu']:.2f} s of processor time, including the start and the imports of the process")
    for stat in found["dropped"]:
        print("dropped:", stat)


if __name__ == "__main__":
    main()
