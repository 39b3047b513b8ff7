"""The sink: a thread that converts spool records and metadata rows into Parquet parts.

The sink never raises an error into the training. Failures are counted, reported once and recorded in capture_stat.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.spool.call_join import NO_CALL, CallJoin
from tfdbg_arrow.spool.circular_buffer import CircularBuffer, Retention
from tfdbg_arrow.spool.convert import EVENT_TABLES, Converter, metadata_table
from tfdbg_arrow.spool.failures import Failures
from tfdbg_arrow.spool.journal import RunFiles
from tfdbg_arrow.spool.names import GraphLinks, Names
from tfdbg_arrow.spool.records import (
    Batch,
    Flag,
    Ints,
    Kind,
    Records,
    ValueReader,
    join_records,
    num_whole,
    pick,
    split_by_value_bytes,
)
from tfdbg_arrow.storage.marker import mark_logdir
from tfdbg_arrow.writer.arrow_allocator import release_unused
from tfdbg_arrow.writer.backend import Backend
from tfdbg_arrow.writer.memory import DEFAULT_SHARES, MemoryShares
from tfdbg_arrow.writer.remote.uploader import Uploader
from tfdbg_arrow.writer.sink.backlog import Backlog, MetadataQueue, Redact, SpoolUse
from tfdbg_arrow.writer.sink.budget import Budget, split_in_two
from tfdbg_arrow.writer.sink.pace import Pace, Wake
from tfdbg_arrow.writer.sink.parts import PartWriter

_END_ATTEMPTS = 3
"""How often a last write is tried, because a disk can fail for a moment."""
_END_PAUSE_S = 0.1
"""Seconds between two attempts at the end of a recording. The program waits for them."""
_FLUSH_INTERVAL_S = 5.0
"""How many seconds a reader of a running recording may wait for healthy events; the first bad value is written at once.

Each flush makes a part of each table, and the parts are merged at the end. A program that runs for less time is written
once. Stores charge for each request, and each part takes at least one request.
"""
_MAX_FLUSH_WAIT_S = 30.0
"""Maximum number of seconds that `flush` waits for the sink's thread, which is far longer than a write takes.

A signal handler that ends the recording can interrupt `append` and call `flush` in the same thread. Then the sink's
thread may wait for a lock that `append` holds, and neither of the two would ever go on.
"""


class Sink:
    """Writes one run.

    `append`, `flush` and `close` may be called from any thread. A caller of `flush` or `close` must not hold the lock
    of the recording, which the sink's thread acquires.

    Args:
        logdir: The logdir; it is created if missing.
        run_id: The run.
        recorder: The source of the events. The recorder reuses slots once their events are in sealed parts.
        files: The journals, which keep the data that events refer to if the process dies.
        links: The keys of graph tensors, the functions, and which graphs run inline in other graphs.
        retention: Which events a circular buffer keeps; None means that all events are kept.
        max_bytes: Maximum disk space of the parts of events; None means no limit.
        flush_interval_s: Seconds after which waiting events are written.
        flush_rows: If this many records wait, they are written earlier; None means as many as fit into `memory`.
        memory: The limits on memory.
        on_failure: Called once for each kind of failure, with a sentence.
        uploader: Copies the parts to a URL; None if the logdir is local.
        on_records: Called with the records that are about to be written.
        redact: Returns the rows of a metadata table after redaction; None means no redaction.

    Attributes:
        has_bad_values: Whether a tensor that was taken from the recorder has a NaN or an infinity.
        append: `(table, rows, *notes)`: adds rows of a metadata table (see MetadataQueue). The rows are written no
            later than events recorded after this call.
        append_columns: Does the same for many rows, given as columns of equal length.
    """

    def __init__(
        self,
        logdir: Path,
        run_id: str,
        *,
        recorder: Backend,
        files: RunFiles,
        links: GraphLinks,
        retention: Retention | None = None,
        max_bytes: int | None = None,
        flush_interval_s: float = _FLUSH_INTERVAL_S,
        flush_rows: int | None = None,
        memory: MemoryShares = DEFAULT_SHARES,
        on_failure: Callable[[str], None],
        uploader: Uploader | None = None,
        on_records: Callable[[Records], None] | None = None,
        redact: Redact | None = None,
    ) -> None:
        self._uploader = uploader
        self._on_records = on_records
        self._logdir, self._run_id, self._recorder = Path(logdir), run_id, recorder
        self._flush_interval_s, self._flush_rows = flush_interval_s, flush_rows or memory.batch_records
        self._max_value_bytes = memory.batch_value_bytes
        self._failures = Failures(on_failure)
        self._names = Names(recorder, nodes=links, call_graph=links)
        self._converter = Converter(run_id, names=self._names)
        self._call_join = CallJoin(links)
        self._values = ValueReader(recorder)
        self._parts = PartWriter(
            self._logdir,
            run_id,
            row_group_bytes=memory.row_group_bytes,
            on_change=uploader.note_change if uploader is not None else None,
        )
        self._buffer = CircularBuffer(retention) if retention is not None else None
        self._budget = (
            Budget(self._parts, failures=self._failures, max_bytes=max_bytes) if max_bytes is not None else None
        )
        self._files = files
        self._redact = redact
        self._metadata = MetadataQueue(run_id, failures=self._failures, journal=files.rows, redact=redact)
        self.append, self.append_columns = self._metadata.append, self._metadata.append_columns
        self._spool_use = SpoolUse(recorder, files.rows, values=self._values, is_lazy=retention is not None)
        self._backlog = Backlog(self._parts, failures=self._failures, max_bytes=memory.waiting_bytes)
        self._lock = threading.RLock()
        self._carry: Records = join_records([])
        self._devices: set[int] = set()
        self._losses = SpoolLosses(recorder, files, failures=self._failures)
        self._num_events = self._num_lost = 0
        self._thread = threading.Thread(target=self._run, name="tfdbg_arrow-sink", daemon=True)
        self._stop = threading.Event()
        self._pace = Pace(recorder, stop=self._stop, flush_interval_s=flush_interval_s, flush_rows=self._flush_rows)
        self._closed = self._has_ended = False
        self.has_bad_values = False

    def start(self) -> None:
        """Marks the logdir, writes an empty part of every table and starts the thread.

        Raises:
            LogdirError: The logdir cannot be written, or has another format version.
        """
        try:
            mark_logdir(self._logdir)
            self._parts.start()
            self._parts.replace([], {table.name: None for table in TABLES})
        except OSError as error:
            raise LogdirError(
                f"logdir {self._logdir} cannot be written ({error.strerror or error}), expected a directory that this "
                "process may write to; choose another one or fix its permissions."
            ) from error
        self._thread.start()

    def flush(self) -> None:
        """Writes everything recorded before this call; on return, it is all in sealed parts, unless a write failed.

        A circular buffer is emptied: the last events that it keeps are written.
        """
        if not self._lock.acquire(timeout=_MAX_FLUSH_WAIT_S):
            self._failures.add("flush", TimeoutError(f"the sink was busy for {_MAX_FLUSH_WAIT_S:.0f} s"))
            return
        try:
            if not self._closed:
                with self._failures.caught("flush"):
                    self._take_all()
                    self._take_rest()
                    self._write()
        finally:
            self._lock.release()

    def close(
        self, *, run_row: Mapping[str, object], on_progress: Callable[[float], None] = lambda share: None
    ) -> None:
        """Writes everything, replaces the run's row with `run_row`, merges many small parts and stops. Idempotent.

        Args:
            run_row: The final row of the run. `is_clean_end` becomes False in this row if events were lost.
            on_progress: Called with the share of the work that is done, from 0 to 1.
        """
        self._stop.set()
        self._recorder.wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        with self._lock:
            if self._closed:
                return
            with self._failures.caught("close"):
                self._take_all(last=True)
            with self._failures.caught("circular buffer"):
                self._take_rest()
            self._failures.note_repeats()
            self._backlog.note_evicted()
            self._bound_parts(last=True)
            _insist(self._write)
            self._note_kept_back()
            _insist(self._write)
            with self._failures.caught("merging"):
                self._parts.drop_empty()
            # Merging all parts of events at once would take twice the disk space.
            tables = [table for table in self._parts.tables if self._budget is None or table not in EVENT_TABLES]
            total = sum(map(self._parts.num_rows_to_compact, tables))
            done = 0
            on_progress(0.0)

            def advance(num_rows: int) -> None:
                nonlocal done
                done += num_rows
                on_progress(done / total if total else 1.0)

            for table in tables:
                with self._failures.caught(f"merging {table}"):
                    self._parts.compact(table, on_rows=advance)
            self._has_ended = _insist(lambda: self._end_run(run_row))
            on_progress(1.0)
            self._parts.sweep()
            self._closed = True

    def discard(self) -> None:
        """Stops without writing, because the recording cannot begin."""
        self._stop.set()
        with self._lock:
            self._closed = True

    @property
    def is_all_written(self) -> bool:
        """Whether the run has ended and is completely in sealed parts."""
        return self._has_ended and self._has_nothing_left()

    def _has_nothing_left(self) -> bool:
        return not self._backlog and not self._metadata

    def _run(self) -> None:
        """Runs the sink's thread."""
        reason = Wake.INTERVAL
        while True:
            try:
                with self._lock:
                    if self._closed:
                        return
                    self._take_all(leaves_rest=reason is Wake.ENOUGH_RECORDS)
                    self._write()
                self._files.touch()
                if self._stop.is_set():
                    return
                if reason is Wake.BAD_VALUE:
                    self._pace.pause()
                    reason = Wake.INTERVAL
                else:
                    reason = self._pace.wait()
            except Exception as error:
                self._failures.add("thread", error)
                self._stop.wait(self._flush_interval_s)
            if self._stop.is_set():
                return

    def _take_all(self, *, last: bool = False, leaves_rest: bool = False) -> None:
        """Moves everything from the recorder to the backlog.

        Args:
            last: Whether no more events will come.
            leaves_rest: Whether to leave events behind if they are fewer than a batch, so that there are fewer parts.
        """
        while True:
            drained = self._recorder.drain(self._flush_rows)
            with self._failures.caught("names"):
                self._names.refresh()
            self._queue_metadata()  # after the drain, so that everything that the records refer to is included
            is_last = len(drained) < self._flush_rows
            self._take(join_records([self._carry, drained]) if len(self._carry) else drained, last=last and is_last)
            if is_last:
                break
            self._write()
            if leaves_rest and self._recorder.capacity() - self._recorder.num_free() < self._flush_rows:
                break
        self._losses.note()
        self._queue_metadata()

    def _take(self, records: Records, *, last: bool) -> None:
        whole = len(records) if last else num_whole(records)
        self._carry = pick(records, np.arange(whole, len(records)))
        if whole == 0:
            return
        self._num_events = int(records["commit"][whole - 1])
        self.has_bad_values = self.has_bad_values or bool(np.any(records["flags"][:whole] & Flag.BAD))
        if self._on_records is not None:
            with self._failures.caught("masked values"):
                self._on_records(records[:whole])
        try:
            batch = Batch(
                pick(records, np.arange(whole)) if whole < len(records) or not records.flags.writeable else records
            )
            graph = np.flatnonzero(batch.kind == Kind.GRAPH_TENSOR)
            batch.set_execution_index(graph, self._join(batch)[graph])
            for part in split_by_value_bytes(batch, max_bytes=self._max_value_bytes):
                self._take_batch(part)
        except Exception as error:
            self._failures.add("convert", error, num_events=whole)
            self._num_lost += whole
        self._spool_use.take(self._num_events, self._call_join.state())

    def _join(self, batch: Batch) -> Ints:
        try:
            return self._call_join.join(batch, graph_ids=self._names.graph_ids(batch))
        except Exception as error:
            self._failures.add("call_join", error)
            return np.full(len(batch), NO_CALL, dtype=np.int64)

    def _take_batch(self, batch: Batch) -> None:
        values = self._values.read(batch, failures=self._failures)
        if self._buffer is not None:
            batch, values = self._buffer.add(batch, values=values)
        self._keep(batch, values)

    def _take_rest(self) -> None:
        """Moves the last events that the circular buffer keeps to the backlog."""
        if self._buffer is None:
            return
        batch, values = self._buffer.rest()
        try:
            self._keep(batch, values)
        except Exception as error:
            self._failures.add("convert", error, num_events=len(batch))
            self._num_lost += len(batch)

    def _keep(self, batch: Batch, values: Mapping[int, bytes]) -> None:
        if not len(batch):
            return
        self._queue_devices(batch)
        self._queue_events(batch, values)
        if sum(len(value) for value in values.values()) >= self._max_value_bytes // 2:
            self._write()

    def _queue_events(self, batch: Batch, values: Mapping[int, bytes]) -> None:
        tables = self._converter.tables(batch, values=values)
        on_written = None
        if self._budget is not None:
            if self._budget.is_too_large(tables) and (halves := split_in_two(batch)):
                for half in halves:
                    self._queue_events(half, values)
                return
            on_written = self._budget.segment(batch)
        self._backlog.add_events(tables, spool_upto=int(batch.event_index[-1]) + 1, on_written=on_written)

    def _note_kept_back(self) -> None:
        """Reports, at the end, the events that were not kept because of the settings."""
        if self._budget is not None:
            self._budget.note_dropped()
        if self._buffer is not None and (num_kept_back := self._buffer.num_kept_back):
            reason = f"The circular buffer kept only {self._buffer.retention.kept}, as requested."
            subject = "execution or graph tensor"
            self._failures.note("dropped", subject, reason, num_kept_back, reason_code="circular_buffer")

    def _queue_devices(self, batch: Batch) -> None:
        devices = {i: name for i, name in self._converter.devices(batch).items() if i not in self._devices}
        self._devices.update(devices)
        self.append("device", [{"device_id": i, "device_name": name} for i, name in devices.items()])
        self._queue_metadata()

    def _queue_metadata(self) -> None:
        with self._failures.caught("metadata"):
            for table, data, upto in self._metadata.take(self._num_events):
                self._backlog.add_metadata(table, data, spool_upto=upto)

    def _write(self) -> bool:
        """Writes the backlog in order, and returns whether it is empty; rows that cannot be written stay in it."""
        self._queue_metadata()
        tables = self._backlog.write()
        for table in tables if self._budget is None else tables.difference(EVENT_TABLES):
            with self._failures.caught("merge"):
                self._parts.merge_small(table)
        self._backlog.bound()
        release_unused()
        with self._failures.caught("spool"):
            self._spool_use.release(rows_upto=self._metadata.taken_upto, is_all_written=not self._backlog)
        if not self._stop.is_set():
            self._bound_parts()
        if tables and self._backlog.has_evicted and not self._backlog:
            self._backlog.note_evicted()
            self._write()
        return not self._backlog and not self._metadata

    def _bound_parts(self, *, last: bool = False) -> None:
        """Keeps the parts that wait for their upload within their limit, and reports the rows that were dropped."""
        if self._uploader is None:
            return
        with self._failures.caught("local parts"):
            self._uploader.make_room(self._parts)
        for table, count in self._uploader.take_dropped(last=last).items():
            self._num_lost += count
            reason = "The logdir's store could not be reached, and the limit for waiting parts was reached."
            self._failures.note("dropped", f"table {table}", reason, count, reason_code="store_unreachable")

    def _end_run(self, run_row: Mapping[str, object]) -> bool:
        """Replaces the run's first row with its final one; returns whether that succeeded."""
        try:
            self._write()  # also writes reports of merging, or of an earlier attempt
            if self._failures.has_notes:
                self._write()  # writes reports of this attempt
            row = dict(run_row if self._redact is None else self._redact("run", [run_row])[0])
            if self._num_lost or self._losses.num_dropped or self._backlog.num_lost or not self._has_nothing_left():
                row["is_clean_end"] = False
            old = [entry.path for entry in self._parts.parts("run")]
            self._parts.replace(old, {"run": [metadata_table("run", [row], run_id=self._run_id)]})
        except Exception as error:
            self._failures.add("run", error)
            return False
        return True


def _insist(attempt: Callable[[], bool]) -> bool:
    """Repeats an attempt a few times until it succeeds, because nobody retries after the end.

    Returns whether it succeeded.
    """
    for number in range(_END_ATTEMPTS):
        if number:
            time.sleep(_END_PAUSE_S)
        if attempt():
            return True
    return False


class SpoolLosses:
    """Reports data that did not fit into the spool or could not be written to disk.

    Not thread-safe; the caller must serialise calls.

    Args:
        recorder: The recorder that owns the spool.
        files: The journals of the spool.
        failures: Collects the failures.

    Attributes:
        num_dropped: Number of records that did not fit and have been reported.
    """

    def __init__(self, recorder: Backend, files: RunFiles, *, failures: Failures) -> None:
        self._recorder, self._files, self._failures = recorder, files, failures
        self.num_dropped = self._num_unkept = self._num_refused = self._num_unchanged = self._num_unwritten = 0

    def note(self) -> None:
        """Reports the losses since the last call."""
        dropped = self._recorder.num_dropped()
        if dropped > self.num_dropped:
            reason = "The spool had no room: events came faster than they were written."
            self._failures.note("dropped", "event", reason, dropped - self.num_dropped, reason_code="spool_full")
            self.num_dropped = dropped
        unkept = self._recorder.num_unkept_values()
        if unkept > self._num_unkept:
            error = OSError("the elements of tensors could not be written to the spool")
            self._failures.add("tensor_value", error, num_events=unkept - self._num_unkept)
            self._num_unkept = unkept
        refused = self._recorder.num_unkept_inputs()
        if refused > self._num_refused:
            reason = (
                "on_nonfinite='keep' keeps at most 256 MiB of inputs, and at most 16 MiB for one op after its first "
                "bad value."
            )
            self._failures.note(
                "unkept", "the inputs of a bad value", reason, refused - self._num_refused, reason_code="input_budget"
            )
            self._num_refused = refused
        num_unchanged = self._recorder.num_known_arguments()
        if num_unchanged > self._num_unchanged:
            reason = "is the same tensor as in the call before, and was healthy when it was last measured"
            self._failures.note(
                "unchanged", "a large argument of a function", reason, num_unchanged - self._num_unchanged
            )
            self._num_unchanged = num_unchanged
        self._note_unwritten()

    def _note_unwritten(self) -> None:
        """Writes the names again, then reports names and rows that exist only in the memory of this process."""
        names, rows = self._files.names, self._files.rows
        names.write_kept()
        unwritten = self._files.num_unwritten + self._recorder.write_names()
        if unwritten > self._num_unwritten:
            self._num_unwritten = unwritten
            error = names.last_error or rows.last_error or OSError("the disk did not accept them")
            is_disk = isinstance(error, OSError)
            how = "of a failed write" if is_disk else "they could not be encoded"
            told = f"names or rows would be lost in a crash, because {how}: {type(error).__name__}: {error}"
            self._failures.add("journal", OSError(told) if is_disk else ValueError(told))
