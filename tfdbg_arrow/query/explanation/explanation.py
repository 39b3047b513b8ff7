"""Explanation, and the facts about one op from which a rule makes an explanation."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tfdbg_arrow.query.recorded import TensorEvent

Inputs = Mapping[int, TensorEvent]
"""The recorded inputs of an op, by index."""

_LARGEST = {
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float32": 3.4028234663852886e38,
    "float64": 1.7976931348623157e308,
    "complex64": 3.4028234663852886e38,
    "complex128": 1.7976931348623157e308,
}
_GRADIENT = re.compile(r"(?:.*/)?(?:gradient_tape|gradients(?:_\d+)?)/")


@dataclass(frozen=True)
class Explanation:
    """Why an op made a bad value.

    Attributes:
        sentence: What happened, as far as the counts prove it.
        repair: The standard fix as a short instruction; None if there is none.
    """

    sentence: str
    repair: str | None = None


def _nothing(event: TensorEvent) -> Inputs:
    return {}


@dataclass(frozen=True, kw_only=True)
class Computed:
    """An output of one op, and its recorded inputs.

    Attributes:
        output: One of its outputs.
        inputs: Its recorded inputs.
        is_complete: Whether no other input can hold an infinity or a NaN.
        made_from: Returns the recorded inputs of the op that made a tensor.
        forward_type: For an op of a gradient, the type of the op whose gradient it computes; None if unknown.
        written_by: For a read of a variable, the type of the op that wrote the value; None if unknown.
        program_ops: The types of the program's ops that TensorFlow ran as this op; empty if it ran the op itself.
    """

    output: TensorEvent
    inputs: Inputs
    is_complete: bool = True
    made_from: Callable[[TensorEvent], Inputs] = field(default=_nothing)
    forward_type: str | None = None
    written_by: str | None = None
    program_ops: tuple[str, ...] = ()

    @property
    def op(self) -> str:
        """The type of the op, without the version that TensorFlow appends."""
        return re.sub(r"V\d$", "", self.output.op_type or "")

    @property
    def is_gradient(self) -> bool:
        """Whether the recording or the name of the op shows that it computes a gradient."""
        return self.forward_type is not None or _GRADIENT.match(self.output.op_name or "") is not None

    def counted(self, *indexes: int) -> tuple[TensorEvent, ...] | None:
        """Returns inputs whose kinds of element were counted, or None if one of them was not counted."""
        found = [self.inputs.get(index) for index in indexes]
        counted = tuple(event for event in found if event is not None and is_counted(event))
        return counted if len(counted) == len(indexes) else None

    @property
    def has_finite_inputs(self) -> bool:
        """Whether every input is known to be finite."""
        return self.is_complete and all(is_finite(event) for event in self.inputs.values())

    @property
    def has_inputs_without_nan(self) -> bool:
        """Whether no input holds a NaN, as far as all inputs are known."""
        return self.is_complete and all(is_counted(event) and not event.num_nan for event in self.inputs.values())


def is_counted(event: TensorEvent) -> bool:
    """Returns whether the kinds of its elements were counted. Some modes only record whether a tensor is bad."""
    counts = (event.num_nan, event.num_pos_inf, event.num_neg_inf, event.num_zero, event.num_neg_finite)
    return all(count is not None for count in counts)


def is_finite(event: TensorEvent) -> bool:
    """Returns whether it is known that no element is infinite or NaN."""
    return event.has_inf_or_nan is False


def is_real(event: TensorEvent) -> bool:
    """Returns whether its dtype is known and is not complex."""
    return event.dtype is not None and not event.dtype.startswith("complex")


def infs(event: TensorEvent) -> int:
    """Returns the number of infinities."""
    return (event.num_neg_inf or 0) + (event.num_pos_inf or 0)


def zeros(event: TensorEvent) -> int:
    """Returns the number of zeros."""
    return event.num_zero or 0


def may_be_zero(event: TensorEvent) -> bool:
    """Returns whether an op may treat an element as 0: TensorFlow's threads replace subnormal numbers with 0."""
    return bool(event.num_zero) or event.num_subnormal is None or event.num_subnormal > 0


def elements(count: int | None, event: TensorEvent) -> str:
    """Returns a number of elements, such as `2 of 3 elements`."""
    return "the only element" if event.size == 1 else f"{count or 0:,} of {event.size or 0:,} elements"


def elements_are(count: int | None, event: TensorEvent) -> str:
    """Returns a number of elements as the subject of a sentence, such as `2 of 3 elements are`."""
    return f"{elements(count, event)} {'is' if count == 1 else 'are'}"


def number_of(count: int | None, noun: str, plural: str | None = None) -> str:
    """Returns a number with its noun, such as `1 zero` or `2 zeros`."""
    return f"{count or 0:,} {noun if count == 1 else plural or noun + 's'}"


def num_infs(event: TensorEvent) -> str:
    """Returns the number of infinities, such as `1 infinity`."""
    return number_of(infs(event), "infinity", "infinities")


def largest_of(event: TensorEvent) -> float:
    """Returns the largest number of a tensor's dtype, or infinity if it is not known."""
    return _LARGEST.get(event.dtype or "", float("inf"))


def largest_number(event: TensorEvent) -> str:
    """Returns the largest number of a tensor's dtype as text."""
    known = f", {largest_of(event):.6g}" if event.dtype in _LARGEST else ""
    return f"the largest {event.dtype or 'number'}{known}"


def bad_text(event: TensorEvent) -> str:
    """Returns the bad elements of a tensor as text, such as `1 NaN and 2 +Inf`."""
    names = (("NaN", event.num_nan), ("-Inf", event.num_neg_inf), ("+Inf", event.num_pos_inf))
    return " and ".join(f"{count:,} {name}" for name, count in names if count) or "an infinity or a NaN"
