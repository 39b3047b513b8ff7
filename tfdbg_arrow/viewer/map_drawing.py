"""What the script draws of a map of layers over the training."""

from __future__ import annotations

import math

from tfdbg_arrow.query.model_health import LayerDifferences, LayerMap, Measure
from tfdbg_arrow.viewer.static_charts import DARK, LIGHT, MAP_WORDS, colour_scale, map_rows

_MAX_NUMBERS = 600_000
"""Number of numbers of a map from which on the page contains only those of the chosen measure."""
_DIGITS = 4
_Numbers = tuple[tuple[float | None, ...], ...]


def map_drawing(layers: LayerMap, measure: Measure) -> dict[str, object]:
    """Returns what the script draws.

    Args:
        layers: The map.
        measure: The measure that is shown at first.
    """
    compared = layers if isinstance(layers, LayerDifferences) else None
    num_numbers = len(layers.rows) * len(layers.columns) * len(layers.measures) * (1 if compared is None else 3)
    shown = layers.measures if num_numbers <= _MAX_NUMBERS else (measure,)
    return {
        "colours": {"light": LIGHT, "dark": DARK},
        "words": MAP_WORDS[type(layers).__name__],
        "axis": layers.axis,
        "columns": [(column.first, column.last, column.first_event_index) for column in layers.columns],
        "sides": [(row.num_outputs, row.num_bad, row.role) for row in layers.rows],
        "rows": map_rows(layers),
        "measures": [
            {
                "name": each.name,
                "title": each.title,
                "scale": colour_scale(layers, each),
                "ticks": colour_scale(layers, each).ticks,
                "values": _rounded(layers.values[each.name]),
                "of_runs": []
                if compared is None or each.scale == "difference"
                else [_rounded(values[each.name]) for values in (compared.values_a, compared.values_b)],
                "is_share": each.scale in ("share", "share_difference"),
            }
            for each in shown
        ],
        "measure": measure.name,
        "bad": layers.bad,
        "bad_of_runs": [] if compared is None else [compared.bad_a, compared.bad_b],
        "origin": layers.origin,
        "path": layers.path,
        "is_part": len(shown) < len(layers.measures),
    }


def _rounded(rows: _Numbers) -> list[list[float | None]]:
    return [[_rounded_number(value) for value in row] for row in rows]


def _rounded_number(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{_DIGITS}g}")
