"""Finds the blocks of any answer by the name of its class, so that this module need not import the answers' modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

from tfdbg_arrow.query.displayed import CUT_TEXT, Rows
from tfdbg_arrow.query.present import findings, html, logdirs, models, runs, tensors
from tfdbg_arrow.query.present.blocks import Block, Line, Table
from tfdbg_arrow.query.present.text import line_text
from tfdbg_arrow.safe_text import shortened

_MAX_TEXT = 200
"""Maximum number of characters of an answer in one line."""


def blocks_of(answer: object) -> Iterable[Block]:
    """Returns the blocks of an answer."""
    return next(_BLOCKS[kind.__name__] for kind in type(answer).__mro__ if kind.__name__ in _BLOCKS)(answer)


def answer_html(answer: object) -> str:
    """Returns an answer as HTML."""
    return html.html_of(blocks_of(answer))


def rows_html(rows: Rows[Any]) -> str:
    """Returns a list of answers as HTML."""
    cut = [Line(CUT_TEXT)] if rows.is_cut else []
    if not rows and not cut:
        return html.html_of([Line("nothing was found")])
    cells = [[span for line in _first_lines(row) for span in line.spans] for row in rows[: html.MAX_ROWS]]
    return html.html_of([Table((), cells, num_others=len(rows) - len(cells)), *cut])


def line_of(answer: object) -> str:
    """Returns an answer in one line of at most 200 characters."""
    text = ": ".join(line_text(line).strip() for line in _first_lines(answer))
    return shortened(" ".join(text.split()), _MAX_TEXT)


def _first_lines(answer: object) -> list[Line]:
    """Returns the summary of an answer: a special line, or the first line and the line that belongs to it."""
    make_line = next((_LINES[kind.__name__] for kind in type(answer).__mro__ if kind.__name__ in _LINES), None)
    if make_line is not None:
        line = make_line(answer)
        return [Line(line) if isinstance(line, str) else line]
    first, *second = [block for block in islice(blocks_of(answer), 2) if isinstance(block, Line)]
    return [first, *(line for line in second if line.indent > first.indent)]


_BLOCKS: Mapping[str, Callable[[Any], Iterable[Block]]] = {
    "Alert": findings.alert,
    "AlertFinding": findings.finding,
    "Alerts": findings.alerts,
    "Coverage": findings.coverage,
    "Diagnosis": logdirs.diagnosis,
    "Diff": runs.diff,
    "DiffTensor": runs.diff_tensor,
    "Distributions": models.distributions,
    "Explanation": tensors.reason,
    "Growth": tensors.reason,
    "HistoryRow": tensors.history_row,
    "LayerDifferences": models.layer_differences,
    "LayerHealth": models.layer_health,
    "LogdirInfo": logdirs.info,
    "NonFinite": tensors.nonfinite,
    "Provenance": tensors.provenance,
    "Reasons": tensors.reasons,
    "RuleSummary": lambda rule: [findings.rule_line(rule)],
    "Spread": tensors.spread,
    "TensorHealth": tensors.health,
    "TensorHop": tensors.tensor_hop,
    "TrainingCurves": models.training_curves,
    "Verification": logdirs.verification,
}
_LINES: Mapping[str, Callable[[Any], Line | str]] = {
    "Alerts": findings.alerts_text,
    "Diff": runs.outcome_text,
    "NonFinite": tensors.nonfinite_line,
    "Provenance": tensors.provenance_text,
    "TrainingCurves": models.training_curves_text,
    "Verification": logdirs.verification_line,
}
"""For answers that the first block does not summarize: a function that returns the summary line."""
