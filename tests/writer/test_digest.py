"""Digests of parts equal what SQL computes from the rows."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdbg_arrow.query.alert_rules.scan import COMPUTED
from tfdbg_arrow.schema import arrow_schema
from tfdbg_arrow.storage.layout import manifest_path, part_number
from tfdbg_arrow.storage.manifest import read_live_parts
from tfdbg_arrow.writer.sink.digest import NormJumps, PartDigest
from tfdbg_arrow.writer.sink.parts import PartWriter

SUMS = ("sum_log", "sum_log_square")


def tensors(*rows: dict[str, Any]) -> pa.Table:
    """Returns rows of tensor_health in which most columns are NULL."""
    plain = {"run_id": "r", "wall_time_ns": 0, "wall_time": 0, "scope": "graph"}
    made = [{**plain, "event_index": event, **row} for event, row in enumerate(rows)]
    return pa.Table.from_pylist(made, schema=arrow_schema("tensor_health"))


def a_tensor(event_index: int, *, name: str = "x", norm: float = 1.0) -> dict[str, Any]:
    health = {"size": 1, "shape": [], "has_inf_or_nan": False, "num_zero": 0, "num_subnormal": 0}
    magnitudes = {"mean_finite": norm, "stddev_finite": 0.0, "max_abs_finite": norm}
    op = {"graph_id": 0, "op_name": name, "op_type": "Mul", "output_slot": 0, "dtype": "float32"}
    return {"event_index": event_index, **op, **health, **magnitudes}


NUMBERS = st.sampled_from([None, 0.0, -1.0, 1.0, 0.25, 3.5e-200, 1e160, -1e308])
ROWS = st.fixed_dictionaries(
    {
        "scope": st.sampled_from(["graph", "execution", "external"]),
        "graph_id": st.sampled_from([None, 0, 1]),
        "op_name": st.sampled_from([None, "a", "b"]),
        "op_type": st.sampled_from([None, "Mul"]),
        "output_slot": st.sampled_from([None, 0, 1]),
        "dtype": st.sampled_from([None, "float32"]),
        "shape": st.sampled_from([None, [], [2], [10, 3], [9, 3]]),
        "size": st.sampled_from([None, 0, 1, 30]),
        "has_inf_or_nan": st.sampled_from([None, False, True]),
        "num_zero": st.sampled_from([None, 0, 1, 30]),
        "num_subnormal": st.sampled_from([None, 0, 5]),
        "mean_finite": NUMBERS,
        "stddev_finite": NUMBERS.map(lambda value: None if value is None else abs(value)),
        "max_abs_finite": NUMBERS.map(lambda value: None if value is None else abs(value)),
    }
)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.lists(ROWS, min_size=1, max_size=40), st.integers(1, 40))
def test_a_digest_equals_what_sql_computes(rows: list[dict[str, Any]], size: int) -> None:
    tensor_health = tensors(*rows)
    digest = PartDigest("r")
    for start in range(0, len(rows), size):
        digest.add(tensor_health.slice(start, size))
    written = digest.table(7)
    assert set(written["part_number"].to_pylist()) == {7}
    assert written["digest_index"].to_pylist() == list(range(written.num_rows))
    with duckdb.connect() as connection:
        connection.register("tensor_health", tensor_health)
        computed = connection.sql(COMPUTED).to_arrow_table()
    names = [name for name in computed.schema.names if name not in ("part_number", "max_norm_jump", *SUMS)]
    assert by_key(written.select(names)) == by_key(computed.select(names))
    for name in SUMS:
        sums = zip(by_key(written.select([*names, name])), by_key(computed.select([*names, name])), strict=True)
        assert all(a[-1] == b[-1] or math.isclose(a[-1], b[-1], rel_tol=1e-9, abs_tol=1e-9) for a, b in sums)


def by_key(rows: pa.Table) -> list[tuple[Any, ...]]:
    """Returns rows sorted by all but their last value."""
    return sorted((tuple(row.values()) for row in rows.to_pylist()), key=lambda row: repr(row[:-1]))


NORMS = st.lists(st.sampled_from([0.0, 1.0, 2.5, 1e-100, 1e100]), max_size=40)


@settings(deadline=None)
@given(st.lists(NORMS, min_size=1, max_size=3), st.randoms(use_true_random=False), st.integers(1, 120))
def test_a_jump_is_the_ratio_of_a_norm_to_the_mean_of_the_previous_ten(
    histories: list[list[float]], random: Any, size: int
) -> None:
    order = [output for output, norms in enumerate(histories) for _ in norms]
    random.shuffle(order)
    rest = [iter(norms) for norms in histories]
    norms = np.array([next(rest[output]) for output in order], np.float64)
    jumps = NormJumps()
    for start in range(0, len(order), size):
        piece = slice(start, start + size)
        outputs = np.array(order[piece], np.int64)
        jumps.add(outputs, events=np.arange(len(order), dtype=np.int64)[piece], norms=norms[piece])
    expected = [
        max((ratio(values[at - 10 : at], values[at]) for at in range(10, len(values))), default=0.0)
        for values in histories
    ]
    assert np.allclose(jumps.greatest(len(histories)), expected, rtol=1e-12, atol=0)


def ratio(before: list[float], norm: float) -> float:
    return norm * 10 / sum(before) if sum(before) > 0 else 0.0


def jump_of(*rows: dict[str, Any], pieces: int = 1) -> object:
    digest, data = PartDigest("r"), tensors(*rows)
    size = -(-len(rows) // pieces)
    for start in range(0, len(rows), size):
        digest.add(data.slice(start, size))
    (jump,) = digest.table(0)["max_norm_jump"].to_pylist()
    return jump


def test_a_jump_is_null_if_the_order_of_the_norms_is_unknown() -> None:
    rows = [a_tensor(event, norm=10.0 if event == 11 else 1.0) for event in range(12)]
    assert jump_of(*rows) == jump_of(*rows, pieces=3) == jump_of(*rows[::-1]) == 10.0
    assert jump_of(*rows[6:], *rows[:6], pieces=2) is None
    assert jump_of(*rows, a_tensor(12, norm=1e301)) is None
    assert jump_of(*rows, a_tensor(12) | {"size": None}) is None


@pytest.fixture
def writer(tmp_path: Path) -> PartWriter:
    made = PartWriter(tmp_path, "r", merge_parts=2, target_rows=8)
    made.start()
    for table in ("tensor_health", "op_digest"):
        made.write(table, arrow_schema(table).empty_table())
    return made


def live(logdir: Path) -> dict[str, dict[int, int]]:
    """Returns the number of rows of each non-empty part, by table and number of the part."""
    found: dict[str, dict[int, int]] = {"tensor_health": {}, "op_digest": {}}
    for entry in read_live_parts(logdir, run_id="r"):
        if entry.rows:
            found[entry.table][part_number(entry.path)] = entry.rows
    return found


def test_a_part_that_is_not_merged_again_has_a_digest_with_its_number(writer: PartWriter, tmp_path: Path) -> None:
    for event in range(2):
        writer.write("tensor_health", tensors(a_tensor(event), a_tensor(event, name="y")))
    assert live(tmp_path)["op_digest"] == {}
    for event in range(2, 4):
        writer.write("tensor_health", tensors(a_tensor(event)))
    assert writer.merge_small("tensor_health")
    assert live(tmp_path) == {"tensor_health": {5: 6}, "op_digest": {5: 2}}
    writer.write("tensor_health", tensors(a_tensor(9)))
    writer.compact("tensor_health")
    writer.compact("op_digest")
    assert live(tmp_path) == {"tensor_health": {5: 6, 6: 1}, "op_digest": {5: 2, 6: 1}}
    writer.compact("tensor_health")
    assert sorted(path.name for path in (tmp_path / "op_digest/run=r").iterdir()) == [
        "part-000005.parquet",
        "part-000006.parquet",
    ]
    assert writer.settled() >= {f"op_digest/run=r/part-{number:06}.parquet" for number in (5, 6)}


def test_a_digest_is_removed_in_the_same_manifest_line_as_its_part(writer: PartWriter, tmp_path: Path) -> None:
    part = writer.write("tensor_health", tensors(a_tensor(0)))
    writer.digest()
    assert live(tmp_path) == {"tensor_health": {1: 1}, "op_digest": {1: 1}}
    writer.replace([part.path], {"tensor_health": [tensors(a_tensor(0), a_tensor(1))]})
    assert live(tmp_path) == {"tensor_health": {2: 2}, "op_digest": {}}
    line = json.loads((tmp_path / manifest_path("r")).read_text().splitlines()[-1])
    assert line["removed"] == [part.path, part.path.replace("tensor_health", "op_digest")]
    writer.digest()
    writer.drop([entry.path for entry in writer.parts("tensor_health")])
    assert live(tmp_path) == {"tensor_health": {}, "op_digest": {}}


def test_a_part_whose_file_is_kept_elsewhere_gets_no_digest(writer: PartWriter, tmp_path: Path) -> None:
    part = writer.write("tensor_health", tensors(a_tensor(0)))
    writer.release({part.path})
    writer.compact("tensor_health")
    assert live(tmp_path)["op_digest"] == {}
