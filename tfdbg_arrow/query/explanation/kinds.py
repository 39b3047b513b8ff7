"""Kinds of rule for elementwise functions, reductions, and ops that are bad for only one reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from tfdbg_arrow.query.explanation.computed import (
    Computed,
    Explanation,
    Inputs,
    Rule,
    VariableWrite,
    bad_text,
    elements,
    elements_are,
    in_sentence,
    infs,
    is_finite,
    is_real,
    largest_number,
    may_be_zero,
    num_infs,
    type_without_version,
    zeros,
)
from tfdbg_arrow.query.explanation.outside import FROM_OUTSIDE, READS_BYTES
from tfdbg_arrow.query.flow.decisions import SELECTS
from tfdbg_arrow.query.flow.extremes import MAXIMA, POOLS, holds_extreme, largest_of
from tfdbg_arrow.query.flow.search import rows_behind
from tfdbg_arrow.query.recorded import TensorEvent
from tfdbg_arrow.safe_text import number_of
from tfdbg_arrow.schema.op_traits import POLES, Trait, types_with

SOFTMAX = "Use tf.nn.softmax in place of the exponentials, their sum and the division."
"""The fix for a hand-written softmax over the last axis that overflows or divides by 0."""
SOFTMAX_OF_AXIS = SOFTMAX.replace(" in place", ", with the axis of the sum, in place", 1)
"""The fix for a hand-written softmax over an unknown axis."""
OF_NEGATIVE = (
    "Apply tf.nn.softplus to the {}: all of its elements are below 0, and with tf.maximum, none of them would get a "
    "gradient."
)
"""The fix for an argument that must not be negative, if it is trained and all of its elements are negative."""
EMPTY = "Check for an empty batch or mask before the reduction, and leave it out."
"""The fix for a reduction of no elements."""
NO_EPSILON = (
    "Do not add an epsilon to the difference: TensorFlow's optimizer can add it to a larger term, where it is rounded "
    "away."
)
"""A sentence to add to the fix for a difference that is 0."""
_LARGER_EPSILON = {
    "float16": "Add a larger epsilon, such as 1e-3: float16 rounds a number below 3e-08 to 0, and 1 / x is infinite "
    "below 1.5e-05.",
}
"""The fix for an epsilon that was rounded to 0, by dtype. In wider dtypes, an added 0 is not a rounded epsilon."""
_ROUNDED_TO_0 = 2.0**-25
"""The largest number that float16 rounds to 0."""
ADDS = ("Add", "AddV2")
"""Types of ops that add two tensors."""
PLUS_CONSTANT = "+ constant"
"""The type that `Computed.takers` gives an op that adds a constant."""
OVERFLOW = (
    "Scale the operands (data or weights) down, or compute in a wider dtype. In training, lower the learning rate or "
    "clip the gradients."
)
"""The fix for an overflow if no more specific cause is known."""
OVERFLOW_OF_GRADIENT = (
    "Scale the inputs and the loss down (if the program multiplies the loss by a scale, lower the scale), lower the "
    "learning rate, or compute in a wider dtype. Clipping this gradient comes too late, as it is not finite any more."
)
_OVERFLOW_OF_UPDATE = (
    "Lower the learning rate, clip the gradients by value (tf.clip_by_value, or clipvalue in Keras), or scale the "
    "inputs and the loss down."
)
_LARGE = "1e9"
"""The large number that fixes suggest."""
_OVERFLOW_OF_NORM = (
    "Clip by value (tf.clip_by_value, or clipvalue in Keras), which takes no squares, or scale the inputs and the loss "
    "down. Clipping by a norm does not help, as the norm itself overflows."
)
OVERFLOW_OF_MASK = (
    f"Mask with a large negative number such as -{_LARGE}, which leaves room for the sum of two masks. The lowest "
    "number of a dtype leaves none."
)
"""The fix for an overflow if the program masks elements with very low numbers."""
NEGATIVE_VARIANCE = (
    "The variance is negative, and an epsilon does not repair that. If it is a moving variance, check what was "
    "assigned to it or loaded, and that the momentum is from 0 to 1. If it is computed as E[x^2] - E[x]^2, use "
    "tf.nn.moments: that difference can be negative by rounding."
)
"""The fix for a normalization that takes the root of a negative variance."""
BEFORE_TRAINING = {
    OVERFLOW: "Scale the operands (data or weights) down, or compute in a wider dtype.",
    OVERFLOW_OF_GRADIENT: (
        "Scale the inputs and the loss down (if the program multiplies the loss by a scale, lower the scale), or "
        "compute in a wider dtype. Clipping this gradient comes too late, as it is not finite any more."
    ),
    _OVERFLOW_OF_UPDATE: (
        "Clip the gradients by value (tf.clip_by_value, or clipvalue in Keras), or scale the inputs and the loss down."
    ),
}
"""The same fixes before the first update of the weights, when the learning rate had no effect yet."""
OVERFLOW_AFTER_STEPS = (
    "Lower the learning rate or clip the gradients, if numbers grew from step to step. Otherwise, scale the operands "
    "(data or weights) down, or compute in a wider dtype."
)
"""The fix for an overflow in a later step of a training."""
OVERFLOW_OF_SAMPLES = (
    "Scale the operands (data or weights) down, or compute in a wider dtype. If numbers grew from step to step, lower "
    "the learning rate or clip the gradients."
)
"""The fix for an overflow in a later step of a training, if at most half of the samples of the batch are bad."""
OVERFLOW_OF_BATCH = (
    "Lower the learning rate or clip the gradients: as all samples of the batch overflow, the weights are the likely "
    "cause. Otherwise, scale the operands (data or weights) down, or compute in a wider dtype."
)
"""The fix for an overflow in a training, if every sample of the batch is bad."""
OVERFLOW_OF_DATA = (
    "Scale the inputs and the targets: pixels to the range from 0 to 1, other numbers to a mean of 0 and a standard "
    "deviation of 1. If an op still overflows, use smaller initial weights, lower the learning rate or clip the "
    "gradients."
)
"""The fix for an overflow in a training whose first loss was large."""
_KEEPS_ZEROS = frozenset({
    "BatchMatMulV2", "BatchMatMulV3", "BroadcastTo", "Cast", "Einsum", "ExpandDims", "GatherV2", "Identity", "MatMul",
    "Mean", "Mul", "Neg", "Reshape", "Squeeze", "StridedSlice", "Sum", "Transpose",
})  # fmt: skip
"""Types of ops that return 0 if all their inputs are 0, or if they multiply zeros by finite numbers."""
_KEEPS_ZEROS_OF_FIRST = frozenset({"RealDiv", "Square"})
"""Types of ops that return 0 for zeros in their first input."""
_KEEPS_EACH_ZERO = frozenset({
    "Abs", "BroadcastTo", "ExpandDims", "GatherV2", "Identity", "Neg", "Reshape", "Sqrt", "Squeeze", "StridedSlice",
    "Transpose",
})  # fmt: skip
"""Types of ops whose result is 0 only where their first input is 0."""
_CONSTANT_0 = (
    "Check how the program sets the divisor: it is 0 in every call, so with tf.math.divide_no_nan each quotient would "
    "be 0."
)
_WRITE_OF_0 = "Give the variable a value {} there{}. If it may be 0, {}"
_INTEGER_DIVISIONS = frozenset({"Div", "FloorDiv", "TruncateDiv"})
_GROWING = frozenset({"Add", "AddV2", "Mul", "Prod", "Sum"})
"""Types of ops that return a smaller number than their positive inputs only if the dtype overflows."""
_PRODUCTS = frozenset({"Mul", "Prod", "Square"})
_NARROW_INTEGERS = {"int8": "16 * 16", "int16": "256 * 256", "int32": "65536 * 65536"}
"""By dtype, a product that overflows to 0. Products of int64 are rarely so large."""
_RESET_TO_0 = "Use the variable before the call sets it to 0, or give it a value that is not 0 there."
MATRIX_PRODUCTS = types_with(Trait.MULTIPLIES_MATRICES)
RESHAPES = ("ExpandDims", "Identity", "Reshape", "Squeeze")
"""Types of ops that return the elements of their input in another shape."""
_MAX_STEPS = 20
"""The search for the source of a divisor's zeros examines at most this many tensors."""


def first_of(*rules: Rule) -> Rule:
    """Returns a rule that gives the first explanation of several rules."""
    return lambda computed: next((reason for rule in rules if (reason := rule(computed)) is not None), None)


@dataclass(frozen=True, kw_only=True)
class Domain:
    """An elementwise function that returns a NaN, or an infinity, only for an element outside a range.

    Attributes:
        of: A description of an element outside the range, such as `a negative number`.
        where: A description of where such an element is, such as `below 0`.
        repair: The fix.
        kind: The kind of bad output that only an element outside the range causes: `nan`, `inf` or `neg_inf`.
    """

    of: str
    where: str
    repair: str
    kind: str = "nan"

    def __call__(self, computed: Computed) -> Explanation | None:
        """Returns the explanation, or None if the counts prove nothing."""
        counted = computed.counted(0)
        if counted is None or not is_real(computed.output):
            return None
        output = computed.output
        created = {
            "nan": (output.num_nan or 0) - (counted[0].num_nan or 0),
            "inf": infs(output),
            "neg_inf": output.num_neg_inf or 0,
        }[self.kind]
        if created <= 0:
            return None
        result = {"nan": "NaN", "inf": "infinite", "neg_inf": "-Inf"}[self.kind]
        what = f"{computed.op} of {self.of}: {elements_are(created, counted[0])} {self.where}"
        return _with_overflow_of_integer(Explanation(f"{what}, and the result is {result}.", self.repair), computed)


def _with_overflow_of_integer(explanation: Explanation, computed: Computed) -> Explanation:
    """Extends an explanation if the argument is a negative integer, because the integer may have overflowed."""
    (x,) = computed.inputs.values() if len(computed.inputs) == 1 else (None,)
    integers = computed.integers_behind(x, "num_neg_finite") if x is not None and x.num_neg_finite else None
    if integers is None or integers.are_squares:
        return explanation
    return Explanation(
        f"{explanation.sentence} The program cast it from {integers.dtype}{integers.maker_text}.",
        f"If it should not be negative, check whether the {integers.dtype} overflowed: a number that becomes too large "
        f"turns negative. Compute in int64, or cast to a floating-point dtype first. Otherwise, "
        f"{in_sentence(explanation.repair)}",
    )


def _of_integer_0(explanation: Explanation, computed: Computed, *, index: int) -> Explanation | None:
    """Explains a 0 that was cast from integers, if the integers were divided or overflowed; otherwise returns None."""
    x, of = computed.inputs[index], "divisor" if index else "argument"
    integers = computed.integers_behind(x, "num_zero")
    if integers is None:
        return None
    was_cast = f"{explanation.sentence} The program cast the {of} from {integers.dtype}{integers.maker_text}"
    if integers.maker in _INTEGER_DIVISIONS:
        return Explanation(
            f"{was_cast}: the result is 0 if the dividend is smaller than the divisor.",
            "Keep the integer above 0, for example with tf.maximum(n, 1), or cast to a floating-point dtype before the "
            "division.",
        )
    if integers.dtype.startswith("uint") and integers.maker in _GROWING:
        overflow_of_integer = (
            f"If it should not be 0, check whether the {integers.dtype} overflowed: a number that becomes too large "
            "starts at 0 again."
        )
    elif integers.dtype in _NARROW_INTEGERS and integers.maker in _PRODUCTS:
        overflow_of_integer = (
            f"If no factor is 0, the {integers.dtype} overflowed: a product that becomes too large can turn 0, such as "
            f"{_NARROW_INTEGERS[integers.dtype]}."
        )
    else:
        return None
    return Explanation(
        f"{was_cast}.",
        f"{overflow_of_integer} Cast to a floating-point dtype first. Otherwise, {in_sentence(explanation.repair)}",
    )


@dataclass(frozen=True, kw_only=True)
class Pole:
    """An elementwise function that is infinite only at 0 and next to 0.

    Attributes:
        value: The function's value at 0, such as `the logarithm of 0 is -Inf`.
        repair: The fix.
        kind: The infinities that only a 0 causes: `inf` or `neg_inf`.
    """

    value: str
    repair: str
    kind: str = "inf"

    def __call__(self, computed: Computed) -> Explanation | None:
        """Returns the explanation, or None if the counts prove nothing."""
        counted = computed.counted(0)
        if counted is None:
            return None
        (x,), output = counted, computed.output
        created = (output.num_neg_inf or 0) if self.kind == "neg_inf" else infs(output)
        is_made = created > 0 or (not is_real(x) and bool(output.num_nan) and not x.num_nan)
        if is_made and x.num_zero:
            value = self.value if created else "for complex numbers, the result is NaN"
            sentence = f"{computed.op} of 0: {elements_are(x.num_zero, x)} 0, and {value}."
            return with_cause_of_zero(Explanation(sentence, self.repair), computed, index=0)
        if created and is_real(x):
            sentence = (
                f"{computed.op} of a number next to 0: {elements_are(created, x)} subnormal. "
                f"TensorFlow may treat such a number as 0, and the result is infinite."
            )
            return Explanation(sentence, self.repair)
        return None


def with_cause_of_zero(explanation: Explanation, computed: Computed, *, index: int) -> Explanation:
    """Returns the explanation of a pole, extended with the reason why the input is 0, if the reason is known.

    An added epsilon is lost if it rounds to 0 in this dtype, or if TensorFlow's optimizer added it to a part of the
    other term. A constant or a variable may have been 0 from the start.
    """
    x, of = computed.inputs[index], "divisor" if index else "argument"
    if computed.has_moved_constant(x):
        return Explanation(
            f"{explanation.sentence} The program adds a constant last to make this {of}. TensorFlow's optimizer adds "
            f"the constant to another term first, where rounding to {x.dtype} can lose it.",
            "Replace the added constant with tf.maximum(x, constant): TensorFlow's optimizer does not move a maximum.",
        )
    repair = _LARGER_EPSILON.get(x.dtype or "")
    if repair is not None and _has_lost_epsilon(computed, x):
        number = computed.added_number(index)
        added, is_0 = f"The program adds a number to make the {of}", "the number is 0"
        if number is not None and float(number) <= _ROUNDED_TO_0:
            added, is_0 = f"The program adds {number} to make the {of}", f"{number} is 0"
        return Explanation(f"{explanation.sentence} {added}, and {is_0} in {x.dtype}.", repair)
    if computed.is_gradient:
        return explanation
    constant = computed.constant(x) if index and x.num_zero == x.size else None
    if constant is not None:
        return Explanation(
            f"{explanation.sentence} The divisor {constant and f'{constant} '}is the constant 0.", _CONSTANT_0
        )
    write = None if computed.is_optimizer else _write_of_zeros(computed, x)
    if write is None:
        return _of_integer_0(explanation, computed, index=index) or explanation
    value = "above 0" if computed.op == "Log" else "that is not 0"
    update = ", or update it before it is used" if write.is_initial else ""
    return Explanation(
        f"{explanation.sentence} The {of} is 0 because of a variable that {write}.",
        _RESET_TO_0 if write.is_of_call else _WRITE_OF_0.format(value, update, in_sentence(explanation.repair)),
    )


def _has_lost_epsilon(computed: Computed, x: TensorEvent) -> bool:
    """Returns whether an epsilon that was added to a tensor, or to the argument of its root, is 0 in the dtype."""
    total = computed.chain(x, ("Sqrt", *RESHAPES))[-1]
    terms = computed.made_from(total) if total.op_type in ADDS else {}
    has_zero = len(terms) == 2 and any(term.size and term.num_zero == term.size == 1 for term in terms.values())
    return has_zero or _has_removed_sum(computed) or computed.adds_rounded_to_0(x)


def _write_of_zeros(computed: Computed, x: TensorEvent) -> VariableWrite | None:
    """Returns the last write to the variable whose zeros made a tensor 0, or None if no such variable is proven."""
    row: TensorEvent | None = x
    for _ in range(_MAX_STEPS):
        if row is None or not row.num_zero:
            return None
        write, made_by = computed.last_write(row), computed.made_by(row)
        if write is not None:
            return write
        taken = computed.made_from(row)
        with_zeros = [source for source in taken.values() if source.num_zero]
        if made_by in _KEEPS_EACH_ZERO:
            row = taken.get(0)
        elif made_by in SELECTS:
            row = with_zeros[0] if len(with_zeros) == 1 else None
        elif made_by in _KEEPS_ZEROS | _KEEPS_ZEROS_OF_FIRST and row.num_zero == row.size:
            is_of_first = row.op_type in _KEEPS_ZEROS_OF_FIRST and 0 in taken  # TensorFlow may run x / c as x * (1 / c)
            sources = [taken[0]] if is_of_first else with_zeros
            row = next((source for source in sources if source.num_zero == source.size), None)
        else:
            return None
    return None


def _has_removed_sum(computed: Computed) -> bool:
    """Returns whether TensorFlow's optimizer removed a sum before the op, as it removes a sum with the constant 0.

    The optimizer then also computed the cast of the constant in advance.
    """
    types = set(computed.program_ops) - {"Cast"}
    return computed.output.op_type in types and len(types) == 2 and not types.isdisjoint(ADDS)


def underflow(computed: Computed, zero: TensorEvent) -> str | None:
    """Returns a sentence that says which exponentials underflowed and made a tensor 0; None if this is not proven.

    The underflow is proven if all elements of the tensor are 0, all results of an exponential are 0, and all ops
    between the two return 0 for zeros. For a sum of exponentials, or of their products with positive numbers, one zero
    in the tensor is enough, because exponentials are not negative.
    """
    if zero.op_type == "Sum" and zero.num_zero:
        terms = computed.made_from(zero).get(0)
        if terms is not None and terms.num_zero and is_finite_exponential(computed, terms):
            return "The divisor sums exponentials, and where it is 0, all of them underflowed."
    for row in follow_zeros([zero], computed.made_from, computed.made_by, are_all_zero=True):
        if is_finite_exponential(computed, row):
            return f"The divisor is 0 because Exp underflowed: {elements_are(row.num_zero, row)} 0 in its result."
    return _underflow_of_products(computed, zero)


def _underflow_of_products(computed: Computed, zero: TensorEvent) -> str | None:
    """Returns the sentence for a sum of products of exponentials with positive numbers, or None."""
    total = computed.chain(zero, RESHAPES)[-1]
    if not zero.num_zero or computed.made_by(total) not in MATRIX_PRODUCTS:
        return None
    factors = list(computed.made_from(total).values())
    exponentials = [factor for factor in factors if factor.num_zero and is_finite_exponential(computed, factor)]
    others = [factor for factor in factors if factor not in exponentials]
    if not exponentials or not all(factor.num_pos_finite == factor.size for factor in others):
        return None
    return "The divisor sums products of exponentials, and where it is 0, all of them underflowed."


def is_finite_exponential(computed: Computed, row: TensorEvent) -> bool:
    """Returns whether a tensor is the exponential of finite numbers."""
    x = computed.made_from(row).get(0) if row.op_type == computed.made_by(row) == "Exp" else None
    return x is not None and is_finite(x)


@dataclass(frozen=True, kw_only=True)
class Overflow:
    """An op whose result is infinite only if the result is too large for the dtype.

    Attributes:
        repair: The fix.
        without: The infinite inputs that the rule ignores because the op makes them finite: `neg_inf`, or None.
    """

    repair: str
    without: str | None = None

    def __call__(self, computed: Computed) -> Explanation | None:
        """Returns the explanation, or None if the counts prove nothing."""
        output = computed.output
        if not infs(output) or output.num_nan or not computed.is_complete:
            return None
        if not all(self._is_harmless(event) for event in computed.inputs.values()):
            return None
        what = f"{elements_are(infs(output), output)} beyond {largest_number(output)}"
        return overflow(computed, f"Overflow in {computed.op}: {_largest_input(computed)}, and {what}.", self.repair)

    def _is_harmless(self, event: TensorEvent) -> bool:
        if self.without == "neg_inf":
            return event.num_nan == 0 and event.num_pos_inf == 0
        return is_finite(event)


def overflow(computed: Computed, sentence: str, repair: str) -> Explanation:
    """Returns the explanation of an overflow, extended with the cause of its large inputs, if the cause is known.

    Args:
        computed: The op that overflowed.
        sentence: The sentence that says which op overflowed.
        repair: The fix if the cause is not known.
    """
    for maker in computed.behind():
        cause = _extreme_of_nothing(maker) or (_scale_of_loss(maker) if computed.is_gradient else None)
        if cause is not None:
            return Explanation(f"{sentence} {cause.sentence}", cause.repair)
    if repair != OVERFLOW:
        return Explanation(sentence, repair)
    if computed.is_norm_of_gradient():
        return Explanation(
            f"{sentence} It is a part of the norm of a gradient, and the gradient is finite.", _OVERFLOW_OF_NORM
        )
    if computed.is_gradient:
        return Explanation(sentence, OVERFLOW_OF_GRADIENT)
    return Explanation(sentence, _OVERFLOW_OF_UPDATE if computed.is_optimizer else repair)


def _scale_of_loss(computed: Computed) -> Explanation | None:
    """Returns the explanation of a large scalar in a gradient: the program multiplies the loss by a large number."""
    output = computed.output
    is_of_product = output.op_type == computed.forward_type == "Mul" and output.shape == ()
    if not is_of_product or output.max_abs_finite is None:
        return None
    return Explanation(
        f"The gradient was computed from the scalar {output.max_abs_finite:.6g}, which is itself the gradient of a "
        "product of two scalars: the program multiplies the loss, or a part of it, by a large number.",
        "Lower the scale of the loss, or let keras.optimizers.LossScaleOptimizer find it.",
    )


def _extreme_of_nothing(computed: Computed) -> Explanation | None:
    """Explains a finite tensor that holds an extreme number of its dtype, because an op reduced no elements."""
    output, x = computed.output, computed.inputs.get(0)
    if x is None or not holds_extreme(output, x):
        return None
    is_max, is_pool = output.op_type in MAXIMA, output.op_type in POOLS
    is_counted = (output.min_finite if is_max else output.max_finite) is None
    num_made = output.num_neg_finite if is_max else output.num_pos_finite
    held = f"in {elements(num_made, output)} " if is_counted else ""
    sentence = f"An input was computed from the result of {computed.op}, which holds {held}{_extreme_text(output)}: "
    if is_pool:
        return Explanation(
            f"{sentence}{computed.op} returns it for a window of NaN, and its input holds {bad_text(x)}.",
            "Replace the NaN before the pooling, for example with tf.where(tf.math.is_nan(x), 0.0, x).",
        )
    others = " or only NaN" if x.num_nan else ""
    return Explanation(
        f"{sentence}{computed.op} returns it for a segment with no element{others}.",
        f"Replace the result of such a segment, {_FINITE_EXTREME}.",
    )


def of_maybe_large(explanation: Explanation, made: TensorEvent, place: str) -> Explanation:
    """Returns the explanation of an overflow that the numbers of another tensor may have caused.

    Args:
        explanation: The explanation of the overflow.
        made: The result of an op that reads bytes, or that returns an extreme number of its dtype for no elements.
        place: The layer or line of that op, or an empty text.
    """
    op = f"{type_without_version(made.op_type or '')}{f' at {place}' if place else ''}"
    if made.op_type in READS_BYTES:
        returns = f"reads bytes as numbers of {made.dtype}"
        repair = f"Check that the bytes are numbers of {made.dtype}, in the byte order that the program names."
    else:
        returns = f"returns {_extreme_text(made)}, for a segment or row with no element"
        repair = f"If a segment or row can be empty, replace its result, {_FINITE_EXTREME}."
    return Explanation(
        f"{explanation.sentence} Numbers of this size may come from {op}, which {returns}.",
        f"{repair} Otherwise, {in_sentence(explanation.repair)}",
    )


def _extreme_text(made: TensorEvent) -> str:
    """Returns the number that an op returns for no elements, such as `the lowest float32, -3.40282e+38`."""
    is_max = made.op_type in MAXIMA
    return f"the {'lowest' if is_max else 'largest'} {made.dtype}, {'-' if is_max else ''}{largest_of(made):.6g}"


def _largest_input(computed: Computed) -> str:
    magnitudes = [x.max_abs_finite for x in computed.inputs.values() if x.max_abs_finite is not None]
    return f"the largest magnitude in its inputs is {max(magnitudes):.6g}" if magnitudes else "its inputs are finite"


@dataclass(frozen=True, kw_only=True)
class FiniteGives:
    """An op that makes one kind of bad value from finite inputs for only one reason.

    Attributes:
        reason: The sentence, without the name of the op.
        repair: The fix.
        kind: `nan`, `inf` or `any`.
        slot: The output to which the rule applies; None means every output.
    """

    reason: str
    repair: str
    kind: str = "nan"
    slot: int | None = None

    def __call__(self, computed: Computed) -> Explanation | None:
        """Returns the explanation, or None if the counts prove nothing."""
        output = computed.output
        if not computed.inputs or not computed.has_finite_inputs or self.slot not in (None, output.output_slot):
            return None
        made = {"nan": output.num_nan, "inf": infs(output), "any": output.has_inf_or_nan}[self.kind]
        return Explanation(f"{computed.op}: {self.reason}", self.repair) if made else None


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """A reduction that is bad for an empty input.

    Attributes:
        value: The text about the result for an empty input, such as `0 / 0 is NaN`.
        repair: The fix.
        otherwise: The rule for an input with elements; None if all bad values of the result then come from the input.
    """

    value: str
    repair: str
    otherwise: Rule | None = None

    def __call__(self, computed: Computed) -> Explanation | None:
        """Returns the explanation, or None if the counts prove nothing."""
        counted = computed.counted(0)
        if counted is not None and counted[0].size == 0:
            return Explanation(f"{computed.op} of no elements: its input is empty, and {self.value}.", self.repair)
        return None if self.otherwise is None else self.otherwise(computed)


@dataclass(frozen=True, kw_only=True)
class GradientOfFunction:
    """The fused gradient of a function, whose inputs are the function's value and the incoming gradient.

    Attributes:
        function: The function.
        at_zero: The function's value for an argument of 0: `zero` or `inf`.
        repair: The fix.
    """

    function: str
    at_zero: str
    repair: str

    def __call__(self, computed: Computed) -> Explanation | None:
        """Returns the explanation, or None if the counts prove nothing."""
        counted = computed.counted(0, 1)
        if counted is None or counted[0].num_nan or counted[1].num_nan:
            return None
        y, gradient = counted
        at_zero = zeros(y) if self.at_zero == "zero" else infs(y)
        what = f"The gradient of {self.function}"
        if at_zero and (self.at_zero == "zero" or is_finite(gradient)):
            value = "0" if self.at_zero == "zero" else "infinite"
            sentence = (
                f"{what} at 0: {elements_are(at_zero, y)} {value} in its result, and the slope there is infinite."
            )
            return with_cause_of_zero(Explanation(sentence, self.repair), computed, index=0)
        if is_finite(y) and is_finite(gradient):
            sentence = f"{what} overflowed: {_largest_input(computed)}, and the slope next to 0 is too large."
            return Explanation(sentence, f"{self.repair} If there is one, use a larger one.")
        return None


@dataclass(frozen=True, kw_only=True)
class Product:
    """An op that multiplies two tensors, or a gradient by finite slopes. Such an op creates a NaN only from Inf * 0.

    Attributes:
        repair: The fix for an overflow.
    """

    repair: str

    def __call__(self, computed: Computed) -> Explanation | None:
        """Returns the explanation, or None if the counts prove nothing."""
        counted = computed.counted(0, 1)
        if counted is None or not computed.has_inputs_without_nan:
            return None
        if computed.output.num_nan:
            return inf_times_zero(computed, *counted)
        return Overflow(repair=self.repair)(computed)


def inf_times_zero(computed: Computed, x: TensorEvent, y: TensorEvent) -> Explanation | None:
    """Returns why a product of two tensors without NaN is NaN, or None if the counts prove nothing."""
    if not infs(x) and not infs(y):
        return None
    repair = _double_where(computed) if computed.is_gradient else _mask_input(computed)
    if infs(x) and infs(y):
        what = "both factors hold infinities, and an infinity met a 0"
    else:
        one, other = (x, y) if infs(x) else (y, x)
        repair = _finite_constant(computed) if one.op_type == "Const" or computed.is_literal(one) else repair
        few = "" if may_be_zero(other) and zeros(other) else ", but possibly numbers that TensorFlow treats as 0"
        what = f"one factor holds {num_infs(one)}, the other holds {number_of(zeros(other), 'zero')}{few}"
    where = "In a gradient, Inf * 0" if computed.is_gradient else "Inf * 0"
    return Explanation(f"{where}: {what}, and Inf * 0 is NaN.", repair)


def within_dtype(explanation: Explanation, computed: Computed) -> Explanation:
    """Returns the explanation. If 1e9 is infinite in a dtype of the infinities, the fix names 1e4 in place of 1e9."""
    infinite = filter(infs, computed.inputs.values())
    behind_casts = [uncast for row in infinite for uncast in computed.chain(row, ("Cast",))]
    narrowest = min([computed.output, *behind_casts], key=largest_of)
    repair = explanation.repair or ""
    if _LARGE not in repair or largest_of(narrowest) > float(_LARGE):
        return explanation
    limit = f"In {narrowest.dtype}, a number beyond {largest_of(narrowest):.6g}, such as -{_LARGE}, is infinite."
    return replace(explanation, repair=f"{repair.replace(_LARGE, '1e4')} {limit}")


def _mask_input(computed: Computed) -> str:
    """Returns the fix for Inf * 0 if an op made the infinity."""
    mask = "Mask the input of the op that made the infinity"
    return f"{mask}." if computed.has_gradients() else f"{mask}, {_NO_NAN_PRODUCT}"


def _finite_constant(computed: Computed) -> str:
    """Returns the fix for Inf * 0 if the program wrote the infinity."""
    if computed.is_gradient:
        return f"{_FINITE}."
    if computed.has_gradients():
        return f"{_FINITE}, or replace the infinity before the product: tf.where(mask, x, 0.0)."
    return f"{_FINITE}, {_NO_NAN_PRODUCT}"


def with_mask(explanation: Explanation, computed: Computed) -> Explanation:
    """Returns the explanation of a bad value. If only the gradient of the value does harm, the explanation says so."""
    gradient = computed.bad_gradient_of_masked()
    if gradient is None:
        return explanation
    line = computed.line_of_select()
    replaces = (
        "tf.where replaces the bad elements" if line is None else f"{line} replaces the bad elements with tf.where"
    )
    return Explanation(
        f"{explanation.sentence} {replaces} in the forward pass, but not in the gradient: "
        f"{type_without_version(gradient.op_type or 'a tensor')} returns {bad_text(gradient)} there.",
        _mask_earlier(computed) if computed.output.op_type in (None, *FROM_OUTSIDE) else _double_where(computed),
    )


def _mask_earlier(computed: Computed) -> str:
    """Returns the fix for bad data, or for an infinity that the program wrote, if tf.where replaces it too late."""
    if computed.is_literal(computed.output):
        return f"{_FINITE}."
    name = computed.outside_name()
    return (
        f"Replace the bad elements{'' if name is None else f' of {name}'} with tf.where before anything is computed "
        "from them, not only in the result: the unselected branch still has a gradient."
    )


def _double_where(computed: Computed) -> str:
    """Returns the fix for an op whose bad result tf.where replaces in the forward pass, but not in the gradient."""
    root = root_behind(computed)
    behind = None if root is None else computed.made_by(root)
    function = computed.forward_type or behind or (None if computed.is_gradient else computed.op)
    what = "the input of the function" if function is None else f"the input of {type_without_version(function)}"
    if root is not None and computed.forward_type is None and (place := computed.place_of(root)):
        what += f" in {place}" if place.startswith("the layer") else f" at {place}"
    if function in _DIVISIONS:
        what = "the divisor"
    elif function == computed.op and len(computed.inputs) > 1:
        what = f"the inputs of {function}"
    return f"Put tf.where around {what} as well: the unselected branch still has a gradient."


def root_behind(computed: Computed) -> TensorEvent | None:
    """If a root made the zeros at which an op is infinite, returns the result of the root; otherwise None.

    The slope of the root at 0 is infinite, too, so a `tf.where` after the root comes too late.
    """
    zero = computed.inputs.get(POLES.get(computed.output.op_type or "", -1))
    zeros_behind = follow_zeros([] if zero is None else [zero], computed.made_from, computed.made_by)
    return next((row for row in zeros_behind if computed.made_by(row) in _ROOTS), None)


def follow_zeros(
    rows: Iterable[TensorEvent],
    made_from: Callable[[TensorEvent], Inputs],
    made_by: Callable[[TensorEvent], str | None],
    *,
    are_all_zero: bool = False,
) -> Iterator[TensorEvent]:
    """Yields the given tensors that have zeros, and then the tensors from which the zeros came, nearest first.

    Args:
        rows: The tensors.
        made_from: Returns the recorded inputs of the op that made a tensor.
        made_by: Returns the type of the op that made a tensor.
        are_all_zero: Whether to leave out tensors that have other elements, too.
    """

    def with_zeros(taken: Iterable[TensorEvent]) -> Iterator[TensorEvent]:
        return (row for row in taken if row.num_zero and (row.num_zero == row.size or not are_all_zero))

    def sources(row: TensorEvent) -> Iterator[TensorEvent]:
        return with_zeros(made_from(row).values() if made_by(row) in _KEEPS_ZEROS else ())

    return rows_behind(with_zeros(rows), sources, limit=_MAX_STEPS)


_DIVISIONS = ("Div", "RealDiv")
_ROOTS = ("EuclideanNorm", "Pow", "Sqrt")
_FINITE_EXTREME = "for example with tf.where(tf.abs(y) < y.dtype.max, y, 0.0)"
_FINITE = "Use a large finite number of the same sign, such as 1e9, in place of the infinite one"
_NO_NAN_PRODUCT = "or use tf.math.multiply_no_nan(x, y), which returns 0 where y is 0."
