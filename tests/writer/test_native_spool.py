"""The native event spool: layout, threads, a full ring, a killed process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tfdbg_arrow.spool.records import RECORD_DTYPE, RECORD_SIZE, Flag, Kind
from tfdbg_arrow.spool.spool_file import HEADER_SIZE, SpoolHeader, read_committed, read_header
from tfdbg_arrow.writer.backend import native_core

core: Any = native_core()
pytestmark = pytest.mark.skipif(core is None, reason="the native core is not built")


def make_recording(directory: Path, *, capacity: int = 1024) -> Any:
    """Returns a recording to which TensorFlow does not write."""
    return core.Recording(str(directory / "a.spool"), str(directory / "a.values"), capacity, 3, 0, 1)


def event(number: int, *, flags: int = 0) -> npt.NDArray[np.uint8]:
    """Returns one complete record, identified by its tensor id."""
    record = np.zeros(1, RECORD_DTYPE)
    record["kind"] = Kind.EXECUTION_TENSOR
    record["tensor_id"] = number
    record["flags"] = flags
    return record.view(np.uint8)


def drain(recording: Any, count: int = 1 << 20) -> npt.NDArray[np.void]:
    """Returns all committed records and releases their slots."""
    records = np.asarray(recording.drain(count)).view(RECORD_DTYPE)
    if len(records):
        recording.release(int(records["commit"][-1]), 0)
    return records


def test_records_keep_their_order_over_many_rounds_of_the_ring(tmp_path: Path) -> None:
    recording = make_recording(tmp_path)
    seen: list[int] = []
    for number in range(5000):
        assert recording.append(event(number))
        if number % 700 == 0:
            seen += drain(recording)["tensor_id"].tolist()
    records = drain(recording)
    assert seen + records["tensor_id"].tolist() == list(range(5000))
    assert records["commit"].tolist()[-1] == 5000
    assert len(drain(recording)) == 0
    assert recording.num_events() == 5000
    assert recording.num_dropped() == 0


def test_many_threads_neither_lose_nor_duplicate_records(tmp_path: Path) -> None:
    recording = make_recording(tmp_path)
    num_threads, num_events = 8, 2000

    def write(thread: int) -> None:
        for number in range(num_events):
            recording.append(event(thread * num_events + number))

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(num_threads)]
    for thread in threads:
        thread.start()
    parts = []
    while any(thread.is_alive() for thread in threads):
        recording.wait(0.01, 500)
        parts.append(drain(recording))
    parts.append(drain(recording))
    records = np.concatenate(parts)
    assert records["commit"].tolist() == list(range(1, num_threads * num_events + 1))
    assert sorted(records["tensor_id"].tolist()) == list(range(num_threads * num_events))
    by_thread = records["tensor_id"] // num_events
    for thread in range(num_threads):
        own = records["tensor_id"][by_thread == thread]
        assert (np.diff(own) > 0).all(), "a thread's own events keep their order"


@pytest.mark.slow
def test_a_full_spool_that_nobody_drains_drops_and_counts_but_does_not_hang(tmp_path: Path) -> None:
    recording = make_recording(tmp_path)
    for number in range(1024):
        assert recording.append(event(number))
    assert not recording.append(event(1024))
    assert not recording.append(event(1025))
    assert recording.num_dropped() == 2
    assert drain(recording)["tensor_id"].tolist() == list(range(1024))
    assert recording.append(event(1026)), "there is room again"
    assert drain(recording)["tensor_id"].tolist() == [1026]


def test_a_bad_value_wakes_the_drain(tmp_path: Path) -> None:
    recording = make_recording(tmp_path)
    recording.append(event(0))
    assert recording.wait(0.0, 100) is False
    recording.append(event(1, flags=int(Flag.COVERED | Flag.BAD)))
    assert recording.wait(60.0, 100) is True
    assert recording.wait(0.0, 100) is False, "a bad value wakes the drain once"


def test_the_end_of_a_recording_wakes_the_drain(tmp_path: Path) -> None:
    recording = make_recording(tmp_path)
    recording.wake()
    assert recording.wait(60.0, 100) is True
    assert recording.wait(0.0, 100) is False


def test_values_can_be_read_and_a_gap_raises_an_error(tmp_path: Path) -> None:
    recording = make_recording(tmp_path)
    first = recording.append_value(np.frombuffer(b"abc", np.uint8))
    second = recording.append_value(np.frombuffer(b"defg", np.uint8))
    assert recording.read_value(second, 4) == b"defg"
    assert recording.read_value(first, 3) == b"abc"
    with pytest.raises(RuntimeError, match="ends before"):
        recording.read_value(second, 5)


def test_the_file_has_all_its_blocks_from_the_start(tmp_path: Path) -> None:
    recording = make_recording(tmp_path, capacity=4096)
    size = HEADER_SIZE + 4096 * RECORD_SIZE
    status = os.stat(tmp_path / "a.spool")
    assert status.st_size == size
    assert status.st_blocks * 512 >= size
    assert status.st_mode & 0o077 == 0, "other users must not read it"
    del recording


@pytest.mark.parametrize("path", ["missing/a.spool", "a.values/a.spool"])
def test_a_spool_that_cannot_be_created_raises_an_os_error_with_its_path(tmp_path: Path, path: str) -> None:
    (tmp_path / "a.values").write_bytes(b"")
    with pytest.raises(OSError, match="cannot create the event spool"):
        core.Recording(str(tmp_path / path), str(tmp_path / "b.values"), 1024, 3, 0, 1)


def test_an_existing_spool_is_never_overwritten(tmp_path: Path) -> None:
    recording = make_recording(tmp_path)
    with pytest.raises(OSError, match="cannot create"):
        make_recording(tmp_path)
    del recording


def test_records_from_before_a_kill_can_be_read(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path; sys.path.insert(0, sys.argv[2]);"
        "import test_native_spool as t; r = t.make_recording(Path(sys.argv[1]));"
        "[r.append(t.event(i)) for i in range(300)]; t.drain(r, 100); os.kill(os.getpid(), signal.SIGKILL)"
    )
    here = str(Path(__file__).parent)
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path), here], check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    header = read_header(tmp_path / "a.spool")
    assert header == SpoolHeader(capacity=1024, tail=100, values_tail=0, rows_tail=0)
    records = np.concatenate(list(read_committed(tmp_path / "a.spool", header)))
    assert records["commit"].tolist() == list(range(101, 301))
    assert records["tensor_id"].tolist() == list(range(100, 300))


def test_append_rejects_half_a_record(tmp_path: Path) -> None:
    recording = make_recording(tmp_path)
    with pytest.raises(ValueError, match="whole records"):
        recording.append(np.zeros(255, np.uint8))


def test_a_forked_child_and_its_child_can_add_names() -> None:
    """A lock that the parent holds during the fork would stay locked in the child."""
    program = """
import os, signal
from tfdbg_arrow.writer.native import _core

def in_child(action):
    if os.fork() == 0:
        signal.alarm(60)
        action()
        os._exit(0)
    assert os.wait()[1] == 0

_core.intern_string("parent")
in_child(lambda: (_core.intern_string("child"), in_child(lambda: _core.intern_string("grandchild"))))
print(_core.strings(1)[-1], _core.intern_string("parent again") > 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.stderr) == ("parent True\n", "")
