from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.durability.files_on_disk import failing, synced
from tfdbg_arrow.errors import FormatVersionError, LogdirError
from tfdbg_arrow.schema.logdir_layout import MARKER_NAME, marker_text
from tfdbg_arrow.writer.sink.marker import mark_logdir


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def test_a_complete_marker_makes_a_directory_a_logdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logdir = tmp_path / "a/logdir"
    seen = synced(monkeypatch)
    mark_logdir(logdir, "run1")
    assert names(logdir) == [MARKER_NAME]
    assert (logdir / MARKER_NAME).read_text() == marker_text()
    assert seen == [(logdir / f".{MARKER_NAME}.run1", marker_text().encode())], "synced before it is renamed"


def test_the_marker_of_a_logdir_is_not_rewritten(tmp_path: Path) -> None:
    mark_logdir(tmp_path, "run1")
    before = (tmp_path / MARKER_NAME).stat()
    mark_logdir(tmp_path, "run2")
    after = (tmp_path / MARKER_NAME).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_marker_of_another_format_or_with_damage_is_not_overwritten(tmp_path: Path) -> None:
    marker = tmp_path / MARKER_NAME
    marker.write_text('{"format": "tfdbg_arrow", "format_version": "99.0"}')
    with pytest.raises(FormatVersionError, match=r"99\.0") as error:
        mark_logdir(tmp_path, "run1")
    assert str(marker) in str(error.value)
    marker.write_text("é")
    with pytest.raises(LogdirError, match="is not JSON") as damaged:
        mark_logdir(tmp_path, "run1")
    assert str(damaged.value).startswith(str(marker))
    assert marker.read_text() == "é"


def test_a_marker_with_invalid_utf8_counts_as_damaged(tmp_path: Path) -> None:
    marker = tmp_path / MARKER_NAME
    marker.write_bytes(b"\xff")
    with pytest.raises(LogdirError, match="is not JSON") as error:
        mark_logdir(tmp_path, "run1")
    assert str(error.value).startswith(str(marker))
    assert marker.read_bytes() == b"\xff"


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_marker_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(os, name, failing())
    with pytest.raises(OSError, match="No space"):
        mark_logdir(tmp_path, "run1")
    assert names(tmp_path) == []


def test_the_first_error_is_raised_if_a_half_written_marker_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "replace", failing())
    monkeypatch.setattr(Path, "unlink", failing(code=errno.EIO))
    with pytest.raises(OSError, match="No space"):
        mark_logdir(tmp_path, "run1")
