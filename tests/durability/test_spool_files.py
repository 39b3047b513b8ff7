"""Test the handling of a recording's spool files at the end of the recording."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.durability.dead_process import RUN_ID, DeadProcess
from tests.durability.files_on_disk import failing, num_descriptors
from tfdbg_arrow.spool.journal import RunFiles, held_if_dead
from tfdbg_arrow.storage.layout import spool_paths
from tfdbg_arrow.writer.recover import remove_run, remove_spool_files


def names(logdir: Path) -> list[str]:
    return sorted(path.suffix for path in (logdir / "spool").iterdir())


@pytest.fixture
def process(tmp_path: Path) -> DeadProcess:
    return DeadProcess(tmp_path)


def is_let_go_of(process: DeadProcess) -> bool:
    """Returns true if another process may recover the remaining files."""
    with held_if_dead(process.paths.journal, to_change=True) as found:
        return found


def test_the_spool_of_a_recording_that_is_completely_in_parts_is_removed(process: DeadProcess) -> None:
    assert remove_spool_files(process.spool, process.files, is_all_written=True) is None
    assert names(process.logdir) == []
    assert process.files.names.descriptor == -1


def test_the_spool_of_an_incomplete_recording_stays_for_recovery(process: DeadProcess) -> None:
    closed: list[bool] = []
    process.spool.close = lambda: closed.append(True)  # type: ignore[method-assign]
    assert remove_spool_files(process.spool, process.files, is_all_written=False) is None
    assert names(process.logdir) == [".journal", ".rows", ".spool", ".values"]
    assert closed == [True]
    assert is_let_go_of(process)


def test_a_failed_removal_is_retried(process: DeadProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "unlink", failing(instead_of=Path.unlink))
    assert remove_spool_files(process.spool, process.files, is_all_written=True) is None
    assert names(process.logdir) == []


@pytest.mark.parametrize("after", [0, 2], ids=["of events", "of journals"])
def test_a_removal_that_fails_again_is_reported_and_leaves_the_rest_for_recovery(
    process: DeadProcess, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.setattr(Path, "unlink", failing(100, after=after, instead_of=Path.unlink))
    reason = remove_spool_files(process.spool, process.files, is_all_written=True)
    assert reason == "[Errno 28] No space left on device"
    assert names(process.logdir) == [".journal", ".rows", ".spool", ".values"][: 4 - after]
    assert is_let_go_of(process)


def test_the_files_of_a_recording_that_could_not_begin_are_removed(tmp_path: Path) -> None:
    before = num_descriptors()
    paths = spool_paths(tmp_path, run_id=RUN_ID)
    files = RunFiles(paths, run_id=RUN_ID)
    paths.values.touch()
    files.close()
    remove_run(tmp_path, run_id=RUN_ID)
    assert (names(tmp_path), num_descriptors()) == ([], before)


def test_a_failed_removal_does_not_keep_the_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = num_descriptors()
    paths = spool_paths(tmp_path, run_id=RUN_ID)
    files = RunFiles(paths, run_id=RUN_ID)
    for path in (paths.spool, paths.values):
        path.touch()
    monkeypatch.setattr(Path, "unlink", failing(instead_of=Path.unlink))
    files.close()
    remove_run(tmp_path, run_id=RUN_ID)
    assert (names(tmp_path), num_descriptors()) == ([".spool"], before)
