"""Counts the ops that a recording adds to a training step on an accelerator.

    python benchmarks/accelerator.py [--programs cnn transformer] [--output results.json]

The script needs no accelerator and measures no time. The programs run on the CPU with `health_backend="tensorflow"`,
which adds the ops that a GPU would run. The counted graph is the optimized graph that TensorFlow runs for the function
with the most ops (the training step). benchmarks/README.md has the results, and the results of real GPUs.
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
_ON_HOST = ("int32",)
"""Dtypes whose tensors TensorFlow keeps in the host's memory even if a GPU computes with them."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result for one program in one mode.

    Attributes:
        program: Name of the program.
        mode: The mode.
        num_ops: Number of ops of the training step without recording.
        num_added: Number of ops that recording adds.
        num_tensors: Number of recorded tensors of a step that are in the device's memory.
        num_on_host: Number of tensors that are always in the host's memory. The native core counts these tensors there.
        num_counted: Number of tensors whose elements the device counts.
        num_same: Number of tensors that are not counted, because they have the elements of another tensor. The elements
            of the remaining tensors are copied to the host.
        num_copies: Number of copies to the host.
        num_waits: Number of ops of the program that wait for a copy because they could end the step with an error.
        by_type: Number of added ops, by type.
    """

    program: str
    mode: str
    num_ops: int
    num_added: int
    num_tensors: int
    num_on_host: int
    num_counted: int
    num_same: int
    num_copies: int
    num_waits: int
    by_type: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Step:
    """The training step of a program that ran.

    Attributes:
        ops: Number of ops of the step, by type.
        num_same: Same as in Result.
        num_copies: Same as in Result.
        num_waits: Same as in Result.
        dtypes: The dtype of each recorded tensor of the last step.
    """

    ops: dict[str, int]
    num_same: int
    num_copies: int
    num_waits: int
    dtypes: list[str]


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
        dtypes = _dtypes_of_last_step(directory) if config != overhead.NONE else []
    nodes = max((function.post_optimization_graph.node for function in collected.function_graphs), key=len)
    record_ops = {node.name: node for node in nodes if node.op == RECORD_OP}
    return Step(
        ops=dict(collections.Counter(node.op for node in nodes)),
        num_same=sum(index >= 0 for node in record_ops.values() for index in node.attr["same_as"].list.i),
        num_copies=len(record_ops),
        num_waits=sum(
            not record_ops.keys().isdisjoint(text.removeprefix("^") for text in node.input) for node in nodes
        ),
        dtypes=dtypes,
    )


def _dtypes_of_last_step(logdir: str) -> list[str]:
    from tfdbg_arrow.query import open_logdir

    rows = open_logdir(logdir).rows(
        "SELECT dtype FROM tensor_health WHERE scope = 'graph' AND execution_index = "
        "(SELECT execution_index FROM tensor_health WHERE scope = 'graph' GROUP BY ALL ORDER BY count(*) DESC, 1 DESC"
        " LIMIT 1)"
    )
    return [dtype for (dtype,) in rows]


def measure(program: str, mode: str) -> Result:
    """Counts the ops that recording adds to a program's training step, in separate processes."""
    plain, recorded = (_step_in_process(config, program) for config in ("none", f"tfdbg_arrow-tensorflow/{mode}"))
    added = collections.Counter(recorded.ops) - collections.Counter(plain.ops)
    num_on_host = sum(dtype in _ON_HOST for dtype in recorded.dtypes)
    return Result(
        program=program,
        mode=mode,
        num_ops=sum(plain.ops.values()),
        num_added=sum(recorded.ops.values()) - sum(plain.ops.values()),
        num_tensors=len(recorded.dtypes) - num_on_host,
        num_on_host=num_on_host,
        num_counted=added["DenseBincount"],
        num_same=recorded.num_same,
        num_copies=recorded.num_copies,
        num_waits=recorded.num_waits,
        by_type=dict(added.most_common()),
    )


def _step_in_process(config: str, program: str) -> Step:
    command = [sys.executable, __file__, "--child", config, program]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    fields: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
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
