"""Test that the row groups of parts are read and regrouped in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.durability.parts_on_disk import marks
from tfdbg_arrow.errors import BrokenPartError
from tfdbg_arrow.storage.manifest import ManifestEntry
from tfdbg_arrow.storage.part_files import RowGroups, read_rows, seal_parts

MAX_BYTES = 2**30


def tables(*sizes: int) -> list[pa.Table]:
    """Returns tables with these numbers of rows. The event indexes of the rows are consecutive."""
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    return [marks(*range(start, start + size)) for start, size in zip(starts, sizes, strict=True)]


def dealt(groups: Iterator[pa.Table]) -> list[int]:
    return [group.num_rows for group in groups]


class TestRegrouping:
    @pytest.fixture(autouse=True)
    def small_groups(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tfdbg_arrow.storage.part_files.ROW_GROUP_ROWS", 4)

    def test_rows_are_regrouped_into_full_groups_in_order(self) -> None:
        rows = RowGroups(iter(tables(3, 0, 2, 6, 1)), max_bytes=MAX_BYTES)
        assert rows.has_more is True
        found = list(rows.part(100))
        assert [group.num_rows for group in found] == [4, 4, 4]
        assert pa.concat_tables(found)["event_index"].to_pylist() == list(range(12))
        assert rows.has_more is False
        assert dealt(rows.part(100)) == []

    def test_a_part_ends_at_its_number_of_rows_and_the_next_part_continues(self) -> None:
        rows = RowGroups(iter(tables(3, 3, 3, 3)), max_bytes=MAX_BYTES)
        assert (dealt(rows.part(6)), dealt(rows.part(5)), rows.has_more) == ([4, 2], [4, 1], True)
        assert (dealt(rows.part(5)), rows.has_more) == ([1], False)

    def test_no_rows_are_lost_if_a_part_ends_before_its_rows(self) -> None:
        groups = RowGroups(iter(tables(3, 3, 3, 3)), max_bytes=MAX_BYTES)
        found = []
        while groups.has_more:
            found.append(next(groups.part(100)))
        assert pa.concat_tables(found)["event_index"].to_pylist() == list(range(12))

    def test_without_rows_there_are_no_groups(self) -> None:
        assert RowGroups(iter([]), max_bytes=MAX_BYTES).has_more is False
        assert RowGroups(iter(tables(0, 0)), max_bytes=MAX_BYTES).has_more is False

    @pytest.mark.parametrize(
        ("num_bytes", "read", "expected"),
        [(1, 1, [1, 1, 1, 1, 1]), (2 * marks(0).nbytes, 2, [2, 2, 1]), (10**6, 4, [4, 1])],
    )
    def test_groups_of_large_rows_are_smaller_and_no_further_rows_are_held(
        self, num_bytes: int, read: int, expected: list[int]
    ) -> None:
        waiting = tables(1, 1, 1, 1, 1)
        taken: list[pa.Table] = []

        def reading() -> Iterator[pa.Table]:
            for table in waiting:
                taken.append(table)
                yield table

        groups = RowGroups(reading(), max_bytes=num_bytes).part(100)
        assert taken == []
        first = next(groups)
        assert len(taken) == read
        assert [first.num_rows, *dealt(groups)] == expected

    def test_only_the_rows_of_one_group_are_read_ahead(self) -> None:
        waiting = iter(tables(4, 4, 4))
        rows = RowGroups(waiting, max_bytes=MAX_BYTES)
        assert next(rows.part(100))["event_index"].to_pylist() == [0, 1, 2, 3]
        assert next(waiting)["event_index"].to_pylist() == [4, 5, 6, 7]

    def test_an_exhausted_source_is_not_read_again(self) -> None:
        asked: list[None] = []

        class Once(Iterator[pa.Table]):
            def __next__(self) -> pa.Table:
                asked.append(None)
                if len(asked) == 1:
                    return marks(1)
                raise StopIteration

        rows = RowGroups(Once(), max_bytes=MAX_BYTES)
        assert dealt(rows.part(100)) == [1]
        assert len(asked) == 2


def sealed(logdir: Path, table: pa.Table, *, number: int = 0) -> ManifestEntry:
    (entry,) = seal_parts(logdir, {"mark": [table]}, run_id="r", numbers={"mark": number})
    return entry


class TestReading:
    @pytest.mark.parametrize(
        ("read", "expected"),
        [(1, [[0], [1], [2], [3], [4]]), (3, [[0, 1], [2], [3, 4]])],
        ids=["some", "no-two-groups"],
    )
    def test_rows_of_all_row_groups_and_parts_are_read_in_order(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: int, expected: list[list[int]]
    ) -> None:
        monkeypatch.setattr("tfdbg_arrow.storage.part_files.ROW_GROUP_ROWS", 2)
        monkeypatch.setattr("tfdbg_arrow.storage.part_files._READ_ROWS", read)
        entries = [sealed(tmp_path, table, number=number) for number, table in enumerate(tables(3, 0, 2))]
        found = [group["event_index"].to_pylist() for group in read_rows(tmp_path, entries)]
        assert found == expected

    def test_large_rows_are_read_one_by_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tfdbg_arrow.storage.part_files._READ_BYTES", 1)
        entry = sealed(tmp_path, marks(0, 1))
        found = [group["event_index"].to_pylist() for group in read_rows(tmp_path, [entry])]
        assert found == [[0], [1]]

    def test_a_changed_part_is_not_read(self, tmp_path: Path) -> None:
        entry = sealed(tmp_path, marks(1))
        other = sealed(tmp_path, marks(2))
        with pytest.raises(BrokenPartError) as error:
            list(read_rows(tmp_path, [entry]))
        assert str(error.value) == (
            f"{tmp_path / entry.path} has the SHA-256 {other.sha256}, expected {entry.sha256} as in the manifest: it "
            "was changed after it was written; restore it."
        )
