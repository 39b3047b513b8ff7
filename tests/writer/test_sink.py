from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tfdbg_arrow.errors import FormatVersionError, LogdirError
from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.schema.dtypes import dtype_itemsize
from tfdbg_arrow.spool.circular_buffer import Retention
from tfdbg_arrow.spool.journal import RunFiles
from tfdbg_arrow.spool.records import NO_STEP, NO_VALUE, RECORD_DTYPE, Flag, Kind, join_records
from tfdbg_arrow.storage.layout import spool_paths
from tfdbg_arrow.storage.manifest import ManifestEntry, read_live_parts
from tfdbg_arrow.writer.memory import MemoryShares
from tfdbg_arrow.writer.sink.parts import KEPT_PARTS, PartWriter
from tfdbg_arrow.writer.sink.sink import Sink

RUN_ID = "run1"
MEASURED = Flag.COVERED | Flag.SHAPE | Flag.CHECKED
RUN_ROW = {
    "wall_time_ns": 1,
    "is_clean_end": True,
    "circular_buffer_size": -1,
    "pid": 1,
    **dict.fromkeys(("format_version", "tfdbg_arrow_version", "python_version", "platform", "host_name"), "x"),
    **dict.fromkeys(("command_line", "working_directory", "tensor_debug_mode", "health_backend", "settings"), "x"),
}


class FakeRecorder:
    """A recorder that holds records in a list. An event with `bad` wakes the sink."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[np.ndarray] = []
        self._num_events = 0
        self._urgent = threading.Event()
        self.was_asked_to_wait = threading.Event()
        self.values = b""
        self.released: list[int] = []
        self.released_upto = 0
        self.dropped = 0
        self.texts = ["", "CPU:0", "MatMul", "__inference_f_1"]

    def record(self, kind: Kind, *, bad: bool = False, dims: Sequence[int] = (), **fields: Any) -> None:
        made = np.zeros(1, RECORD_DTYPE)
        ids = dict.fromkeys(("tensor_id", "execution_index"), NO_VALUE)
        for name, value in ({"step": NO_STEP, "kind": kind, "dtype": 1} | ids | fields).items():
            made[name] = value
        made["rank"], made["dims"][0, : len(dims)] = fields.get("rank", len(dims)), dims
        if dims:
            made["size"] = np.prod(dims)
        if fields.get("flags", 0) & Flag.VALUE:
            made["value_bytes"] = made["size"] * dtype_itemsize(int(made["dtype"][0]))
        with self._lock:
            self._num_events += 1
            made["commit"] = self._num_events
            self._waiting.append(made)
        if bad:
            self._urgent.set()

    def drain(self, max_records: int) -> np.ndarray:
        with self._lock:
            taken, self._waiting = self._waiting[:max_records], self._waiting[max_records:]
        return join_records(taken)

    def release(self, upto: int, rows_upto: int) -> None:
        self.released_upto = upto

    def num_free(self) -> int:
        return self.capacity() - (self._num_events - self.released_upto)

    def capacity(self) -> int:
        return 1 << 20

    def write_names(self) -> int:
        return 0

    def num_unkept_values(self) -> int:
        return 0

    def num_unkept_inputs(self) -> int:
        return 0

    def num_known_arguments(self) -> int:
        return 0

    def wake(self) -> None:
        self._urgent.set()

    def wait(self, timeout_s: float, pending: int) -> bool:
        self.was_asked_to_wait.set()
        end = time.monotonic() + timeout_s
        while len(self._waiting) < pending and (rest := end - time.monotonic()) > 0:
            if self._urgent.wait(min(rest, 0.01)):
                self._urgent.clear()
                return True
        return False

    def strings(self, start: int) -> list[str]:
        return self.texts[start:]

    def read_value(self, offset: int, size: int) -> bytes:
        return self.values[offset : offset + size]

    def release_values(self, upto: int) -> None:
        self.released.append(upto)

    def num_dropped(self) -> int:
        return self.dropped


class FakeGraphs:
    """A call graph with one function, `__inference_f_1` of graph 7, which has one tensor."""

    def nodes(self, start: int) -> Sequence[tuple[int, str, str, int]]:
        return [(7, "dense/MatMul", "MatMul", 0)][start:]

    def graph_id_of_function(self, function_name: str) -> int | None:
        return 7 if function_name == "__inference_f_1" else None

    def call_site(self, path: str, inner_graph_id: int) -> str:
        return path

    def reaches(self, graph_id: int, inner_graph_id: int) -> bool:
        return graph_id == inner_graph_id


class Recording:
    def __init__(self, logdir: Path, **options: Any) -> None:
        self.logdir = logdir
        self.recorder = FakeRecorder()
        self.told: list[str] = []
        defaults: dict[str, Any] = {"flush_interval_s": 60.0, "on_failure": self.told.append}
        self.sink = Sink(
            logdir,
            RUN_ID,
            recorder=self.recorder,
            files=RunFiles(spool_paths(logdir.parent / f"{logdir.name}.{uuid4().hex}", run_id=RUN_ID), run_id=RUN_ID),
            links=FakeGraphs(),
            **(defaults | options),
        )

    def start(self) -> Recording:
        self.sink.append("run", [RUN_ROW])
        self.sink.start()
        return self

    def close(self, **changes: Any) -> None:
        self.sink.close(run_row=RUN_ROW | changes)

    def call(self, execution_index: int, *, step_id: int, tensors: int = 1) -> None:
        """Records a call of the function with its tensors and its eager result."""
        recorder = self.recorder
        recorder.record(Kind.EXECUTION, node=3, execution_index=execution_index, step_id=9, slot=1)
        for _ in range(tensors):
            recorder.record(Kind.GRAPH_TENSOR, node=0, step_id=step_id, flags=MEASURED | Flag.CONTEXT, dims=(2,))
        recorder.record(Kind.EXECUTION_END, execution_index=execution_index)
        recorder.record(Kind.EXECUTION_TENSOR, node=3, execution_index=execution_index, tensor_id=5, flags=MEASURED)

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """Returns the rows of the parts in the manifest."""
        found = []
        for entry in read_live_parts(self.logdir, run_id=RUN_ID):
            if entry.table == table:
                data = pq.read_table(self.logdir / entry.path, partitioning=None)
                found += [tuple(row[column] for column in columns) for row in data.to_pylist()]
        return found


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Recording]:
    made = Recording(tmp_path / "logdir").start()
    yield made
    made.close()


def eventually(happened: Callable[[], bool]) -> bool:
    end = time.monotonic() + 30
    while not happened() and time.monotonic() < end:
        time.sleep(0.01)
    return happened()


HEALTH = ("event_index", "scope", "execution_index", "op_name")


def test_every_table_can_be_opened_by_its_path_at_the_start(recording: Recording) -> None:
    assert (recording.logdir / "tfdbg_arrow.json").exists()
    for table in TABLES:
        found = pq.read_table(recording.logdir / table.name).schema.names
        assert found == [*(column.name for column in table.columns), "run"]


def test_flush_seals_everything_recorded_before(recording: Recording) -> None:
    recording.call(0, step_id=50)
    recording.sink.append("graph_function", [{"function_name": "__inference_f_1", "graph_id": 7}])
    recording.sink.flush()
    assert recording.rows("tensor_health", *HEALTH) == [(1, "graph", 0, "dense/MatMul"), (3, "execution", 0, None)]
    assert recording.rows("execution", "execution_index", "graph_id", "op_type") == [(0, 7, "__inference_f_1")]
    assert recording.rows("execution_output", "execution_index", "tensor_id") == [(0, 5)]
    assert recording.rows("graph_function", "run_id", "graph_id") == [(RUN_ID, 7)]


def test_a_flush_that_interrupts_an_append_ends(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler can do this. The sink's thread then holds its lock, and waits for the lock of `append`."""
    monkeypatch.setattr("tfdbg_arrow.writer.sink.sink._MAX_FLUSH_WAIT_S", 0.2)
    is_held, may_go = threading.Event(), threading.Event()

    def flush_elsewhere() -> None:
        with recording.sink._lock:
            is_held.set()
            may_go.wait()

    other = threading.Thread(target=flush_elsewhere)
    other.start()
    is_held.wait()
    recording.sink.append("graph_function", [{"function_name": "f", "graph_id": 7}], recording.sink.flush)
    may_go.set()
    other.join()
    assert any("the sink was busy" in text for text in recording.told)
    recording.sink.flush()
    assert recording.rows("graph_function", "graph_id") == [(7,)]


def test_metadata_is_in_the_manifest_before_the_events_that_refer_to_it(recording: Recording) -> None:
    recording.call(0, step_id=50)
    recording.recorder.record(Kind.GRAPH_TENSOR, node=0, device=1, flags=MEASURED)
    recording.sink.append("graph_function", [{"function_name": "f", "graph_id": 7}])
    recording.sink.flush()
    order = [entry.table for entry in read_live_parts(recording.logdir, run_id=RUN_ID) if entry.rows]
    assert max(order.index("graph_function"), order.index("device")) < order.index("tensor_health")
    recording.recorder.record(Kind.GRAPH_TENSOR, node=0, device=1, flags=MEASURED)
    recording.sink.flush()
    assert recording.rows("device", "device_id", "device_name") == [(1, "CPU:0")]


def test_a_bad_value_is_written_at_once(recording: Recording) -> None:
    recording.recorder.record(Kind.GRAPH_TENSOR, node=0, flags=MEASURED | Flag.BAD, bad=True)
    assert eventually(lambda: recording.rows("tensor_health", "has_inf_or_nan") == [(True,)])


def test_only_the_first_of_many_bad_values_is_written_at_once(recording: Recording) -> None:
    bad = {"node": 0, "flags": MEASURED | Flag.BAD, "bad": True}
    recording.recorder.record(Kind.GRAPH_TENSOR, **bad)
    assert eventually(lambda: len(recording.rows("tensor_health", "event_index")) > 0)
    for _ in range(50):
        recording.recorder.record(Kind.GRAPH_TENSOR, **bad)
        time.sleep(0.005)
    entries = read_live_parts(recording.logdir, run_id=RUN_ID)
    # There are two parts if the thread took the first event before it was woken.
    assert len([entry for entry in entries if entry.table == "tensor_health" and entry.rows]) <= 2
    recording.close()
    assert len(recording.rows("tensor_health", "event_index")) == 51


def test_a_rest_that_is_smaller_than_a_batch_waits_for_more_events(tmp_path: Path) -> None:
    recording = Recording(tmp_path, flush_rows=10).start()
    recording.recorder.was_asked_to_wait.wait()  # the first write does not leave a rest
    with recording.sink._lock:  # so that all events wait when the thread wakes up
        for _ in range(25):
            recording.recorder.record(Kind.GRAPH_TENSOR, node=0, flags=MEASURED)
    parts = partial(_part_rows, recording, "tensor_health")
    assert eventually(lambda: sum(parts()) >= 20)
    assert parts() == [10, 10]
    for _ in range(5):
        recording.recorder.record(Kind.GRAPH_TENSOR, node=0, flags=MEASURED)
    assert eventually(lambda: sum(parts()) >= 30)
    assert parts() == [10, 10, 10]
    recording.recorder.record(Kind.GRAPH_TENSOR, node=0, flags=MEASURED)
    recording.close()
    assert parts() == [10, 10, 10, 1]


def _part_rows(recording: Recording, table: str) -> list[int]:
    """Returns the number of rows of each part that has rows."""
    entries = read_live_parts(recording.logdir, run_id=RUN_ID)
    return [entry.rows for entry in entries if entry.table == table and entry.rows]


def test_events_are_written_at_each_interval(tmp_path: Path) -> None:
    recording = Recording(tmp_path, flush_interval_s=0.05).start()
    recording.call(0, step_id=50)
    assert eventually(lambda: len(recording.rows("tensor_health", "event_index")) == 2)
    recording.close()


@pytest.mark.parametrize("flush_rows", [1, 2, 3, 7])
def test_groups_split_between_drains_stay_complete(tmp_path: Path, flush_rows: int) -> None:
    recording = Recording(tmp_path, flush_rows=flush_rows).start()
    for index in range(5):
        recording.recorder.record(Kind.EXECUTION, node=2, execution_index=index, size=25)
        recording.recorder.record(Kind.INPUTS, slot=19)
        tensor = {"node": 2, "execution_index": index, "flags": MEASURED, "rank": 8}
        recording.recorder.record(Kind.EXECUTION_TENSOR, dims=(1,) * 4, **tensor)
        recording.recorder.record(Kind.DIMS, dims=(1, 1, 2, 3))
    recording.close()
    expected = [(index, i) for index in range(5) for i in range(25)]
    assert recording.rows("execution_input", "execution_index", "input_index") == expected
    assert recording.rows("tensor_health", "shape") == [([1] * 6 + [2, 3],)] * 5


def test_close_replaces_the_run_row_and_leaves_one_part_for_each_table(recording: Recording) -> None:
    for step in range(20):
        recording.call(step, step_id=step)
        recording.sink.flush()
    recording.close(end_wall_time_ns=99)
    recording.close(end_wall_time_ns=100)
    assert recording.rows("run", "end_wall_time_ns", "is_clean_end") == [(99, True)]
    entries = read_live_parts(recording.logdir, run_id=RUN_ID)
    assert len(entries) == len(TABLES)
    on_disk = {p.relative_to(recording.logdir).as_posix() for p in recording.logdir.glob("*/run=*/*")}
    assert on_disk == {entry.path for entry in entries}
    expected = [row for s in range(20) for row in ((s * 4 + 1, "graph", s), (s * 4 + 3, "execution", s))]
    assert recording.rows("tensor_health", *HEALTH[:3]) == expected
    recording.sink.flush()
    assert recording.told == []


def test_dropped_events_become_a_row_and_an_unclean_end(recording: Recording) -> None:
    recording.recorder.dropped = 3
    recording.sink.flush()
    recording.recorder.dropped = 5
    recording.close()
    assert recording.rows("capture_stat", "stat", "subject", "num_events") == [
        ("dropped", "event", 3),
        ("dropped", "event", 2),
    ]
    assert recording.rows("run", "is_clean_end") == [(False,)]


def test_elements_without_a_record_are_not_released(recording: Recording) -> None:
    recorder = recording.recorder
    recorder.values = bytes(range(6))
    flags = MEASURED | Flag.VALUE
    # Another thread stored its elements first but writes its record last.
    recorder.record(Kind.GRAPH_TENSOR, node=0, dims=(2,), value_offset=4, flags=flags, dtype=4)
    recording.sink.flush()
    assert recorder.released == []
    recorder.record(Kind.GRAPH_TENSOR, node=0, dims=(4,), value_offset=0, flags=flags, dtype=4)
    recording.sink.flush()
    assert recorder.released == [6]
    assert recording.rows("tensor_value", "event_index", "value") == [(0, bytes([4, 5])), (1, bytes(range(4)))]


def test_values_are_written_and_their_space_is_released_in_order(recording: Recording) -> None:
    recorder = recording.recorder
    recorder.values = bytes(range(200)) * 10
    flags = MEASURED | Flag.VALUE
    recorder.record(Kind.GRAPH_TENSOR, node=0, dims=(2,), value_offset=1000, flags=flags, dtype=4)
    recording.sink.flush()
    assert recorder.released == []  # elements before 1000 are not read yet
    recorder.record(Kind.GRAPH_TENSOR, node=0, dims=(250,), value_offset=0, flags=flags)
    recorder.record(Kind.GRAPH_TENSOR, node=0, dims=(0,), value_offset=0, flags=flags)
    recording.sink.flush()
    assert recorder.released == [1002]
    values = [(0, "uint8", b"\x00\x01"), (1, "float32", recorder.values[:1000]), (2, "float32", b"")]
    assert recording.rows("tensor_value", "event_index", "dtype", "value") == values


def test_large_values_are_read_in_bounded_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryShares, "batch_value_bytes", 16)
    recording = Recording(tmp_path).start()
    recording.recorder.values = bytes(range(100))
    flags = MEASURED | Flag.VALUE
    for i in range(10):
        recording.recorder.record(Kind.GRAPH_TENSOR, node=0, dims=(10,), value_offset=10 * i, flags=flags, dtype=4)
    recording.sink.flush()
    parts = [e for e in read_live_parts(tmp_path, run_id=RUN_ID) if e.table == "tensor_value" and e.rows]
    assert max(entry.rows for entry in parts) <= 2
    recording.close()
    expected = [(i, bytes(range(10 * i, 10 * i + 10))) for i in range(10)]
    assert recording.rows("tensor_value", "event_index", "value") == expected


def buffered(logdir: Path, *, size: int) -> Recording:
    return Recording(logdir, retention=Retention(size=size, num_after=1, only_bad=False)).start()


class TestCircularBuffer:
    def test_only_the_last_are_kept(self, tmp_path: Path) -> None:
        recording = buffered(tmp_path, size=2)
        for step in range(5):
            recording.call(step, step_id=step, tensors=3)
        recording.close()
        assert sorted(recording.rows("tensor_health", *HEALTH[:3])) == sorted(
            [(26, "graph", 4), (27, "graph", 4), (23, "execution", 3), (29, "execution", 4)]
        )
        assert recording.rows("execution", "execution_index") == [(3,), (4,)]
        assert recording.rows("execution_output", "execution_index") == [(3,), (4,)]
        assert recording.rows("capture_stat", "stat", "subject", "num_events") == [
            ("dropped", "execution or graph tensor", 3 + 13)
        ]
        assert recording.rows("run", "is_clean_end") == [(True,)]

    def test_a_flush_empties_the_buffer_into_parts(self, tmp_path: Path) -> None:
        recording = buffered(tmp_path, size=2)
        for step in range(4):
            recording.call(step, step_id=step)
        recording.sink.flush()
        assert recording.rows("execution", "execution_index") == [(2,), (3,)]
        recording.sink.flush()
        recording.call(4, step_id=4)
        recording.close()
        assert recording.rows("execution", "execution_index") == [(2,), (3,), (4,)]

    def test_old_records_and_values_are_freed(self, tmp_path: Path) -> None:
        recording = buffered(tmp_path, size=3)
        recording.recorder.values = b"abcdefgh" * 100
        for i in range(50):
            flags = MEASURED | Flag.VALUE
            recording.recorder.record(Kind.GRAPH_TENSOR, node=0, dims=(2,), value_offset=i, flags=flags, dtype=4)
            recording.recorder.record(Kind.EXECUTION, node=2, execution_index=i)
        with recording.sink._lock:
            recording.sink._take_all()
        assert recording.sink._buffer is not None
        assert sorted(recording.sink._buffer._values) == [94, 96, 98]
        recording.close()
        assert recording.rows("tensor_value", "event_index") == [(94,), (96,), (98,)]


class TestFailures:
    def test_a_full_disk_delays_rows_but_loses_none(
        self, recording: Recording, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("tfdbg_arrow.storage.disk.os.replace", _full_disk)
            recording.call(0, step_id=50)
            recording.sink.append("graph_function", [{"function_name": "f", "graph_id": 7}])
            recording.sink.flush()
            recording.call(1, step_id=51)
            recording.sink.flush()
            assert recording.rows("tensor_health", "event_index") == []
        recording.close()
        assert recording.rows("tensor_health", "event_index") == [(1,), (3,), (5,), (7,)]
        assert recording.rows("graph_function", "graph_id") == [(7,)]
        assert [text for text in recording.told if "No space" in text] == recording.told
        assert len(recording.told) == 1
        assert ("failed", "write") in recording.rows("capture_stat", "stat", "subject")
        assert recording.rows("run", "is_clean_end") == [(True,)]

    def test_rows_that_waited_become_one_part_of_each_table_in_the_order_of_their_references(
        self, recording: Recording, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("tfdbg_arrow.storage.disk.os.replace", _full_disk)
            for call in range(3):
                recording.call(call, step_id=50 + call)
                recording.sink.append("graph_function", [{"function_name": f"f{call}", "graph_id": 7}])
                recording.sink.append(
                    "graph", [{"graph_id": 7 + call, "graph_name": "f", "wall_time_ns": 1, "stack_trace_id": None}]
                )
                recording.sink.flush()
        recording.sink.flush()
        order = [entry.table for entry in read_live_parts(recording.logdir, run_id=RUN_ID) if entry.rows]
        order.remove("capture_stat")  # reports the full disk
        assert order == ["run", "graph", "graph_function", "execution", "execution_output", "tensor_health"]
        assert recording.rows("graph_function", "function_name") == [("f0",), ("f1",), ("f2",)]
        assert recording.rows("tensor_health", "event_index") == [(event,) for event in range(1, 12, 2)]

    def test_the_oldest_events_beyond_the_bound_are_dropped_and_counted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(MemoryShares, "waiting_bytes", 300_000)
        recording = Recording(tmp_path).start()
        with monkeypatch.context() as patch:
            patch.setattr("tfdbg_arrow.storage.disk.os.replace", _full_disk)
            recording.sink.append("graph_function", [{"function_name": "f", "graph_id": 7}])
            for _ in range(40):
                recording.recorder.record(Kind.GRAPH_TENSOR, node=0, flags=MEASURED)
                recording.sink.flush()
        recording.close()
        kept = [event for (event,) in recording.rows("tensor_health", "event_index")]
        assert 0 < len(kept) < 40
        assert kept == list(range(40 - len(kept), 40))
        dropped = recording.rows("capture_stat", "stat", "subject", "num_events")
        assert sum(
            n for stat, subject, n in dropped if (stat, subject) == ("dropped", "table tensor_health")
        ) == 40 - len(kept)
        assert recording.rows("graph_function", "graph_id") == [(7,)]
        assert recording.rows("run", "is_clean_end") == [(False,)]

    def test_an_invalid_metadata_row_is_reported_and_the_valid_ones_are_written(self, recording: Recording) -> None:
        rows: list[Mapping[str, object]] = [{"device_id": 1, "device_name": "a"}, {"device_id": "x"}, {"oops": 1}]
        recording.sink.append("device", rows)
        recording.sink.append("no_such_table", [{"a": 1}])
        recording.call(0, step_id=50)
        recording.close()
        assert recording.rows("device", "device_id", "device_name") == [(1, "a")]
        assert len(recording.rows("tensor_health", "event_index")) == 2
        subjects = {subject for stat, subject in recording.rows("capture_stat", "stat", "subject") if stat == "failed"}
        assert {"table device", "table no_such_table"} <= subjects

    def test_a_part_that_cannot_be_written_does_not_keep_the_others_back(
        self, recording: Recording, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_tables = PartWriter.write_tables

        def failing(self: PartWriter, tables: Mapping[str, pa.Table], **settings: Any) -> list[ManifestEntry]:
            if "graph_function" in tables:
                raise ValueError("no part")
            return write_tables(self, tables, **settings)

        monkeypatch.setattr(PartWriter, "write_tables", failing)
        recording.call(0, step_id=50)
        recording.sink.append("graph_function", [{"function_name": "f", "graph_id": 7}])
        recording.sink.append("device", [{"device_id": 1, "device_name": "a"}])
        recording.close()
        assert recording.rows("device", "device_id", "device_name") == [(1, "a")]
        assert len(recording.rows("tensor_health", "event_index")) == 2
        assert recording.rows("graph_function", "graph_id") == []
        assert ("failed", "table graph_function", 1) in recording.rows("capture_stat", "stat", "subject", "num_events")
        assert recording.rows("run", "is_clean_end") == [(False,)]

    def test_the_thread_survives_any_failure(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        recording = Recording(tmp_path, flush_interval_s=0.02).start()
        real = recording.recorder.drain
        failures = iter([ValueError("one"), KeyError("two"), ValueError("three")])

        def failing(max_records: int) -> np.ndarray:
            error = next(failures, None)
            if error is not None:
                raise error
            return real(max_records)

        monkeypatch.setattr(recording.recorder, "drain", failing)
        recording.call(0, step_id=50)
        assert eventually(lambda: len(recording.rows("tensor_health", "event_index")) == 2)
        recording.close()
        assert [text.split(": ", 1)[1] for text in recording.told] == ["ValueError: one", "KeyError: 'two'"]
        again = "Further errors of type ValueError: 1."
        assert [r for s, r in recording.rows("capture_stat", "stat", "reason") if s == "failed"][-1] == again

    def test_a_batch_that_cannot_be_converted_is_counted(
        self, recording: Recording, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(recording.sink._converter, "tables", _raise)
            recording.call(0, step_id=50)
            recording.sink.flush()
        recording.call(1, step_id=51)
        recording.close()
        assert recording.rows("tensor_health", "execution_index") == [(1,), (1,)]
        assert recording.rows("capture_stat", "subject", "num_events") == [("convert", 4)]
        assert recording.rows("run", "is_clean_end") == [(False,)]

    def test_every_table_whose_parts_cannot_be_merged_is_reported(self, recording: Recording) -> None:
        for execution_index in range(KEPT_PARTS + 1):
            recording.call(execution_index, step_id=50 + execution_index)
            recording.sink.flush()
        for table in ("execution", "tensor_health"):
            last = sorted((recording.logdir / table).rglob("part-*.parquet"))[-1]
            last.write_bytes(b"changed")
        recording.close()
        failed = [
            (subject, reason.partition(":")[0])
            for stat, subject, reason in recording.rows("capture_stat", "stat", "subject", "reason")
            if stat == "failed"
        ]
        assert failed == [("merging execution", "BrokenPartError"), ("merging tensor_health", "BrokenPartError")]

    def test_a_callback_that_raises_does_no_harm(self, tmp_path: Path) -> None:
        recording = Recording(tmp_path, on_failure=_raise).start()
        recording.sink.append("device", [{"device_id": None}])
        recording.sink.flush()
        recording.close()
        assert recording.rows("capture_stat", "stat", "subject") == [("failed", "table device")]


class TestStart:
    def test_a_logdir_that_is_a_file_raises_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(LogdirError, match="cannot be written"):
            Recording(tmp_path / "file").sink.start()

    def test_a_logdir_of_a_newer_major_version_raises_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "tfdbg_arrow.json").write_text('{"format": "tfdbg_arrow", "format_version": "99.0"}')
        with pytest.raises(FormatVersionError, match=r"99\.0"):
            Recording(tmp_path).sink.start()

    def test_two_runs_share_a_logdir(self, recording: Recording) -> None:
        with pytest.raises(LogdirError, match="cannot be written"):
            Recording(recording.logdir).sink.start()


def test_no_rows_from_many_threads_are_lost(recording: Recording) -> None:
    def work(thread: int) -> None:
        for i in range(20):
            recording.sink.append("device", [{"device_id": thread * 100 + i, "device_name": "d"}])
            recording.recorder.record(Kind.EXECUTION, node=2, execution_index=thread * 100 + i)
            recording.sink.flush()

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [(thread * 100 + i,) for thread in range(4) for i in range(20)]
    assert sorted(recording.rows("device", "device_id")) == expected
    assert sorted(recording.rows("execution", "execution_index")) == expected
    recording.close()
    assert sorted(recording.rows("execution", "execution_index")) == expected
    assert recording.told == []


def _full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _raise(*_: object, **__: object) -> Any:
    raise RuntimeError("on purpose")
