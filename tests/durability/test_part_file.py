"""Test that the file of a part is complete and on disk before the file gets its name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.durability.files_on_disk import failing, num_descriptors, synced
from tests.durability.parts_on_disk import marks
from tfdbg_arrow.schema import TABLES, arrow_schema
from tfdbg_arrow.storage.manifest import ManifestEntry
from tfdbg_arrow.storage.part_files import _HashingFile, seal_parts

NAME = "mark/run=r/part-000003.parquet"


def seal(
    logdir: Path, pieces: Iterable[pa.Table] | None, *, table: str = "mark", max_bytes: int | None = None
) -> ManifestEntry:
    (entry,) = seal_parts(logdir, {table: pieces}, run_id="r", numbers={table: 3}, max_bytes=max_bytes)
    return entry


def sealed(logdir: Path, *pieces: pa.Table, table: str = "mark", max_bytes: int | None = None) -> ManifestEntry:
    return seal(logdir, pieces, table=table, max_bytes=max_bytes)


def test_the_entry_describes_the_part(tmp_path: Path) -> None:
    entry = sealed(tmp_path, marks(5, 3), marks(), marks(9, 2), marks(4))
    content = (tmp_path / NAME).read_bytes()
    assert entry == ManifestEntry(
        table="mark",
        path=NAME,
        rows=5,
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        min_event_index=2,
        max_event_index=9,
    )
    table = pq.read_table(tmp_path / NAME, partitioning=None)
    assert table["event_index"].to_pylist() == [5, 3, 9, 2, 4]
    assert table.schema.equals(arrow_schema("mark"), check_metadata=True)


def test_the_file_has_the_encodings_of_the_format(tmp_path: Path) -> None:
    sealed(tmp_path, marks(1, 2))
    group = pq.read_metadata(tmp_path / NAME).row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert "DELTA_BINARY_PACKED" in columns["event_index"].encodings
    assert not columns["event_index"].has_dictionary_page


def test_without_rows_or_event_index_there_is_no_range(tmp_path: Path) -> None:
    for entry, rows in (
        (sealed(tmp_path), 0),
        (sealed(tmp_path, marks()), 0),
        (sealed(tmp_path, arrow_schema("execution_input").empty_table(), table="execution_input"), 0),
    ):
        assert (entry.rows, entry.min_event_index, entry.max_event_index) == (rows, None, None)


def test_parts_without_rows_are_the_same_in_each_run(tmp_path: Path) -> None:
    tables: dict[str, None] = {table.name: None for table in TABLES}
    numbers = dict.fromkeys(tables, 0)
    one, two = (seal_parts(tmp_path, tables, run_id=run_id, numbers=numbers) for run_id in ("one", "two"))
    written = [sealed(tmp_path, arrow_schema(name).empty_table(), table=name) for name in tables]
    for entries in zip(one, two, written, strict=True):
        (content,) = {(tmp_path / entry.path).read_bytes() for entry in entries}
        assert {(entry.rows, entry.bytes, entry.sha256) for entry in entries} == {
            (0, len(content), hashlib.sha256(content).hexdigest())
        }


def test_parts_that_are_written_together_are_all_synced_before_one_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, rename = synced(monkeypatch), os.replace

    def noting(source: Path, target: Path) -> None:
        rename(source, target)
        seen.append((target, None))

    monkeypatch.setattr(os, "replace", noting)
    tables = {"mark": [marks(1)], "graph": None}
    entries = seal_parts(tmp_path, tables, run_id="r", numbers={"mark": 3, "graph": 0})
    assert [(entry.path, entry.rows) for entry in entries] == [(NAME, 1), ("graph/run=r/part-000000.parquet", 0)]
    assert [path.relative_to(tmp_path).as_posix() for path, _ in seen] == [
        "spool/r.mark.000003.tmp",
        "spool/r.graph.000000.tmp",
        NAME,
        "graph/run=r/part-000000.parquet",
        "mark/run=r",
        "graph/run=r",
    ]


def test_the_file_is_synced_then_renamed_then_its_directory_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, rename = synced(monkeypatch), os.replace
    renamed: list[tuple[str, str]] = []

    def noting(source: Path, target: Path) -> None:
        assert len(seen) == 1
        renamed.append((str(source.relative_to(tmp_path)), str(target.relative_to(tmp_path))))
        rename(source, target)

    monkeypatch.setattr(os, "replace", noting)
    before = num_descriptors()
    sealed(tmp_path, marks(1))
    assert renamed == [("spool/r.mark.000003.tmp", NAME)]
    assert seen == [
        (tmp_path / "spool/r.mark.000003.tmp", (tmp_path / NAME).read_bytes()),
        (tmp_path / "mark/run=r", None),
    ]
    assert num_descriptors() == before


def test_a_part_ends_with_the_piece_that_reaches_the_maximum_size(tmp_path: Path) -> None:
    size = sealed(tmp_path, marks(1)).bytes
    one_group = 4  # the magic number of Parquet is written before any row group
    taken = iter([marks(1), marks(2), marks(3)])
    entry = seal(tmp_path, taken, max_bytes=one_group + 1)
    assert (entry.rows, entry.min_event_index, entry.max_event_index) == (1, 1, 1)
    assert next(taken)["event_index"].to_pylist() == [2], "the remaining pieces are not read"
    assert sealed(tmp_path, marks(1), marks(2), marks(3), max_bytes=10 * size).rows == 3


def test_a_part_of_exactly_the_maximum_size_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    write = _HashingFile.write

    def noting(self: _HashingFile, data: bytes) -> int:
        count = write(self, data)
        sizes.append(self.size)
        return count

    def pieces() -> Iterator[pa.Table]:
        yield marks(1)
        sizes.append(-1)  # the piece is written

    with monkeypatch.context() as patched:
        patched.setattr(_HashingFile, "write", noting)
        seal(tmp_path, pieces())
    after_one = sizes[sizes.index(-1) - 1]
    assert sealed(tmp_path, marks(1), marks(2), max_bytes=after_one).rows == 1
    assert sealed(tmp_path, marks(1), marks(2), max_bytes=after_one + 1).rows == 2


def test_a_large_piece_is_written_as_several_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfdbg_arrow.storage.part_files.ROW_GROUP_ROWS", 2)
    sealed(tmp_path, marks(1, 2, 3, 4, 5))
    metadata = pq.read_metadata(tmp_path / NAME)
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [2, 2, 1]


def test_a_half_written_file_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = num_descriptors()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing())
        with pytest.raises(OSError, match="No space"):
            sealed(tmp_path, marks(1))
    assert num_descriptors() == before
    assert not (tmp_path / NAME).exists()
    assert sealed(tmp_path, marks(1)).rows == 1, "the half-written file is overwritten"
