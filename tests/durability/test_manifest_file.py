"""Test the manifest file: for every behaviour of the disk, a line is there completely or not at all."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from tests.durability.files_on_disk import failing, num_descriptors, synced
from tfdbg_arrow.storage.disk import sync, write_whole
from tfdbg_arrow.storage.manifest import (
    ManifestFile,
    checksummed,
    replace_line,
    with_checksum,
)

LINES = [replace_line([f"part {number}"], added=[]) for number in range(3)]


@pytest.fixture
def manifest(tmp_path: Path) -> ManifestFile:
    made = ManifestFile(tmp_path / "logdir/manifest/run1.jsonl")
    made.create()
    return made


def text(manifest: ManifestFile) -> str:
    return manifest.path.read_text()


class TestCreation:
    def test_a_new_manifest_is_empty_and_synced_with_its_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen = synced(monkeypatch)
        manifest = ManifestFile(tmp_path / "logdir/manifest/run1.jsonl")
        manifest.create()
        assert seen == [(manifest.path, b""), (manifest.path.parent, None)]
        ManifestFile(manifest.path.with_name("run2.jsonl")).create()
        assert sorted(path.name for path in manifest.path.parent.iterdir()) == ["run1.jsonl", "run2.jsonl"]

    def test_an_existing_manifest_is_not_changed(self, manifest: ManifestFile) -> None:
        manifest.append(LINES[0])
        before = text(manifest)
        with pytest.raises(FileExistsError):
            ManifestFile(manifest.path).create()
        assert text(manifest) == before


class TestLines:
    def test_each_appended_line_has_a_checksum_and_is_synced(
        self, manifest: ManifestFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen = synced(monkeypatch)
        for line in LINES:
            manifest.append(line)
        whole = [checksummed(LINES[: number + 1]).encode() for number in range(3)]
        assert seen == [(manifest.path, content) for content in whole]
        assert text(manifest) == checksummed(LINES)
        assert manifest.has_leftover is False

    @pytest.mark.parametrize("rest", [b"", b'{"op": "ad', b"\0\0\0\n"])
    def test_another_process_continues_after_the_last_complete_line(self, manifest: ManifestFile, rest: bytes) -> None:
        manifest.append(LINES[0])
        before = text(manifest)
        with open(manifest.path, "ab") as file:
            file.write(rest)
        resumed = ManifestFile(manifest.path)
        assert resumed.resume() == before
        assert manifest.path.read_bytes() == before.encode() + rest, "reading must change nothing"
        resumed.append(LINES[1])
        resumed.append(LINES[2])
        assert text(manifest) == checksummed(LINES)

    def test_a_missing_last_newline_is_restored(self, manifest: ManifestFile) -> None:
        manifest.append(LINES[0])
        manifest.path.write_text(text(manifest).removesuffix("\n"))
        resumed = ManifestFile(manifest.path)
        assert resumed.resume() == checksummed(LINES[:1]).removesuffix("\n")
        resumed.append(LINES[1])
        resumed.append(LINES[2])
        assert text(manifest) == checksummed(LINES)

    def test_an_empty_manifest_can_be_resumed(self, manifest: ManifestFile) -> None:
        resumed = ManifestFile(manifest.path)
        assert resumed.resume() == ""
        resumed.append(LINES[0])
        assert text(manifest) == with_checksum(LINES[0])

    def test_a_missing_manifest_cannot_be_resumed(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            ManifestFile(tmp_path / "run1.jsonl").resume()

    def test_resuming_does_not_check_for_valid_utf8(self, manifest: ManifestFile) -> None:
        manifest.path.write_bytes(b'{"a": "\xff"}\n')
        assert ManifestFile(manifest.path).resume() == '{"a": "\ufffd"}\n'


class TestFailures:
    def test_a_line_that_cannot_be_synced_is_taken_back(
        self, manifest: ManifestFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        manifest.append(LINES[0])
        before = text(manifest)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", failing())
            with pytest.raises(OSError, match="No space"):
                manifest.append(LINES[1])
        assert (text(manifest), manifest.has_leftover) == (before, False)
        manifest.append(LINES[1])
        assert text(manifest) == checksummed(LINES[:2])

    def test_a_half_written_line_is_taken_back(self, manifest: ManifestFile, monkeypatch: pytest.MonkeyPatch) -> None:
        def half(file: io.FileIO, data: bytes) -> None:
            file.write(data[: len(data) // 2])
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr("tfdbg_arrow.storage.manifest.write_whole", half)
            with pytest.raises(OSError, match="No space"):
                manifest.append(LINES[0])
        assert (text(manifest), manifest.has_leftover) == ("", False)

    def test_a_line_whose_write_was_interrupted_is_taken_back(
        self, manifest: ManifestFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(descriptor: int) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", interrupted)
            with pytest.raises(KeyboardInterrupt):
                manifest.append(LINES[0])
        assert (text(manifest), manifest.has_leftover) == ("", False)

    def test_a_line_that_cannot_be_taken_back_is_reported_and_overwritten_by_the_next(
        self, manifest: ManifestFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        manifest.append(LINES[0])

        class Stubborn(io.FileIO):
            """Fails to truncate after the first write."""

            written = False

            def write(self, data: bytes) -> int:  # type: ignore[override]
                self.written = True
                return super().write(data)

            def truncate(self, size: int | None = None) -> int:
                if self.written:
                    raise OSError(5, "Input/output error")
                return super().truncate(size)

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", failing())
            patched.setattr(
                "tfdbg_arrow.storage.manifest.open",
                lambda path, mode, buffering: Stubborn(path, "r+"),
                raising=False,
            )
            with pytest.raises(OSError, match="No space"):
                manifest.append(replace_line(["a longer line than the next one"], added=[]))
        assert manifest.has_leftover is True
        assert len(text(manifest).splitlines()) == 2
        manifest.append(LINES[1])
        assert (text(manifest), manifest.has_leftover) == (checksummed(LINES[:2]), False)

    def test_a_manifest_that_cannot_be_opened_gets_no_line(
        self, manifest: ManifestFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kept = manifest.path.rename(manifest.path.with_suffix(".kept"))
        with pytest.raises(FileNotFoundError):
            manifest.append(LINES[0])
        assert manifest.has_leftover is False
        kept.rename(manifest.path)
        manifest.append(LINES[0])
        assert text(manifest) == checksummed(LINES[:1])


class SlowFile(io.RawIOBase):
    """Takes a few bytes at a time, and sometimes none."""

    def __init__(self) -> None:
        self.content = b""
        self.num_writes = 0

    def write(self, data: bytes) -> int | None:  # type: ignore[override]
        self.num_writes += 1
        if self.num_writes % 2:
            return None
        self.content += bytes(data[:3])
        return len(data[:3])


@pytest.mark.parametrize("data", [b"", b"abc", memoryview(b"0123456789")])
def test_short_writes_are_continued(data: bytes | memoryview) -> None:
    file = SlowFile()
    write_whole(file, data)
    assert file.content == bytes(data)


def test_a_directory_is_synced_and_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, before = synced(monkeypatch), num_descriptors()
    sync(tmp_path)
    assert seen == [(tmp_path, None)]
    monkeypatch.setattr(os, "fsync", failing())
    with pytest.raises(OSError, match="No space"):
        sync(tmp_path)
    assert num_descriptors() == before
