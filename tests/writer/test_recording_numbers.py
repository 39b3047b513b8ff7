"""A recording does not change any bit of a program's numbers, as far as TensorFlow itself is deterministic.

TensorFlow's passes that fuse kernels are off, because an op whose output is recorded cannot be fused.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow

from .features import FEATURES

UNFUSED = dict.fromkeys(("remapping", "layout_optimizer", "pin_to_host_optimization"), False)
IN_ORDER = dict.fromkeys(("constant_folding", "arithmetic_optimization"), False)
"""These passes turn (x * a) * b into x * (a * b) and reorder a + b + c, unless an op uses an intermediate result."""


def bits(result: Any) -> list[tuple[str, Any]]:
    values = [np.asarray(value) for value in tf.nest.flatten(result)]
    return [(value.dtype.name, value.tolist() if value.dtype == object else value.tobytes()) for value in values]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any]]:
    """Returns the numbers or the exception of each feature, without a recording and within one common recording."""

    def outcome(name: str) -> Any:
        keras.utils.set_random_seed(0)
        try:
            return bits(FEATURES[name]())
        except Exception as error:
            return error

    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({**UNFUSED, **IN_ORDER})
    try:
        bare = {name: outcome(name) for name in FEATURES}
        with tfdbg_arrow.capture(tmp_path_factory.mktemp("features"), "FULL_NUMERICS"):
            return {name: (bare[name], outcome(name)) for name in FEATURES}
    finally:
        tf.config.optimizer.set_experimental_options({**dict.fromkeys({**UNFUSED, **IN_ORDER}, True), **before})


@pytest.mark.slow
@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_returns_the_same_bits(name: str, outcomes: dict[str, tuple[Any, Any]]) -> None:
    bare, recorded = outcomes[name]
    assert not isinstance(bare, Exception)
    assert recorded == bare
