"""A call with many rows is read in blocks, and its answers are those of a call that is read at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

import tfdbg_arrow
from tests.sampling import mostly_slow
from tfdbg_arrow.query import provenance
from tfdbg_arrow.query.flow import graph_rows


@pytest.mark.parametrize(
    ("max_call_rows", "block_rows"), mostly_slow([(100, 30), (100, 200), (100, 1)], fast=[(100, 30)])
)
def test_nested_loops_with_gradients(
    max_call_rows: int, block_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = tf.Variable(0.5)

    @tf.function
    def step(x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            for _ in tf.range(6):
                for _ in tf.range(4):
                    x = tf.sqrt(x) * weight
            loss = tf.math.log(x - x)
        weight.assign_sub(tape.gradient(loss, weight))

    with tfdbg_arrow.capture(tmp_path):
        step(tf.constant(1.0))

    def answers() -> list[object]:
        with tfdbg_arrow.open_logdir(tmp_path) as opened:
            first = opened.first_nonfinite()
            assert first is not None
            (last,) = opened.rows("SELECT max(event_index) FROM tensor_health WHERE has_inf_or_nan")
            paths = [provenance(opened, index).rows() for index in (first.event_index, *last)]
        return [first, *paths]

    at_once = answers()
    monkeypatch.setattr(graph_rows, "_MAX_CALL_ROWS", max_call_rows)
    monkeypatch.setattr(graph_rows, "_BLOCK_ROWS", block_rows)
    assert answers() == at_once
