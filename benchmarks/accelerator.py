"""Counts what recording adds to a training step on an accelerator: kernels, bytes in its memory, copies to the host.

    python benchmarks/accelerator.py [--programs cnn transformer] [--output results.json]

This needs no accelerator and measures no time. The programs run on the CPU with `health_backend="tensorflow"`, which
counts the elements of tensors with the ops that a GPU would run. The counted graph is the one that TensorFlow runs,
after its optimizer, for the function with the most ops (the training step). The number and sizes of the tensors are
those of the last recorded step. benchmarks/README.md has the results.
"""

from __future__ import annotations

import argparse
import collections
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PROGRAM_NAMES = ("cnn", "transformer")
MODES = ("SHAPE", "CONCISE_HEALTH", "FULL_HEALTH", "FULL_NUMERICS")
NUM_STEPS = 3
RECORD_OP = "TfdbgArrowRecordDevice"
_NO_KERNEL = frozenset({"Const", "Placeholder", "Shape", "Size", "Rank", "Identity", "Reshape", "Bitcast"})
"""Ops that read no element, because TensorFlow passes the buffer on or has the answer on the host."""
_NUM_PROBED = 1_000_003
_ON_HOST = ("int32",)
"""Dtypes whose tensors TensorFlow keeps in the host's memory even if a GPU computes with them."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of counting the elements of one tensor, for a mode and a dtype.

    Attributes:
        num_kernels: Number of ops that the device runs.
        bytes_an_element: Bytes that these ops read and write for each element.
        num_copied_bytes: Bytes copied to the host.
    """

    num_kernels: int
    bytes_an_element: float
    num_copied_bytes: int


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result for one program in one mode.

    Attributes:
        program: Name of the program.
        mode: The mode.
        num_ops: Number of ops of the training step without recording.
        num_added: Number of ops that recording adds to them.
        num_tensors: Number of tensors whose elements the device counts in a step.
        num_on_host: Number of tensors that are in the host's memory anyway. The native core counts them there.
        num_kernels: How many of the added ops the device runs.
        num_tensor_bytes: Size of the tensors that the device counts.
        num_moved_bytes: Bytes that counting reads and writes in the device's memory.
        num_copies: Number of copies to the host.
        num_copied_bytes: Bytes that they copy.
        num_waits: Number of ops of the program that wait for a copy because they could end the step with an error.
        by_type: Number of added ops, by type.
    """

    program: str
    mode: str
    num_ops: int
    num_added: int
    num_tensors: int
    num_on_host: int
    num_kernels: int
    num_tensor_bytes: int
    num_moved_bytes: int
    num_copies: int
    num_copied_bytes: int
    num_waits: int
    by_type: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Step:
    """The training step of a program that ran.

    Attributes:
        ops: Number of its ops, by type.
        num_copies: Same as in Result.
        num_waits: Same as in Result.
        tensors: Dtype and number of elements of each recorded tensor of the last step.
        costs: The cost of each dtype.
    """

    ops: dict[str, int]
    num_copies: int
    num_waits: int
    tensors: list[tuple[str, int]]
    costs: dict[str, Cost]


def step_of(config: str, program: str) -> Step:
    """Runs a program in this process and returns its training step."""
    import overhead
    from tensorflow.python.eager import context

    with tempfile.TemporaryDirectory() as directory:
        recording = overhead.start_recording(config, Path(directory))
        from programs import PROGRAMS

        context.context().enable_graph_collection()
        PROGRAMS[program](NUM_STEPS)
        collected = context.context().export_run_metadata()
        recording.close()
        tensors = _tensors_of_last_step(directory) if config != overhead.NONE else []
    nodes = max((function.post_optimization_graph.node for function in collected.function_graphs), key=len)
    record_ops = {node.name for node in nodes if node.op == RECORD_OP}
    mode = config.partition("/")[2]
    return Step(
        ops=dict(collections.Counter(node.op for node in nodes)),
        num_copies=len(record_ops),
        num_waits=sum(not record_ops.isdisjoint(text.removeprefix("^") for text in node.input) for node in nodes),
        tensors=tensors,
        costs={dtype: _cost(mode, dtype) for dtype in {dtype for dtype, _ in tensors}},
    )


def _tensors_of_last_step(logdir: str) -> list[tuple[str, int]]:
    from tfdbg_arrow.query import open_logdir

    tensors: list[tuple[str, int]] = open_logdir(logdir).rows(
        "SELECT dtype, size FROM tensor_health WHERE scope = 'graph' AND execution_index = "
        "(SELECT execution_index FROM tensor_health WHERE scope = 'graph' GROUP BY ALL ORDER BY count(*) DESC, 1 DESC"
        " LIMIT 1)"
    )
    return tensors


def _cost(mode: str, dtype: str) -> Cost:
    """Returns the cost of the counting ops, computed from the shapes that TensorFlow infers for them."""
    import tensorflow as tf

    from tfdbg_arrow.writer.settings import TensorDebugMode
    from tfdbg_arrow.writer.tensorflow_backend.summary import device_graphs

    number = tf.as_dtype(dtype).as_datatype_enum
    graph_def = device_graphs(TensorDebugMode[mode], dtype_mask=1 << number, device_types=["CPU"])[number][1]
    with tf.Graph().as_default() as graph:
        tensor = tf.compat.v1.placeholder(dtype, [_NUM_PROBED])
        tf.graph_util.import_graph_def(
            tf.compat.v1.GraphDef.FromString(graph_def), input_map={"tensor": tensor}, name=""
        )
    run = [op for op in graph.get_operations() if op.type not in _NO_KERNEL]
    parts = [op.outputs[0] for op in graph.get_operations() if op.name.startswith("part_")]
    return Cost(
        num_kernels=len(run),
        bytes_an_element=sum(map(_num_bytes, [each for op in run for each in (*op.inputs, *op.outputs)])) / _NUM_PROBED,
        num_copied_bytes=sum(map(_num_bytes, parts)),
    )


def _num_bytes(tensor: Any) -> int:
    return int(tensor.shape.num_elements() or 0) * int(tensor.dtype.size)


def measure(program: str, mode: str) -> Result:
    """Counts what recording adds to a program's training step, in separate processes."""
    import tensorflow as tf

    plain, recorded = (_step_in_process(config, program) for config in ("none", f"tfdbg_arrow-tensorflow/{mode}"))
    added = collections.Counter(recorded.ops) - collections.Counter(plain.ops)
    on_device = [(dtype, size) for dtype, size in recorded.tensors if dtype not in _ON_HOST]
    costs = [recorded.costs[dtype] for dtype, _ in on_device]
    num_copied_bytes = sum(cost.num_copied_bytes for cost in costs)
    sizes = [size * tf.as_dtype(dtype).size for dtype, size in on_device]
    return Result(
        program=program,
        mode=mode,
        num_ops=sum(plain.ops.values()),
        num_added=sum(recorded.ops.values()) - sum(plain.ops.values()),
        num_tensors=len(on_device),
        num_on_host=len(recorded.tensors) - len(on_device),
        # All counts for one copy are concatenated first.
        num_kernels=sum(cost.num_kernels for cost in costs) + (recorded.num_copies if num_copied_bytes else 0),
        num_tensor_bytes=sum(sizes),
        num_moved_bytes=round(
            sum(cost.bytes_an_element * size for cost, (_, size) in zip(costs, on_device, strict=True))
        ),
        num_copies=recorded.num_copies,
        num_copied_bytes=num_copied_bytes,
        num_waits=recorded.num_waits,
        by_type=dict(added.most_common()),
    )


def _step_in_process(config: str, program: str) -> Step:
    command = [sys.executable, __file__, "--child", config, program]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    fields: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    fields["costs"] = {dtype: Cost(**cost) for dtype, cost in fields["costs"].items()}
    return Step(**fields)


def main() -> None:
    """Prints the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", nargs="+", choices=PROGRAM_NAMES, default=PROGRAM_NAMES)
    parser.add_argument("--output", type=Path, help="also write the results to this file, as JSON")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        print(json.dumps(asdict(step_of(*arguments.child))))
        return
    found = [measure(program, mode) for program in arguments.programs for mode in MODES]
    for result in found:
        print(json.dumps(asdict(result), indent=1))
    if arguments.output is not None:
        arguments.output.write_text(json.dumps([asdict(result) for result in found], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
