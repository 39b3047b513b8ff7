"""Why a tensor is bad: the sentence and the way back, asked of real programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.query import Hop, open_logdir

INF = float("inf")


def _t(*values: float, dtype: str = "float32") -> tf.Tensor:
    return tf.constant(values, dtype)


def _gradient(function: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    tape.gradient(y, x)


@dataclass(frozen=True)
class Case:
    """A program whose last bad tensor's way back ends in an origin with this sentence; None: with none."""

    name: str
    run: Callable[[], Any]
    sentence: str | None


CASES = (
    Case("log of 0", lambda: tf.math.log(_t(0, 1, 0)), "Log of 0: 2 of 3 elements are 0"),
    Case("log of negative", lambda: tf.math.log(_t(-1, 1)), "Log of a negative number: 1 of 2 elements"),
    Case("log of both", lambda: tf.math.log(_t(-1, 0, 1)), "Log of 0: 1 of 3 elements"),
    Case("log1p of -1", lambda: tf.math.log1p(_t(-1, 1)), "Log1p of -1: 1 of 2"),
    Case("log1p below -1", lambda: tf.math.log1p(_t(-2, 1)), "Log1p of a number below -1: 1 of 2"),
    Case("sqrt of negative", lambda: tf.sqrt(_t(-4, 4)), "Sqrt of a negative number: 1 of 2"),
    Case("rsqrt of 0", lambda: tf.math.rsqrt(_t(0, 4)), "Rsqrt of 0: 1 of 2"),
    Case("division by 0", lambda: _t(1, 2) / _t(0, 2), "Division by 0: 1 of 2"),
    Case("0 / 0", lambda: _t(0, 2) / _t(0, 2), "0 / 0: "),
    Case("division or overflow", lambda: _t(0, 1e38) / _t(2, 1e-30), "Overflow: no divisor is 0"),
    Case("division beside 0 / 0.5", lambda: _t(1, 0) / _t(0, 0.5), None),
    Case("Inf - Inf", lambda: _t(3e38, 1) * 10.0 - _t(3e38, 1) * 10.0, "Overflow: "),
    Case("overflow of a sum", lambda: _t(3e38, 1) + _t(3e38, 1), "Overflow: the largest input is 3e+38"),
    Case("overflow of a square", lambda: tf.square(_t(1e30, 1)), "Overflow: the largest input is 1e+30"),
    Case("overflow of exp", lambda: tf.exp(_t(100, 1)), "Overflow: Exp of up to 100 is beyond the largest float32"),
    Case("overflow of a cast", lambda: tf.cast(_t(1e6, 1), "float16"), "Overflow: Cast from float32 of up to 1e+06"),
    Case("overflow of a product", lambda: tf.matmul(_t(1e30)[None], _t(1e30)[None]), "Overflow: "),
    Case("gradient of sqrt", lambda: _gradient(tf.sqrt, _t(0, 4)), "The gradient of Sqrt at 0: 1 of 2"),
    Case("gradient of norm", lambda: _gradient(tf.norm, _t(0, 0)), "The gradient of Sqrt at 0: 1 of 1"),
    Case("bad data", lambda: _t(float("nan"), 1) + 1.0, "It came into the recorded program bad: 1 NaN"),
    Case("power", lambda: tf.pow(_t(-2, 1), _t(0.5, 1)), None),
)


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("why")
    with tfdbg_arrow.capture(path, "FULL_NUMERICS"):
        for case in CASES:
            tfdbg_arrow.mark(case=case.name)
            case.run()
    return path


def way_back(logdir: Path, name: str) -> tuple[Hop, ...]:
    with open_logdir(logdir) as opened:
        ((begin, end),) = opened.rows(
            "SELECT event_index, lead FROM (SELECT event_index, value, lead(event_index, 1, 9223372036854775807) "
            "OVER (ORDER BY event_index) AS lead FROM mark) WHERE value = ?",
            [name],
        )
        ((last,),) = opened.rows(
            "SELECT max(event_index) FROM nonfinite_tensor WHERE event_index >= ? AND event_index < ?", [begin, end]
        )
        return opened.provenance(last).path


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_counts_prove_the_sentence(logdir: Path, case: Case) -> None:
    origin = next(hop for hop in way_back(logdir, case.name) if hop.role == "origin")
    if case.sentence is None:
        assert origin.why is None
    else:
        assert origin.why is not None
        assert origin.why.startswith(case.sentence)


def test_only_an_origin_is_explained(logdir: Path) -> None:
    with open_logdir(logdir) as opened:
        found = opened.rows("SELECT event_index FROM nonfinite_tensor ORDER BY event_index")
        hops = [hop for (event_index,) in found for hop in opened.provenance(event_index).hops]
    explained = {hop.role for hop in hops if hop.why is not None}
    assert "origin" in explained
    assert explained <= {"origin", "candidate"}
    assert {hop.role for hop in hops} - explained != set()


def test_inf_minus_inf_goes_back_to_both_overflows(logdir: Path) -> None:
    with open_logdir(logdir) as opened:
        ((last,),) = opened.rows("SELECT min(event_index) FROM nonfinite_tensor WHERE op_type = 'Sub' AND num_nan > 0")
        hops = opened.provenance(last).hops
    assert [(hop.op_type, hop.role) for hop in hops[:3]] == [("Sub", "origin"), ("Mul", "origin"), ("Mul", "origin")]
    assert hops[0].why is not None
    assert hops[0].why.startswith("Inf - Inf")
    assert {hop.role for hop in hops[3:]} == {"cause"}


def test_a_loss_goes_back_over_steps_variables_functions_and_gradients_to_the_zeros_under_a_log(tmp_path: Path) -> None:
    weight = tf.Variable([300.0, -300.0])

    @tf.function
    def model(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.softmax(x * weight)

    @tf.function
    def loss(probs: tf.Tensor) -> tf.Tensor:
        return -tf.reduce_mean(tf.math.log(probs))

    with tfdbg_arrow.capture(tmp_path):
        for step in range(3):
            tfdbg_arrow.mark(step=step)
            with tf.GradientTape() as tape:
                value = loss(model(tf.constant([1.0, 1.0])))
            weight.assign_sub(tape.gradient(value, weight))

    with open_logdir(tmp_path) as opened:
        ((last,),) = opened.rows("SELECT max(event_index) FROM nonfinite_tensor WHERE graph_name = 'loss'")
        path = opened.provenance(last).path
    origin = next(hop for hop in path if hop.role == "origin")
    assert (origin.step, origin.num_pos_inf) == (0, 1)
    assert origin.why is not None
    causes = [(hop.op_name, hop.graph_name, hop.num_zero) for hop in path if hop.role == "cause"]
    assert ("Softmax", "model", 1) in causes
    steps = [hop.step for hop in path if hop.step is not None]
    assert steps == sorted(steps)
    assert {"variable", "argument", "capture"} <= {hop.how for hop in path}
    assert all(hop.source is not None and hop.source.file_path == __file__ for hop in path if hop.graph_name)
