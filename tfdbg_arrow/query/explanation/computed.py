"""Computed: the facts about an op that made a bad value. Rules derive an Explanation from these facts."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from math import isinf
from typing import Never, TypeVar

from tfdbg_arrow.query.displayed import Displayed
from tfdbg_arrow.query.flow.extremes import largest_of
from tfdbg_arrow.query.flow.graphs import NEVER_BAD
from tfdbg_arrow.query.recorded import TensorEvent
from tfdbg_arrow.safe_text import number_of

Inputs = Mapping[int, TensorEvent]
"""The recorded inputs of an op, by index."""

_T = TypeVar("_T")
MAX_CHAIN = 20
"""In a chain, at most this many ops are followed. The ops of a damaged graph can form a cycle."""
_VERSION = re.compile(r"V\d$")
_GRADIENT = re.compile(r"(?:.*/)?(?:gradient_tape|gradients(?:_\d+)?)/")


@dataclass(frozen=True)
class Explanation(Displayed):
    """Why an op made a bad value.

    Attributes:
        sentence: The facts that the counts prove.
        repair: The standard fix as a short instruction; None if there is no standard fix.
    """

    sentence: str
    repair: str | None = None


@dataclass(frozen=True)
class VariableWrite:
    """The last write to a variable before a read of the variable.

    Attributes:
        line: The user's line of the write, such as "`scale = tf.Variable(0.0)` at train.py:9".
        is_initial: Whether the program wrote to the variable only this once, when it made the variable.
        is_of_call: Whether the program wrote a constant to the variable in the same function call that read the
            variable.
    """

    line: str
    is_initial: bool
    is_of_call: bool

    def __str__(self) -> str:
        """Returns words that describe the variable's value. The words continue a sentence after `a variable that`."""
        return f"still holds its initial value, from {self.line}" if self.is_initial else f"{self.line} wrote last"


_COMPUTING = frozenset({
    "Add", "AddV2", "Div", "FloorDiv", "Mul", "Pow", "Prod", "Square", "Sub", "Sum", "TruncateDiv",
})  # fmt: skip
"""Types of ops that compute with integers."""


@dataclass(frozen=True, kw_only=True)
class Integers:
    """Integers that were cast to a tensor.

    Attributes:
        dtype: The dtype of the integers.
        maker: The type of the op that made the integers; None if it is not known.
        are_squares: Whether the integers are squares, or sums of squares. If so, only an overflow makes the integers
            negative.
    """

    dtype: str
    maker: str | None
    are_squares: bool

    @property
    def maker_text(self) -> str:
        """A clause that names the op if the op computes with numbers, such as `, which Mul returned`."""
        is_computed = self.maker is not None and self.maker in _COMPUTING
        return f", which {type_without_version(self.maker or '')} returned" if is_computed else ""


def _no(*about: object) -> bool:
    return False


def _unknown(*about: object) -> None:
    return None


def _empty(*about: object) -> frozenset[Never]:
    return frozenset()


def _no_inputs(event: TensorEvent) -> Inputs:
    return {}


def _no_place(event: TensorEvent) -> str:
    return ""


def _type_that_ran(event: TensorEvent) -> str | None:
    return event.op_type


@dataclass(frozen=True, kw_only=True)
class Computed:
    """An output of one op, and its recorded inputs.

    Each attribute that is not listed holds a method of the same name. The classes `BadTensorFacts`, `Surroundings`,
    `Uses`, `ForwardPass` and `Training` have these methods and describe them. The default methods know nothing.

    Attributes:
        output: An output of the op.
        inputs: The recorded inputs of the op.
        is_complete: Whether no input outside `inputs` can hold an infinity or a NaN.
        made_from: Returns the recorded inputs of the op that made a tensor.
        forward_type: For an op of a gradient, the type of the op whose gradient it computes; None if unknown.
        program_ops: The types of the program's ops that TensorFlow ran as this op; empty if TensorFlow ran the
            program's op.
        makers: Of the types in `program_ops`, those that may have made the bad elements, the most likely type first.
        later: Of the types in `program_ops`, those that may have made the NaN from the result of the most likely op.
        is_optimizer: Whether the op belongs to an optimizer.
        is_in_loss: Whether the op belongs to the loss of a library.
        is_loss: Whether the output is a scalar of the loss, and counts as an origin although an input may be infinite.
        is_literal: Returns whether all bad elements of a tensor are infinities that the program wrote itself, such as a
            mask.
        library_functions: Returns (module, function) for each library function that called the op. For an op of a
            gradient, returns the library functions that called the forward op.
    """

    output: TensorEvent
    inputs: Inputs
    is_complete: bool = True
    made_from: Callable[[TensorEvent], Inputs] = _no_inputs
    made_by: Callable[[TensorEvent], str | None] = _type_that_ran
    forward_type: str | None = None
    program_ops: tuple[str, ...] = ()
    makers: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    is_optimizer: bool = False
    is_in_loss: bool = False
    is_loss: bool = False
    behind: Callable[[], Iterable[Computed]] = _empty
    takers: Callable[[], frozenset[tuple[str, ...]]] = _empty
    is_p_log_p: Callable[[], bool] = _no
    has_log_of_complement: Callable[[], bool] = _no
    divides_by_argument: Callable[[], bool] = _no
    has_moved_constant: Callable[[TensorEvent], bool] = _no
    adds_rounded_to_0: Callable[[TensorEvent], bool] = _no
    last_write: Callable[[TensorEvent], VariableWrite | None] = _unknown
    constant: Callable[[TensorEvent], str | None] = _unknown
    integers_behind: Callable[[TensorEvent, str], Integers | None] = _unknown
    is_norm_of_gradient: Callable[[], bool] = _no
    bad_gradient_of_masked: Callable[[], TensorEvent | None] = _unknown
    line_of_select: Callable[[], str | None] = _unknown
    is_literal: Callable[[TensorEvent], bool] = _no
    pool_of_nan: Callable[[], TensorEvent | None] = _unknown
    masking_product: Callable[[], str | None] = _unknown
    softmax_of_mask: Callable[[], TensorEvent | None] = _unknown
    added_number: Callable[[int], str | None] = _unknown
    stored_in: Callable[[], str | None] = _unknown
    outside_name: Callable[[], str | None] = _unknown
    has_gradients: Callable[[], bool] = _no
    is_differentiated: Callable[[TensorEvent], bool] = _no
    is_before_training: Callable[[], bool] = _no
    shows_root: Callable[[], bool] = _no
    divides_by_result: Callable[[], bool] = _no
    is_summed_for_division: Callable[[], bool] = _no
    place_of: Callable[[TensorEvent], str] = _no_place
    library_functions: Callable[[], frozenset[tuple[str, str]]] = _empty

    @property
    def op(self) -> str:
        """The type of the op without the version that TensorFlow appends; for a fused op, the program's op types."""
        if self.program_ops and (self.output.op_type or "").startswith("_Fused"):
            return " + ".join(self.program_ops)
        return type_without_version(self.output.op_type or "")

    @property
    def is_gradient(self) -> bool:
        """Whether the recording or the name of the op shows that the op computes a gradient."""
        return self.forward_type is not None or _GRADIENT.match(self.output.op_name or "") is not None

    def counted(self, *indexes: int) -> tuple[TensorEvent, ...] | None:
        """Returns the inputs of the given indexes, or None if the elements of one of these inputs were not counted."""
        events = [self.inputs.get(index) for index in indexes]
        counted = tuple(event for event in events if event is not None and is_counted(event))
        return counted if len(counted) == len(indexes) else None

    def chain(self, row: TensorEvent, op_types: Container[str | None]) -> list[TensorEvent]:
        """Returns a tensor and its sources, nearest first. Follows the first inputs of ops of the given types."""
        return chain_of(row, lambda taker: self.made_from(taker).get(0) if self.made_by(taker) in op_types else None)

    @property
    def has_finite_inputs(self) -> bool:
        """Whether every input is known to be finite."""
        return self.is_complete and all(is_finite(event) for event in self.inputs.values())

    @property
    def has_inputs_without_nan(self) -> bool:
        """Whether every input is known to hold no NaN."""
        return self.is_complete and all(is_counted(event) and not event.num_nan for event in self.inputs.values())


def type_without_version(op_type: str) -> str:
    """Returns a type of op without its version, such as `Add` for AddV2."""
    return _VERSION.sub("", op_type)


def is_counted(event: TensorEvent) -> bool:
    """Returns whether a tensor's kinds of element were counted. Some modes record only whether a tensor is bad."""
    counts = (event.num_nan, event.num_pos_inf, event.num_neg_inf, event.num_zero, event.num_neg_finite)
    return all(count is not None for count in counts)


def is_finite(event: TensorEvent) -> bool:
    """Returns whether a tensor is known to hold neither an infinity nor a NaN, or cannot hold one."""
    return event.has_inf_or_nan is False or event.dtype in NEVER_BAD


def is_real(event: TensorEvent) -> bool:
    """Returns whether a tensor's dtype is known and is not complex."""
    return event.dtype is not None and not event.dtype.startswith("complex")


def infs(event: TensorEvent) -> int:
    """Returns the number of infinities."""
    return (event.num_neg_inf or 0) + (event.num_pos_inf or 0)


def zeros(event: TensorEvent) -> int:
    """Returns the number of zeros."""
    return event.num_zero or 0


def chain_of(start: _T, source_of: Callable[[_T], _T | None]) -> list[_T]:
    """Returns a start, its source, the source of its source, and so on: at most MAX_CHAIN items."""
    chain = [start]
    while len(chain) < MAX_CHAIN and (source := source_of(chain[-1])) is not None:
        chain.append(source)
    return chain


def holds_only_neg_inf(row: TensorEvent) -> bool:
    """Returns whether a tensor holds -Inf and no other bad value."""
    return bool(row.num_neg_inf) and row.num_pos_inf == 0 and row.num_nan == 0


def may_be_zero(event: TensorEvent) -> bool:
    """Returns whether an op may treat an element as 0: TensorFlow's threads replace subnormal numbers with 0."""
    if not event.num_neg_finite and not event.num_pos_finite:
        return bool(event.num_zero)
    return bool(event.num_zero) or event.num_subnormal is None or event.num_subnormal > 0


def elements(count: int | None, event: TensorEvent) -> str:
    """Returns a number of elements, such as `2 of 3 elements`."""
    return "the only element" if event.size == 1 else f"{count or 0:,} of {event.size or 0:,} elements"


def elements_are(count: int | None, event: TensorEvent) -> str:
    """Returns a number of elements as the subject of a sentence, such as `2 of 3 elements are`."""
    return f"{elements(count, event)} {'is' if count == 1 else 'are'}"


def num_infs(event: TensorEvent) -> str:
    """Returns the number of infinities, such as `1 infinity`."""
    return number_of(infs(event), "infinity", "infinities")


def largest_number(event: TensorEvent) -> str:
    """Returns the largest number of a tensor's dtype as text."""
    number = "" if isinf(largest_of(event)) else f", {largest_of(event):.6g}"
    return f"the largest {event.dtype or 'number'}{number}"


def bad_text(event: TensorEvent) -> str:
    """Returns the bad elements of a tensor as text, such as `1 NaN and 2 +Inf`."""
    names = (("NaN", event.num_nan), ("-Inf", event.num_neg_inf), ("+Inf", event.num_pos_inf))
    return " and ".join(f"{count:,} {name}" for name, count in names if count) or "an infinity or a NaN"


def softmax_of_mask_text(computed: Computed) -> str:
    """Returns a sentence about the softmax that made NaN of a row of -Inf, after a space; "" if there is none."""
    softmax = computed.softmax_of_mask()
    if softmax is None:
        return ""
    at = "" if softmax.first_bad_place is None else f" (the first NaN is at {list(softmax.first_bad_place)})"
    return f" {softmax.op_type} makes NaN{at} of a row that holds only -Inf."


def in_sentence(repair: str | None) -> str:
    """Returns a fix, written so that it can continue a sentence."""
    text = repair or ""
    return text[:1].lower() + text[1:]


Rule = Callable[[Computed], Explanation | None]
"""Returns the explanation of a bad value, or None if the counts prove nothing."""
