"""RULES: for each type of op, the rule that explains bad values. GRADIENTS: the fix for the gradient of an op."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from math import isinf, log

from tfdbg_arrow.query.explanation.computed import (
    MAX_CHAIN,
    Computed,
    Explanation,
    Rule,
    bad_text,
    elements_are,
    infs,
    is_counted,
    is_finite,
    softmax_of_mask_text,
    type_without_version,
    zeros,
)
from tfdbg_arrow.query.explanation.kinds import (
    ADDS,
    EMPTY,
    MATRIX_PRODUCTS,
    NEGATIVE_VARIANCE,
    NO_EPSILON,
    OVERFLOW,
    OVERFLOW_OF_GRADIENT,
    OVERFLOW_OF_MASK,
    PLUS_CONSTANT,
    RESHAPES,
    SOFTMAX_OF_AXIS,
    Domain,
    FiniteGives,
    GradientOfFunction,
    Overflow,
    Pole,
    Product,
    Reduction,
    first_of,
    with_mask,
    within_dtype,
)
from tfdbg_arrow.query.explanation.linear import (
    ORIGIN_OF_INFINITY,
    ROW_OF_MASK,
    CrossEntropy,
    Division,
    Power,
    Sums,
    ZeroTimes,
    inverse_root_of_power,
    remainder,
    softmax,
)
from tfdbg_arrow.query.explanation.logarithms import (
    LOGSUMEXP,
    MOVES,
    OVERFLOW_OF_PRODUCT,
    POSITIVE,
    RELU,
    SIGNED_LOG,
    logarithm,
    repair_of_log,
)
from tfdbg_arrow.query.explanation.optimizers import of_optimizer, update_of_variable
from tfdbg_arrow.query.explanation.outside import ARGUMENT, FROM_OUTSIDE, of_constants, tensor_from_outside
from tfdbg_arrow.query.flow.extremes import largest_of
from tfdbg_arrow.query.recorded import TensorEvent
from tfdbg_arrow.safe_text import number_of
from tfdbg_arrow.schema.op_traits import READER, UPDATER, WITH_WEIGHTS, Trait, types_with

_OF_CUSTOM_GRADIENTS = types_with(Trait.STANDS_FOR_CALL)
"""Types of the ops with which tf.custom_gradient marks its result. The gradients of these ops compute nothing."""

CLIP = "Clip the argument from above, for example with tf.minimum"
SCALE_INPUTS = (
    "Scale the inputs to magnitudes near one, if they are larger: Exp overflows before the first update of the "
    "weights. To keep it finite later,"
)
_SEGMENT_SOFTMAX = (
    "For a softmax over segments, subtract the maximum of each segment before the exponential: take it with "
    "tf.math.unsorted_segment_max, and gather it as the sums are gathered. The quotients stay the same."
)
_SEGMENT_SUMS = ("SegmentSum", "SegmentSumV2", "UnsortedSegmentSum")
_SOFTPLUS = "Use tf.nn.softplus(x) in place of log(1 + exp(x)): it cannot overflow."
_CUMULATIVE_LOGSUMEXP = (
    "Use tf.math.cumulative_logsumexp in place of the exponentials, their cumulative sum and the logarithm: it neither "
    "overflows nor underflows."
)
_SOFTMAX_BY_PARTS = (
    "Subtract the maximum of the terms of each sum before the exponential, as in tf.exp(x - tf.reduce_max(x, axis=-1, "
    "keepdims=True)) with the axis of the sum: the quotients stay the same. tf.nn.softmax and tf.nn.log_softmax do so."
)
_SELECTING = frozenset({
    "BatchMatMulV2", "DiagPart", "Einsum", "GatherNd", "GatherV2", "MatMul", "MatrixDiagPart", "MatrixDiagPartV2",
    "MatrixDiagPartV3", "RealDiv", "StridedSlice",
})  # fmt: skip
"""Types of ops that select or weight exponentials. The program then divides the result by a sum of exponentials."""
_SIGMOID = (
    "Use tf.nn.sigmoid(x) in place of {}, and tf.math.log_sigmoid(x) in place of its logarithm: they cannot overflow."
)
_HYPERBOLIC = (
    "Clip the argument with tf.clip_by_value. For log(cosh(x)), use x + tf.nn.softplus(-2 * x) - log(2), which cannot "
    "overflow."
)
_SCALED_BESSEL = (
    "Use tf.math.{0}, which is this function times exp(-abs(x)) and cannot overflow. For the logarithm, use "
    "tf.math.log(tf.math.{0}(x)) + tf.abs(x)."
)
_ABOVE_MINUS_1 = "Keep the argument above -1, for example with tf.maximum(x, -0.999)."
_ABOVE_1 = "Keep the argument above 1, for example with tf.maximum(x, 1.001): the slope at 1 is infinite."
_ABOVE_0_BEFORE_ROOT = (
    "Keep the argument above 0, for example with tf.maximum(x, 1e-7). A maximum with 0 is not enough if the program "
    "differentiates the root or divides by it: at 0, the gradient of the root is infinite, and so is the quotient."
)
_INSIDE_UNIT = "Clip the argument with tf.clip_by_value, for example to -0.999999 to 0.999999."
_UNIT = f"{_INSIDE_UNIT.removesuffix('.')}: the slope at 1 is infinite."
_DEVIATIONS = (
    "Use tf.math.reduce_variance or tf.nn.moments: they average the squares of the differences from the mean, which "
    "are not negative. For running sums, use Welford's algorithm, or float64."
)
_PROBABILITY = "Clip the argument with tf.clip_by_value to a range inside 0 to 1."
_EMPTY_MEAN = "Check for an empty batch or mask before the reduction, or divide with tf.math.divide_no_nan."
_DIVISOR = (
    "Use tf.math.divide_no_nan, or add an epsilon. In a training, a tf.where has to replace the input, not only the "
    "result."
)
_OF_DIFFERENCE = f"Keep the argument of the root above 0, for example with tf.maximum(x, 1e-7). {NO_EPSILON}"
_BEFORE_ROOT = "Before the root, add an epsilon such as 1e-7 (1e-4 in float16)."
_OTHER_ROOTS = "A norm, a standard deviation and a power of 0.5 take a root, too."
DIFFERENTIATED_ROOT = (
    "Leave out the points where the root is 0, or use a function that is smooth there in place of the root, such as "
    "the square of a norm. An epsilon before the root has to be large, such as 1e-4: the program differentiates this "
    "gradient again, and for a norm, that derivative is 1 / sqrt(epsilon)."
)
"""The fix for a root whose infinite gradient is differentiated again. The fix also applies inside library functions."""
_TO_BASE = "Add an epsilon to the base."
_TO_DIVISOR = "Add an epsilon to the divisor."
_JITTER = (
    "Add jitter to the diagonal, for example matrix + 1e-4 * tf.eye(n). A matrix with large elements needs more, and "
    "float64 less."
)
_CHOLESKY = (
    f"{_JITTER} Jitter helps only against rounding: check also that the matrix is symmetric, and that no variance on "
    "its diagonal is negative."
)
_INVERTIBLE = (
    "Give the variable an initial value that is an invertible matrix, such as that of the initializer 'orthogonal' or "
    "'identity'. Jitter would only hide that the matrix is singular."
)
_GAMMA = "Keep the arguments in the domain with tf.clip_by_value or tf.maximum."
_ALPHA = "Keep the parameters above 0, for example with tf.nn.softplus."
_EPSILON = "Use an epsilon above 0."
_FACTORS = "Scale the matrix down, or compute in float64."
_FUSED_WITH_PRODUCTS = frozenset({
    "Add", "AddV2", "BiasAdd", "Conv2D", "DepthwiseConv2dNative", "Elu", "LeakyRelu", "MatMul", "Pad", "Relu", "Relu6",
    "Sigmoid", "Tanh",
})  # fmt: skip
"""Types of ops that TensorFlow fuses with sums of products. These ops add, or are finite for finite inputs."""
_NO_NAME = re.compile(r"(All|An?|Division|Its?|Overflow|The)\b")
"""Words that can begin a sentence and are not the name of an op."""


_MAX_OPS_TO_RELU = 12
"""Between a Relu and an argument, at most this many ops are examined."""
_SQUARES = frozenset({"Mul", "Pow", "Square"})
_SCALES = ("Mul", "RealDiv")
"""Types of ops that scale a tensor. If the other input has no zeros, the result is 0 only where the tensor is 0."""
_FINITE_NUMBER = "Use a number that {} can hold, such as 1e4 or -1e4. For a mask, tf.where with a boolean works, too."
_LOG1P = first_of(
    Domain(of="-1", where="-1", kind="neg_inf", repair=_ABOVE_MINUS_1),
    Domain(of="a number below -1", where="below -1", repair=_ABOVE_MINUS_1),
)
_WITH_RANGE_OF_FLOAT32 = ("bfloat16", "float32")
_BEYOND_FLOAT32 = (
    "Replace such numbers in the data, or scale them before the cast. Of the floating-point dtypes, only float64 has a "
    "larger range."
)
_OF_CAST = Overflow(repair="Cast to a dtype with a larger range, such as bfloat16 or float32, or scale the values.")


def _exp(computed: Computed) -> Explanation | None:
    """Explains the exponential. The ops that take the result determine the fix."""
    return Overflow(repair=_repair_of_exp(computed), without="neg_inf")(computed)


def _repair_of_exp(computed: Computed) -> str:
    takers = computed.takers() if computed.op == "Exp" else frozenset()
    direct = {types[0] for types in takers}
    if direct == {"Sum"} and ("Sum", "Log") in takers:
        return LOGSUMEXP
    if direct == {"Cumsum"} and ("Cumsum", "Log") in takers:
        return _CUMULATIVE_LOGSUMEXP
    if direct == {"Sum", "RealDiv"} and ("Sum", "RealDiv") in takers:
        return SOFTMAX_OF_AXIS
    if ("Sum", "RealDiv") in takers and direct <= _SELECTING | {"Sum"}:
        return _SOFTMAX_BY_PARTS
    if "RealDiv" in direct and any(direct == {"RealDiv", total} and _is_gathered(takers, total) for total in direct):
        return _SEGMENT_SOFTMAX
    if direct == {"Log1p"} or (direct == {PLUS_CONSTANT} and (PLUS_CONSTANT, "Log") in takers):
        return _SOFTPLUS
    if direct == {PLUS_CONSTANT} and takers & {(PLUS_CONSTANT, "RealDiv"), (PLUS_CONSTANT, "Reciprocal")}:
        return _SIGMOID.format("1 / (1 + exp(-x))")
    if direct == {PLUS_CONSTANT, "RealDiv"} and (PLUS_CONSTANT, "RealDiv") in takers:
        return _SIGMOID.format("exp(x) / (1 + exp(x))")
    largest = largest_of(computed.output)
    if isinf(largest):
        return f"{CLIP}."
    limit = log(largest)
    # A quarter of the limit keeps a product of three such exponentials finite, as in the gradient of a square.
    bound = f"{limit // 4:.1f}"
    room = f"the limit of {bound} leaves room for squares and products of the result."
    clip = f"{CLIP}(x, {bound}). Exp overflows above {limit:.1f}; {room}"
    return f"{SCALE_INPUTS} {clip[0].lower()}{clip[1:]}" if _overflows_before_training(computed) else clip


def _is_gathered(takers: frozenset[tuple[str, ...]], total: str) -> bool:
    """Returns whether an op gathers the sums of segments, perhaps after an op that adds an epsilon to the sums."""
    return total in _SEGMENT_SUMS and not takers.isdisjoint((total, taker) for taker in ("GatherV2", *ADDS))


def _overflows_before_training(computed: Computed) -> bool:
    """Returns whether an op of a training overflows before the op's weights are updated for the first time."""
    if not computed.is_differentiated(computed.output) or not computed.is_before_training():
        return False
    types_behind = {behind.output.op_type for behind in computed.behind()}
    return READER in types_behind and not WITH_WEIGHTS.isdisjoint(types_behind)


def _log1p(computed: Computed) -> Explanation | None:
    """Explains log(1 + x). If the program takes the logarithm of a sum, the argument to change is this sum."""
    explanation = _LOG1P(computed)
    if explanation is None or "Log" not in computed.program_ops:
        return explanation
    return Explanation(explanation.sentence.replace("Log1p of", "Log of 1 + x for x =", 1), POSITIVE)


def _cast(computed: Computed) -> Explanation | None:
    """Explains a cast that overflows, with another fix if the result is a mask of zeros and -Inf."""
    explanation = _OF_CAST(computed)
    if explanation is None:
        return None
    if not computed.inputs and computed.output.size == 1:  # the cast of a number of the program
        return replace(explanation, repair=_FINITE_NUMBER.format(computed.output.dtype))
    if not _is_mask_of_constant(computed):
        is_wide = computed.output.dtype in _WITH_RANGE_OF_FLOAT32
        return replace(explanation, repair=_BEYOND_FLOAT32) if is_wide else explanation
    of_row = softmax_of_mask_text(computed)
    return Explanation(f"{explanation.sentence} The other elements are 0, as in a mask.{of_row}", ROW_OF_MASK)


def _is_mask_of_constant(computed: Computed) -> bool:
    """Returns whether the output holds only zeros and -Inf, and was computed from a constant of the program."""
    output, x = computed.output, computed.inputs.get(0)
    made_of = () if x is None else computed.made_from(x).values()
    is_mask = bool(output.num_neg_inf and output.num_zero) and (output.num_neg_inf or 0) + zeros(output) == output.size
    return is_mask and any(computed.constant(row) is not None for row in made_of)


def _root_of_negative(computed: Computed) -> Explanation | None:
    """Explains the root of a negative number. The ops that made the number determine the fix."""
    negative = _ROOT_OF_NEGATIVE(computed)
    if negative is None:
        return None
    integers = computed.integers_behind(computed.inputs[0], "num_neg_finite")
    if integers is not None and integers.are_squares:
        dtype = integers.dtype
        return Explanation(
            f"{negative.sentence} The argument was cast from a sum of squares in {dtype}: the sum was too large for "
            f"{dtype}, and so became negative.",
            "Cast the numbers to float32 before they are squared.",
        )
    if not _is_difference_of_moments(computed, computed.inputs[0]):
        return negative
    sentence = f"{negative.sentence} The argument is E[x^2] - E[x]^2, and rounding can make this difference negative."
    return Explanation(sentence, _DEVIATIONS)


def _inverse_root(computed: Computed) -> Explanation | None:
    """Explains 1 / sqrt(x) of zeros, negative numbers, or both. Rounding can make a small difference 0 or negative."""
    of_zero, of_negative = _POLE_OF_ROOT(computed), _root_of_negative(computed)
    if of_zero is None or of_negative is None:
        return of_zero or of_negative
    return Explanation(f"{of_zero.sentence} {of_negative.sentence}", of_negative.repair)


def _is_difference_of_moments(computed: Computed, x: TensorEvent) -> bool:
    """Returns whether a tensor is E[x^2] - E[x]^2, perhaps with an epsilon added."""
    for of_squares, square in _differences(computed, x):
        means = computed.made_from(square).get(0)
        if computed.made_by(square) in _SQUARES and means is not None and _are_means(computed, of_squares, means):
            return True
    return False


def _differences(computed: Computed, x: TensorEvent) -> Iterator[tuple[TensorEvent, TensorEvent]]:
    """Yields the tensors a and b for which a tensor is a - b, or a - b plus a number."""
    summands = list(computed.made_from(x).values()) if computed.made_by(x) in ADDS else []
    for difference in (x, *summands):
        terms = computed.made_from(difference)
        if computed.made_by(difference) == "Sub" and terms.keys() == {0, 1}:
            yield terms[0], terms[1]
            if terms[0].size == 1:  # TensorFlow's optimizer runs (a - b) + number as a + (number - b)
                yield from ((summand, terms[1]) for summand in summands if summand is not difference)


def _are_means(computed: Computed, one: TensorEvent, other: TensorEvent) -> bool:
    """Returns whether two tensors are means: results of Mean, or sums divided by scalars from the same type of op."""
    makers = {computed.made_by(one), computed.made_by(other)}
    if makers != {"RealDiv"}:
        return makers == {"Mean"}
    numbers = [computed.made_from(quotient).get(1) for quotient in (one, other)]
    are_scalars = all(number is not None and number.size == 1 for number in numbers)
    return are_scalars and len({computed.made_by(number) for number in numbers if number is not None}) == 1


def _with_relu(rule: Rule) -> Rule:
    """Extends the rule for a function with a pole at 0: the new rule names the Relu that returned the zeros."""

    def explain_zeros(computed: Computed) -> Explanation | None:
        explanation, x = rule(computed), computed.inputs.get(0)
        is_at_0 = x is not None and zeros(x) > 0 and x.num_neg_finite == 0
        relu = _relu_of_zeros(computed, x) if explanation is not None and x is not None and is_at_0 else None
        if explanation is None or relu is None:
            return explanation
        place = computed.place_of(relu)
        return Explanation(f"{explanation.sentence} The zeros come from Relu{place and f' in {place}'}.", RELU)

    return explain_zeros


def _relu_of_zeros(computed: Computed, x: TensorEvent) -> TensorEvent | None:
    """Returns the result of a Relu whose zeros make a tensor 0, as far as the counts prove it, or None."""
    to_follow = [x]
    for _ in range(_MAX_OPS_TO_RELU):
        row = to_follow.pop(0) if to_follow else None
        made_by, taken = (None, {}) if row is None else (computed.made_by(row), computed.made_from(row))
        if made_by == "Relu":
            return row
        with_zeros = [source for source in taken.values() if zeros(source)]
        is_of_terms = len(with_zeros) == 2 and all(is_finite(term) and term.num_neg_finite == 0 for term in with_zeros)
        is_scaled = made_by in _SCALES and row is not None and [zeros(source) for source in with_zeros] == [zeros(row)]
        if (made_by in ADDS and is_of_terms) or (made_by == "ConcatV2" and len(with_zeros) == 1) or is_scaled:
            to_follow += with_zeros
        elif made_by in MOVES and MOVES[made_by] in taken:
            to_follow.append(taken[MOVES[made_by]])
    return None


def _singular(rule: Rule) -> Rule:
    """Extends the rule for a matrix op with the case that the matrix is a variable with its initial value."""

    def applied(computed: Computed) -> Explanation | None:
        explanation, matrix = rule(computed), computed.inputs.get(0)
        write = None if explanation is None or matrix is None else computed.last_write(matrix)
        if explanation is None or write is None or not write.is_initial:
            return explanation
        return Explanation(f"{explanation.sentence} The matrix is a variable that {write}.", _INVERTIBLE)

    return applied


def _lgamma(computed: Computed) -> Explanation | None:
    counted = computed.counted(0)
    if counted is None or not is_finite(counted[0]) or not infs(computed.output):
        return None
    (x,) = counted
    below = (x.num_neg_finite or 0) + zeros(x)
    is_small = x.max_abs_finite is not None and x.max_abs_finite < 1e30 and largest_of(x) > 1e38
    if not below:
        return Overflow(repair="Scale the argument down.")(computed)
    held = elements_are(infs(computed.output), x)
    if not x.num_neg_finite and zeros(x) == infs(computed.output):
        return Explanation(f"Lgamma of 0: {held} 0, and the result is infinite.", POSITIVE)
    if x.num_pos_finite and not is_small:
        return Explanation(
            f"Lgamma of 0, of a negative integer, or of a number that is too large: {held} one of these, and the "
            "result is infinite.",
            POSITIVE,
        )
    return Explanation(f"Lgamma at a pole: {held} 0 or a negative integer, and the result is infinite.", POSITIVE)


def _digamma_of_0(computed: Computed) -> Explanation | None:
    counted = computed.counted(0)
    if counted is None or not is_finite(counted[0]) or counted[0].num_neg_finite:
        return None
    (x,) = counted
    if not zeros(x) or zeros(x) != computed.output.num_bad:
        return None
    return Explanation(f"Digamma of 0: {elements_are(zeros(x), x)} 0, where the function has a pole.", POSITIVE)


def _batch_norm(computed: Computed) -> Explanation | None:
    """Explains batch normalization. Small inputs cannot overflow, so the cause is the root of variance + epsilon."""
    filled = [event for event in computed.inputs.values() if event.size]
    if computed.output.output_slot != 0 or not filled or not computed.has_finite_inputs:
        return None
    if any(event.max_abs_finite is None or event.max_abs_finite > 1e6 for event in filled):
        return None
    variance, repair = computed.inputs.get(4), _EPSILON
    if variance is None or not variance.size:
        reason = "a channel has variance 0 and the epsilon is 0 or rounds to 0, so the op divides by 0."
    elif variance.num_neg_finite and not zeros(variance):
        reason = f"{elements_are(variance.num_neg_finite, variance)} negative in the variance, and its root is NaN."
        repair = NEGATIVE_VARIANCE
    elif zeros(variance) and not variance.num_neg_finite:
        reason = f"{elements_are(variance.num_zero, variance)} 0 in the variance, and the epsilon is 0 or rounds to 0."
    else:
        return None
    return Explanation(f"{computed.op}: {reason}", repair)


def _fused_products(computed: Computed) -> Explanation | None:
    """Explains sums of products that are fused with the addition of a bias and an activation."""
    others = set(computed.program_ops) - _FUSED_WITH_PRODUCTS
    return None if others or not computed.program_ops else _PRODUCTS(computed)


def _cumulative_logsumexp(computed: Computed) -> Explanation | None:
    counted = computed.counted(0)
    if counted is not None and computed.output.num_nan and counted[0].num_pos_inf and not counted[0].num_nan:
        held = elements_are(counted[0].num_pos_inf, counted[0])
        return Explanation(f"CumulativeLogsumexp of +Inf: {held} +Inf, and Inf - Inf is NaN.", ORIGIN_OF_INFINITY)
    return _OVER(computed)


def _cholesky(computed: Computed) -> Explanation | None:
    """Explains a Cholesky decomposition. If the matrix is a product, its shapes show whether the rank is too low."""
    explanation, matrix = _INDEFINITE(computed), computed.inputs.get(0)
    rank = None if matrix is None else _largest_rank(computed, matrix)
    if explanation is None or matrix is None or not matrix.shape or rank is None or rank >= matrix.shape[-1]:
        return explanation
    return Explanation(
        f"{explanation.sentence} Each element sums {number_of(rank, 'product')}, such as one for each sample, so that "
        f"the rank is at most {rank:,} of {matrix.shape[-1]:,}.",
        _JITTER,
    )


def _largest_rank(computed: Computed, matrix: TensorEvent) -> int | None:
    """Returns the largest rank that the shapes allow for a product of two matrices, perhaps scaled by a number."""
    for _ in range(MAX_CHAIN):
        if computed.made_by(matrix) not in ("Mul", "RealDiv"):
            break
        matrices = [row for row in computed.made_from(matrix).values() if row.shape == matrix.shape]
        others = [row for row in computed.made_from(matrix).values() if row.shape == ()]
        if len(matrices) != 1 or len(others) != 1:
            return None
        (matrix,) = matrices
    factor = computed.made_from(matrix).get(0) if computed.made_by(matrix) in MATRIX_PRODUCTS else None
    if factor is None or not factor.shape or not matrix.shape or len(factor.shape) < 2 or not matrix.shape[-1]:
        return None
    return factor.shape[-2] * factor.shape[-1] // matrix.shape[-1]


def _all(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


_OUTSIDE_UNIT = Domain(of="a number outside [-1, 1]", where="outside [-1, 1]", repair=_UNIT)
_AT_UNIT = Domain(of="1 or -1", where="1 or -1, up to rounding", kind="inf", repair=_INSIDE_UNIT)
_OUTSIDE_01 = Domain(of="a number outside [0, 1]", where="outside [0, 1]", repair=_PROBABILITY)
_ANGLE = Domain(of="an infinity", where="infinite", repair="Look for the op that made the infinity.")
_ROOT_OF_NEGATIVE = Domain(of="a negative number", where="below 0", repair=_ABOVE_0_BEFORE_ROOT)
_POLE_OF_ROOT = Pole(value="1 / sqrt(0) is infinite", repair=_BEFORE_ROOT)
_OVER = Overflow(repair=OVERFLOW)
_SUMS = Sums(repair=OVERFLOW)
_PRODUCTS = Sums(of="products", repair=OVERFLOW)
_INDEFINITE = FiniteGives(reason="the matrix is not positive definite, or not after rounding.", repair=_CHOLESKY)

GRADIENTS: dict[str, str] = {
    "Acos": _UNIT,
    "Asin": _UNIT,
    "Atanh": _UNIT,
    "Acosh": _ABOVE_1,
    "Angle": "Add a small number before tf.math.angle, so that no element is 0: the slope at 0 is infinite.",
    "Atan2": "Keep the two arguments from both being 0, for example with an epsilon.",
    **dict.fromkeys(("Sqrt", "SqrtGrad"), _BEFORE_ROOT),
    "Pow": _TO_BASE,
    "Cholesky": _JITTER,
    "Svd": "Keep the singular values apart, for example with a small random matrix added.",
    "EuclideanNorm": "Take tf.sqrt(tf.reduce_sum(tf.square(x)) + epsilon): the slope of the norm at 0 is not defined.",
    "Qr": "Keep the columns linearly independent, for example with a small random matrix added.",
    "SelfAdjointEigV2": "Keep the eigenvalues apart, for example with a small random matrix added.",
}
"""The fix for the gradient, by type of the forward op."""

REPAIRS: dict[str, str] = {
    "Acos": _UNIT,
    "Asin": _UNIT,
    "Atanh": _UNIT,
    "Acosh": _ABOVE_1,
    "Exp": f"{CLIP}.",
    "Expm1": f"{CLIP}.",
    "Inv": _DIVISOR,
    "Log": POSITIVE,
    "Log1p": _ABOVE_MINUS_1,
    "Reciprocal": _DIVISOR,
    "Rsqrt": POSITIVE,
    "Sqrt": _ABOVE_0_BEFORE_ROOT,
}
"""The fix for a function of one argument, by op type, if the argument was not recorded because TensorFlow fused the
op."""

RULES: dict[str, Rule] = {
    "Log": logarithm,
    "Log1p": _log1p,
    "Sqrt": _root_of_negative,
    "Rsqrt": first_of(inverse_root_of_power, _inverse_root),
    **_all("Reciprocal Inv", Pole(value="1 / 0 is infinite", repair=_DIVISOR)),
    "Acosh": Domain(of="a number below 1", where="below 1", repair=_ABOVE_1),
    **_all("Acos Asin", _OUTSIDE_UNIT),
    "Atanh": first_of(_OUTSIDE_UNIT, _AT_UNIT),
    "Erfinv": first_of(replace(_OUTSIDE_UNIT, where="outside [-1, 1], not only by rounding"), _AT_UNIT),
    "Ndtri": first_of(
        _OUTSIDE_01, Domain(of="0 or 1", where="0 or 1, up to rounding", kind="inf", repair=_PROBABILITY)
    ),
    **_all("Sin Cos Tan", _ANGLE),
    "Lgamma": _with_relu(_lgamma),
    "Digamma": _with_relu(
        first_of(
            _digamma_of_0,
            FiniteGives(
                reason="an element is 0, next to 0 or a negative integer, where the function has a pole.",
                repair=POSITIVE,
            ),
        )
    ),
    "Betainc": FiniteGives(reason="a or b is 0, next to 0 or negative, or x is outside [0, 1].", repair=_GAMMA),
    **_all("Igamma Igammac", FiniteGives(reason="a is 0, next to 0 or negative, or x is negative.", repair=_GAMMA)),
    "Zeta": FiniteGives(
        kind="any", reason="x is not above 1, q is not above 0, or the result is too large.", repair=_GAMMA
    ),
    "Polygamma": FiniteGives(
        kind="any",
        reason="the order is negative or not a whole number, x is not above 0, or the result is too large.",
        repair=_GAMMA,
    ),
    **_all(
        "BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1",
        FiniteGives(kind="any", reason="an element is 0, next to 0 or negative.", repair=POSITIVE),
    ),
    "BesselI0": Overflow(repair=_SCALED_BESSEL.format("bessel_i0e")),
    "BesselI1": Overflow(repair=_SCALED_BESSEL.format("bessel_i1e")),
    "Expint": FiniteGives(kind="any", reason="an element is 0, next to 0, negative or above 88.", repair=_GAMMA),
    "Spence": FiniteGives(kind="any", reason="an element is negative, or too large to compute with.", repair=_GAMMA),
    "CumulativeLogsumexp": _cumulative_logsumexp,
    "LRN": FiniteGives(
        kind="any",
        reason="bias + alpha * the sum of squares around an element is 0, negative or too large.",
        repair="Use a bias and an alpha above 0, and scale the input down.",
    ),
    **_all("Exp Expm1", _exp),
    **_all("Sinh Cosh", Overflow(repair=_HYPERBOLIC)),
    **_all("Square SquaredDifference L2Loss EuclideanNorm ComplexAbs Softplus", _OVER),
    "Cast": _cast,
    **_all("RealDiv Div FloorDiv TruncateDiv", Division(repair=OVERFLOW)),
    "DivNoNan": Division(is_zero_safe=True, repair=OVERFLOW),
    **_all("Mod FloorMod TruncateMod", remainder),
    "Xlogy": ZeroTimes(pole=0, function="log(y)"),
    "Xlog1py": ZeroTimes(pole=-1, function="log1p(y)"),
    "Xdivy": ZeroTimes(pole=0, function="1 / y"),
    "Pow": Power(repair=OVERFLOW),
    "Mul": Product(repair=OVERFLOW),
    **_all("TanhGrad SigmoidGrad", Product(repair=OVERFLOW)),
    "SqrtGrad": GradientOfFunction(function="Sqrt", at_zero="zero", repair=_BEFORE_ROOT),
    "RsqrtGrad": GradientOfFunction(function="Rsqrt", at_zero="inf", repair=_BEFORE_ROOT),
    **_all("ReciprocalGrad InvGrad", GradientOfFunction(function="Reciprocal", at_zero="inf", repair=_TO_DIVISOR)),
    **_all("Add AddV2 Sub AddN Sum Cumsum BiasAdd SegmentSum SegmentSumV2 UnsortedSegmentSum SparseSegmentSum", _SUMS),
    **_all("AvgPool AvgPool3D BiasAddGrad SegmentMean SparseSegmentMean SparseSegmentSqrtN", _SUMS),
    **_all(
        "Prod Cumprod UnsortedSegmentProd SegmentProd SegmentProdV2", Sums(of="factors", repair=OVERFLOW_OF_PRODUCT)
    ),
    **_all(
        "MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 SparseTensorDenseMatMul Einsum Conv Conv2D Conv3D "
        "DepthwiseConv2dNative Conv2DBackpropInput Conv2DBackpropFilter Conv3DBackpropInputV2 "
        "Conv3DBackpropFilterV2 DepthwiseConv2dNativeBackpropInput DepthwiseConv2dNativeBackpropFilter",
        _PRODUCTS,
    ),
    **_all("_FusedMatMul _FusedConv2D _FusedDepthwiseConv2dNative", _fused_products),
    "Mean": Reduction(value="0 / 0 is NaN", repair=_EMPTY_MEAN, otherwise=_SUMS),
    "Max": Reduction(value="the maximum of nothing is -Inf", repair=EMPTY),
    "Min": Reduction(value="the minimum of nothing is +Inf", repair=EMPTY),
    **_all("Softmax LogSoftmax", softmax),
    "SoftmaxCrossEntropyWithLogits": CrossEntropy(is_sparse=False),
    "SparseSoftmaxCrossEntropyWithLogits": CrossEntropy(is_sparse=True),
    "Cholesky": _cholesky,
    "LogMatrixDeterminant": _singular(
        FiniteGives(
            kind="inf",
            slot=1,
            reason="the matrix is singular: its determinant is 0, and log(0) is -Inf.",
            repair=_JITTER,
        )
    ),
    "MatrixDeterminant": Overflow(repair=SIGNED_LOG),
    "MatrixSquareRoot": FiniteGives(
        kind="any",
        reason="the matrix is finite and its root is not. An eigenvalue is 0 or a negative number, or is after "
        "rounding, or the computation overflowed.",
        repair="Keep the eigenvalues above 0: with tf.linalg.eigh, take the roots of tf.maximum(eigenvalues, epsilon) "
        "and multiply them with the eigenvectors. For a matrix that is not symmetric, cast it to complex64.",
    ),
    "MatrixLogarithm": FiniteGives(
        kind="any",
        reason="the matrix is finite and its logarithm is not. An eigenvalue is 0, or is after rounding, or the "
        "computation overflowed.",
        repair=_JITTER,
    ),
    **_all(
        "Svd Qr SelfAdjointEigV2 Eig",
        FiniteGives(
            kind="any",
            reason="its input is finite, so the decomposition overflowed or did not converge.",
            repair=_FACTORS,
        ),
    ),
    **_all(
        "MatrixInverse MatrixSolve MatrixTriangularSolve",
        _singular(
            FiniteGives(
                kind="any",
                reason="the matrix is singular, or so near to it that its inverse overflows.",
                repair=_JITTER,
            )
        ),
    ),
    "CTCLoss": FiniteGives(
        kind="inf",
        slot=0,
        reason="no alignment of a label has a probability above 0. The label needs more time steps than its sequence "
        "has, or the logits rule one of its classes out.",
        repair="Leave out labels that are too long: each class takes a time step, and a repeated class one more.",
    ),
    **_all(
        "RandomGamma StatelessRandomGammaV2 StatelessRandomGammaV3",
        FiniteGives(reason="a parameter is negative.", repair=_ALPHA),
    ),
    **_all("FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3", _batch_norm),
    **FROM_OUTSIDE,
}
"""The rule for each type of op."""


def explain(computed: Computed) -> Explanation | None:
    """Returns why an op made an infinity or a NaN, or None if the counts prove nothing.

    A rule only answers if there is no other possible cause. For example, if an overflow and a division by zero would
    give the same counts, the answer is None.

    Args:
        computed: The op's output and inputs.
    """
    explanation = _explain(computed) if computed.output.has_inf_or_nan else None
    return explanation and within_dtype(_with_other_roots(explanation, computed), computed)


def _with_other_roots(explanation: Explanation, computed: Computed) -> Explanation:
    """If the user's line does not show a root, adds the functions that take a root to the explanation."""
    if _BEFORE_ROOT not in (explanation.repair or "") or computed.shows_root():
        return explanation
    return replace(explanation, repair=f"{explanation.repair} {_OTHER_ROOTS}")


def _explain(computed: Computed) -> Explanation | None:
    output = computed.output
    if output.op_type in (None, ARGUMENT):
        from_outside = tensor_from_outside(output)
        masked = with_mask(from_outside, computed)
        return _with_product(_with_pool(from_outside, computed), computed) if masked is from_outside else masked
    if output.op_type == "Const" and computed.program_ops:
        return of_constants(computed, REPAIRS)
    rule = RULES.get(output.op_type, update_of_variable if UPDATER.fullmatch(output.op_type) else None)
    explanation = None if rule is None or not is_counted(output) else rule(computed)
    if explanation is not None and computed.is_optimizer:
        explanation = of_optimizer(explanation, computed)
    if explanation is None and computed.makers and len(computed.program_ops) > 1 and computed.has_finite_inputs:
        explanation = _of_fused_op(computed)
    if explanation is None:
        return _of_infinite_loss(computed)
    if explanation.sentence.startswith("Overflow in ") and computed.is_literal(output):
        return replace(explanation, repair=OVERFLOW_OF_MASK)
    if computed.forward_type is None:
        return with_mask(explanation, computed)
    explanation = _of_gradient(computed, explanation)
    if explanation.repair != _BEFORE_ROOT:
        return explanation
    if computed.is_differentiated(computed.output):
        return replace(explanation, repair=DIFFERENTIATED_ROOT)
    return replace(explanation, repair=_OF_DIFFERENCE) if _is_root_of_difference(computed) else explanation


def _is_root_of_difference(computed: Computed) -> bool:
    """Returns whether a gradient belongs to the root of a difference, such as sqrt(1 - x * x)."""
    root = computed.inputs.get(0)
    argument = None if root is None else computed.made_from(root).get(0)
    return argument is not None and computed.made_by(computed.chain(argument, RESHAPES)[-1]) == "Sub"


def _with_pool(explanation: Explanation, computed: Computed) -> Explanation:
    """Returns the explanation of bad data. If a pool hides the NaN, the explanation says so."""
    pool = computed.pool_of_nan()
    if pool is None:
        return explanation
    op, lowest = type_without_version(pool.op_type or ""), f"the lowest {pool.dtype}, -{largest_of(pool):.6g}"
    hidden = f"{op} returns {lowest}, for a window of NaN, so that they come back as an overflow."
    return Explanation(f"{explanation.sentence} {hidden}", explanation.repair)


def _with_product(explanation: Explanation, computed: Computed) -> Explanation:
    """Explains bad data. If a product was meant to mask the data, the explanation says why the product fails."""
    line = computed.masking_product()
    if line is None:
        return explanation
    return Explanation(
        f"{explanation.sentence} {line} multiplies the NaN by a tensor with as many zeros, but NaN * 0 is NaN.",
        f"If the product is meant to mask the NaN, replace the NaN of {computed.outside_name() or 'the tensor'} with "
        "tf.where before anything is computed from it. Otherwise, check where the program got the NaN.",
    )


def _of_infinite_loss(computed: Computed) -> Explanation | None:
    """Returns the explanation of a loss that is infinite because of infinities that the program wrote."""
    infinite = [event for event in computed.inputs.values() if event.has_inf_or_nan and event.num_nan == 0]
    if not computed.is_loss or not infinite or computed.output.num_nan != 0:
        return None
    held = bad_text(infinite[0])
    return Explanation(
        f"{computed.op}: the loss is infinite because of infinities that the program wrote, such as a mask. The input "
        f"holds {held}.",
        "Leave masked elements out of the loss with tf.where, or mask with a large negative number such as -1e9.",
    )


def _of_fused_op(computed: Computed) -> Explanation:
    maker, *others = computed.makers
    together = " and ".join(sorted(set(computed.program_ops) - {maker}))
    if not others:
        return Explanation(
            f"All inputs are finite, so {maker}, which TensorFlow ran as one op with {together}, created the bad "
            "value.",
            _repair_of(computed.makers),
        )
    return Explanation(
        f"All inputs are finite, so one of {', '.join(computed.makers)} created the bad value. TensorFlow ran them as "
        "one op; a recording with graphs='traced' shows each of them.",
        _repair_of(computed.makers),
    )


def _repair_of(makers: tuple[str, ...]) -> str | None:
    """Returns the fix if only one of the ops can make bad values from small numbers; otherwise None."""
    repairs = [REPAIRS[op_type] for op_type in dict.fromkeys(makers) if op_type in REPAIRS]
    return repairs[0] if len(repairs) == 1 else None


def _of_gradient(computed: Computed, explanation: Explanation) -> Explanation:
    """Returns the explanation of an op in a gradient, extended with the op whose gradient it computes."""
    forward_type = computed.forward_type or ""
    if explanation.sentence.startswith("The gradient of") or forward_type in _OF_CUSTOM_GRADIENTS:
        return explanation
    sentence = explanation.sentence.removeprefix("In a gradient, ")
    what, _, facts = sentence.partition(": ")
    if what == f"Overflow in {type_without_version(forward_type)}":
        sentence = f"The gradient of {forward_type} overflowed: {facts}"
    elif what in ("Inv of 0", "Reciprocal of 0"):
        sentence = f"The gradient of {forward_type} divides by 0: {facts}"
    else:
        start = sentence[0].lower() if _NO_NAME.match(sentence) else sentence[0]
        sentence = f"In the gradient of {forward_type}, {start}{sentence[1:]}"
    is_large_power = forward_type == "Pow" and computed.op in ("Mul", "Square") and what.startswith("Overflow in")
    repair = OVERFLOW_OF_GRADIENT if is_large_power else GRADIENTS.get(forward_type, explanation.repair)
    if explanation.repair == _DIVISOR and forward_type in ("Log", "Log1p"):
        # TensorFlow's gradient function divides here. The program does not.
        repair = repair_of_log(computed, computed.inputs[0]) if forward_type == "Log" else _ABOVE_MINUS_1
    return Explanation(sentence, repair)
