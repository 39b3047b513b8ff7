"""The model page: the health of each layer over the training, as a map of layers over steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tfdbg_arrow.query import Logdir
from tfdbg_arrow.query.model_health import layer_health
from tfdbg_arrow.query.model_health.answers import MEASURES, LayerHealth, Measure
from tfdbg_arrow.query.model_health.reading import MAX_COLUMNS
from tfdbg_arrow.viewer.map_rows import MapRow, map_rows, mark_numbers
from tfdbg_arrow.viewer.map_scale import shown_measure
from tfdbg_arrow.viewer.page import PageKind, Parameters, chosen_run

_NUM_WORST = 12
"""Maximum number of rows in the list of the worst rows. A line counts the others, which are in the map."""


@dataclass(frozen=True, kw_only=True)
class WorstRow:
    """A row that went bad first or, if no row went bad, changed most.

    Attributes:
        row: Index in `LayerHealth.rows`.
        number: The number of the row's mark on the map, from 1; None without a mark.
        first_bad_column: The first column with bad tensors; None if there is none.
        start: The first known value of the measure; None if there is none.
        peak: The known value with the greatest magnitude.
        end: The last known value of the measure.
    """

    row: int
    number: int | None
    first_bad_column: int | None
    start: float | None
    peak: float | None
    end: float | None


@dataclass(frozen=True, kw_only=True)
class ModelPage:
    """The map of layers over steps.

    Attributes:
        run_id: The run; None if no run has tensors.
        first: The first position that is shown; None means from the start.
        last: The last position that is shown; None means to the end.
        columns: Maximum number of columns.
        measure: The measure that is shown; None if the recording's mode provides none.
        health: The map; None if no tensors are recorded.
        rows: The rows as they are drawn.
        worst: The rows that went bad first. If no row went bad, the rows that changed most; empty if the measure is 0
            in all rows.
        num_more: Number of further such rows, which `worst` leaves out.
        headline: What happened, in one sentence.
    """

    run_id: str | None
    first: int | None
    last: int | None
    columns: int
    measure: Measure | None
    health: LayerHealth | None
    rows: tuple[MapRow, ...]
    worst: tuple[WorstRow, ...]
    num_more: int
    headline: str

    @property
    def place(self) -> dict[str, object]:
        """The page's parameters, without the range."""
        return {
            "run": self.run_id,
            "measure": None if self.measure is None else self.measure.name,
            "columns": None if self.columns == MAX_COLUMNS else self.columns,
        }


def read_model(logdir: Logdir, parameters: Parameters) -> ModelPage:
    """Returns the map of layers over steps."""
    run_id = chosen_run(logdir, parameters)
    measure = parameters.choice("measure", (measure.name for measure in MEASURES))
    first, last = parameters.integer("first"), parameters.integer("last")
    columns = min(parameters.integer("columns") or MAX_COLUMNS, MAX_COLUMNS)
    end = None if last is None else last + 1
    health = layer_health(logdir, run_id=run_id, positions=(first, end), max_columns=columns)
    shown = None if health is None else shown_measure(health, measure)
    worst = () if health is None or shown is None else _worst(health, shown)
    return ModelPage(
        run_id=run_id if health is None else health.run_id,
        first=first,
        last=last,
        columns=columns,
        measure=shown,
        health=health,
        rows=() if health is None else map_rows(health),
        worst=worst[:_NUM_WORST],
        num_more=max(0, len(worst) - _NUM_WORST),
        headline="No tensors are recorded here yet." if health is None else health.sentence,
    )


def _worst(health: LayerHealth, measure: Measure) -> tuple[WorstRow, ...]:
    """Returns the innermost rows that went bad: first those on the way of the bad value, then by column.

    If no row went bad, returns the innermost rows that changed most, the layers first; empty if the measure is 0 in all
    rows.
    """
    worst_rows = []
    numbers = mark_numbers(health)
    for index, row in enumerate(health.rows):
        if row.has_children and index not in numbers:
            continue
        values = [value for value in health.values[measure.name][index] if value is not None and math.isfinite(value)]
        first_bad = next((column for column, number in enumerate(health.bad[index]) if number), None)
        worst_rows.append(
            WorstRow(
                row=index,
                number=numbers.get(index),
                first_bad_column=first_bad,
                start=values[0] if values else None,
                peak=max(values, key=abs, default=None),
                end=values[-1] if values else None,
            )
        )
    far = len(health.columns)
    worst_rows.sort(
        key=lambda row: (
            math.inf if row.number is None else row.number,
            far if row.first_bad_column is None else row.first_bad_column,
            row.first_bad_column is None and health.rows[row.row].kind == "role",  # counters grow in every run
            -_change(row),
        )
    )
    bad = tuple(row for row in worst_rows if row.first_bad_column is not None)
    return bad or (tuple(worst_rows) if any(row.peak for row in worst_rows) else ())


def _change(row: WorstRow) -> float:
    """Returns the change of a measure's magnitude in powers of ten."""
    if not row.start or not row.peak:
        return 0.0
    return abs(math.log10(abs(row.peak)) - math.log10(abs(row.start)))


PAGE = PageKind(name="model", title="Model", key="m", read=read_model, assets=("chart.css", "colours.css", "chart.js"))
