"""The blocks of any answer, by the name of its class, so that this module imports none of the modules of answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from tfdbg_arrow.query.notebook import html_of as old_html_of
from tfdbg_arrow.query.one_line import text_of as old_text_of
from tfdbg_arrow.query.present import findings, html, tensors
from tfdbg_arrow.query.present.blocks import Block, Items, Line
from tfdbg_arrow.query.present.text import line_text, pieces

_MAX_TEXT = 200
_Made = TypeVar("_Made")


def blocks_of(answer: object) -> Iterable[Block]:
    """Returns what an answer says."""
    make_blocks = _of_class(_BLOCKS, answer)
    assert make_blocks is not None
    return make_blocks(answer)


def answer_html(answer: object) -> str:
    """Returns an answer as HTML."""
    return old_html_of(answer) if _of_class(_BLOCKS, answer) is None else html.html_of(blocks_of(answer))


def rows_html(rows: Sequence[Any]) -> str:
    """Returns a list of answers as HTML."""
    shown = tuple(_item(row) for row in rows[: html.MAX_ROWS])
    return html.html_of([Items(shown, len(rows)) if shown else Line("nothing was found")])


def line_of(answer: object) -> str:
    """Returns an answer in one line of at most 200 characters."""
    if type(answer).__name__ == "DiffTensor" or _of_class(_BLOCKS, answer) is None:
        return old_text_of(answer)
    text = " ".join(": ".join(line_text(line).strip() for line in _item(answer)[:2]).split())
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"


def _item(answer: object) -> tuple[Line, ...]:
    """Returns the lines of an answer in a list of answers."""
    make_line = _of_class(_LINES, answer)
    if make_line is not None:
        line = make_line(answer)
        return (line if isinstance(line, Line) else Line(line),)
    first = next(iter(blocks_of(answer)))
    return first.items[0] if isinstance(first, Items) else tuple(p for p in pieces([first]) if isinstance(p, Line))


def _of_class(functions: Mapping[str, Callable[[Any], _Made]], answer: object) -> Callable[[Any], _Made] | None:
    """Returns the function for the class of an answer, or for its nearest base that has one."""
    return next((functions[kind.__name__] for kind in type(answer).__mro__ if kind.__name__ in functions), None)


_BLOCKS: Mapping[str, Callable[[Any], Iterable[Block]]] = {
    "Alert": findings.alert,
    "AlertFinding": findings.finding,
    "Alerts": findings.alerts,
    "Coverage": findings.coverage,
    "Explanation": tensors.reason,
    "Growth": tensors.reason,
    "HistoryRow": lambda row: tensors.history([row]),
    "NonFinite": tensors.nonfinite,
    "Provenance": tensors.provenance,
    "Reasons": tensors.reasons,
    "RuleSummary": lambda rule: [findings.rule_line(rule)],
    "Spread": tensors.spread,
    "TensorHealth": tensors.health,
    "TensorHop": tensors.hop,
}
_LINES: Mapping[str, Callable[[Any], Line | str]] = {
    "Alerts": findings.alerts_text,
    "NonFinite": tensors.nonfinite_line,
    "Provenance": tensors.provenance_text,
}
"""The line of an answer whose first block does not sum it up."""
