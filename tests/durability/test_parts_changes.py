"""Test that each change to the parts is one complete line of the manifest, or none."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.durability.files_on_disk import failing, synced
from tests.durability.parts_on_disk import events_on_disk, files, marks
from tfdbg_arrow.schema import arrow_schema
from tfdbg_arrow.storage.layout import manifest_path, part_path
from tfdbg_arrow.storage.manifest import ManifestEntry, ManifestFile
from tfdbg_arrow.writer.sink.parts import PartWriter


@pytest.fixture
def writer(tmp_path: Path) -> PartWriter:
    made = PartWriter(tmp_path, "r", merge_parts=4, kept_parts=1)
    made.start()
    return made


def lines(logdir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (logdir / manifest_path("r")).read_text().splitlines()]


def name(number: int) -> str:
    return f"part-{number:06d}.parquet"


def path(number: int, *, table: str = "mark") -> str:
    return part_path(table, run_id="r", number=number)


class TestLines:
    def test_lines_hold_the_progress_of_the_spool(self, writer: PartWriter, tmp_path: Path) -> None:
        one = writer.write("mark", marks(1), spool_upto=10)
        writer.replace([one.path], {"mark": [marks(2)]}, spool_upto=20, is_recovery=True)
        writer.replace([], {})
        found = [(line["op"], line.get("spool_upto"), line.get("is_recovery")) for line in lines(tmp_path)]
        assert found == [("add", 10, None), ("replace", 20, True), ("replace", None, None)]

    def test_on_change_is_called_after_the_line_is_on_disk(self, tmp_path: Path) -> None:
        told: list[tuple[list[str], list[ManifestEntry], int]] = []

        def note(removed: Sequence[str], added: Sequence[ManifestEntry]) -> None:
            told.append((list(removed), list(added), len(lines(tmp_path))))

        writer = PartWriter(tmp_path, "r", on_change=note)
        writer.start()
        one = writer.write("mark", marks(1))
        two, three = writer.replace([one.path], {"mark": [marks(2)], "run": [arrow_schema("run").empty_table()]})
        writer.drop([two.path])
        assert told == [([], [one], 1), ([one.path], [two, three], 2), ([two.path], [], 3)]


class TestWritingTogether:
    TABLES: Mapping[str, pa.Table] = {"mark": marks(1), "execution": arrow_schema("execution").empty_table()}
    UPTO: Mapping[str, int | None] = {"mark": 10, "execution": None}

    def test_each_part_gets_a_line_and_all_are_synced_at_once(
        self, writer: PartWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen = synced(monkeypatch)
        mark, execution = writer.write_tables(self.TABLES, spool_upto=self.UPTO)
        assert (writer.parts("mark"), writer.parts("execution")) == ((mark,), (execution,))
        added = [(line["op"], line["path"], line.get("spool_upto")) for line in lines(tmp_path)]
        assert added == [("add", mark.path, 10), ("add", execution.path, None)]
        assert len(seen) == 2 + 2 + 1, "two files, two directories and the manifest"
        assert seen[-1][0] == tmp_path / "manifest/r.jsonl"

    @pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
    def test_a_failed_write_changes_nothing(
        self, writer: PartWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", failing(after=number - 1, instead_of=os.fsync))
            with pytest.raises(OSError, match="No space"):
                writer.write_tables(self.TABLES, spool_upto=self.UPTO)
        assert (writer.parts("mark"), writer.parts("execution"), lines(tmp_path)) == ((), (), [])
        assert [*(tmp_path / "spool").iterdir(), *tmp_path.rglob("*.parquet")] == []
        mark, execution = writer.write_tables(self.TABLES, spool_upto=self.UPTO)
        assert [mark.path, execution.path] == [path(1), path(1, table="execution")]


class TestReplacing:
    def test_new_parts_take_the_place_of_the_replaced_parts(self, writer: PartWriter, tmp_path: Path) -> None:
        entries = [writer.write("mark", marks(event)) for event in range(4)]
        (new,) = writer.replace([entries[1].path, entries[2].path], {"mark": [marks(9)]})
        assert writer.parts("mark") == (entries[0], new, entries[3])
        assert sorted(events_on_disk(tmp_path)) == [0, 3, 9]
        assert files(tmp_path) == [name(0), name(3), name(4)]
        writer.compact("mark")
        assert events_on_disk(tmp_path) == [0, 9, 3], "merged in the order of the parts"

    def test_parts_that_replace_nothing_come_last(self, writer: PartWriter) -> None:
        one = writer.write("mark", marks(1))
        (two,) = writer.replace([], {"mark": [marks(2)]})
        assert writer.parts("mark") == (one, two)

    def test_parts_may_be_replaced_by_parts_of_other_tables(self, writer: PartWriter, tmp_path: Path) -> None:
        one = writer.write("mark", marks(1))
        made = writer.replace(
            [one.path],
            {"run": [arrow_schema("run").empty_table()], "execution": [arrow_schema("execution").empty_table()]},
        )
        assert [entry.table for entry in made] == ["run", "execution"]
        assert (writer.parts("mark"), writer.parts("run"), writer.parts("execution")) == ((), made[:1], made[1:])
        assert files(tmp_path) == []

    @pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
    def test_a_failed_replacement_changes_nothing(
        self, writer: PartWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        """Writing two parts and a line takes five syncs."""
        one = writer.write("mark", marks(1))
        tables = {"mark": [marks(2)], "execution": [arrow_schema("execution").empty_table()]}
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", failing(after=number - 1, instead_of=os.fsync))
            with pytest.raises(OSError, match="No space"):
                writer.replace([one.path], tables)
        assert writer.parts("mark") == (one,)
        assert (events_on_disk(tmp_path), files(tmp_path)) == ([1], [name(0)])
        assert list((tmp_path / "spool").iterdir()) == []
        execution = tmp_path / "execution/run=r"
        assert not execution.exists() or list(execution.iterdir()) == []
        made = writer.replace([one.path], tables)
        assert [entry.path for entry in made] == [path(2), path(1, table="execution")]

    def test_a_replacement_with_unreadable_rows_changes_nothing(self, writer: PartWriter, tmp_path: Path) -> None:
        def broken() -> Iterator[pa.Table]:
            yield marks(2)
            raise KeyboardInterrupt

        one = writer.write("mark", marks(1))
        with pytest.raises(KeyboardInterrupt):
            writer.replace([one.path], {"run": [arrow_schema("run").empty_table()], "mark": broken()})
        assert (events_on_disk(tmp_path), files(tmp_path)) == ([1], [name(0)])
        assert list((tmp_path / "run/run=r").iterdir()) == []


class TestDropping:
    def test_dropped_parts_and_their_rows_are_gone(self, writer: PartWriter, tmp_path: Path) -> None:
        one, two = (writer.write("mark", marks(event)) for event in range(2))
        writer.drop([one.path])
        assert (writer.parts("mark"), events_on_disk(tmp_path), files(tmp_path)) == ((two,), [1], [name(1)])
        last = lines(tmp_path)[-1]
        assert (last["op"], last["removed"], last["added"]) == ("replace", [one.path], [])

    def test_restored_parts_are_live_again_and_not_merged(self, writer: PartWriter, tmp_path: Path) -> None:
        one, two = (writer.write("mark", marks(event)) for event in range(2))
        (merged,) = writer.merge("mark", [one.path, two.path])
        writer.drop([merged.path], restored=[one, two])
        assert writer.parts("mark") == (one, two)
        assert writer.settled() == {one.path, two.path}
        assert files(tmp_path) == [], "the restored files are elsewhere"

    def test_parts_stay_if_the_manifest_cannot_be_written(
        self, writer: PartWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = writer.write("mark", marks(1))
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", failing())
            with pytest.raises(OSError, match="No space"):
                writer.drop([one.path])
        assert (writer.parts("mark"), events_on_disk(tmp_path)) == ((one,), [1])


class TestReleasedFiles:
    def test_released_parts_stay_live_and_are_never_merged(self, writer: PartWriter, tmp_path: Path) -> None:
        entries = [writer.write("mark", marks(event)) for event in range(4)]
        writer.release({entries[1].path})
        assert files(tmp_path) == [name(0), name(2), name(3)]
        assert writer.parts("mark") == tuple(entries)
        assert writer.settled() == {entries[1].path}
        writer.compact("mark")
        assert [entry.rows for entry in writer.parts("mark")] == [1, 1, 2]
        assert writer.parts("mark")[:2] == (entries[0], entries[1])

    def test_parts_of_other_tables_are_not_settled(self, writer: PartWriter) -> None:
        entry = writer.write("run", arrow_schema("run").empty_table())
        writer.write("mark", marks(1))
        writer.release({entry.path})
        assert writer.settled() == {entry.path}


class TestFilesThatCannotBeRemoved:
    def test_files_are_removed_with_the_next_line(
        self, writer: PartWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, two = (writer.write("mark", marks(event)) for event in range(2))
        with monkeypatch.context() as patched:
            patched.setattr(os, "unlink", failing(100, code=errno.EBUSY))
            writer.drop([one.path])
            writer.sweep()
            assert files(tmp_path) == [name(0), name(1)]
        writer.write("run", arrow_schema("run").empty_table())
        assert files(tmp_path) == [name(1)]
        assert writer.parts("mark") == (two,)

    def test_files_are_removed_once_by_a_sweep(self, writer: PartWriter, tmp_path: Path) -> None:
        one = writer.write("mark", marks(1))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(os, "unlink", failing(100))
            writer.drop([one.path])
        writer.sweep()
        assert files(tmp_path) == []
        (tmp_path / one.path).touch()
        writer.sweep()
        assert files(tmp_path) == [name(0)], "the file belongs to somebody else by then"

    def test_a_missing_file_does_not_keep_the_others(self, writer: PartWriter, tmp_path: Path) -> None:
        entries = [writer.write("mark", marks(event)) for event in range(3)]
        (tmp_path / entries[0].path).unlink()
        writer.drop([entry.path for entry in entries])
        assert files(tmp_path) == []

    def test_a_file_that_cannot_be_removed_does_not_keep_the_others(
        self, writer: PartWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entries = [writer.write("mark", marks(event)) for event in range(3)]
        with monkeypatch.context() as patched:
            patched.setattr(os, "unlink", failing(instead_of=os.unlink))
            writer.drop([entry.path for entry in entries])
        assert files(tmp_path) == [name(0)]


class TestLineThatCannotBeTakenBack:
    """A line could not be synced or removed. The parts that this line names must stay until there is another line."""

    @pytest.fixture
    def stuck(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
        append = ManifestFile.append
        is_stuck = [True]

        def stuck_append(self: ManifestFile, line: str) -> None:
            if is_stuck[0]:
                self.has_leftover = True
                raise OSError(errno.EIO, "Input/output error")
            append(self, line)

        monkeypatch.setattr(ManifestFile, "append", stuck_append)
        return lambda: is_stuck.__setitem__(0, False)

    def test_the_parts_of_the_line_stay_until_the_next_line(
        self, writer: PartWriter, tmp_path: Path, stuck: Callable[[], None]
    ) -> None:
        for write in (
            lambda: writer.write("mark", marks(1)),
            lambda: writer.replace([], {"mark": [marks(2)]}),
        ):
            with pytest.raises(OSError, match="Input/output"):
                write()
        writer.sweep()
        assert files(tmp_path) == [name(0), name(1)]
        assert writer.parts("mark") == ()
        stuck()
        entry = writer.write("mark", marks(3))
        assert (files(tmp_path), entry.path) == ([name(2)], path(2))
        assert events_on_disk(tmp_path) == [3]
