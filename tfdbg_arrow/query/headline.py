"""The first sentence of an answer about a bad tensor."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate

from tfdbg_arrow.query.bad_samples import VALIDATION_DATA, BadSamples
from tfdbg_arrow.query.nonfinite_tensor import FunctionCall, NonFinite
from tfdbg_arrow.query.outside_tensors import ASSIGNED, CAPTURED, WRITTEN
from tfdbg_arrow.query.recorded import TensorHealth
from tfdbg_arrow.query.stacks import Frame, executed_span, short_place
from tfdbg_arrow.safe_text import printable_line
from tfdbg_arrow.schema.op_traits import READERS, Trait, types_with

_GRADIENT_OF_LOOP = re.compile(r".+_grad_\d+", re.DOTALL)
"""Matches the name of a graph that TensorFlow made to compute the gradient of a loop's body.

Source: tensorflow/python/ops/while_v2.py.
"""
_OF_VALIDATION = " of the validation"
_KINDS = (("num_nan", "NaN"), ("num_neg_inf", "-Inf"), ("num_pos_inf", "+Inf"))
_MAX_CODE = 80
"""Maximum number of characters of the code in a headline."""
_BRACKETS = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}
_INFIX = frozenset("+ - * / // % @ ** << >> & | ^ < > <= >= == !=".split())  # noqa: SIM905
_RESTORES = ("Restore", "RestoreV2")
_OF_GENERATOR = "generator_next_fn"
"""A part of the name of the TensorFlow function that reads a generator for a data set.

Source: tensorflow/python/data/ops/from_generator_op.py.
"""
_GETS_ELEMENT = types_with(Trait.GETS_ELEMENT)
_FED = types_with(Trait.FED)
_PARTS = {"loss": "the loss", "metric": "a metric", "optimizer": "the optimizer"}
"""By role, the phrase for an op that has this role but no layer."""
_MAX_NUMBERS = 5
"""Maximum number of bad samples that a text lists by number."""


def headline_of(
    tensor: NonFinite, *, line: str | None, later: Sequence[str] = (), outer_iterations: Sequence[int | None] = ()
) -> str:
    """Returns a sentence that names the user's line, the bad values, the step and the sample. Omits unknown facts.

    An example is "`log(1 - p)` at layers.py:12 made -Inf in step 211: sample 17 of the batch."

    Args:
        tensor: The bad tensor. The attribute `headline` is not read.
        line: The text of the line `tensor.source`, with its indentation; None if the text is not known.
        later: The types of the later ops that may have turned the op's result into NaN.
        outer_iterations: The iteration of each loop around the loop of the op, beginning with the outermost loop. None
            stands for an unknown iteration.
    """
    kinds, is_passed_on, is_from_outside = bad_kinds_text(tensor), _is_passed_on(tensor), _is_from_outside(tensor)
    aside = ""
    if is_from_outside and tensor.iteration and not tensor.is_origin and tensor.outside_name is None:
        text = f"{kinds} came from an earlier iteration that was not recorded"
        aside = "" if tensor.source is None else f"of the loop at {_place_text(tensor)}"
    elif is_from_outside:
        name = _outside_name(tensor)
        text = f"{kinds} came into the program in {name}"
        verb = "assigned" if name.startswith(ASSIGNED) else "used" if name == CAPTURED else "read"
        aside = "" if tensor.source is None else f"{verb} at {_place_text(tensor)}"
        if name == WRITTEN:
            text, aside = f"the program wrote {kinds} at {_place_text(tensor)}", ""
    elif tensor.source is None and tensor.forward is None:
        text = f"{kinds} {'was passed on by' if is_passed_on else 'came up in'} {_output_text(tensor)}"
        aside = "" if tensor.graph_name is None else f"in the function {tensor.graph_name}"
    else:
        own_verb = "made" if tensor.forward is None else "is"
        verb = "passed on" if is_passed_on else "read" if _reads(tensor) else own_verb
        subject = _subject_text(tensor, executed_code(tensor.source, line))
        rest = f", or an op after it ({', '.join(later)})," if later else ""
        text = f"{subject}{rest} {verb} {kinds}"
        if tensor.op_type in READERS:
            text += " from a variable"
    if not (tensor.is_origin or is_passed_on or is_from_outside):
        text = f"as far as it is known, {text}"
    when = _when_text(tensor, outer_iterations)
    if aside:
        text, when = f"{text}, {aside}", f",{when}" if when else ""
    end = "." if tensor.samples is None else f": {_samples_text(tensor.samples, tensor.call)}."
    text = f"{text}{when}{end}"
    if tensor.is_expected:
        return f"The bad values did no harm: {text}"
    is_prose = text.startswith(("the ", "a ", "as "))  # names of files and ops are not capitalized
    return text[0].upper() + text[1:] if is_prose else text


def _reads(tensor: NonFinite) -> bool:
    """Returns whether the op of a tensor reads a checkpoint, a variable or a generator of data."""
    return tensor.op_type in {*_RESTORES, *READERS} or _OF_GENERATOR in (tensor.graph_name or "")


def _subject_text(tensor: NonFinite, code: str | None) -> str:
    """Returns what made a bad value: the user's code and line, or the part of a library that the line called."""
    place_text, forward = _place_text(tensor), tensor.forward
    if is_of_library(tensor):
        call = f"{code} at {place_text}" if code else place_text
        text = f"{_part_text(tensor)} in {call}"
    else:
        what = code
        if what is None and forward is not None:
            what = forward.op_type or forward.op_name or "an unknown op"
        text = " at ".join(part for part in (what, place_text) if part)
    return text if forward is None else f"{'the gradient of ' * forward.order}{text}"


def _is_from_outside(tensor: NonFinite) -> bool:
    """Returns whether a tensor is data that came from outside the program's ops."""
    is_element = tensor.op_type in _GETS_ELEMENT and tensor.is_origin
    return tensor.op_type is None or tensor.op_type in _FED or is_element


def _output_text(tensor: NonFinite) -> str:
    return f"{tensor.op_name or tensor.op_type}:{tensor.output_slot}"


def _outside_name(tensor: NonFinite) -> str:
    if tensor.outside_name is not None:
        return tensor.outside_name
    if tensor.op_type is None:
        return "a tensor from outside"
    if tensor.op_type in _GETS_ELEMENT:
        return "the data"
    return f"the argument `{tensor.op_name}`" + ("" if tensor.graph_name is None else f" of `{tensor.graph_name}`")


def is_of_library(tensor: NonFinite) -> bool:
    """Returns whether the op was made by TensorFlow, Keras or another library that the user's line called."""
    calls = {call.source.line for call in tensor.called_from if call.source is not None}
    return tensor.source is not None and tensor.source.line in calls


def _part_text(tensor: NonFinite) -> str:
    """Returns the component of a library that an op belongs to, such as `the loss` or `the layer dense_1`."""
    if tensor.layer is not None:
        return f"the layer {tensor.layer}"
    return _PARTS.get(tensor.role or "", _output_text(tensor))


def _place_text(tensor: NonFinite) -> str:
    """Returns the user's line, such as `train.py:9`, and the lines of equal ops; "" if the line is unknown."""
    if tensor.source is None:
        return ""
    others = [short_place(line) for line in tensor.equal_lines]
    return short_place(tensor.source) + (f" (the same as at {_enumeration(others)})" if others else "")


def executed_code(frame: Frame | None, line: str | None) -> str | None:
    """Returns, in backquotes, the part of a line that a frame executes, or the whole line; None if unknown."""
    span = None if frame is None or line is None else executed_span(frame, line)
    code = frame.code if frame is not None and span is None else None
    if line is not None and span is not None:
        code = line[slice(*span)]
    if not code:
        return None
    is_expression = frame is not None and frame.colno is not None
    code = printable_line(_with_ellipses(code.strip(), is_expression=is_expression)).replace("`", "'")
    return f"`{code}`" if len(code) <= _MAX_CODE else f"`{code[: _MAX_CODE - 1].rstrip(' …')}…`"


def _with_ellipses(code: str, *, is_expression: bool) -> str:
    """Returns a part of a line without its comment. Ellipses mark that the expression continues on other lines."""
    tokens: list[tokenize.TokenInfo] = []
    with suppress(SyntaxError, tokenize.TokenError):  # the line is only a part of a statement
        tokens += (token for token in tokenize.generate_tokens(iter([code]).__next__) if token.string.strip())
    if tokens and tokens[-1].type == tokenize.COMMENT:
        code = code[: tokens.pop().start[1]].rstrip() or code
    is_joined = code.endswith("\\")  # with the next line
    code = code.removesuffix("\\").rstrip()
    depths = list(accumulate(_BRACKETS.get(token.string, 0) for token in tokens if token.type == tokenize.OP))
    lowest = min(depths, default=0)
    # The operators - and + can also begin an expression.
    begins_before = lowest < 0 or (is_expression and tokens and tokens[0].string in _INFIX - {"-", "+"})
    goes_on = is_joined or (depths and depths[-1] > min(lowest, 0)) or (tokens and tokens[-1].string in _INFIX)
    return f"{'… ' if begins_before else ''}{code}{' …' if goes_on else ''}"


def _is_passed_on(tensor: NonFinite) -> bool:
    """Returns whether a tensor is not an origin, and recorded inputs have all kinds of bad values that it has."""
    kinds = [column for column, _ in _KINDS if getattr(tensor, column)]
    input_healths = [
        input_.health for input_ in tensor.inputs if input_.health is not None and input_.health.has_inf_or_nan
    ]
    return (
        not tensor.is_origin
        and bool(input_healths)
        and all(any(getattr(health, kind) for health in input_healths) for kind in kinds)
    )


def _when_text(tensor: NonFinite, outer_iterations: Sequence[int | None]) -> str:
    # A data set makes a record before the call that takes the batch with this record.
    before_call = "for" if tensor.role == "input" else "in"
    text = "" if tensor.call is None else f" {before_call} call {tensor.call.number:,} of {tensor.call.function}"
    if tensor.call is not None and tensor.iteration is not None:
        is_of_gradient = _GRADIENT_OF_LOOP.fullmatch(tensor.graph_name or "") is not None
        loop = "the inner loop" if outer_iterations else "a loop"
        if len(outer_iterations) == 1 and outer_iterations[0] is not None:
            loop += f" in iteration {outer_iterations[0]:,} of the outer loop"
        loop = "the gradient's loop, which runs backwards" if is_of_gradient else loop
        text += f", iteration {tensor.iteration:,} of {loop}"
    if tensor.step is not None:
        text = f" in step {tensor.step + (tensor.step_in_call or 0):,}"
        if tensor.step_in_call:
            text += f" (batch {tensor.step_in_call:,} of the call at step {tensor.step:,})"
        # Keras validates between two steps of the training.
        whole = "" if tensor.samples is None else tensor.samples.whole
        if whole.endswith(_OF_VALIDATION) or whole == VALIDATION_DATA:
            text = f"{' in the validation' if whole != VALIDATION_DATA else ''} after step {tensor.step:,}"
    return text if tensor.worker is None else f"{text} on {tensor.worker}"


def _samples_text(samples: BadSamples, call: FunctionCall | None) -> str:
    """Returns which samples are bad, or from which rows of an argument the bad elements are computed."""
    unit = samples.unit
    whole = samples.whole.removesuffix(_OF_VALIDATION)  # the text of the step already names the validation
    whole = whole if call is None else whole.removesuffix(f" of `{call.function}`")
    computed_from = "" if unit == "sample" or samples.name is not None else "from "
    if samples.num_bad in (1, None):
        return f"{computed_from}{unit} {samples.first:,} of {whole}"
    if samples.num_bad == samples.num_samples:
        return f"{computed_from}every {unit} of {whole}"
    of_whole = f"of the {samples.num_samples:,} {unit}s of {whole}"
    if len(samples.numbers) < 2:
        return f"{computed_from}{unit} {samples.first:,} and {samples.num_bad - 1:,} more {of_whole}"
    return f"{computed_from}{samples.num_bad:,} {of_whole}, {sample_numbers_text(samples)}"


def sample_numbers_text(samples: BadSamples) -> str:
    """Returns which samples are bad, such as `samples 3, 9 and 12`.

    If only the first bad sample is known, the text is like `the first is sample 3`.
    """
    unit, numbers = samples.unit, [f"{number:,}" for number in samples.numbers]
    if len(numbers) < 2:
        return f"the first is {unit} {samples.first:,}"
    if len(numbers) > _MAX_NUMBERS:
        numbers[_MAX_NUMBERS:] = [f"{len(numbers) - _MAX_NUMBERS:,} more"]
    return f"{unit}s {_enumeration(numbers)}"


def _enumeration(texts: Sequence[str]) -> str:
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last


def bad_kinds_text(tensor: TensorHealth) -> str:
    """Returns the kinds of bad values in a tensor, such as `NaN and -Inf`."""
    names = [name for column, name in _KINDS if getattr(tensor, column)]
    return _enumeration(names) if names else "Inf or NaN"
