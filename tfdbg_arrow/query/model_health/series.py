"""Quantities over the columns that need single tensors: update ratios, saturated activations and the loss."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tfdbg_arrow.query.alert_rules.rules import builtin_rules
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.model_health.answers import Column
from tfdbg_arrow.query.model_health.cells import Labels, RowKey
from tfdbg_arrow.query.model_health.columns import Axis, column_of_event
from tfdbg_arrow.query.values import NUMPY_DTYPES, decode

_MAX_CANDIDATES = 50
"""Number of op outputs that are considered as the loss, the last ones that were made."""
_FLOATS = ("bfloat16", "float16", "float32", "float64")
_NO_LOSSES = ("Cast", "Const", "ReadVariableOp")
"""Op types that do not compute a loss: a scalar of these is a constant, a number of elements or a weight."""
_NUMBER = re.compile(
    r"\s*(?:tf\.Tensor\(|np\.float\d+\()?\[*\s*([-+]?(?:nan|inf(?:inity)?|(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?))(?![\w.])",
    re.IGNORECASE,
)
"""Matches the start of the text of a number, a tensor or an array."""


@dataclass(frozen=True)
class UpdateRatio:
    """The greatest ratio of an update to its variable in one row and column, as in the rule weight_update_ratio.

    Attributes:
        key: The row of the op that reads the variable.
        column: Index of the column.
        ratio: The ratio.
        is_weight: Whether a forward op or the loss reads the variable, rather than the optimizer.
    """

    key: RowKey
    column: int
    ratio: float
    is_weight: bool


def read_update_ratios(logdir: Engine, axis: Axis, labels: Labels) -> list[UpdateRatio]:
    """Returns the update ratios of a run by row and column."""
    statement = (
        f"WITH label AS ({labels.of_graph_ops()}) "
        "SELECT r.kind, r.path, r.is_gradient, "
        "CASE WHEN coalesce(r.role, 'forward') IN ('forward', 'loss') THEN 1 ELSE 0 END AS is_weight, "
        f"{axis.place} AS place, max(u.update_rms / u.variable_rms) FROM variable_update AS u "
        "JOIN label AS r ON r.graph_id = u.graph_id AND r.op_name = u.read_op_name "
        "JOIN tensor_health AS h ON h.run_id = u.run_id AND h.event_index = u.update_event_index "
        f"WHERE u.run_id = ? AND u.variable_rms > 0 AND {axis.condition} "
        "GROUP BY r.kind, r.path, r.is_gradient, is_weight, place"
    )
    rows = logdir.rows(statement, [labels.run_id] * statement.count("?"))
    return [
        UpdateRatio(RowKey(kind, path, bool(is_gradient)), column, ratio, bool(is_weight))
        for kind, path, is_gradient, is_weight, column, ratio in rows
        if ratio is not None and not math.isnan(ratio)
    ]


def read_saturated(logdir: Engine, axis: Axis, *, run_id: str) -> list[tuple[int, int, int]]:
    """Returns (column, number of outputs of Sigmoid and Tanh, number of saturated ones) of columns with such outputs.

    An output is saturated if its mean slope is at most the limit of the alert rule saturated_activation.
    """
    (rule,) = (rule for rule in builtin_rules() if rule.kind == "saturated_activation")
    square = "h.mean_finite * h.mean_finite - h.stddev_finite * h.stddev_finite"
    slope = f"CASE h.op_type WHEN 'Sigmoid' THEN 4 * (h.mean_finite - {square}) ELSE 1 - {square} END"
    return logdir.rows(
        f"SELECT {axis.place} AS place, count(*), "
        f"count(CASE WHEN {slope} <= ? THEN 1 END) FROM tensor_health AS h "
        f"WHERE h.run_id = ? AND {axis.condition} AND h.scope = 'graph' AND h.op_type IN ('Sigmoid', 'Tanh') "
        f"AND h.mean_finite IS NOT NULL AND NOT h.has_inf_or_nan GROUP BY {axis.place}",
        [rule.values({})["slope"], run_id],
    )


@dataclass(frozen=True)
class Loss:
    """The loss in each column: NaN or an infinity where it is bad, None where it is unknown; and where it is from."""

    values: tuple[float | None, ...]
    source: str


def read_loss(logdir: Engine, axis: Axis, columns: tuple[Column, ...], *, run_id: str) -> Loss | None:
    """Returns the loss, as training_curves describes it; None if it is not known in any column."""
    return (
        _marked_loss(logdir, axis, columns, run_id=run_id)
        or _graph_loss(logdir, axis, run_id=run_id)
        or _eager_loss(logdir, axis, run_id=run_id)
    )


def _marked_loss(logdir: Engine, axis: Axis, columns: tuple[Column, ...], *, run_id: str) -> Loss | None:
    values: list[list[float]] = [[] for _ in columns]
    for event_index, step, text in logdir.rows(
        "SELECT event_index, step, value FROM mark WHERE run_id = ? AND label = 'loss' ORDER BY event_index", [run_id]
    ):
        column = axis.column_of(step) if axis.name == "step" else column_of_event(columns, event_index)
        value = parse_number(text)
        if column is not None and value is not None:
            values[column].append(value)
    return _loss(values, "mark(loss=…)")


def parse_number(text: str) -> float | None:
    """Returns the number in the text of a label, which may be that of a tensor or of an array; None if it has none."""
    found = _NUMBER.match(text)
    return None if found is None else float(found.group(1))


def _graph_loss(logdir: Engine, axis: Axis, *, run_id: str) -> Loss | None:
    """Returns the loss of the best candidate among graph ops that has a known value."""
    rows = logdir.rows(
        "SELECT o.graph_id, o.op_name, s.output_slot, s.static_shape, "
        "CASE WHEN o.role = 'loss' THEN 1 ELSE 0 END AS is_loss, CASE WHEN d.op_name IS NULL THEN 0 ELSE 1 END AS has "
        "FROM graph_op AS o JOIN graph_op_output AS s "
        "ON s.run_id = o.run_id AND s.graph_id = o.graph_id AND s.op_name = o.op_name "
        "LEFT JOIN (SELECT DISTINCT forward_graph_id AS graph_id, forward_op_name AS op_name FROM graph_op "
        "WHERE run_id = ? AND forward_op_name IS NOT NULL) AS d ON d.graph_id = o.graph_id AND d.op_name = o.op_name "
        f"WHERE o.run_id = ? AND s.dtype IN {_FLOATS} AND o.op_type NOT IN {_NO_LOSSES} "
        "AND (o.role = 'loss' OR (d.op_name IS NOT NULL AND coalesce(o.role, 'forward') = 'forward')) "
        "ORDER BY o.wall_time_ns DESC, o.graph_id DESC, o.op_index DESC, s.output_slot LIMIT 100000",
        [run_id, run_id],
    )
    scalars = [(row[:3], row[4:]) for row in rows if row[3] == []]
    if not scalars:
        return None
    best = max(flags for _, flags in scalars)
    candidates = [output for output, flags in scalars if flags == best][:_MAX_CANDIDATES]
    names = sorted({op_name for _, op_name, _ in candidates})
    found: dict[tuple[int, str, int], list[_Scalars]] = {output: [] for output in candidates}
    for graph_id, op_name, slot, *scalar in logdir.rows(
        f"SELECT h.graph_id, h.op_name, h.output_slot, {_SCALARS.format(place=axis.place)} "
        f"FROM tensor_health AS h WHERE h.run_id = ? AND {axis.condition} AND h.scope = 'graph' "
        f"AND h.op_name IN ({', '.join('?' * len(names))}) "
        f"GROUP BY h.graph_id, h.op_name, h.output_slot, {axis.place}",
        [run_id, *names],
    ):
        if (graph_id, op_name, slot) in found:
            found[graph_id, op_name, slot].append(_Scalars(*scalar))
    # Of outputs that were computed equally often, max() takes the one that was made last.
    output = max(candidates, key=lambda each: sum(scalar.number for scalar in found[each]))
    graph_id, op_name, slot = output
    kept: dict[int, list[float]] = {}
    if all(scalar.mean is None for scalar in found[output]):
        kept = _kept_values(logdir, axis, output, run_id=run_id)
    return _loss(
        [[*kept.get(column, ())] for column in range(axis.num_columns)], f"{op_name}:{slot}", scalars=found[output]
    )


def _kept_values(logdir: Engine, axis: Axis, output: tuple[int, str, int], *, run_id: str) -> dict[int, list[float]]:
    """Returns the kept values of a scalar by column."""
    found: dict[int, list[float]] = {}
    for column, dtype, value in logdir.rows(
        f"SELECT {axis.place}, v.dtype, blob_prefix(v.value, 8) FROM tensor_health AS h "
        "JOIN tensor_value AS v ON v.run_id = h.run_id AND v.event_index = h.event_index "
        f"WHERE h.run_id = ? AND {axis.condition} AND h.graph_id = ? AND h.op_name = ? AND h.output_slot = ? "
        "AND h.rank = 0",
        [run_id, *output],
    ):
        array = decode(np.frombuffer(value, np.uint8), dtype) if dtype in (*NUMPY_DTYPES, "bfloat16") else None
        if array is not None and array.size:
            found.setdefault(column, []).append(float(array.flat[0]))
    return found


def _eager_loss(logdir: Engine, axis: Axis, *, run_id: str) -> Loss | None:
    """Returns the last scalar in each position that an eager op computed and that is a loss or has a gradient."""
    has_gradient = (
        "coalesce(e.role, 'forward') = 'forward' AND e.execution_index IN "
        "(SELECT forward_execution_index FROM execution WHERE run_id = ? AND forward_execution_index IS NOT NULL)"
    )
    for condition, parameters, source in (
        ("e.role = 'loss'", [], "eager ops of the loss"),
        (has_gradient, [run_id], "eager ops with a gradient"),
    ):
        rows = logdir.rows(
            f"SELECT {_SCALARS.format(place='h.place')} FROM ("
            f"SELECT {axis.place} AS place, h.num_nan, h.num_pos_inf, h.num_neg_inf, h.has_inf_or_nan, h.mean_finite, "
            f"row_number() OVER (PARTITION BY {axis.position} ORDER BY h.execution_index DESC, h.output_slot) "
            "AS number FROM tensor_health AS h JOIN execution AS e "
            "ON e.run_id = h.run_id AND e.execution_index = h.execution_index "
            f"WHERE h.run_id = ? AND {axis.condition} AND h.scope = 'execution' AND h.rank = 0 "
            f"AND h.dtype IN {_FLOATS} AND h.op_type NOT IN {_NO_LOSSES} AND {condition}) AS h "
            "WHERE h.number = 1 GROUP BY h.place",
            [run_id, *parameters],
        )
        if rows:
            return _loss([[] for _ in range(axis.num_columns)], source, scalars=[_Scalars(*row) for row in rows])
    return None


_SCALARS = (
    "{place} AS place, count(*) AS number, count(CASE WHEN h.has_inf_or_nan THEN 1 END), "
    "count(CASE WHEN h.num_nan > 0 THEN 1 END), count(CASE WHEN h.num_pos_inf > 0 THEN 1 END), "
    "count(CASE WHEN h.num_neg_inf > 0 THEN 1 END), avg(h.mean_finite)"
)
"""Selects the attributes of _Scalars."""


@dataclass(frozen=True)
class _Scalars:
    """The tensors of a scalar in one column: their numbers, and the mean of the finite ones if it was measured."""

    column: int
    number: int
    num_bad: int
    num_nan: int
    num_pos_inf: int
    num_neg_inf: int
    mean: float | None

    def values(self) -> list[float]:
        """Returns a value for each kind of value among the tensors."""
        found = [] if self.mean is None else [self.mean]
        if self.num_pos_inf:
            found.append(math.inf)
        if self.num_neg_inf:
            found.append(-math.inf)
        if self.num_nan or (self.num_bad and not self.num_pos_inf and not self.num_neg_inf):
            found.append(math.nan)
        return found


def _loss(values: list[list[float]], source: str, *, scalars: Iterable[_Scalars] = ()) -> Loss | None:
    """Returns the mean of the values in each column, which is bad if any of them is; None if there are none."""
    for scalar in scalars:
        values[scalar.column] += scalar.values()
    if not any(values):
        return None
    means = tuple(sum(each) / len(each) if each else None for each in values)
    return Loss(means, source)
