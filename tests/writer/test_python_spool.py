"""The event spool in Python: the layout and the ways of the native one."""

from __future__ import annotations

import errno
import gc
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdbg_arrow.schema.logdir_layout import spool_paths
from tfdbg_arrow.spool.journal import Journal
from tfdbg_arrow.spool.records import RECORD_DTYPE, RECORD_SIZE, Flag, Kind
from tfdbg_arrow.spool.spool_file import HEADER_SIZE
from tfdbg_arrow.writer import python_spool
from tfdbg_arrow.writer.backend import native_core
from tfdbg_arrow.writer.python_spool import PythonSpool

core: Any = native_core()
needs_core = pytest.mark.skipif(core is None, reason="compares with the native core")

RAW = np.dtype(f"V{RECORD_SIZE}")


class Stacks:
    """Takes the stacks that a spool hands over."""

    def __init__(self) -> None:
        self.stacks: dict[int, list[tuple[Any, int]]] = {}

    def add(self, first_stack_id: int, stacks: Any) -> None:
        self.stacks.update(enumerate(stacks, start=first_stack_id))


def make_spool(directory: Path, *, capacity: int = 1024, starts: bool = True) -> PythonSpool:
    paths = spool_paths(directory.parent, run_id="a")
    paths = replace(paths, spool=directory / "a.spool", values=directory / "a.values", journal=directory / "a.journal")
    spool = PythonSpool(paths, journal=Journal(paths.journal), capacity=capacity)
    spool.stack_table = Stacks()  # type: ignore[assignment]
    if starts:
        spool.start()
    return spool


def drained(spool: PythonSpool, max_records: int) -> npt.NDArray[np.void]:
    """What is drained, whose slots are given back."""
    records = spool.drain(max_records)
    if len(records):
        spool.release(int(records["commit"][-1]), 0)
    return records


def events(*numbers: int, flags: int = 0) -> npt.NDArray[np.void]:
    """Records that can be recognised by their tensor ids, with something in their very last bytes."""
    raw = np.full((len(numbers), RECORD_SIZE), 7, np.uint8)
    records = raw.reshape(-1).view(RECORD_DTYPE)
    records["kind"] = Kind.EXECUTION_TENSOR
    records["tensor_id"] = numbers
    records["flags"] = flags
    return records


def test_the_file_holds_a_header_and_the_records(tmp_path: Path) -> None:
    spool = make_spool(tmp_path)
    assert spool.append(events(5, 6))
    content = (tmp_path / "a.spool").read_bytes()
    assert len(content) == HEADER_SIZE + 1024 * RECORD_SIZE
    assert content[:8] == b"TFDBGSPL"
    assert np.frombuffer(content[8:32], "<i8").tolist() == [RECORD_SIZE << 32 | 2, 1024, os.getpid()]
    assert np.frombuffer(content, "<u8", 17)[[8, 16]].tolist() == [2, 0]
    records = np.frombuffer(content, RECORD_DTYPE, 2, HEADER_SIZE)
    assert records["commit"].tolist() == [1, 2]
    assert records["tensor_id"].tolist() == [5, 6]
    spool.drain(1)
    assert np.frombuffer((tmp_path / "a.spool").read_bytes(), "<u8", 26)[[8, 16, 24, 25]].tolist() == [2, 0, 0, 0]
    spool.release(1, 77)
    spool.release_values(88)
    assert np.frombuffer((tmp_path / "a.spool").read_bytes(), "<u8", 26)[[8, 16, 24, 25]].tolist() == [2, 1, 88, 77]


def test_the_file_has_its_blocks_and_an_error_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_spool(tmp_path)
    assert (tmp_path / "a.spool").stat().st_blocks * 512 >= 1024 * RECORD_SIZE

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="cannot allocate 266240 bytes for the event spool: No space left") as caught:
        make_spool(tmp_path / "full")
    assert caught.value.errno == errno.ENOSPC
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["a.journal"], "which is the caller's"


@needs_core
@settings(max_examples=30, deadline=None)
@given(
    steps=st.lists(st.one_of(st.integers(1, 700), st.tuples(st.just("drain"), st.integers(0, 900))), max_size=12),
    seed=st.integers(0, 2**32 - 1),
)
def test_whatever_comes_in_leaves_it_as_it_leaves_the_native_one(
    steps: list[Any], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("spools")
    spool = make_spool(directory / "python")
    (directory / "native").mkdir()
    native = core.Recording(str(directory / "native/a.spool"), str(directory / "native/a.values"), 1024, 3, 0, 1)
    generator = np.random.default_rng(seed)
    pending = 0
    for step in steps:
        if isinstance(step, tuple):
            found = drained(spool, step[1])
            assert found.tobytes() == np.asarray(native.drain(step[1])).tobytes()
            if len(found):
                native.release(int(found["commit"][-1]), 0)
            assert spool.num_free() == native.num_free()
            pending -= len(found)
        elif pending + step <= 1024:
            raw = generator.integers(0, 256, step * RECORD_SIZE, dtype=np.uint8)
            assert spool.append(raw.view(RECORD_DTYPE))
            assert native.append(raw)
            pending += step
    assert spool.drain(1024).tobytes() == np.asarray(native.drain(1024)).tobytes()
    assert spool.num_events() == native.num_events()
    files = [(directory / name / "a.spool").read_bytes() for name in ("python", "native")]
    assert files[0] == files[1]


def test_many_threads_lose_and_double_nothing(tmp_path: Path) -> None:
    spool = make_spool(tmp_path)
    num_threads, num_groups = 6, 400

    def write(thread: int) -> None:
        for group in range(num_groups):
            first = (thread * num_groups + group) * 3
            assert spool.append(events(first, first + 1, first + 2))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(num_threads)]
    for thread in threads:
        thread.start()
    pieces: list[npt.NDArray[np.void]] = []
    while sum(len(piece) for piece in pieces) < num_threads * num_groups * 3:
        spool.wait(1.0, 100)
        pieces.append(drained(spool, 1 << 20))
    for thread in threads:
        thread.join()
    ids = np.concatenate([piece["tensor_id"] for piece in pieces]).reshape(-1, 3)
    assert (ids - ids[:, :1]).tolist() == [[0, 1, 2]] * len(ids)  # what belongs together stays together
    assert sorted(ids[:, 0].tolist()) == list(range(0, 3 * len(ids), 3))
    assert np.concatenate([piece["commit"] for piece in pieces]).tolist() == list(range(1, ids.size + 1))
    assert spool.num_dropped() == 0


def test_a_slot_is_not_used_again_before_it_is_released(tmp_path: Path) -> None:
    spool = make_spool(tmp_path)
    assert spool.append(events(*range(1024)))
    assert len(spool.drain(10)) == 10
    assert spool.num_free() == 0
    spool.release(4, 0)
    assert spool.num_free() == 4
    assert spool.append(events(1, 2, 3, 4))
    assert spool.num_free() == 0
    spool.release(5000, 0)
    assert spool.num_free() == 6, "no more than was drained"


def test_a_full_spool_that_nobody_drains_drops_and_counts_but_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_spool, "_STALL_TIMEOUT_S", 0.05)
    spool = make_spool(tmp_path)
    assert spool.append(events(*range(1024)))
    assert not spool.append(events(1, 2))
    assert not spool.append(events(3))
    assert spool.num_dropped() == 3
    assert len(drained(spool, 10)) == 10
    assert spool.append(events(4))
    assert spool.num_events() == 1025


def test_a_group_that_can_never_fit_is_dropped_at_once(tmp_path: Path) -> None:
    spool = make_spool(tmp_path)
    assert not spool.append(events(*range(1025)))
    assert spool.num_dropped() == 1025


def test_room_is_waited_for(tmp_path: Path) -> None:
    spool = make_spool(tmp_path)
    spool.append(events(*range(1024)))
    appended: list[bool] = []
    thread = threading.Thread(target=lambda: appended.append(spool.append(events(1024))))
    thread.start()
    assert drained(spool, 1024)["tensor_id"].tolist() == list(range(1024))
    thread.join()
    assert appended == [True]
    assert drained(spool, 10)["tensor_id"].tolist() == [1024]


def test_a_bad_value_wakes_the_drain_once(tmp_path: Path) -> None:
    spool = make_spool(tmp_path)
    spool.append(events(1))
    assert not spool.wait(0.0, 100)
    waited: list[bool] = []
    thread = threading.Thread(target=lambda: waited.append(spool.wait(60.0, 100)))
    thread.start()
    spool.append(events(2, 3, flags=Flag.BAD))
    thread.join()
    assert waited == [True]
    assert not spool.wait(0.0, 100)


def test_enough_records_end_the_wait(tmp_path: Path) -> None:
    spool = make_spool(tmp_path)
    waited: list[bool] = []
    thread = threading.Thread(target=lambda: waited.append(spool.wait(60.0, 3)))
    thread.start()
    for number in range(3):
        spool.append(events(number))
    thread.join()
    assert waited == [False]
    assert len(drained(spool, 10)) == 3


def test_nothing_is_taken_before_the_start_and_after_the_end(tmp_path: Path) -> None:
    spool = make_spool(tmp_path, capacity=1, starts=False)
    assert not spool.append(events(1))
    spool.start()
    assert spool.append(events(2))
    spool.stop()
    assert not spool.append(events(3))
    assert spool.append_value(b"x") == -1
    assert (spool.num_events(), spool.num_dropped()) == (1, 0)
    assert drained(spool, 10)["tensor_id"].tolist() == [2]
    spool.remove_files()
    assert [path.name for path in tmp_path.iterdir()] == ["a.journal"], "which is the caller's"


def test_values_come_back_are_released_and_a_gap_is_an_error(tmp_path: Path) -> None:
    spool = make_spool(tmp_path)
    data = os.urandom(1 << 16)
    offsets = [spool.append_value(piece) for piece in (data, b"", b"abc")]
    assert offsets == [0, len(data), len(data)]
    assert spool.read_value(0, len(data)) == data
    assert spool.read_value(offsets[2], 3) == b"abc"
    with pytest.raises(RuntimeError, match="the value spool ends before byte"):
        spool.read_value(offsets[2], 4)
    before = (tmp_path / "a.values").stat().st_blocks
    spool.release_values(len(data))
    assert spool.read_value(offsets[2], 3) == b"abc"
    if sys.platform == "linux":
        assert (tmp_path / "a.values").stat().st_blocks < before


def test_the_value_file_is_closed_with_the_spool(tmp_path: Path) -> None:
    def open_files() -> set[str]:
        links = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
        return {os.readlink(link) for link in links if os.path.islink(link)}

    spool = make_spool(tmp_path)
    assert str(tmp_path / "a.values") in open_files()
    del spool
    gc.collect()
    assert str(tmp_path / "a.values") not in open_files()


def test_strings_count_up_from_the_empty_one(tmp_path: Path) -> None:
    spool = make_spool(tmp_path)
    assert [spool.intern_string(text) for text in ("", "Log", "Mul", "Log")] == [0, 1, 2, 1]
    assert spool.strings(0) == ["", "Log", "Mul"]
    assert spool.strings(2) == ["Mul"]
    assert spool.strings(3) == []


def test_stacks_are_interned_once_and_handed_over_once(tmp_path: Path) -> None:
    spool = make_spool(tmp_path)

    def here() -> int:
        return spool.intern_stack()

    found = []
    for _ in range(3):
        found.append(here())
    found.append(here())
    assert found == [0, 0, 0, 1]
    table: Any = spool.stack_table
    assert sorted(table.stacks) == [0, 1]
    # Innermost first: the spool's own frame, then ours.
    names = [[code.co_name for code, _ in stack] for stack in table.stacks.values()]
    own = ["intern_stack", "here", "test_stacks_are_interned_once_and_handed_over_once"]
    assert [stack[:3] for stack in names] == [own, own]


@needs_core
def test_a_stack_is_the_native_ones(tmp_path: Path) -> None:
    spool = make_spool(tmp_path)
    found: list[list[tuple[Any, int]]] = []
    core.set_stack_handler(lambda stack_id, frames: found.append(frames))
    own, native = spool.intern_stack(), core.intern_stack(0)
    core.set_stack_handler(None)
    table: Any = spool.stack_table
    # Both calls are on one line of this frame; the outer frames are the same to the instruction.
    assert native >= 0
    assert table.stacks[own][2:] == found[0][1:]
    assert table.stacks[own][1][0] is found[0][0][0]


def test_execution_indexes_count_up(tmp_path: Path) -> None:
    spool = make_spool(tmp_path)
    assert [spool.next_execution_index() for _ in range(3)] == [0, 1, 2]
