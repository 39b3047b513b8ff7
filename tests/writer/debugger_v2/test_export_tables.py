"""Tables read by key, with rows in any order and in any number of row groups."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.query.manifests import resealed
from tfdbg_arrow.debugger_v2 import export_tables
from tfdbg_arrow.debugger_v2.export_tables import PartGoneError, RunTables, to_rows
from tfdbg_arrow.errors import BrokenPartError
from tfdbg_arrow.schema import arrow_schema
from tfdbg_arrow.storage.layout import manifest_path, part_path
from tfdbg_arrow.storage.manifest import ManifestEntry, add_line, checksummed, replace_line

RUN_ID = "run-a"
EXTREMES = [-(2**63), -1, 0, 1, 5, 2**40, 2**63 - 1]
keys = st.lists(st.one_of(st.integers(-50, 50), st.sampled_from(EXTREMES), st.none()), max_size=60)


def write(logdir: Path, parts: list[list[int | None]], *, group_rows: int, drop: tuple[str, ...] = ()) -> RunTables:
    """Writes rows of tensor_health with the given execution_index. Their event_index counts up."""
    lines = []
    event_index = 0
    for number, part in enumerate(parts):
        rows = []
        for key in part:
            scope = "graph" if event_index % 3 == 0 else "execution"
            rows.append({"event_index": event_index, "execution_index": key, "scope": scope, "output_slot": 7})
            event_index += 1
        names = [name for name in arrow_schema("tensor_health").names if name not in drop]
        schema = pa.schema([arrow_schema("tensor_health").field(name).with_nullable(True) for name in names])
        path = part_path("tensor_health", run_id=RUN_ID, number=number)
        (logdir / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), logdir / path, row_group_size=group_rows)
        lines.append(add_line(ManifestEntry(table="tensor_health", path=path, rows=0, bytes=0, sha256="0" * 64)))
    manifest = logdir / manifest_path(RUN_ID)
    manifest.parent.mkdir(exist_ok=True, parents=True)
    manifest.write_text(checksummed(lines))
    return RunTables(logdir, RUN_ID)


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(keys, max_size=4),
    group_rows=st.integers(1, 20),
    width=st.sampled_from([1, 3, 40, 2**62]),
    first=st.integers(-60, 60),
    held_bytes=st.sampled_from([0, 2**27]),
)
def test_windows_return_every_row_once_and_in_order(
    parts: list[list[int | None]], group_rows: int, width: int, first: int, held_bytes: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    tables = write(tmp_path_factory.mktemp("logdir"), parts, group_rows=group_rows)
    all_rows = [(key, index) for index, key in enumerate(key for part in parts for key in part)]
    expected = sorted((key, index) for key, index in all_rows if key is not None and index % 3 != 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export_tables, "HELD_BYTES", held_bytes)
        columns = ("execution_index", "event_index")
        keyed = tables.keyed("tensor_health", "execution_index", columns, where=("scope", "execution"))
        found = []
        for begin, end, window in keyed.windows(width):
            got = list(to_rows(window))
            assert all(begin <= row[0] < end for row in got)
            found += got
        between = list(to_rows(keyed.between(first, first + width)))
    assert [key for key, _ in found] == [key for key, _ in expected]
    assert sorted(found) == expected
    assert sorted(between) == [row for row in expected if first <= row[0] < first + width]
    assert tables.count("tensor_health", "scope", "graph") == sum(1 for _, index in all_rows if index % 3 == 0)


def test_a_unique_key_finds_its_row_or_none(tmp_path: Path) -> None:
    tables = write(tmp_path, [[5, 3], [], [4, 1, 2]], group_rows=2)
    keyed = tables.keyed("tensor_health", "execution_index", ("event_index",))
    assert [keyed.get(key) for key in range(7)] == [None, (3,), (4,), (1,), (2,), (0,), None]


def test_a_column_that_a_part_does_not_have_yet_is_null(tmp_path: Path) -> None:
    tables = write(tmp_path, [[1, 2]], group_rows=10, drop=("step",))
    assert list(tables.rows("tensor_health", ("step", "output_slot"))) == [(None, 7), (None, 7)]


def test_a_table_without_parts_has_no_rows(tmp_path: Path) -> None:
    tables = write(tmp_path, [], group_rows=10)
    assert list(tables.rows("mark", ("label",))) == []
    assert list(tables.keyed("mark", "event_index", ("label",)).windows(10)) == []
    assert (tables.num_rows("mark"), tables.run()) == (0, None)


def test_a_missing_part_and_a_broken_part_have_different_errors(tmp_path: Path) -> None:
    tables = write(tmp_path, [[1], [2]], group_rows=10)
    path = tmp_path / part_path("tensor_health", run_id=RUN_ID, number=1)
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(PartGoneError) as gone:
        list(tables.rows("tensor_health", ("event_index",)))
    assert gone.value.path == path
    with pytest.raises(PartGoneError):
        RunTables(tmp_path, RUN_ID)
    path.write_bytes(content[:4] + bytes(len(content) // 4) + content[4 + len(content) // 4 :])
    with pytest.raises(BrokenPartError, match=r"part-000001\.parquet cannot be read as Parquet"):
        list(tables.rows("tensor_health", export_tables.arrow_schema("tensor_health").names))
    path.write_bytes(b"no Parquet")
    with pytest.raises(BrokenPartError, match=r"part-000001\.parquet cannot be read as Parquet"):
        RunTables(tmp_path, RUN_ID)
    manifest = tmp_path / manifest_path(RUN_ID)
    name = part_path("tensor_health", run_id=RUN_ID, number=1)
    manifest.write_text(resealed(manifest.read_text() + replace_line([name], added=[])))
    assert RunTables(tmp_path, RUN_ID).num_rows("tensor_health") == 1


@settings(max_examples=30, deadline=None)
@given(parts=st.lists(keys, max_size=4), group_rows=st.integers(1, 20))
def test_the_greatest_value_of_all_parts(
    parts: list[list[int | None]], group_rows: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tables = write(tmp_path_factory.mktemp("logdir"), parts, group_rows=group_rows)
    in_order = [key for part in parts for key in part]
    expected: dict[tuple[int | None, int], int] = {}
    for event_index, key in enumerate(in_order):
        if event_index % 3 == 0:
            expected[key, 7] = event_index  # event_index only increases
    by = ("execution_index", "output_slot")
    assert tables.greatest("tensor_health", "event_index", by=by, where=("scope", "graph")) == expected
    known = [key for key in in_order[::3] if key is not None]
    greatest = tables.greatest("tensor_health", "execution_index", by=("output_slot",), where=("scope", "graph"))
    assert greatest == ({(7,): max(known)} if known else {})
