"""What the layers of a model did over the steps, also in two runs; curves, and distributions of elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfdbg_arrow.query.present.blocks import Blocks, Drawing, Heading, Line, Span, Style, Table
from tfdbg_arrow.safe_text import number_of

if TYPE_CHECKING:
    from tfdbg_arrow.query.model_health.answers import Curve, LayerDifferences, LayerHealth, LayerMap, TrainingCurves
    from tfdbg_arrow.query.model_health.histograms import Distributions

_MAX_PARTINGS = 10
_MAX_ONLY = 5


def layer_health(found: LayerHealth) -> Blocks:
    """Yields a map of the layers over the steps."""
    yield Heading(found.sentence)
    yield Line((f"run {found.run_id}, {_range(found)}", "quiet"))
    rows: list[tuple[Span, ...]] = [
        (
            "\N{NO-BREAK SPACE}" * 4 * row.depth + row.name,
            row.side,
            f"{row.num_outputs:,}",
            (f"{row.num_bad:,}", "bad" if row.num_bad else ""),
            next((f"{column.first:,}" for column, number in zip(found.columns, bad, strict=True) if number), ""),
        )
        for row, bad in zip(found.rows, found.bad, strict=True)
    ]
    names = ("layer", "side", "op outputs", "bad tensors", f"bad from {found.axis}")
    yield from _drawing("map_drawing", "map_svg", found, Table(names, rows, num_numbers=3))


def layer_differences(found: LayerDifferences) -> Blocks:
    """Yields a map of the differences of two runs, and where their layers parted."""
    yield from parted_layers(found)
    yield Line((f"A: {found.run_a}, B: {found.run_b}, {_range(found)}", "quiet"))


def parted_layers(found: LayerDifferences) -> Blocks:
    """Yields where the layers of two runs parted, and the layers that only one of them has."""
    from tfdbg_arrow.query.model_health.sentences import parting_texts

    yield Heading((found.sentence, "bold" if found.first_parting is None else "bad"))
    for note in found.notes:
        yield Line(note)
    rows: list[tuple[Span, ...]] = []
    for parting in found.partings[:_MAX_PARTINGS]:
        row = found.rows[parting.row]
        steps = f"{parting.first:,}" if parting.first == parting.last else f"{parting.first:,} to {parting.last:,}"
        style: Style = "bold" if parting == found.first_parting else ""
        rows.append(tuple((text, style) for text in (row.layer, row.side, steps, *parting_texts(parting))))
    names = ("layer", "side", f"apart from {found.axis}", "measure", "A", "B")
    table: list[Line | Table] = [Table(names, rows, num_numbers=2)] if rows else []
    if len(found.partings) > _MAX_PARTINGS:
        table.append(Line((f"… and {number_of(len(found.partings) - _MAX_PARTINGS, 'layer')} more", "quiet")))
    yield from _drawing("map_drawing", "map_svg", found, *table)
    for side, only in (("A", found.only_a), ("B", found.only_b)):
        if only:
            texts = ", ".join(f"{row.layer} ({row.side})" for row in only[:_MAX_ONLY])
            more = f" and {len(only) - _MAX_ONLY:,} more" if len(only) > _MAX_ONLY else ""
            yield Line((f"Only {side} has {texts}{more}.", "warning"))


def training_curves(found: TrainingCurves) -> Blocks:
    """Yields the curves of a training."""
    yield Line((f"run {found.run_id}, {_range(found)}", "quiet"))
    for note in found.notes:
        yield Line(note)
    names = ("", "first", "last", "least", "greatest", f"bad from {found.axis}", "of")
    rows = [_curve_cells(curve, found) for curve in found.curves]
    yield from _drawing("line_drawing", "curves_svg", found, Table(names, rows))


def training_curves_text(found: TrainingCurves) -> str:
    """Returns the first and last value of each curve in one line."""
    texts = [f"{curve.name} {' to '.join(_first_and_last(curve))}".rstrip() for curve in found.curves]
    return " ".join([f"{', '.join(texts)} ({number_of(len(found.columns), 'column')})", *found.notes])


def distributions(found: Distributions) -> Blocks:
    """Yields how the elements of tensors were distributed over the steps."""
    yield Heading(found.sentence)
    yield Line((f"run {found.run_id}, {_range(found)}, {number_of(sum(found.num_tensors), 'tensor')}", "quiet"))
    if found.num_without:
        yield Line(f"{number_of(found.num_without, 'tensor')} without a histogram; record them with histograms=True")
    names = (found.axis, "least", "greatest", "negative", "zero", "positive", "Inf", "NaN")
    rows = [_distribution_cells(found, column) for column in range(len(found.columns))]
    table = Table(names, rows, num_numbers=7)
    yield from _drawing("distribution_drawing", "distribution_svg", found, table)


def _drawing(
    module: str, function: str, found: LayerMap | TrainingCurves | Distributions, *otherwise: Line | Table
) -> Blocks:
    if found.columns:
        yield Drawing(module, function, found, otherwise)
    else:
        yield from otherwise


def _range(found: LayerMap | TrainingCurves | Distributions) -> str:
    if not found.columns:
        return f"no {found.axis}s"
    return f"{found.axis}s {found.columns[0].first:,} to {found.columns[-1].last:,}"


def _first_and_last(curve: Curve) -> list[str]:
    values = [value for value in curve.values if value is not None]
    return [f"{value:.4g}" for value in (*values[:1], *values[-1:])]


def _curve_cells(curve: Curve, found: TrainingCurves) -> Sequence[Span]:
    finite = [value for value in curve.values if value is not None and math.isfinite(value)]
    bounds = [f"{value:.4g}" for value in ((min(finite), max(finite)) if finite else ())]
    texts = [*(_first_and_last(curve) or ("", "")), *(bounds or ("", ""))]
    first_bad = "" if curve.first_bad is None else f"{found.columns[curve.first_bad].first:,}"
    return curve.title, *texts, (first_bad, "bad"), curve.source


def _distribution_cells(found: Distributions, column: int) -> Sequence[Span]:
    negative, positive = found.negative[column], found.positive[column]
    used = [bucket for bucket in range(len(found.exponents)) if negative[bucket] or positive[bucket]]
    limits = [f"{found.bounds(bucket)[side]:.3g}" for side, bucket in enumerate((*used[:1], *used[-1:]))]
    number, bad = found.num_elements(column), (found.num_neg_inf[column] + found.num_pos_inf[column])
    counts = (sum(negative), found.num_zero[column], sum(positive), bad, found.num_nan[column])
    shares = [f"{100 * count / number:.3g} %" if count else "" for count in counts]
    bad_shares: list[Span] = [(share, "bad") for share in shares[3:]]
    return f"{found.columns[column].first:,}", *(limits or ("", "")), *shares[:3], *bad_shares
