"""Test the content of manifest lines, and the errors for damaged lines."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from typing import Any

import pytest

from tests.durability.manifests import DAMAGED, RUN, part, sealed
from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.storage.manifest import (
    ManifestChange,
    ManifestEntry,
    SpoolProgress,
    add_line,
    checksummed,
    is_cut_off,
    live_parts,
    manifest_changes,
    replace_line,
    spool_progress,
    whole_lines,
    with_checksum,
)

MAX_COUNT = 2**63 - 1


def changes(text: str) -> list[ManifestChange]:
    return list(manifest_changes(sealed(text), run_id=RUN, path="m"))


def parts(text: str) -> list[ManifestEntry]:
    return list(live_parts(sealed(text), run_id=RUN, path="m"))


def message_of(text: str) -> str:
    with pytest.raises(LogdirError) as error:
        live_parts(text, run_id=RUN, path="m")
    return str(error.value)


class TestLines:
    def test_an_added_part_is_one_line(self) -> None:
        line = add_line(part(3))
        assert line.endswith("}\n")
        assert json.loads(line) == {
            "op": "add",
            "table": "mark",
            "path": "mark/run=run1/part-000003.parquet",
            "rows": 2,
            "bytes": 10,
            "sha256": "0a" * 32,
            "min_event_index": 1,
            "max_event_index": 5,
        }
        assert json.loads(add_line(part(3), spool_upto=0))["spool_upto"] == 0

    def test_a_replacement_is_one_line_with_removed_and_added_parts(self) -> None:
        line = replace_line(["a", "b"], added=[part(1)])
        assert line.endswith("}\n")
        assert json.loads(line) == {"op": "replace", "removed": ["a", "b"], "added": [part(1).to_json()]}
        recovery = json.loads(replace_line([], added=[], spool_upto=7, is_recovery=True))
        assert recovery == {"op": "replace", "removed": [], "added": [], "spool_upto": 7, "is_recovery": True}

    def test_the_checksum_of_a_line_covers_all_lines_before_it(self) -> None:
        first, second = add_line(part(1)), add_line(part(2))
        before = zlib.crc32(b"before\n")
        one = with_checksum(first, before=before)
        two = with_checksum(second, before=zlib.crc32(one.encode(), before))
        assert checksummed([first, second], before=before) == one + two
        assert checksummed([first]) == with_checksum(first)

    def test_written_changes_are_read_back(self) -> None:
        lines = [
            add_line(part(1), spool_upto=4),
            replace_line([part(1).path], added=[part(2), part(3)], spool_upto=9, is_recovery=True),
        ]
        expected = [
            ManifestChange(removed=(), added=(part(1),), where="m, line 1,", spool_upto=4, is_add=True),
            ManifestChange(
                removed=(part(1).path,),
                added=(part(2), part(3)),
                where="m, line 2,",
                spool_upto=9,
                is_recovery=True,
            ),
        ]
        assert changes(checksummed(lines)) == expected
        assert changes("") == []


class TestEntries:
    @pytest.mark.parametrize(
        "entry",
        [
            part(1),
            replace(part(10**17), rows=0, bytes=0, min_event_index=None, max_event_index=None),
            replace(part(1), rows=MAX_COUNT, bytes=MAX_COUNT, min_event_index=MAX_COUNT, max_event_index=MAX_COUNT),
            replace(part(1), min_event_index=0, max_event_index=0),
            part(0, table="a_table_of_a_newer_minor"),
        ],
    )
    def test_an_entry_is_read_back_and_unknown_keys_are_ignored(self, entry: ManifestEntry) -> None:
        value = {**entry.to_json(), "of_a_newer_minor": 1}
        assert ManifestEntry.from_json(value, run_id=RUN, where="here") == entry

    def test_missing_event_indexes_are_none(self) -> None:
        value = part(1).to_json()
        del value["min_event_index"], value["max_event_index"]
        expected = replace(part(1), min_event_index=None, max_event_index=None)
        assert ManifestEntry.from_json(value, run_id=RUN, where="here") == expected

    @pytest.mark.parametrize(
        ("key", "value", "expected"),
        [
            ("table", None, "has the table None, expected a string"),
            ("table", "Mark", "has the table 'Mark', expected the name of a table"),
            ("table", "../mark", "has the table '../mark', expected the name of a table"),
            ("path", 3, "has the path 3, expected a string"),
            ("path", "part-000001.parquet", "has the path 'part-000001.parquet', expected {expected_path}"),
            ("path", "mark/run=run1/other", "has the path 'mark/run=run1/other', expected {expected_path}"),
            (
                "path",
                "mark/run=run2/part-000001.parquet",
                "has the path 'mark/run=run2/part-000001.parquet', expected {expected_path}",
            ),
            (
                "path",
                "/mark/run=run1/part-000001.parquet",
                "has the path '/mark/run=run1/part-000001.parquet', expected {expected_path}",
            ),
            ("sha256", ["0a"], "has the sha256 ['0a'], expected a string"),
            ("sha256", "0A", "has the sha256 '0A', expected 64 hexadecimal digits"),
            ("min_event_index", None, "has only one of min_event_index and max_event_index, expected both or neither"),
            ("max_event_index", None, "has only one of min_event_index and max_event_index, expected both or neither"),
            ("min_event_index", 6, "has event indexes from 6 to 5, expected the smaller one first"),
            *(
                (key, value, f"has {key} = {value!r}, expected a whole number from 0 to 2**63 - 1")
                for key in ("rows", "bytes", "min_event_index", "max_event_index")
                for value in (-1, MAX_COUNT + 1, True, 1.0, "1")
            ),
        ],
    )
    def test_the_error_for_a_wrong_value_names_it(self, key: str, value: Any, expected: str) -> None:
        fields = {**part(1).to_json(), key: value}
        expected = expected.format(expected_path="mark/run=run1/part-<number>.parquet")
        with pytest.raises(LogdirError) as error:
            ManifestEntry.from_json(fields, run_id=RUN, where="here")
        assert str(error.value) == f"here {expected}{DAMAGED}"

    @pytest.mark.parametrize("key", ["table", "path", "rows", "bytes", "sha256"])
    def test_the_error_for_a_missing_key_names_it(self, key: str) -> None:
        fields = part(1).to_json()
        del fields[key]
        with pytest.raises(LogdirError, match=f"^here has (the )?{key} (= )?None, expected"):
            ManifestEntry.from_json(fields, run_id=RUN, where="here")

    def test_an_entry_must_be_an_object(self) -> None:
        with pytest.raises(LogdirError) as error:
            ManifestEntry.from_json([1], run_id=RUN, where="here")
        assert str(error.value) == f"here holds [1], expected a JSON object{DAMAGED}"


class TestLiveParts:
    def test_live_parts_are_the_added_parts_without_the_replaced_ones_in_order(self) -> None:
        text = (
            add_line(part(1))
            + add_line(part(2))
            + add_line(part(3))
            + replace_line([part(1).path, part(3).path], added=[part(4)])
        )
        assert parts(text) == [part(2), part(4)]

    def test_a_part_may_be_removed_and_added_again(self) -> None:
        text = add_line(part(1)) + replace_line([part(1).path], added=[]) + add_line(part(1))
        assert parts(text) == [part(1)]

    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            (add_line(part(1)), f"adds {part(1).path} a second time"),
            (replace_line(["x"], added=[]), "removes 'x', expected the path of a part added before"),
            (replace_line([part(1).path] * 2, added=[]), f"removes {part(1).path!r}, {{before}}"),
            ('{"op": "replace", "removed": [1], "added": []}\n', "removes 1, {before}"),
            ('{"op": "replace", "added": []}\n', "has removed = None, expected a list"),
            ('{"op": "replace", "removed": [], "added": "x"}\n', "has added = 'x', expected a list"),
            ('{"op": "replace", "removed": [], "added": ["x"]}\n', "holds 'x', expected a JSON object"),
            (
                '{"op": "replace", "removed": [], "added": [], "spool_upto": -1}\n',
                "has spool_upto = -1, expected a whole number from 0 to 2**63 - 1",
            ),
            ('{"op": "move"}\n', "has the op 'move', expected 'add' or 'replace'"),
            ('{"a": 1}\n', "has the op None, expected 'add' or 'replace'"),
            ("x\n", "is not JSON (Expecting value: line 1 column 1 (char 0))"),
            ('{"op"}\n', "is not JSON (Expecting ':' delimiter: line 1 column 6 (char 5))"),
        ],
    )
    def test_the_error_for_a_damaged_line_names_it(self, line: str, expected: str) -> None:
        expected = expected.format(before="expected the path of a part added before")
        assert message_of(sealed(add_line(part(1)) + line)) == f"m, line 2, {expected}{DAMAGED}"

    def test_a_line_with_too_deep_nesting_is_damaged(self) -> None:
        assert message_of("[" * 100_000 + "\n").startswith("m, line 1, is not JSON (JSON that is nested too deeply)")

    def test_only_the_last_line_can_be_cut_off(self) -> None:
        assert message_of('{"op"' + "\n" + add_line(part(1))).startswith("m, line 1, is not JSON")
        assert message_of("\0\0\n" + add_line(part(1))).startswith("m, line 1, is not JSON")

    def test_a_last_line_without_its_newline_counts(self) -> None:
        text = sealed(add_line(part(1)) + add_line(part(2)))
        assert parts(text.removesuffix("\n")) == [part(1), part(2)]
        assert parts(text.removesuffix("}\n")) == [part(1)]

    def test_is_recovery_must_be_true_not_1(self) -> None:
        line = '{"op": "replace", "removed": [], "added": [], "is_recovery": 1}\n'
        assert [change.is_recovery for change in changes(line)] == [False]


class TestChecksums:
    TEXT = checksummed([add_line(part(1)), add_line(part(2)), add_line(part(3))])

    @pytest.mark.parametrize("number", [0, 1])
    def test_a_lost_line_is_detected_at_the_next_line(self, number: int) -> None:
        lines = self.TEXT.splitlines(keepends=True)
        del lines[number]
        assert message_of("".join(lines)) == (
            f"m, line {number + 1}, does not match its checksum: "
            f"this line or an earlier one was changed, removed or added{DAMAGED}"
        )

    def test_a_changed_line_is_detected(self) -> None:
        assert message_of(self.TEXT.replace('"rows": 2', '"rows": 3', 1)).startswith(
            "m, line 1, does not match its checksum"
        )

    def test_a_line_without_its_checksum_is_detected(self) -> None:
        for line in (add_line(part(4)), "[]\n", "{}\n"):
            assert message_of(self.TEXT + line).startswith("m, line 4, does not match its checksum")
        assert message_of(add_line(part(1))).startswith("m, line 1, does not match its checksum")

    def test_a_checksum_must_be_the_last_key(self) -> None:
        line = json.dumps({"checksum": "00000000", **json.loads(add_line(part(1)))}) + "\n"
        assert message_of(line).startswith("m, line 1, does not match its checksum")

    def test_the_checksum_covers_non_ascii_characters_as_utf8_bytes(self) -> None:
        first = with_checksum('{"op": "replace", "removed": [], "added": [], "é": "\udc80"}\n')
        before = zlib.crc32(first.encode(errors="surrogatepass"))
        text = first + checksummed([add_line(part(1))], before=before)
        assert parts(text) == [part(1)]


class TestCutOff:
    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("", True),
            ('{"op": "add"', True),
            ('{"op": "add"\n', False),
            ('{"op": "add"}', False),
            ('{"op": "add"}\n', False),
            ('{"op": "add"}x\n', False),
            ("\0\0\n", True),
            ("\0\n", False),
            ("x\0\0\n", False),
            ("x" + "\0" * 512 + "\n", True),
            ("x" + "\0" * 511 + "\n", False),
            ("[" * 100_000, True),
            ("[" * 100_000 + "\n", False),
        ],
    )
    def test_is_cut_off_detects_a_half_written_last_line(self, line: str, expected: bool) -> None:
        assert is_cut_off(line) is expected

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            (b"", b""),
            (b"{}\n", b"{}\n"),
            (b"{}", b"{}"),
            (b"{}\n{", b"{}\n"),
            (b"{}\n[]\n", b"{}\n[]\n"),
            (b"{}\n[]", b"{}\n[]"),
            (b"{}\n[]\n{", b"{}\n[]\n"),
            (b"{}\n{\n", b"{}\n{\n"),
            (b"{}\n\0\0\0\n", b"{}\n"),
            (b'{}\n{"\xff', b"{}\n"),
            (b'{}\n{"\xff": 1}', b'{}\n{"\xff": 1}'),
            (b"{", b""),
        ],
    )
    def test_whole_lines_drops_a_half_written_last_line(self, content: bytes, expected: bytes) -> None:
        assert whole_lines(content) == expected

    @pytest.mark.parametrize("rest", ['{"op": "ad', "\0\0\0\n", '{"op": "a' + "\0" * 600 + "\n"])
    def test_a_half_written_last_line_is_ignored(self, rest: str) -> None:
        assert parts(add_line(part(1)) + rest) == [part(1)]


class TestSpoolProgress:
    def test_progress_is_the_maximum_of_added_parts_by_table_and_of_replacements_for_events(self) -> None:
        lines = [
            add_line(part(1), spool_upto=7),
            add_line(part(2), spool_upto=5),
            add_line(part(3)),
            add_line(part(1, table="execution"), spool_upto=0),
            add_line(part(2, table="execution")),
            replace_line([part(1).path], added=[part(4)], spool_upto=20),
            replace_line([], added=[part(5)], spool_upto=10),
            replace_line([], added=[]),
        ]
        found = spool_progress(sealed("".join(lines)), run_id=RUN, path="m")
        assert found == SpoolProgress(by_table={"mark": 7, "execution": 0}, events=20, is_recovered=False)

    def test_a_recovered_run_stays_recovered(self) -> None:
        text = sealed(replace_line([], added=[], is_recovery=True) + replace_line([], added=[]))
        assert spool_progress(text, run_id=RUN, path="m") == SpoolProgress(by_table={}, events=0, is_recovered=True)

    def test_the_error_for_damage_names_the_file(self) -> None:
        with pytest.raises(LogdirError, match=r"^m, line 1, does not match its checksum"):
            spool_progress("[]\n", run_id=RUN, path="m")
        with pytest.raises(LogdirError, match=r"run=run2/part-<number>\.parquet"):
            spool_progress(sealed(add_line(part(1))), run_id="run2", path="m")
