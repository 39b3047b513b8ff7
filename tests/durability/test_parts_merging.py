"""Test compaction: small parts become a few large parts, and every row keeps its position."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.durability.files_on_disk import failing
from tests.durability.parts_on_disk import events_on_disk, files, marks
from tfdbg_arrow.errors import BrokenPartError
from tfdbg_arrow.schema import arrow_schema
from tfdbg_arrow.storage.layout import manifest_path, part_path
from tfdbg_arrow.storage.manifest import SpoolProgress, spool_progress
from tfdbg_arrow.storage.part_files import RowGroups
from tfdbg_arrow.writer.sink.parts import MERGE_PARTS, TARGET_BYTES, TARGET_ROWS, PartWriter


def made(
    logdir: Path, *, merge_parts: int = 2, kept_parts: int = 1, target_rows: int = 1_000, target_bytes: int = 10**9
) -> PartWriter:
    writer = PartWriter(
        logdir,
        "r",
        merge_parts=merge_parts,
        kept_parts=kept_parts,
        target_rows=target_rows,
        target_bytes=target_bytes,
    )
    writer.start()
    return writer


def path(number: int) -> str:
    return part_path("mark", run_id="r", number=number)


def rows(writer: PartWriter) -> list[int]:
    """Returns the number of rows of each part of mark."""
    return [entry.rows for entry in writer.parts("mark")]


def num_lines(logdir: Path) -> int:
    return len((logdir / manifest_path("r")).read_text().splitlines())


class TestSmallParts:
    def test_small_parts_are_merged_and_merged_parts_are_merged_again(self, tmp_path: Path) -> None:
        writer = made(tmp_path)
        merged: list[tuple[bool, list[int]]] = []
        for event in range(9):
            writer.write("mark", marks(event))
            merged.append((writer.merge_small("mark"), rows(writer)))
        assert merged == [
            (False, [1]),
            (False, [1, 1]),
            (True, [3]),
            (False, [3, 1]),
            (False, [3, 1, 1]),
            (True, [3, 3]),
            (False, [3, 3, 1]),
            (False, [3, 3, 1, 1]),
            (True, [9]),
        ]
        assert (events_on_disk(tmp_path), len(files(tmp_path))) == (list(range(9)), 1)
        assert writer.settled() == frozenset()

    def test_a_table_without_parts_is_not_merged(self, tmp_path: Path) -> None:
        assert made(tmp_path).merge_small("mark") is False

    def test_large_parts_are_not_merged(self, tmp_path: Path) -> None:
        writer = made(tmp_path, target_rows=10)
        for event in range(6):
            writer.write("mark", marks(event, event))
            writer.merge_small("mark")
        assert rows(writer) == [6, 6]
        assert writer.settled() == {entry.path for entry in writer.parts("mark")}
        for event in range(6, 9):
            writer.write("mark", marks(event, event))
        assert writer.merge_small("mark") is True
        assert rows(writer) == [6, 6, 6]

    def test_the_default_bounds_are_64_parts_five_million_rows_and_128_mib(self, tmp_path: Path) -> None:
        assert (MERGE_PARTS, TARGET_ROWS, TARGET_BYTES) == (64, 5_000_000, 128 * 2**20)
        writer = PartWriter(tmp_path, "r")
        writer.start()
        for event in range(64):
            writer.write("mark", marks(event))
        assert writer.merge_small("mark") is False
        writer.write("mark", marks(64))
        assert writer.merge_small("mark") is True
        assert rows(writer) == [65]


class TestChosenParts:
    def test_merged_parts_become_one_part_in_their_place(self, tmp_path: Path) -> None:
        writer = made(tmp_path)
        entries = [writer.write("mark", marks(event)) for event in range(4)]
        (merged,) = writer.merge("mark", [entries[1].path, entries[2].path])
        assert writer.parts("mark") == (entries[0], merged, entries[3])
        assert (merged.rows, merged.min_event_index, merged.max_event_index) == (2, 1, 2)
        assert num_lines(tmp_path) == 5
        last = json.loads((tmp_path / manifest_path("r")).read_text().splitlines()[-1])
        assert last["removed"] == [entries[1].path, entries[2].path]

    def test_a_merged_part_may_be_merged_again_unless_it_is_large(self, tmp_path: Path) -> None:
        writer = made(tmp_path, target_rows=8)
        entries = [writer.write("mark", marks(event)) for event in range(4)]
        (one,) = writer.merge("mark", [entry.path for entry in entries[:2]])
        assert writer.settled() == frozenset()
        (two,) = writer.merge("mark", [one.path, entries[2].path, entries[3].path])
        assert writer.settled() == {two.path}

    def test_a_merged_part_counts_as_one_small_part(self, tmp_path: Path) -> None:
        writer = made(tmp_path)
        entries = [writer.write("mark", marks(event)) for event in range(2)]
        writer.merge("mark", [entry.path for entry in entries])
        writer.write("mark", marks(2))
        assert writer.merge_small("mark") is False
        writer.write("mark", marks(3))
        assert writer.merge_small("mark") is True
        assert rows(writer) == [4]

    def test_many_rows_become_several_parts(self, tmp_path: Path) -> None:
        writer = made(tmp_path, target_rows=3)
        entries = [writer.write("mark", marks(2 * event, 2 * event + 1)) for event in range(4)]
        found = writer.merge("mark", [entry.path for entry in entries])
        assert [entry.rows for entry in found] == [3, 3, 2]
        assert events_on_disk(tmp_path) == list(range(8))

    def test_parts_without_rows_become_one_part_without_rows(self, tmp_path: Path) -> None:
        writer = made(tmp_path)
        entries = [writer.write("mark", marks()) for _ in range(2)]
        (merged,) = writer.merge("mark", [entry.path for entry in entries])
        assert (merged.rows, files(tmp_path)) == (0, ["part-000002.parquet"])


class TestCompact:
    def test_compaction_does_not_count_as_recovery(self, tmp_path: Path) -> None:
        """If compaction counted as recovery, readers would ignore the spool of a process that is killed later."""
        writer = made(tmp_path)
        for event in range(3):
            writer.write("mark", marks(event), spool_upto=event)
        writer.compact("mark")
        assert num_lines(tmp_path) == 4
        manifest = tmp_path / manifest_path("r")
        progress = spool_progress(manifest.read_text(), run_id="r", path=manifest)
        assert progress == SpoolProgress(by_table={"mark": 2}, events=0, is_recovered=False)

    def test_all_parts_become_one_and_no_empty_part_stays(self, tmp_path: Path) -> None:
        writer = made(tmp_path)
        for events in ((), (0, 1), (2,), (), (3,)):
            writer.write("mark", marks(*events))
        writer.drop_empty()
        writer.compact("mark")
        assert (rows(writer), events_on_disk(tmp_path), len(files(tmp_path))) == ([4], [0, 1, 2, 3], 1)
        assert writer.settled() == {writer.parts("mark")[0].path}

    def test_few_parts_stay_and_more_become_one(self, tmp_path: Path) -> None:
        for num_parts, expected in ((3, [1, 1, 1]), (4, [4])):
            writer = made(tmp_path / str(num_parts), kept_parts=3)
            for event in range(num_parts):
                writer.write("mark", marks(event))
            assert writer.num_rows_to_compact("mark") == (0 if num_parts == 3 else 4)
            writer.compact("mark")
            assert rows(writer) == expected

    def test_a_single_part_stays_as_it_is(self, tmp_path: Path) -> None:
        writer = made(tmp_path)
        entry = writer.write("mark", marks(0))
        writer.compact("mark")
        assert (writer.parts("mark"), num_lines(tmp_path)) == ((entry,), 1)

    def test_one_line_of_the_manifest_drops_the_empty_parts_of_all_tables_with_rows(self, tmp_path: Path) -> None:
        writer = made(tmp_path)
        without_rows = {table: writer.write(table, arrow_schema(table).empty_table()) for table in ("run", "mark")}
        writer.write("device", arrow_schema("device").empty_table())
        device = pa.Table.from_pylist(
            [{"run_id": "r", "device_id": 0, "device_name": "CPU:0"}], schema=arrow_schema("device")
        )
        with_rows = {"device": writer.write("device", device), "mark": writer.write("mark", marks(0))}
        writer.drop_empty()
        assert num_lines(tmp_path) == 6
        assert {table: writer.parts(table) for table in writer.tables} == {
            "run": (without_rows["run"],),
            **{table: (entry,) for table, entry in with_rows.items()},
        }
        writer.drop_empty()
        assert num_lines(tmp_path) == 6, "nothing is left to drop"

    def test_empty_parts_are_merged_into_one(self, tmp_path: Path) -> None:
        writer = made(tmp_path)
        for _ in range(2):
            writer.write("mark", marks())
        writer.compact("mark")
        assert (rows(writer), files(tmp_path)) == ([0], ["part-000002.parquet"])

    def test_parts_are_merged_on_both_sides_of_a_large_part(self, tmp_path: Path) -> None:
        writer = made(tmp_path, target_rows=10)
        for events in ((0,), (1, 2), (3, 4, 5, 6, 7), (8,), (9,)):
            writer.write("mark", marks(*events))
        writer.compact("mark")
        assert (rows(writer), len(files(tmp_path))) == ([3, 5, 2], 3)
        assert [entry.min_event_index for entry in writer.parts("mark")] == [0, 3, 8]

    def test_parts_with_many_bytes_are_not_merged(self, tmp_path: Path) -> None:
        size = made(tmp_path / "first").write("mark", marks(0)).bytes
        for target, expected in ((32 * size, [1, 1]), (32 * size + 32, [2])):
            writer = made(tmp_path / str(target), target_bytes=target)
            for event in range(2):
                writer.write("mark", marks(event))
            writer.compact("mark")
            assert rows(writer) == expected

    def test_parts_that_were_written_large_are_not_merged_during_the_run(self, tmp_path: Path) -> None:
        size = made(tmp_path / "first").write("mark", marks(0)).bytes
        for target, expected in ((32 * size, [1, 1, 1]), (32 * size + 32, [3])):
            writer = made(tmp_path / str(target), target_bytes=target, merge_parts=2)
            for event in range(3):
                writer.write("mark", marks(event))
            assert writer.merge_small("mark") is (expected == [3])
            assert rows(writer) == expected

    def test_a_merged_part_ends_at_the_maximum_number_of_bytes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tfdbg_arrow.storage.part_files.ROW_GROUP_ROWS", 1)
        writer = made(tmp_path)
        for event in range(3):
            writer.write("mark", marks(event))
        writer._target_bytes = 5
        paths = [entry.path for entry in writer.parts("mark")]
        assert [entry.rows for entry in writer.merge("mark", paths)] == [1, 1, 1]
        assert events_on_disk(tmp_path) == [0, 1, 2]

    def test_parts_of_other_tables_stay(self, tmp_path: Path) -> None:
        writer = made(tmp_path)
        for table in ("mark", "run"):
            for _ in range(2):
                writer.write(table, arrow_schema(table).empty_table())
        writer.compact("mark")
        assert writer.tables == ("mark", "run")
        assert (len(writer.parts("mark")), len(writer.parts("run"))) == (1, 2)


class TestFailures:
    @pytest.mark.parametrize("after", range(5))
    def test_a_failed_merge_changes_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
        """Writing two parts and a line takes five syncs."""
        writer = made(tmp_path, target_rows=4)
        for event in range(6):
            writer.write("mark", marks(event))
        before, parts = files(tmp_path), writer.parts("mark")
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", failing(after=after, instead_of=os.fsync))
            with pytest.raises(OSError, match="No space"):
                writer.compact("mark")
        assert (files(tmp_path), writer.parts("mark")) == (before, parts)
        assert list((tmp_path / "spool").iterdir()) == []
        writer.compact("mark")
        assert (events_on_disk(tmp_path), rows(writer)) == ([0, 1, 2, 3, 4, 5], [4, 2])

    def test_a_merge_that_loses_rows_fails_and_keeps_the_parts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Forgetful(RowGroups):
            def part(self, max_rows: int) -> Iterator[pa.Table]:
                pieces = list(super().part(max_rows))
                yield from pieces[:-1]

        writer = made(tmp_path)
        for event in range(3):
            writer.write("mark", marks(event))
        before = files(tmp_path)
        with monkeypatch.context() as patched:
            patched.setattr("tfdbg_arrow.writer.sink.parts.RowGroups", Forgetful)
            with pytest.raises(OSError, match="merging") as error:
                writer.compact("mark")
        assert str(error.value) == "merging parts of mark gave 0 rows, expected 3; the parts are kept"
        assert (files(tmp_path), events_on_disk(tmp_path)) == (before, [0, 1, 2])

    def test_a_merge_of_a_changed_part_fails_and_keeps_the_parts(self, tmp_path: Path) -> None:
        writer = made(tmp_path)
        entries = [writer.write("mark", marks(event)) for event in range(3)]
        content = bytearray((tmp_path / entries[2].path).read_bytes())
        content[50] ^= 1
        (tmp_path / entries[2].path).write_bytes(content)
        before = files(tmp_path)
        for merge in (writer.compact, writer.merge_small):
            with pytest.raises(BrokenPartError, match=r"part-000002\.parquet has the SHA-256"):
                merge("mark")
        assert (files(tmp_path), writer.parts("mark")) == (before, tuple(entries))
