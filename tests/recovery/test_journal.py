from __future__ import annotations

import os
import random
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdbg_arrow.spool.journal import MAGIC, MAX_ENTRY_BYTES, Entry, Journal, JournalReader
from tfdbg_arrow.spool.recovery import JournaledNames

core = pytest.importorskip("tfdbg_arrow.writer.native._core", reason="the native core was not built")


def written(directory: Path, *, seed: int = 0) -> Path:
    """Writes a journal of a hundred entries, of both kinds, and returns its path."""
    path = directory / "a.journal"
    journal = Journal(path)
    generator = random.Random(seed)
    for number in range(50):
        journal.append_string(number, "é" * generator.randrange(30))
        journal.append("rows", "mark", [{"value": "x" * generator.randrange(200), "event_index": number}])
    assert journal.num_unwritten == 0
    journal.close()
    return path


def entries(path: Path, *, start: int = 0) -> list[Entry]:
    return list(JournalReader(path, start=start).entries())


def test_entries_are_read_in_the_order_in_which_they_were_appended(tmp_path: Path) -> None:
    found = entries(written(tmp_path))
    assert len(found) == 100
    assert [entry.string[0] for entry in found if entry.string is not None] == list(range(50))
    assert [entry.data[2][0]["event_index"] for entry in found if entry.data] == list(range(50))
    assert entries(tmp_path / "a.journal", start=found[60].offset) == found[60:]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_undamaged_entries_of_a_damaged_journal_are_read(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = written(tmp_path_factory.mktemp("journal"))
    content, whole = bytearray(path.read_bytes()), entries(path)
    changes = data.draw(st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(1, 255)), max_size=4))
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(content))))
    for place, change in changes:
        content[place] ^= change
    content = content[:cut]
    path.write_bytes(content)
    ends = [*(entry.offset for entry in whole[1:]), 2**62]
    untouched = [
        entry
        for entry, end in zip(whole, ends, strict=True)
        if not any(entry.offset <= place < end for place, _ in changes) and end <= len(content)
    ]
    found = entries(path)
    assert [entry for entry in found if entry in whole] == found, "an entry was read that was never written"
    assert [entry for entry in found if entry in untouched] == untouched


def test_native_and_python_entries_are_equal_and_do_not_mix(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "a.journal")
    recording = core.Recording(str(tmp_path / "a.spool"), str(tmp_path / "a.values"), 1024, 3, 0, 1)
    assert recording.set_journal(journal.descriptor)
    number = core.intern_string("a string of this very test")
    journal.append_string(number, "a string of this very test")
    del recording
    core.intern_string("a string after the recording")
    *before, native, python = entries(tmp_path / "a.journal")
    assert native.string == python.string == (number, "a string of this very test")
    content = (tmp_path / "a.journal").read_bytes()
    assert content[native.offset : python.offset] == content[python.offset :]
    assert [entry.string for entry in before if entry.string is not None] == list(enumerate(core.strings(0)))[:number]


def test_entries_that_cannot_be_written_are_counted_and_do_not_raise(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "a.journal")
    journal.append("x", "y" * MAX_ENTRY_BYTES)
    loop: list[object] = []
    loop.append(loop)
    journal.append("x", loop)
    assert journal.num_unwritten == 2
    assert "expected at most" not in str(journal.last_error)
    journal.append("x", 1)
    assert [entry.data for entry in entries(tmp_path / "a.journal")] == [["x", 1]]
    journal.close()
    journal.append("x", 2)
    assert journal.size() == 0


@pytest.mark.parametrize("size", [0, 5, 11])
def test_a_file_that_is_not_a_journal_has_no_entries(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.journal"
    path.write_bytes(MAGIC * size)
    assert entries(path) == []


def test_a_file_full_of_entry_headers_is_read_in_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    claims_the_rest = MAGIC + (2**20).to_bytes(4, "little") + bytes(4)
    path.write_bytes(claims_the_rest * 400_000)
    reader = JournalReader(path)
    assert list(reader.entries()) == []
    assert reader.num_torn < 1_000


def test_invalid_numbers_in_a_journal_take_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    journal = Journal(path)
    journal.append_string(2**32 - 1, "far")
    journal.append("nodes", 2**40, [[1, "a", "b", 0]])
    journal.append("nodes", 0, [[2**70, "a", "b", 0]])
    journal.append("nodes", 1, [[3, "op", "MatMul", 0]])
    journal.append("callee", 1, "", "f", 0, 1)
    journal.append("callee", 1, "call", "f", 0, 1)
    journal.append("rename", 1, "call", "call")
    names = JournaledNames(path)
    assert len(names.strings(0)) < 100
    assert names.nodes(0)[1] == (3, "op", "MatMul", 0)
    assert names.graphs.call_site("call/" * 5_000, 1) == "call/" * 5_000
    assert names.graphs.call_site("call/call/x", 1) == "call/call/x"


def test_the_checksum_is_the_crc32_of_zlib(tmp_path: Path) -> None:
    path = written(tmp_path)
    content = path.read_bytes()
    length, crc = (int.from_bytes(content[i : i + 4], "little") for i in (4, 8))
    assert zlib.crc32(content[12 : 12 + length]) == crc


@pytest.mark.parametrize("how", ["error", "short"])
def test_a_write_that_fails_once_is_retried_immediately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    journal = Journal(tmp_path / "a.journal")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing(1, how=how))
        assert journal.append_string(1, "one")
    assert (journal.num_unwritten, [entry.string for entry in entries(journal.path)]) == (0, [(1, "one")])


def test_failed_entries_are_written_later_if_the_journal_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, lost = Journal(tmp_path / "a.journal", is_kept=True), Journal(tmp_path / "b.journal")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing(100, how="error"))
        for journal in (kept, lost):
            assert not journal.append_string(1, "one")
            assert not journal.append("function", "f", 2)
            journal.write_kept()
            assert journal.num_unwritten == 2
    for journal in (kept, lost):
        journal.write_kept()
        journal.append("function", "g", 3)
    assert (kept.num_unwritten, lost.num_unwritten) == (0, 2)
    assert [entry.string or list(entry.data) for entry in entries(kept.path)] == [
        (1, "one"),
        ["function", "f", 2],
        ["function", "g", 3],
    ]
    assert [list(entry.data) for entry in entries(lost.path)] == [["function", "g", 3]]


def failing(times: int, *, how: str) -> Callable[[int, bytes], int]:
    """Returns a replacement for `os.write` that fails the given number of times."""
    write, left = os.write, [times]

    def attempt(descriptor: int, data: bytes) -> int:
        if left[0] == 0:
            return write(descriptor, data)
        left[0] -= 1
        if how == "short":
            return write(descriptor, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    return attempt
