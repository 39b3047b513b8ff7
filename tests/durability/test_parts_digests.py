"""Test digests of parts of tensor_health: a part that is not merged again has one, and both are removed together."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.durability.files_on_disk import failing
from tfdbg_arrow.schema import arrow_schema
from tfdbg_arrow.storage.layout import part_number, part_path
from tfdbg_arrow.storage.manifest import read_live_parts
from tfdbg_arrow.writer.sink.parts import PartWriter

TABLES = ("tensor_health", "op_digest")


def tensors(*events: int, op_name: str = "x") -> pa.Table:
    """Returns rows of tensor_health for one op."""
    plain: dict[str, Any] = {"run_id": "r", "wall_time_ns": 0, "wall_time": 0, "scope": "graph", "op_name": op_name}
    return pa.Table.from_pylist([{**plain, "event_index": event} for event in events], arrow_schema("tensor_health"))


@pytest.fixture
def writer(tmp_path: Path) -> PartWriter:
    made = PartWriter(tmp_path, "r", merge_parts=2, target_rows=8)
    made.start()
    return made


def live(logdir: Path) -> dict[str, dict[int, int]]:
    """Returns the number of rows of the parts of both tables, by part number."""
    found: dict[str, dict[int, int]] = {table: {} for table in TABLES}
    for entry in read_live_parts(logdir, run_id="r"):
        found[entry.table][part_number(entry.path)] = entry.rows
    return found


def digested(logdir: Path, number: int) -> list[tuple[Any, ...]]:
    table = pq.read_table(logdir / part_path("op_digest", run_id="r", number=number), partitioning=None)
    columns = ("run_id", "part_number", "op_name", "num_tensors")
    return list(zip(*(table[name].to_pylist() for name in columns), strict=True))


def num_files(logdir: Path) -> list[int]:
    return [len(list((logdir / f"{table}/run=r").iterdir())) for table in TABLES]


def test_a_large_merged_part_has_a_digest_of_the_same_number(writer: PartWriter, tmp_path: Path) -> None:
    for event in range(2):
        writer.write("tensor_health", tensors(event))
    writer.write("tensor_health", tensors(2, 3, op_name="y"))
    assert writer.merge_small("tensor_health")
    assert live(tmp_path) == {"tensor_health": {3: 4}, "op_digest": {3: 2}}
    assert digested(tmp_path, 3) == [("r", 3, "x", 2), ("r", 3, "y", 2)]
    assert writer.settled() == {part_path(table, run_id="r", number=3) for table in TABLES}
    writer.compact("op_digest")
    assert num_files(tmp_path) == [1, 1]


def test_a_small_merged_part_has_no_digest_until_the_end(writer: PartWriter, tmp_path: Path) -> None:
    for event in range(3):
        writer.write("tensor_health", tensors(event))
    assert writer.merge_small("tensor_health")
    assert live(tmp_path) == {"tensor_health": {3: 3}, "op_digest": {}}
    writer.compact("tensor_health")
    assert live(tmp_path) == {"tensor_health": {3: 3}, "op_digest": {3: 1}}


def test_at_the_end_every_part_with_rows_has_a_digest(writer: PartWriter, tmp_path: Path) -> None:
    for events in ((0,), (), (1, 2)):
        writer.write("tensor_health", tensors(*events))
    writer.compact("tensor_health")
    assert live(tmp_path) == {"tensor_health": {3: 3}, "op_digest": {3: 1}}
    assert digested(tmp_path, 3) == [("r", 3, "x", 3)]
    writer.compact("tensor_health")
    assert num_files(tmp_path) == [1, 1]


def test_a_run_without_tensors_has_no_digest(writer: PartWriter, tmp_path: Path) -> None:
    writer.digest()
    writer.write("tensor_health", tensors())
    writer.compact("tensor_health")
    assert live(tmp_path) == {"tensor_health": {0: 0}, "op_digest": {}}


def test_each_part_of_a_merge_has_its_own_digest(writer: PartWriter, tmp_path: Path) -> None:
    entries = [writer.write("tensor_health", tensors(*range(first, first + 3))) for first in (0, 3, 6)]
    writer.merge("tensor_health", [entry.path for entry in entries])
    assert live(tmp_path) == {"tensor_health": {3: 8, 4: 1}, "op_digest": {3: 1}}, "the last part may be merged again"
    assert digested(tmp_path, 3) == [("r", 3, "x", 8)]
    writer.compact("tensor_health")
    assert live(tmp_path) == {"tensor_health": {3: 8, 4: 1}, "op_digest": {3: 1, 4: 1}}


def test_each_part_without_a_digest_gets_one(writer: PartWriter, tmp_path: Path) -> None:
    for first in (0, 10):
        writer.write("tensor_health", tensors(*range(first, first + 4)))
    writer.digest()
    assert live(tmp_path) == {"tensor_health": {0: 4, 1: 4}, "op_digest": {0: 1, 1: 1}}
    writer.write("tensor_health", tensors(20))
    writer.digest()
    assert live(tmp_path)["op_digest"] == {0: 1, 1: 1, 2: 1}


def test_a_new_digest_is_passed_to_on_change(tmp_path: Path) -> None:
    told: list[tuple[list[str], list[str]]] = []
    writer = PartWriter(
        tmp_path, "r", on_change=lambda gone, new: told.append((list(gone), [entry.path for entry in new]))
    )
    writer.start()
    writer.write("tensor_health", tensors(0))
    writer.digest()
    assert told == [([], [part_path(table, run_id="r", number=0)]) for table in TABLES]


def test_a_released_part_gets_no_digest_and_other_parts_do(writer: PartWriter, tmp_path: Path) -> None:
    one, _ = (writer.write("tensor_health", tensors(event)) for event in range(2))
    writer.release({one.path})
    writer.digest()
    assert live(tmp_path) == {"tensor_health": {0: 1, 1: 1}, "op_digest": {1: 1}}


def test_a_digest_is_dropped_with_its_part(writer: PartWriter, tmp_path: Path) -> None:
    entries = [writer.write("tensor_health", tensors(event)) for event in range(3)]
    writer.digest()
    writer.drop([entries[1].path])
    assert live(tmp_path) == {"tensor_health": {0: 1, 2: 1}, "op_digest": {0: 1, 2: 1}}
    digest = part_path("op_digest", run_id="r", number=0)
    writer.drop([entries[0].path, digest])
    assert live(tmp_path) == {"tensor_health": {2: 1}, "op_digest": {2: 1}}
    assert num_files(tmp_path) == [1, 1]


def test_a_digest_stays_when_a_part_of_another_table_is_dropped(writer: PartWriter, tmp_path: Path) -> None:
    other = writer.write("mark", arrow_schema("mark").empty_table())
    writer.write("tensor_health", tensors(0))
    writer.digest()
    writer.drop([other.path])
    assert live(tmp_path) == {"tensor_health": {0: 1}, "op_digest": {0: 1}}


def test_a_merge_removes_the_digests_of_its_parts(writer: PartWriter, tmp_path: Path) -> None:
    for event in range(2):
        writer.write("tensor_health", tensors(event))
    writer.digest()
    writer.compact("tensor_health")
    assert live(tmp_path) == {"tensor_health": {2: 2}, "op_digest": {2: 1}}
    assert num_files(tmp_path) == [1, 1]


@pytest.mark.parametrize("after", range(5))
def test_nothing_is_merged_if_the_digest_cannot_be_written(
    writer: PartWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    for event in range(2):
        writer.write("tensor_health", tensors(event))
    (tmp_path / "op_digest/run=r").mkdir(parents=True)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing(after=after, instead_of=os.fsync))
        with pytest.raises(OSError, match="No space"):
            writer.compact("tensor_health")
    assert live(tmp_path) == {"tensor_health": {0: 1, 1: 1}, "op_digest": {}}
    assert num_files(tmp_path) == [2, 0]
    writer.compact("tensor_health")
    assert num_files(tmp_path) == [1, 1]


def test_parts_of_other_tables_have_no_digest(writer: PartWriter, tmp_path: Path) -> None:
    writer.write("mark", arrow_schema("mark").empty_table())
    writer.compact("mark")
    writer.write("tensor_health", tensors(0))
    assert writer.tables == ("mark", "tensor_health")
    writer.compact("mark")
    assert writer.tables == ("mark", "tensor_health")
