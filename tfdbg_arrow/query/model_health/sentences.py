"""The sentences that say what happened in a run, or where two runs parted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tfdbg_arrow.query.model_health.answers import MEASURES, Parting
from tfdbg_arrow.query.model_health.cells import RowKey
from tfdbg_arrow.query.model_health.layer_rows import Node
from tfdbg_arrow.query.model_health.origin import Origin
from tfdbg_arrow.safe_text import number_of

_ROLES = {"input": "an input", "loss": "the loss", "metric": "a metric", "optimizer": "the optimizer"}
"""The words for the row of each role. Other ops outside all layers share a row."""
MIN_FACTOR = 10.0
"""The minimum factor for a large change: the sentence names a layer if its largest magnitude changed by this factor."""
MIN_ZERO_CHANGE = 0.5
"""The minimum difference of two shares of zeros for a large change."""


def bad_sentence(origin: Origin) -> str:
    """Returns the headline of a run in which a bad value did harm, and a sentence about the tensor that grew before."""
    headline = origin.tensor.headline
    return headline if origin.growth is None else f"{headline} {origin.growth.sentence}"


def healthy_sentence(
    nodes: Sequence[Node],
    max_abs: Sequence[Sequence[float | None]],
    zero_share: Sequence[Sequence[float | None]],
    *,
    num_measured: int,
    num_bad: int,
) -> str:
    """Returns the sentence about a run in which no bad value did harm.

    Args:
        nodes: The rows.
        max_abs: The largest magnitude by row and column; empty if no magnitude was measured.
        zero_share: The share of zeros by row and column; empty if no zeros were counted.
        num_measured: Number of tensors that are known to be bad or not bad.
        num_bad: Number of bad tensors.
    """
    if not nodes:
        return "No tensor was recorded in these columns."
    if not num_measured:
        return "The recording does not tell whether tensors are bad."
    what = "No tensor is bad"
    if num_bad:
        tensors = number_of(num_bad, "tensor is", "tensors are")
        what = f"No bad value is known to have done harm ({tensors} bad)"
    grown = _most_changed(
        nodes, max_abs, lambda first, last: max(first, last) / min(first, last) if first and last else 0
    )
    if grown is not None and grown.amount >= MIN_FACTOR:
        verb = "grew" if grown.last > grown.first else "fell"
        return (
            f"{what}; the largest magnitude of {subject_of(grown.key)} changed most: it {verb} from {grown.first:.3g} "
            f"to {grown.last:.3g}, by a factor of {grown.amount:,.3g}."
        )
    zeros = _most_changed(nodes, zero_share, lambda first, last: abs(last - first))
    if zeros is not None and zeros.amount >= MIN_ZERO_CHANGE:
        verb = "grew" if zeros.last > zeros.first else "fell"
        return (
            f"{what}; the share of zeros in {subject_of(zeros.key)} changed most: it {verb} from {zeros.first:.0%} to "
            f"{zeros.last:.0%}."
        )
    if grown is not None:
        sort = "line" if any(node.key.kind == "line" for node in nodes) else "layer"
        return f"{what}, and the largest magnitude of no {sort} changed by a factor of {MIN_FACTOR:g} or more."
    return f"{what}."


def parting_sentence(
    nodes: Sequence[Node],
    first: Parting | None,
    *,
    axis: str,
    range_: tuple[int, int] | None,
    rtol: float,
    is_known: bool,
) -> str:
    """Returns the sentence that says where two runs parted.

    Args:
        nodes: The rows that both runs have.
        first: The first place where the runs are apart.
        axis: The axis of the columns.
        range_: The first and the last position that both runs have; None if they have no position in common.
        rtol: The tolerance.
        is_known: Whether any measure is known in both runs.
    """
    if range_ is None:
        return f"The runs have no {axis} in common."
    if not nodes:
        return f"The runs have no layer or line in common in {_range_text(axis, *range_)}."
    if first is None:
        if not is_known:
            return "Nothing could be compared: the runs have no measure in common."
        return f"No layer parted in {_range_text(axis, *range_)}: all measures agree within {rtol:.2g}."
    subject = subject_of(nodes[first.row].key)
    where = _range_text(axis, first.first, first.last)
    if first.first == range_[0]:
        return f"The runs are apart from the first {axis} on, first in {subject}, in {where}: {_values(first)}."
    return f"{subject[0].upper()}{subject[1:]} parted first, in {where}: {_values(first)}."


def parting_notes(
    nodes: Sequence[Node],
    first: Parting | None,
    large: Parting | None,
    earlier: Sequence[Parting],
    *,
    axis: str,
    origin: tuple[str, RowKey] | None,
) -> tuple[str, ...]:
    """Returns further sentences about two runs that parted.

    Args:
        nodes: The rows that both runs have.
        first: The first place where the runs are apart.
        large: The first place where the runs are far apart.
        earlier: Places outside all layers and lines where the runs were apart before.
        axis: The axis of the columns.
        origin: The origin of the bad value that made the runs differ: the run (A or B) and the row. None if both runs
            have the row.
    """
    notes = []
    if first is not None and large is not None and (large.row, large.first) != (first.row, first.first):
        where = _range_text(axis, large.first, large.last)
        notes.append(f"They are far apart in {where}, first in {subject_of(nodes[large.row].key)}: {_values(large)}.")
    if origin is not None:
        side, key = origin
        notes.append(f"The bad value began in {subject_of(key)}, which only {side} has.")
    if earlier:
        places = (f"{nodes[parting.row].key.name} from {axis} {parting.first:,}" for parting in earlier)
        notes.append(f"Outside all layers, they were apart before: {', '.join(places)}.")
    return tuple(notes)


def _range_text(axis: str, first: int, last: int) -> str:
    return f"{axis} {first:,}" if first == last else f"{axis}s {first:,} to {last:,}"


def _values(parting: Parting) -> str:
    """Returns the differing values in words, such as `largest magnitude 3.1 in A against 3.1e+08 in B`."""
    title, a, b = parting_texts(parting)
    return f"{title} {a} in A against {b} in B"


def parting_texts(parting: Parting) -> tuple[str, str, str]:
    """Returns the name of the measure that differs, and its values in A and B with enough digits to differ."""
    if parting.a is None or parting.b is None:
        return "number of bad tensors", f"{parting.num_bad_a:,}", f"{parting.num_bad_b:,}"
    (measure,) = (measure for measure in MEASURES if measure.name == parting.measure)
    title = measure.title[0].lower() + measure.title[1:]
    for digits in range(3 if measure.scale == "share" else 4, 18):
        a, b = (
            f"{100 * value:.{digits}g} %" if measure.scale == "share" else f"{value:.{digits}g}"
            for value in (parting.a, parting.b)
        )
        if a != b:
            break
    return title, a, b


def missing_loss_sentence(*, mode: str | None, is_imported: bool) -> str:
    """Returns why a run has no curve of the loss, and how to get the curve."""
    mark = "mark it: tfdbg_arrow.mark(step=step, loss=loss)"
    if mode in ("NO_TENSOR", "SHAPE"):
        reason = f"the mode {mode} keeps no values"
        return f"The loss is not known, because {reason}. Record in the mode FULL_HEALTH, or {mark}."
    if is_imported:
        return "The loss is not known, because an imported dump has values only in the mode FULL_TENSOR."
    return (
        "The loss is not known: no scalar with a value was recognised as the loss. The value of a loss can stay on an "
        f"accelerator, and runs of older formats have none. To get a curve, {mark}."
    )


@dataclass(frozen=True)
class _Change:
    """The change of a row from the first column with a number to the last column with a number."""

    key: RowKey
    first: float
    last: float
    amount: float


def _most_changed(
    nodes: Sequence[Node],
    values: Sequence[Sequence[float | None]],
    amount_of: Callable[[float, float], float],
) -> _Change | None:
    """Returns the layer or line that changed most on the forward side. If there are several, returns the innermost."""
    best: _Change | None = None
    for node, of_row in zip(nodes, values, strict=False):
        known_values = [value for value in of_row if value is not None]
        if node.key.kind == "role" or node.key.is_gradient or node.role != "forward" or len(known_values) < 2:
            continue
        change = _Change(node.key, known_values[0], known_values[-1], amount_of(known_values[0], known_values[-1]))
        if best is None or (change.amount, change.key.depth) > (best.amount, best.key.depth):
            best = change
    return best


def subject_of(key: RowKey) -> str:
    """Returns a row in words, such as `the gradient of the layer net/a`."""
    if key.kind == "layer":
        name = f"the layer {key.path}"
    elif key.kind == "line":
        name = f"line {key.name}"
    else:
        name = _ROLES.get(key.path, "an op outside all layers")
    return f"the gradient of {name}" if key.is_gradient else name
