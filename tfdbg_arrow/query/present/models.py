"""The blocks of series over steps: the layers of a model in one or two runs, curves, and distributions of elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfdbg_arrow.query import wording
from tfdbg_arrow.query.present.blocks import Blocks, Drawing, Heading, Line, Span, Style, Table
from tfdbg_arrow.safe_text import number_of, some_of

if TYPE_CHECKING:
    from tfdbg_arrow.query.model_health.answers import Curve, LayerDifferences, LayerHealth, LayerMap, TrainingCurves
    from tfdbg_arrow.query.model_health.histograms import Distributions

_MAX_PARTINGS = 10
"""Maximum number of layers in the table, so that it fits on a screen. A line below it counts the others."""
_MAX_ONLY = 5
"""Maximum number of layers that the sentence names. It counts the others."""


def layer_health(answer: LayerHealth) -> Blocks:
    """Yields a map of the layers over the steps."""
    yield Heading(answer.sentence)
    yield Line((f"run {answer.run_id}, {wording.columns_text(answer)}", "quiet"))
    if answer.num_folded:
        yield Line(wording.folded_text(answer.num_folded))
    rows: list[tuple[Span, ...]] = [
        (
            "\N{NO-BREAK SPACE}" * 4 * row.depth + row.name,
            row.side,
            f"{row.num_outputs:,}",
            (f"{row.num_bad:,}", "bad" if row.num_bad and not answer.is_harmless else ""),
            next((f"{wording.column_start(answer, column):,}" for column, number in enumerate(bad) if number), ""),
        )
        for row, bad in zip(answer.rows, answer.bad, strict=True)
    ]
    names = ("layer", "side", "op outputs", "bad tensors", f"bad from {wording.column_unit(answer)}")
    yield from _drawing("map_drawing", "map_svg", answer, Table(names, rows, num_numbers=3))


def layer_differences(answer: LayerDifferences) -> Blocks:
    """Yields a map of the differences between two runs, and where their layers diverged."""
    yield from parted_layers(answer)
    yield Line((f"A: {answer.run_a}, B: {answer.run_b}, {wording.columns_text(answer)}", "quiet"))


def parted_layers(answer: LayerDifferences) -> Blocks:
    """Yields where the layers of two runs diverged, and the layers that only one of the runs has."""
    from tfdbg_arrow.query.model_health.sentences import parting_texts

    yield Heading((answer.sentence, "bold" if answer.first_parting is None else "bad"))
    for note in answer.notes:
        yield Line(note)
    rows: list[tuple[Span, ...]] = []
    for parting in answer.partings[:_MAX_PARTINGS]:
        row = answer.rows[parting.row]
        steps = f"{parting.first:,}" if parting.first == parting.last else f"{parting.first:,} to {parting.last:,}"
        style: Style = "bold" if parting == answer.first_parting else ""
        rows.append(tuple((text, style) for text in (row.layer, row.side, steps, *parting_texts(parting))))
    names = ("layer", "side", f"apart from {answer.axis}", "measure", "A", "B")
    table: list[Line | Table] = [Table(names, rows, num_numbers=2)] if rows else []
    if len(answer.partings) > _MAX_PARTINGS:
        table.append(Line((f"… and {number_of(len(answer.partings) - _MAX_PARTINGS, 'layer')} more", "quiet")))
    yield from _drawing("map_drawing", "map_svg", answer, *table)
    for side, only in (("A", answer.only_a), ("B", answer.only_b)):
        if only:
            layers = some_of([f"{row.layer} ({row.side})" for row in only], _MAX_ONLY)
            yield Line((f"Only {side} has {layers}.", "warning"))


def training_curves(answer: TrainingCurves) -> Blocks:
    """Yields the curves of a training."""
    yield Line((f"run {answer.run_id}, {wording.columns_text(answer)}", "quiet"))
    for note in answer.notes:
        yield Line(note)
    names = ("", "first", "last", "least", "greatest", f"bad from {wording.column_unit(answer)}", "of")
    rows = [_curve_cells(curve, answer) for curve in answer.curves]
    yield from _drawing("line_drawing", "curves_svg", answer, Table(names, rows))


def training_curves_text(answer: TrainingCurves) -> str:
    """Returns the first and last value of each curve in one line."""
    texts = [f"{curve.name} {' to '.join(_first_and_last(curve))}".rstrip() for curve in answer.curves]
    return " ".join([f"{', '.join(texts)} ({number_of(len(answer.columns), 'column')})", *answer.notes])


def distributions(answer: Distributions) -> Blocks:
    """Yields how the elements of tensors were distributed over the steps."""
    yield Heading(answer.sentence)
    yield Line(
        (
            f"run {answer.run_id}, {wording.columns_text(answer)}, {number_of(sum(answer.num_tensors), 'tensor')}",
            "quiet",
        )
    )
    if answer.num_without:
        yield Line(f"{number_of(answer.num_without, 'tensor')} without a histogram; record them with histograms=True")
    names = (answer.axis, "least", "greatest", "negative", "zero", "positive", "Inf", "NaN")
    rows = [_distribution_cells(answer, column) for column in range(len(answer.columns))]
    table = Table(names, rows, num_numbers=7)
    yield from _drawing("distribution_drawing", "distribution_svg", answer, table)


def _drawing(
    module: str, function: str, answer: LayerMap | TrainingCurves | Distributions, *otherwise: Line | Table
) -> Blocks:
    if answer.columns:
        yield Drawing(module, function, answer, otherwise)
    else:
        yield from otherwise


def _first_and_last(curve: Curve) -> list[str]:
    values = [value for value in curve.values if value is not None]
    return [f"{value:.4g}" for value in (*values[:1], *values[-1:])]


def _curve_cells(curve: Curve, answer: TrainingCurves) -> Sequence[Span]:
    finite = [value for value in curve.values if value is not None and math.isfinite(value)]
    bounds = [f"{value:.4g}" for value in ((min(finite), max(finite)) if finite else ())]
    texts = [*(_first_and_last(curve) or ("", "")), *(bounds or ("", ""))]
    first_bad = "" if curve.first_bad is None else f"{wording.column_start(answer, curve.first_bad):,}"
    return curve.title, *texts, (first_bad, "bad"), curve.source


def _distribution_cells(answer: Distributions, column: int) -> Sequence[Span]:
    negative, positive = answer.negative[column], answer.positive[column]
    used = [bucket for bucket in range(len(answer.exponents)) if negative[bucket] or positive[bucket]]
    limits = [f"{answer.bounds(bucket)[side]:.3g}" for side, bucket in enumerate((*used[:1], *used[-1:]))]
    number, bad = answer.num_elements(column), (answer.num_neg_inf[column] + answer.num_pos_inf[column])
    counts = (sum(negative), answer.num_zero[column], sum(positive), bad, answer.num_nan[column])
    shares = [f"{100 * count / number:.3g} %" if count else "" for count in counts]
    bad_shares: list[Span] = [(share, "bad") for share in shares[3:]]
    return f"{answer.columns[column].first:,}", *(limits or ("", "")), *shares[:3], *bad_shares
