"""Test readers beside a program that flushes, merges and compacts: each reader sees a prefix of the final content.

A reader never sees fewer rows than it saw before. The specification promises less to readers that list files without
the manifest (spec/README.md, "Manifest").
"""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.live_reading.reading import BY_MANIFEST, EVENT_TABLES, KINDS, NOTHING, Seen, columns
from tfdbg_arrow import Logdir, open_logdir


def read_beside(logdir: Path, reports: Path, *, num_runs: int, flushes_a_run: int) -> dict[str, dict[str, Any]]:
    """Runs the program and returns the observations of each kind of reader."""
    reports.mkdir()
    arguments = [str(logdir), str(num_runs), str(flushes_a_run), str(reports)]
    command = [sys.executable, "-m", "tests.live_reading.program", *arguments]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return {kind: json.loads((reports / kind).read_text()) for kind in KINDS}


Prefixes = dict[tuple[str, int], tuple[int, str]]
"""For each run and event: the number of rows of a table up to this event, and the sum of their hashes."""


def prefixes(opened: Logdir, table: str) -> Prefixes:
    """Returns the prefixes of a table that a reader may see, in order."""
    rows = opened.rows(
        f"""
        SELECT run_id, event, (sum(num_rows) OVER so_far)::BIGINT, (sum(row_hashes) OVER so_far)::VARCHAR
        FROM (
            SELECT run_id, {EVENT_TABLES[table]} AS event, count(*) AS num_rows,
                sum(hash(row({columns(table)}))) AS row_hashes
            FROM {table} GROUP BY ALL
        )
        WINDOW so_far AS (ORDER BY run_id, event)
        ORDER BY run_id, event
        """
    )
    return {NOTHING[:2]: NOTHING[2:], **{row[:2]: row[2:] for row in rows}}


def check_by_path(seen: Seen, expected: Prefixes) -> None:
    """Checks one reading. Rows of the last run may be missing while parts are replaced. Earlier runs are complete."""
    run_id, event, num_rows, total = seen
    in_order = [count for (run, _), (count, _) in expected.items() if run < run_id]
    whole = expected[run_id, event]
    assert max(in_order, default=0) <= num_rows <= whole[0]
    assert num_rows < whole[0] or total == whole[1]


def check(logdir: Path, reports: dict[str, dict[str, Any]], *, num_runs: int) -> None:
    with open_logdir(logdir) as opened:
        expected = {table: prefixes(opened, table) for table in EVENT_TABLES}
        assert opened.rows("SELECT count(*) FROM run WHERE is_clean_end") == [(num_runs,)]
    for kind, report in reports.items():
        assert report["faults"] == [], kind
        assert report["num_reads"] > 1
        for table, rows in report["seen"].items():
            seen: list[Seen] = [tuple(row) for row in rows]
            end = list(expected[table])[-1]
            assert seen[-1] == (*end, *expected[table][end]), (kind, table)
            if kind in BY_MANIFEST:
                assert all(expected[table].get(row[:2]) == row[2:] for row in seen), (kind, table)
                assert all(before[:2] < after[:2] for before, after in pairwise(seen)), (kind, table)
            else:
                for row in seen:
                    check_by_path(row, expected[table])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_runs", "flushes_a_run"),
    [pytest.param(2, 60, id="some"), pytest.param(20, 500, id="many", marks=pytest.mark.exhaustive)],
)
def test_each_reader_sees_prefixes_of_the_history_in_order(tmp_path: Path, num_runs: int, flushes_a_run: int) -> None:
    logdir = tmp_path / "logdir"
    check(
        logdir,
        read_beside(logdir, tmp_path / "reports", num_runs=num_runs, flushes_a_run=flushes_a_run),
        num_runs=num_runs,
    )
