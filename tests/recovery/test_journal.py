from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.durability.test_journal import string_entry
from tfdbg_arrow.spool.journal import Entry, Journal, JournalReader

core = pytest.importorskip("tfdbg_arrow.writer.native._core", reason="the native core was not built")


def written(directory: Path, *, seed: int = 0) -> Path:
    """Writes a journal of a hundred entries, of both kinds, and returns its path."""
    path = directory / "a.journal"
    journal = Journal(path)
    generator = random.Random(seed)
    for number in range(50):
        os.write(journal.descriptor, string_entry(number, "é".encode() * generator.randrange(30)))
        journal.append("rows", "mark", [{"value": "x" * generator.randrange(200), "event_index": number}])
    assert journal.num_unwritten == 0
    journal.close()
    return path


def entries(path: Path, *, start: int = 0) -> list[Entry]:
    return list(JournalReader(path, start=start).entries())


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
    expected = string_entry(number, b"a string of this very test")
    os.write(journal.descriptor, expected)
    del recording
    core.intern_string("a string after the recording")
    *before, native, python = entries(tmp_path / "a.journal")
    assert native.string == python.string == (number, "a string of this very test")
    content = (tmp_path / "a.journal").read_bytes()
    assert content[native.offset : python.offset] == content[python.offset :] == expected
    assert [entry.string for entry in before if entry.string is not None] == list(enumerate(core.strings(0)))[:number]
