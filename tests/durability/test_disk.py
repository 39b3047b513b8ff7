"""Test the operations on files: writing a complete file, locking a file, and freeing its blocks."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import sys
from pathlib import Path

import pytest

from tests.durability.files_on_disk import failing, num_descriptors, synced
from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.storage import disk
from tfdbg_arrow.storage.disk import lock_directory, lock_file, locked_directory, punch_hole, written_whole


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


class TestWrittenWhole:
    def test_a_file_appears_when_it_is_complete_and_synced(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "file"
        seen = synced(monkeypatch)
        with written_whole(path) as temporary:
            temporary.write_text("new")
            assert not path.exists()
            assert temporary.parent == path.parent
        assert path.read_text() == "new"
        assert names(path.parent) == ["file"]
        assert seen == [(temporary, b"new"), (path.parent, None)]

    def test_each_temporary_name_is_new(self, tmp_path: Path) -> None:
        with written_whole(tmp_path / "file") as first, written_whole(tmp_path / "file") as second:
            assert first != second
            first.write_text("1")
            second.write_text("2")
        assert (tmp_path / "file").read_text() == "1"

    def test_a_file_is_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("old")
        with written_whole(tmp_path / "file") as temporary:
            temporary.write_text("new")
        assert (tmp_path / "file").read_text() == "new"

    @pytest.mark.parametrize("old", [None, (), ("a", "c")])
    def test_a_directory_is_replaced_with_all_its_files(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: tuple[str, ...] | None
    ) -> None:
        path = tmp_path / "out"
        if old is not None:
            path.mkdir()
            for name in old:
                (path / name).touch()
        seen = synced(monkeypatch)
        with written_whole(path) as temporary:
            temporary.mkdir()
            (temporary / "a").write_text("A")
            (temporary / "b").write_text("B")
        assert names(tmp_path) == ["out"]
        assert names(path) == ["a", "b"]
        assert sorted(seen) == sorted(
            [(temporary, None), (temporary / "a", b"A"), (temporary / "b", b"B"), (tmp_path, None)]
        )

    def test_a_file_does_not_replace_a_directory(self, tmp_path: Path) -> None:
        path = tmp_path / "out"
        (path / "sub").mkdir(parents=True)
        (path / "sub" / "a").write_text("A")
        with pytest.raises(IsADirectoryError), written_whole(path) as temporary:
            temporary.write_text("new")
        assert (path / "sub" / "a").read_text() == "A"
        assert names(tmp_path) == ["out"]

    def test_an_error_leaves_the_old_file_and_nothing_else(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("old")
        with pytest.raises(ValueError, match="no"), written_whole(tmp_path / "file") as temporary:  # noqa: PT012
            temporary.mkdir()
            temporary.with_name(f"{temporary.name}.wal").touch()
            raise ValueError("no")
        assert names(tmp_path) == ["file"]
        assert (tmp_path / "file").read_text() == "old"

    def test_a_directory_that_cannot_be_replaced_stays(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "out"
        path.mkdir()
        (path / "a").touch()
        monkeypatch.setattr(os, "replace", failing(after=1, instead_of=os.replace))
        with pytest.raises(OSError, match="No space"), written_whole(path) as temporary:
            temporary.mkdir()
        assert names(tmp_path) == ["out"]
        assert names(path) == ["a"]

    @pytest.mark.parametrize("failed", ["unlink", "iterdir"])
    def test_the_first_error_is_raised_if_nothing_can_be_removed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: str
    ) -> None:
        monkeypatch.setattr(os, "replace", failing())
        monkeypatch.setattr(Path, failed, failing(code=errno.EIO))
        with pytest.raises(OSError, match="No space"), written_whole(tmp_path / "file") as temporary:
            temporary.touch()


class TestLocks:
    def test_one_process_at_a_time_holds_a_directory(self, tmp_path: Path) -> None:
        before = num_descriptors()
        with (
            locked_directory(tmp_path),
            pytest.raises(LogdirError, match=f"{tmp_path} is in use: a process records to it"),
        ):
            lock_directory(tmp_path)
        assert num_descriptors() == before
        os.close(lock_directory(tmp_path))

    def test_a_directory_that_cannot_be_opened_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(LogdirError, match=r"cannot be opened \(No such file or directory\)"):
            lock_directory(tmp_path / "missing")

    def test_a_file_system_without_locks_is_accepted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fcntl, "flock", failing(2, code=errno.EOPNOTSUPP))
        descriptor = lock_directory(tmp_path)
        assert not lock_file(descriptor, fcntl.LOCK_EX)
        os.close(descriptor)

    def test_a_lock_that_another_holds_is_told_apart(self, tmp_path: Path) -> None:
        first, second = os.open(tmp_path, os.O_RDONLY), os.open(tmp_path, os.O_RDONLY)
        assert lock_file(first, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            lock_file(second, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.close(first)
        assert lock_file(second, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.close(second)


class TestHoles:
    def test_a_hole_reads_as_zeros_and_keeps_the_size(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"x" * 12288)
        with open(path, "r+b") as file:
            punch_hole(file.fileno(), 0, 4096)
        content = path.read_bytes()
        assert content[4096:] == b"x" * 8192
        assert content[:4096] in (b"\0" * 4096, b"x" * 4096), "the file system may not support it"

    def test_a_system_without_holes_changes_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "platform", "darwin")
        assert disk._find_fallocate() is None
        monkeypatch.setattr(sys, "platform", "linux")
        monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
        assert disk._find_fallocate() is None
        monkeypatch.setattr(disk, "_fallocate", None)
        punch_hole(-1, 0, 4096)
