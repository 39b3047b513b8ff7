"""Test resuming the parts of a run whose process died."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.durability.files_on_disk import failing
from tests.durability.parts_on_disk import events_on_disk, files, marks
from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.schema import arrow_schema
from tfdbg_arrow.storage.layout import manifest_path, part_path
from tfdbg_arrow.writer.sink.parts import PartWriter


@pytest.fixture
def writer(tmp_path: Path) -> PartWriter:
    made = PartWriter(tmp_path, "r", merge_parts=4)
    made.start()
    return made


def resumed(logdir: Path) -> PartWriter:
    made = PartWriter(logdir, "r", merge_parts=1)
    made.resume()
    return made


def path(number: int, *, table: str = "mark") -> str:
    return part_path(table, run_id="r", number=number)


def test_live_parts_are_found_and_new_parts_follow_them(writer: PartWriter, tmp_path: Path) -> None:
    entries = [writer.write("mark", marks(event)) for event in range(3)]
    other = writer.write("execution_input", arrow_schema("execution_input").empty_table())
    found = resumed(tmp_path)
    assert found.parts("mark") == tuple(entries)
    assert found.parts("execution_input") == (other,)
    assert (found.parts("run"), found.tables) == ((), ("mark", "execution_input"))
    assert found.write("mark", marks(9)).path == path(3)
    assert found.write("run", arrow_schema("run").empty_table()).path == path(0, table="run")
    assert events_on_disk(tmp_path) == [0, 1, 2, 9]


def test_parts_that_were_found_are_not_merged_again(writer: PartWriter, tmp_path: Path) -> None:
    entries = [writer.write("mark", marks(event)) for event in range(3)]
    found = resumed(tmp_path)
    assert found.settled() == {entry.path for entry in entries}
    assert found.merge_small("mark") is False
    found.compact("mark")
    assert found.parts("mark") == tuple(entries)


def test_a_missing_manifest_is_created(tmp_path: Path) -> None:
    found = resumed(tmp_path)
    assert (tmp_path / manifest_path("r")).read_bytes() == b""
    assert found.write("mark", marks(1)).path == path(0)
    assert events_on_disk(tmp_path) == [1]


@pytest.mark.parametrize("table", ["mark", "tensor_value"])
def test_a_missing_manifest_beside_parts_raises_an_error(tmp_path: Path, table: str) -> None:
    (tmp_path / path(0, table=table)).parent.mkdir(parents=True)
    with pytest.raises(LogdirError) as error:
        resumed(tmp_path)
    assert str(error.value) == (
        f"{tmp_path / manifest_path('r')} is missing, but the run r has parts: restore it from the place where the "
        "recording was made"
    )
    assert not (tmp_path / manifest_path("r")).exists()


def test_parts_that_no_line_names_are_removed_and_their_numbers_not_reused(writer: PartWriter, tmp_path: Path) -> None:
    """A reader may still have removed parts open under their old names."""
    writer.write("mark", marks(1))
    (tmp_path / path(7)).write_bytes(b"no line tells of it")
    (tmp_path / path(4, table="run")).parent.mkdir(parents=True)
    (tmp_path / path(4, table="run")).touch()
    (tmp_path / "mark/run=r/readme").touch()
    found = resumed(tmp_path)
    assert files(tmp_path) == ["part-000000.parquet", "readme"]
    assert list((tmp_path / "run/run=r").iterdir()) == []
    assert found.write("mark", marks(2)).path == path(8)
    assert found.write("run", arrow_schema("run").empty_table()).path == path(5, table="run")


def test_replaced_parts_are_removed_and_their_numbers_not_reused(
    writer: PartWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [writer.write("mark", marks(event)) for event in range(5)]
    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", failing(100))
        writer.drop([entry.path for entry in entries[1:]])
    assert len(files(tmp_path)) == 5
    found = resumed(tmp_path)
    assert files(tmp_path) == ["part-000000.parquet"]
    assert found.write("mark", marks(9)).path == path(5)
    writer.drop([])
    again = resumed(tmp_path)
    assert again.write("mark", marks(10)).path == path(6), "known from the manifest alone, too"


def test_only_temporary_files_of_this_run_are_removed(writer: PartWriter, tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    for name in ("r.mark.000001.tmp", "r.run.000000.tmp", "other.mark.000001.tmp", "r.journal"):
        (tmp_path / "spool" / name).touch()
    resumed(tmp_path)
    assert sorted(file.name for file in (tmp_path / "spool").iterdir()) == ["other.mark.000001.tmp", "r.journal"]


def test_nothing_is_removed_if_the_manifest_is_damaged(writer: PartWriter, tmp_path: Path) -> None:
    writer.write("mark", marks(1))
    (tmp_path / path(7)).touch()
    manifest = tmp_path / manifest_path("r")
    manifest.write_text(manifest.read_text().replace('"rows": 1', '"rows": 2'))
    with pytest.raises(LogdirError, match="line 1, does not match its checksum") as error:
        resumed(tmp_path)
    assert str(error.value).startswith(str(manifest))
    assert files(tmp_path) == ["part-000000.parquet", "part-000007.parquet"]
