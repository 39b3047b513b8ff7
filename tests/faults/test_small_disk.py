"""Test with a really full disk: a small in-memory file system. Skipped if such a file system cannot be mounted."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.faults.checking import check_whole
from tests.recovery.driver import COUNTERS, RUN_ROW, Recorder
from tfdbg_arrow import open_logdir
from tfdbg_arrow.spool.journal import BrokenEntry, Journal, broken_entries
from tfdbg_arrow.writer.recover import remove_spool_files
from tfdbg_arrow.writer.sink.sink import Sink


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "disk"
    directory.mkdir()
    # A journal holds every name that this process has interned, so leave room for the names of earlier tests.
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(directory)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a small file system cannot be mounted here: {error}")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill(disk: Path) -> Path:
    """Fills the disk with a file, and returns the path of this file."""
    path = disk / "filler"
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 12))
        except OSError:
            return path


def test_data_that_a_full_disk_refused_is_written_once_there_is_room(
    disk: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Sink, "_run", lambda self: None)
    counters = np.zeros(len(COUNTERS), np.int64)
    recorder = Recorder(disk / "logdir", counters, seed=1)
    for _ in range(20):
        recorder.call()
    recorder.sink.flush()
    filler = fill(disk)
    for number in range(150):
        recorder.call()
        if number % 15 == 0:
            recorder.sink.flush()
    with open_logdir(disk / "logdir") as opened:
        ((written,),) = opened.rows("SELECT count(*) FROM execution")
    assert 20 <= written < 170
    filler.unlink()
    for _ in range(20):
        recorder.call()
    recorder.sink.flush()
    with open_logdir(disk / "logdir") as opened:
        assert opened.rows("SELECT count(*) FROM execution") == [(190,)]
    recorder.sink.close(run_row={**RUN_ROW, "is_clean_end": True})
    assert remove_spool_files(recorder.spool, recorder.files, is_all_written=recorder.sink.is_all_written) is None
    counts = dict(zip(COUNTERS, counters.tolist(), strict=True))
    check_whole(disk / "logdir", counts, num_unkept=recorder.num_unkept)
    assert capfd.readouterr().err.count("could not record everything") == 1


def test_a_spool_that_does_not_fit_raises_an_error_instead_of_a_signal(disk: Path) -> None:
    filler = fill(disk)
    with filler.open("r+b") as file:
        file.truncate(filler.stat().st_size - (1 << 17))
    with pytest.raises(OSError, match="cannot allocate"):
        Recorder(disk / "logdir", np.zeros(len(COUNTERS), np.int64), seed=1)


def test_an_entry_that_a_full_disk_cut_is_recognised(disk: Path) -> None:
    journal = Journal(disk / "a.journal")
    filler = fill(disk)
    with filler.open("r+b") as file:
        file.truncate(filler.stat().st_size - (1 << 13))
    assert not journal.append("long", "x" * 100_000)
    filler.unlink()
    assert journal.append("short")
    journal.close()
    assert list(broken_entries(journal.path)) == [BrokenEntry(offset=0, is_cut=True)]
