"""The sentence that an answer about a bad tensor begins with."""

from __future__ import annotations

import tokenize
from collections.abc import Sequence

from tfdbg_arrow.query.bad_samples import BadSamples
from tfdbg_arrow.query.nonfinite_tensor import NonFinite
from tfdbg_arrow.query.recorded import TensorHealth
from tfdbg_arrow.query.stacks import Frame, executed_span, file_name, line_text
from tfdbg_arrow.safe_text import printable_line
from tfdbg_arrow.schema.op_traits import Trait, types_with

_KINDS = (("num_nan", "NaN"), ("num_neg_inf", "-Inf"), ("num_pos_inf", "+Inf"))
_MAX_CODE = 80
"""Maximum number of characters of the code in a headline."""
_GETS_ELEMENT = types_with(Trait.GETS_ELEMENT)
_FED = types_with(Trait.FED)
_PARTS = {"loss": "the loss", "metric": "a metric", "optimizer": "the optimizer"}
"""What ops without a layer are part of, by their role."""


def headline_of(found: NonFinite, *, line: str | None) -> str:
    """Returns the sentence that names the user's line, the bad values, the step and the sample, as far as known.

    An example is "`log(1 - p)` at layers.py:12 made -Inf in step 211: sample 17 of the batch."

    Args:
        found: The bad tensor; its own headline is not read.
        line: The text of the line `found.source`, with its indentation; None if the run did not keep it.
    """
    kinds, code = bad_kinds_text(found), _executed_code(found.source, line)
    place = "" if found.source is None else f" at {_place_text(found)}"
    is_passed_on = _is_passed_on(found)
    is_element = found.op_type is None or found.op_type in _FED or (found.op_type in _GETS_ELEMENT and found.is_origin)
    if is_element:
        name = None if found.samples is None else found.samples.name
        name = name or _outside_name(found)
        text = f"{kinds} came into the program in {name}" + (f", read{place}," if place else "")
    elif found.forward is not None:
        forward = code or found.forward.op_type or found.forward.op_name or "an unknown op"
        if found.source is not None and _is_of_library(found):
            forward = f"{_part_text(found)} in {code}" if code else _part_text(found)
        text = f"the gradient of {forward}{place} {'passed on' if is_passed_on else 'is'} {kinds}"
    elif place:
        subject = place.removeprefix(" at ") if code is None else f"{code}{place}"
        if _is_of_library(found):
            subject = f"{_part_text(found)} in {subject}"
        text = f"{subject} {'passed on' if is_passed_on else 'made'} {kinds}"
    else:
        op = f"{found.op_name or found.op_type}:{found.output_slot}"
        graph = "" if found.graph_name is None else f", in the function {found.graph_name},"
        text = f"{kinds} {'was passed on by' if is_passed_on else 'came up in'} {op}{graph}"
    if not (found.is_origin or is_passed_on or is_element):
        text = f"as far as it is known, {text}"
    when = _when_text(found) + ("" if found.worker is None else f" on {found.worker}")
    text = f"{text}{when}" if when else text.rstrip(",")
    text += "." if found.samples is None else f": {_samples_text(found.samples)}."
    if found.is_expected:
        return f"The bad values did no harm: {text}"
    is_file_first = text.startswith(place.removeprefix(" at ") or "`")  # the name of a file stays as it is
    return text if is_file_first else text[0].upper() + text[1:]


def _outside_name(found: NonFinite) -> str:
    if found.op_type is None:
        return "a tensor from outside"
    if found.op_type in _GETS_ELEMENT:
        return "the data"
    return f"the argument {found.op_name}" + ("" if found.graph_name is None else f" of {found.graph_name}")


def _is_of_library(found: NonFinite) -> bool:
    """Returns whether TensorFlow, Keras or another library made the op, so that the line is that of a call of it."""
    calls = {call.source.line for call in found.called_from if call.source is not None}
    return found.source is not None and found.source.line in calls


def _part_text(found: NonFinite) -> str:
    """Returns what of a library an op is part of, such as `the loss` or `the layer dense_1`."""
    if found.layer is not None:
        return f"the layer {found.layer}"
    return _PARTS.get(found.role or "", f"{found.op_name or found.op_type}:{found.output_slot}")


def _place_text(found: NonFinite) -> str:
    """Returns the user's line, such as `train.py:9`, and those of equal ops; an empty text if it is not known."""
    if found.source is None:
        return ""
    others = [_short_place(each) for each in found.equal_lines]
    return _short_place(found.source) + (f" (computed once, also for {_enumeration(others)})" if others else "")


def _executed_code(frame: Frame | None, line: str | None) -> str | None:
    """Returns the part of a line that a frame executes, or the whole line, in backquotes; None if it is not known."""
    span = None if frame is None or line is None else executed_span(frame, line)
    code = frame.code if frame is not None and span is None else None
    if line is not None and span is not None:
        code = line[slice(*span)]
    if not code:
        return None
    code = printable_line(_without_comment(code.strip())).replace("`", "'")
    return f"`{code}`" if len(code) <= _MAX_CODE else f"`{code[: _MAX_CODE - 1].rstrip()}…`"


def _without_comment(code: str) -> str:
    try:
        for token in tokenize.generate_tokens(iter([code]).__next__):
            if token.type == tokenize.COMMENT:
                return code[: token.start[1]].rstrip() or code
    except (SyntaxError, tokenize.TokenError):  # a line of a longer statement
        pass
    return code


def _short_place(frame: Frame) -> str:
    return line_text(file_name(frame.file_path), frame.lineno)


def _is_passed_on(found: NonFinite) -> bool:
    """Returns whether the inputs are known to hold all the kinds of bad values of a tensor that is no origin."""
    kinds = [column for column, _ in _KINDS if getattr(found, column)]
    inputs = [each.health for each in found.inputs if each.health is not None and each.health.has_inf_or_nan]
    return not found.is_origin and bool(inputs) and all(any(getattr(each, kind) for each in inputs) for kind in kinds)


def _when_text(found: NonFinite) -> str:
    if found.step is not None:
        return f" in step {found.step:,}"
    return "" if found.call is None else f" in call {found.call.number:,} of {found.call.function}"


def _samples_text(samples: BadSamples) -> str:
    whole = "the batch" if samples.is_batch else "the data"
    if samples.num_bad == 1:
        return f"sample {samples.first:,} of {whole}"
    if samples.num_bad == samples.num_samples:
        return f"every sample of {whole}"
    return (
        f"{samples.num_bad:,} of the {samples.num_samples:,} samples of {whole}, the first is sample {samples.first:,}"
    )


def _enumeration(texts: Sequence[str]) -> str:
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last


def bad_kinds_text(found: TensorHealth) -> str:
    """Returns the kinds of bad element in a tensor, such as `NaN and -Inf`."""
    names = [name for column, name in _KINDS if getattr(found, column)]
    return _enumeration(names) if names else "Inf or NaN"
