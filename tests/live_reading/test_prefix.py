"""Readers in a loop beside a program that flushes, merges and compacts: what each sees is a prefix of what is there in
the end, and never less than it saw before.
"""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.live_reading.reading import EVENT_TABLES, KINDS, NOTHING, Seen, columns
from tfdbg_arrow import Logdir, open_logdir


def read_beside(logdir: Path, reports: Path, *, num_runs: int, flushes_a_run: int) -> dict[str, dict[str, Any]]:
    """Runs the program; returns what each kind of reader saw."""
    reports.mkdir()
    arguments = [str(logdir), str(num_runs), str(flushes_a_run), str(reports)]
    command = [sys.executable, "-m", "tests.live_reading.program", *arguments]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return {kind: json.loads((reports / kind).read_text()) for kind in KINDS}


def prefixes(opened: Logdir, table: str) -> set[Seen]:
    """Returns what a reader may see of a table."""
    rows = opened.rows(
        f"""
        SELECT run_id, event,
            (sum(num_rows) OVER so_far)::BIGINT, (sum(row_hashes) OVER so_far)::VARCHAR
        FROM (
            SELECT run_id, {EVENT_TABLES[table]} AS event, count(*) AS num_rows,
                sum(hash(row({columns(table)}))) AS row_hashes
            FROM {table} GROUP BY ALL
        )
        WINDOW so_far AS (ORDER BY run_id, event)
        """
    )
    return {NOTHING, *rows}


@pytest.mark.parametrize(
    ("num_runs", "flushes_a_run"),
    [pytest.param(2, 60, id="some"), pytest.param(20, 500, id="many", marks=pytest.mark.exhaustive)],
)
def test_each_reader_sees_prefixes_of_the_history_in_order(tmp_path: Path, num_runs: int, flushes_a_run: int) -> None:
    logdir = tmp_path / "logdir"
    reports = read_beside(logdir, tmp_path / "reports", num_runs=num_runs, flushes_a_run=flushes_a_run)
    with open_logdir(logdir) as opened:
        expected = {table: prefixes(opened, table) for table in EVENT_TABLES}
        assert opened.rows("SELECT count(*) FROM run WHERE is_clean_end") == [(num_runs,)]
    for kind, report in reports.items():
        assert report["faults"] == [], kind
        assert report["num_reads"] > 1
        for table, seen in report["seen"].items():
            assert {tuple(one) for one in seen} <= expected[table], (kind, table)
            assert all(before[:3] < after[:3] for before, after in pairwise(seen)), (kind, table)
            assert tuple(seen[-1]) == max(expected[table]), (kind, table)
    for kind in ("opening", "holding"):
        assert (reports[kind]["num_doubled"], reports[kind]["num_retries"]) == (0, 0)
