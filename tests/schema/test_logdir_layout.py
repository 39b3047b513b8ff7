"""Test the file names of a logdir, and hostile markers and manifests. tests/durability has the other tests of these."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.durability.manifests import sealed
from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.schema import FORMAT_VERSION
from tfdbg_arrow.storage.layout import check_run_id, make_run_id, manifest_path, part_path, spool_paths
from tfdbg_arrow.storage.manifest import (
    ManifestEntry,
    add_line,
    checksummed,
    live_parts,
    replace_line,
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


def test_a_part_may_be_replaced_under_its_own_name() -> None:
    assert live(add_line(entry(0)) + replace_line([entry(0).path], added=[entry(0, rows=11)])) == [entry(0, rows=11)]


@given(st.integers(min_value=1))
def test_a_truncated_last_line_is_ignored(cut: int) -> None:
    first, last = checksummed([add_line(entry(0)), add_line(entry(1))]).splitlines(keepends=True)
    kept = cut % (len(last) - 1)  # without only its newline, the line is complete
    assert live(first + last[:kept]) == [entry(0)]
    assert live(first + last[:-1]) == [entry(0), entry(1)]


def test_a_last_line_with_zero_bytes_from_a_power_failure_is_ignored() -> None:
    last = add_line(entry(1))
    for torn in ("\0" * 9 + last[9:], last[:9] + "\0" * 600 + last[609:], last[:5] + "\0" * 512 + "\n"):
        text = add_line(entry(0)) + torn
        assert live(text) == [entry(0)]
        assert whole_lines(text.encode()).decode() == add_line(entry(0))


class TestChecksums:
    TEXT = checksummed([add_line(entry(0)), add_line(entry(1)), replace_line([entry(0).path], added=[entry(2)])])

    @settings(deadline=None)
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


def assert_damaged(text: str) -> None:
    with pytest.raises(LogdirError, match="the manifest is damaged"):
        live_parts(text, run_id=RUN_ID, path="manifest/x.jsonl")


@pytest.mark.parametrize(
    "path",
    [
        f"../tensor_health/run={RUN_ID}/part-000000.parquet",
        f"tensor_health/run={RUN_ID}/../part-000000.parquet",
        f"/tensor_health/run={RUN_ID}/part-000000.parquet",
        f"mark/run={RUN_ID}/part-000000.parquet",
        f"tensor_health/run_id={RUN_ID}/part-000000.parquet",
        "tensor_health/run=20270101T000000.000000-other-1/part-000000.parquet",
        f"tensor_health\\run={RUN_ID}\\part-000000.parquet",
        f"tensor_health/run={RUN_ID}/part-000000.parquet.tmp",
        f"tensor_health/run={RUN_ID}/part-000000.parquet\n",
        f"tensor_health/run={RUN_ID}/part-00000*.parquet",
        "x" * 100_000,
    ],
)
def test_the_path_of_another_file_is_refused(path: str) -> None:
    line = json.dumps({"op": "add", **entry(0).to_json(), "path": path}) + "\n"
    with pytest.raises(LogdirError, match=r"^manifest/x\.jsonl, line 1, .*; the manifest is damaged") as caught:
        live(line)
    assert len(str(caught.value)) < 500
