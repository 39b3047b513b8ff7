"""Test finding and reading manifest files, and the files that they name."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.durability.manifests import DAMAGED, RUN, part, sealed
from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.storage.manifest import add_line, read_live_parts, resolve_part, run_ids


class TestManifests:
    def test_the_live_parts_of_a_run_are_read(self, tmp_path: Path) -> None:
        assert read_live_parts(tmp_path, run_id=RUN) == ()
        (tmp_path / "manifest").mkdir()
        (tmp_path / "manifest/run1.jsonl").write_text(sealed(add_line(part(1))))
        assert read_live_parts(tmp_path, run_id=RUN) == (part(1),)

    def test_a_manifest_may_be_a_link_within_the_logdir(self, tmp_path: Path) -> None:
        (tmp_path / "manifest").mkdir()
        (tmp_path / "kept").write_text(sealed(add_line(part(1))))
        (tmp_path / "manifest/run1.jsonl").symlink_to(tmp_path / "kept")
        assert read_live_parts(tmp_path, run_id=RUN) == (part(1),)

    def test_invalid_utf8_is_reported_as_damage(self, tmp_path: Path) -> None:
        path = tmp_path / "manifest/run1.jsonl"
        path.parent.mkdir()
        path.write_bytes(sealed('{"op": "\ufffd"}\n').encode().replace("\ufffd".encode(), b"\xff"))
        with pytest.raises(LogdirError) as error:
            read_live_parts(tmp_path, run_id=RUN)
        assert str(error.value) == f"{path}, line 1, has the op '\ufffd', expected 'add' or 'replace'{DAMAGED}"

    def test_the_error_for_a_manifest_that_is_a_directory_names_it(self, tmp_path: Path) -> None:
        path = tmp_path / "manifest/run1.jsonl"
        path.mkdir(parents=True)
        with pytest.raises(LogdirError) as error:
            read_live_parts(tmp_path, run_id=RUN)
        assert str(error.value) == (
            f"{path} cannot be read (it is a pipe, a device or a directory, expected a file); restore it."
        )

    def test_the_error_for_an_unreadable_manifest_names_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "manifest/run1.jsonl"
        path.parent.mkdir()
        path.touch()

        def fails(_: Path) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(Path, "read_bytes", fails)
        with pytest.raises(LogdirError) as error:
            read_live_parts(tmp_path, run_id=RUN)
        assert str(error.value) == f"{path} cannot be read (Input/output error); check its permissions."

    def test_a_run_id_that_leaves_the_logdir_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(LogdirError, match=r"gives the run id '\.\./run1'") as error:
            read_live_parts(tmp_path, run_id="../run1")
        assert str(error.value).startswith(f"{tmp_path} gives")

    def test_runs_with_a_manifest_are_listed_oldest_first(self, tmp_path: Path) -> None:
        assert run_ids(tmp_path) == ()
        (tmp_path / "manifest").mkdir()
        for name in ("b.jsonl", "a.jsonl", "c.txt", "1.jsonl", ".d.jsonl", "e.jsonl.tmp"):
            (tmp_path / "manifest" / name).touch()
        assert run_ids(tmp_path) == ("a", "b")

    def test_links_of_a_part_are_followed_within_the_logdir(self, tmp_path: Path) -> None:
        logdir, elsewhere = tmp_path / "logdir", tmp_path / "elsewhere"
        for directory in (logdir / "mark/run=run1", logdir / "kept", elsewhere):
            directory.mkdir(parents=True)
        path = logdir / part(1).path
        assert resolve_part(logdir, part(1)) == path.resolve()
        path.symlink_to(logdir / "kept/file")
        assert resolve_part(logdir, part(1)) == (logdir / "kept/file").resolve()
        (tmp_path / "link").symlink_to(logdir)
        assert resolve_part(tmp_path / "link", part(1)) == (logdir / "kept/file").resolve()
        path.unlink()
        path.symlink_to(elsewhere / "file")
        with pytest.raises(LogdirError) as error:
            resolve_part(logdir, part(1))
        assert str(error.value) == (
            f"{path} leads through a symbolic link to {elsewhere.resolve() / 'file'}, expected a file inside "
            f"{logdir.resolve()}; copy the file there if you trust it."
        )
