"""Runs the corpus under both recorders, in separate processes, and compares the two recordings."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset as ds

from tfdbg_arrow.schema import TABLES

from .compare import Comparison, Difference, compare
from .differences import EXPLANATIONS, explanation_of
from .logdir import read_logdir
from .recording import Recording

RECORDERS = ("debugger_v2", "tfdbg_arrow")
_TIMEOUT_SECONDS = 600


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of the comparison for one mode.

    Attributes:
        comparison: All equal and unequal facts.
        failed: The exceptions of the programs that raised, by recorder.
        explained: Number of differences, by name of their explanation.
        unexplained: The other differences.
        unused: Names of explanations for this mode that match no difference.
        unresolved: Number of our references that lead to no row, by `table.column`.
    """

    comparison: Comparison
    failed: dict[str, dict[str, str]]
    explained: Counter[str]
    unexplained: list[Difference]
    unused: list[str]
    unresolved: Counter[str]


def record(mode: str, directory: Path, programs: tuple[str, ...] = ()) -> None:
    """Runs both recorders at the same time, each in DIRECTORY/<recorder>.

    Raises:
        RuntimeError: One of the processes failed.
    """
    tests = Path(__file__).resolve().parent.parent
    environment = {
        **os.environ,
        "PYTHONPATH": str(tests),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
        # Use the same kernels with the same rounding under both recorders.
        "TF_ENABLE_ONEDNN_OPTS": "0",
    }
    processes = {}
    for recorder in RECORDERS:
        (directory / recorder).mkdir(parents=True)
        command = [sys.executable, "-m", "parity.record", recorder, mode, str(directory / recorder), *programs]
        log = (directory / f"{recorder}.log").open("wb")
        with log:
            processes[recorder] = subprocess.Popen(
                command, cwd=directory / recorder, stdout=log, stderr=log, env=environment
            )
    try:
        ends = {recorder: process.wait(_TIMEOUT_SECONDS) for recorder, process in processes.items()}
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    for recorder, returncode in ends.items():
        if returncode != 0:
            log_text = (directory / f"{recorder}.log").read_text("utf-8", errors="replace")
            raise RuntimeError(f"{recorder} in {mode} ended with {returncode}:\n{log_text[-5000:]}")


def outcome(mode: str, directory: Path) -> Outcome:
    """Compares the two recordings that record() wrote into a directory."""
    theirs = Recording.read(directory / "debugger_v2" / "debugger_v2.json")
    comparison = compare(theirs, read_logdir(directory / "tfdbg_arrow" / "logdir"))
    explained: Counter[str] = Counter()
    unexplained: list[Difference] = []
    for difference in comparison.differences:
        entry = explanation_of(difference, mode)
        if entry is None:
            unexplained.append(difference)
        else:
            explained[entry.name] += 1
    return Outcome(
        comparison=comparison,
        failed={
            recorder: json.loads((directory / recorder / "failed.json").read_text("utf-8")) for recorder in RECORDERS
        },
        explained=explained,
        unexplained=unexplained,
        unused=[entry.name for entry in EXPLANATIONS if mode in entry.modes and not explained[entry.name]],
        unresolved=unresolved_references(directory / "tfdbg_arrow" / "logdir"),
    )


def unresolved_references(logdir: Path) -> Counter[str]:
    """Returns the number of a logdir's references that lead to no row, by column."""
    found: Counter[str] = Counter()
    for table in TABLES:
        for column in table.columns:
            if column.references is None:
                continue
            target, name = column.references.split(".")
            # Op names are unique only within a graph.
            own, others = [column.name], [name]
            if name == "op_name":
                graph = "forward_graph_id" if column.name == "forward_op_name" else "graph_id"
                own, others = [graph, column.name], ["graph_id", name]
            known = set(map(tuple, _columns(logdir, target, others)))
            if name == "op_name":  # a node that TensorFlow's optimizer made has its own name
                known |= set(map(tuple, _columns(logdir, "executed_op", ["graph_id", "node_name"])))
            rows = _columns(logdir, table.name, own)
            found[f"{table.name}.{column.name}"] += sum(row[-1] is not None and tuple(row) not in known for row in rows)
    return +found


def _columns(logdir: Path, table: str, names: list[str]) -> list[list[object]]:
    rows = ds.dataset(logdir / table).to_table(columns=names)
    return [list(row) for row in zip(*(rows[name].to_pylist() for name in names), strict=True)]


def run(mode: str, directory: Path) -> Outcome:
    """Records and compares one mode. Removes the directory afterwards."""
    try:
        record(mode, directory)
        return outcome(mode, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
