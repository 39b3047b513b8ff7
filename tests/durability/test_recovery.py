"""Test that recovery restores everything that a dead process left outside its parts exactly once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.durability.dead_process import EVENTS_RECOVERED, RUN_ID, DeadProcess, rows, stats
from tests.recovery.driver import RUN_ROW
from tfdbg_arrow.errors import BrokenPartError
from tfdbg_arrow.spool.circular_buffer import Retention
from tfdbg_arrow.spool.convert import metadata_table
from tfdbg_arrow.spool.failures import Failures
from tfdbg_arrow.spool.records import Kind
from tfdbg_arrow.spool.recovery import SealedRows
from tfdbg_arrow.storage.manifest import SpoolProgress
from tfdbg_arrow.writer.sink.backlog import MetadataQueue


@pytest.fixture
def process(tmp_path: Path) -> DeadProcess:
    return DeadProcess(tmp_path / "logdir")


def progress(events: int = 0, **by_table: int) -> SpoolProgress:
    return SpoolProgress(by_table=by_table, events=events, is_recovered=False)


def two_calls(process: DeadProcess) -> None:
    """Records events 0 to 7: two calls, each with a tensor and an end. One call needs two records for its inputs."""
    device = process.spool.intern_string("/device:CPU:0")
    process.call(0, inputs=[5, 6])
    process.tensor(100, value=b"\1\0\0\0", device=device)
    process.end(0)
    process.mark(3)
    process.call(1, inputs=list(range(20)))
    process.tensor(101, value=b"\2\0\0\0", device=device, bad=True)
    process.end(1)
    process.mark(7)


class TestSpoolContent:
    def test_events_values_and_rows_are_recovered_with_what_they_refer_to(self, process: DeadProcess) -> None:
        two_calls(process)
        process.die()
        num_events, tables = process.recovered()
        assert num_events == 4
        assert list(tables) == [
            *("execution", "execution_input", "tensor_health", "mark", "device", "tensor_value", "capture_stat")
        ]
        assert rows(tables["execution"], "run_id", "event_index", "execution_index", "op_type", "graph_id") == [
            (RUN_ID, 0, 0, "__inference_f_0", 0),
            (RUN_ID, 3, 1, "__inference_f_0", 0),
        ]
        assert rows(tables["execution_input"], "execution_index", "input_index", "tensor_id") == [
            *((0, 0, 5), (0, 1, 6)),
            *((1, i, i) for i in range(20)),
        ]
        assert rows(tables["tensor_health"], "event_index", "execution_index", "op_name", "op_type", "graph_id") == [
            (1, 0, "op", "MatMul", 0),
            (5, 1, "op", "MatMul", 0),
        ]
        assert rows(tables["tensor_health"], "step_id", "device_id", "has_inf_or_nan") == [
            (100, process.spool.intern_string("/device:CPU:0"), False),
            (101, process.spool.intern_string("/device:CPU:0"), True),
        ]
        assert rows(tables["mark"], "run_id", "event_index", "label", "value") == [
            (RUN_ID, 3, "step", "3"),
            (RUN_ID, 7, "step", "7"),
        ]
        assert rows(tables["device"], "device_id", "device_name") == [
            (process.spool.intern_string("/device:CPU:0"), "/device:CPU:0")
        ]
        assert rows(tables["tensor_value"], "event_index", "value") == [(1, b"\1\0\0\0"), (5, b"\2\0\0\0")]
        assert stats(tables) == [(*EVENTS_RECOVERED, 4)]
        assert rows(tables["capture_stat"], "run_id", "event_index", "wall_time_ns") == [(RUN_ID, 7, 6_007)]

    def test_texts_of_source_files_are_recovered(self, process: DeadProcess) -> None:
        files: list[Mapping[str, object]] = [
            {"source_file_id": number, "file_path": f"{number}.py", "source_text": text}
            for number, text in enumerate(['x = "\\n\u00e9"\n', None, ""])
        ]
        queue = MetadataQueue(RUN_ID, failures=Failures(lambda text: None), journal=process.files.rows)
        queue.append("source_file", files)
        process.record(Kind.EXECUTION_END)
        process.die()
        tables = process.recovered()[1]
        columns = ("source_file_id", "file_path", "source_text")
        assert rows(tables["source_file"], *columns) == [tuple(file.values()) for file in files]

    def test_an_empty_spool_gives_only_the_note(self, process: DeadProcess) -> None:
        os.utime(process.paths.journal, ns=(1, 123_000))
        process.die()
        num_events, tables = process.recovered()
        assert (num_events, list(tables)) == (0, ["capture_stat"])
        assert rows(tables["capture_stat"], "event_index", "wall_time_ns", "num_events") == [(0, 123_000, 0)]

    def test_the_note_has_the_latest_time(self, process: DeadProcess) -> None:
        process.record(Kind.EXECUTION_END, wall_time_ns=0)
        process.die()
        assert rows(process.recovered()[1]["capture_stat"], "event_index", "wall_time_ns") == [(1, 0)]
        later = DeadProcess(process.logdir, run_id="later")
        for time_ns in (7_000, 9_000, 8_000):
            later.record(Kind.EXECUTION_END, wall_time_ns=time_ns)
        later.die()
        assert rows(later.recovered()[1]["capture_stat"], "event_index", "wall_time_ns") == [(3, 9_000)]

    def test_records_are_recovered_in_several_chunks(
        self, process: DeadProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tfdbg_arrow.spool.spool_file.CHUNK_RECORDS", 2)
        two_calls(process)
        process.die()
        num_events, tables = process.recovered()
        assert num_events == 4
        assert rows(tables["execution_input"], "execution_index", "tensor_id")[2:] == [(1, i) for i in range(20)]
        assert rows(tables["tensor_health"], "event_index", "execution_index") == [(1, 0), (5, 1)]
        assert rows(tables["tensor_value"], "event_index", "value") == [(1, b"\1\0\0\0"), (5, b"\2\0\0\0")]
        assert rows(tables["capture_stat"], "event_index", "wall_time_ns", "num_events") == [(7, 6_007, 4)]
        assert len(tables["device"]) == 1

    def test_a_call_without_its_last_inputs_is_recovered(self, process: DeadProcess) -> None:
        process.call(0, inputs=list(range(19)), num_inputs=60)
        process.die()
        num_events, tables = process.recovered()
        assert num_events == 1
        assert rows(tables["execution"], "execution_index", "num_inputs") == [(0, 60)]
        assert rows(tables["execution_input"], "tensor_id") == [(i,) for i in range(19)]

    def test_a_tensor_of_a_call_before_the_tail_is_recovered(self, process: DeadProcess) -> None:
        process.call(0)
        process.files.rows.append("tail", 0, {"calls": [[9, 0, 9, 0]]})
        process.files.rows.append("tail", 1, {"calls": [[0, 0, 1, 0]]})
        process.files.rows.append("tail", 2, {"calls": []})
        process.spool.drain(1)
        process.spool.release(1, 0)
        process.tensor(100)
        process.die()
        num_events, tables = process.recovered()
        assert num_events == 1
        assert rows(tables["tensor_health"], "event_index", "execution_index") == [(1, 0)]

    def test_chunks_without_an_event_are_joined_to_their_call(
        self, process: DeadProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tfdbg_arrow.spool.spool_file.CHUNK_RECORDS", 1)
        process.call(0, inputs=list(range(40)))
        process.die()
        assert len(process.recovered()[1]["execution_input"]) == 40


class TestSealedRows:
    def test_events_in_parts_are_left_out_by_table(self, process: DeadProcess) -> None:
        two_calls(process)
        process.die()
        num_events, tables = process.recovered(
            progress=progress(execution=1, execution_input=7, tensor_health=2, tensor_value=0)
        )
        assert num_events == 2
        assert rows(tables["execution"], "event_index") == [(3,)]
        assert "execution_input" not in tables
        assert rows(tables["tensor_health"], "event_index") == [(5,)]
        assert rows(tables["tensor_value"], "event_index") == [(1,), (5,)]

    def test_events_in_parts_are_left_out_of_all_event_tables(self, process: DeadProcess) -> None:
        two_calls(process)
        process.die()
        num_events, tables = process.recovered(progress=progress(events=3, tensor_value=6))
        assert num_events == 2
        assert rows(tables["execution"], "event_index") == [(3,)]
        assert rows(tables["execution_input"], "execution_index") == [(1,)] * 20
        assert rows(tables["tensor_health"], "event_index") == [(5,)]
        assert "tensor_value" not in tables

    def test_values_in_parts_are_left_out_by_either_progress(self, process: DeadProcess) -> None:
        two_calls(process)
        process.die()
        for left in (progress(events=2), progress(tensor_value=2), progress(events=2, tensor_value=1)):
            assert rows(process.recovered(progress=left)[1]["tensor_value"], "event_index") == [(5,)]
        with_more = process.recovered(progress=progress(events=6))[1]
        assert list(with_more) == ["mark", "device", "capture_stat"]

    def test_rows_in_parts_are_left_out_by_offset(self, process: DeadProcess) -> None:
        process.mark(0)
        second = process.mark(1)
        process.row("graph", graph_id=0, graph_name="f", wall_time_ns=1)
        process.die()
        _, tables = process.recovered(progress=progress(mark=second))
        assert rows(tables["mark"], "event_index") == [(1,)]
        assert len(tables["graph"]) == 1
        _, tables = process.recovered(progress=progress(mark=second + 1))
        assert "mark" not in tables

    def test_columns_in_parts_are_left_out_by_offset(self, process: DeadProcess) -> None:
        columns = {"event_index": [4, 5], "wall_time_ns": [1, 1], "label": ["step"] * 2, "value": ["4", "5"]}
        process.files.rows.append("columns", "mark", columns)
        process.files.rows.append("columns", "execution", columns)
        for broken in ({}, {"event_index": 1}, {"event_index": [1], "value": []}):
            process.files.rows.append("columns", "mark", broken)
        process.die()
        assert rows(process.recovered()[1]["mark"], "event_index", "value") == [(4, "4"), (5, "5")]
        assert "mark" not in process.recovered(progress=progress(mark=1))[1]

    def test_rows_before_the_tail_of_the_spool_are_left_out(self, process: DeadProcess) -> None:
        process.mark(0)
        second = process.mark(1)
        process.spool.release(0, second)
        process.die()
        assert rows(process.recovered()[1]["mark"], "event_index") == [(1,)]

    def test_device_names_in_parts_are_left_out(self, process: DeadProcess) -> None:
        one, two, three = (process.spool.intern_string(f"/device:CPU:{i}") for i in range(3))
        process.parts.write("device", device_rows({one: "/device:CPU:0"}))
        process.parts.write("device", device_rows({}))
        process.row("device", device_id=two, device_name="given")
        process.row("device", device_id=99, device_name="no event's")
        for step, device in enumerate((three, two, one, three)):
            process.tensor(step, device=device)
        process.die()
        assert rows(process.recovered()[1]["device"], "device_id", "device_name") == [
            (two, "given"),
            (99, "no event's"),
            (three, "/device:CPU:2"),
        ]

    def test_device_ids_are_read_from_each_part(self, process: DeadProcess) -> None:
        for names in ({}, {1: "a", 2: "b"}, {}, {3: "c"}):
            process.parts.write("device", device_rows(names))
        sealed = SealedRows(process.logdir, {"device": process.parts.parts("device")})
        assert sealed.device_ids() == {1, 2, 3}

    def test_the_end_of_the_run_is_read_from_parts(self, process: DeadProcess) -> None:
        sealed = SealedRows(process.logdir, {})
        assert sealed.has_ended() is False
        for is_clean_end, expected in ((False, False), (True, True)):
            row = metadata_table("run", [{**RUN_ROW, "is_clean_end": is_clean_end}], run_id=RUN_ID)
            process.parts.write("run", row)
            assert SealedRows(process.logdir, {"run": process.parts.parts("run")}).has_ended() is expected

    def test_an_unreadable_part_raises_an_error(self, process: DeadProcess) -> None:
        entry = process.parts.write("device", device_rows({1: "x"}))
        path = process.logdir / entry.path
        path.write_bytes(b"PAR1")
        process.tensor(0, device=process.spool.intern_string("/device:CPU:0"))
        process.die()
        with pytest.raises(BrokenPartError) as error:
            process.recovered()
        assert str(error.value).startswith(f"{path} cannot be read as Parquet (")
        assert str(error.value).endswith("); restore that file.")
        path.unlink()
        with pytest.raises(BrokenPartError, match="cannot be read as Parquet"):
            process.recovered()


def device_rows(names: dict[int, str]) -> pa.Table:
    found = [{"device_id": number, "device_name": name} for number, name in names.items()]
    return metadata_table("device", found, run_id=RUN_ID)


def buffered(logdir: Path, *, size: int, num_after: int = 1, only_bad: bool = False) -> DeadProcess:
    return DeadProcess(logdir, retention=Retention(size=size, num_after=num_after, only_bad=only_bad))


class TestBuffers:
    """Recovery of a circular buffer restores the events that the buffer would have kept."""

    @pytest.mark.parametrize(
        ("size", "expected"),
        [(2, [3, 4]), (1, [4]), (0, [0, 1, 2, 3, 4]), (-1, [0, 1, 2, 3, 4]), (2**24, [0, 1, 2, 3, 4])],
    )
    def test_a_circular_buffer_holds_the_last_calls(self, tmp_path: Path, size: int, expected: list[int]) -> None:
        process = buffered(tmp_path / "logdir", size=size)
        for number in range(5):
            process.call(number)
        process.die()
        num_events, tables = process.recovered()
        assert num_events == len(expected)
        assert rows(tables["execution"], "execution_index") == [(number,) for number in expected]

    @pytest.mark.parametrize("retention", [{"size": 2**24 + 1}, {"size": 1.0}, {"num_after": -1}, {"only_bad": None}])
    def test_an_invalid_retention_is_ignored(self, tmp_path: Path, retention: dict[str, Any]) -> None:
        process = buffered(tmp_path / "logdir", **{"size": 1, **retention})
        for number in range(3):
            process.call(number)
        process.die()
        assert process.recovered()[0] == 3

    def test_events_in_parts_are_left_out_by_table(self, tmp_path: Path) -> None:
        process = buffered(tmp_path / "logdir", size=10)
        for number in range(5):
            process.call(number)
        process.tensor(4)
        process.die()
        for left in (progress(events=3), progress(execution=3, tensor_health=6)):
            assert rows(process.recovered(progress=left)[1]["execution"], "execution_index") == [(3,), (4,)]
        _, tables = process.recovered(progress=progress(execution=5))
        assert (list(tables), len(tables["tensor_health"])) == (["tensor_health", "capture_stat"], 1)
        num_events, tables = process.recovered(progress=progress(events=6))
        assert (num_events, list(tables)) == (0, ["capture_stat"])

    @pytest.mark.parametrize(("only_bad", "last"), [(True, []), (False, [7, 8])])
    def test_the_events_around_a_bad_value_are_kept(self, tmp_path: Path, only_bad: bool, last: list[int]) -> None:
        process = buffered(tmp_path / "logdir", size=2, only_bad=only_bad)
        for number in range(9):
            process.tensor(number, bad=number == 4)
        process.die()
        num_events, tables = process.recovered()
        expected = [(event,) for event in (3, 4, 5, *last)]
        assert num_events == len(expected)
        assert rows(tables["tensor_health"], "event_index") == expected
        # The process wrote the bad value, and died before it wrote the next events.
        found = process.recovered(progress=progress(tensor_health=5))[1]
        assert rows(found["tensor_health"], "event_index") == expected[2:]

    def test_nothing_is_kept_of_a_healthy_run_if_only_bad_values_count(self, tmp_path: Path) -> None:
        process = buffered(tmp_path / "logdir", size=2, only_bad=True)
        process.tensor(0)
        process.die()
        assert process.recovered()[0] == 0

    def test_released_values_of_a_circular_buffer_are_not_reported_as_lost(self, tmp_path: Path) -> None:
        process = buffered(tmp_path / "logdir", size=10)
        for step in range(3):
            process.tensor(step, value=bytes([step] * 4))
        process.spool.release_values(4)
        process.die()
        num_events, tables = process.recovered()
        assert num_events == 3
        assert rows(tables["tensor_value"], "event_index") == [(1,), (2,)]
        assert stats(tables) == [(*EVENTS_RECOVERED, 3)]
