"""Checks of the logdir of a killed process, with the counts that the process had made."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from tests.recovery.driver import CAPACITY, COUNTERS, RUN_ROW, Recorder
from tfdbg_arrow import Logdir, first_nonfinite, open_logdir, recover, schema
from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.storage.layout import SPOOL_DIRECTORY

Rows = dict[str, list[tuple[Any, ...]]]


def all_rows(logdir: Path) -> Rows:
    """Returns the rows of each table, sorted by their representation."""
    with open_logdir(logdir) as opened:
        return rows_of(opened)


def rows_of(opened: Logdir) -> Rows:
    """Returns the rows of each table. A NaN becomes a text, because a NaN does not equal itself."""

    def comparable(row: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple("NaN" if isinstance(value, float) and math.isnan(value) else value for value in row)

    return {
        table.name: sorted(map(comparable, opened.rows(f"SELECT * FROM {table.name}")), key=repr) for table in TABLES
    }


def tree(logdir: Path) -> dict[str, bytes]:
    """Returns the content of each file, keyed by its path within the logdir."""
    return {str(path.relative_to(logdir)): path.read_bytes() for path in logdir.rglob("*") if path.is_file()}


def check_recovery(logdir: Path, *, calls: int, tensors: int, values: int, marks: int, first_bad: int) -> None:
    """Checks the rows that readers see in a killed process's logdir, then recovers the logdir and checks again.

    The counters may lack the event that was being recorded at the moment of the kill, so there may be one more of each.
    """
    with open_logdir(logdir) as opened:
        before = rows_of(opened)
        check_rows(before, calls=calls, tensors=tensors, values=values, marks=marks)
        check_first_bad(opened, first_bad=first_bad, tensors=tensors)
        (run,) = recover(logdir)
        assert (run.state, run.reason) == ("recovered", None)
        assert list((logdir / SPOOL_DIRECTORY).iterdir()) == []
        assert recover(logdir) == ()
        opened.refresh()
        assert rows_of(opened) == before


def check_rows(rows: Rows, *, calls: int, tensors: int, values: int, marks: int) -> None:
    check_events(rows, calls=calls, tensors=tensors, values=values, marks=marks)
    assert column_of(rows, "run", "is_clean_end") == [False]
    assert column_of(rows, "capture_stat", "stat") == ["recovered"]


def check_events(rows: Rows, *, calls: int, tensors: int, values: int, marks: int) -> None:
    """Checks that each recorded event is there exactly once, with the rows that it refers to."""

    def column(table: str, name: str) -> list[Any]:
        return column_of(rows, table, name)

    assert sorted(column("execution", "execution_index")) in (list(range(calls)), list(range(calls + 1)))
    assert len(set(column("tensor_health", "event_index"))) == len(rows["tensor_health"])
    assert len(rows["tensor_health"]) in (tensors, tensors + 1)
    assert len(rows["tensor_value"]) in (values, values + 1)
    assert len(rows["mark"]) in (marks, marks + 1)
    num_inputs = sum(column("execution", "num_inputs"))
    assert len(rows["execution_input"]) == num_inputs
    # The rows refer only to rows that exist.
    graphs = set(column("graph", "graph_id"))
    assert len(graphs) == len(rows["graph"])
    assert set(column("tensor_health", "graph_id")) <= graphs
    assert set(column("execution", "graph_id")) <= graphs
    assert all(name.startswith("op_") for name in column("tensor_health", "op_name"))
    devices = column("device", "device_id")
    assert len(set(devices)) == len(devices)
    assert set(column("tensor_health", "device_id")) <= set(devices)
    assert column("tensor_health", "execution_index") == column("tensor_health", "step_id")
    steps = dict(zip(column("tensor_health", "event_index"), column("tensor_health", "step_id"), strict=True))
    for event, value in zip(column("tensor_value", "event_index"), column("tensor_value", "value"), strict=True):
        assert np.frombuffer(value, np.float32).tolist() == [steps[event]] * 2
    assert len(rows["run"]) == 1


def column_of(rows: Rows, table: str, name: str) -> list[Any]:
    """Returns a column of a table."""
    place = [column.name for column in schema.table(table).columns].index(name)
    return [row[place] for row in rows[table]]


def check_first_bad(opened: Logdir, *, first_bad: int, tensors: int) -> None:
    """Checks the first bad tensor. `first_bad` is the tensor's number, counted from 1, or 0 if no tensor was bad."""
    found = first_nonfinite(opened)
    tensor_rows = opened.rows("SELECT event_index, has_inf_or_nan FROM tensor_health ORDER BY event_index")
    bad = [number for number, (_, is_bad) in enumerate(tensor_rows, start=1) if is_bad]
    if first_bad == 0:
        assert bad in ([], [tensors + 1])
        assert (found is None) == (not bad)
        return
    assert bad[0] == first_bad
    assert found is not None
    assert found.event_index == tensor_rows[first_bad - 1][0]


def left_by_a_kill(directory: Path, *, num_calls: int, flushed_after: int, capacity: int = CAPACITY) -> Path:
    """Returns the logdir of a process that was killed after some calls.

    Some rows are in parts, and the other rows are in the spool.
    """
    counters = np.zeros(len(COUNTERS), np.int64)
    recorder = Recorder(directory / "logdir", counters, seed=1, capacity=capacity)
    recorder.sink._stop.set()
    recorder.sink._thread.join()
    for number in range(num_calls):
        recorder.call()
        if number == flushed_after:
            recorder.sink.flush()
    left = copied(directory / "logdir", directory / "left")
    recorder.sink.close(run_row=RUN_ROW)
    recorder.files.remove()
    return left


def copied(logdir: Path, target: Path) -> Path:
    """Copies a logdir that is being written to, and returns the copy.

    A kill at this moment would leave the same files.
    """
    return Path(shutil.copytree(logdir, target))
