"""Simulate kills at chosen moments. A kill leaves the same files as a copy of the logdir at that moment."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.recovery.checking import all_rows, check_recovery, copied, tree
from tests.recovery.driver import COUNTERS, RUN_ID, RUN_ROW, Recorder
from tfdbg_arrow import open_logdir, recover
from tfdbg_arrow.spool.circular_buffer import Retention
from tfdbg_arrow.storage.layout import manifest_path, spool_paths
from tfdbg_arrow.storage.manifest import ManifestFile
from tfdbg_arrow.writer.recover import _write
from tfdbg_arrow.writer.sink.parts import PartWriter


class Killed(BaseException):
    """Raised at the moment of the simulated kill."""


def counts_of(recorder: Recorder) -> dict[str, int]:
    return dict(zip(COUNTERS, recorder.counters.tolist(), strict=True))


@contextlib.contextmanager
def recording(logdir: Path) -> Iterator[Recorder]:
    """Yields a recorder whose sink writes only when a test calls it."""
    made = Recorder(logdir, np.zeros(len(COUNTERS), np.int64), seed=5)
    made.sink._stop.set()
    made.sink._thread.join()
    try:
        yield made
    finally:
        made.sink.close(run_row=RUN_ROW)
        made.files.remove()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """The logdir of a killed process, with some rows in parts and the others in the spool, and the process's counts."""
    directory = tmp_path_factory.mktemp("killed")
    with recording(directory / "logdir") as recorder:
        for number in range(300):
            recorder.call()
            if number == 150:
                recorder.sink.flush()
        return copied(directory / "logdir", directory / "left"), counts_of(recorder)


@pytest.fixture
def left(tmp_path: Path, killed: tuple[Path, dict[str, int]]) -> tuple[Path, dict[str, int]]:
    """A copy of the logdir of a killed process, and the counts."""
    logdir, counts = killed
    return copied(logdir, tmp_path / "left"), counts


@pytest.mark.slow
def test_a_kill_between_any_two_operations_of_the_sink_neither_loses_nor_duplicates_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies the logdir before each rename, before the lines of the manifest, and each time that slots are released."""
    copies: list[tuple[Path, dict[str, int]]] = []

    def noting(function: Any) -> Any:
        def noted(*args: Any, **kwargs: Any) -> Any:
            if len(copies) < 40:
                copies.append((copied(tmp_path / "logdir", tmp_path / f"copy{len(copies)}"), counts_of(recorder)))
            return function(*args, **kwargs)

        return noted

    def noting_prefixes(append: Any) -> Any:
        """Also copies the logdir with only the first of several lines, as a kill during the write leaves it."""

        def noted(*lines: str) -> None:
            if len(lines) > 1 and len(copies) < 40:
                copy = copied(tmp_path / "logdir", tmp_path / f"copy{len(copies)}")
                manifest = ManifestFile(copy / manifest_path(RUN_ID))
                manifest.resume()
                manifest.append(*lines[: len(copies) % (len(lines) - 1) + 1])
                copies.append((copy, counts_of(recorder)))
            append(*lines)

        return noted

    with recording(tmp_path / "logdir") as recorder:
        sink = recorder.sink
        for number in range(200):
            recorder.call()
            if number == 20:
                monkeypatch.setattr(os, "replace", noting(os.replace))
                monkeypatch.setattr(
                    sink._parts._manifest, "append", noting_prefixes(noting(sink._parts._manifest.append))
                )
                monkeypatch.setattr(sink._spool_use, "release", noting(sink._spool_use.release))
                monkeypatch.setattr(recorder.files.rows, "release", noting(recorder.files.rows.release))
            if number in (40, 65, 90, 140, 199):
                sink.flush()
        monkeypatch.undo()
    assert len(copies) == 40
    for copy, counts in copies:
        check_recovery(copy, **counts)


def test_a_torn_line_of_the_manifest_is_ignored(left: tuple[Path, dict[str, int]]) -> None:
    logdir, counts = left
    with open(logdir / manifest_path(RUN_ID), "ab") as file:
        file.write(b'{"op": "add", "table": "execution", "pa')
    check_recovery(logdir, **counts)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=() if number % 27 == 0 else pytest.mark.exhaustive)  # each takes many seconds
        for number in range(0, 60, 3)
    ],
)
def test_a_recovery_that_was_killed_can_be_repeated(
    left: tuple[Path, dict[str, int]], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recovery dies at the operation with the given number that changes a file."""
    logdir, counts = left
    calls = 0
    gc.collect()  # keeps objects of other tests from removing their files below

    def dying(function: Any) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > number:
                raise Killed
            return function(*args, **kwargs)

        return called

    with monkeypatch.context() as patched:
        for module, name in ((os, "replace"), (os, "fsync"), (Path, "unlink"), (os, "unlink")):
            patched.setattr(module, name, dying(getattr(module, name)))
        with patched.context() as inner:
            inner.setattr(PartWriter, "_discard", lambda self, entries: None)  # a dead process does not clean up
            with contextlib.suppress(Killed):
                recover(logdir)
    with open_logdir(logdir) as opened:
        assert opened.rows("SELECT count(*) FROM execution")[0][0] in (counts["calls"], counts["calls"] + 1)
        assert opened.rows("SELECT count(*) FROM capture_stat") == [(1,)]
    if spool_paths(logdir, run_id=RUN_ID).journal.exists():
        check_recovery(logdir, **counts)


def test_reading_changes_nothing_and_needs_no_write_permission(left: tuple[Path, dict[str, int]]) -> None:
    logdir, counts = left
    before = tree(logdir)
    for path in (logdir, *logdir.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    rows = all_rows(logdir)
    assert len(rows["execution"]) == counts["calls"]
    assert tree(logdir) == before
    for path in (logdir, *logdir.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    check_recovery(logdir, **counts)


def test_a_reader_sees_the_same_rows_during_a_recovery(left: tuple[Path, dict[str, int]]) -> None:
    logdir, _ = left
    question = "SELECT count(*), count(DISTINCT execution_index) FROM execution"
    with open_logdir(logdir) as opened:
        before = opened.rows(question)
        recover(logdir)
        assert opened.rows(question) == before, "answered from the listing made before the recovery"
        opened.refresh()
        assert opened.rows(question) == before


def test_only_one_of_two_concurrent_recoveries_writes(
    left: tuple[Path, dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    logdir, counts = left
    monkeypatch.setattr("tfdbg_arrow.spool.journal._LOCK_PATIENCE_S", 0.05)
    write = _write
    states: list[str] = []

    def slow(*args: Any, **kwargs: Any) -> int:
        if not states:
            states.append("")
            states.extend(run.state for run in recover(logdir))
        return write(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr("tfdbg_arrow.writer.recover._write", slow)
        assert [run.state for run in recover(logdir)] == ["recovered"]
    assert states == ["", "recording"]
    assert len(all_rows(logdir)["execution"]) == counts["calls"]


def test_a_full_disk_is_reported_and_leaves_the_files_as_they_were(
    left: tuple[Path, dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    logdir, counts = left

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        (run,) = recover(logdir)
    assert (run.state, run.num_events) == ("failed", 0)
    assert "No space left" in str(run.reason)
    check_recovery(logdir, **counts)


def test_a_run_without_its_manifest_is_not_treated_as_empty(left: tuple[Path, dict[str, int]]) -> None:
    logdir, _ = left
    (logdir / manifest_path(RUN_ID)).rename(logdir / "kept")
    before = tree(logdir)
    (run,) = recover(logdir)
    assert run.state == "failed"
    assert "is missing, but the run" in str(run.reason)
    assert tree(logdir) == before


def test_a_disk_that_is_full_at_the_end_leaves_the_circular_buffer_in_the_spool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retention = Retention(size=20, num_after=5, only_bad=False)
    made = Recorder(tmp_path / "logdir", np.zeros(len(COUNTERS), np.int64), seed=5, retention=retention)
    for _ in range(60):
        made.call()

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        made.sink.close(run_row=RUN_ROW)
    assert not made.sink.is_all_written
    copy = copied(tmp_path / "logdir", tmp_path / "copy")
    assert [run.state for run in recover(copy)] == ["recovered"]
    assert sorted(row[1] for row in all_rows(copy)["execution"]) == list(range(40, 60))
    made.files.remove()


@pytest.mark.parametrize("only_bad", [False, True])
def test_the_last_events_of_a_circular_buffer_are_recovered(tmp_path: Path, only_bad: bool) -> None:
    made = Recorder(
        tmp_path / "logdir",
        np.zeros(len(COUNTERS), np.int64),
        seed=5,
        retention=Retention(size=20, num_after=5, only_bad=only_bad),
    )
    made.sink._stop.set()
    made.sink._thread.join()
    made.sink._stop.clear()
    for number in range(60):
        made.call()
        if number % 20 == 0:
            with made.sink._lock:
                made.sink._take_all()
                made.sink._write()
    copy = copied(tmp_path / "logdir", tmp_path / "copy")
    rows = all_rows(copy)
    executions = sorted(row[1] for row in rows["execution"])
    assert executions == ([] if only_bad else list(range(40, 60)))
    assert len(rows["tensor_health"]) == (0 if only_bad else 20)
    (run,) = recover(copy)
    assert run.state == "recovered"
    assert all_rows(copy) == rows
    shutil.rmtree(copy)
    made.sink.close(run_row=RUN_ROW)
    made.files.remove()
