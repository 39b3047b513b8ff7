"""Checks of a logdir after a recording with failing file operations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.recovery.checking import Rows, check_events, check_first_bad, column_of, rows_of
from tfdbg_arrow import open_logdir
from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.storage.layout import SPOOL_DIRECTORY, part_directory
from tfdbg_arrow.storage.manifest import read_live_parts

FIRST_BAD = "first_bad"


def check_whole(logdir: Path, counts: dict[str, int], *, num_unkept: int = 0) -> Rows:
    """Checks that each recorded event is there exactly once, except for elements that are reported as lost.

    Returns the rows.

    Args:
        logdir: The logdir.
        counts: The counts of the program, by COUNTERS.
        num_unkept: Number of further tensors whose elements were never on disk.
    """
    with open_logdir(logdir) as opened:
        rows = rows_of(opened)
        check_first_bad(opened, first_bad=counts[FIRST_BAD], tensors=counts["tensors"])
    assert len(rows["tensor_value"]) + lost_values(rows) == counts["values"] + num_unkept
    expected = counts | {"values": len(rows["tensor_value"])}
    check_events(rows, **{name: count for name, count in expected.items() if name != FIRST_BAD})
    tables = {"calls": "execution", "tensors": "tensor_health", "marks": "mark"}
    assert {name: len(rows[table]) for name, table in tables.items()} == {name: counts[name] for name in tables}
    return rows


def lost_values(rows: Rows) -> int:
    """Returns the number of tensors whose elements capture_stat reports as lost."""
    told = zip(column_of(rows, "capture_stat", "subject"), column_of(rows, "capture_stat", "num_events"), strict=True)
    return sum(count or 0 for subject, count in told if subject.startswith("tensor_value"))


def leftovers(logdir: Path, run_id: str) -> list[str]:
    """Returns the files that are not live parts: spool files, and files that look like parts to a reader by path."""
    live = {entry.path for entry in read_live_parts(logdir, run_id=run_id)}
    found = [str(path.relative_to(logdir)) for path in (logdir / SPOOL_DIRECTORY).iterdir()]
    for table in TABLES:
        for path in (logdir / part_directory(table.name, run_id=run_id)).glob("*"):
            name = str(path.relative_to(logdir))
            if name not in live:
                found.append(name)
    return found


def sample(names: Sequence[str]) -> list[int]:
    """Returns the numbers of some operations: one operation of each kind, spread over the whole recording."""
    by_name: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        by_name.setdefault(name, []).append(number)
    kinds = list(by_name.values())
    return sorted(numbers[len(numbers) * place // len(kinds)] for place, numbers in enumerate(kinds))
