from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tests.durability.parts_on_disk import events_on_disk, files, marks
from tfdbg_arrow.errors import BrokenPartError
from tfdbg_arrow.schema import arrow_schema
from tfdbg_arrow.storage.layout import manifest_path
from tfdbg_arrow.writer.sink.parts import PartWriter


@pytest.fixture
def writer(tmp_path: Path) -> PartWriter:
    made = PartWriter(tmp_path, "r", merge_parts=4)
    made.start()
    return made


def test_a_part_is_sealed_with_rows_hash_and_event_range(writer: PartWriter, tmp_path: Path) -> None:
    writer.write("mark", marks())
    writer.write("mark", marks(3, 1, 2))
    assert events_on_disk(tmp_path) == [3, 1, 2]
    assert files(tmp_path) == ["part-000000.parquet", "part-000001.parquet"]
    lines = [json.loads(line) for line in (tmp_path / manifest_path("r")).read_text().splitlines()]
    assert [(line["op"], line["rows"], line["min_event_index"]) for line in lines] == [("add", 0, None), ("add", 3, 1)]


def test_a_table_without_event_index_has_no_range(writer: PartWriter) -> None:
    schema = arrow_schema("execution_input")
    row = {"run_id": "r", "execution_index": 1, "input_index": 0, "tensor_id": 2}
    entry = writer.write("execution_input", pa.Table.from_pylist([row], schema=schema))
    assert (entry.rows, entry.min_event_index, entry.max_event_index) == (1, None, None)


def test_a_table_holds_only_whole_parts_at_any_moment(
    writer: PartWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers that ignore the manifest open every file of a table."""
    rename, seen = os.replace, []

    def look_and_rename(source: Path, target: Path) -> None:
        seen.append(ds.dataset(tmp_path / "mark").to_table()["event_index"].to_pylist())
        rename(source, target)

    writer.write("mark", marks())
    monkeypatch.setattr(os, "replace", look_and_rename)
    for event in (1, 2, 3):
        writer.write("mark", marks(event))
    assert seen == [[], [1], [1, 2]]
    assert list((tmp_path / "spool").iterdir()) == []


def test_a_run_cannot_be_written_twice(writer: PartWriter, tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        PartWriter(tmp_path, "r").start()


def test_compaction_keeps_every_row_in_order_and_drops_the_empty_part(writer: PartWriter, tmp_path: Path) -> None:
    writer.write("mark", marks())
    for start in range(0, 30, 3):
        writer.write("mark", marks(start, start + 2, start + 1))
    before = events_on_disk(tmp_path)
    writer.compact("mark")
    assert events_on_disk(tmp_path) == before
    assert len(files(tmp_path)) == 1
    assert [entry.path.rpartition("/")[2] for entry in writer.parts("mark")] == files(tmp_path)


def test_compaction_keeps_an_empty_part_if_it_is_the_only_one(writer: PartWriter, tmp_path: Path) -> None:
    writer.write("mark", marks())
    writer.compact("mark")
    assert files(tmp_path) == ["part-000000.parquet"]


def test_compaction_closes_a_part_at_its_target_size_and_keeps_large_ones(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path, "r", target_rows=10)
    writer.start()
    for start in (0, 4, 8, 12, 16, 20):
        writer.write("mark", marks(*range(start, start + 4)))
    large = writer.write("mark", marks(*range(24, 31)))
    writer.write("mark", marks(31))
    writer.compact("mark")
    assert sorted(events_on_disk(tmp_path)) == list(range(32))
    assert [entry.min_event_index for entry in writer.parts("mark")] == [0, 10, 20, 24, 31]
    assert [entry.rows for entry in writer.parts("mark")] == [10, 10, 4, 7, 1]
    assert (tmp_path / large.path).exists()


def test_small_parts_are_merged_during_a_run_and_rows_rarely_twice(writer: PartWriter, tmp_path: Path) -> None:
    counts = []
    for event in range(100):
        writer.write("mark", marks(event))
        writer.merge_small("mark")
        counts.append(len(files(tmp_path)))
    assert events_on_disk(tmp_path) == list(range(100))
    assert max(counts) <= 3 * 4 + 1
    assert len(files(tmp_path)) == len(writer.parts("mark"))


def test_replace_replaces_parts_in_one_manifest_line(writer: PartWriter, tmp_path: Path) -> None:
    old = writer.write("mark", marks(1, 2))
    (new,) = writer.replace([old.path], {"mark": [marks(5)]})
    assert events_on_disk(tmp_path) == [5]
    last = json.loads((tmp_path / manifest_path("r")).read_text().splitlines()[-1])
    assert (last["op"], last["removed"], [e["path"] for e in last["added"]]) == ("replace", [old.path], [new.path])


def fail_at(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    """Makes the `number`-th call of os.<name> from now on fail as a full disk does."""
    real, calls = getattr(os, name), iter(range(1, 1_000_000))

    def failing(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args, **kwargs)

    monkeypatch.setattr(os, name, failing)


@pytest.mark.parametrize(("name", "number"), [("fsync", 1), ("fsync", 2), ("fsync", 3), ("replace", 1)])
def test_a_part_that_cannot_be_sealed_leaves_no_file(
    writer: PartWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    writer.write("mark", marks(1))
    with monkeypatch.context() as patch:
        fail_at(patch, name, number)
        with pytest.raises(OSError, match="No space"):
            writer.write("mark", marks(2))
    assert (events_on_disk(tmp_path), files(tmp_path)) == ([1], ["part-000000.parquet"])
    writer.write("mark", marks(2))
    assert events_on_disk(tmp_path) == [1, 2]


@pytest.mark.parametrize(("name", "number"), [("fsync", 1), ("fsync", 2), ("fsync", 3), ("replace", 1)])
def test_a_failed_compaction_keeps_the_parts(
    writer: PartWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    for event in range(3):
        writer.write("mark", marks(event))
    before = files(tmp_path)
    with monkeypatch.context() as patch:
        fail_at(patch, name, number)
        with pytest.raises(OSError, match="No space"):
            writer.compact("mark")
    assert (events_on_disk(tmp_path), files(tmp_path)) == ([0, 1, 2], before)


def test_a_damaged_part_is_not_merged(writer: PartWriter, tmp_path: Path) -> None:
    entries = [writer.write("mark", marks(*range(event, event + 50))) for event in (0, 50, 100)]
    path = tmp_path / entries[1].path
    content = bytearray(path.read_bytes())
    content[60] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(BrokenPartError, match=r"part-000001\.parquet has the SHA-256"):
        writer.compact("mark")
    assert [entry.path for entry in writer.parts("mark")] == [entry.path for entry in entries]
    assert files(tmp_path) == [entry.path.rpartition("/")[2] for entry in entries]


def test_a_manifest_line_cut_off_by_a_failure_is_removed_before_the_next(writer: PartWriter, tmp_path: Path) -> None:
    writer.write("mark", marks(1))
    with open(tmp_path / manifest_path("r"), "ab") as file:
        file.write(b'{"op":"add","ta')
    writer.write("mark", marks(2))
    assert events_on_disk(tmp_path) == [1, 2]


def test_large_row_groups_are_split_by_rows_and_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfdbg_arrow.storage.part_files.ROW_GROUP_ROWS", 8)
    monkeypatch.setattr("tfdbg_arrow.storage.part_files.ROW_GROUP_ROWS", 8)
    writer = PartWriter(tmp_path, "r", row_group_bytes=200)
    writer.start()
    for start in range(0, 20, 2):
        writer.write("mark", marks(start, start + 1))
    writer.compact("mark")
    (entry,) = writer.parts("mark")
    metadata = pq.read_metadata(tmp_path / entry.path)
    assert max(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)) <= 8
    assert metadata.num_row_groups > 1
    assert events_on_disk(tmp_path) == list(range(20))
