"""What the path for accelerators adds to a training step: ops, copies to the host, and passes over elements.

    python benchmarks/accelerator.py [--programs cnn transformer] [--output results.json]

It is counted in the graph that TensorFlow runs, after its optimizers, of the function with the most ops (the training
step), with and without the recorder. The graphs are those that a GPU would run, but here they are placed on the CPU;
benchmarks/README.md says what came out.
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
MODES = ("SHAPE", "FULL_HEALTH", "FULL_NUMERICS")
NUM_STEPS = 3
SUMMARY_OP, RECORD_SUMMARY_OP, RECORD_OP = "DebugNumericSummaryV2", "TfdbgArrowRecordSummary", "TfdbgArrowRecord"
_OURS = "tfdbg_arrow"
_SUMMARY_BYTES = 21 * 8
"""A summary is 21 numbers of 64 bits (writer/tensorflow_backend/summary.py)."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One program in one mode.

    Attributes:
        program: Name of the program.
        mode: The mode.
        num_ops: Ops of the training step without recording.
        num_added: Ops that recording adds to them, also those that it keeps from being fused or pruned.
        num_tensors: Tensors that are summarized.
        num_copies: Copies to the host, each of which waits for the device: one for each op that takes summaries.
        num_copied_bytes: What they copy.
        num_whole: Tensors that go to the host whole, because TensorFlow cannot summarize them.
        num_passes: Ops that read or write all elements of a tensor to summarize it, as far as their number of elements
            is known: DebugNumericSummaryV2 and what prepares its input.
        by_type: Ops by type that are more than without recording.
    """

    program: str
    mode: str
    num_ops: int
    num_added: int
    num_tensors: int
    num_copies: int
    num_copied_bytes: int
    num_whole: int
    num_passes: int
    by_type: dict[str, int]


def graph_of_step(config: str, program: str) -> list[dict[str, Any]]:
    """Runs a program in this process; returns the nodes of its largest graph: op, name and number of recorded keys."""
    import overhead
    from tensorflow.python.eager import context

    with tempfile.TemporaryDirectory() as directory:
        recording = overhead.start_recording(config, Path(directory))
        from programs import PROGRAMS

        context.context().enable_graph_collection()
        PROGRAMS[program](NUM_STEPS)
        collected = context.context().export_run_metadata()
        recording.close()
    graphs = [function.post_optimization_graph.node for function in collected.function_graphs]
    return [
        {"op": node.op, "name": node.name, "keys": len(node.attr["nodes"].list.i) if "nodes" in node.attr else 0}
        for node in max(graphs, key=len)
    ]


def measure(program: str, mode: str) -> Result:
    """Counts the ops of a program's training step, in processes of their own."""
    plain, recorded = (_nodes(config, program) for config in ("none", f"{_OURS}-tensorflow/{mode}"))
    before, after = (collections.Counter(node["op"] for node in nodes) for nodes in (plain, recorded))
    summaries = [node for node in recorded if node["op"] == RECORD_SUMMARY_OP]
    num_tensors = sum(node["keys"] for node in summaries)
    ours = collections.Counter(node["op"] for node in recorded if f"{_OURS}_summary" in node["name"])
    return Result(
        program=program,
        mode=mode,
        num_ops=len(plain),
        num_added=len(recorded) - len(plain),
        num_tensors=num_tensors,
        num_copies=len(summaries),
        num_copied_bytes=num_tensors * _SUMMARY_BYTES,
        num_whole=sum(node["keys"] for node in recorded if node["op"] == RECORD_OP),
        num_passes=sum(ours[op] for op in ours if op not in _SMALL_OPS),
        by_type=dict((after - before).most_common()),
    )


_SMALL_OPS = frozenset({"Const", "Pack", "ConcatV2", "StridedSlice", "Shape", "Size", "Rank", "Reshape", "Bitcast"})
"""Ops of ours whose outputs are no larger than a row of summaries, or that only say what a buffer holds."""


def _nodes(config: str, program: str) -> list[dict[str, Any]]:
    command = [sys.executable, __file__, "--child", config, program]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    nodes: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return nodes


def main() -> None:
    """Prints the results as a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", nargs="+", choices=PROGRAM_NAMES, default=PROGRAM_NAMES)
    parser.add_argument("--output", type=Path, help="also write the results there, as JSON")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        print(json.dumps(graph_of_step(*arguments.child)))
        return
    found = [measure(program, mode) for program in arguments.programs for mode in MODES]
    for result in found:
        print(json.dumps(asdict(result), indent=1))
    if arguments.output is not None:
        arguments.output.write_text(json.dumps([asdict(result) for result in found], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
