"""Test the explanations of logarithms and other functions that are infinite at 0."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tfdbg_arrow.query.explanation import Explanation

from ..builder import CLEAN, INF, NAN, NEG_INF, RunBuilder, counts
from .steps import ABOVE_0, LOG_OF_0, LOGARITHMS, LOGSUMEXP, ONE, SIGNED, ZERO, Step, explained, reason_of, row

WEIGHTED = (
    "Use tf.reduce_logsumexp(x + tf.math.log(w)) in place of the logarithm of a sum of w * exp(x): it does not "
    "underflow."
)
LOG_AND_DIVISOR = (
    "Keep the argument above 0 before both ops that take it, the logarithm and a division by it, for example with "
    "tf.maximum where it is computed."
)
BELOW = counts(neg=1, pos=1)
XLOGY = "Use tf.math.xlogy(p, p) in place of p * log(p): it is 0 for p = 0, and its gradient is finite."


def test_an_epsilon_that_the_optimizer_moved_is_not_asked_for_again(tmp_path: Path) -> None:
    """The program takes log((1 - p) + epsilon), and TensorFlow computes log((1 + epsilon) - p)."""
    step = Step().takes(CLEAN)
    step.graph.op("one", "Const").op("epsilon", "Const").op("difference", "Sub", ["one", "x"])
    step.graph.op("total", "AddV2", ["difference", "epsilon"])
    step._tensor("difference", counts(pos=1), op_type="Const")
    step._tensor("total", ZERO, op_type="Sub").op("log", "Log", ["total"], NEG_INF)
    node = step.run.executed(step.graph).argument("x")
    node.node("difference", "Const")
    node.node("p", "Tanh", ["x"])
    node.node("total", "Sub", ["difference", "p"])
    node.node("log", "Log", ["total"]).result("log")
    step.op("p", "Tanh", ["x"], CLEAN)
    assert step.reason("log", tmp_path) == Explanation(
        f"{LOG_OF_0} The program adds a constant last to make this argument. TensorFlow's optimizer adds the "
        "constant to another term first, where rounding to float32 can lose it.",
        "Replace the added constant with tf.maximum(x, constant): TensorFlow's optimizer does not move a maximum.",
    )


def test_an_epsilon_that_is_added_last_was_not_moved(tmp_path: Path) -> None:
    step = Step().takes(CLEAN).op("epsilon", "Const", [], counts(pos=1))
    step.op("total", "AddV2", ["x", "epsilon"], ZERO).op("log", "Log", ["total"], NEG_INF)
    assert step.reason("log", tmp_path) == Explanation(LOG_OF_0, ABOVE_0)


def log_of(*takers: tuple[str, str, list[str]]) -> Step:
    """Returns a step with log(x), where x holds a 0, and ops that take the logarithm."""
    step = Step().takes(ZERO).op("log", "Log", ["x"], NEG_INF)
    for name, op_type, inputs in takers:
        step.op(name, op_type, inputs, NAN)
    return step


@pytest.mark.parametrize(
    ("step", "repair"),
    [
        (log_of(("product", "Mul", ["x", "log"])), "xlogy"),
        (
            log_of(("product", "Mul", ["log", "x"])).gradient("slope", "Mul", ["log", "product"], NAN, "product"),
            "xlogy",
        ),
        (log_of(("other", "Neg", ["x"]), ("product", "Mul", ["other", "log"])), ABOVE_0),  # another factor
        (log_of(("product", "Mul", ["x", "log"]), ("sum", "Sum", ["log"])), ABOVE_0),  # the logarithm is needed, too
        (log_of(("product", "Mul", ["log", "log"])), ABOVE_0),
        (log_of(("quotient", "RealDiv", ["log", "x"])), LOG_AND_DIVISOR),
        (log_of(("quotient", "RealDiv", ["x", "log"])), ABOVE_0),  # the divisor is the logarithm
    ],
    ids=["entropy", "entropy with its gradient", "other factor", "second use", "square", "quotient", "by the log"],
)
def test_the_repair_of_a_logarithm_depends_on_the_other_uses_of_its_argument(
    step: Step, repair: str, tmp_path: Path
) -> None:
    assert step.reason("log", tmp_path) == Explanation(LOG_OF_0, XLOGY if repair == "xlogy" else repair)


def logarithms(one: float, *, of: str = "x", dtype: str = "float32") -> Step:
    """Returns a step with log(x) - log(one - x). `of` tells which logarithm is -Inf: `x` or `other`."""
    zero = {**ZERO, "dtype": dtype}
    step = Step().takes(zero if of == "x" else {**CLEAN, "dtype": dtype})
    step.op("one", "Const", [], {**ONE, "scalar_value": one})
    step.op("other", "Sub", ["one", "x"], CLEAN if of == "x" else zero)
    step.op("log_x", "Log", ["x"], NEG_INF if of == "x" else CLEAN)
    step.op("log_other", "Log", ["other"], CLEAN if of == "x" else NEG_INF)
    return step.op("logit", "Sub", ["log_x", "log_other"], NEG_INF)


BOTH_LOGARITHMS = (
    "Clip x before both logarithms, log(x) and log(1 - x), for example with tf.clip_by_value(x, {0}, 1 - {0})."
)


@pytest.mark.parametrize(
    ("step", "name", "repair"),
    [
        (logarithms(1.0), "log_x", BOTH_LOGARITHMS.format("1e-6")),
        (logarithms(1.0, of="other"), "log_other", BOTH_LOGARITHMS.format("1e-6")),
        (logarithms(1.0, dtype="float16"), "log_x", BOTH_LOGARITHMS.format("1e-3")),
        (logarithms(10.0), "log_x", ABOVE_0),
        (log_of(("one", "Const", []), ("other", "Sub", ["one", "x"])), "log", ABOVE_0),
    ],
    ids=["x", "1 - x", "float16", "10 - x", "one logarithm"],
)
def test_a_clip_from_above_0_is_not_enough_for_two_logarithms(
    step: Step, name: str, repair: str, tmp_path: Path
) -> None:
    assert step.reason(name, tmp_path, result="x") == Explanation(LOG_OF_0, repair)


def test_the_gradient_of_one_of_two_logarithms_needs_a_clip_for_both(tmp_path: Path) -> None:
    step = logarithms(1.0).gradient("slope", "Reciprocal", ["x"], INF, "log_x")
    assert step.reason("slope", tmp_path).repair == BOTH_LOGARITHMS.format("1e-6")


@pytest.mark.parametrize(("number", "repair"), [(1.0, BOTH_LOGARITHMS.format("1e-6")), (2.0, ABOVE_0)])
def test_two_logarithms_in_eager_code(number: float, repair: str, tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    difference = run.execution("Sub", inputs=[2, 1], outputs={3: "float32"})
    run.external(1, ZERO, execution=difference)
    run.external(2, {**ONE, "scalar_value": number}, execution=difference)
    run.eager(difference, CLEAN, tensor_id=3)
    run.eager_op("Log", CLEAN, tensor_id=4, inputs=[3])
    event = run.eager_op("Log", NEG_INF, tensor_id=5, inputs=[1])
    assert reason_of(run, event, tmp_path) == Explanation(LOG_OF_0, repair)


@pytest.mark.parametrize(
    ("taken", "weight", "repair"),
    [
        (CLEAN, counts(pos=4), WEIGHTED),
        (CLEAN, counts(zero=1, pos=3), ABOVE_0),  # all exponentials of a sum may have the weight 0
        (NEG_INF, counts(pos=4), ABOVE_0),  # exp(-Inf) is 0, too
    ],
)
def test_a_weighted_sum_of_exponentials_that_underflows(
    taken: Mapping[str, Any], weight: Mapping[str, Any], repair: str, tmp_path: Path
) -> None:
    """The program takes log(sum(weight * (exp(x) / scale)))."""
    step = Step().takes(taken).op("exp", "Exp", ["x"], counts(zero=2, pos=2)).op("scale", "Exp", [], counts(pos=4))
    step.op("density", "RealDiv", ["exp", "scale"], counts(zero=2, pos=2)).op("weight", "Softmax", [], weight)
    step.op("terms", "Mul", ["weight", "density"], counts(zero=2, pos=2)).op("sum", "Sum", ["terms"], ZERO)
    step.op("log", "Log", ["sum"], NEG_INF)
    assert step.reason("log", tmp_path) == Explanation(LOG_OF_0, repair)


def test_the_gradient_of_a_logarithm_needs_the_repair_of_the_logarithm(tmp_path: Path) -> None:
    step = Step().takes(CLEAN).op("exp", "Exp", ["x"], counts(zero=2, pos=1)).op("sum", "Sum", ["exp"], ZERO)
    step.op("log", "Log", ["sum"], NEG_INF).gradient("slope", "Reciprocal", ["sum"], INF, "log")
    assert step.reason("slope", tmp_path, result="log") == Explanation(
        "The gradient of Log divides by 0: 1 of 2 elements is 0, and 1 / 0 is infinite.", LOGSUMEXP
    )


@pytest.mark.parametrize(
    ("x", "terms", "is_mask"),
    [
        (counts(neg_inf=2, zero=1), counts(zero=2, pos=1), True),
        (counts(neg_inf=1, neg=2), counts(zero=2, pos=1), False),  # one exponential underflowed
        (counts(neg=3), counts(zero=2, pos=1), False),
        (
            counts(neg_inf=2, zero=1),
            {**counts(zero=2, pos=1), "num_subnormal": 1},
            False,
        ),  # TensorFlow may add 0 in its place
    ],
)
def test_a_sum_of_exponentials_of_infinities_is_no_underflow(
    x: dict[str, Any], terms: dict[str, Any], is_mask: bool, tmp_path: Path
) -> None:
    step = Step().takes(x).op("exp", "Exp", ["x"], terms).op("sum", "Sum", ["exp"], ZERO)
    why = step.op("log", "Log", ["sum"], NEG_INF).reason("log", tmp_path)
    of_mask = Explanation(
        "Log-sum-exp of -Inf alone: 1 of 2 rows holds nothing else, and the log-sum-exp of such a row is -Inf.",
        "Mask with a large negative number such as -1e9, or leave one element of each row unmasked.",
    )
    assert why == (of_mask if is_mask else Explanation(LOG_OF_0, LOGSUMEXP))


@pytest.mark.parametrize(
    ("made_by", "repair"),
    [
        (
            "Sub",
            (
                "Keep the argument above 0 with tf.maximum. Do not add an epsilon to the difference: TensorFlow's "
                "optimizer can add it to a larger term, where it is rounded away."
            ),
        ),
        ("Prod", LOGARITHMS),
        (
            "Relu",
            "Use tf.nn.softplus in place of tf.nn.relu, which returns 0 for a number below 0, or add an epsilon.",
        ),
        (
            "Sigmoid",
            (
                "Use tf.math.log_sigmoid in place of the sigmoid and the logarithm. For log(1 - sigmoid(x)), use "
                "tf.math.log_sigmoid(-x)."
            ),
        ),
        ("Softmax", "Use tf.nn.log_softmax in place of the softmax and the logarithm."),
        ("Sum", ABOVE_0),  # not of exponentials
        ("Mul", ABOVE_0),
    ],
)
def test_the_repair_of_a_logarithm_depends_on_its_argument(made_by: str, repair: str) -> None:
    assert explained("Log", NEG_INF, row(made_by, ZERO)) == Explanation(LOG_OF_0, repair)


def test_only_a_logarithm_in_a_loss_can_be_left_to_a_loss_from_logits() -> None:
    assert explained("Log", NEG_INF, row("Softmax", ZERO), is_in_loss=True) == Explanation(
        LOG_OF_0, "Use tf.nn.log_softmax, or a loss with from_logits=True, in place of the softmax and the logarithm."
    )


def test_a_logarithm_of_a_determinant_that_is_0_is_of_a_singular_matrix() -> None:
    assert explained("Log", NEG_INF, row("MatrixDeterminant", ZERO)) == Explanation(
        f"{LOG_OF_0} It is a determinant: the matrix is singular, or the product of its eigenvalues underflowed.",
        "Add jitter to the diagonal of the matrix, for example 1e-4 * tf.eye(n). If the matrix is not singular, "
        "tf.linalg.slogdet is enough: it does not underflow.",
    )


def test_a_logarithm_of_a_negative_determinant_is_of_its_magnitude() -> None:
    assert explained("Log", NAN, row("MatrixDeterminant", counts(neg=1, pos=1))) == Explanation(
        "Log of a negative number: 1 of 2 elements is below 0, and the result is NaN.", SIGNED
    )


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("tf.math.log(p + 1e-8)", "The program adds 1e-8 to make the argument, and 1e-8 is 0 in float16."),
        (
            "tf.math.log(p + EPSILON)",
            "The program adds a number to make the argument, and the number is 0 in float16.",
        ),
        ("tf.math.log(p + 1e-8) + (q + 0.5)", "The program adds a number to make the argument, and the number is 0"),
    ],
)
def test_an_epsilon_that_is_0_in_the_dtype_is_named(code: str, reason: str, tmp_path: Path) -> None:
    half = {**ZERO, "dtype": "float16"}
    step = Step().takes(half)
    stack = step.run.stack(("/home/me/train.py", 2, "loss", code, "user"))
    step.run.add("source_file", file_path="/home/me/train.py", source_text=f"def loss(p, q):\n    {code}\n")
    step.op("epsilon", "Const", [], {**half, **counts(zero=1)})
    step.op("sum", "AddV2", ["x", "epsilon"], half, stack=stack).op("log", "Log", ["sum"], {**half, **NEG_INF})
    assert step.reason("log", tmp_path).sentence.startswith(f"{LOG_OF_0} {reason}")


@pytest.mark.parametrize(("output", "is_mask"), [
    (counts(neg_inf=2, zero=1), True), (counts(neg_inf=3), False), (counts(neg_inf=2, zero=1, neg=1), False),
])  # fmt: skip
def test_the_logarithm_of_a_mask(output: Mapping[str, Any], is_mask: bool) -> None:
    why = explained("Log", output, row("Cast", counts(zero=2, pos=1)))
    assert ("If it is a mask of zeros and ones" in why.repair) == is_mask


RELU = "Use tf.nn.softplus in place of tf.nn.relu, which returns 0 for a number below 0, or add an epsilon."


@pytest.mark.parametrize(
    ("other", "made_by", "is_of_relu"),
    [
        (counts(zero=1, pos=1), "Relu", True),
        (counts(neg=1, pos=1), "Relu", False),  # the terms may cancel each other
        (counts(neg=1, zero=1), "Relu", False),
        (counts(zero=1, pos=1), "Softplus", False),
    ],
)
@pytest.mark.parametrize("function", ["Lgamma", "Digamma"])
def test_a_pole_at_0_where_a_relu_returned_0(
    function: str, other: Mapping[str, Any], made_by: str, is_of_relu: bool, tmp_path: Path
) -> None:
    layer = {"layer": "dense_3"}
    step = Step().takes(other).op("relu", made_by, ["x"], counts(zero=1, pos=1), **layer)
    step.op("mean", "Exp", ["x"], counts(pos=2)).op("both", "ConcatV2", ["mean", "relu"], counts(zero=1, pos=3))
    step.op("part", "Split", ["x", "both"], counts(zero=1, pos=1)).op("sum", "AddV2", ["x", "part"], ZERO)
    why = step.op("bad", function, ["sum"], INF if function == "Lgamma" else NAN).reason("bad", tmp_path)
    assert why.sentence.endswith(" The zeros come from Relu in the layer dense_3.") == is_of_relu
    assert why.repair == (RELU if is_of_relu else "Keep the argument above 0, for example with tf.maximum(x, 1e-7).")


@pytest.mark.parametrize(
    ("clip", "other", "is_of_bound"),
    [
        ([("low", "Minimum", ["x", "bound"]), ("clip", "Maximum", ["low", "epsilon"])], "one", True),
        ([("clip", "Minimum", ["bound", "x"])], "one", True),
        ([("clip", "ClipByValue", ["x", "epsilon", "bound"])], "one", True),
        ([("clip", "Minimum", ["x", "total"])], "one", False),
        ([("clip", "Maximum", ["x", "epsilon"])], "one", False),
        ([("clip", "Minimum", ["x", "bound"])], "total", False),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_upper_bound_that_is_1_in_the_dtype(
    clip: list[tuple[str, str, list[str]]], other: str, is_of_bound: bool, dtype: str, tmp_path: Path
) -> None:
    step = Step().takes(CLEAN).op("total", "Sum", ["x"], CLEAN)
    step.op("one", "Const", [], ONE).op("epsilon", "Const", [], ONE).op("bound", "Const", [], ONE)
    for name, op_type, inputs in clip:
        step.op(name, op_type, inputs, CLEAN)
    step.op("rest", "Sub", [other, "clip"], {**ZERO, "dtype": dtype}).op("log", "Log", ["rest"], NEG_INF)
    why = step.reason("log", tmp_path)
    assert (why.sentence != LOG_OF_0) == is_of_bound
    small, lost = ("1e-6", "1e-8") if dtype == "float32" else ("1e-3", "1e-4")
    bound = f"Use a lower upper bound: in {dtype}, 1 - {small} is below 1, but 1 - {lost} is 1."
    assert (why.repair == bound) == is_of_bound


@pytest.mark.parametrize(
    ("term", "health", "is_of_variable"),
    [("ReadVariableOp", counts(neg=1), True), ("ReadVariableOp", counts(pos=1), False), ("Neg", counts(neg=1), False)],
)
def test_the_logarithm_of_a_sum_with_a_variable_that_became_negative(
    term: str, health: dict[str, Any], tmp_path: Path, *, is_of_variable: bool
) -> None:
    step = (
        Step().takes(CLEAN).op("noise", term, ["x"], health).op("total", "AddV2", ["x", "noise"], counts(neg=1, pos=1))
    )
    step.op("log", "Log", ["total"], NAN)
    step.gradient("slope", "Reciprocal", ["total"], CLEAN, "log")
    why = step.reason("log", tmp_path)
    assert why.sentence.endswith("a variable that is below 0, and nothing keeps it above 0.") == is_of_variable
    assert why.repair.startswith("Train the logarithm of the variable") == is_of_variable


@pytest.mark.parametrize(
    ("made_by", "is_trained"),
    [("ReadVariableOp", True), ("ReadVariableOp", False), ("Sub", True), ("Prod", True)],
)
def test_the_logarithm_of_a_variable_that_became_negative(made_by: str, is_trained: bool, tmp_path: Path) -> None:
    below = counts(neg=1, pos=1)
    step = Step().takes(CLEAN).op("sigma", made_by, ["x"], below).op("log", "Log", ["sigma"], NAN)
    step.gradient("slope", "Reciprocal", ["sigma"], below, "log" if is_trained else "sigma")
    why = step.reason("log", tmp_path)
    is_of_variable = made_by == "ReadVariableOp" and is_trained
    assert why.sentence.endswith("value of a variable, and nothing keeps it above 0.") == is_of_variable
    assert why.repair.startswith("Train the logarithm of the variable") == is_of_variable
    assert why.repair.endswith("as for a determinant, use tf.math.log(tf.abs(x)).") == (made_by == "Prod")


@pytest.mark.parametrize(("health", "is_trained"), [(counts(neg=2), True), (counts(neg=2), False), (BELOW, True)])
@pytest.mark.parametrize("of_power", [False, True])
def test_functions_whose_argument_must_not_be_negative_and_is_trained(
    health: dict[str, Any], tmp_path: Path, *, is_trained: bool, of_power: bool
) -> None:
    """With tf.maximum, an argument that is below 0 everywhere would get no gradient."""
    step = Step().takes(CLEAN).op("u", "MatMul", ["x"], health).op("y", "Const", [], ONE)
    step.op("f", "Pow" if of_power else "Log", ["u", "y"] if of_power else ["u"], NAN)
    step.gradient("slope", "Mul", ["u"], CLEAN, "f" if is_trained else "u")
    repair = step.reason("f", tmp_path).repair
    is_softplus = is_trained and health is not BELOW
    what = "base" if of_power else "argument"
    assert repair.startswith(f"Apply tf.nn.softplus to the {what}: all of its elements are below 0") == is_softplus
    assert repair.startswith(f"Keep the {what} above 0, for example with tf.maximum(x, 1e-7)") == (not is_softplus)


@pytest.mark.parametrize("term", ["Cumsum", "Mean"])
def test_the_logarithm_of_a_sum_minus_a_cumulative_sum(term: str, tmp_path: Path) -> None:
    step = Step().takes(CLEAN).op("sum", "Sum", ["x"], ONE).op("before", term, ["x"], CLEAN)
    step.op("rest", "Sub", ["sum", "before"], BELOW).op("log", "Log", ["rest"], NAN)
    why = step.reason("log", tmp_path)
    is_of_cumsum = term == "Cumsum"
    assert why.sentence.endswith("If its terms are nearly equal, rounding can make it negative.") == is_of_cumsum
    assert why.repair.startswith("Compute tf.cumsum(x, reverse=True)") == is_of_cumsum


@pytest.mark.parametrize("takes_more", [False, True])
def test_the_logarithm_of_a_matrix_of_which_only_the_diagonal_is_used(takes_more: bool, tmp_path: Path) -> None:
    step = log_of(("diagonal", "MatrixDiagPartV3", ["log"]), *([("sum", "Sum", ["log"])] if takes_more else []))
    repair = step.reason("log", tmp_path).repair
    assert (repair == ABOVE_0) == takes_more
    assert repair.startswith("Apply tf.linalg.diag_part before the logarithm.") == (not takes_more)


def test_the_logarithm_of_a_distance_of_0() -> None:
    assert explained("Log", NEG_INF, row("Abs", ZERO)).repair.startswith("For a distance, use tf.math.log1p(x)")


@pytest.mark.parametrize(
    ("scale", "scaled", "is_of_relu"),
    [
        ("RealDiv", ZERO, True),
        ("Mul", ZERO, True),
        ("Mul", counts(zero=2), False),  # the product underflowed, too
        ("Sub", ZERO, False),
    ],
)
def test_a_relu_whose_zeros_are_scaled(scale: str, scaled: dict[str, Any], is_of_relu: bool, tmp_path: Path) -> None:
    step = Step().takes(CLEAN).op("two", "Const", [], ONE).op("relu", "Relu", ["x"], ZERO)
    step.op("half", scale, ["relu", "two"], scaled)
    bad = counts(pos_inf=scaled["num_zero"], pos=2 - scaled["num_zero"])
    why = step.op("bad", "Lgamma", ["half"], bad).reason("bad", tmp_path)
    assert ("The zeros come from Relu" in why.sentence) == is_of_relu
