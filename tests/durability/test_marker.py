from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.durability.files_on_disk import failing, synced
from tfdbg_arrow.errors import FormatVersionError, LogdirError
from tfdbg_arrow.schema import FORMAT_VERSION
from tfdbg_arrow.storage.layout import MARKER_NAME
from tfdbg_arrow.storage.manifest import with_checksum
from tfdbg_arrow.storage.marker import check_logdir, mark_logdir, marker_text, parse_marker


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def test_a_complete_marker_makes_a_directory_a_logdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logdir = tmp_path / "a/logdir"
    seen = synced(monkeypatch)
    mark_logdir(logdir)
    assert names(logdir) == [MARKER_NAME]
    assert (logdir / MARKER_NAME).read_text() == marker_text()
    (file, content), directory = seen
    assert (file.parent, file.name[: len(MARKER_NAME) + 1]) == (logdir, f".{MARKER_NAME}")
    assert content == marker_text().encode(), "synced before it is renamed"
    assert directory == (logdir, None)


def test_the_marker_of_a_logdir_is_not_rewritten(tmp_path: Path) -> None:
    mark_logdir(tmp_path)
    before = (tmp_path / MARKER_NAME).stat()
    mark_logdir(tmp_path)
    after = (tmp_path / MARKER_NAME).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_marker_of_another_format_or_with_damage_is_not_overwritten(tmp_path: Path) -> None:
    marker = tmp_path / MARKER_NAME
    marker.write_text('{"format": "tfdbg_arrow", "format_version": "99.0"}')
    with pytest.raises(FormatVersionError, match=r"99\.0") as error:
        mark_logdir(tmp_path)
    assert str(marker) in str(error.value)
    marker.write_text("é")
    with pytest.raises(LogdirError, match="is not JSON") as damaged:
        mark_logdir(tmp_path)
    assert str(damaged.value).startswith(str(marker))
    assert marker.read_text() == "é"


def test_a_marker_with_invalid_utf8_counts_as_damaged(tmp_path: Path) -> None:
    marker = tmp_path / MARKER_NAME
    marker.write_bytes(b"\xff")
    with pytest.raises(LogdirError, match="is not JSON") as error:
        mark_logdir(tmp_path)
    assert str(error.value).startswith(str(marker))
    assert marker.read_bytes() == b"\xff"


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_marker_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(os, name, failing())
    with pytest.raises(OSError, match="No space"):
        mark_logdir(tmp_path)
    assert names(tmp_path) == []


def test_the_first_error_is_raised_if_a_half_written_marker_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "replace", failing())
    monkeypatch.setattr(Path, "unlink", failing(code=errno.EIO))
    with pytest.raises(OSError, match="No space"):
        mark_logdir(tmp_path)


@pytest.mark.parametrize(
    ("marker", "match"),
    [
        ("[]", r"holds \[\], expected .*this is not the marker of a logdir"),
        ('{"format": "other"}', "this is not the marker of a logdir"),
        ('{"format": "tfdbg_arrow", "format_version": 1}', "has the format_version 1, expected a string"),
        (marker_text().replace(FORMAT_VERSION, "2.0"), "does not match its checksum"),
        ('{"format": "tfdbg_arrow", "format_version": "2.0"}', "does not match its checksum"),
    ],
)
def test_a_marker_with_other_content_is_refused(tmp_path: Path, marker: str, match: str) -> None:
    (tmp_path / MARKER_NAME).write_text(marker)
    with pytest.raises(LogdirError, match=match) as error:
        check_logdir(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / MARKER_NAME} ")


def test_the_version_of_a_marker_is_returned() -> None:
    assert parse_marker(marker_text(), path="x") == FORMAT_VERSION
    older = with_checksum('{"format": "tfdbg_arrow", "format_version": "2.0"}\n')
    assert parse_marker(older, path="x") == "2.0"


class TestCheckLogdir:
    def test_a_logdir_is_accepted(self, tmp_path: Path) -> None:
        mark_logdir(tmp_path)
        check_logdir(tmp_path)

    @pytest.mark.parametrize(
        ("names", "match"),
        [
            (None, "does not exist; give the directory"),
            ((), "is an empty directory; give the directory"),
            (("a",), f"is not a logdir of tfdbg_arrow: it has no {MARKER_NAME}"),
            (("tfdbg_events.1.graphs", "a.metadata"), f"it has no {MARKER_NAME}"),
            (("tfdbg_events.1.metadata",), "holds dumps of TensorFlow's Debugger V2"),
        ],
    )
    def test_another_directory_is_refused(self, tmp_path: Path, names: tuple[str, ...] | None, match: str) -> None:
        path = tmp_path / "logdir"
        if names is not None:
            path.mkdir()
        for name in names or ():
            (path / name).touch()
        with pytest.raises(LogdirError, match=match) as error:
            check_logdir(path)
        assert str(error.value).startswith(str(path))

    def test_a_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(LogdirError, match="is a file; give the directory"):
            check_logdir(tmp_path / "file")

    def test_a_marker_outside_the_directory_is_not_read(self, tmp_path: Path) -> None:
        mark_logdir(tmp_path / "other")
        (tmp_path / "logdir").mkdir()
        (tmp_path / "logdir" / MARKER_NAME).symlink_to(tmp_path / "other" / MARKER_NAME)
        with pytest.raises(LogdirError, match="leads through a symbolic link"):
            check_logdir(tmp_path / "logdir")

    def test_a_directory_that_cannot_be_read_is_an_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Path, "iterdir", failing(code=errno.EACCES))
        with pytest.raises(LogdirError, match=r"cannot be read \(Permission denied\); check its permissions"):
            check_logdir(tmp_path)
