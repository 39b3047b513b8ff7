"""Test the rules of single ops, of constants and of matrices."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tfdbg_arrow.query.explanation import Explanation
from tfdbg_arrow.query.explanation.keras_ops import in_keras_ops

from ..builder import CLEAN, INF, NAN, NEG_INF, counts
from .steps import (
    ABOVE_0_BEFORE_ROOT,
    BEFORE_ROOT,
    ONE,
    OVER,
    OVERFLOW_OF_PRODUCT,
    SIGNED,
    ZERO,
    Step,
    explained,
    numbers,
    reason_of,
    row,
    written_variable,
)

OF_NEGATIVE = "of a negative number: 1 of 2 elements is below 0, and the result is NaN."
NEGATIVE_VARIANCE = (
    "The variance is negative, and an epsilon does not repair that. If it is a moving variance, check what was "
    "assigned to it or loaded, and that the momentum is from 0 to 1. If it is computed as E[x^2] - E[x]^2, use "
    "tf.nn.moments: that difference can be negative by rounding."
)
JITTER = (
    "Add jitter to the diagonal, for example matrix + 1e-4 * tf.eye(n). A matrix with large elements needs more, and "
    "float64 less."
)


@pytest.mark.parametrize("behind", ["Cast", "Identity", "Mul", "RealDiv", "Sqrt", "Squeeze"])
@pytest.mark.parametrize("op_type", ["Cholesky", "Log", "RealDiv", "Rsqrt"])
def test_an_op_that_takes_its_own_result_in_a_damaged_graph(behind: str, op_type: str, tmp_path: Path) -> None:
    """The search for the cause of a zero must end."""
    step = Step().takes(CLEAN)
    step.op("y", behind, ["y", "y"] if behind in ("Mul", "RealDiv") else ["y"], counts(zero=1, pos=1))
    made = {"Cholesky": NAN, "Log": NEG_INF}.get(op_type, INF)
    step.op("made", op_type, ["x", "y"] if op_type == "RealDiv" else ["y"], made)
    assert step.reason("made", tmp_path) is not None


@pytest.mark.parametrize("num_writes", [1, 2])
def test_a_singular_matrix_that_is_the_initial_value_of_a_variable(num_writes: int, tmp_path: Path) -> None:
    run = written_variable("w = tf.Variable(ones)", num_writes)
    run.eager_op("ReadVariableOp", CLEAN, tensor_id=2, inputs=[7])
    determinant = run.execution("LogMatrixDeterminant", inputs=[2], outputs={3: "float32", 4: "float32"})
    event = run.eager(determinant, NEG_INF, tensor_id=4, slot=1)
    why = reason_of(run, event, tmp_path)
    singular = "LogMatrixDeterminant: the matrix is singular: its determinant is 0, and log(0) is -Inf."
    value = " The matrix is a variable that still holds its initial value, from `w = tf.Variable(ones)` at train.py:3."
    assert why.sentence == (singular + value if num_writes == 1 else singular)
    assert why.repair.startswith("Give the variable an initial value that is an") == (num_writes == 1)
    assert (why.repair == JITTER) == (num_writes == 2)


MASKED = {**counts(neg_inf=3, pos=3), "shape": [2, 3]}
LABELS = {**counts(zero=4, pos=2), "shape": [2, 3]}
DECOMPOSED = "its input is finite, so the decomposition overflowed or did not converge."
AWAY_FROM_0 = "Keep the base away from 0: add an epsilon or use tf.maximum."
POWER = (
    f"{AWAY_FROM_0} To get 0 for a base of 0, such as the degree of a node without neighbors, use tf.where(x > 0, "
    "tf.maximum(x, epsilon) ** p, 0.0)."
)
FACTORS = "Scale the matrix down, or compute in float64."
FINITE_MASK = (
    "Mask with a large negative number such as -1e9 in place of -Inf. If no mask is -Inf: Look for the op that "
    "made the infinities: tfdbg-arrow first-nonfinite --kinds inf."
)
CANCELLED = (
    "Inf - Inf: the inputs hold 2 infinities. In 1 of 2 elements, infinities cancel each other, and Inf - Inf is NaN."
)
MAXIMUM = "Keep the argument above 0, for example with tf.maximum(x, 1e-7)."
GAMMA = "Keep the arguments in the domain with tf.clip_by_value or tf.maximum."
ORIGIN = "Look for the op that made the infinities: tfdbg-arrow first-nonfinite --kinds inf."


@pytest.mark.parametrize(
    ("op_type", "inputs", "made", "sentence", "repair"),
    [
        (
            "MatrixSquareRoot",
            [CLEAN],
            NAN,
            (
                "MatrixSquareRoot: the matrix is finite and its root is not. An eigenvalue is 0 or a negative number, "
                "or is after rounding, or the computation overflowed."
            ),
            (
                "Keep the eigenvalues above 0: with tf.linalg.eigh, take the roots of tf.maximum(eigenvalues, "
                "epsilon) and multiply them with the eigenvectors. For a matrix that is not symmetric, cast it to "
                "complex64."
            ),
        ),
        (
            "MatrixLogarithm",
            [CLEAN],
            INF,
            (
                "MatrixLogarithm: the matrix is finite and its logarithm is not. An eigenvalue is 0, or is after "
                "rounding, or the computation overflowed."
            ),
            JITTER,
        ),
        ("Svd", [CLEAN], NAN, f"Svd: {DECOMPOSED}", FACTORS),
        (
            "Lgamma",
            [ZERO],
            INF,
            "Lgamma of 0: 1 of 2 elements is 0, and the result is infinite.",
            "Keep the argument above 0, for example with tf.maximum(x, 1e-7).",
        ),
        ("Qr", [CLEAN], NAN, f"Qr: {DECOMPOSED}", FACTORS),
        ("SelfAdjointEigV2", [CLEAN], NAN, f"SelfAdjointEig: {DECOMPOSED}", FACTORS),
        (
            "Polygamma",
            [CLEAN, ZERO],
            INF,
            "Polygamma: the order is negative or not a whole number, x is not above 0, or the result is too large.",
            GAMMA,
        ),
        (
            "LRN",
            [ZERO],
            NAN,
            "LRN: bias + alpha * the sum of squares around an element is 0, negative or too large.",
            "Use a bias and an alpha above 0, and scale the input down.",
        ),
        (
            "CumulativeLogsumexp",
            [INF],
            NAN,
            "CumulativeLogsumexp of +Inf: 1 of 2 elements is +Inf, and Inf - Inf is NaN.",
            ORIGIN,
        ),
        (
            "BesselI0",
            [CLEAN],
            INF,
            f"Overflow in BesselI0: its inputs are finite, and {OVER}",
            (
                "Use tf.math.bessel_i0e, which is this function times exp(-abs(x)) and cannot overflow. For the "
                "logarithm, use tf.math.log(tf.math.bessel_i0e(x)) + tf.abs(x)."
            ),
        ),
        ("BesselK1", [ZERO], INF, "BesselK1: an element is 0, next to 0 or negative.", MAXIMUM),
        ("Expint", [ZERO], NEG_INF, "Expint: an element is 0, next to 0, negative or above 88.", GAMMA),
        ("Spence", [CLEAN], NAN, "Spence: an element is negative, or too large to compute with.", GAMMA),
        (
            "Rsqrt",
            [counts(neg=1, zero=1)],
            counts(nan=1, pos_inf=1),
            f"Rsqrt of 0: 1 of 2 elements is 0, and 1 / sqrt(0) is infinite. Rsqrt {OF_NEGATIVE}",
            ABOVE_0_BEFORE_ROOT,
        ),
        (
            "SegmentProdV2",
            [CLEAN],
            INF,
            f"Overflow in SegmentProd: its inputs are finite, and {OVER}",
            OVERFLOW_OF_PRODUCT,
        ),
        (
            "MatrixDeterminant",
            [CLEAN],
            INF,
            f"Overflow in MatrixDeterminant: its inputs are finite, and {OVER}",
            SIGNED,
        ),
        *(
            (
                op_type,
                [],
                NAN,
                f"{op_type}: the bytes, read as numbers, hold 1 NaN.",
                "Check that the bytes are numbers of that dtype and byte order.",
            )
            for op_type in ("Bitcast", "DecodeRaw")
        ),
        (
            "SoftmaxCrossEntropyWithLogits",
            [MASKED, LABELS],
            NAN,
            (
                "SoftmaxCrossEntropyWithLogits: a masked logit times a label of 0, or a row of nothing else. In the "
                "logits, 3 of 6 elements are -Inf, and Inf * 0 and 0 / 0 are NaN."
            ),
            "Mask with a large negative number such as -1e9 instead of -Inf.",
        ),
        (
            "Sub",
            [NEG_INF, NEG_INF],
            NAN,
            CANCELLED,
            FINITE_MASK,
        ),
        (
            "Sub",
            [INF, INF],
            NAN,
            CANCELLED,
            ORIGIN,
        ),
        (
            "FusedBatchNormV3",
            [*[numbers(1.0, 2.0, pos=2)] * 4, numbers(-1.0, 2.0, neg=1, pos=1)],
            NAN,
            "FusedBatchNorm: 1 of 2 elements is negative in the variance, and its root is NaN.",
            NEGATIVE_VARIANCE,
        ),
        (
            "FusedBatchNormV3",
            [*[numbers(1.0, 2.0, pos=2)] * 4, numbers(0.0, 2.0, zero=1, pos=1)],
            NAN,
            "FusedBatchNorm: 1 of 2 elements is 0 in the variance, and the epsilon is 0 or rounds to 0.",
            "Use an epsilon above 0.",
        ),
        (
            "RealDiv",
            [counts(pos_inf=2), counts(pos_inf=2)],
            counts(nan=2),
            "Inf / Inf: the dividend holds 2 infinities and the divisor 2 infinities; Inf / Inf is NaN.",
            ORIGIN,
        ),
        ("RealDiv", [INF, INF], NAN, None, None),  # without numerics, a number may be so small that it counts as 0
        (
            "Softmax",
            [{**counts(neg_inf=5, pos=1), "shape": [3, 2]}],
            {**counts(nan=4, zero=1, pos=1), "shape": [3, 2]},
            "Softmax of -Inf alone: 2 of 3 rows of the logits hold nothing else, which gives 0 / 0.",
            "Mask with a large negative number such as -1e9, or leave one element of each row unmasked.",
        ),
        ("UnsortedSegmentMax", [CLEAN], CLEAN, None, None),
        ("Svd", [NAN], NAN, None, None),
        ("CumulativeLogsumexp", [NAN], NAN, None, None),
    ],
)
def test_the_rule_of_an_op(
    op_type: str,
    inputs: list[Mapping[str, Any]],
    made: Mapping[str, Any],
    sentence: str | None,
    repair: str | None,
) -> None:
    why = explained(op_type, made, *(row("Identity", health) for health in inputs))
    assert why == (None if sentence is None else Explanation(sentence, repair))


@pytest.mark.parametrize(
    ("program_ops", "makers", "repair"),
    [
        (("Relu", "Log"), ("Log",), "Keep the argument above 0, for example with tf.maximum(x, 1e-7)."),
        (("Sqrt", "Neg"), ("Sqrt",), ABOVE_0_BEFORE_ROOT),
        (("Log", "Sqrt"), ("Sqrt", "Log"), None),
    ],
)
def test_the_repair_of_a_fused_op_is_that_of_its_only_maker(
    program_ops: tuple[str, ...], makers: tuple[str, ...], repair: str | None
) -> None:
    why = explained("_UnaryOps", NAN, row("Identity", CLEAN), program_ops=program_ops, makers=makers)
    assert why.repair == repair


@pytest.mark.parametrize(
    ("program_ops", "forward_type", "sentence", "repair"),
    [
        (("Pow",), None, "Pow of 0: 1 of 2 elements is 0, and 0 to a negative power is infinite.", POWER),
        (
            ("Sub", "Pow"),
            "Pow",
            "The gradient of Pow at 0: 1 of 2 elements is 0, and 0 to a negative power is infinite.",
            AWAY_FROM_0,
        ),
        (("RealDiv", "Sqrt"), None, "Rsqrt of 0: 1 of 2 elements is 0, and 1 / sqrt(0) is infinite.", BEFORE_ROOT),
    ],
)
def test_a_power_that_ran_as_an_inverse_root(
    program_ops: tuple[str, ...], forward_type: str | None, sentence: str, repair: str
) -> None:
    why = explained("Rsqrt", INF, row("Sum", ZERO), program_ops=program_ops, forward_type=forward_type)
    assert why == Explanation(sentence, repair)


def test_an_angle_needs_a_clipped_cosine() -> None:
    of_function = explained("Acos", NAN, row("Sub", CLEAN))
    of_gradient = explained("Reciprocal", INF, row("Sub", ZERO), forward_type="Acos")
    assert of_function.repair == of_gradient.repair
    assert of_function.repair == (
        "Clip the argument with tf.clip_by_value, for example to -0.999999 to 0.999999: the slope at 1 is infinite."
    )


@pytest.mark.parametrize(("takers", "is_default"), [
    ({("ParseExampleV2",)}, True), ({("Reshape",), ("Reshape", "ParseExampleV2")}, True), (set(), False),
    ({("ParseExampleV2",), ("Mul",)}, False), ({("Reshape",)}, False),
])  # fmt: skip
def test_the_default_value_of_a_feature(takers: set[tuple[str, ...]], is_default: bool) -> None:
    of_feature = "A feature of an example is missing or bad: its default value holds 1 NaN."
    of_program = "Const: this constant of the program holds 1 NaN."
    why = explained("Const", counts(nan=1), takers=lambda: frozenset(takers))
    assert why.sentence == (of_feature if is_default else of_program)


def test_an_angle_at_0_is_kept_away_from_0() -> None:
    assert explained("Reciprocal", INF, row("AddV2", ZERO), forward_type="Angle") == Explanation(
        "The gradient of Angle divides by 0: 1 of 2 elements is 0, and 1 / 0 is infinite.",
        "Add a small number before tf.math.angle, so that no element is 0: the slope at 0 is infinite.",
    )


@pytest.mark.parametrize(
    ("maker", "repair"),
    [("Log", "Check the constants that Log takes. Keep the argument above 0, for example with tf.maximum(x, 1e-7)."),
     ("Pow", ("Check the constants that Pow takes. If the exponent is negative, keep the base away from 0, for example "
              "with tf.maximum.")),
     ("RealDiv", "Check the constants that RealDiv takes. Use tf.math.divide_no_nan, or a divisor that is never 0."),
     ("Mul", "Check the constants that Mul takes.")],
)  # fmt: skip
def test_a_function_of_constants_is_repaired_like_one_of_tensors(maker: str, repair: str) -> None:
    assert explained("Const", INF, program_ops=("Const", maker), makers=(maker,)) == Explanation(
        f"{maker} of constants: TensorFlow computed the result in advance, and it holds 1 +Inf.", repair
    )


@pytest.mark.parametrize(("op_type", "held"), [("Fill", "+Inf"), ("Neg", "an infinity or a NaN")])
def test_the_kinds_of_a_folded_constant_are_named_if_the_ops_keep_them(op_type: str, held: str) -> None:
    assert explained("Const", INF, program_ops=("Pack", op_type), makers=("Const",)).sentence == (
        f"TensorFlow folded a constant that holds {held} and the ops that take it into one constant with 1 +Inf."
    )


@pytest.mark.parametrize(
    ("shape", "ops", "rank"),
    [
        ([2, 3], ["MatMul"], 2),
        ([2, 3], ["MatMul", "RealDiv"], 2),
        ([2, 3], ["MatMul", "RealDiv", "AddV2"], None),  # with jitter
        ([3, 3], ["MatMul"], None),
        ([4, 3], ["MatMul"], None),
    ],
)
def test_a_covariance_of_few_samples_has_a_low_rank(
    shape: list[int], ops: list[str], rank: int | None, tmp_path: Path
) -> None:
    matrix = {**counts(pos=9), "rank": 2, "shape": [3, 3]}
    step = Step().takes({**counts(pos=shape[0] * shape[1]), "rank": 2, "shape": shape})
    step.op("scale", "Const", [], ONE).op("factor", "Sub", ["x"], {**counts(pos=6), "rank": 2, "shape": shape})
    before = ["factor", "factor"]
    for op_type in ops:
        step.op(op_type.lower(), op_type, before, matrix)
        before = [op_type.lower(), "scale"]
    step.op("root", "Cholesky", before[:1], {**counts(nan=9), "rank": 2, "shape": [3, 3]})
    why = step.reason("root", tmp_path)
    assert ("so that the rank is at most 2 of 3." in why.sentence) == (rank is not None)
    assert (why.repair == JITTER) == (rank is not None)


@pytest.mark.parametrize(
    ("imports", "named"),
    [
        ("from keras import layers, ops", "ops.divide_no_nan"),
        ("from keras import ops as K", "K.divide_no_nan"),
        ("import keras.ops", "keras.ops.divide_no_nan"),
        ("import keras\ny = keras.ops.exp(1.0)", "keras.ops.divide_no_nan"),
        ("import keras", "keras.ops.divide_no_nan"),
        ("import tensorflow as tf\nfrom keras import ops", "tf.math.divide_no_nan"),
        ("from mine import ops", "tf.math.divide_no_nan"),
        ("from keras import ops\nthis is no Python", "tf.math.divide_no_nan"),
    ],
)
def test_a_program_without_tensorflow_gets_the_fix_in_keras_ops(imports: str, named: str, tmp_path: Path) -> None:
    step = Step().takes(ZERO).op("count", "Sum", ["x"], ZERO)
    stack = step.run.stack(("/home/me/train.py", 9, "loss", "x / count", "user"))
    step.run.add("source_file", file_path="/home/me/train.py", source_text=f"{imports}\n")
    why = step.op("mean", "RealDiv", ["x", "count"], NAN, stack=stack).reason("mean", tmp_path)
    assert why.repair == f"Use {named}, or a divisor that is never 0."


def test_functions_that_keras_ops_does_not_have_keep_their_names() -> None:
    assert in_keras_ops("Use tf.math.xlogy(p, p), not p * tf.math.log(p).", "ops") == (
        "Use tf.math.xlogy(p, p), not p * ops.log(p)."
    )
