"""Answers as HTML for notebooks: cards and tables with the words of the command line.

The HTML needs no script and no other file, and has at most MAX_BYTES, not counting a drawing. Everything from a
logdir is escaped and made printable.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Any

from tfdbg_arrow.query.one_line import place_text, verification_text
from tfdbg_arrow.query.wording import (
    facts_text,
)
from tfdbg_arrow.safe_text import number_of, printable_line

if TYPE_CHECKING:
    from tfdbg_arrow.query.info import LogdirInfo
    from tfdbg_arrow.query.integrity.diagnosis import Diagnosis
    from tfdbg_arrow.query.integrity.verification import Verification
    from tfdbg_arrow.query.model_health.answers import (
        Curve,
        LayerDifferences,
        LayerHealth,
        LayerMap,
        TrainingCurves,
    )
    from tfdbg_arrow.query.model_health.histograms import Distributions
    from tfdbg_arrow.query.run_diff.answer import Diff

MAX_BYTES = 20_000
MAX_DRAWING_BYTES = 250_000
_MAX_TABLE_BYTES = 10_000
_MAX_ROWS = 50
_MAX_LINES = 10
_MAX_TEXT = 300
_BAD = "color:#c62828;font-weight:bold"
_QUIET = "opacity:.65"
_CELL = "text-align:left;vertical-align:top;padding:.1em .8em .1em 0"
_SEVERITIES = {"error": _BAD, "warning": "color:#b26a00;font-weight:bold", "info": _QUIET}

Cell = str | tuple[str, str]
"""A text, or a text and its style."""


def html_of(answer: object) -> str:
    """Returns an answer as HTML."""
    make = next(_CARDS[kind.__name__] for kind in type(answer).__mro__ if kind.__name__ in _CARDS)
    return _card(make(answer))


def _text(value: str) -> str:
    """Returns a text that is safe in HTML."""
    shown = printable_line(value)
    return escape(shown if len(shown) <= _MAX_TEXT else f"{shown[:_MAX_TEXT]}…")


def _span(cell: Cell) -> str:
    text, style = (cell, "") if isinstance(cell, str) else cell
    return f'<span style="{style}">{_text(text)}</span>' if style else _text(text)


def _line(*cells: Cell) -> str:
    return f"<div>{''.join(map(_span, cells))}</div>"


def _title(*cells: Cell) -> str:
    return f'<div style="font-weight:bold;margin:.4em 0 .1em">{"".join(map(_span, cells))}</div>'


def _code(text: str) -> str:
    return f'<pre style="margin:0 0 0 1em;white-space:pre-wrap">{_text(text)}</pre>'


def _card(parts: Iterator[str]) -> str:
    """Returns the parts of an answer that fit into MAX_BYTES. A drawing does not count."""
    start = '<div style="overflow-x:auto;line-height:1.4">'
    shown, size = [start], len(start) + 100
    for part in parts:
        size += 0 if part.startswith("<svg") else len(part.encode())
        if size > MAX_BYTES:
            shown.append(_line(("… the rest is not shown; the attributes have it", _QUIET)))
            break
        shown.append(part)
    return "".join([*shown, "</div>"])


def _table(
    header: Sequence[str], rows: Iterable[Sequence[Cell]], number: int, *, max_bytes: int = _MAX_TABLE_BYTES
) -> str:
    """Returns the first rows as a table, and the number of the others.

    Args:
        header: The names of the columns.
        rows: The cells of each row.
        number: Number of rows.
        max_bytes: About how many bytes the table may have.
    """
    head = "".join(f'<th style="{_CELL}">{_text(name)}</th>' for name in header)
    body, size = [], len(head) + 200
    for row in islice(rows, _MAX_ROWS):
        text = "<tr>" + "".join(f'<td style="{_CELL}">{_span(cell)}</td>' for cell in row) + "</tr>"
        size += len(text.encode())
        if size > max_bytes:
            break
        body.append(text)
    more = _line((f"… {number - len(body):,} more", _QUIET)) if number > len(body) else ""
    return f'<table style="border-collapse:collapse"><tr>{head}</tr>{"".join(body)}</table>{more}'


def _facts(facts: Iterable[tuple[str, Cell]]) -> str:
    rows = "".join(
        f'<tr><td style="{_CELL};{_QUIET}">{_text(name)}</td><td style="{_CELL}">{_span(value)}</td></tr>'
        for name, value in facts
    )
    return f'<table style="border-collapse:collapse">{rows}</table>'


def _lines(lines: Sequence[str]) -> Iterator[str]:
    yield from (_line(line) for line in lines[:_MAX_LINES])
    if len(lines) > _MAX_LINES:
        yield _line((f"… {len(lines) - _MAX_LINES:,} more", _QUIET))


def _step(step: int | None) -> str:
    return "" if step is None else f"{step:,}"


def _diff(found: Diff) -> Iterator[str]:
    from tfdbg_arrow.query.run_diff.answer import (
        aligned_text,
        apart_text,
        diff_name,
        difference_text,
        differing_text,
        outcome_text,
        setting_text,
        worst_text,
    )

    divergence = found.divergence
    yield _title(outcome_text(found) if divergence is None else (outcome_text(found), _BAD))
    yield _facts([("A", found.run_a), ("B", found.run_b)])
    differing = differing_text(found)
    if differing is not None:
        yield _line(differing)
    if divergence is not None:
        difference, worst = difference_text(divergence), worst_text(divergence)
        if difference is not None:
            yield _line(difference)
        sides = (
            (side, diff_name(tensor), _step(tensor.step), facts_text(tensor), place_text(tensor.source))
            for side, tensor in (("A", divergence.a), ("B", divergence.b))
        )
        yield _table(("", "tensor", "step", "elements", "line"), sides, 2)
        if worst is not None:
            yield _line(f"furthest apart: {worst}")
        yield from _lines(divergence.notes)
        if divergence.inputs:
            yield _title("computed from" if divergence.is_proven else "computed from, as far as known")
            inputs = ((diff_name(each.a), apart_text(each)) for each in divergence.inputs)
            yield _table(("tensor", "difference"), inputs, len(divergence.inputs), max_bytes=3_000)
        yield _line(f"{aligned_text(found)}, {found.num_differing:,} differ by more than the tolerance.")
    for change in found.dtype_changes[:_MAX_LINES]:
        yield _line(f"{number_of(change.num_tensors, 'tensor is', 'tensors are')} {change.a} in A and {change.b} in B.")
    yield from _lines(found.incomparable)
    if found.environment:
        yield _title("Other differences")
        rows = (
            (each.name, *(setting_text(each.name, value) for value in (each.a, each.b))) for each in found.environment
        )
        yield _table(("", "A", "B"), rows, len(found.environment), max_bytes=4_000)


def _info(found: LogdirInfo) -> Iterator[str]:
    yield _title(found.path)
    tensors = number_of(found.num_tensors, "tensor")
    bad = f"{found.num_nonfinite:,} of them bad"
    yield _line(f"{found.bytes:,} bytes, {tensors}, ", (bad, _BAD if found.num_nonfinite else ""))
    if found.unobserved is not None:
        yield _line(f"not looked at: {found.unobserved}")
    runs = (
        (
            run.run_id,
            run.tensor_debug_mode or "no events",
            run.worker or "",
            "closed" if run.is_clean_end else "still recording, or ended without closing",
            "; ".join(run.left_out),
        )
        for run in found.runs
    )
    yield _table(("run", "mode", "worker", "state", "incomplete"), runs, len(found.runs), max_bytes=8_000)
    tables = ((each.name, f"{each.rows:,}", f"{each.parts:,}", f"{each.bytes:,}") for each in found.tables if each.rows)
    number = sum(each.rows > 0 for each in found.tables)
    yield _table(("table", "rows", "parts", "bytes"), tables, number, max_bytes=9_000)


def _diagnosis(found: Diagnosis) -> Iterator[str]:
    yield _title(found.path, ": nothing is wrong." if found.is_healthy else "")
    rows = (
        ((each.severity, _SEVERITIES[each.severity]), each.run_id or "", each.sentence, each.evidence, each.advice)
        for each in found.findings
    )
    if found.findings:
        yield _table(("", "run", "finding", "evidence", "advice"), rows, len(found.findings), max_bytes=18_000)


def _verification(found: Verification) -> Iterator[str]:
    state = verification_text(found)
    yield _title(f"{found.path}: ", state if found.is_intact else (state, _BAD))
    rows = (((each.kind, _BAD if each.is_damage else _QUIET), each.path, each.what) for each in found.deviations)
    if found.deviations:
        yield _table(("", "file", "what"), rows, len(found.deviations), max_bytes=17_000)


def _layer_health(found: LayerHealth) -> Iterator[str]:
    yield _title(found.sentence)
    yield _line((f"run {found.run_id}, {_range(found)}", _QUIET))
    drawing = _drawing("map_drawing", "map_svg", found)
    if drawing is not None:
        yield drawing
        return
    rows = (
        (
            "\N{NO-BREAK SPACE}" * 4 * row.depth + row.name,
            row.side,
            f"{row.num_outputs:,}",
            (f"{row.num_bad:,}", _BAD if row.num_bad else ""),
            next((f"{column.first:,}" for column, number in zip(found.columns, bad, strict=True) if number), ""),
        )
        for row, bad in zip(found.rows, found.bad, strict=True)
    )
    header = ("layer", "side", "op outputs", "bad tensors", f"bad from {found.axis}")
    yield _table(header, rows, len(found.rows), max_bytes=17_000)


def _layer_differences(found: LayerDifferences) -> Iterator[str]:
    from tfdbg_arrow.query.model_health.sentences import parting_texts

    yield _title(found.sentence)
    yield from _lines(found.notes)
    yield _line((f"A: {found.run_a}, B: {found.run_b}, {_range(found)}", _QUIET))
    drawing = _drawing("map_drawing", "map_svg", found)
    if drawing is not None:
        yield drawing
        return
    rows = (
        (found.rows[place.row].layer, found.rows[place.row].side, f"{place.first:,}", *parting_texts(place))
        for place in found.partings
    )
    header = ("layer", "side", f"apart from {found.axis}", "", "A", "B")
    yield _table(header, rows, len(found.partings), max_bytes=17_000)


def _training_curves(found: TrainingCurves) -> Iterator[str]:
    yield _line((f"run {found.run_id}, {_range(found)}", _QUIET))
    yield from _lines(found.notes)
    drawing = _drawing("line_drawing", "curves_svg", found)
    if drawing is not None:
        yield drawing
        return
    header = ("", "first", "last", "least", "greatest", f"bad from {found.axis}", "of")
    yield _table(header, (_curve_cells(curve, found) for curve in found.curves), len(found.curves), max_bytes=17_000)


def _distributions(found: Distributions) -> Iterator[str]:
    yield _title(found.sentence)
    yield _line((f"run {found.run_id}, {_range(found)}, {number_of(sum(found.num_tensors), 'tensor')}", _QUIET))
    if found.num_without:
        yield _line(f"{number_of(found.num_without, 'tensor')} without a histogram; record them with histograms=True")
    drawing = _drawing("distribution_drawing", "distribution_svg", found)
    if drawing is not None:
        yield drawing
        return
    rows = (_distribution_cells(found, column) for column in range(len(found.columns)))
    header = (found.axis, "least", "greatest", "negative", "zero", "positive", "Inf", "NaN")
    yield _table(header, rows, len(found.columns), max_bytes=17_000)


def _distribution_cells(found: Distributions, column: int) -> Sequence[Cell]:
    negative, positive = found.negative[column], found.positive[column]
    used = [bucket for bucket in range(len(found.exponents)) if negative[bucket] or positive[bucket]]
    limits = [f"{found.bounds(bucket)[side]:.3g}" for side, bucket in enumerate((*used[:1], *used[-1:]))]
    number, bad = found.num_elements(column), (found.num_neg_inf[column] + found.num_pos_inf[column])
    counts = (sum(negative), found.num_zero[column], sum(positive), bad, found.num_nan[column])
    shares = [f"{100 * count / number:.3g} %" if count else "" for count in counts]
    return (
        f"{found.columns[column].first:,}",
        *(limits or ("", "")),
        *shares[:3],
        *((each, _BAD) for each in shares[3:]),
    )


def _drawing(module: str, function: str, found: LayerMap | TrainingCurves | Distributions) -> str | None:
    """Returns a drawing by the viewer; None if its packages are not installed, or if the drawing is too large."""
    if not found.columns:
        return None
    try:
        charts = importlib.import_module(f"tfdbg_arrow.viewer.{module}")
    except ModuleNotFoundError:
        return None
    drawing = str(getattr(charts, function)(found))
    return drawing if drawing.startswith("<svg") and len(drawing.encode()) <= MAX_DRAWING_BYTES else None


def _curve_cells(curve: Curve, found: TrainingCurves) -> Sequence[Cell]:
    finite = [value for value in curve.values if value is not None and math.isfinite(value)]
    known = [value for value in curve.values if value is not None]
    numbers = [*(known[:1]), *(known[-1:]), *((min(finite), max(finite)) if finite else ())]
    texts = [f"{value:.4g}" for value in numbers] + [""] * (4 - len(numbers))
    first_bad = "" if curve.first_bad is None else f"{found.columns[curve.first_bad].first:,}"
    return curve.title, *texts, (first_bad, _BAD), curve.source


def _range(found: LayerMap | TrainingCurves | Distributions) -> str:
    if not found.columns:
        return f"no {found.axis}s"
    return f"{found.axis}s {found.columns[0].first:,} to {found.columns[-1].last:,}"


_CARDS: Mapping[str, Callable[[Any], Iterator[str]]] = {
    "Diagnosis": _diagnosis,
    "Diff": _diff,
    "Distributions": _distributions,
    "LayerDifferences": _layer_differences,
    "LayerHealth": _layer_health,
    "LogdirInfo": _info,
    "TrainingCurves": _training_curves,
    "Verification": _verification,
}
"""What makes the parts of a card, by the name of the class, so that this module imports none of their modules."""
