"""TFRecord frames: written like TensorFlow's, and read up to the first damage."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdbg_arrow.debugger_v2.file_sets import RecordReader, frame, masked_crc
from tfdbg_arrow.debugger_v2.scan import NativeScanner


def _read(content: bytes) -> tuple[list[bytes], RecordReader]:
    reader = RecordReader(io.BytesIO(content))
    return list(reader), reader


def test_a_frame_equals_the_one_that_tensorflow_writes() -> None:
    # tf.io.TFRecordWriter, one record b"tfdbg".
    expected = "0500000000000000ea b2 04 3e 74 66 64 62 67".replace(" ", "")
    assert frame(b"tfdbg").hex()[:34] == expected
    assert masked_crc(b"") == 0xA282EAD8


@given(st.lists(st.binary(max_size=300)))
def test_records_are_read_in_order(records: list[bytes]) -> None:
    file = io.BytesIO()
    for record in records:
        file.write(frame(record))
    found, reader = _read(file.getvalue())
    assert found == records
    assert reader.damage is None
    assert reader.offset == len(file.getvalue())


@given(st.lists(st.binary(max_size=40), min_size=1), st.data())
def test_a_truncated_file_has_the_records_before_the_cut(records: list[bytes], data: st.DataObject) -> None:
    frames = [frame(record) for record in records]
    content = b"".join(frames)
    cut = data.draw(st.integers(0, len(content)))
    found, reader = _read(content[:cut])
    ends = [sum(map(len, frames[: i + 1])) for i in range(len(frames))]
    whole = sum(end <= cut for end in ends)
    assert found == records[:whole]
    if cut == ([0, *ends][whole]):
        assert reader.damage is None
    else:
        assert reader.damage is not None
        assert reader.damage.reason.startswith("the file ends inside")
        assert reader.damage.offset == [0, *ends][whole]


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1), st.data())
def test_a_changed_byte_is_found(records: list[bytes], data: st.DataObject) -> None:
    content = bytearray(b"".join(frame(record) for record in records))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    found, reader = _read(bytes(content))
    assert reader.damage is not None
    assert "checksum" in reader.damage.reason
    assert found == records[: len(found)]
    assert reader.damage.offset == sum(len(frame(record)) for record in found)


def test_an_impossible_length_is_damage() -> None:
    length = (2**40).to_bytes(8, "little")
    found, reader = _read(frame(b"a") + length + masked_crc(length).to_bytes(4, "little"))
    assert found == [b"a"]
    assert reader.damage is not None
    assert reader.damage.reason == f"a frame claims {2**40} bytes, more than a message can have"


@pytest.mark.parametrize("offset", [0, 17])
def test_offsets_are_relative_to_the_file(offset: int) -> None:
    file = io.BytesIO(b"x" * offset + frame(b"abc"))
    file.seek(offset)
    reader = RecordReader(file, offset=offset)
    assert list(reader) == [b"abc"]
    assert reader.offset == offset + 19


def test_a_long_record_is_not_scanned_again_for_each_piece() -> None:
    core = pytest.importorskip("tfdbg_arrow.writer.native._core")
    content = frame(b"x" * 100_000)[:-1]
    scanned = []

    class Counting:
        num_slots = 0

        def __init__(self) -> None:
            self._scanner = core.DebugEventScanner()

        def scan(self, data: bytes, max_records: int) -> object:
            scanned.append(len(data))
            return self._scanner.scan(data, max_records)

    scanner = NativeScanner(
        SimpleNamespace(DebugEventScanner=Counting), io.BytesIO(content), intern=lambda event: 0, max_bytes=100
    )
    assert list(scanner) == []
    assert scanner.damage is not None
    assert sum(scanned) < 4 * len(content)
