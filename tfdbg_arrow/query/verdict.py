"""The verdict on a bad tensor in words: which code made it, why, how to fix it, and what harm it did.

Each function returns lines of text, without indentation or colours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfdbg_arrow.query.wording import (
    call_lines,
    frame_text,
    harm_text,
    input_health_text,
    nonfinite_facts,
    place_facts,
    producer_text,
)
from tfdbg_arrow.safe_text import printable_line

if TYPE_CHECKING:
    from tfdbg_arrow.query.explanation import Growth, Reasons
    from tfdbg_arrow.query.nonfinite_tensor import NonFinite


def verdict_lines(nonfinite: NonFinite, reasons: Reasons) -> list[str]:
    """Returns the headline, the reasons, the effect and the samples of a bad tensor."""
    return [
        nonfinite.headline,
        *reason_lines(nonfinite, reasons),
        *effect_lines(nonfinite.effect, nonfinite.expected_reason),
        *place_lines(nonfinite),
    ]


def reason_lines(nonfinite: NonFinite, reasons: Reasons) -> list[str]:
    """Returns why a tensor went bad and, unless it did no harm, how to fix it."""
    why = reasons.explanation
    if nonfinite.is_expected:
        return explanation_lines(why=None if why is None else why.sentence, repair=None, growth=None)
    sentence, repair = (None, None) if why is None else (why.sentence, why.repair)
    return explanation_lines(why=sentence, repair=repair, growth=reasons.growth)


def explanation_lines(*, why: str | None, repair: str | None, growth: Growth | None) -> list[str]:
    """Returns why a tensor went bad and how to fix it."""
    lines = [] if why is None else [why]
    if repair is not None:
        lines.append(f"To fix it: {repair}")
    if growth is not None:
        lines += [growth.sentence, f"To fix it: {growth.repair}"]
    return lines


def effect_lines(effect: str | None, expected_reason: str | None) -> list[str]:
    """Returns the harm that a bad value did; nothing if that is not known."""
    text = harm_text(effect, expected_reason)
    return [] if text is None else [f"Effect: {text}."]


def place_lines(nonfinite: NonFinite) -> list[str]:
    """Returns which samples or slices of a tensor are bad, and from where they came."""
    return [f"{text[0].upper()}{text[1:]}." for _, text in place_facts(nonfinite, nonfinite.samples)]


def nonfinite_text(nonfinite: NonFinite, reasons: Reasons) -> str:
    """Returns a bad tensor as plain text: the headline, the reasons, and the facts, one on each line."""
    facts = [
        *nonfinite_facts(nonfinite),
        *((f"input {each.index}", f"{producer_text(each)}: {input_health_text(each)}") for each in nonfinite.inputs),
        *([] if nonfinite.source is None else [("source", frame_text(nonfinite.source))]),
        *(("called", line) for line in call_lines(nonfinite)),
    ]
    lines = [nonfinite.headline, *reason_lines(nonfinite, reasons)]
    return "\n".join(map(printable_line, [*lines, *(f"  {name:<8} {text}" for name, text in facts)]))
