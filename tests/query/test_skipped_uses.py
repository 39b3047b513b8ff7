"""Test that a result whose usual use was skipped counts as harmless, also in long runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow import first_nonfinite
from tfdbg_arrow.query.flow import skipped
from tfdbg_arrow.query.flow.walk import SKIPPED_UPDATE

NUM_STEPS, BAD_STEP = 60, 30


@tf.function
def gradient(weight: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    return tf.math.log(x) * weight


@pytest.fixture(scope="module")
def logdirs(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Returns the logdirs of two loops.

    True: the loop skips the update with the bad gradient and goes on. False: from the bad gradient on, the loop applies
    no update.
    """
    made = {}
    for goes_on in (True, False):
        made[goes_on] = tmp_path_factory.mktemp("loop") / "logdir"
        weight = tf.Variable(1.0)
        with tfdbg_arrow.capture(made[goes_on]):
            for step in range(NUM_STEPS):
                update = gradient(weight, tf.constant(0.0 if step == BAD_STEP else 2.0))
                if bool(tf.math.is_finite(update)) and (goes_on or step < BAD_STEP):
                    weight.assign_sub(update * 0.1)
    return made


@pytest.mark.parametrize("block", [4, 16, 16_384])
def test_a_skipped_update_is_found_in_blocks_of_any_size(
    logdirs: dict[bool, Path], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skipped, "_BLOCK", block)
    found = first_nonfinite(logdirs[True])
    assert (found.op_type, found.effect, found.expected_reason) == ("Log", "absorbed", SKIPPED_UPDATE)
    found = first_nonfinite(logdirs[False])
    assert (found.op_type, found.expected_reason) != ("Log", SKIPPED_UPDATE)
