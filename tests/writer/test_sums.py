"""Sums of three or more tensors round as they do without a recording.

TensorFlow's AddN adds its inputs in their order, but takes first the one into whose memory it may write: the first that
nobody else holds. What holds a tensor only to look at it must have let go of it by then.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.writer import backend

from .tables import rows

NUM_SUMS = 8
NUM_CALLS = 5

Terms = list[tf.Tensor]
"""Two that somebody holds in any case."""


@tf.function(autograph=False)
def callee(x: tf.Tensor) -> tf.Tensor:
    return tf.exp(x)


def of_ops(x: tf.Tensor, terms: Terms) -> tf.Tensor:
    return tf.add_n([*terms, tf.exp(x)])


def of_aliases(x: tf.Tensor, terms: Terms) -> tf.Tensor:
    return tf.add_n([*terms, tf.squeeze(tf.reshape(tf.identity(tf.exp(x)), [1, -1]), 0)])


def of_results(x: tf.Tensor, terms: Terms) -> tf.Tensor:
    return tf.add_n([*terms, callee(x)])


def of_branches(x: tf.Tensor, terms: Terms) -> tf.Tensor:
    return tf.add_n([*terms, tf.cond(x[0] < 0.0, lambda: tf.exp(x), lambda: tf.sin(x))])


def of_arguments(x: tf.Tensor, terms: Terms) -> tf.Tensor:
    return tf.function(lambda part: tf.add_n([*terms, tf.identity(part)]), autograph=False)(tf.exp(x))


def of_loop_variables(x: tf.Tensor, terms: Terms) -> tf.Tensor:
    return tf.while_loop(
        lambda i, part: i < 4, lambda i, part: (i + 1, tf.sin(tf.add_n([*terms, part]))), [0, tf.exp(x)]
    )[1]


def of_loop_results(x: tf.Tensor, terms: Terms) -> tf.Tensor:
    return tf.add_n([*terms, tf.while_loop(lambda i, part: i < 2, lambda i, part: (i + 1, tf.exp(-part)), [0, x])[1]])


SUMS: dict[str, Callable[[tf.Tensor, Terms], tf.Tensor]] = {
    each.__name__: each
    for each in (of_ops, of_aliases, of_results, of_branches, of_arguments, of_loop_variables, of_loop_results)
}


@pytest.fixture(autouse=True)
def _in_order() -> Any:
    """TensorFlow's own passes reorder terms otherwise where nobody looks on."""
    before = tf.config.optimizer.get_experimental_options()
    passes = ("remapping", "layout_optimizer", "constant_folding", "arithmetic_optimization")
    tf.config.optimizer.set_experimental_options(dict.fromkeys(passes, False))
    yield
    tf.config.optimizer.set_experimental_options({**dict.fromkeys(passes, True), **before})


def function(name: str, held: list[tf.Variable]) -> Any:
    @tf.function(autograph=False)
    def sums(x: tf.Tensor) -> Any:
        terms = [variable.read_value() for variable in held]
        return tf.stack([SUMS[name](x * (1.0 + index / 16), terms) for index in range(NUM_SUMS)])

    return sums


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        pytest.param("FULL_HEALTH", {"health_backend": "native"}, id="native"),
        pytest.param("FULL_HEALTH", {"health_backend": "native", "on_nonfinite": "raise"}, id="stopping"),
        pytest.param("FULL_HEALTH", {"health_backend": "tensorflow"}, id="tensorflow"),
        pytest.param("FULL_TENSOR", {"health_backend": "tensorflow"}, id="python", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("name", SUMS)
def test_a_sum_is_the_same_bit_for_bit(
    name: str,
    mode: str,
    options: dict[str, Any],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    not_recording: None,
) -> None:
    if "python" in request.node.callspec.id:
        monkeypatch.setattr(backend, "native_core", lambda: None)
    rng = np.random.default_rng(0)
    x, *held = (tf.Variable(rng.uniform(-2.0, -0.1, 4096).astype(np.float32)) for _ in range(3))
    bare = function(name, held)(x).numpy()
    with tfdbg_arrow.capture(tmp_path, mode, **options):
        recorded = function(name, held)
        for _ in range(NUM_CALLS):
            np.testing.assert_array_equal(recorded(x).numpy(), bare)
    sums = [row for row in rows(tmp_path) if row["op_type"] == "AddN"]
    assert len(sums) >= NUM_SUMS * NUM_CALLS


def terms_of_loop_gradient() -> list[list[str]]:
    """Which ops give the terms of each sum in the gradient of a loop, by type."""

    @tf.function(autograph=False)
    def gradient(x: tf.Tensor) -> Any:
        def body(i: tf.Tensor, states: tf.TensorArray, h: tf.Tensor) -> Any:
            h = tf.tanh(h * x)
            return i + 1, states.write(i, h), h

        states = tf.TensorArray(tf.float32, size=3, element_shape=x.shape)
        _, states, h = tf.while_loop(lambda i, *_: i < 3, body, (0, states, x))
        return tf.gradients(tf.reduce_sum(h) + tf.reduce_sum(states.stack()), x)

    found = []
    for function in gradient.get_concrete_function(tf.ones([4])).graph.as_graph_def().library.function:
        types = {node.name: node.op for node in function.node_def}
        found += [
            [types.get(text.partition(":")[0], "argument") for text in node.input if not text.startswith("^")]
            for node in function.node_def
            if node.op == "AddN"
        ]
    return sorted(found)


@pytest.mark.parametrize("on_nonfinite", ["record", "raise"])
def test_gradients_of_loops_are_made_of_the_same_sums(on_nonfinite: Any, tmp_path: Path, not_recording: None) -> None:
    bare = terms_of_loop_gradient()
    assert len(bare) >= 2
    with tfdbg_arrow.capture(tmp_path, "FULL_HEALTH", on_nonfinite=on_nonfinite):
        assert terms_of_loop_gradient() == bare
