"""Test the file names of a logdir, its marker and its manifests, including hostile ones."""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.durability.manifests import sealed
from tfdbg_arrow.errors import FormatVersionError, LogdirError
from tfdbg_arrow.schema import FORMAT_VERSION, TABLES
from tfdbg_arrow.storage.layout import check_run_id, make_run_id, manifest_path, part_path, spool_paths
from tfdbg_arrow.storage.manifest import (
    ManifestEntry,
    add_line,
    checksummed,
    live_parts,
    read_live_parts,
    replace_line,
    resolve_part,
    run_ids,
    whole_lines,
)
from tfdbg_arrow.storage.marker import marker_text, parse_marker

RUN_ID = "20261120T163000.123456-trainer-4242"
START_NS = 1_795_192_200_123_456_789


def entry(number: int, *, table: str = "tensor_health", rows: int = 10) -> ManifestEntry:
    return ManifestEntry(
        table=table,
        path=part_path(table, run_id=RUN_ID, number=number),
        rows=rows,
        bytes=4567,
        sha256="ab" * 32,
        min_event_index=100 * number,
        max_event_index=100 * number + 99,
    )


def live(text: str) -> list[ManifestEntry]:
    return list(live_parts(sealed(text), run_id=RUN_ID, path="manifest/x.jsonl"))


def test_a_run_id_contains_start_host_and_process() -> None:
    assert make_run_id(START_NS, host_name="trainer", pid=4242) == RUN_ID


@given(st.integers(0, 4_000_000_000_000_000_000), st.text(), st.integers(1, 2**31))
def test_every_generated_run_id_is_valid_and_begins_with_its_start(start_ns: int, host: str, pid: int) -> None:
    run_id = make_run_id(start_ns, host_name=host, pid=pid)
    assert check_run_id(run_id, where="test") == run_id
    assert re.match(r"\d{8}T\d{6}\.\d{6}-", run_id)


@given(st.integers(0, 4_000_000_000_000_000), st.integers(1, 1_000_000))
def test_run_ids_sort_by_start(start_us: int, later_us: int) -> None:
    first = make_run_id(start_us * 1000, host_name="z", pid=9)
    second = make_run_id((start_us + later_us) * 1000, host_name="a", pid=1)
    assert first < second


@pytest.mark.parametrize(
    "text", ["", "..", ".hidden", "a/b", "a\\b", "a=b", "a b", "a\n", "20261120", "2026-11-20", "x" * 201, "é"]
)
def test_a_run_id_that_is_unsafe_in_a_path_or_looks_like_a_number_is_refused(text: str) -> None:
    with pytest.raises(LogdirError, match=r"manifest/ gives the run id .*, expected at most 200 letters"):
        check_run_id(text, where="manifest/")


def test_paths_match_the_specification() -> None:
    assert [
        part_path("tensor_health", run_id=RUN_ID, number=3),
        manifest_path(RUN_ID),
        *(str(path) for path in spool_paths(Path(), run_id=RUN_ID).all()),
    ] == [
        f"tensor_health/run={RUN_ID}/part-000003.parquet",
        f"manifest/{RUN_ID}.jsonl",
        f"spool/{RUN_ID}.spool",
        f"spool/{RUN_ID}.values",
        f"spool/{RUN_ID}.rows",
        f"spool/{RUN_ID}.journal",
    ]


def test_the_marker_contains_the_version() -> None:
    marker = json.loads(marker_text())
    assert marker.pop("checksum")
    assert marker == {"format": "tfdbg_arrow", "format_version": FORMAT_VERSION}
    assert parse_marker(marker_text(), path="x") == FORMAT_VERSION


def test_a_marker_that_does_not_match_its_checksum_is_refused() -> None:
    with pytest.raises(LogdirError, match=r"^x does not match its checksum, expected .*restore it"):
        parse_marker(marker_text().replace(FORMAT_VERSION, "2.77"), path="x")


def test_a_marker_of_a_newer_major_version_is_refused() -> None:
    with pytest.raises(FormatVersionError, match=r"which reads format 3\.x"):
        parse_marker('{"format": "tfdbg_arrow", "format_version": "3.0", "new": 1}', path="x")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"format": "other", "format_version": "1.0"}',
        '{"format": "tfdbg_arrow"}',
        "[" * 100_000,
        '{"format": "tfdbg_arrow", "format_version": 1.0}',
        '{"format": "tfdbg_arrow", "format_version": "one"}',
    ],
)
def test_a_damaged_marker_is_a_logdir_error(text: str) -> None:
    with pytest.raises(LogdirError, match=r"^logs/tfdbg_arrow\.json .*expected"):
        parse_marker(text, path="logs/tfdbg_arrow.json")


def test_added_parts_are_live_in_order() -> None:
    assert live("".join(add_line(entry(number)) for number in (0, 2, 1))) == [entry(0), entry(2), entry(1)]


def test_replaced_parts_are_not_live() -> None:
    text = add_line(entry(0)) + add_line(entry(1)) + add_line(entry(2, table="mark"))
    text += replace_line([entry(0).path, entry(1).path], added=[entry(7, rows=20)])
    assert live(text) == [entry(2, table="mark"), entry(7, rows=20)]


def test_a_part_may_be_replaced_under_its_own_name() -> None:
    assert live(add_line(entry(0)) + replace_line([entry(0).path], added=[entry(0, rows=11)])) == [entry(0, rows=11)]


def test_an_empty_manifest_has_no_parts() -> None:
    assert live("") == []


@given(st.integers(min_value=1))
def test_a_truncated_last_line_is_ignored(cut: int) -> None:
    first, last = checksummed([add_line(entry(0)), add_line(entry(1))]).splitlines(keepends=True)
    kept = cut % (len(last) - 1)  # without only its newline, the line is complete
    assert live(first + last[:kept]) == [entry(0)]
    assert live(first + last[:-1]) == [entry(0), entry(1)]


def test_zero_bytes_after_a_power_failure_are_ignored() -> None:
    assert live(add_line(entry(0)) + "\0" * 500) == [entry(0)]


def test_a_broken_line_in_the_middle_is_damage() -> None:
    with pytest.raises(LogdirError, match=r"manifest/x\.jsonl, line 2, is not JSON"):
        live(add_line(entry(0)) + '{"op": "ad\n' + add_line(entry(1)))


@pytest.mark.parametrize("end", ["\n", "x\n", "x", " ", "}", ", \n"])
def test_a_last_line_with_trailing_text_is_not_a_truncated_line(end: str) -> None:
    first, last = checksummed([add_line(entry(0)), add_line(entry(1))]).splitlines()
    text = f"{first}\n{last}{end}"
    if end == "\n":
        assert live(text) == [entry(0), entry(1)]
        return
    with pytest.raises(LogdirError, match=r"line 2, .*the manifest is damaged"):
        live(text)


def test_a_last_line_with_zero_bytes_from_a_power_failure_is_ignored() -> None:
    last = add_line(entry(1))
    for torn in ("\0" * 9 + last[9:], last[:9] + "\0" * 600 + last[609:], last[:5] + "\0" * 512 + "\n"):
        text = add_line(entry(0)) + torn
        assert live(text) == [entry(0)]
        assert whole_lines(text.encode()).decode() == add_line(entry(0))


class TestChecksums:
    TEXT = checksummed([add_line(entry(0)), add_line(entry(1)), replace_line([entry(0).path], added=[entry(2)])])

    def test_checksums_do_not_change_the_live_parts(self) -> None:
        assert live(self.TEXT) == [entry(1), entry(2)]

    def test_each_checksum_is_the_crc_of_the_preceding_text(self) -> None:
        for line in range(3):
            start = len("".join(self.TEXT.splitlines(keepends=True)[:line]))
            key = self.TEXT.index(', "checksum"', start)
            assert self.TEXT[key:].startswith(f', "checksum": "{zlib.crc32(self.TEXT[:key].encode()):08x}"}}\n')

    def test_lines_can_be_appended(self) -> None:
        first, rest = self.TEXT.split("\n", 1)
        lines = [add_line(entry(1)), replace_line([entry(0).path], added=[entry(2)])]
        assert checksummed(lines, before=zlib.crc32(f"{first}\n".encode())) == rest

    @given(st.data())
    def test_any_changed_byte_is_damage(self, data: st.DataObject) -> None:
        content = bytearray(self.TEXT.encode())
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        assert_damaged(content.decode("utf-8", errors="replace"))

    @given(st.integers(0, 1))
    def test_a_lost_or_moved_line_is_damage(self, number: int) -> None:
        lines = self.TEXT.splitlines(keepends=True)
        assert_damaged("".join([*lines[:number], *lines[number + 1 :]]))
        assert_damaged("".join([*lines[:number], lines[number + 1], lines[number], *lines[number + 2 :]]))

    def test_a_line_without_a_checksum_is_damage(self) -> None:
        text = checksummed([add_line(entry(0))]) + add_line(entry(1))
        with pytest.raises(LogdirError, match=r"line 2, does not match its checksum"):
            live_parts(text, run_id=RUN_ID, path="manifest/x.jsonl")

    def test_a_newer_minor_version_may_add_keys_before_the_checksum(self) -> None:
        line = json.dumps({"op": "add", **entry(0).to_json(), "min_step": 3}) + "\n"
        assert live(checksummed([line])) == [entry(0)]


def assert_damaged(text: str) -> None:
    with pytest.raises(LogdirError, match="the manifest is damaged"):
        live_parts(text, run_id=RUN_ID, path="manifest/x.jsonl")


def test_unknown_keys_and_tables_of_a_newer_minor_version_are_accepted() -> None:
    newer = entry(0, table="layer_statistic")
    line = json.dumps({"op": "add", **newer.to_json(), "min_step": 3}) + "\n"
    assert live(line) == [newer]


@pytest.mark.parametrize("table", [table.name for table in TABLES])
def test_every_table_can_be_in_a_manifest(table: str) -> None:
    assert live(add_line(entry(0, table=table))) == [entry(0, table=table)]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("path", f"../tensor_health/run={RUN_ID}/part-000000.parquet"),
        ("path", f"tensor_health/run={RUN_ID}/../part-000000.parquet"),
        ("path", f"/tensor_health/run={RUN_ID}/part-000000.parquet"),
        ("path", f"mark/run={RUN_ID}/part-000000.parquet"),
        ("path", f"tensor_health/run_id={RUN_ID}/part-000000.parquet"),
        ("path", "tensor_health/run=20270101T000000.000000-other-1/part-000000.parquet"),
        ("path", f"tensor_health\\run={RUN_ID}\\part-000000.parquet"),
        ("path", f"tensor_health/run={RUN_ID}/part-000000.parquet.tmp"),
        ("path", f"tensor_health/run={RUN_ID}/part-000000.parquet\n"),
        ("path", f"tensor_health/run={RUN_ID}/part-00000*.parquet"),
        ("path", None),
        ("path", "x" * 100_000),
        ("table", ".."),
        ("table", "tensor_health/x"),
        ("table", 7),
        ("rows", -1),
        ("rows", 1.0),
        ("rows", True),
        ("rows", 2**63),
        ("bytes", "4567"),
        ("sha256", "AB" * 32),
        ("sha256", "ab"),
        ("min_event_index", None),
        ("min_event_index", 1000),
        ("max_event_index", -1),
    ],
)
def test_an_invalid_entry_is_refused(key: str, value: Any) -> None:
    line = json.dumps({"op": "add", **entry(0).to_json(), key: value}) + "\n"
    with pytest.raises(LogdirError, match=r"^manifest/x\.jsonl, line 1, .*; the manifest is damaged") as caught:
        live(line)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("key", ["table", "path", "rows", "bytes", "sha256"])
def test_a_missing_key_is_refused(key: str) -> None:
    fields = entry(0).to_json()
    del fields[key]
    with pytest.raises(LogdirError, match=rf"has (the )?{key}"):
        live(json.dumps({"op": "add", **fields}) + "\n")


@pytest.mark.parametrize(
    "line",
    [
        "3\n",
        '{"op": "delete"}\n',
        '{"op": "replace", "removed": 3, "added": []}\n',
        '{"op": "replace", "removed": ["x"], "added": []}\n',
        '{"op": "replace", "removed": [[]], "added": []}\n',
        '{"op": "replace", "removed": []}\n',
        add_line(entry(0)) * 2,
    ],
)
def test_an_invalid_line_is_refused(line: str) -> None:
    with pytest.raises(LogdirError, match="the manifest is damaged"):
        live(line)


def test_both_event_indexes_may_be_missing() -> None:
    empty = replace(entry(0, rows=0), min_event_index=None, max_event_index=None)
    assert live(add_line(empty)) == [empty]


def test_runs_and_their_parts_are_read_from_a_directory(tmp_path: Path) -> None:
    (tmp_path / "manifest").mkdir()
    for name in (RUN_ID, "20260101T000000.000000-a-1", "bad name", "20261120"):
        (tmp_path / f"manifest/{name}.jsonl").write_text(checksummed([add_line(entry(0))]))
    (tmp_path / "manifest/notes.txt").write_text("x")
    assert run_ids(tmp_path) == ("20260101T000000.000000-a-1", RUN_ID)
    assert read_live_parts(tmp_path, run_id=RUN_ID) == (entry(0),)
    assert read_live_parts(tmp_path, run_id="20270101T000000.000000-b-2") == ()


def test_a_manifest_that_ends_in_invalid_utf8_is_read_up_to_it(tmp_path: Path) -> None:
    (tmp_path / "manifest").mkdir()
    (tmp_path / manifest_path(RUN_ID)).write_bytes(checksummed([add_line(entry(0))]).encode() + b'{"op": "add\xff\xfe')
    assert read_live_parts(tmp_path, run_id=RUN_ID) == (entry(0),)


def test_the_error_for_an_unreadable_manifest(tmp_path: Path) -> None:
    (tmp_path / manifest_path(RUN_ID)).mkdir(parents=True)
    with pytest.raises(LogdirError, match="cannot be read"):
        read_live_parts(tmp_path, run_id=RUN_ID)


def test_an_unsafe_run_id_never_becomes_a_path(tmp_path: Path) -> None:
    with pytest.raises(LogdirError, match="run id"):
        read_live_parts(tmp_path, run_id="../x")


def test_a_part_is_found_if_the_logdir_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "logs")
    assert resolve_part(tmp_path / "link", entry(0)) == (tmp_path / "logs").resolve() / entry(0).path


def test_a_part_that_is_a_link_out_of_the_logdir_is_refused(tmp_path: Path) -> None:
    logdir = tmp_path / "logs"
    logdir.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (logdir / "tensor_health").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LogdirError, match="leads through a symbolic link to"):
        resolve_part(logdir, entry(0))
