"""The event spool in Python: for installs without the native core.

The file is laid out as the native one (`native/spool.h`): a header page, then a ring of records in preallocated
disk blocks, so that a full disk is an error when it is made and what was committed survives the process: a slot is used
again only once what it held is in sealed parts. One lock guards what the native spool does without one. Interned
strings and stacks count from 0 in each recording.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from pathlib import Path
from types import CodeType, FrameType

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.schema.logdir_layout import SpoolPaths
from tfdbg_arrow.spool.holes import punch_hole
from tfdbg_arrow.spool.journal import Journal
from tfdbg_arrow.spool.records import NO_VALUE, RECORD_DTYPE, RECORD_SIZE, Flag
from tfdbg_arrow.spool.spool_file import (
    HEAD_WORD,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    ROWS_TAIL_WORD,
    TAIL_WORD,
    VALUES_TAIL_WORD,
    VERSION,
)
from tfdbg_arrow.writer.stacks import StackTable

_RECORD = np.dtype({"names": ["commit", "rest"], "formats": ["<u8", f"V{RECORD_SIZE - 8}"]})
"""A record as what publishes it, and what it tells."""
_MIN_CAPACITY = 1024
_RAW = np.dtype(f"V{RECORD_SIZE}")
_STALL_TIMEOUT_S = 5.0
_POLL_INTERVAL_S = 0.001
_WRITE_ATTEMPTS = 2


class _Last(threading.local):
    """What a thread appended last."""

    event_index = NO_VALUE


class PythonSpool:
    """A ring of records on disk, with the strings, stacks and tensor values that they refer to.

    Any thread appends, one drains.

    Args:
        paths: Where the spool is made; the directory is made if missing.
        journal: Takes the strings that records refer to.
        capacity: How many records fit; rounded up to a power of two.
        waits: Whether records that find no room wait for it; else they are dropped.

    Raises:
        OSError: A file cannot be made or its space not be allocated.
    """

    stack_table: StackTable

    def __init__(self, paths: SpoolPaths, *, journal: Journal, capacity: int, waits: bool = True) -> None:
        self._capacity = max(_MIN_CAPACITY, 1 << (capacity - 1).bit_length())
        paths.spool.parent.mkdir(parents=True, exist_ok=True)
        self._paths = (paths.spool, paths.values)
        self._waits = waits
        memory = _allocate(paths.spool, HEADER_SIZE + self._capacity * RECORD_SIZE)
        header = HEADER.pack(MAGIC, VERSION, RECORD_SIZE, self._capacity, os.getpid())
        memory[: len(header)] = np.frombuffer(header, np.uint8)
        self._words = memory[:HEADER_SIZE].view(np.uint64)
        self._slots = memory[HEADER_SIZE:].view(_RECORD)
        self._values = _ValueFile(paths.values)
        self._strings = _StringTable(journal)
        self._stacks = _StackInterner()
        self._wake = threading.Condition()
        self._is_open = False
        self._head = self._tail = self._read = self._num_dropped = self._next_execution_index = 0
        self._is_urgent = self._is_stalled = False
        self._wake_at = 0
        self._last = _Last()

    # Recording.

    def start(self) -> None:
        """From here on records are taken."""
        self._is_open = True

    def stop(self) -> None:
        """No record is taken after it returns; what is in the spool stays."""
        with self._wake:
            self._is_open = False

    def abandon(self) -> None:
        """Lets go of everything without touching it: the process is a fork's child."""
        self._is_open = False  # the lock may be held by a thread that this process does not have

    def close(self) -> None:
        """Does nothing: the files stay, and are closed with the spool."""

    def write_names(self) -> int:
        """Returns 0: the journal itself keeps what could not be written to it."""
        return 0

    def remove_files(self) -> None:
        """Removes the spool's files: all of it is in the logdir."""
        for path in self._paths:
            path.unlink(missing_ok=True)

    def append(self, records: npt.NDArray[np.void]) -> bool:
        """Appends records that belong together, next to each other; waits for room, but not for ever.

        Args:
            records: An array of RECORD_DTYPE, shorter than the spool; `commit` is set here.

        Returns:
            Whether they were taken; what was not is counted as dropped, unless recording has stopped.
        """
        count = len(records)
        raw = np.ascontiguousarray(records).view(_RAW)
        deadline, seen = 0.0, -1
        while True:
            with self._wake:
                if not self._is_open:
                    return False
                if self._head + count - self._tail <= self._capacity:
                    self._last.event_index = self._head
                    self._write(raw)
                    return True
                now = time.monotonic()
                if self._tail != seen:
                    seen, deadline = self._tail, now + _STALL_TIMEOUT_S
                self._is_stalled = self._is_stalled or now > deadline
                if self._is_stalled or not self._waits or count > self._capacity:
                    self._num_dropped += count
                    self._last.event_index = NO_VALUE
                    return False
                self._wake.notify_all()
            time.sleep(_POLL_INTERVAL_S)

    def _write(self, raw: npt.NDArray[np.void]) -> None:
        records = raw.copy().view(RECORD_DTYPE)
        records["commit"] = np.arange(self._head + 1, self._head + 1 + len(raw), dtype=np.uint64)
        whole = records.view(_RECORD)
        first = self._head % self._capacity
        before_end = min(len(raw), self._capacity - first)
        # What publishes a record is written behind the rest: the process may be killed in between.
        for field in ("rest", "commit"):
            self._slots[field][first : first + before_end] = whole[field][:before_end]
            self._slots[field][: len(raw) - before_end] = whole[field][before_end:]
        self._head += len(raw)
        self._words[HEAD_WORD] = self._head
        if np.any(records["flags"] & Flag.BAD):
            self._is_urgent = True
        if self._is_urgent or self._head >= self._wake_at:
            self._wake.notify_all()

    def last_event_index(self) -> int:
        """Returns the event index of what the calling thread appended last, -1 if there was no room."""
        return self._last.event_index

    def set_on_nonfinite(self, reaction: int, run_id: str) -> None:
        """Does nothing: the Python functions that write records look at them, too."""

    def take_nonfinite_notes(self) -> list[int]:
        """Returns nothing, for the same reason."""
        return []

    def append_value(self, data: bytes) -> int:
        """Keeps the bytes of a tensor; returns their offset, -1 if they could not be written."""
        return self._values.append(data) if self._is_open else NO_VALUE

    def next_execution_index(self) -> int:
        """Returns the next execution index."""
        with self._wake:
            self._next_execution_index += 1
            return self._next_execution_index - 1

    def intern_string(self, text: str) -> int:
        """Returns the id of a string."""
        return self._strings.intern(text)

    def intern_stack(self) -> int:
        """Returns the id of the calling thread's Python stack, -1 for none; writes the rows of a new one before."""
        return self._stacks.intern(self.stack_table)

    def set_step(self, step: int) -> None:
        """Does nothing: the records that are appended name their step."""

    def set_paused(self, paused: bool) -> None:
        """Does nothing: whoever appends records leaves them out."""

    # Draining.

    def drain(self, max_records: int) -> npt.NDArray[np.void]:
        """Returns up to `max_records` records, in order; their slots stay theirs until they are released."""
        with self._wake:
            count = min(max_records, self._head - self._read)
            first = self._read % self._capacity
            before_end = min(count, self._capacity - first)
            slots = self._slots.view(_RAW)
            pieces = (slots[first : first + before_end], slots[: count - before_end])
            records: npt.NDArray[np.void] = np.concatenate(pieces).view(RECORD_DTYPE)
            self._read += count
        return records

    def release(self, upto: int, rows_upto: int) -> None:
        """Frees the slots of drained records before an event index, and notes what of the rows is in sealed parts."""
        with self._wake:
            upto = min(upto, self._read)
            if upto > self._tail:
                self._tail = upto
                self._words[TAIL_WORD] = upto
                self._is_stalled = False
            self._words[ROWS_TAIL_WORD] = rows_upto

    def num_free(self) -> int:
        """Returns how many slots are free."""
        return self._capacity - (self._head - self._tail)

    def capacity(self) -> int:
        """Returns how many slots there are."""
        return self._capacity

    def wait(self, timeout_s: float, pending: int) -> bool:
        """Blocks until a bad value came (True), `pending` records wait, or the time is out."""
        with self._wake:
            # What was drained and not released yet takes room too.
            limit = min(pending, (self._capacity - (self._read - self._tail)) // 2)
            self._wake_at = self._read + limit
            self._wake.wait_for(lambda: self._is_urgent or self._head - self._read >= limit, timeout_s)
            was_urgent, self._is_urgent = self._is_urgent, False
            return was_urgent

    def strings(self, start: int) -> list[str]:
        """Returns the interned strings from id `start` on."""
        return self._strings.since(start)

    def read_value(self, offset: int, size: int) -> bytes:
        """Returns kept elements.

        Raises:
            RuntimeError: There are not that many bytes.
            OSError: They cannot be read.
        """
        return self._values.read(offset, size)

    def release_values(self, upto: int) -> None:
        """Gives back the disk space of values before an offset."""
        self._words[VALUES_TAIL_WORD] = upto  # before the bytes are gone
        self._values.release(upto)

    def num_dropped(self) -> int:
        """Returns how many records found no room."""
        return self._num_dropped

    def num_unkept_values(self) -> int:
        """Returns of how many tensors the elements could not be written."""
        return self._values.num_failed

    def num_events(self) -> int:
        """Returns the next event index."""
        return self._head


def _allocate(path: Path, size: int) -> npt.NDArray[np.uint8]:
    """Creates a file whose blocks are all allocated, and maps it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
        return np.memmap(path, dtype=np.uint8, mode="r+", shape=(size,))
    except OSError as error:
        path.unlink(missing_ok=True)
        raise OSError(
            error.errno, f"cannot allocate {size} bytes for the event spool: {error.strerror}", str(path)
        ) from error
    finally:
        os.close(descriptor)


class _ValueFile:
    """Kept elements: an append-only file, written with pwrite so that it outlives the process."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._end = 0
        self._released = 0
        self.num_failed = 0

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def append(self, data: bytes) -> int:
        with self._lock:
            offset = self._end
            self._end += len(data)
        view, done, num_errors = memoryview(data), 0, 0
        while done < len(data):
            try:
                done += os.pwrite(self._descriptor, view[done:], offset + done)
            except OSError:
                num_errors += 1
                if num_errors == _WRITE_ATTEMPTS:
                    self.num_failed += 1
                    return NO_VALUE
        return offset

    def read(self, offset: int, size: int) -> bytes:
        pieces: list[bytes] = []
        while size > 0:
            piece = os.pread(self._descriptor, size, offset)
            if not piece:
                raise RuntimeError(f"the value spool ends before byte {offset + size}")
            pieces.append(piece)
            offset, size = offset + len(piece), size - len(piece)
        return b"".join(pieces)

    def release(self, upto: int) -> None:
        """Best effort: where the file system cannot do it, the blocks come back when the file is removed."""
        if upto > self._released:
            punch_hole(self._descriptor, self._released, upto)
            self._released = upto


class _StringTable:
    """Strings by small ids; id 0 is the empty one."""

    def __init__(self, journal: Journal) -> None:
        # A finalizer may intern while its thread does.
        self._lock = threading.RLock()
        self._journal = journal
        self._ids: dict[str, int] = {}
        self._strings: list[str] = []
        self.intern("")

    def intern(self, text: str) -> int:
        found = self._ids.get(text)
        if found is not None:
            return found
        with self._lock:
            found = self._ids.get(text)
            if found is None:
                found = len(self._strings)
                self._strings.append(text)
                self._journal.append_string(found, text)  # before any record can name it
                self._ids[text] = found
            return found

    def since(self, start: int) -> list[str]:
        with self._lock:
            return self._strings[start:]


class _StackInterner:
    """Python stacks by small ids.

    The key is (identity of the code object, instruction) of each frame: to hash a code object is slow. The code
    objects are kept, so that an identity is never used again.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._ids: dict[tuple[int, ...], int] = {}
        self._kept: list[list[tuple[CodeType, int]]] = []

    def intern(self, table: StackTable) -> int:
        """Returns the id of the caller's stack; a new one is added to the table first."""
        frame: FrameType | None = sys._getframe(1)
        stack: list[tuple[CodeType, int]] = []
        numbers: list[int] = []
        while frame is not None:
            code, instruction = frame.f_code, frame.f_lasti
            stack.append((code, instruction))
            numbers.append(id(code))
            numbers.append(instruction)
            frame = frame.f_back
        key = tuple(numbers)
        found = self._ids.get(key)
        if found is None:
            self._kept.append(stack)
            found = next(self._numbers)
            table.add(found, [stack])
            found = self._ids.setdefault(key, found)  # another thread's, if it was faster: both have rows
        return found
