"""Test the explanation and the provenance of bad tensors on real programs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.query import Hop, Logdir, open_logdir, read_reasons

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
    """A program, and the expected explanation of the origin of its last bad tensor.

    Attributes:
        name: The cause of the bad tensor.
        run: The program.
        sentence: The beginning of the explanation; None means that there is no explanation.
        repair: A text that the suggested repair contains.
        op: The op type of the origin; empty means any. If there are several origins, the earliest one counts.
    """

    name: str
    run: Callable[[], Any]
    sentence: str | None
    repair: str = ""
    op: str = ""


@tf.function
def _masked_log(x: tf.Tensor) -> tf.Tensor:
    """Returns a gradient that is 0 * Inf in the branch that tf.where does not select."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.where(x > 0, tf.math.log(x), 0.0)
    return tape.gradient(y, x)


@tf.custom_gradient
def _root_with_own_gradient(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    y = tf.sqrt(x)

    def gradient(dy: tf.Tensor) -> tf.Tensor:
        return (dy - 1.0) / y

    return y, gradient


@tf.function
def _custom_gradient(x: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = _root_with_own_gradient(x)
    return tape.gradient(y, x)


@tf.function
def _lost_epsilon(x: tf.Tensor) -> tf.Tensor:
    return tf.math.log(tf.cast(x, tf.float16) + tf.constant(1e-8, tf.float16))


@tf.function
def _root_of_lost_epsilon(x: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.sqrt(tf.reduce_sum(tf.square(x[:, tf.newaxis]), axis=1) + tf.cast(1e-8, x.dtype))
    return tape.gradient(y, x)


def _entropy(p: tf.Tensor) -> tf.Tensor:
    return -tf.reduce_sum(p * tf.math.log(p))


def _logsumexp_by_hand(x: tf.Tensor) -> tf.Tensor:
    return tf.math.log(tf.reduce_sum(tf.exp(x)))


def _softmax_by_hand(x: tf.Tensor) -> tf.Tensor:
    shares = tf.exp(x)
    return shares / tf.reduce_sum(shares)


@tf.function
def _mean_of_nothing(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.boolean_mask(x, x > 10))


def _ctc() -> None:
    """Runs CTCLoss with too few time steps: a label that repeats a class twice needs five."""
    indices = [[0, 0], [0, 1], [0, 2]]
    tf.raw_ops.CTCLoss(inputs=tf.zeros([3, 1, 4]), labels_indices=indices, labels_values=[1, 1, 1], sequence_length=[3])


def _restore() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = tf.train.Checkpoint(v=tf.Variable([float("nan")])).write(f"{directory}/c")
        tf.raw_ops.RestoreV2(
            prefix=path, tensor_names=["v/.ATTRIBUTES/VARIABLE_VALUE"], shape_and_slices=[""], dtypes=[tf.float32]
        )


CASES = (
    Case("log of 0", lambda: tf.math.log(_t(0, 1, 0)), "Log of 0: 2 of 3 elements are 0"),
    Case("log of negative", lambda: tf.math.log(_t(-1, 1)), "Log of a negative number: 1 of 2 elements"),
    Case("log of both", lambda: tf.math.log(_t(-1, 0, 1)), "Log of 0: 1 of 3 elements"),
    Case("log1p of -1", lambda: tf.math.log1p(_t(-1, 1)), "Log1p of -1: 1 of 2"),
    Case("log1p below -1", lambda: tf.math.log1p(_t(-2, 1)), "Log1p of a number below -1: 1 of 2"),
    Case("sqrt of negative", lambda: tf.sqrt(_t(-4, 4)), "Sqrt of a negative number: 1 of 2"),
    Case("rsqrt of 0", lambda: tf.math.rsqrt(_t(0, 4)), "Rsqrt of 0: 1 of 2"),
    Case("division by 0", lambda: _t(1, 2) / _t(0, 2), "Division by 0: 1 of 2"),
    Case("0 / 0", lambda: _t(0, 2) / _t(0, 2), "0 / 0: the divisor has 1 zero, the dividend 1 zero", "divide_no_nan"),
    Case("division or overflow", lambda: _t(0, 1e38) / _t(2, 1e-30), "Overflow in RealDiv: no divisor is 0"),
    Case("division beside 0 / 0.5", lambda: _t(1, 0) / _t(0, 0.5), "Division by 0: 1 of 2 elements is 0 in the"),
    Case("Inf - Inf", lambda: _t(3e38, 1) * 10.0 - _t(3e38, 1) * 10.0, "Overflow in Mul: "),
    Case(
        "overflow of a sum",
        lambda: _t(3e38, 1) + _t(3e38, 1),
        "Overflow in Add: the largest magnitude in its inputs is 3e+38",
        "learning rate",
    ),
    Case(
        "overflow of a square",
        lambda: tf.square(_t(1e30, 1)),
        "Overflow in Square: the largest magnitude in its inputs is 1e+30",
    ),
    Case(
        "overflow of exp",
        lambda: tf.exp(_t(100, 1)),
        "Overflow in Exp: the largest magnitude in its inputs is 100, and 1 of 2",
        "tf.minimum(x, 22.0)",
    ),
    Case(
        "overflow of a cast",
        lambda: tf.cast(_t(1e6, 1), "float16"),
        "Overflow in Cast: the largest magnitude in its inputs is 1e+06",
        "bfloat16",
    ),
    Case("overflow of a product", lambda: tf.matmul(_t(1e30)[None], _t(1e30)[None]), "Overflow in MatMul: "),
    Case(
        "gradient of sqrt",
        lambda: _gradient(tf.sqrt, _t(0, 4)),
        "The gradient of Sqrt at 0: 1 of 2 elements is 0",
        "Before the root, add an epsilon",
    ),
    Case("gradient of norm", lambda: _gradient(tf.norm, _t(0, 0)), "The gradient of Sqrt at 0: the only element is 0"),
    Case("bad data", lambda: _t(float("nan"), 1) + 1.0, "No recorded op made the tensor: it already held 1 NaN"),
    Case("power", lambda: tf.pow(_t(-2, 1), _t(0.5, 1)), "Pow of a negative number: 1 of 2", "tf.maximum(x, 1e-7)"),
    Case("0 ** -1", lambda: tf.pow(_t(0, 1), _t(-1, -2)), "Pow of 0: 1 of 2 elements is 0"),
    Case("0 ** -1 or overflow", lambda: tf.pow(_t(0, 1e30), _t(-1, 2)), None),
    Case("log of softmax", lambda: tf.math.log(tf.nn.softmax(_t(0, 200))), "Log of 0: 1 of 2", "log_softmax"),
    Case("entropy", lambda: _entropy(_t(0, 1)), "Log of 0: 1 of 2", "xlogy", "Log"),
    Case("entropy in a function", lambda: tf.function(_entropy)(_t(0, 1)), "Log of 0: 1 of 2", "xlogy", "Log"),
    Case("softplus", lambda: tf.math.log(1.0 + tf.exp(_t(100, 1))), "Overflow in Exp", "tf.nn.softplus", "Exp"),
    Case("logsumexp", lambda: tf.function(_logsumexp_by_hand)(_t(100, 1)), "Overflow in Exp", "logsumexp", "Exp"),
    Case(
        "logsumexp of a mask",
        lambda: tf.function(lambda x: tf.reduce_logsumexp(tf.where(x > 0.0, x, -np.inf), 1))(
            _t(0, 0, 0, 1)[None] * [[1.0], [0.0]]
        ),
        "Log-sum-exp of -Inf alone: 1 of 2 rows holds nothing else, and the log-sum-exp of such a row is -Inf.",
        "Mask with a large negative number such as -1e9, or leave one element of each row unmasked.",
        "Log",
    ),
    Case(
        "logsumexp of nothing",
        lambda: tf.reduce_logsumexp(tf.zeros([2, 0]), 1),
        "Log-sum-exp of no elements: the input is empty",
        "Check for an empty batch or mask",
        "Log",
    ),
    Case(
        "logsumexp of an overflow",
        lambda: tf.function(tf.reduce_logsumexp)(-tf.square(_t(1e30, 1e30))),
        "Overflow in Square",
        "",
        "Square",
    ),
    Case("softmax by hand", lambda: _softmax_by_hand(_t(100, 1)), "Overflow in Exp", "tf.nn.softmax", "Exp"),
    Case(
        "underflow of exp",
        lambda: _softmax_by_hand(_t(-200, -300)),
        "0 / 0: the divisor has 1 zero, the dividend 2 zeros, and 0 / 0 is NaN. The divisor sums exponentials",
        "tf.nn.softmax",
        "RealDiv",
    ),
    Case(
        "underflow in a product",
        lambda: tf.function(lambda x: 1.0 / tf.linalg.matvec(tf.exp(x), tf.ones([2])))(tf.fill([2, 2], -200.0)),
        "Division by 0: 2 of 2 elements are 0 in the divisor, and the quotient is infinite. The divisor is 0 because "
        "Exp underflowed: 4 of 4 elements are 0 in its result.",
        "Compute with logarithms",
    ),
    Case("log of a determinant", lambda: tf.math.log(tf.linalg.det(tf.ones([2, 2]))), "Log of 0: the only", "jitter"),
    Case("log of a slice of relu", lambda: tf.math.log(tf.nn.relu(_t(-1, 1))[:1]), "Log of 0: the only", "softplus"),
    Case("log of sigmoid", lambda: tf.math.log(tf.sigmoid(_t(-200, 1))), "Log of 0: 1 of 2", "log_sigmoid in place"),
    Case("log of exp - 1", lambda: tf.math.log(tf.exp(_t(1e-9, 1)) - 1.0), "Log of 0: 1 of 2", "tf.math.expm1(x)"),
    Case("log of 1 - sigmoid", lambda: tf.math.log(1 - tf.sigmoid(_t(200, 1))), "Log of 0: 1", "log_sigmoid(-x)"),
    Case(
        "log of a lost epsilon", lambda: _lost_epsilon(_t(0, 1)), "Log of 0: 1 of 2 elements is 0, and", "such as 1e-3"
    ),
    Case(
        "gradient of the root of a lost epsilon",
        lambda: _root_of_lost_epsilon(_t(0, 1, dtype="float16")),
        "The gradient of Sqrt at 0: 1 of 2 elements is 0 in its result, and the slope there is infinite. The program "
        "adds a number to make the argument, and the number is 0 in float16.",
        "such as 1e-3",
    ),
    Case("acos", lambda: tf.acos(_t(1.001, 0)), "Acos of a number outside [-1, 1]: 1 of 2", "clip_by_value"),
    Case(
        "csv",
        lambda: tf.io.decode_csv(["1,2", "3,inf"], [0.0, 0.0]),
        "DecodeCSV: the field of its output 1, counted from 0, holds 1 +Inf.",
        "Check the source of the data",
    ),
    Case(
        "gradient of acos",
        lambda: _gradient(tf.acos, _t(1, 0)),
        "The gradient of Acos divides by 0: 1 of 2",
        "Clip the argument wi",
    ),
    Case(
        "gradient of atan2",
        lambda: _gradient(lambda x: tf.atan2(x, x), _t(0, 1)),
        "In the gradient of Atan2, division by 0: 1 of 2",
    ),
    Case(
        "gradient of pow",
        lambda: _gradient(lambda x: x**0.5, _t(0, 1)),
        "The gradient of Pow at 0: 1 of 2 elements is 0",
    ),
    Case(
        "masked log",
        lambda: _masked_log(_t(0, 1)),
        "In the gradient of Log, Inf * 0: ",
        "Put tf.where around the input",
        "Mul",
    ),
    Case(
        "custom gradient",
        lambda: _custom_gradient(_t(0, 4)),
        "In a gradient, 0 / 0: the divisor has 1 zero",
        "divide_no_nan",
        "RealDiv",
    ),
    Case("mean of nothing", lambda: _mean_of_nothing(_t(1, 2)), "Mean of no elements: ", "divide_no_nan"),
    Case(
        "max of nothing", lambda: tf.reduce_max(tf.zeros([0])), "Max of no elements: its input is empty", "leave it out"
    ),
    Case("cholesky", lambda: tf.linalg.cholesky([[1.0, 2.0], [2.0, 1.0]]), "Cholesky: the matrix is not", "jitter"),
    Case("log determinant", lambda: tf.linalg.slogdet(tf.ones([2, 2])), "LogMatrixDeterminant: the matrix is singular"),
    Case(
        "softmax of masks",
        lambda: tf.nn.softmax(_t(-INF, -INF)),
        "Softmax of -Inf alone: the row of",
        "-1e9",
        "Softmax",
    ),
    Case(
        "cross entropy of masks",
        lambda: tf.nn.softmax_cross_entropy_with_logits(_t(0, 1), _t(-INF, 1)),
        "SoftmaxCrossEntropyWithLogits: a masked logit times a label of 0",
        "-1e9",
        "SoftmaxCrossEntropyWithLogits",
    ),
    Case("complex reciprocal", lambda: tf.math.reciprocal(tf.complex(_t(0, 1), _t(0, 1))), "Reciprocal of 0: 1 of 2"),
    Case("reciprocal of a subnormal", lambda: tf.math.reciprocal(_t(1e-40, 1)), "Reciprocal of a number next to 0: 1"),
    Case("xlogy", lambda: tf.math.xlogy(_t(1, 2), _t(0, 1)), "Xlogy at 0: 1 of 2 elements is 0", "above 0"),
    Case("remainder", lambda: tf.math.floormod(_t(1, 2), _t(0, 1)), "FloorMod by 0: the divisor has 1 zero"),
    Case("einsum", lambda: tf.einsum("i,i->", _t(1e30, 1), _t(1e30, 1)), "Overflow in Einsum: "),
    Case("sum", lambda: tf.reduce_sum(_t(3e38, 3e38)), "Overflow in Sum: ", "learning rate"),
    Case("python", lambda: tf.py_function(lambda: INF, [], tf.float32), "EagerPyFunc: your Python function returned 1"),
    Case(
        "generator",
        lambda: next(iter(tf.data.Dataset.from_generator(lambda: [INF], output_signature=tf.TensorSpec([])))),
        "PyFunc: component 0, counted from 0, of a record that the generator yielded holds 1 +Inf.",
    ),
    Case("checkpoint", _restore, "Restore: the checkpoint holds 1 NaN", "earlier checkpoint"),
    Case("gamma", lambda: tf.random.gamma([2], _t(-1, 1)), "RandomGamma: a parameter is negative", "above 0"),
    Case("ctc", _ctc, "CTCLoss: no alignment of a label", "too long"),
)


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("why")
    with tfdbg_arrow.capture(path, "FULL_NUMERICS"):
        for case in CASES:
            tfdbg_arrow.mark(case=case.name)
            case.run()
    return path


@pytest.fixture(scope="module")
def opened(logdir: Path) -> Iterator[Logdir]:
    with open_logdir(logdir) as opened:
        yield opened


def way_back(opened: Logdir, name: str) -> tuple[Hop, ...]:
    ((begin, end),) = opened.rows(
        "SELECT event_index, lead FROM (SELECT event_index, value, lead(event_index, 1, 9223372036854775807) "
        "OVER (ORDER BY event_index) AS lead FROM mark) WHERE value = ?",
        [name],
    )
    ((last,),) = opened.rows(
        "SELECT max(event_index) FROM nonfinite_tensor WHERE event_index >= ? AND event_index < ?", [begin, end]
    )
    return opened.provenance(last).hops


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=(pytest.mark.slow,) * (number % 4 > 0)) for number, case in enumerate(CASES)],
    ids=lambda case: case.name,
)
def test_the_explanation_of_each_case(opened: Logdir, case: Case) -> None:
    origins = [hop for hop in way_back(opened, case.name) if hop.role == "origin"]
    origin = min((hop for hop in origins if case.op in ("", hop.op_type)), key=lambda hop: hop.event_index)
    if case.sentence is None:
        assert (origin.why, origin.repair) == (None, None)
    else:
        assert origin.why is not None
        assert origin.why.startswith(case.sentence)
        assert case.repair in (origin.repair or "")


@pytest.mark.slow
def test_only_origins_and_candidates_are_explained(opened: Logdir) -> None:
    found = opened.rows("SELECT event_index FROM nonfinite_tensor ORDER BY event_index")
    hops = [hop for (event_index,) in found[::6] for hop in opened.provenance(event_index).hops]
    explained = {hop.role for hop in hops if hop.why is not None}
    assert "origin" in explained
    assert explained <= {"origin", "candidate"}
    assert {hop.role for hop in hops} - explained != set()


def test_inf_minus_inf_is_traced_back_to_both_overflows(opened: Logdir) -> None:
    ((last,),) = opened.rows("SELECT min(event_index) FROM nonfinite_tensor WHERE op_type = 'Sub' AND num_nan > 0")
    hops = opened.provenance(last).hops
    assert [(hop.op_type, hop.role) for hop in hops[:3]] == [("Sub", "origin"), ("Mul", "origin"), ("Mul", "origin")]
    assert hops[0].why is not None
    assert hops[0].why.startswith("Inf - Inf")
    assert {hop.role for hop in hops[3:]} == {"cause"}


def test_the_infinite_inputs_of_an_origin_lead_to_the_line_that_wrote_them(tmp_path: Path) -> None:
    @tf.function
    def attend(scores: Any, mask: Any) -> Any:
        masked = tf.where(mask, scores, -np.inf)
        return tf.nn.softmax(tf.transpose(masked) * 2.0)

    with tfdbg_arrow.capture(tmp_path):
        attend(tf.ones([2, 3]), tf.constant([[True, True, False], [True, True, False]]))
    with tfdbg_arrow.open_logdir(tmp_path) as opened:
        first = opened.first_nonfinite()
        assert first is not None
        path = opened.provenance(first).path
        lines = [hop.source.code if hop.source else None for hop in path]
    assert [(hop.op_type, hop.role, hop.is_on_path) for hop in path] == [
        ("Const", "literal", True),
        ("Mul", "infinite", True),
        ("Softmax", "origin", True),
    ]
    assert [hop.why is not None for hop in path] == [False, False, True]
    softmax = "return tf.nn.softmax(tf.transpose(masked) * 2.0)"
    assert lines == ["masked = tf.where(mask, scores, -np.inf)", softmax, softmax]


def test_the_zeros_of_an_origin_lead_to_the_infinities_whose_exponentials_they_are(tmp_path: Path) -> None:
    @tf.function
    def pool(scores: Any, mask: Any) -> Any:
        masked = tf.where(mask, scores, -np.inf)
        return tf.reduce_logsumexp(masked, 1)

    with tfdbg_arrow.capture(tmp_path):
        pool(tf.ones([2, 3]), tf.constant([[True, False, False], [False, False, False]]))
    with tfdbg_arrow.open_logdir(tmp_path) as opened:
        first = opened.first_nonfinite()
        assert first is not None
        path = opened.provenance(first).path
    line, call = "masked = tf.where(mask, scores, -np.inf)", "return tf.reduce_logsumexp(masked, 1)"
    assert [(hop.op_type, hop.role, hop.how, hop.source and hop.source.code) for hop in path] == [
        ("Const", "literal", "graph", line),
        ("Sum", "cause", "graph", call),
        ("SelectV2", "infinite", "zeros", line),
        ("Log", "origin", "start", call),
    ]


def test_a_healthy_input_is_that_of_the_last_op_of_a_fused_node(tmp_path: Path) -> None:
    weight, bias = tf.Variable([[-1000.0]]), tf.Variable([0.0])

    @tf.function
    def loss(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        probs = tf.sigmoid(tf.nn.bias_add(tf.matmul(x, weight), bias))
        return probs, tf.math.log(probs)

    with tfdbg_arrow.capture(tmp_path):
        loss(tf.constant([[1.0], [2.0]]))
    with open_logdir(tmp_path) as opened:
        first = opened.first_nonfinite()
        assert first is not None
        hops = opened.provenance(first).hops
    assert [(hop.op_type, hop.role) for hop in hops] == [("Log", "origin"), ("Sigmoid", "cause")]
    assert hops[1].ran_as in (None, "_FusedMatMul in place of MatMul, BiasAdd and Sigmoid")


def test_a_loss_is_traced_back_through_steps_variables_and_functions_to_a_log_of_zeros(tmp_path: Path) -> None:
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


class TestGrowth:
    """A linear model with too large a learning rate. Its weights grow in every step until the loss overflows."""

    @staticmethod
    def train(logdir: Path, *, learning_rate: float, num_steps: int, mode: str = "FULL_NUMERICS") -> None:
        weights = tf.Variable([[0.5], [0.25]], name="weights")
        inputs = tf.constant([[1.0, 2.0], [3.0, 4.0]])

        @tf.function
        def step() -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(tf.matmul(inputs, weights) - 1.0))
            weights.assign_sub(learning_rate * tape.gradient(loss, weights))
            return loss

        with tfdbg_arrow.capture(logdir, mode):
            for index in range(num_steps):
                tfdbg_arrow.mark(step=index)
                step()

    def test_the_variable_that_grew_is_named(self, tmp_path: Path) -> None:
        self.train(tmp_path, learning_rate=1.0, num_steps=40)
        with open_logdir(tmp_path) as opened:
            first = opened.first_nonfinite()
            assert first is not None
            found = opened.provenance(first.event_index)
            reasons = read_reasons(opened, first.event_index, run_id=first.run_id)
        growth = found.growth
        assert growth is not None
        assert reasons.growth == growth
        assert growth.is_variable
        assert growth.op_name.endswith("ReadVariableOp")
        assert 30 < growth.factor < 70
        assert growth.sentence.startswith(f"The variable that {growth.op_name} reads grew about ")
        assert "times a step since step" in growth.sentence
        assert "learning rate" in growth.repair
        assert reasons.explanation is not None
        assert reasons.explanation.sentence.startswith("Overflow in ")

    def test_a_training_that_converges_has_no_growth(self, tmp_path: Path) -> None:
        weight = tf.Variable([1.0, 2.0])

        @tf.function
        def step(scale: tf.Tensor) -> tf.Tensor:
            weight.assign_sub(0.1 * weight)
            return tf.math.log(scale * weight)

        with tfdbg_arrow.capture(tmp_path, "FULL_NUMERICS"):
            for index in range(10):
                tfdbg_arrow.mark(step=index)
                step(tf.constant(0.0 if index == 9 else 1.0))
        with open_logdir(tmp_path) as opened:
            first = opened.first_nonfinite()
            assert first is not None
            assert read_reasons(opened, first.event_index, run_id=first.run_id).growth is None

    def test_without_magnitudes_there_is_no_growth(self, tmp_path: Path) -> None:
        self.train(tmp_path, learning_rate=1.0, num_steps=40, mode="FULL_HEALTH")
        with open_logdir(tmp_path) as opened:
            first = opened.first_nonfinite()
            assert first is not None
            assert opened.provenance(first.event_index).growth is None
