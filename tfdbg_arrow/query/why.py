"""Why an op made a bad value, in one sentence, where the counts prove it.

A rule looks at what one op took and gave. It speaks only where nothing else could have happened: where an
overflow and a division by zero would give the same counts, it is silent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tfdbg_arrow.query.recorded import TensorEvent

Inputs = Mapping[int, TensorEvent]
"""The recorded inputs of an op, by index."""
Rule = Callable[[TensorEvent, Inputs], str | None]

_LARGEST = {
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float32": 3.4028234663852886e38,
    "float64": 1.7976931348623157e308,
}


def explain(event: TensorEvent, inputs: Inputs) -> str | None:
    """Returns one sentence on why an op made an infinity or a NaN, or None where the counts prove nothing.

    Args:
        event: What the op gave.
        inputs: What it took, as far as it was recorded.
    """
    if event.op_type is None:
        return _from_outside(event)
    if (
        event.dtype is None
        or event.dtype.startswith("complex")
        or event.num_nan is None
        or event.num_pos_inf is None
        or event.num_neg_inf is None
    ):
        return None
    rule = _RULES.get(event.op_type)
    return None if rule is None else rule(event, inputs)


def _from_outside(event: TensorEvent) -> str | None:
    if not event.has_inf_or_nan:
        return None
    return f"It came into the recorded program bad: {_bad_text(event)} in a tensor that no recorded op made."


def _log(event: TensorEvent, inputs: Inputs) -> str | None:
    x = inputs.get(0)
    if x is None or not _is_counted(x):
        return None
    if event.num_neg_inf and x.num_zero and event.num_neg_inf == x.num_zero:
        return f"{event.op_type} of 0: {_of(x.num_zero, x)} are 0, and its logarithm is -Inf."
    if event.num_nan and not x.num_nan and event.num_nan == _negatives(x):
        return f"{event.op_type} of a negative number: {_of(_negatives(x), x)} are below 0, and have no logarithm."
    return None


def _log1p(event: TensorEvent, inputs: Inputs) -> str | None:
    x = inputs.get(0)
    if x is None or not _is_counted(x) or not _is_finite(x):
        return None
    if event.num_neg_inf and not event.num_nan:
        return f"{event.op_type} of -1: {_of(event.num_neg_inf, event)} got -Inf, which only an element of -1 gives."
    if event.num_nan:
        return f"{event.op_type} of a number below -1: {_of(event.num_nan, event)} have no logarithm."
    return None


def _sqrt(event: TensorEvent, inputs: Inputs) -> str | None:
    x = inputs.get(0)
    if x is None or not _is_counted(x):
        return None
    if event.num_nan and not x.num_nan and event.num_nan == _negatives(x):
        return f"{event.op_type} of a negative number: {_of(_negatives(x), x)} are below 0, and have no square root."
    return None


def _rsqrt(event: TensorEvent, inputs: Inputs) -> str | None:
    x = inputs.get(0)
    if x is None or not _is_counted(x):
        return None
    if _infs(event) and x.num_zero and _infs(event) == x.num_zero:
        return f"{event.op_type} of 0: {_of(x.num_zero, x)} are 0, and 1 / sqrt(0) is infinite."
    return _sqrt(event, inputs)


def _reciprocal(event: TensorEvent, inputs: Inputs) -> str | None:
    x = inputs.get(0)
    if x is None or not _is_counted(x):
        return None
    if _infs(event) and x.num_zero and _infs(event) == x.num_zero:
        return f"Division by 0: {_of(x.num_zero, x)} are 0, and 1 / 0 is infinite."
    return None


def _divide(event: TensorEvent, inputs: Inputs) -> str | None:
    x, y = inputs.get(0), inputs.get(1)
    if x is None or y is None or not _is_counted(x) or not _is_counted(y):
        return None
    if not _is_finite(x) or not _is_finite(y):
        if event.num_nan and _infs(x) and _infs(y) and not x.num_nan and not y.num_nan and not y.num_zero:
            return "Inf / Inf: both the dividend and the divisor hold infinities, and their quotient is NaN."
        return None
    if event.num_nan:
        return f"0 / 0: the divisor has {_zeros(y)}, the dividend {_zeros(x)}, and 0 / 0 is NaN."
    if _infs(event) and y.num_zero and not x.num_zero:
        return f"Division by 0: {_of(y.num_zero, y)} of the divisor are 0, and no element of the dividend is."
    if _infs(event) and not y.num_zero:
        return f"Overflow: no divisor is 0, so {_of(_infs(event), event)} grew beyond {_largest(event)}."
    return None


def _add(event: TensorEvent, inputs: Inputs) -> str | None:
    x, y = inputs.get(0), inputs.get(1)
    if x is None or y is None or not _is_counted(x) or not _is_counted(y):
        return None
    if event.num_nan and not x.num_nan and not y.num_nan and _infs(x) and _infs(y):
        return "Inf - Inf: both operands hold infinities that cancel each other, and the result is NaN."
    return _overflow(event, inputs)


def _multiply(event: TensorEvent, inputs: Inputs) -> str | None:
    x, y = inputs.get(0), inputs.get(1)
    if x is None or y is None or not _is_counted(x) or not _is_counted(y):
        return None
    if event.num_nan and not x.num_nan and not y.num_nan:
        one, other = (x, y) if _infs(x) else (y, x)
        return f"Inf * 0: one factor holds {_infs(one):,} infinities, the other {_zeros(other)}, and Inf * 0 is NaN."
    return _overflow(event, inputs)


def _sum_of_products(event: TensorEvent, inputs: Inputs) -> str | None:
    known = [inputs.get(0), inputs.get(1)]
    if any(x is None or not _is_counted(x) or not _is_finite(x) for x in known):
        return None
    if event.num_nan:
        return "Overflow: the operands are finite, and a sum of their products ran over in both directions: Inf - Inf."
    return _overflow(event, inputs)


def _overflow(event: TensorEvent, inputs: Inputs) -> str | None:
    """All that went in is finite, so what came out infinite grew too large."""
    floats = [x for x in inputs.values() if _is_counted(x)]
    if not floats or len(floats) != len(inputs) or not all(map(_is_finite, floats)):
        return None
    if not _infs(event) or event.num_nan:
        return None
    largest = max((x.max_abs_finite for x in floats if x.max_abs_finite is not None), default=None)
    inputs_text = "the inputs are finite" if largest is None else f"the largest input is {largest:.6g}"
    return f"Overflow: {inputs_text}, and {_of(_infs(event), event)} are beyond {_largest(event)}."


def _exp(event: TensorEvent, inputs: Inputs) -> str | None:
    x = inputs.get(0)
    if x is None or not _is_counted(x) or not _is_finite(x) or not _infs(event):
        return None
    of = "" if x.max_finite is None else f" of up to {x.max_finite:.6g}"
    return f"Overflow: {event.op_type}{of} is beyond {_largest(event)} in {_of(_infs(event), event)}."


def _cast(event: TensorEvent, inputs: Inputs) -> str | None:
    x = inputs.get(0)
    if x is None or not _is_counted(x) or not _is_finite(x) or not _infs(event):
        return None
    largest = "" if x.max_abs_finite is None else f" of up to {x.max_abs_finite:.6g}"
    return f"Overflow: Cast from {x.dtype}{largest} to {event.dtype}, whose largest number is {_largest(event)}."


def _sqrt_grad(event: TensorEvent, inputs: Inputs) -> str | None:
    y, dy = inputs.get(0), inputs.get(1)
    if y is None or dy is None or not _is_counted(y) or not _is_counted(dy) or not _is_finite(dy) or y.num_nan:
        return None
    if not y.num_zero:
        return None
    if event.num_nan or (_infs(event) and not dy.num_zero):
        return f"The gradient of Sqrt at 0: {_of(y.num_zero, y)} of Sqrt are 0, and the slope there is infinite."
    return None


_RULES: dict[str, Rule] = {
    "Log": _log,
    "Log1p": _log1p,
    "Sqrt": _sqrt,
    "Rsqrt": _rsqrt,
    "Reciprocal": _reciprocal,
    "Inv": _reciprocal,
    "RealDiv": _divide,
    "Div": _divide,
    "Add": _add,
    "AddV2": _add,
    "Sub": _add,
    "Mul": _multiply,
    "Square": _overflow,
    "SquaredDifference": _overflow,
    "AddN": _overflow,
    "MatMul": _sum_of_products,
    "BatchMatMulV2": _sum_of_products,
    "Conv2D": _sum_of_products,
    "Exp": _exp,
    "Expm1": _exp,
    "Sinh": _overflow,
    "Cosh": _overflow,
    "Cast": _cast,
    "SqrtGrad": _sqrt_grad,
}


def _is_counted(event: TensorEvent) -> bool:
    """Whether its kinds were counted; not so in the modes that only say bad or not."""
    counts = (event.num_nan, event.num_pos_inf, event.num_neg_inf, event.num_zero, event.num_neg_finite)
    return all(count is not None for count in counts)


def _is_finite(event: TensorEvent) -> bool:
    return not event.has_inf_or_nan


def _infs(event: TensorEvent) -> int:
    return (event.num_neg_inf or 0) + (event.num_pos_inf or 0)


def _negatives(event: TensorEvent) -> int:
    return (event.num_neg_finite or 0) + (event.num_neg_inf or 0)


def _zeros(event: TensorEvent) -> str:
    return f"{event.num_zero or 0:,} zeros"


def _of(count: int | None, event: TensorEvent) -> str:
    return f"{count or 0:,} of {event.size or 0:,} elements"


def _largest(event: TensorEvent) -> str:
    largest = None if event.dtype is None else _LARGEST.get(event.dtype)
    return f"the largest {event.dtype}" + ("" if largest is None else f", {largest:.6g}")


def _bad_text(event: TensorEvent) -> str:
    names = (("NaN", event.num_nan), ("-Inf", event.num_neg_inf), ("+Inf", event.num_pos_inf))
    return " and ".join(f"{count:,} {name}" for name, count in names if count) or "an infinity or a NaN"
