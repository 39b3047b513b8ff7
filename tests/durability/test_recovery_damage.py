"""Test damaged or foreign data in a dead process's spool: readers get fewer rows and a report, or one error."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from tests.durability.dead_process import EVENTS_RECOVERED, NO_PROGRESS, RUN_ID, DeadProcess, rows, stats
from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.spool.call_join import CallJoin
from tfdbg_arrow.spool.records import Flag, Kind
from tfdbg_arrow.spool.recovery import Converter, SealedRows, _ValueFile, recovered
from tfdbg_arrow.spool.spool_file import HEADER_SIZE


@pytest.fixture
def process(tmp_path: Path) -> DeadProcess:
    return DeadProcess(tmp_path / "logdir")


class TestDamage:
    def test_torn_names_and_rows_are_reported_once(self, process: DeadProcess) -> None:
        process.mark(0)
        process.tensor(0)
        process.die()
        for path in (process.paths.journal, process.paths.rows):
            with open(path, "ab") as file:
                file.write(b"\xf0TJ1 torn at its end")
        num_events, tables = process.recovered()
        assert num_events == 1
        assert stats(tables) == [
            ("failed", f"spool/{RUN_ID}.journal", "damaged entries in the journal of names: 1", None),
            ("failed", f"spool/{RUN_ID}.rows", "damaged entries in the journal of rows: 1", None),
            (*EVENTS_RECOVERED, 1),
        ]

    def test_rows_that_do_not_match_a_table_are_left_out_and_counted(self, process: DeadProcess) -> None:
        append = process.files.rows.append
        append("columns", "execution", {"event_index": [1]})
        append("columns", "nonsense", {"event_index": [1]})
        append("columns", "mark", "nonsense")
        append("columns", "mark", {"event_index": [1, 2], "label": ["a"]})
        append("columns", "mark", {"nonsense": [1]})
        append("columns", "mark", {"event_index": ["x"]})
        append("nonsense")
        append("tail", 0, "nonsense")
        process.mark(1)
        process.die()
        _, tables = process.recovered()
        assert list(tables) == ["mark", "capture_stat"]
        assert rows(tables["mark"], "event_index") == [(1,)]
        found = [(stat, subject, num_events) for stat, subject, _, num_events in stats(tables)]
        assert found == [
            ("failed", "table mark", 1),
            ("failed", "table mark", 1),
            ("recovered", "events", 0),
        ]

    def test_a_table_without_valid_rows_is_left_out(self, process: DeadProcess) -> None:
        process.row("mark", nonsense=1)
        process.die()
        assert list(process.recovered()[1]) == ["capture_stat"]

    def test_more_rows_than_the_maximum_are_reported(
        self, process: DeadProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tfdbg_arrow.spool.recovery._MAX_ROWS", 2)
        for event in range(5):
            process.mark(event)
        process.die()
        _, tables = process.recovered()
        assert rows(tables["mark"], "event_index") == [(0,), (1,), (2,)]
        assert stats(tables) == [
            (
                "failed",
                f"spool/{RUN_ID}.rows",
                "it holds more than 2 rows that are not in parts; the rest was left out",
                None,
            ),
            (*EVENTS_RECOVERED, 0),
        ]

    def test_more_rows_in_columns_than_the_maximum_are_reported(
        self, process: DeadProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tfdbg_arrow.spool.recovery._MAX_ROWS", 3)
        for first in (0, 2, 4):
            times = {"wall_time_ns": [5, 5], "label": ["step", "step"], "value": ["a", "b"]}
            process.files.rows.append("columns", "mark", {"event_index": [first, first + 1], **times})
        process.die()
        _, tables = process.recovered()
        assert rows(tables["mark"], "event_index") == [(0,), (1,), (2,), (3,)]
        assert [stat for stat, *_ in stats(tables)] == ["failed", "recovered"]

    def test_stats_of_the_process_come_before_the_stat_of_its_recovery(self, process: DeadProcess) -> None:
        told = {"stat": "dropped", "subject": "event", "reason": "no room", "num_events": 7}
        process.row("capture_stat", event_index=3, wall_time_ns=5, **told)
        process.call(0)
        process.die()
        _, tables = process.recovered()
        assert stats(tables) == [tuple(told.values()), (*EVENTS_RECOVERED, 1)]

    def test_a_spool_without_a_journal_of_rows_gives_the_events(self, process: DeadProcess) -> None:
        process.tensor(0)
        process.die()
        process.paths.rows.unlink()
        num_events, tables = process.recovered()
        assert (num_events, list(tables)) == (1, ["tensor_health", "capture_stat"])

    def test_an_unknown_device_becomes_null(self, process: DeadProcess) -> None:
        last = process.spool.intern_string("/device:CPU:0")
        for device in (last + 1_000_000, -1, 2**31 - 1, last):
            process.tensor(0, device=device)
        process.die()
        _, tables = process.recovered()
        assert rows(tables["tensor_health"], "device_id") == [(None,), (None,), (None,), (last,)]
        assert rows(tables["device"], "device_id") == [(last,)]

    def test_events_that_cannot_be_converted_are_reported(
        self, process: DeadProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        process.tensor(0)
        process.die()

        def refused(*args: object, **kwargs: object) -> None:
            raise ValueError("this cannot be")

        monkeypatch.setattr(Converter, "tables", refused)
        num_events, tables = process.recovered()
        assert (num_events, list(tables)) == (0, ["capture_stat"])
        assert stats(tables) == [("failed", "convert", "ValueError: this cannot be", None), (*EVENTS_RECOVERED, 0)]

    @pytest.mark.parametrize("name", ["rows", "journal"])
    def test_a_file_that_cannot_be_read_is_named(self, process: DeadProcess, name: str) -> None:
        process.die()
        path: Path = getattr(process.paths, name)
        path.unlink()
        path.mkdir()
        with pytest.raises(LogdirError) as error:
            process.recovered()
        assert str(error.value) == (
            f"{process.paths.spool} cannot be recovered: {path} cannot be read (Is a directory); check its permissions."
        )

    def test_an_error_without_a_file_name_is_reported(
        self, process: DeadProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        process.die()

        def refused(*args: object) -> None:
            raise OSError("no reason")

        monkeypatch.setattr("tfdbg_arrow.spool.recovery.read_committed", refused)
        with pytest.raises(LogdirError) as error:
            process.recovered()
        assert str(error.value) == (
            f"{process.paths.spool} cannot be recovered: a file of it cannot be read (no reason); "
            "check its permissions."
        )


class TestValues:
    def test_missing_values_are_reported(self, process: DeadProcess) -> None:
        process.tensor(0, value=b"\1\0\0\0")
        process.tensor(1, value=b"\2\0\0\0", value_offset=3)
        process.tensor(2, value=b"\3\0\0\0", value_bytes=-1)
        process.die()
        _, tables = process.recovered()
        assert rows(tables["tensor_value"], "event_index", "value") == [(0, b"\1\0\0\0"), (1, b"\0\2\0\0")]
        os.truncate(process.paths.values, 6)
        _, tables = process.recovered()
        assert rows(tables["tensor_value"], "event_index") == [(0,)]
        reason = "ValueError: the value spool does not have 4 bytes at 3: it holds 0 to 6"
        assert stats(tables) == [("failed", "tensor_value", reason, 1), (*EVENTS_RECOVERED, 3)]

    def test_without_any_values_the_table_is_empty(self, process: DeadProcess) -> None:
        process.tensor(0, value=b"\1\0\0\0")
        process.die()
        sealed = SealedRows(process.logdir, {})
        os.truncate(process.paths.values, 0)
        found = recovered(process.paths, run_id=RUN_ID, progress=NO_PROGRESS, sealed=sealed)
        assert list(found.tables["tensor_value"]) == []
        process.paths.values.unlink()
        found = recovered(process.paths, run_id=RUN_ID, progress=NO_PROGRESS, sealed=sealed)
        assert list(found.tables["tensor_value"]) == []

    def test_released_values_are_missing(self, process: DeadProcess) -> None:
        for step in range(3):
            process.tensor(step, value=bytes([step] * 4))
        process.spool.release_values(4)
        process.die()
        _, tables = process.recovered()
        assert rows(tables["tensor_value"], "event_index") == [(1,), (2,)]
        assert stats(tables)[0][2] == "ValueError: the value spool does not have 4 bytes at 0: it holds 4 to 12"

    @pytest.mark.parametrize(("offset", "size"), [(0, 3), (2, 1), (1, 2)])
    def test_values_within_the_file_are_read(self, tmp_path: Path, offset: int, size: int) -> None:
        (tmp_path / "values").write_bytes(b"abc")
        with open(tmp_path / "values", "rb") as file:
            assert _ValueFile(file.fileno(), start=0).read_value(offset, size) == b"abc"[offset : offset + size]

    @pytest.mark.parametrize(("offset", "size"), [(0, 1), (1, 3), (3, 1), (1, -1)])
    def test_values_beyond_the_file_raise_an_error(self, tmp_path: Path, offset: int, size: int) -> None:
        (tmp_path / "values").write_bytes(b"abc")
        with open(tmp_path / "values", "rb") as file, pytest.raises(ValueError, match="it holds 1 to 3"):
            _ValueFile(file.fileno(), start=1).read_value(offset, size)

    def test_a_file_that_was_truncated_meanwhile_raises_an_error(self, tmp_path: Path) -> None:
        path = tmp_path / "values"
        path.write_bytes(b"abc")
        with open(path, "rb") as file:
            values = _ValueFile(file.fileno(), start=0)
            values.release_values(2)
            os.truncate(path, 1)
            with pytest.raises(ValueError, match=r"^the value spool returned only 0 of 2 bytes at 1$"):
                values.read_value(1, 2)


def test_lookups_of_calls_are_bounded(process: DeadProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """An untrusted spool may hold calls that would take forever to join."""
    seen: list[int | None] = []
    made = CallJoin.__init__

    def noting(self: CallJoin, call_graph: object, *, max_looks: int | None = None) -> None:
        seen.append(max_looks)
        made(self, call_graph, max_looks=max_looks)  # type: ignore[arg-type]

    monkeypatch.setattr(CallJoin, "__init__", noting)
    process.die()
    process.recovered()
    assert seen == [20_000_000]


def test_an_uncommitted_record_is_left_out(process: DeadProcess) -> None:
    for step in range(3):
        process.tensor(step)
    process.die()
    with open(process.paths.spool, "r+b") as file:
        file.seek(HEADER_SIZE + 256)
        file.write(struct.pack("<Q", 0))
    num_events, tables = process.recovered()
    assert num_events == 2
    assert rows(tables["tensor_health"], "event_index", "step_id") == [(0, 0), (2, 2)]


def test_a_histogram_is_recovered_only_if_it_is_complete(process: DeadProcess) -> None:
    flags = Flag.COVERED | Flag.SHAPE | Flag.HISTOGRAM_COUNTED
    for exponent in (0, 1, 2):  # 160 counts of one byte take two records
        process.record(Kind.GRAPH_TENSOR, node=process.node, flags=flags | 80 << 16, rank=7, size=9, payload=[1] * 4)
        process.record(Kind.DIMS, payload=[1, 1, 9])
        process.record(Kind.HISTOGRAM, slot=exponent, payload=[0x0101010101010101] * 19)
        process.record(Kind.HISTOGRAM, slot=exponent, payload=[0x0101010101010101] * 1)
    process.die()
    with open(process.paths.spool, "r+b") as file:
        for event_index in (2, 4):  # the first half of the first histogram, and the second tensor itself
            file.seek(HEADER_SIZE + 256 * event_index)
            file.write(struct.pack("<Q", 0))
    names = ("event_index", "shape", "histogram_exponent", "histogram_negative", "histogram_positive")
    shape = [1, 1, 1, 1, 1, 1, 9]
    assert rows(process.recovered()[1]["tensor_health"], *names) == [
        (0, shape, None, None, None),
        (8, shape, 2, [1] * 80, [1] * 80),
    ]


def test_a_tensor_of_many_dimensions_keeps_its_shape(process: DeadProcess) -> None:
    flags = Flag.COVERED | Flag.SHAPE
    process.record(Kind.GRAPH_TENSOR, node=process.node, flags=flags, rank=7, size=1, payload=[1] * 4)
    process.record(Kind.DIMS, payload=[1, 1, 9])
    process.die()
    assert rows(process.recovered()[1]["tensor_health"], "shape") == [([1, 1, 1, 1, 1, 1, 9],)]
