"""Readers of a logdir that is being written to, and checks of what they see.

The full content of a table is a history: its rows in the order of runs and events. A reader sees a prefix of this
history if it sees each row up to its last event exactly once, and no other row. Rows are compared by a hash of all
their columns. Sets of rows are compared by the sum of these hashes, because the order of rows in a logdir has no
meaning.
"""

from __future__ import annotations

import os
import select
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.dataset

from tfdbg_arrow import Logdir, open_logdir, schema

EVENT_TABLES = {
    "execution": "event_index",
    "execution_input": "execution_index",
    "tensor_health": "event_index",
    "tensor_value": "event_index",
    "mark": "event_index",
}
"""The tables that the program fills with rows of events, and the column that orders the rows of each table."""
Seen = tuple[str, int, int, str]
"""The last run and event, the number of rows, and the sum of their hashes (as text, because it can exceed 64 bits)."""
NOTHING: Seen = ("", -1, 0, "0")

MAX_LISTINGS = 100
PAUSE_S = 0.05
"""Pause between two readings, so that the program can proceed."""
GONE = "No such file"
"""Part of DuckDB's message for a file that was removed after it was listed."""
QUESTIONS = {
    "a tensor without its graph": "SELECT count(*) FROM tensor_health ANTI JOIN graph USING (run_id, graph_id)",
    "a tensor without its device": "SELECT count(*) FROM tensor_health ANTI JOIN device USING (run_id, device_id)",
    "a run with two rows": "SELECT count(*) - count(DISTINCT run_id) FROM run",
    "a graph with two rows": "SELECT count(*) - count(DISTINCT (run_id, graph_id)) FROM graph",
}
"""Queries that count violations. The writer seals graphs and devices before the tensors that refer to them."""


def columns(table: str) -> str:
    return ", ".join(f'"{column.name}"' for column in schema.table(table).columns)


def summary(source: str, table: str) -> str:
    """Returns a query that summarizes a table in a source.

    The query gives the last run and event, the number of rows, and the sum of the hashes of the rows.
    """
    event = EVENT_TABLES[table]
    rows = f"SELECT run_id, {event}, hash(row({columns(table)})) AS row_hash FROM {source}"
    last = f"max(row(run_id, {event}))"
    return f"SELECT {last}[1], {last}[2], count(*), sum(row_hash)::VARCHAR FROM ({rows})"


@dataclass
class Report:
    """The observations of a reader.

    Attributes:
        num_reads: Number of times that the reader read all tables.
        num_retries: Number of times that a listed part had been removed, so that the reader listed the parts again.
        num_doubled: Number of times that the reader found rows of a table twice, where the specification allows this.
        seen: The observations of each table, in order and without consecutive duplicates.
        faults: Violations that the reader found.
    """

    num_reads: int = 0
    num_retries: int = 0
    num_doubled: int = 0
    seen: dict[str, list[Seen]] = field(default_factory=lambda: {table: [] for table in EVENT_TABLES})
    faults: list[str] = field(default_factory=list)

    def note(self, table: str, found: tuple[Any, ...]) -> None:
        run_id, event, num_rows, total = found
        one: Seen = (run_id, event, num_rows, total) if num_rows else NOTHING
        if self.seen[table][-1:] != [one]:
            self.seen[table].append(one)


class Reader(ABC):
    """Reads all tables, once for each call of `read`."""

    def __init__(self, logdir: Path) -> None:
        self.logdir = logdir
        self.report = Report()

    def read(self) -> None:
        for table in EVENT_TABLES:
            self.read_table(table)
        self.report.num_reads += 1

    @abstractmethod
    def read_table(self, table: str) -> None:
        """Reads a table."""

    def ask(self, opened: Logdir, table: str) -> None:
        """Reads a table of an open logdir and checks it."""
        self.report.note(table, opened.rows(summary(table, table))[0])
        for what, query in QUESTIONS.items():
            if table == "mark" and opened.rows(query) != [(0,)]:
                self.report.faults.append(what)


class Opening(Reader):
    """Opens the logdir again for each reading."""

    def read(self) -> None:
        self.opened = open_logdir(self.logdir)
        with self.opened:
            super().read()

    def read_table(self, table: str) -> None:
        self.ask(self.opened, table)


class Holding(Reader):
    """Keeps the logdir open and refreshes it after every second reading."""

    def __init__(self, logdir: Path) -> None:
        super().__init__(logdir)
        self._opened = open_logdir(logdir)

    def read_table(self, table: str) -> None:
        self.ask(self._opened, table)

    def read(self) -> None:
        super().read()
        if self.report.num_reads % 2:
            self._opened.refresh()


class ByPath(Reader):
    """Lists the directory of each table instead of reading the manifest.

    Drops duplicate rows. Lists the directory again if a listed file was removed.
    """

    def __init__(self, logdir: Path) -> None:
        super().__init__(logdir)
        self._connection = duckdb.connect()
        self._connection.execute("SET threads = 1")

    def read_table(self, table: str) -> None:
        for _ in range(MAX_LISTINGS):
            try:
                self._connection.execute(f"CREATE OR REPLACE TEMP TABLE found AS {self.rows(table)}")
                break
            except (duckdb.IOException, FileNotFoundError) as error:
                if not isinstance(error, FileNotFoundError) and GONE not in str(error):
                    raise
                self.report.num_retries += 1
        else:
            self.report.faults.append(f"{table} could not be read in {MAX_LISTINGS} attempts in a row")
            return
        self._connection.execute("CREATE OR REPLACE TEMP TABLE kept AS SELECT DISTINCT * FROM found")
        ((num_found, num_kept),) = self._connection.execute(
            "SELECT (SELECT count(*) FROM found), (SELECT count(*) FROM kept)"
        ).fetchall()
        self.report.num_doubled += num_found != num_kept
        self.report.note(table, self._connection.execute(summary("kept", table)).fetchall()[0])

    @abstractmethod
    def rows(self, table: str) -> str:
        """Returns a query for the rows of a table in its files."""


class ByDuckDB(ByPath):
    def rows(self, table: str) -> str:
        return f"SELECT {columns(table)} FROM read_parquet('{self.logdir}/{table}/*/*.parquet')"


class ByArrow(ByPath):
    def rows(self, table: str) -> str:
        self._connection.register("arrow_rows", pyarrow.dataset.dataset(self.logdir / table).to_table())
        return f"SELECT {columns(table)} FROM arrow_rows"


KINDS: dict[str, type[Reader]] = {"opening": Opening, "holding": Holding, "duckdb": ByDuckDB, "pyarrow": ByArrow}
BY_MANIFEST = ("opening", "holding")


def read_until(stop: int, *, kind: str, logdir: Path) -> Report:
    """Reads repeatedly until a descriptor is readable or its other end is closed. Then reads once more."""
    os.nice(5)  # the program has priority
    while not all(any(logdir.glob(f"{table}/*/*.parquet")) for table in EVENT_TABLES):
        time.sleep(0.01)
    reader = KINDS[kind](logdir)
    has_ended = False
    while not has_ended:
        has_ended = bool(select.select([stop], [], [], PAUSE_S)[0])
        reader.read()
    return reader.report
