"""The texts of answers in one line, for `repr`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tfdbg_arrow.query.wording import (
    facts_text,
)
from tfdbg_arrow.safe_text import number_of, printable_line

if TYPE_CHECKING:
    from tfdbg_arrow.query.info import LogdirInfo
    from tfdbg_arrow.query.integrity.diagnosis import Diagnosis
    from tfdbg_arrow.query.integrity.verification import Verification
    from tfdbg_arrow.query.model_health.answers import Curve, LayerMap, TrainingCurves
    from tfdbg_arrow.query.model_health.histograms import Distributions
    from tfdbg_arrow.query.run_diff.answer import Diff, DiffTensor
    from tfdbg_arrow.query.stacks import Frame
    from tfdbg_arrow.query.tensor_history import HistoryRow

_MAX_TEXT = 200


def text_of(answer: object) -> str:
    """Returns an answer in one line of at most 200 characters."""
    text = next(_TEXTS[kind.__name__] for kind in type(answer).__mro__ if kind.__name__ in _TEXTS)(answer)
    text = printable_line(text)
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"


def place_text(source: Frame | None) -> str:
    """Returns a line of code, such as `/home/me/train.py:9`; an empty text if it is not known."""
    return "" if source is None else source.place


def _joined(*facts: str | None) -> str:
    return ", ".join(fact for fact in facts if fact)


def row_name(row: HistoryRow | DiffTensor) -> str:
    """Returns the op of a row, and the graph."""
    slot = "" if row.output_slot is None else f":{row.output_slot}"
    graph = "" if row.graph_name is None else f" in {row.graph_name}"
    if row.op_name is None:
        return f"{row.op_type or 'a tensor from outside'}{slot}{graph}"
    return f"{row.op_name}{slot} ({row.op_type}){graph}"


def _row(row: HistoryRow | DiffTensor) -> str:
    step = None if row.step is None else f"step {row.step}"
    return _joined(row_name(row), step, f"event {row.event_index}") + f": {facts_text(row)}"


def _diff(found: Diff) -> str:
    from tfdbg_arrow.query.run_diff.answer import outcome_text

    return outcome_text(found)


def _info(found: LogdirInfo) -> str:
    runs, tensors = number_of(len(found.runs), "run"), number_of(found.num_tensors, "tensor")
    return f"of {found.path}: {runs}, {tensors}, {found.num_nonfinite:,} of them bad"


def _diagnosis(found: Diagnosis) -> str:
    state = "nothing is wrong" if found.is_healthy else "; ".join(finding.sentence for finding in found.findings)
    return f"of {found.path}: {state}"


def verification_text(found: Verification) -> str:
    """Returns whether a logdir is intact, and what was checked."""
    size = f"runs: {found.num_runs:,}, parts: {found.num_parts:,}, rows: {found.num_rows:,}, bytes: {found.num_bytes:,}"
    state = "nothing is damaged" if found.is_intact else f"damage in {number_of(found.num_damaged, 'place')}"
    return f"{state} ({size})"


def _layer_map(found: LayerMap) -> str:
    rows, columns = number_of(len(found.rows), "layer"), number_of(len(found.columns), "column")
    return f"{found.sentence} ({rows}, {columns} of {found.axis}s)"


def _curves(found: TrainingCurves) -> str:
    texts = [_curve(curve) for curve in found.curves]
    return " ".join([f"{', '.join(texts)} ({number_of(len(found.columns), 'column')})", *found.notes])


def _curve(curve: Curve) -> str:
    known = [value for value in curve.values if value is not None]
    return f"{curve.name} {known[0]:.4g} to {known[-1]:.4g}" if known else curve.name


def _distributions(found: Distributions) -> str:
    buckets, columns = number_of(len(found.exponents), "bucket"), number_of(len(found.columns), "column")
    return f"{found.sentence} ({buckets}, {columns} of {found.axis}s)"


_TEXTS: Mapping[str, Callable[[Any], str]] = {
    "Diagnosis": _diagnosis,
    "Diff": _diff,
    "Distributions": _distributions,
    "DiffTensor": _row,
    "LayerMap": _layer_map,
    "LogdirInfo": _info,
    "TrainingCurves": _curves,
    "Verification": lambda found: f"of {found.path}: {verification_text(found)}",
}
"""By the name of the class, so that this module imports none of their modules."""
