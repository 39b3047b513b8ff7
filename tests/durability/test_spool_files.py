"""What becomes of a recording's files in the spool at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.durability.dead_process import RUN_ID, DeadProcess
from tests.durability.files_on_disk import failing, num_descriptors
from tfdbg_arrow.schema.logdir_layout import spool_paths
from tfdbg_arrow.spool.run_files import RunFiles, held_if_dead
from tfdbg_arrow.writer.spool_files import discard_spool_files, remove_spool_files


def names(logdir: Path) -> list[str]:
    return sorted(path.suffix for path in (logdir / "spool").iterdir())


@pytest.fixture
def process(tmp_path: Path) -> DeadProcess:
    return DeadProcess(tmp_path)


def is_let_go_of(process: DeadProcess) -> bool:
    """Whether another process may recover what is left."""
    with held_if_dead(process.paths.journal, to_change=True) as found:
        return found


def test_of_a_recording_that_is_all_in_parts_nothing_stays(process: DeadProcess) -> None:
    assert remove_spool_files(process.spool, process.files, is_all_written=True) is None
    assert names(process.logdir) == []
    assert process.files.names.descriptor == -1


def test_of_another_all_stays_for_recovery(process: DeadProcess) -> None:
    closed: list[bool] = []
    process.spool.close = lambda: closed.append(True)  # type: ignore[method-assign]
    assert remove_spool_files(process.spool, process.files, is_all_written=False) is None
    assert names(process.logdir) == [".journal", ".rows", ".spool", ".values"]
    assert closed == [True]
    assert is_let_go_of(process)


def test_a_removal_that_fails_once_is_tried_again(process: DeadProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "unlink", failing(instead_of=Path.unlink))
    assert remove_spool_files(process.spool, process.files, is_all_written=True) is None
    assert names(process.logdir) == []


@pytest.mark.parametrize("after", [0, 2], ids=["of events", "of journals"])
def test_one_that_fails_again_is_said_and_the_rest_is_left_for_recovery(
    process: DeadProcess, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.setattr(Path, "unlink", failing(100, after=after, instead_of=Path.unlink))
    reason = remove_spool_files(process.spool, process.files, is_all_written=True)
    assert reason == "[Errno 28] No space left on device"
    assert names(process.logdir) == [".journal", ".rows", ".spool", ".values"][: 4 - after]
    assert is_let_go_of(process)


def test_of_a_recording_that_could_not_begin_nothing_stays(tmp_path: Path) -> None:
    before = num_descriptors()
    paths = spool_paths(tmp_path, run_id=RUN_ID)
    files = RunFiles(paths, run_id=RUN_ID)
    paths.values.touch()
    discard_spool_files(paths, files)
    assert (names(tmp_path), num_descriptors()) == ([], before)


def test_nor_what_can_be_removed_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = num_descriptors()
    paths = spool_paths(tmp_path, run_id=RUN_ID)
    files = RunFiles(paths, run_id=RUN_ID)
    for path in (paths.spool, paths.values):
        path.touch()
    monkeypatch.setattr(Path, "unlink", failing(instead_of=Path.unlink))
    discard_spool_files(paths, files)
    assert (names(tmp_path), num_descriptors()) == ([".spool"], before)
