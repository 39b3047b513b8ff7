"""Test reading the spool file of a dead process: the header and the committed records."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.durability.dead_process import DeadProcess
from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.spool.records import RECORD_DTYPE, Kind, Records
from tfdbg_arrow.spool.spool_file import (
    HEADER,
    HEADER_SIZE,
    MAX_CAPACITY,
    ROWS_TAIL_WORD,
    TAIL_WORD,
    VALUES_TAIL_WORD,
    SpoolHeader,
    read_committed,
    read_header,
)

ADVICE = (
    "Use the version of tfdbg_arrow that recorded it, or remove the file: the parts of the run can be read without it."
)


def header(
    magic: bytes = b"TFDBGSPL",
    version: int = 3,
    record_size: int = 256,
    capacity: int = 4,
    *,
    tail: int = 0,
    values_tail: int = 0,
    rows_tail: int = 0,
) -> bytes:
    words = np.zeros(HEADER_SIZE // 8, "<u8")
    words[TAIL_WORD], words[VALUES_TAIL_WORD], words[ROWS_TAIL_WORD] = tail, values_tail, rows_tail
    packed = HEADER.pack(magic, version, record_size, capacity, 1)
    return packed + words.tobytes()[len(packed) :]


def spool(path: Path, records: Records, *, tail: int = 0, capacity: int | None = None) -> Path:
    capacity = len(records) if capacity is None else capacity
    path.write_bytes(header(capacity=capacity, tail=tail) + records.tobytes())
    return path


def ring(*kinds: int, first: int = 0) -> Records:
    """Returns records of these kinds, committed with event indexes from `first` on, in the slots of a ring."""
    made = np.zeros(len(kinds), RECORD_DTYPE)
    made["kind"], made["commit"] = kinds, np.arange(first + 1, first + 1 + len(kinds))
    return np.roll(made, first % len(kinds))


def committed(path: Path) -> list[int]:
    """Returns the event indexes of the committed records."""
    pieces = list(read_committed(path, read_header(path)))
    assert all(len(piece) for piece in pieces)
    return [int(commit) - 1 for piece in pieces for commit in piece["commit"]]


class TestHeader:
    def test_the_header_of_a_recording_is_read(self, tmp_path: Path) -> None:
        process = DeadProcess(tmp_path, capacity=2048)
        for step in range(4):
            process.tensor(step, value=b"\1\0\0\0")
        process.spool.drain(3)
        process.spool.release(3, 70)
        process.spool.release_values(8)
        process.die()
        found = read_header(process.paths.spool)
        assert found == SpoolHeader(capacity=2048, tail=3, values_tail=8, rows_tail=70)

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            (b"", "it is not an event spool of tfdbg_arrow"),
            (header()[:-1], "it is not an event spool of tfdbg_arrow"),
            (header(magic=b"TFDBGSPM"), "it is not an event spool of tfdbg_arrow"),
            (
                header(version=4) + bytes(1024),
                "it has version 4 and records of 256 bytes, expected version 3 and 256 bytes",
            ),
            (
                header(record_size=512) + bytes(1024),
                "it has version 3 and records of 512 bytes, expected version 3 and 256 bytes",
            ),
            (header(capacity=0), "it has 4096 bytes, which does not match its capacity of 0 records"),
            (header(capacity=3) + bytes(768), "it has 4864 bytes, which does not match its capacity of 3 records"),
            (header() + bytes(1023), "it has 5119 bytes, which does not match its capacity of 4 records"),
            (header() + bytes(1025), "it has 5121 bytes, which does not match its capacity of 4 records"),
            (header(tail=2**62 + 1) + bytes(1024), f"its counters are {2**62 + 1}, 0 and 0, which is out of range"),
            (
                header(values_tail=2**62 + 1) + bytes(1024),
                f"its counters are 0, {2**62 + 1} and 0, which is out of range",
            ),
            (
                header(rows_tail=2**62 + 1) + bytes(1024),
                f"its counters are 0, 0 and {2**62 + 1}, which is out of range",
            ),
        ],
    )
    def test_a_file_that_is_not_a_spool_is_refused(self, tmp_path: Path, content: bytes, expected: str) -> None:
        path = tmp_path / "a.spool"
        path.write_bytes(content)
        with pytest.raises(LogdirError) as error:
            read_header(path)
        assert str(error.value) == f"{path} cannot be recovered: {expected}. {ADVICE}"

    def test_the_smallest_capacity_and_the_largest_counters_are_read(self, tmp_path: Path) -> None:
        path = tmp_path / "a.spool"
        path.write_bytes(header(capacity=1, tail=2**62, values_tail=2**62, rows_tail=2**62) + bytes(256))
        assert read_header(path) == SpoolHeader(capacity=1, tail=2**62, values_tail=2**62, rows_tail=2**62)

    def test_the_largest_capacity_is_read_and_a_larger_one_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "a.spool"
        for capacity, is_read in ((MAX_CAPACITY, True), (2 * MAX_CAPACITY, False)):
            path.write_bytes(header(capacity=capacity))
            os.truncate(path, HEADER_SIZE + capacity * 256)  # sparse, so it takes no disk space
            if is_read:
                assert read_header(path).capacity == capacity
            else:
                with pytest.raises(LogdirError, match="does not match its capacity of 33554432 records"):
                    read_header(path)

    def test_a_file_that_cannot_be_read_raises_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(LogdirError) as error:
            read_header(tmp_path)
        assert str(error.value) == f"{tmp_path} cannot be read (Is a directory); check its permissions."


class TestRecords:
    @pytest.fixture(params=[65_536, 3, 1])
    def chunk(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        """Varies the number of records that are read at a time. The number must make no difference."""
        monkeypatch.setattr("tfdbg_arrow.spool.spool_file.CHUNK_RECORDS", request.param)

    @pytest.mark.usefixtures("chunk")
    @pytest.mark.parametrize("first", [0, 1, 7, 8, 100])
    def test_committed_records_are_read_in_order_wherever_the_ring_begins(self, tmp_path: Path, first: int) -> None:
        path = spool(tmp_path / "a.spool", ring(*[1] * 8, first=first), tail=first)
        assert committed(path) == list(range(first, first + 8))

    @pytest.mark.usefixtures("chunk")
    def test_records_before_the_tail_are_left_out(self, tmp_path: Path) -> None:
        assert committed(spool(tmp_path / "a.spool", ring(*[1] * 8), tail=5)) == [5, 6, 7]
        assert committed(spool(tmp_path / "a.spool", ring(*[1] * 8), tail=8)) == []

    @pytest.mark.usefixtures("chunk")
    def test_uncommitted_records_are_left_out(self, tmp_path: Path) -> None:
        records = ring(*[1] * 8)
        records["commit"][[0, 3, 7]] = 0, 99, 0
        assert committed(spool(tmp_path / "a.spool", records)) == [1, 2, 4, 5, 6]

    @pytest.mark.usefixtures("chunk")
    def test_records_of_unknown_kinds_are_left_out(self, tmp_path: Path) -> None:
        assert committed(spool(tmp_path / "a.spool", ring(0, 1, 2, 3, 4, 5, 6, 255))) == [1, 2, 3, 4, 5, 6]

    @pytest.mark.usefixtures("chunk")
    @pytest.mark.parametrize(
        ("kinds", "missing", "expected"),
        [
            ((4, 6, 6, 6, 1, 1, 1, 1), (), [0, 1, 2, 3, 4, 5, 6, 7]),
            ((4, 6, 6, 6, 1, 1, 1, 1), (2,), [0, 1, 4, 5, 6, 7]),
            ((4, 6, 6, 6, 1, 1, 1, 1), (1,), [0, 4, 5, 6, 7]),
            ((4, 6, 6, 6, 1, 1, 1, 1), (0,), [4, 5, 6, 7]),
            ((1, 4, 6, 6, 4, 6, 6, 5), (1,), [0, 4, 5, 6, 7]),
            ((1, 7, 7, 1, 7, 7, 7, 7), (1, 5), [0, 3, 4]),
        ],
    )
    def test_continuations_of_a_missing_record_are_left_out(
        self, tmp_path: Path, kinds: tuple[int, ...], missing: tuple[int, ...], expected: list[int]
    ) -> None:
        records = ring(*kinds)
        records["commit"][list(missing)] = 0
        assert committed(spool(tmp_path / "a.spool", records)) == expected

    @pytest.mark.usefixtures("chunk")
    def test_continuations_of_a_released_record_are_left_out(self, tmp_path: Path) -> None:
        path = spool(tmp_path / "a.spool", ring(6, 6, 7, 7, 1, 6, 7, 1, first=8), tail=8)
        assert committed(path) == [12, 13, 14, 15]

    def test_all_bytes_of_a_record_are_read(self, tmp_path: Path) -> None:
        records = ring(*[Kind.EXECUTION] * 4, first=2)
        raw = np.random.default_rng(0).integers(0, 256, (4, 256), np.uint8)
        raw[:, :8], raw[:, 16] = records["commit"].copy().view(np.uint8).reshape(4, 8), Kind.EXECUTION
        path = spool(tmp_path / "a.spool", raw.view(RECORD_DTYPE).reshape(4), tail=2)
        (found,) = read_committed(path, read_header(path))
        assert found.tobytes() == np.roll(raw, -2, axis=0).tobytes()

    def test_reading_stops_where_the_file_was_truncated_meanwhile(self, tmp_path: Path) -> None:
        path = spool(tmp_path / "a.spool", ring(*[1] * 8))
        found = read_header(path)
        os.truncate(path, HEADER_SIZE + 5 * 256)
        assert [len(piece) for piece in read_committed(path, found)] == [5]

    def test_short_reads_are_continued(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        preadv = os.preadv
        monkeypatch.setattr(os, "preadv", lambda file, out, offset: preadv(file, [out[0][:100]], offset))
        assert committed(spool(tmp_path / "a.spool", ring(*[1] * 8, first=3), tail=3)) == list(range(3, 11))
