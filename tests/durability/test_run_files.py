"""Test the journals of a recording (creating, locking and releasing them) and the check for dead processes."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.durability.files_on_disk import failing, num_descriptors
from tests.durability.test_journal import string_entry
from tfdbg_arrow.spool.circular_buffer import Retention
from tfdbg_arrow.spool.journal import Journal, JournalReader, RunFiles, _machine, held_if_dead, recording_facts
from tfdbg_arrow.storage.layout import SpoolPaths, spool_paths

RUN_ID = "20261120T163000.123456-myhost-4242"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.fixture
def paths(tmp_path: Path) -> SpoolPaths:
    return spool_paths(tmp_path / "logdir", run_id=RUN_ID)


def is_dead(paths: SpoolPaths, *, to_change: bool = False, other_machines: bool = False) -> bool:
    with held_if_dead(paths.journal, to_change=to_change, other_machines=other_machines) as found:
        return found


def left(paths: SpoolPaths, monkeypatch: pytest.MonkeyPatch, *, machine: str = BOOT_ID) -> None:
    """Writes the journals of a dead process."""
    with monkeypatch.context() as patched:
        patched.setattr("tfdbg_arrow.spool.journal._machine", lambda: machine)
        RunFiles(paths, run_id=RUN_ID).close()


def silent_for(paths: SpoolPaths, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(paths.journal, (then, then))


class TestRunFiles:
    def test_the_journal_header_describes_the_recording(self, paths: SpoolPaths) -> None:
        facts = {"run_id": RUN_ID, "machine": BOOT_ID, "pid": os.getpid(), "has_lock": True}
        files = RunFiles(paths, run_id=RUN_ID)
        files.names.append("more", 1)
        assert recording_facts(paths.journal) == {
            **facts,
            "host_name": socket.gethostname(),
            "retention": None,
        }
        assert [entry.data[0] for entry in JournalReader(paths.journal).entries()] == ["recording", "more"]
        files.close()
        files.remove()
        retention = Retention(size=7, num_after=3, only_bad=True)
        files = RunFiles(paths, run_id=RUN_ID, host_name="a host", retention=retention)
        expected = {
            **facts,
            "host_name": "a host",
            "retention": {"size": 7, "num_after": 3, "only_bad": True},
        }
        assert recording_facts(paths.journal) == expected
        files.close()

    def test_names_that_cannot_be_written_are_kept_and_rows_are_not(
        self, paths: SpoolPaths, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files = RunFiles(paths, run_id=RUN_ID)
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", failing(100))
            files.names.append("kept")
            files.rows.append("lost")
        for journal in (files.names, files.rows):
            journal.write_kept()
        assert (files.names.num_unwritten, files.rows.num_unwritten, files.num_unwritten) == (0, 1, 1)
        assert files.rows.path == paths.rows
        files.close()

    def test_removing_the_files_closes_them(self, paths: SpoolPaths) -> None:
        before = num_descriptors()
        files = RunFiles(paths, run_id=RUN_ID)
        assert (num_descriptors(), files.names.path, files.rows.path) == (before + 2, paths.journal, paths.rows)
        files.remove()
        assert num_descriptors() == before
        assert list(paths.journal.parent.iterdir()) == []
        files.remove()

    def test_the_journal_of_names_is_removed_last(self, paths: SpoolPaths, monkeypatch: pytest.MonkeyPatch) -> None:
        files = RunFiles(paths, run_id=RUN_ID)
        unlink, seen = Path.unlink, []

        def noting(path: Path, *, missing_ok: bool = False) -> None:
            seen.append((path, files.names.descriptor >= 0))
            unlink(path, missing_ok=missing_ok)

        monkeypatch.setattr(Path, "unlink", noting)
        files.remove()
        assert seen == [(paths.rows, True), (paths.journal, True)], "the journal of names stays locked until then"

    def test_a_forked_child_abandons_its_copy(self, paths: SpoolPaths) -> None:
        before = num_descriptors()
        files = RunFiles(paths, run_id=RUN_ID)
        files.abandon()
        assert num_descriptors() == before
        assert files.names.append("x") is False
        assert files.rows.append("x") is False

    def test_an_existing_run_is_not_changed(self, paths: SpoolPaths) -> None:
        RunFiles(paths, run_id=RUN_ID).close()
        content = paths.journal.read_bytes()
        with pytest.raises(FileExistsError):
            RunFiles(paths, run_id=RUN_ID)
        assert paths.journal.read_bytes() == content

    def test_journals_that_cannot_be_created_leave_nothing(self, paths: SpoolPaths) -> None:
        paths.rows.parent.mkdir(parents=True)
        paths.rows.touch()
        before = num_descriptors()
        with pytest.raises(FileExistsError):
            RunFiles(paths, run_id=RUN_ID)
        assert num_descriptors() == before
        assert list(paths.rows.parent.iterdir()) == [paths.rows]

    def test_a_header_that_cannot_be_written_raises_an_error(
        self, paths: SpoolPaths, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = num_descriptors()
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", failing(100))
            patched.setattr(Path, "unlink", failing(code=errno.EIO))
            with pytest.raises(OSError, match="cannot be written") as error:
                RunFiles(paths, run_id=RUN_ID)
        assert str(error.value) == (f"{paths.journal} cannot be written: [Errno 28] No space left on device")
        assert num_descriptors() == before

    def test_the_recording_waits_for_a_reader_that_locks_the_new_journal(
        self, paths: SpoolPaths, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A reader holds the lock for a moment while it checks whether the recording process is dead."""
        held = threading.Event()
        opened: list[int] = []
        append = Journal.__init__

        def opened_by_another(self: Journal, path: Path, **options: Any) -> None:
            append(self, path, **options)
            if not opened:
                opened.append(os.open(path, os.O_RDONLY))
                fcntl.flock(opened[0], fcntl.LOCK_SH)
                threading.Timer(0.05, lambda: (held.set(), os.close(opened[0]))).start()

        monkeypatch.setattr(Journal, "__init__", opened_by_another)
        files = RunFiles(paths, run_id=RUN_ID)
        assert held.is_set()
        assert recording_facts(paths.journal)["has_lock"] is True
        files.close()


class TestIsDead:
    def test_without_a_journal_there_is_nothing_to_recover(self, paths: SpoolPaths) -> None:
        assert is_dead(paths) is False
        assert is_dead(paths, to_change=True, other_machines=True) is False

    def test_a_process_counts_as_alive_while_it_holds_its_journal(self, paths: SpoolPaths) -> None:
        files = RunFiles(paths, run_id=RUN_ID)
        for to_change in (False, True):
            assert is_dead(paths, to_change=to_change) is False
            assert is_dead(paths, to_change=to_change, other_machines=True) is False
        files.close()
        before = num_descriptors()
        for to_change in (False, True):
            assert is_dead(paths, to_change=to_change) is True
        assert num_descriptors() == before

    def test_the_check_does_not_wait_for_a_live_process(
        self, paths: SpoolPaths, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("waits"))
        files = RunFiles(paths, run_id=RUN_ID)
        assert is_dead(paths, to_change=True) is False
        files.close()

    def test_many_readers_or_one_writer_can_hold_a_run(
        self, paths: SpoolPaths, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tfdbg_arrow.spool.journal._LOCK_PATIENCE_S", 0.0)
        left(paths, monkeypatch)
        with held_if_dead(paths.journal, to_change=False) as one:
            assert (one, is_dead(paths), is_dead(paths, to_change=True)) == (True, True, False)
        with held_if_dead(paths.journal, to_change=True) as one:
            assert (one, is_dead(paths), is_dead(paths, to_change=True)) == (True, False, False)
        assert is_dead(paths, to_change=True) is True

    def test_a_writer_waits_half_a_minute_for_readers(self, paths: SpoolPaths, monkeypatch: pytest.MonkeyPatch) -> None:
        left(paths, monkeypatch)
        now, waits = [0.0], []
        monkeypatch.setattr(time, "monotonic", lambda: now[0])

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            now[0] += 10.0

        monkeypatch.setattr(time, "sleep", sleep)
        with held_if_dead(paths.journal, to_change=False):
            assert is_dead(paths, to_change=True) is False
        assert waits == [0.02] * 3
        waits.clear()

        with held_if_dead(paths.journal, to_change=False) as is_read:
            assert is_read
            reader = held_if_dead(paths.journal, to_change=False)
            reader.__enter__()
        monkeypatch.setattr(time, "sleep", lambda seconds: reader.__exit__(None, None, None))
        assert is_dead(paths, to_change=True) is True, "succeeds as soon as the last reader is gone"

    @pytest.mark.parametrize("to_change", [False, True])
    def test_a_lock_on_a_removed_or_replaced_file_does_not_count(
        self, paths: SpoolPaths, monkeypatch: pytest.MonkeyPatch, to_change: bool
    ) -> None:
        lock = fcntl.flock
        for is_replaced in (False, True):
            left(paths, monkeypatch)

            def removed_first(descriptor: int, kind: int, is_replaced: bool = is_replaced) -> None:
                paths.journal.rename(paths.journal.with_suffix(".old"))
                if is_replaced:
                    paths.journal.touch()
                lock(descriptor, kind)

            with monkeypatch.context() as patched:
                patched.setattr(fcntl, "flock", removed_first)
                assert is_dead(paths, to_change=to_change) is False
            paths.rows.unlink()
        assert is_dead(paths, to_change=to_change, other_machines=True) is True

    @pytest.mark.parametrize("to_change", [False, True])
    @pytest.mark.parametrize("machine", ["another", ""])
    def test_a_process_on_another_machine_counts_as_dead_after_ten_silent_minutes(
        self, paths: SpoolPaths, monkeypatch: pytest.MonkeyPatch, machine: str, to_change: bool
    ) -> None:
        left(paths, monkeypatch, machine=machine)
        assert is_dead(paths, to_change=to_change) is False
        assert is_dead(paths, to_change=to_change, other_machines=True) is True
        silent_for(paths, 590)
        assert is_dead(paths, to_change=to_change) is False
        silent_for(paths, 610)
        assert is_dead(paths, to_change=to_change) is True

    def test_without_locks_a_process_counts_as_dead_after_ten_silent_minutes(
        self, paths: SpoolPaths, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fcntl, "flock", failing(1_000, code=errno.EOPNOTSUPP))
        files = RunFiles(paths, run_id=RUN_ID)
        assert recording_facts(paths.journal)["has_lock"] is False
        assert is_dead(paths, to_change=True) is False
        silent_for(paths, 610)
        assert is_dead(paths, to_change=True) is True
        files.touch()
        assert is_dead(paths) is False
        files.close()

    def test_the_lock_is_requested_without_blocking(self, paths: SpoolPaths, monkeypatch: pytest.MonkeyPatch) -> None:
        left(paths, monkeypatch)
        kinds: list[int] = []
        monkeypatch.setattr(fcntl, "flock", lambda descriptor, kind: kinds.append(kind))
        assert is_dead(paths, to_change=True)
        assert is_dead(paths, to_change=False)
        assert kinds == [fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_SH | fcntl.LOCK_NB]

    def test_a_journal_that_cannot_be_opened_raises_an_error(
        self, paths: SpoolPaths, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "open", failing(code=errno.EACCES))
        with pytest.raises(PermissionError):
            is_dead(paths)


class TestFacts:
    @pytest.mark.parametrize(
        "head", [("other", {"has_lock": True}), ("recording", 1), ("recording", {}, 1), ("recording",)]
    )
    def test_another_header_gives_no_facts(self, tmp_path: Path, head: tuple[object, ...]) -> None:
        journal = Journal(tmp_path / "a.journal")
        assert recording_facts(journal.path) == {}
        journal.append(*head)
        journal.append("recording", {"has_lock": True})
        assert recording_facts(journal.path) == {}
        journal.close()

    def test_a_string_is_not_a_header(self, tmp_path: Path) -> None:
        path = tmp_path / "a.journal"
        path.write_bytes(string_entry(0, b"x"))
        assert recording_facts(path) == {}


class TestMachine:
    @pytest.fixture
    def boot_id(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr("tfdbg_arrow.spool.journal._BOOT_ID", tmp_path / "boot_id")
        return tmp_path / "boot_id"

    def test_the_boot_id_identifies_the_machine(self, boot_id: Path) -> None:
        boot_id.write_text("an-id\n")
        assert _machine() == "an-id"

    def test_a_missing_boot_id_gives_an_empty_string(self, boot_id: Path) -> None:
        assert _machine() == ""
        boot_id.write_bytes(b"\xff")
        assert _machine() == ""


def test_a_sign_of_life_that_cannot_be_written_raises_nothing(
    paths: SpoolPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RunFiles(paths, run_id=RUN_ID)
    monkeypatch.setattr(os, "utime", failing())
    files.touch()
    files.close()
