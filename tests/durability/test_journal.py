"""Test journals: appended entries can be read, and torn entries do not affect other entries."""

from __future__ import annotations

import errno
import os
import struct
import sys
import threading
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.durability.files_on_disk import failing, num_descriptors
from tests.stack import at_end_of_stack
from tfdbg_arrow.spool.failures import Failures
from tfdbg_arrow.spool.journal import (
    MAX_ENTRY_BYTES,
    BrokenEntry,
    Entry,
    Journal,
    JournalReader,
    broken_entries,
)
from tfdbg_arrow.spool.recovery import JournaledNames
from tfdbg_arrow.storage.disk import MIN_HOLE_BYTES
from tfdbg_arrow.writer.sink.sink import SpoolLosses

MAGIC = b"\xf0TJ1"


def entry(payload: bytes, *, length: int | None = None, crc: int | None = None) -> bytes:
    head = struct.pack("<II", len(payload) if length is None else length, zlib.crc32(payload) if crc is None else crc)
    return MAGIC + head + payload


def string_entry(number: int, text: bytes) -> bytes:
    """Returns the entry that the native core writes for an interned string."""
    return entry(b"s" + struct.pack("<I", number) + text)


def append_strings(journal: Journal, texts: dict[int, str]) -> None:
    with open(journal.path, "ab") as file:
        file.writelines(string_entry(number, text.encode()) for number, text in texts.items())


def read(path: Path, *, start: int = 0) -> tuple[list[Entry], int]:
    """Returns the entries and the number of torn entries."""
    reader = JournalReader(path, start=start)
    return list(reader.entries()), reader.num_torn


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "spool/a.journal")


class TestAppending:
    def test_entries_follow_one_another(self, journal: Journal) -> None:
        append_strings(journal, {7: "é"})
        assert journal.append("rows", "mark", [{"a": 1}]) is True
        expected = [string_entry(7, "é".encode()), entry(b'j["rows","mark",[{"a":1}]]')]
        assert journal.path.read_bytes() == b"".join(expected)
        assert journal.size() == len(b"".join(expected))
        assert read(journal.path) == (
            [
                Entry(offset=0, string=(7, "é")),
                Entry(offset=len(expected[0]), data=["rows", "mark", [{"a": 1}]]),
            ],
            0,
        )
        assert (journal.num_unwritten, journal.last_error) == (0, None)

    @pytest.mark.parametrize("text", ["", 'a\n"\\b\n', "\0é\udc80\U0001f600", "\n"])
    def test_a_long_text_is_not_escaped(self, journal: Journal, text: str) -> None:
        assert journal.append("x", {"a": "\n"}, text=text) is True
        assert journal.path.read_bytes() == entry(b't["x",{"a":"\\n"}]\n' + text.encode(errors="surrogatepass"))
        assert read(journal.path) == ([Entry(offset=0, data=["x", {"a": "\n"}, text])], 0)

    def test_other_objects_are_written_as_numbers_or_text(self, journal: Journal) -> None:
        assert journal.append("x", np.int64(3), np.float32(0.5), Path("a"))
        assert [found.data for found in read(journal.path)[0]] == [["x", 3, 0.5, "a"]]

    def test_data_that_cannot_be_an_entry_is_counted(self, journal: Journal) -> None:
        assert journal.append("x", {(1, 2): 3}) is False
        assert repr(journal.last_error) == "TypeError('keys must be str, int, float, bool or None, not tuple')"
        longest = "x" * (MAX_ENTRY_BYTES - len(b'j[""]'))
        assert journal.append(longest + "x") is False
        assert repr(journal.last_error) == (
            f"ValueError('an entry has {MAX_ENTRY_BYTES + 1} bytes, expected at most {MAX_ENTRY_BYTES}')"
        )
        assert (journal.num_unwritten, journal.path.read_bytes()) == (2, b"")
        assert journal.append(longest) is True
        assert len(read(journal.path)[0]) == 1

    def test_what_cannot_be_encoded_is_not_reported_as_a_failed_write(self, journal: Journal, tmp_path: Path) -> None:
        told: list[str] = []
        recorder = SimpleNamespace(
            num_dropped=int, num_unkept_values=int, num_unkept_inputs=int, num_known_arguments=int, write_names=int
        )
        files = SimpleNamespace(names=journal, rows=Journal(tmp_path / "a.rows"), num_unwritten=1)
        losses = SpoolLosses(cast(Any, recorder), cast(Any, files), failures=Failures(told.append))
        deep: list[object] = []
        for _ in range(sys.getrecursionlimit() * 60):
            deep = [deep]
        assert files.rows.append("mark", deep) is False
        losses.note()
        (text,) = told
        assert "because they could not be encoded: RecursionError" in text
        assert "OSError" not in text

    def test_a_journal_is_never_overwritten(self, journal: Journal) -> None:
        journal.append("x")
        with pytest.raises(FileExistsError):
            Journal(journal.path)
        assert journal.path.stat().st_mode & 0o777 == 0o600
        with open(journal.path, "ab") as file:
            file.write(b"from another process")
        journal.append("y")
        assert journal.path.read_bytes().endswith(b"from another process" + entry(b'j["y"]'))

    def test_subprocesses_do_not_inherit_the_descriptor(self, journal: Journal) -> None:
        assert os.get_inheritable(journal.descriptor) is False

    def test_nothing_is_appended_to_a_closed_journal(self, journal: Journal) -> None:
        before = num_descriptors()
        journal.append("x")
        journal.close()
        journal.close()
        assert num_descriptors() == before - 1
        assert journal.append("y") is False
        assert (journal.size(), journal.num_unwritten) == (0, 0)
        assert len(read(journal.path)[0]) == 1

    def test_a_forked_child_abandons_it_even_if_another_thread_held_the_lock(self, journal: Journal) -> None:
        taken, done = threading.Event(), threading.Event()

        def hold() -> None:
            with journal.lock:
                taken.set()
                done.wait(20)

        thread = threading.Thread(target=hold)
        thread.start()
        taken.wait(20)
        descriptor = journal.descriptor
        journal.abandon()
        assert journal.descriptor == -1
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
        assert journal.append("x") is False
        done.set()
        thread.join()


class TestFailures:
    @pytest.mark.parametrize("times", [1, 2])
    def test_a_failed_write_is_retried_once(
        self, journal: Journal, monkeypatch: pytest.MonkeyPatch, times: int
    ) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", failing(times, instead_of=os.write))
            assert journal.append("x") is (times == 1)
        assert str(journal.last_error) == "[Errno 28] No space left on device"
        assert journal.num_unwritten == times - 1

    def test_a_half_written_entry_is_written_again(self, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
        write, whole = os.write, entry(b'j["x"]')
        sizes = iter([5, 100])
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", lambda file, data: write(file, data[: next(sizes)]))
            assert journal.append("x") is True
        assert str(journal.last_error) == f"only 5 of {len(whole)} bytes could be written"
        assert journal.path.read_bytes() == whole[:5] + whole
        assert read(journal.path) == ([Entry(offset=5, data=["x"])], 1)

    def test_failed_entries_are_kept_up_to_a_bound_and_written_in_order(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        size = len(entry(b'j["x",0]'))
        monkeypatch.setattr("tfdbg_arrow.spool.journal._MAX_KEPT_BYTES", 2 * size)
        journal = Journal(tmp_path / "a.journal", is_kept=True)
        for _ in range(2):
            with monkeypatch.context() as patched:
                patched.setattr(os, "write", failing(100))
                assert [journal.append("x", number) for number in range(3)] == [False] * 3
                journal.write_kept()
            assert journal.num_unwritten >= 3
            journal.write_kept()
        assert journal.num_unwritten == 2, "the third entry is lost each time"
        assert [found.data for found in read(journal.path)[0]] == [["x", 0], ["x", 1]] * 2

    def test_as_many_kept_entries_are_written_as_possible(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        journal = Journal(tmp_path / "a.journal", is_kept=True)
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", failing(100))
            for number in range(3):
                journal.append("x", number)
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", failing(100, after=1, instead_of=os.write))
            journal.write_kept()
        assert journal.num_unwritten == 2
        journal.write_kept()
        assert journal.num_unwritten == 0
        assert [found.data for found in read(journal.path)[0]] == [["x", 0], ["x", 1], ["x", 2]]

    def test_an_unknown_size_raises_an_error(self, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(os, "fstat", failing(code=errno.EIO, instead_of=os.fstat))
            with pytest.raises(OSError, match="Input/output error"):
                journal.size()


class TestRelease:
    def test_space_is_released_once_and_in_large_pieces(
        self, journal: Journal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        punched: list[Any] = []
        monkeypatch.setattr("tfdbg_arrow.spool.journal.punch_hole", lambda *args: punched.append(args))
        least = MIN_HOLE_BYTES
        for upto in (least - 1, least, 2 * least - 1, 2 * least + 5, 2 * least + 6):
            journal.release(upto)
        assert punched == [(journal.descriptor, 0, least), (journal.descriptor, least, 2 * least + 5)]
        journal.close()
        journal.release(9 * least)
        assert len(punched) == 2


class TestReading:
    GOOD = entry(b'j["good"]')

    @pytest.mark.parametrize(
        "payload",
        [
            b"s\0\0\0",
            b"t",
            b't["x"]\n\xff',
            b't"x"\na',
            b"x",
            b"j",
            b"j{",
            b"j{}",
            b"j[]",
            b"j[1]",
            b'j"x"',
            b"j" + b"[" * 100_000,
            b"s",
            b"j\xff",
        ],
    )
    def test_an_entry_with_an_invalid_payload_is_left_out(self, tmp_path: Path, payload: bytes) -> None:
        path = tmp_path / "a.journal"
        path.write_bytes(self.GOOD + entry(payload) + self.GOOD)
        second = len(self.GOOD + entry(payload))
        assert read(path) == ([Entry(offset=0, data=["good"]), Entry(offset=second, data=["good"])], 1)

    def test_a_string_may_be_empty_or_invalid_utf8(self, tmp_path: Path) -> None:
        path = tmp_path / "a.journal"
        path.write_bytes(entry(b"s\1\0\0\0") + entry(b"s\0\0\0\1\xff"))
        assert [found.string for found in read(path)[0]] == [(1, ""), (2**24, "\ufffd")]

    @pytest.mark.parametrize(
        "torn",
        [
            b"x",
            b"x" * 70_000,
            MAGIC,
            MAGIC * 3,
            b"\xf0TJ",
            entry(b""),
            entry(b'j["x"]', crc=1),
            entry(b'j["x"]', length=7),
            entry(b'j["x"]', length=2**32 - 1),
            entry(b'j["x"]').replace(MAGIC, b"\xf0TJ2"),
            b"x" * (65_536 - 14) + b"\xf0T",
            b"x" * (65_536 - 1) + b"\xf0TJ",
            b"x" * (65_536 * 2 - 5),
        ],
    )
    def test_entries_after_a_torn_place_are_found(self, tmp_path: Path, torn: bytes) -> None:
        path = tmp_path / "a.journal"
        path.write_bytes(torn + self.GOOD + torn + self.GOOD)
        entries, num_torn = read(path)
        assert [(found.offset, found.data) for found in entries] == [
            (len(torn), ["good"]),
            (2 * len(torn + self.GOOD) - len(self.GOOD), ["good"]),
        ]
        assert num_torn >= 2
        assert read(path, start=len(torn + self.GOOD))[0] == entries[1:]

    def test_each_invalid_entry_is_counted(self, tmp_path: Path) -> None:
        path = tmp_path / "a.journal"
        path.write_bytes((entry(b"?") + self.GOOD + entry(b"j{") + entry(b"j[1]")) * 2)
        entries, num_torn = read(path)
        assert (len(entries), num_torn) == (2, 6)

    def test_a_torn_place_is_counted_once(self, tmp_path: Path) -> None:
        path = tmp_path / "a.journal"
        path.write_bytes(b"x" * 200_000 + self.GOOD + b"y" * 200_000)
        assert (len(read(path)[0]), read(path)[1]) == (1, 2)

    def test_the_complete_entries_of_a_truncated_file_are_read(self, tmp_path: Path) -> None:
        path = tmp_path / "a.journal"
        for size in range(2 * len(self.GOOD) + 1):
            path.write_bytes((self.GOOD * 2)[:size])
            entries, num_torn = read(path)
            rest = size % len(self.GOOD)
            assert (len(entries), num_torn) == (size // len(self.GOOD), int(rest >= 12))

    def test_an_entry_longer_than_the_maximum_is_ignored(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "a.journal"
        path.write_bytes(entry(b'j["x",1]') + entry(b'j["x",23]') + entry(b'j["y",1]'))
        monkeypatch.setattr("tfdbg_arrow.spool.journal.MAX_ENTRY_BYTES", 8)
        assert [found.data for found in read(path)[0]] == [["x", 1], ["y", 1]]

    def test_a_journal_is_read_up_to_the_maximum_size(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "a.journal"
        path.write_bytes(self.GOOD * 5)
        monkeypatch.setattr("tfdbg_arrow.spool.journal.MAX_JOURNAL_BYTES", 2 * len(self.GOOD))
        assert [found.offset for found in read(path)[0]] == [0, len(self.GOOD)]
        assert [found.offset // len(self.GOOD) for found in read(path, start=len(self.GOOD))[0]] == [1, 2]
        path.write_bytes(self.GOOD + b"x" * 70_000 + self.GOOD)
        assert read(path) == ([Entry(offset=0, data=["good"])], 1)

    def test_reading_a_file_of_entry_headers_is_given_up(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each header claims an entry of 256 KiB. Reading these bytes for each header would take quadratic time.

        The reader reads at most four times the file's size. This limit allows nine headers, each with the piece in
        which the reader searches for the next header.
        """
        monkeypatch.setattr("tfdbg_arrow.spool.journal._MIN_BUDGET", 0)
        path = tmp_path / "a.journal"
        path.write_bytes((MAGIC + struct.pack("<II", 2**18, 0)) * 60_000 + self.GOOD)
        assert read(path) == ([], 9)

    def test_a_missing_journal_raises_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "a.journal")

    def test_it_is_read_completely_or_not_at_all_at_the_end_of_the_stack(self, journal: Journal) -> None:
        journal.append("x")
        at_end_of_stack(lambda: read(journal.path), expected=([Entry(offset=0, data=["x"])], 0))


class TestBrokenEntries:
    GOOD = entry(b'j["good"]')
    CHANGED_AT_21 = BrokenEntry(offset=21, is_cut=False)

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            (b"", []),
            (GOOD * 2, []),
            (GOOD + b"x" + GOOD, [CHANGED_AT_21]),
            (GOOD + MAGIC[:2], [CHANGED_AT_21]),
            (GOOD + GOOD[:-1], [CHANGED_AT_21]),
            (GOOD + entry(b"", length=0) + GOOD, [CHANGED_AT_21]),
            (entry(b"j1", crc=0), [BrokenEntry(offset=0, is_cut=False)]),
            (entry(b"x" * 4084) + MAGIC + b"12", [BrokenEntry(offset=4096, is_cut=False)]),
            # Cut at the end of the file.
            (entry(b"x" * 10_000)[:8192], [BrokenEntry(offset=0, is_cut=True)]),
            # Cut in the middle of the file, and followed by further entries.
            (entry(b"x" * 10_000)[:8192] + GOOD, [BrokenEntry(offset=0, is_cut=True)]),
            (entry(b"x" * 4080) + GOOD[:4] + GOOD, [BrokenEntry(offset=4092, is_cut=True)]),
            (entry(b"x" * 4080) + entry(b"y" * 9000)[:4100] + GOOD, [BrokenEntry(offset=4092, is_cut=True)]),
            (
                entry(b"x" * 10_000)[:4096] + entry(b"y" * 10_000)[:4096] + GOOD + b"z",
                [
                    BrokenEntry(offset=0, is_cut=True),
                    BrokenEntry(offset=4096, is_cut=True),
                    BrokenEntry(offset=8192 + 21, is_cut=False),
                ],
            ),
            # Not cut at a page boundary, not followed by an entry, or of a size that no writer uses.
            (entry(b"x" * 10_000)[:8000] + GOOD, [BrokenEntry(offset=0, is_cut=False)]),
            (entry(b"x" * 10_000)[:8192] + b"x" * 21, [BrokenEntry(offset=0, is_cut=False)]),
            (entry(b"x" * 4084, crc=0) + GOOD, [BrokenEntry(offset=0, is_cut=False)]),
            (entry(b"x" * 10_000, length=2**30)[:8192] + GOOD, [BrokenEntry(offset=0, is_cut=False)]),
        ],
    )
    def test_they_are_found(self, tmp_path: Path, content: bytes, expected: list[BrokenEntry]) -> None:
        path = tmp_path / "a.journal"
        path.write_bytes(content)
        assert list(broken_entries(path)) == expected

    def test_the_search_may_begin_at_a_later_entry(self, tmp_path: Path) -> None:
        path = tmp_path / "a.journal"
        path.write_bytes(b"x" * 5 + self.GOOD + b"y")
        assert list(broken_entries(path, start=5)) == [BrokenEntry(offset=5 + len(self.GOOD), is_cut=False)]

    def test_an_entry_may_not_be_longer_than_the_maximum(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "a.journal"
        path.write_bytes(entry(b"12345678") + entry(b"123456789"))
        monkeypatch.setattr("tfdbg_arrow.spool.journal.MAX_ENTRY_BYTES", 8)
        assert list(broken_entries(path)) == [BrokenEntry(offset=20, is_cut=False)]


class TestNames:
    def test_names_of_a_recording_are_read(self, journal: Journal) -> None:
        append_strings(journal, {0: "", 1: "a", 3: "c"})
        journal.append("nodes", 0, [[5, "op", "MatMul", -1]])
        journal.append("nodes", 2, [[0, "", "", 2**31 - 1]])
        journal.append("function", "f", 5)
        journal.append("callee", 5, "call", "f", 0, 6)
        journal.append("rename", 5, "call", "call_1")
        names = JournaledNames(journal.path)
        assert (names.strings(0), names.strings(2), names.num_strings) == (["", "a", "", "c"], ["", "c"], 4)
        assert names.nodes(0) == [(5, "op", "MatMul", -1), (-1, "", "", -1), (0, "", "", 2**31 - 1)]
        assert names.nodes(2) == [(0, "", "", 2**31 - 1)]
        assert names.graphs.graph_id_of_function("f") == 5
        assert names.graphs.reaches(5, 6)
        assert names.graphs.call_site("call_1", 6) == "call"
        assert names.num_torn == 0

    def test_invalid_names_are_left_out(self, journal: Journal) -> None:
        for number, graph_id, slot in ((-1, 0, 0), (0, -1, 0), (0, 2**31, 0), (0, 0, -2), (0, 0, 2**31), ("0", 0, 0)):
            journal.append("nodes", number, [[graph_id, "op", "MatMul", slot]])
        journal.append("nodes", -1, [[0, "op", "MatMul", 0]])
        journal.append("nodes", 0, "nonsense")
        journal.append("nodes", 0, ["nonsense", [0, "op", "MatMul"], [-1, "op", "MatMul", 0]])
        journal.append("function", "f", -1)
        journal.append("function", "g", 2**31 - 1)
        journal.append("callee", 1, "", "f", 0, 2)
        journal.append("callee", -1, "call", "f", 0, 2)
        journal.append("callee", 1, "call", "f", 0, -1)
        journal.append("rename", 1, "call", "")
        journal.append("rename", -1, "call", "x")
        journal.append("nonsense")
        names = JournaledNames(journal.path)
        assert (names.strings(0), names.nodes(0)) == ([], [])
        assert names.graphs.graph_id_of_function("f") is None
        assert names.graphs.graph_id_of_function("g") == 2**31 - 1
        assert not names.graphs.reaches(1, 2)
        assert not names.graphs.reaches(-1, 2)
        assert not names.graphs.reaches(1, -1)
        assert names.graphs.call_site("call", 1) == "call"

    def test_names_with_very_large_numbers_take_no_memory(self, journal: Journal) -> None:
        append_strings(journal, {2**32 - 1: "far", 5: "near"})
        journal.append("nodes", 2**40, [[0, "op", "MatMul", 0]])
        with open(journal.path, "ab") as file:
            file.write(b"torn" * 5)
        names = JournaledNames(journal.path)
        assert names.strings(0) == ["", "", "", "", "", "near"]
        assert names.nodes(0) == [(-1, "", "", -1)] * 6
        assert names.num_torn == 1

    def test_lookups_of_calls_are_bounded(self, journal: Journal) -> None:
        journal.append("callee", 1, "call", "f", 0, 1)
        journal.append("rename", 1, "call", "call")
        graphs = JournaledNames(journal.path).graphs
        assert graphs.call_site("call/" * 5_000, 1) == "call/" * 5_000
        assert graphs._looks_left == 5_000_000
