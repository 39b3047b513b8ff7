"""Kinds of rule for sums, products, quotients, powers, softmax and cross entropy."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log

from tfdbg_arrow.query.explanation.computed import (
    Computed,
    Explanation,
    elements,
    elements_are,
    infs,
    is_counted,
    is_finite,
    is_real,
    may_be_zero,
    num_infs,
    zeros,
)
from tfdbg_arrow.query.explanation.kinds import (
    NO_EPSILON,
    OF_NEGATIVE,
    RESHAPES,
    SOFTMAX,
    SOFTMAX_OF_AXIS,
    Overflow,
    overflow,
    root_behind,
    underflow,
    with_cause_of_zero,
)
from tfdbg_arrow.query.flow.extremes import largest_of
from tfdbg_arrow.query.recorded import TensorEvent
from tfdbg_arrow.safe_text import number_of

ORIGIN_OF_INFINITY = "Look for the op that made the infinities: tfdbg-arrow first-nonfinite --kinds inf."
_WRITTEN_INFINITY = (
    "The program wrote the infinities itself: use a large number such as 1e9 in their place, or replace infinite "
    "operands before this op, for example with tf.where(tf.math.is_finite(x), x, 0.0)."
)
_FINITE_MASK = "Mask with a large negative number such as -1e9 in place of -Inf."
_LOGSUMEXP_OF_MASK = (
    "Mask with a large negative number such as -1e9 in place of -Inf. For a log-sum-exp, tf.reduce_logsumexp takes "
    "-Inf, but its gradient is NaN for a row that holds nothing else."
)
ROW_OF_MASK = "Mask with a large negative number such as -1e9, or leave one element of each row unmasked."
"""The fix for a row that holds only -Inf."""
_NEAR_ZERO = "Keep the divisor away from 0, for example with tf.maximum or an epsilon, or scale the dividend down."
_NO_NAN = "Use tf.math.divide_no_nan, or a divisor that is never 0."
_NO_NAN_TWICE = "Use tf.math.divide_no_nan, also where the program divides by the sum of this quotient and another one."
_NO_NAN_OR_LARGE = (
    "Use tf.math.divide_no_nan, which returns 0 there, or divide by tf.maximum(x, {}) if the quotient has to be large."
)
"""The fix for a number other than 0 that is divided by 0."""
_BEFORE_ROOT_IN_DIVISOR = (
    "The divisor is computed with a root: before it, add an epsilon, as in tf.sqrt(tf.reduce_sum(tf.square(x)) + {}) "
    "for a norm. "
)
_NO_NAN_AND_ROOT = {
    "Sqrt": "tf.math.divide_no_nan helps too, but not if XLA compiles the function: there, the gradient of the root at "
    "0 is NaN.",
    "EuclideanNorm": "tf.math.divide_no_nan is not enough: the gradient of tf.math.reduce_euclidean_norm at 0 is NaN.",
}
"""Whether tf.math.divide_no_nan helps, by type of the op that computes the root."""
_ALSO_DIVIDES = (
    "tf.math.divide_no_nan is not enough: it returns 0, and the program divides by the quotient or takes its logarithm."
)
_UNDERFLOW = (
    "Compute with logarithms (tf.reduce_logsumexp in place of sums of exponentials), or scale the argument of the "
    "exponential down."
)
_CLIP_BELOW = (
    "Clip the argument of the exponential from below, for example with tf.maximum(x, {:.1f}): this limit leaves room "
    "for squares and products of the quotient."
)
STEP_COUNTER = "The counter of steps begins at 0. Use step + 1, or tf.maximum(step, 1)."
"""The fix for a division by 0 in the first step of an optimizer or a schedule."""
_AVERAGE = (
    "Update the average and its counter of steps before the division, as both are still 0, or use "
    "tf.math.divide_no_nan."
)
_ONE_SAMPLE = (
    "Use tf.math.divide_no_nan, or leave out batches of one sample (such as with drop_remainder=True): their "
    "variance is 0."
)
_AWAY_FROM_0 = "Keep the base away from 0: add an epsilon or use tf.maximum."
_POWER = (
    f"{_AWAY_FROM_0} To get 0 for a base of 0, such as the degree of a node without neighbors, use tf.where(x > 0, "
    "tf.maximum(x, epsilon) ** p, 0.0)."
)


@dataclass(frozen=True, kw_only=True)
class Sums:
    """An op that adds or multiplies many terms: elements of one tensor, several tensors, or products.

    Attributes:
        repair: The fix for an overflow.
        of: `terms` if the op only adds, `products` if it adds products, `factors` if it only multiplies.
    """

    repair: str
    of: str = "terms"

    def __call__(self, computed: Computed) -> Explanation | None:
        """Returns the explanation, or None if the counts prove nothing."""
        if not computed.inputs or not computed.has_inputs_without_nan:
            return None
        if not computed.output.num_nan:
            return Overflow(repair=self.repair)(computed)
        if computed.has_finite_inputs:
            then = {
                "terms": "partial sums reached +Inf and -Inf, and Inf - Inf is NaN",
                "products": "partial sums reached +Inf and -Inf, and Inf - Inf is NaN",
                "factors": "a partial product reached infinity and met a 0, and Inf * 0 is NaN",
            }[self.of]
            return overflow(computed, f"Overflow in {computed.op}: its inputs are finite, but {then}.", self.repair)
        held = sum(infs(event) for event in computed.inputs.values())
        cancelled = elements(computed.output.num_nan, computed.output)
        return Explanation(
            {
                "terms": f"Inf - Inf: {_inputs_hold(computed, held)}. In {cancelled}, infinities cancel each other, "
                "and Inf - Inf is NaN.",
                "products": f"Inf * 0 or Inf - Inf: {_inputs_hold(computed, held)}, and a sum of products is NaN if "
                "an infinity meets a 0 or an infinity of the opposite sign.",
                "factors": f"Inf * 0: {_inputs_hold(computed, held)}, and an infinity met a 0.",
            }[self.of],
            self._repair_of_infinities(computed),
        )

    def _repair_of_infinities(self, computed: Computed) -> str:
        infinite = [event for event in computed.inputs.values() if infs(event)]
        is_written = all(map(computed.is_literal, infinite))
        if any(event.num_pos_inf for event in infinite):
            return _WRITTEN_INFINITY if is_written else ORIGIN_OF_INFINITY
        if _is_in_logsumexp(computed):
            return _LOGSUMEXP_OF_MASK
        return _FINITE_MASK if is_written else f"{_FINITE_MASK} If no mask is -Inf: {ORIGIN_OF_INFINITY}"


def _is_in_logsumexp(computed: Computed) -> bool:
    """Returns whether an op subtracts a tensor's maximum from the tensor, and the program then sums exponentials."""
    x, maximum = computed.inputs.get(0), computed.inputs.get(1)
    if x is None or maximum is None or (computed.op, computed.made_by(maximum)) != ("Sub", "Max"):
        return False
    of = computed.made_from(maximum).get(0)
    is_of_x = of is not None and of.event_index == x.event_index
    return is_of_x and computed.takers() == {("Exp",), ("Exp", "Sum")}


def _inputs_hold(computed: Computed, count: int) -> str:
    inputs = "input holds" if len(computed.inputs) == 1 else "inputs hold"
    return f"the {inputs} {number_of(count, 'infinity', 'infinities')}"


@dataclass(frozen=True, kw_only=True)
class Division:
    """A quotient of two tensors.

    Attributes:
        is_zero_safe: Whether the result is 0 for a divisor of 0.
        repair: The fix for an overflow.
    """

    repair: str
    is_zero_safe: bool = False

    def __call__(self, computed: Computed) -> Explanation | None:
        """Returns the explanation, or None if the counts prove nothing."""
        counted = computed.counted(0, 1)
        if counted is None or any(event.num_nan for event in counted):
            return None
        x, y = counted
        if computed.output.num_nan:
            return self._nan(computed, x, y)
        if not is_finite(x) or not is_finite(y):
            return None
        if self.is_zero_safe:
            return Overflow(repair=self.repair)(computed)
        if y.num_zero:
            what = "the divisor is 0" if y.size == 1 else f"{elements_are(y.num_zero, y)} 0 in the divisor"
            sentence = f"Division by 0: {what}, and the quotient is infinite."
            return _by_zero(computed, _or_nan(sentence, y))
        sentence = (
            f"Overflow in {computed.op}: no divisor is 0, but a divisor near 0 or a large dividend makes "
            f"{elements(infs(computed.output), computed.output)} infinite."
        )
        return Explanation(sentence, _NEAR_ZERO)

    def _nan(self, computed: Computed, x: TensorEvent, y: TensorEvent) -> Explanation | None:
        is_by_zero = not self.is_zero_safe and may_be_zero(x) and may_be_zero(y)
        is_of_infs = bool(infs(x) and infs(y))
        if is_by_zero == is_of_infs:
            return None
        if is_of_infs:
            sentence = f"Inf / Inf: the dividend holds {num_infs(x)} and the divisor {num_infs(y)}; Inf / Inf is NaN."
            return Explanation(sentence, ORIGIN_OF_INFINITY)
        if not is_real(y) and not zeros(x):
            divisors = f"{elements_are(y.num_zero, y)} 0 in the divisor"
            return _by_zero(computed, f"Division by 0: {divisors}, and for complex numbers, the quotient is NaN.")
        where = "In a gradient, 0 / 0" if computed.is_gradient else "0 / 0"
        sentence = f"{where}: the divisor has {_zeros(y)}, the dividend {_zeros(x)}, and 0 / 0 is NaN."
        if infs(computed.output) and y.num_zero and is_finite(x):
            sentence += " Any other number divided by 0 is infinite."
        return _by_zero(computed, sentence)


def _by_zero(computed: Computed, sentence: str) -> Explanation:
    """Returns the explanation of a division by 0, extended with the cause of the zero if the cause is known."""
    dividend, divisor = computed.inputs[0], computed.inputs[1]
    exponential = underflow(computed, divisor)
    if exponential is None:
        if _is_bias_correction_of_step_0(computed, divisor):
            return Explanation(sentence, _AVERAGE if _is_initial_0(computed, dividend) else STEP_COUNTER)
        if _is_of_one_sample(computed):
            return Explanation(f"{sentence} Dividend and divisor are computed from a single sample.", _ONE_SAMPLE)
        return with_cause_of_zero(Explanation(sentence, _repair_of_divisor(computed)), computed, index=1)
    terms = computed.made_from(divisor).get(0) if divisor.op_type == "Sum" else None
    is_softmax = (
        terms is not None
        and terms.event_index == dividend.event_index
        and dividend.op_type == computed.made_by(dividend) == "Exp"
    )
    if terms is not None and is_softmax:
        repair = _softmax(terms, divisor)
    elif computed.made_by(computed.chain(divisor, RESHAPES)[-1]) == "Exp" and largest_of(divisor) < inf:
        # With a quarter of the largest exponent, a product of three such quotients is finite.
        repair = _CLIP_BELOW.format(-(log(largest_of(divisor)) // 4))
    else:
        repair = _UNDERFLOW
    return Explanation(f"{sentence} {exponential}", repair)


def _softmax(terms: TensorEvent, total: TensorEvent) -> str:
    """Returns the fix for a hand-written softmax, with the axis of the sum if the shapes show the axis."""
    shape, summed = terms.shape or (), total.shape
    axes = [i for i in range(len(shape)) if summed in (shape[:i] + shape[i + 1 :], (*shape[:i], 1, *shape[i + 1 :]))]
    if len(axes) != 1:
        return SOFTMAX_OF_AXIS
    (axis,) = axes
    return SOFTMAX if axis == len(shape) - 1 else SOFTMAX.replace(" in place", f" with axis={axis} in place", 1)


def _repair_of_divisor(computed: Computed) -> str:
    """Returns the fix for a divisor of 0, depending on the op that made the divisor and on the use of the quotient."""
    dividend, divisor = computed.inputs[0], computed.inputs[1]
    if computed.is_gradient:
        return _NO_NAN
    root = root_behind(computed)
    root_type = None if root is None or not computed.is_differentiated(root) else computed.made_by(root)
    if root_type in _NO_NAN_AND_ROOT:
        epsilon = "1e-4" if divisor.dtype == "float16" else "1e-12"
        return _BEFORE_ROOT_IN_DIVISOR.format(epsilon) + _NO_NAN_AND_ROOT[root_type]
    if not computed.divides_by_result():
        if computed.is_summed_for_division():
            return _NO_NAN_TWICE
        is_large = dividend.num_zero == 0 and divisor.num_neg_finite == 0 and is_real(divisor)
        return _NO_NAN_OR_LARGE.format("1e-4" if divisor.dtype == "float16" else "1e-7") if is_large else _NO_NAN
    operands = {"divisor": divisor, **({"dividend": dividend} if zeros(dividend) else {})}
    epsilon = "1e-4" if divisor.dtype == "float16" else "1e-7"
    is_below_0 = any(operand.num_neg_finite for operand in operands.values())
    how = "" if is_below_0 else f", for example with tf.maximum(x, {epsilon})"
    return f"Keep the {' and the '.join(operands)} away from 0{how}. {_ALSO_DIVIDES}"


def _is_bias_correction_of_step_0(computed: Computed, divisor: TensorEvent) -> bool:
    """Returns whether a divisor is 1 - beta ** step, and the step is 0."""
    power = computed.made_from(divisor).get(1) if computed.made_by(divisor) == "Sub" else None
    step = None if power is None or computed.made_by(power) != "Pow" else computed.made_from(power).get(1)
    return step is not None and step.shape == () and zeros(step) > 0


def _is_initial_0(computed: Computed, row: TensorEvent) -> bool:
    """Returns whether a tensor was read from a variable that still holds its initial value, which is 0 everywhere."""
    write = computed.last_write(row) if zeros(row) == row.size else None
    return write is not None and write.is_initial


def _is_of_one_sample(computed: Computed) -> bool:
    """Returns whether a quotient is 0 / 0 because its batch has one sample.

    In such a quotient, the divisor is a variance, a standard deviation, or the number of samples minus 1.
    """
    dividend, divisor = computed.inputs[0], computed.inputs[1]
    if computed.made_by(divisor) == "Sub":
        count = computed.made_from(divisor).get(0)
        is_count = count is not None and computed.made_by(count) == "Cast" and count.shape == ()
        return is_count and computed.made_by(dividend) == "Sum" and _combines_nothing(computed, dividend)
    mean = computed.chain(divisor, ("Sqrt", *RESHAPES))[-1]
    if computed.made_by(mean) != "Mean" or not _combines_nothing(computed, mean):
        return False
    return computed.made_by(computed.made_from(mean)[0]) in ("SquaredDifference", "Square")


def _combines_nothing(computed: Computed, reduced: TensorEvent) -> bool:
    """Returns whether a reduction over the first axis combines no elements because the axis has length 1."""
    terms = computed.made_from(reduced).get(0)
    return terms is not None and terms.shape is not None and terms.shape[:1] == (1,) and terms.size == reduced.size


def _or_nan(sentence: str, y: TensorEvent) -> str:
    return sentence if is_real(y) else sentence.replace("infinite", "infinite or NaN")


def _zeros(event: TensorEvent) -> str:
    text = number_of(zeros(event), "zero")
    return f"{text} and {number_of(event.num_subnormal, 'subnormal number')}" if event.num_subnormal else text


def remainder(computed: Computed) -> Explanation | None:
    """Explains a remainder, which is NaN only for a divisor of 0 or an infinite dividend, and is never infinite."""
    counted = computed.counted(0, 1)
    if counted is None or not computed.output.num_nan or any(event.num_nan for event in counted):
        return None
    x, y = counted
    if bool(infs(x)) == may_be_zero(y):
        return None
    if infs(x):
        return Explanation(
            f"{computed.op} of an infinity: the dividend holds {num_infs(x)}, and an infinity has no remainder.",
            ORIGIN_OF_INFINITY,
        )
    sentence = f"{computed.op} by 0: the divisor has {_zeros(y)}, and a division by 0 has no remainder."
    return Explanation(sentence, "Replace a divisor of 0 with 1 before the division, and mask the result.")


@dataclass(frozen=True, kw_only=True)
class Power:
    """x ** y."""

    repair: str

    def __call__(self, computed: Computed) -> Explanation | None:
        """Returns the explanation, or None if the counts prove nothing."""
        counted = computed.counted(0, 1)
        if counted is None or not is_real(computed.output) or any(event.num_nan for event in counted):
            return None
        x, y = counted
        if computed.output.num_nan:
            return self._nan(computed, x)
        if not is_finite(x) or not is_finite(y):
            return None
        if x.num_zero and y.size and y.num_neg_finite == y.size:
            return _negative_power_of_0(computed, x)
        if not may_be_zero(x) or not y.num_neg_finite:
            return Overflow(repair=self.repair)(computed)
        return None

    def _nan(self, computed: Computed, x: TensorEvent) -> Explanation | None:
        if not x.num_neg_finite:
            return None
        repair = "Keep the base above 0, for example with tf.maximum(x, 1e-7), or use an integer exponent."
        if x.num_neg_finite == x.size != 1 and computed.is_differentiated(computed.output):
            repair = f"{OF_NEGATIVE.format('base')} Or use an integer exponent."
        return Explanation(
            f"Pow of a negative number: {elements_are(x.num_neg_finite, x)} below 0, and a negative number "
            "to a power that is not an integer is NaN.",
            repair,
        )


def inverse_root_of_power(computed: Computed) -> Explanation | None:
    """Explains x ** -0.5, which TensorFlow runs as Rsqrt."""
    counted = computed.counted(0)
    if counted is None or "Pow" not in computed.program_ops or not infs(computed.output) or not counted[0].num_zero:
        return None
    return _negative_power_of_0(computed, counted[0])


def _negative_power_of_0(computed: Computed, x: TensorEvent) -> Explanation:
    what, repair = ("The gradient of Pow at 0", _AWAY_FROM_0) if computed.is_gradient else ("Pow of 0", _POWER)
    if computed.made_by(x) == "Sub":
        repair = repair.replace(
            _AWAY_FROM_0, f"Keep the base above 0, for example with tf.maximum(x, 1e-7). {NO_EPSILON}"
        )
    sentence = f"{what}: {elements_are(x.num_zero, x)} 0, and 0 to a negative power is infinite."
    return with_cause_of_zero(Explanation(sentence, repair), computed, index=0)


@dataclass(frozen=True, kw_only=True)
class ZeroTimes:
    """x * log(y), x * log1p(y) or x / y. Each of these ops returns 0 where x is 0.

    Attributes:
        pole: The value of y at which the second factor is infinite: 0 or -1.
        function: The second factor as text.
    """

    pole: int
    function: str

    def __call__(self, computed: Computed) -> Explanation | None:
        """Returns the explanation, or None if the counts prove nothing."""
        counted = computed.counted(0, 1)
        if counted is None or not all(is_counted(event) and is_finite(event) for event in counted):
            return None
        if not is_real(computed.output):
            return None
        x, y = counted
        repair = f"Keep the second argument of {computed.op} above {self.pole}, for example with tf.maximum."
        if computed.output.num_nan:
            what = f"{computed.op} of a number below {self.pole}"
            sentence = f"{what}: {self.function} is NaN there, and the first factor is not 0."
            return None if self.function == "1 / y" else Explanation(sentence, repair)
        if self.pole == 0 and y.num_zero and not may_be_zero(x):
            sentence = (
                f"{computed.op} at 0: {elements_are(y.num_zero, y)} 0 in the second argument, and the first is not 0."
            )
            return Explanation(sentence, repair)
        if self.pole == 0 and not may_be_zero(y):
            return Overflow(repair="Scale the inputs down, or clip the second argument away from 0.")(computed)
        return None


def softmax(computed: Computed) -> Explanation | None:
    """Explains a softmax over the last axis, or the logarithm of such a softmax."""
    counted = computed.counted(0)
    if counted is None or counted[0].num_nan or not computed.output.num_nan:
        return None
    return rows_of_logits(computed, counted[0])


def rows_of_logits(computed: Computed, logits: TensorEvent) -> Explanation | None:
    """Returns why a softmax over a row of logits without NaN is NaN, or None if two causes are possible."""
    may_be_masked = not logits.shape or (logits.num_neg_inf or 0) >= logits.shape[-1]
    if logits.num_pos_inf and not (logits.num_neg_inf and may_be_masked):
        held = f"{elements_are(logits.num_pos_inf, logits)} +Inf"
        return Explanation(f"{computed.op} of +Inf: {held} in the logits, and Inf - Inf is NaN.", ORIGIN_OF_INFINITY)
    if not logits.num_pos_inf and logits.num_neg_inf and may_be_masked:
        return Explanation(f"{computed.op} of -Inf alone: {_masked_rows(computed.output, logits)}", ROW_OF_MASK)
    return None


def _masked_rows(output: TensorEvent, logits: TensorEvent) -> str:
    """Returns a text about the -Inf in the logits, with the number of rows of only -Inf if the output shows it."""
    length = logits.shape[-1] if logits.shape and output.shape == logits.shape else 0
    # All elements of the result for such a row are NaN. A NaN of a cross entropy may have another cause.
    if not length or output.op_type not in ("LogSoftmax", "Softmax") or (output.num_nan or 0) % length:
        held = f"{elements_are(logits.num_neg_inf, logits)} -Inf"
        return f"{held} in the logits, and a row that holds nothing else gives 0 / 0."
    num_masked, num_rows = (output.num_nan or 0) // length, (logits.size or 0) // length
    rows = "the row" if num_rows == 1 else f"{num_masked:,} of {num_rows:,} rows"
    return f"{rows} of the logits {'holds' if num_masked == 1 else 'hold'} nothing else, which gives 0 / 0."


@dataclass(frozen=True, kw_only=True)
class CrossEntropy:
    """A softmax cross entropy. Output 0 is the loss, and output 1 is the gradient of the loss.

    Attributes:
        is_sparse: Whether a label is the number of a class and not a distribution.
    """

    is_sparse: bool

    def __call__(self, computed: Computed) -> Explanation | None:
        """Returns the explanation, or None if the counts prove nothing."""
        counted = computed.counted(0)
        if counted is None or counted[0].num_nan:
            return None
        (logits,), output = counted, computed.output
        if not _cannot_overflow(logits):
            return None
        if self.is_sparse and is_finite(logits) and output.num_nan:
            return Explanation(
                f"{computed.op}: a label is not a class. The logits are finite, so a label is below 0 or too large.",
                "Check that the labels run from 0 to the number of classes - 1.",
            )
        if output.output_slot == 0 and output.num_pos_inf and not output.num_nan:
            return self._masked_label(computed, logits)
        if not output.num_nan:
            return None
        if self.is_sparse or output.output_slot == 1:
            return rows_of_logits(computed, logits)
        return self._masked_product(computed, logits)

    def _masked_label(self, computed: Computed, logits: TensorEvent) -> Explanation | None:
        if not logits.num_neg_inf or logits.num_pos_inf or not (self.is_sparse or _are_shares(computed.inputs.get(1))):
            return None
        held = f"{elements_are(logits.num_neg_inf, logits)} -Inf"
        return Explanation(
            f"{computed.op}: the logit of a label is -Inf. In the logits, {held}, so the loss is +Inf.",
            "Do not mask the class of the label, or mask with a large negative number such as -1e9.",
        )

    def _masked_product(self, computed: Computed, logits: TensorEvent) -> Explanation | None:
        if logits.num_pos_inf or not logits.num_neg_inf or not logits.shape:
            return None
        if not _are_shares(computed.inputs.get(1)):
            return None
        held = f"{elements_are(logits.num_neg_inf, logits)} -Inf"
        alone, why = "", "Inf * 0 is NaN"
        if logits.num_neg_inf >= logits.shape[-1]:
            alone, why = ", or a row of nothing else", "Inf * 0 and 0 / 0 are NaN"
        return Explanation(
            f"{computed.op}: a masked logit times a label of 0{alone}. In the logits, {held}, and {why}.",
            "Mask with a large negative number such as -1e9 instead of -Inf.",
        )


def _are_shares(labels: TensorEvent | None) -> bool:
    """Returns whether labels are known to be finite and not negative, as probabilities are."""
    return labels is not None and is_finite(labels) and not labels.num_neg_finite


def _cannot_overflow(logits: TensorEvent) -> bool:
    """Returns whether no difference of two finite logits can be infinite. Unrecorded magnitudes count as small."""
    return logits.max_abs_finite is None or logits.max_abs_finite < largest_of(logits) / 4


def says_zero_is_bad(repair: str) -> bool:
    """Returns whether a fix says that the program also makes a bad value from a quotient of 0."""
    return repair.endswith(_ALSO_DIVIDES.partition(": ")[2])
