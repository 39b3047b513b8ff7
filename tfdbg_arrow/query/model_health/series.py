"""Quantities that need single tensors, for each column: update ratios, saturated activations, and scalars."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tfdbg_arrow.query.alert_rules.rules import builtin_rules
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.model_health.answers import Column
from tfdbg_arrow.query.model_health.cells import Labels, RowKey
from tfdbg_arrow.query.model_health.columns import Axis, place_of_event

KERAS_LOGS = "logs/"
"""The prefix of the labels that a recording sets to the values of Keras's logs."""
MAX_LABELS = 12
"""Default of the maximum number of labels that get a curve. The labels that the program set first come first."""
_MAX_CANDIDATES = 50
"""The maximum number of op outputs whose values are read for a series: the outputs that were computed most often."""
_FLOATS = ("bfloat16", "float16", "float32", "float64")
_NO_LOSSES = ("Cast", "Const", "ReadVariableOp")
"""Op types that do not compute a loss. A scalar from such an op is a constant, a number of elements or a weight."""
_NUMBER = (
    r"(?i)^\s*(?:tf\.Tensor\(|np\.float\d+\()?\[*\s*"
    r"([-+]?(?:nan|inf(?:inity)?|(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?))\s*(?:$|[\]),])"
)
"""A pattern in SQL that matches the start of the text of a number, or of a tensor or an array with one element."""


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
        f"{axis.place} AS place, max(h.update_rms / h.variable_rms) FROM "
        "(SELECT graph_id, read_op_name, update_rms, variable_rms, update_event_index AS event_index, "
        "update_step AS step, update_execution_index AS execution_index FROM variable_update "
        f"WHERE run_id = {labels.run} AND variable_rms > 0) AS h "
        "JOIN label AS r ON r.graph_id = h.graph_id AND r.op_name = h.read_op_name "
        f"WHERE {axis.condition} "
        "GROUP BY r.kind, r.path, r.is_gradient, is_weight, place"
    )
    rows = logdir.rows(statement)
    return [
        UpdateRatio(RowKey(kind, path, bool(is_gradient)), column, ratio, bool(is_weight))
        for kind, path, is_gradient, is_weight, column, ratio in rows
        if ratio is not None and not math.isnan(ratio)
    ]


def read_saturated(logdir: Engine, axis: Axis, *, run_id: str) -> list[tuple[int, int, int]]:
    """Returns (column, number of outputs of Sigmoid and Tanh, number of saturated outputs), without empty columns.

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
class Series:
    """A number of the program over the columns: NaN or an infinity where it is bad, None where it is not known.

    Attributes:
        name: As in Curve.
        values: The mean of the number in each column.
        source: The source of the values, as in Curve.
    """

    name: str
    values: tuple[float | None, ...]
    source: str


@dataclass(frozen=True)
class _FrameworkScalar:
    """A number that Keras or TensorFlow computes in a graph, recognised by the function that created its op.

    Attributes:
        name: The name of the number's curve.
        functions: The names of the functions that create the op. For a method, the class can be left out.
        code: The text that the line of code must contain, where `%` stands for any text.
        op_types: The types of the op; an empty tuple means the last op that the function created in a graph.
    """

    name: str
    functions: tuple[str, ...]
    code: str = ""
    op_types: tuple[str, ...] = ()


_FRAMEWORK_SCALARS = (
    # A schedule's rate is the last op of the first function. A rate without a schedule is read in the second function.
    _FrameworkScalar("learning_rate", ("_get_current_learning_rate",)),
    _FrameworkScalar("learning_rate", ("update_step",), "cast(%learning_rate", ("ReadVariableOp",)),
    _FrameworkScalar("loss_scale", ("scale_loss", "get_scaled_loss"), op_types=("ReadVariableOp",)),
    _FrameworkScalar("global_norm", ("global_norm",), op_types=("Sqrt",)),
)


def read_series(
    logdir: Engine, axis: Axis, columns: tuple[Column, ...], *, run_id: str, max_labels: int = MAX_LABELS
) -> tuple[list[Series], int]:
    """Returns the numbers of a program that have a curve (see training_curves), and how many labels have no curve.

    The loss comes first, then the numbers from graphs, then the other labels.
    """
    marked, num_without = _marked(logdir, axis, columns, run_id=run_id, max_labels=max_labels)
    loss = _loss(logdir, axis, marked, run_id=run_id)
    by_name = {} if loss is None else {"loss": loss}
    for scalar in _FRAMEWORK_SCALARS:
        if scalar.name not in by_name and scalar.name not in marked:
            series = _framework_series(logdir, axis, scalar, run_id=run_id)
            if series is not None:
                by_name[scalar.name] = series
    return [*{**by_name, **marked}.values()], num_without


def read_loss(logdir: Engine, axis: Axis, columns: tuple[Column, ...], *, run_id: str) -> Series | None:
    """Returns only the loss; None if the loss is not known."""
    marked, _ = _marked(logdir, axis, columns, run_id=run_id)
    return _loss(logdir, axis, marked, run_id=run_id)


def _loss(logdir: Engine, axis: Axis, marked: Mapping[str, Series], *, run_id: str) -> Series | None:
    return marked.get("loss") or _graph_loss(logdir, axis, run_id=run_id) or _eager_loss(logdir, axis, run_id=run_id)


def _marked(
    logdir: Engine, axis: Axis, columns: tuple[Column, ...], *, run_id: str, max_labels: int = MAX_LABELS
) -> tuple[dict[str, Series], int]:
    """Returns the labels that are numbers, by name, and how many such labels are left out."""
    place_sql, condition = axis.place, axis.condition
    if axis.name != "step":
        ((end,),) = logdir.rows(
            f"SELECT min(h.event_index) FROM tensor_health AS h WHERE h.run_id = ? AND {axis.position} > {axis.last}",
            [run_id],
        )
        place_sql, condition = place_of_event(columns), "1 = 1" if end is None else f"h.event_index < {end}"
    labels = (
        f"SELECT h.label, {place_sql} AS place, h.event_index, "
        "coalesce(TRY_CAST(h.value AS DOUBLE), TRY_CAST(regexp_extract(h.value, ?, 1) AS DOUBLE)) AS number "
        f"FROM mark AS h WHERE h.run_id = ? AND {condition} AND h.label NOT IN ('step', 'epoch', 'phase')"
    )
    means: dict[str, dict[int, float]] = {}
    first_events: dict[str, int] = {}
    for label, column, event_index, mean in logdir.rows(
        f"SELECT label, place, min(event_index), avg(number) FROM ({labels}) AS m "
        "WHERE number IS NOT NULL AND place IS NOT NULL GROUP BY label, place",
        [_NUMBER, run_id],
    ):
        means.setdefault(label, {})[column] = mean
        first_events[label] = min(event_index, first_events.get(label, event_index))
    ordered = sorted(means, key=lambda label: (label != "loss", first_events[label], label))
    series = {
        label: Series(label, tuple(map(means[label].get, range(axis.num_columns))), _source(label))
        for label in ordered[:max_labels]
    }
    return series, len(ordered) - len(series)


def _source(label: str) -> str:
    return "Keras's logs" if label.startswith(KERAS_LOGS) else f"mark({label}=…)"


def _graph_loss(logdir: Engine, axis: Axis, *, run_id: str) -> Series | None:
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
    best = max((flags for _, flags in scalars), default=())
    candidates = [output for output, flags in scalars if flags == best]
    return _best_series(logdir, axis, "loss", candidates, run_id=run_id)


def _framework_series(logdir: Engine, axis: Axis, scalar: _FrameworkScalar, *, run_id: str) -> Series | None:
    """Returns a number that Keras or TensorFlow computes; None if no op computes it or its values are not known."""
    of_frame = " OR ".join(["f.func = ? OR f.func LIKE ?"] * len(scalar.functions))
    of_type = f" AND o.op_type IN ({', '.join('?' * len(scalar.op_types))})" if scalar.op_types else ""
    rows = logdir.rows(
        "SELECT o.graph_id, o.op_name, s.output_slot, s.static_shape "
        "FROM (SELECT DISTINCT t.stack_trace_id FROM stack_frame AS f "
        "JOIN stack_trace AS t ON t.run_id = f.run_id AND t.stack_frame_id = f.stack_frame_id "
        f"WHERE f.run_id = ? AND f.owner = 'framework' AND ({of_frame}) AND coalesce(f.code, '') LIKE ?) AS c "
        "JOIN graph_op AS o ON o.stack_trace_id = c.stack_trace_id "
        "JOIN graph_op_output AS s ON s.run_id = o.run_id AND s.graph_id = o.graph_id AND s.op_name = o.op_name "
        f"WHERE o.run_id = ? AND s.dtype IN {_FLOATS}{of_type} "
        "ORDER BY o.wall_time_ns DESC, o.graph_id DESC, o.op_index DESC, s.output_slot LIMIT 100000",
        [
            run_id,
            *(name for function in scalar.functions for name in (function, f"%.{function}")),
            f"%{scalar.code}%",
            run_id,
            *scalar.op_types,
        ],
    )
    if not scalar.op_types:
        rows = [*{row[0]: row for row in reversed(rows)}.values()][::-1]
    return _best_series(logdir, axis, scalar.name, [row[:3] for row in rows if row[3] == []], run_id=run_id)


def _best_series(
    logdir: Engine, axis: Axis, name: str, outputs: list[tuple[int, str, int]], *, run_id: str
) -> Series | None:
    """Returns the values of the output that was computed most often.

    If several outputs were computed equally often, takes the output that was made last.

    Args:
        logdir: The logdir.
        axis: The axis.
        name: The name of the series.
        outputs: The op outputs to choose from, in reverse order of their creation.
        run_id: The run.
    """
    if not outputs:
        return None
    candidates = outputs
    if len(outputs) > _MAX_CANDIDATES:
        number_of_output = {
            tuple(output): number
            for *output, number in logdir.rows(
                "SELECT h.graph_id, h.op_name, h.output_slot, count(*) FROM tensor_health AS h WHERE h.run_id = ? "
                f"AND {axis.condition} AND h.scope = 'graph' AND h.scalar_value IS NOT NULL "
                "GROUP BY h.graph_id, h.op_name, h.output_slot",
                [run_id],
            )
        }
        candidates = sorted(outputs, key=lambda output: -number_of_output.get(output, 0))[:_MAX_CANDIDATES]
    names = sorted({op_name for _, op_name, _ in candidates})
    numbers = dict.fromkeys(candidates, 0)
    values: dict[tuple[int, str, int], list[float | None]] = {
        output: [None] * axis.num_columns for output in candidates
    }
    for graph_id, op_name, slot, column, number, value in logdir.rows(
        f"SELECT h.graph_id, h.op_name, h.output_slot, {axis.place} AS place, count(h.scalar_value), "
        "avg(h.scalar_value) "
        f"FROM tensor_health AS h WHERE h.run_id = ? AND {axis.condition} AND h.scope = 'graph' "
        f"AND h.op_name IN ({', '.join('?' * len(names))}) AND h.scalar_value IS NOT NULL "
        f"GROUP BY h.graph_id, h.op_name, h.output_slot, {axis.place}",
        [run_id, *names],
    ):
        if (graph_id, op_name, slot) in values:
            numbers[graph_id, op_name, slot] += number
            values[graph_id, op_name, slot][column] = value
    output = max(candidates, key=lambda candidate: numbers[candidate])  # max() takes the first of equal candidates
    if not numbers[output]:
        return None
    _, op_name, slot = output
    return Series(name, tuple(values[output]), f"{op_name}:{slot}")


def _eager_loss(logdir: Engine, axis: Axis, *, run_id: str) -> Series | None:
    """Returns the last scalar of each position from an eager op with the role `loss`; without one, with a gradient."""
    has_gradient = (
        "coalesce(e.role, 'forward') = 'forward' AND e.execution_index IN "
        "(SELECT forward_execution_index FROM execution WHERE run_id = ? AND forward_execution_index IS NOT NULL)"
    )
    for condition, parameters, source in (
        ("e.role = 'loss'", [], "eager ops of the loss"),
        (has_gradient, [run_id], "eager ops with a gradient"),
    ):
        rows = logdir.rows(
            "SELECT h.place, avg(h.scalar_value) FROM ("
            f"SELECT {axis.place} AS place, h.scalar_value, "
            f"row_number() OVER (PARTITION BY {axis.position} ORDER BY h.execution_index DESC, h.output_slot) "
            "AS number FROM tensor_health AS h JOIN execution AS e "
            "ON e.run_id = h.run_id AND e.execution_index = h.execution_index "
            f"WHERE h.run_id = ? AND {axis.condition} AND h.scope = 'execution' AND h.rank = 0 "
            f"AND h.scalar_value IS NOT NULL AND h.op_type NOT IN {_NO_LOSSES} AND {condition}) AS h "
            "WHERE h.number = 1 GROUP BY h.place",
            [run_id, *parameters],
        )
        if rows:
            values = dict(rows)
            return Series("loss", tuple(values.get(column) for column in range(axis.num_columns)), source)
    return None
