"""Tensors of strings are recorded only if their elements are kept."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
import tensorflow as tf

import tfdbg_arrow
from tests.sampling import mostly_slow
from tfdbg_arrow.query import history
from tfdbg_arrow.schema.dtypes import decode_strings

TEXTS = [[b"", b"a"], ["ünïcode".encode(), b"x" * 100], [b"\x00\xff\x00", b"end\x00"]]
FLAT = tuple(item for row in TEXTS for item in row)


def program() -> None:
    @tf.function
    def shape_up(texts: tf.Tensor, one: tf.Tensor, none: tf.Tensor) -> Any:
        return tf.reshape(texts, [6], name="flat"), tf.strings.lower(one), tf.concat([none, none], 0)

    shape_up(tf.constant(TEXTS), tf.constant(b"A\x00"), tf.constant([], tf.string))
    tf.strings.length(tf.strings.join([tf.constant(["p"]), tf.constant(["q"])], name="eager"))


def rows(logdir: Path, table: str) -> list[dict[str, Any]]:
    return sorted(ds.dataset(logdir / table).to_table().to_pylist(), key=lambda row: row["event_index"])


def kept(logdir: Path) -> dict[tuple[Any, ...], tuple[bytes, ...]]:
    """Returns the elements of strings by scope, op type and shape."""
    health = {row["event_index"]: row for row in rows(logdir, "tensor_health")}
    found = {}
    for row in rows(logdir, "tensor_value"):
        if row["dtype"] == "string":
            made = health[row["event_index"]]
            key = (made["scope"], made["op_name"] or made["op_type"], tuple(row["shape"]))
            found[key] = decode_strings(row["value"], math.prod(row["shape"]))
    return found


@pytest.mark.parametrize("backend", mostly_slow(["native", "tensorflow"], fast=["native"]))
class TestBackends:
    def test_full_tensor_keeps_them(self, backend: str, tmp_path: Path) -> None:
        with tfdbg_arrow.capture(tmp_path, "FULL_TENSOR", health_backend=backend):
            program()
        found = kept(tmp_path)
        by_name = {key[1:]: value for key, value in found.items() if key[0] == "graph"}
        assert by_name["flat", (6,)] == FLAT
        assert by_name["texts", (3, 2)] == FLAT
        assert by_name["StringLower", ()] == (b"a\x00",)
        assert by_name["concat", (0,)] == ()
        assert found["external", None, (3, 2)] == FLAT
        assert found["execution", "StringJoin", (1,)] == (b"pq",)
        strings = [row for row in rows(tmp_path, "tensor_health") if row["dtype"] == "string"]
        assert {row["size"] for row in strings} == {0, 1, 6}
        measured = [name for name in strings[0] if name.startswith("num_") or name == "has_inf_or_nan"]
        assert {row[name] for row in strings for name in measured} == {None}
        assert rows_of_failures(tmp_path) == []

    def test_values_chooses_them(self, backend: str, tmp_path: Path) -> None:
        with tfdbg_arrow.capture(tmp_path, values="flat|StringJoin", health_backend=backend):
            program()
        assert kept(tmp_path) == {("graph", "flat", (6,)): FLAT, ("execution", "StringJoin", (1,)): (b"pq",)}

    def test_other_modes_and_filters_leave_them_out(self, backend: str, tmp_path: Path) -> None:
        for name, settings in (
            ("shape", {"tensor_debug_mode": "SHAPE"}),
            ("filtered", {"tensor_debug_mode": "FULL_TENSOR", "tensor_dtypes": ["int32"]}),
        ):
            with tfdbg_arrow.capture(tmp_path / name, health_backend=backend, **settings):  # type: ignore[arg-type]
                program()
            assert {row["dtype"] for row in rows(tmp_path / name, "tensor_health")} == {"int32"}


def test_a_filter_may_name_them_in_full_tensor(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path, "FULL_TENSOR", tensor_dtypes=[tf.string]):
        program()
    assert {row["dtype"] for row in rows(tmp_path, "tensor_health")} == {"string"}
    (run,) = ds.dataset(tmp_path / "run").to_table().to_pylist()
    assert run["tensor_dtypes"] == '["string"]'


def test_show_prints_them_as_text(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path, "FULL_TENSOR"):
        program()
    (row,) = history(tmp_path, "flat", num_values=5)
    assert row.values == ("", "a", "ünïcode", "x" * 100, "\x00\\xff\x00")


def rows_of_failures(logdir: Path) -> list[dict[str, Any]]:
    return [row for row in ds.dataset(logdir / "capture_stat").to_table().to_pylist() if row["stat"] == "failed"]
