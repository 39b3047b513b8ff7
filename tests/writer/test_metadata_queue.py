"""The queue of metadata rows: rows and columns become the same tables, and the journal keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tfdbg_arrow.spool.convert import rows_of_columns
from tfdbg_arrow.spool.failures import Failures
from tfdbg_arrow.spool.journal import Journal, JournalReader
from tfdbg_arrow.storage.layout import spool_paths
from tfdbg_arrow.writer.sink.backlog import MetadataQueue

RUN_ID = "run1"
COLUMNS = {"stack_trace_id": [5, 5, 6], "depth": [0, 1, 0], "stack_frame_id": [7, 8, 7]}
ROWS = [dict(zip(COLUMNS, values, strict=True)) for values in zip(*COLUMNS.values(), strict=True)]


class Queue:
    """A queue and its journal."""

    def __init__(self, directory: Path, **settings: object) -> None:
        self.path = spool_paths(directory, run_id=RUN_ID).rows
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.told: list[str] = []
        self.failures = Failures(self.told.append)
        self.queue = MetadataQueue(RUN_ID, failures=self.failures, journal=Journal(self.path), **settings)  # type: ignore[arg-type]

    def taken(self) -> list[tuple[str, list[dict[str, object]]]]:
        return [(table, data.to_pylist()) for table, data, _ in self.queue.take(0)]


def test_columns_become_rows(tmp_path: Path) -> None:
    by_rows, by_columns = Queue(tmp_path / "rows"), Queue(tmp_path / "columns")
    by_rows.queue.append("stack_trace", ROWS + ROWS)
    for _ in range(2):
        by_columns.queue.append_columns("stack_trace", COLUMNS)
    assert len(by_columns.queue) > 0
    assert by_columns.taken() == by_rows.taken() != []
    assert len(by_columns.queue) == 0
    assert by_columns.taken() == []


def test_columns_are_in_the_journal_at_once(tmp_path: Path) -> None:
    given = Queue(tmp_path)
    many = {name: list(values) * 700 for name, values in COLUMNS.items()}
    given.queue.append_columns("stack_trace", many)
    entries = [list(entry.data) for entry in JournalReader(given.path).entries()]
    assert [entry[:2] for entry in entries] == [["columns", "stack_trace"]] * 3
    assert [row for entry in entries for row in rows_of_columns(entry[2])] == ROWS * 700


def test_the_texts_of_source_files_are_in_the_journal_unescaped(tmp_path: Path) -> None:
    given = Queue(tmp_path)
    rows: list[Mapping[str, object]] = [
        {"source_file_id": number, "file_path": f"{number}.py", "source_text": text}
        for number, text in enumerate(['x = "\\"\n', None, ""])
    ]
    given.queue.append("source_file", rows)
    assert rb'x = "\"' in given.path.read_bytes()
    assert [list(entry.data) for entry in JournalReader(given.path).entries()] == [
        ["columns", "source_file", {"source_file_id": [0], "file_path": ["0.py"]}, "source_text", 'x = "\\"\n'],
        ["columns", "source_file", {"source_file_id": [1], "file_path": ["1.py"], "source_text": [None]}],
        ["columns", "source_file", {"source_file_id": [2], "file_path": ["2.py"]}, "source_text", ""],
    ]
    ((_, taken),) = given.taken()
    assert [{name: row[name] for name in rows[0]} for row in taken] == rows


def test_columns_are_redacted_like_rows(tmp_path: Path) -> None:
    def redact(table: str, rows: Sequence[Mapping[str, object]]) -> Sequence[Mapping[str, object]]:
        return [{**row, "depth": 9} for row in rows]

    given = Queue(tmp_path, redact=redact)
    given.queue.append_columns("stack_trace", COLUMNS)
    ((_, rows),) = given.taken()
    assert [row["depth"] for row in rows] == [9, 9, 9]
    (entry,) = JournalReader(given.path).entries()
    assert [row["depth"] for row in rows_of_columns(list(entry.data)[2])] == [9, 9, 9]


def test_unknown_columns_are_reported(tmp_path: Path) -> None:
    given = Queue(tmp_path)
    given.queue.append_columns("stack_trace", {**COLUMNS, "no_column": [1, 2, 3]})
    given.queue.append_columns("stack_frame", {"stack_frame_id": [None]})
    given.queue.append("mark", [{"event_index": 1, "wall_time_ns": 1, "label": "step", "value": "1"}])
    assert [table for table, _ in given.taken()] == ["mark"]
    assert any("no_column" in sentence for sentence in given.told)


@pytest.mark.parametrize("columns", [{}, {"depth": 1}, {"depth": [1], "stack_trace_id": []}, {"depth": [], "x": "ab"}])
def test_invalid_columns_have_no_rows(columns: Mapping[str, object]) -> None:
    assert rows_of_columns(columns) == []


def test_rows_with_other_columns_become_one_table(tmp_path: Path) -> None:
    given = Queue(tmp_path)
    frame = {"source_file_id": 1, "file_path": "a", "lineno": 2, "func": "f", "owner": "user"}
    given.queue.append("device", [])
    given.queue.append("stack_frame", [{**frame, "stack_frame_id": 1}, {**frame, "stack_frame_id": 2, "code": "x"}])
    given.queue.append_columns("stack_frame", {name: [value] for name, value in {**frame, "stack_frame_id": 3}.items()})
    ((table, rows),) = given.taken()
    assert table == "stack_frame"
    assert [(row["stack_frame_id"], row["code"]) for row in rows] == [(1, None), (2, "x"), (3, None)]
