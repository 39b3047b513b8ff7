"""The rule for the logarithm, and the fix for an argument of 0, which depends on the op that made the argument."""

from __future__ import annotations

from dataclasses import replace

from tfdbg_arrow.query.explanation.computed import Computed, Explanation, softmax_of_mask_text
from tfdbg_arrow.query.explanation.kinds import (
    ADDS,
    EMPTY,
    NO_EPSILON,
    OF_NEGATIVE,
    RESHAPES,
    Domain,
    Pole,
    is_finite_exponential,
)
from tfdbg_arrow.query.explanation.library import IN_LOGSUMEXP
from tfdbg_arrow.query.explanation.linear import ROW_OF_MASK
from tfdbg_arrow.query.recorded import TensorEvent
from tfdbg_arrow.schema.op_traits import READER

LOGSUMEXP = (
    "Use tf.reduce_logsumexp in place of the exponentials, their sum and the logarithm: it neither overflows nor "
    "underflows."
)
"""The fix for a sum of exponentials that overflows, or underflows before its logarithm."""
_WEIGHTED_LOGSUMEXP = (
    "Use tf.reduce_logsumexp(x + tf.math.log(w)) in place of the logarithm of a sum of w * exp(x): it does not "
    "underflow."
)
_BOTH_LOGARITHMS = "Clip x before both logarithms, log(x) and log(1 - x), for example with"
_OF_COMPLEMENT = {"bfloat16": "1e-2", "float16": "1e-3"}
"""By dtype, the distance from 0 and from 1 at which x is clipped for log(x) and log(1 - x). In these dtypes, 1 - 1e-6
is 1."""
_BOUNDS_NEXT_TO_1 = {"bfloat16": ("1e-2", "1e-3"), "float16": ("1e-3", "1e-4"), "float64": ("1e-12", "1e-17")}
"""Two small numbers by dtype: 1 minus the first number is below 1, and 1 minus the second number rounds to 1."""
_XLOGY = "Use tf.math.xlogy(p, p) in place of p * log(p): it is 0 for p = 0, and its gradient is finite."
POSITIVE = "Keep the argument above 0, for example with tf.maximum(x, 1e-7)."
"""The fix for an argument that must not be negative."""
_MAGNITUDE = f"{POSITIVE} If only its magnitude counts, as for a determinant, use tf.math.log(tf.abs(x))."
_OF_CUMSUM = (
    "Compute tf.cumsum(x, reverse=True), with the other value of `exclusive`, in place of the difference between the "
    "sum and the cumulative sum. It subtracts nothing, so that rounding cannot make it negative."
)
_OF_DIAGONAL = "Apply tf.linalg.diag_part before the logarithm. It leaves out the other elements, of which some are 0."
_DIAGONALS = frozenset({"DiagPart", "MatrixDiagPart", "MatrixDiagPartV2", "MatrixDiagPartV3"})
_OF_DETERMINANTS = _DIAGONALS | {"Prod"}
"""Types of ops that return a determinant, or the factors of one."""
_OF_VARIABLE = (
    "Train the logarithm of the variable in place of the variable, or apply tf.nn.softplus to the variable. With "
    "tf.maximum, the variable would get no gradient where it is below the bound."
)
_ABOVE_0 = "Keep the argument above 0 with an epsilon such as 1e-7."
_LOG_AND_DIVISOR = (
    "Keep the argument above 0 before both ops that take it, the logarithm and a division by it, for example with "
    "tf.maximum where it is computed."
)
_LOG_OF_MASK = (
    f"{_ABOVE_0} If it is a mask of zeros and ones, use tf.where(mask, 0.0, -1e9) with a boolean mask in place of the "
    "logarithm."
)
_SUM_OF_LOGARITHMS = (
    "Add the logarithms of the factors in place of the product (tf.reduce_sum or tf.cumsum of tf.math.log)"
)
_LOG_OF_PRODUCT = f"{_SUM_OF_LOGARITHMS}, or scale the factors."
OVERFLOW_OF_PRODUCT = (
    f"{_SUM_OF_LOGARITHMS}. If the program needs the product itself, clip this sum from above before tf.exp, for "
    "example with tf.minimum(x, 22.0), or scale or clip the factors."
)
"""The fix for a product that overflows."""
SIGNED_LOG = "Use tf.linalg.slogdet: it returns the sign of the determinant and the logarithm of its magnitude."
"""The fix for the logarithm of a determinant."""
RELU = "Use tf.nn.softplus in place of tf.nn.relu, which returns 0 for a number below 0, or add an epsilon."
"""The fix for a zero that tf.nn.relu returned."""
_STABLE_LOG = {
    "Softmax": "Use tf.nn.log_softmax in place of the softmax and the logarithm.",
    "Sigmoid": "Use tf.math.log_sigmoid in place of the sigmoid and the logarithm. For log(1 - sigmoid(x)), use "
    "tf.math.log_sigmoid(-x).",
    "Relu": RELU,
    "MatrixDeterminant": "Add jitter to the diagonal of the matrix, for example 1e-4 * tf.eye(n). If the matrix is not "
    "singular, tf.linalg.slogdet is enough: it does not underflow.",
    "Sub": f"Keep the argument above 0 with tf.maximum. {NO_EPSILON}",
    "Abs": "For a distance, use tf.math.log1p(x), which is finite at 0, or leave out the zeros with tf.where before "
    "the logarithm. Otherwise, add an epsilon, which gives its own logarithm there, such as -16 for 1e-7.",
    "Prod": _LOG_OF_PRODUCT,
}
_EXPM1 = (
    "For exp(x) - 1, use tf.math.expm1(x), which is not rounded to 0 for an x next to 0. If x itself may be 0, keep "
    "the argument above 0 with tf.maximum."
)
_FROM_LOGITS = {
    "Softmax": "Use tf.nn.log_softmax, or a loss with from_logits=True, in place of the softmax and the logarithm.",
    "Sigmoid": "Use tf.math.log_sigmoid, or a loss with from_logits=True, in place of the sigmoid and the logarithm.",
}
"""The fix for the logarithm of a probability in a loss."""
MOVES = {**dict.fromkeys(("ExpandDims", "Identity", "Reshape", "SplitV", "Squeeze", "StridedSlice"), 0), "Split": 1}
"""Types of ops that return elements of an input, and the index of the input."""
_MAX_MOVES = 5
"""Maximum number of ops in a chain that only move elements. Bounds the search for the op that computed them."""
_SUMS = ("Mean", "Sum")
_PRODUCTS = ("Mul", "RealDiv")
_MAX_FACTORS = 20
"""Maximum number of tensors in the search for factors. A longer product gets another fix."""
_LOG_OF_0 = Pole(value="the logarithm of 0 is -Inf", kind="neg_inf", repair=_ABOVE_0)
_LOG_OF_NEGATIVE = Domain(of="a negative number", where="below 0", repair=POSITIVE)


def logarithm(computed: Computed) -> Explanation | None:
    """Explains the logarithm. The op that made the argument determines which function to use instead."""
    of_0, of_negative = _LOG_OF_0(computed), _LOG_OF_NEGATIVE(computed)
    if of_0 is not None and of_negative is not None:
        return Explanation(f"{of_0.sentence} {of_negative.sentence}", of_negative.repair)
    explanation = of_0 or of_negative
    if explanation is None or explanation.repair not in (_ABOVE_0, POSITIVE):
        return explanation
    x = computed.inputs[0]
    if explanation.repair == _ABOVE_0 and (of_row := _log_sum_exp(computed, x)) is not None:
        return of_row
    is_of_determinant = computed.made_by(x) == "MatrixDeterminant"
    if explanation.repair == POSITIVE:
        return replace(explanation, repair=SIGNED_LOG) if is_of_determinant else _of_negative(explanation, computed)
    if _subtracts_clipped_term(computed, x):
        return _of_bound(explanation, computed)
    singular = " It is a determinant: the matrix is singular, or the product of its eigenvalues underflowed."
    sentence = explanation.sentence + (singular if is_of_determinant else "") + softmax_of_mask_text(computed)
    return Explanation(sentence, repair_of_log(computed, x))


def _of_negative(explanation: Explanation, computed: Computed) -> Explanation:
    """Returns the explanation of the logarithm of a negative number, with another fix for a trained variable."""
    x = computed.inputs[0]
    is_differentiated = computed.is_differentiated(computed.output)
    if computed.made_by(x) == READER and is_differentiated:
        of_variable = "The argument is the value of a variable, and nothing keeps it above 0."
        return Explanation(f"{explanation.sentence} {of_variable}", _OF_VARIABLE)
    terms = computed.made_from(x).values() if computed.made_by(x) in ADDS else ()
    negative = [term for term in terms if computed.made_by(term) == READER and term.num_neg_finite]
    if negative and is_differentiated:
        of_term = "A term of the argument is the value of a variable that is below 0, and nothing keeps it above 0."
        return Explanation(f"{explanation.sentence} {of_term}", _OF_VARIABLE)
    if computed.made_by(x) == "Sub" and any(computed.made_by(term) == "Cumsum" for term in _terms(computed, x)):
        difference = "The argument is a difference. If its terms are nearly equal, rounding can make it negative."
        return Explanation(f"{explanation.sentence} {difference}", _OF_CUMSUM)
    if x.num_neg_finite == x.size != 1 and is_differentiated:
        return replace(explanation, repair=OF_NEGATIVE.format("argument"))
    may_be_determinant = computed.made_by(computed.chain(x, RESHAPES)[-1]) in _OF_DETERMINANTS
    return replace(explanation, repair=_MAGNITUDE) if may_be_determinant else explanation


def _terms(computed: Computed, difference: TensorEvent) -> list[TensorEvent]:
    """Returns the terms of a difference, as they were before ops that only reshape."""
    return [computed.chain(term, RESHAPES)[-1] for term in computed.made_from(difference).values()]


def _subtracts_clipped_term(computed: Computed, difference: TensorEvent) -> bool:
    """Returns whether a tensor is a constant minus a clipped term, such as 1 - tf.clip_by_value(x, a, b).

    TensorFlow's optimizer may keep only one of several equal constants, so that this constant has no row.
    """
    terms = computed.made_from(difference) if computed.made_by(difference) == "Sub" else {}
    if 1 not in terms or (0 in terms and computed.constant(terms[0]) is None):
        return False
    clipped = computed.chain(terms[1], ("Maximum", *RESHAPES))[-1]
    computed_terms = [row for row in computed.made_from(clipped).values() if computed.constant(row) is None]
    return computed.made_by(clipped) in ("ClipByValue", "Minimum") and len(computed_terms) == 1


def _of_bound(explanation: Explanation, computed: Computed) -> Explanation:
    """Returns why log(constant - term) is bad if the upper bound of the term is not below the constant."""
    dtype = computed.inputs[0].dtype
    small, lost = _BOUNDS_NEXT_TO_1.get(dtype or "", ("1e-6", "1e-8"))
    logits = " Or compute the loss from the logits." if computed.is_in_loss else ""
    return Explanation(
        f"{explanation.sentence} The program clips the term that it subtracts, but in {dtype}, the upper bound is not "
        "below the other term.",
        f"Use a lower upper bound: in {dtype}, 1 - {small} is below 1, but 1 - {lost} is 1.{logits}",
    )


def _log_sum_exp(computed: Computed, x: TensorEvent) -> Explanation | None:
    """Explains a logarithm of 0 if the 0 is proven to be a sum of exponentials of only -Inf, or of no elements."""
    output, terms = computed.output, _terms_of_exponentials(computed, x)
    if terms is not None and terms.size == 0:
        return Explanation("Log-sum-exp of no elements: the input is empty, and the logarithm of 0 is -Inf.", EMPTY)
    if not _sums_rows_of_mask(computed, terms):
        return None
    rows = "the only row" if output.size == 1 else f"{output.num_neg_inf or 0:,} of {output.size or 0:,} rows"
    hold = "holds" if output.num_neg_inf == 1 else "hold"
    return Explanation(
        f"Log-sum-exp of -Inf alone: {rows} {hold} nothing else, and the log-sum-exp of such a row is -Inf.",
        ROW_OF_MASK,
    )


def _terms_of_exponentials(computed: Computed, total: TensorEvent) -> TensorEvent | None:
    """Returns the exponentials that a tensor sums, or None if the tensor is not a sum of exponentials."""
    terms = computed.made_from(total).get(0) if computed.made_by(total) == "Sum" else None
    return terms if terms is not None and computed.made_by(terms) == "Exp" else None


def _sums_rows_of_mask(computed: Computed, terms: TensorEvent | None) -> bool:
    """Returns whether a sum of exponentials is certainly 0 only where all their arguments are -Inf."""
    if IN_LOGSUMEXP in computed.library_functions():
        return True  # tf.reduce_logsumexp subtracts the maximum of each row, so the largest term of other rows is 1
    x = None if terms is None else computed.made_from(terms).get(0)
    if terms is None or x is None or not x.num_neg_inf:
        return False
    return terms.num_zero == x.num_neg_inf and not terms.num_subnormal


def repair_of_log(computed: Computed, x: TensorEvent) -> str:
    """Returns the fix for a logarithm of 0 or its gradient. The fix depends on the op that made the argument."""
    if computed.is_p_log_p():
        return _XLOGY
    takers = frozenset() if computed.is_gradient else frozenset(types[0] for types in computed.takers())
    if takers and takers <= _DIAGONALS:
        return _OF_DIAGONAL
    maker = x
    for _ in range(_MAX_MOVES):
        index = MOVES.get(computed.made_by(maker) or "")
        source = None if index is None else computed.made_from(maker).get(index)
        maker = maker if source is None else source
    made_by = computed.made_by(maker) or ""
    exponentials = _terms_of_exponentials(computed, maker)
    if _sums_rows_of_mask(computed, exponentials):
        return ROW_OF_MASK
    if exponentials is not None:
        return LOGSUMEXP
    if _sums_weighted_exponentials(computed, maker):
        return _WEIGHTED_LOGSUMEXP
    terms = computed.made_from(maker)
    if made_by == "Sub" and 1 in terms and computed.made_by(terms[1]) == "Sigmoid":
        return "Use tf.math.log_sigmoid(-x) in place of log(1 - sigmoid(x))."
    if made_by == "Sub" and 0 in terms and computed.made_by(terms[0]) == "Exp":
        return _EXPM1
    repairs = {**_STABLE_LOG, **_FROM_LOGITS} if computed.is_in_loss else _STABLE_LOG
    default = _LOG_OF_MASK if _holds_only_logarithms_of_0_and_1(computed.output) else _ABOVE_0
    repair = repairs.get(made_by, default)
    if repair in (_ABOVE_0, _STABLE_LOG["Sub"]) and computed.has_log_of_complement():
        epsilon = _OF_COMPLEMENT.get(x.dtype or "", "1e-6")
        return f"{_BOTH_LOGARITHMS} tf.clip_by_value(x, {epsilon}, 1 - {epsilon})."
    if repair == _ABOVE_0 and computed.divides_by_argument():
        return _LOG_AND_DIVISOR
    return repair


def _sums_weighted_exponentials(computed: Computed, total: TensorEvent) -> bool:
    """Returns whether a tensor is a sum of products of positive numbers with exponentials of finite numbers."""
    terms = computed.made_from(total).get(0) if computed.made_by(total) in _SUMS else None
    to_follow, has_exponential = [] if terms is None else [terms], False
    for _ in range(_MAX_FACTORS):
        if not to_follow:
            return has_exponential
        factor = to_follow.pop()
        taken, made_by = computed.made_from(factor), computed.made_by(factor)
        if is_finite_exponential(computed, factor):
            has_exponential = True
        elif factor.num_pos_finite == factor.size:
            continue
        elif (made_by in _PRODUCTS and len(taken) == 2) or (made_by in RESHAPES and taken):
            to_follow += taken.values()
        else:
            return False
    return False


def _holds_only_logarithms_of_0_and_1(log: TensorEvent) -> bool:
    finite = (log.num_neg_finite or 0) + (log.num_pos_finite or 0)
    return bool(log.num_neg_inf and log.num_zero) and finite + (log.num_pos_inf or 0) + (log.num_nan or 0) == 0
