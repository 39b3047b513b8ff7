"""Computed: the facts about an op that made a bad value. Rules derive an Explanation from them."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from math import isinf
from typing import TypeVar

from tfdbg_arrow.query.displayed import Displayed
from tfdbg_arrow.query.flow.extremes import largest_of
from tfdbg_arrow.query.recorded import TensorEvent
from tfdbg_arrow.safe_text import number_of

Inputs = Mapping[int, TensorEvent]
"""The recorded inputs of an op, by index."""

_T = TypeVar("_T")
MAX_CHAIN = 20
"""Number of ops one after another that are followed. The ops of a damaged graph can form a cycle."""
_VERSION = re.compile(r"V\d$")
_GRADIENT = re.compile(r"(?:.*/)?(?:gradient_tape|gradients(?:_\d+)?)/")


@dataclass(frozen=True)
class Explanation(Displayed):
    """Why an op made a bad value.

    Attributes:
        sentence: What happened, as far as the counts prove it.
        repair: The standard fix as a short instruction; None if there is none.
    """

    sentence: str
    repair: str | None = None


@dataclass(frozen=True)
class VariableWrite:
    """The last write to a variable before it was read.

    Attributes:
        line: The user's line of the write, such as "`scale = tf.Variable(0.0)` at train.py:9".
        is_initial: Whether the program wrote to the variable only this once, when it made the variable.
        is_of_call: Whether it wrote a constant of the program in the call of a function that read it.
    """

    line: str
    is_initial: bool
    is_of_call: bool

    def __str__(self) -> str:
        """Returns the words for what the variable holds; they complete a sentence after `a variable that`."""
        return f"still holds its initial value, from {self.line}" if self.is_initial else f"{self.line} wrote last"


def _nothing(event: TensorEvent) -> Inputs:
    return {}


def _nowhere() -> Iterable[Computed]:
    return ()


def _no(event: TensorEvent) -> bool:
    return False


def _never() -> bool:
    return False


def _no_write(event: TensorEvent) -> VariableWrite | None:
    return None


def _no_code(event: TensorEvent) -> str | None:
    return None


def _nowhere_known(event: TensorEvent) -> str:
    return ""


def _none() -> TensorEvent | None:
    return None


def _no_text() -> str | None:
    return None


def _no_number(index: int) -> str | None:
    return None


def _type_that_ran(event: TensorEvent) -> str | None:
    return event.op_type


def _no_takers() -> frozenset[tuple[str, ...]]:
    return frozenset()


def _no_functions() -> frozenset[tuple[str, str]]:
    return frozenset()


@dataclass(frozen=True, kw_only=True)
class Computed:
    """An output of one op, and its recorded inputs.

    Attributes:
        output: One of its outputs.
        inputs: Its recorded inputs.
        is_complete: Whether no other input can hold an infinity or a NaN.
        made_from: Returns the recorded inputs of the op that made a tensor.
        made_by: Returns the type of the program's op that made a tensor; None if unknown.
        forward_type: For an op of a gradient, the type of the op whose gradient it computes; None if unknown.
        program_ops: The types of the program's ops that TensorFlow ran as this op; empty if it ran the op itself.
        makers: Of these, the types of the ops that can have made the bad elements, the most likely one first.
        later: Of these, the types of the ops that may have made the NaN of the result of the most likely one.
        is_optimizer: Whether the op belongs to an optimizer.
        is_in_loss: Whether the op belongs to the loss of a library.
        is_loss: Whether the output is a scalar of the loss, and an origin although an input may be infinite.
        behind: Returns the ops that the inputs were computed from in the same call, the nearest first.
        takers: Returns the types of the ops of the forward pass that take the output, each alone and with the type of
            each op that takes its result: `(Sum,)` and `(Sum, Log)`. An op that adds a constant has the type
            PLUS_CONSTANT.
        is_p_log_p: Returns whether the op, or the one whose gradient it computes, is a logarithm that the program only
            multiplies by its argument.
        has_log_of_complement: Returns whether the program computes log(x) and log(1 - x), and the op, or the one whose
            gradient it computes, is one of them.
        divides_by_argument: Returns whether the op, or the one whose gradient it computes, is a logarithm by whose
            argument the program also divides.
        has_moved_constant: Returns whether the program adds a constant to make a tensor, and TensorFlow added it to a
            part of the other term.
        adds_rounded_to_0: Returns whether the program adds a constant to make a tensor or the argument of its root, and
            the dtype rounds the constant to 0.
        last_write: Returns the last write to the variable from which a tensor was read, perhaps cast; None for another
            tensor, for a write of a computed value in a function, and if it is not known.
        constant: Returns the code of a constant of the program, in backquotes, for a tensor that is one; an empty text
            if its line has no part of its own; None for another tensor.
        is_norm_of_gradient: Returns whether the op computes a part of the norm of a gradient.
        bad_gradient_of_masked: Returns a bad tensor of the gradient if a `tf.where` replaces the output in the forward
            pass, so that everything else stays finite.
        line_of_select: Returns the line of that `tf.where`; None if it is not known.
        is_literal: Returns whether a tensor holds only infinities that the program wrote itself, such as a mask.
        pool_of_nan: Returns the finite result of an op that returned the lowest number for NaN of the output, or None.
        masking_product: Returns the line that multiplies NaN of the output by what looks like their mask, or None.
        softmax_of_mask: Returns the first NaN that a softmax made of -Inf of the output, or None.
        added_number: Returns the number, as the program's code has it, that the program adds last to make an input.
        outside_name: Returns what a tensor from outside is in the program, or None.
        has_gradients: Returns whether the program computes gradients, or may do so.
        is_differentiated: Returns whether the program computes the gradient of the op that made a tensor.
        is_before_training: Returns whether the op ran in the first call of its function, before any update of weights.
        shows_root: Returns whether the user's line of the op, or of the one whose gradient it computes, names a root.
        divides_by_result: Returns whether the program divides by the output, or takes its logarithm, perhaps after ops
            that keep its zeros.
        place_of: Returns the layer in which a tensor was computed, or its line; an empty text if neither is known.
        library_functions: Returns the functions of libraries that called the op, or the one whose gradient it computes:
            the names of the module and the function.
    """

    output: TensorEvent
    inputs: Inputs
    is_complete: bool = True
    made_from: Callable[[TensorEvent], Inputs] = field(default=_nothing)
    made_by: Callable[[TensorEvent], str | None] = field(default=_type_that_ran)
    forward_type: str | None = None
    program_ops: tuple[str, ...] = ()
    makers: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    is_optimizer: bool = False
    is_in_loss: bool = False
    is_loss: bool = False
    behind: Callable[[], Iterable[Computed]] = _nowhere
    takers: Callable[[], frozenset[tuple[str, ...]]] = _no_takers
    is_p_log_p: Callable[[], bool] = _never
    has_log_of_complement: Callable[[], bool] = _never
    divides_by_argument: Callable[[], bool] = _never
    has_moved_constant: Callable[[TensorEvent], bool] = _no
    adds_rounded_to_0: Callable[[TensorEvent], bool] = _no
    last_write: Callable[[TensorEvent], VariableWrite | None] = _no_write
    constant: Callable[[TensorEvent], str | None] = _no_code
    is_norm_of_gradient: Callable[[], bool] = _never
    bad_gradient_of_masked: Callable[[], TensorEvent | None] = _none
    line_of_select: Callable[[], str | None] = _no_text
    is_literal: Callable[[TensorEvent], bool] = _no
    pool_of_nan: Callable[[], TensorEvent | None] = _none
    masking_product: Callable[[], str | None] = _no_text
    softmax_of_mask: Callable[[], TensorEvent | None] = _none
    added_number: Callable[[int], str | None] = _no_number
    outside_name: Callable[[], str | None] = _no_text
    has_gradients: Callable[[], bool] = _never
    is_differentiated: Callable[[TensorEvent], bool] = _no
    is_before_training: Callable[[], bool] = _never
    shows_root: Callable[[], bool] = _never
    divides_by_result: Callable[[], bool] = _never
    place_of: Callable[[TensorEvent], str] = _nowhere_known
    library_functions: Callable[[], frozenset[tuple[str, str]]] = _no_functions

    @property
    def op(self) -> str:
        """The type of the op, without the version that TensorFlow appends; for a fused op, those of the program."""
        if self.program_ops and (self.output.op_type or "").startswith("_Fused"):
            return " + ".join(self.program_ops)
        return type_without_version(self.output.op_type or "")

    @property
    def is_gradient(self) -> bool:
        """Whether the recording or the name of the op shows that it computes a gradient."""
        return self.forward_type is not None or _GRADIENT.match(self.output.op_name or "") is not None

    def counted(self, *indexes: int) -> tuple[TensorEvent, ...] | None:
        """Returns inputs whose kinds of element were counted, or None if one of them was not counted."""
        events = [self.inputs.get(index) for index in indexes]
        counted = tuple(event for event in events if event is not None and is_counted(event))
        return counted if len(counted) == len(indexes) else None

    def chain(self, row: TensorEvent, op_types: Container[str | None]) -> list[TensorEvent]:
        """Returns a tensor and those behind it, the nearest first: the first inputs of ops of some types."""
        return chain_of(row, lambda taker: self.made_from(taker).get(0) if self.made_by(taker) in op_types else None)

    @property
    def has_finite_inputs(self) -> bool:
        """Whether every input is known to be finite."""
        return self.is_complete and all(is_finite(event) for event in self.inputs.values())

    @property
    def has_inputs_without_nan(self) -> bool:
        """Whether no input holds a NaN, as far as all inputs are known."""
        return self.is_complete and all(is_counted(event) and not event.num_nan for event in self.inputs.values())


def type_without_version(op_type: str) -> str:
    """Returns a type of op as users call it, such as `Add` for AddV2."""
    return _VERSION.sub("", op_type)


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


def chain_of(start: _T, source_of: Callable[[_T], _T | None]) -> list[_T]:
    """Returns a start, its source, the source of that, and so on, at most MAX_CHAIN of them."""
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


Rule = Callable[[Computed], Explanation | None]
"""Returns the explanation of a bad value, or None if the counts prove nothing."""
