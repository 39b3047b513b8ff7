"""history: returns the health of selected tensors over time."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.asked_runs import asked_runs, asking
from tfdbg_arrow.query.displayed import Rows
from tfdbg_arrow.query.engine import MAX_ROWS, Engine
from tfdbg_arrow.query.recorded import HEALTH_COLUMNS, TensorHealth
from tfdbg_arrow.query.values import NUMPY_DTYPES, decode, texts
from tfdbg_arrow.schema.dtypes import DTYPES

_COLUMNS = (
    "run_id", "wall_time_ns", "step", "execution_index", "iteration", "graph_id", "op_name", "op_type", "output_slot",
    *HEALTH_COLUMNS,
)  # fmt: skip
_MAX_OPS = 20_000
"""Maximum number of op names that are searched for similar names."""


@dataclass(frozen=True, kw_only=True, repr=False)
class HistoryRow(TensorHealth):
    """One recorded computation of a tensor. An attribute is None if it was not measured, is unknown or does not apply.

    The class also has the attributes of TensorHealth.

    Attributes:
        run_id: The run.
        wall_time_ns: When the tensor was recorded, in nanoseconds since 1970-01-01T00:00:00Z.
        step: The marked training step.
        execution_index: The execution that made the tensor, or the call in which the tensor's op ran.
        iteration: Iteration of the loop, from 0.
        graph_name: Name of the op's graph; None for an eager op.
        op_name: Name of the op in the graph.
        op_type: Type of the op.
        output_slot: Index of the op's output.
        values: The first elements in row-major order, up to the requested number. Strings are text. None if the
            elements were not kept, or if NumPy does not have the dtype.
    """

    run_id: str
    wall_time_ns: int
    step: int | None
    execution_index: int | None
    iteration: int | None
    graph_name: str | None
    op_name: str | None
    op_type: str | None
    output_slot: int | None
    values: tuple[object, ...] | None


def history(
    logdir: Engine | str | Path,
    pattern: str,
    *,
    steps: tuple[int | None, int | None] = (None, None),
    run_id: str | None = None,
    after: int = -1,
    limit: int = 1000,
    num_values: int = 0,
) -> Rows[HistoryRow]:
    """Returns the health of selected tensors, sorted by run and then by event_index.

    Args:
        logdir: An open logdir or its path.
        pattern: A regular expression that must match the whole `op_name`, `op_name:slot` or op type.
        steps: The first training step, and the step after the last training step. None as the first number means no
            lower limit. None as the second number means no upper limit.
        run_id: The run, or "all". None means the newest run and the runs of the other processes of its program.
        after: Only tensors with a greater event_index are returned.
        limit: Maximum number of rows.
        num_values: Maximum number of elements to return for each tensor whose elements were kept.

    Raises:
        LogdirError: The path is not a readable logdir.
        QueryError: The pattern is not a valid regular expression, or a number is below 0.
        BrokenPartError: A part cannot be read.
    """
    selected, patterns = pattern_condition(pattern)
    if limit < 0 or num_values < 0:
        raise QueryError(f"limit is {limit} and num_values is {num_values}; expected 0 or more.")
    first, end = steps
    with asking(logdir, run_id) as (open_, asked):
        condition, run_ids = asked.condition("h.run_id")
        columns = ", ".join(f"h.{column}" for column in _COLUMNS)
        rows = open_.rows(
            f"SELECT {columns}, g.graph_name FROM tensor_health AS h "
            "LEFT JOIN graph AS g ON g.run_id = h.run_id AND g.graph_id = h.graph_id "
            f"WHERE {selected} AND {condition} AND h.event_index > ? "
            "AND (h.step >= ? OR ? IS NULL) AND (h.step < ? OR ? IS NULL) "
            "ORDER BY h.run_id, h.event_index LIMIT ?",
            [*patterns, *run_ids, after, first, first, end, end, min(limit + 1, MAX_ROWS)],
        )
        is_cut, rows = len(rows) > limit, rows[:limit]
        values_of_event = _read_values(open_, rows, num_values) if num_values and rows else {}
    history_rows: Rows[HistoryRow] = Rows(is_cut=is_cut)
    for row in rows:
        facts = dict(zip(_COLUMNS, row, strict=False))
        del facts["graph_id"]
        facts["shape"] = None if facts["shape"] is None else tuple(facts["shape"])
        values = values_of_event.get((facts["run_id"], facts["event_index"]))
        history_rows.append(HistoryRow(graph_name=row[-1], values=values, **facts))
    return history_rows


def pattern_condition(pattern: str) -> tuple[str, list[object]]:
    """Returns the SQL condition on tensor_health AS h that selects tensors by name or op type, and its parameters.

    Args:
        pattern: A regular expression that must match the whole `op_name`, `op_name:slot` or op type.

    Raises:
        QueryError: The pattern is not a valid regular expression.
    """
    try:
        re.compile(pattern)
    except re.error as error:
        raise QueryError(f"the pattern {pattern!r} is not a valid regular expression: {error}.") from error
    whole = rf"\A(?:{pattern})\z"  # the match is then the whole name, which is never empty
    condition = (
        "(regexp_extract(h.op_name, ?, 0) <> '' OR regexp_extract(h.op_type, ?, 0) <> '' "
        "OR regexp_extract(h.op_name || ':' || CAST(h.output_slot AS VARCHAR(20)), ?, 0) <> '')"
    )
    return condition, [whole] * 3


def _read_values(
    logdir: Engine, rows: Iterable[tuple[object, ...]], num_values: int
) -> dict[tuple[str, int], tuple[object, ...] | None]:
    event_index = _COLUMNS.index("event_index")
    events = [row[event_index] for row in rows]
    itemsize = max(dtype.itemsize or 0 for dtype in DTYPES)
    value_rows = logdir.rows(
        "SELECT run_id, event_index, dtype, shape, "
        "CASE WHEN dtype = 'string' THEN value ELSE blob_prefix(value, ?) END "
        f"FROM tensor_value WHERE event_index IN ({', '.join('?' * len(events))})",
        [num_values * itemsize, *events],
    )
    values: dict[tuple[str, int], tuple[object, ...] | None] = {}
    for run_id, event_index, dtype, shape, value in value_rows:
        elements: tuple[object, ...] | None = None
        if dtype == "string":
            elements = texts(value, size=math.prod(shape))
        elif dtype in NUMPY_DTYPES:
            array = decode(np.frombuffer(value, np.uint8), dtype)
            elements = None if array is None else tuple(array.tolist())
        values[run_id, event_index] = None if elements is None else elements[:num_values]
    return values


def recorded_ops(logdir: Engine, *, run_id: str | None = None) -> tuple[str, ...]:
    """Returns the names of graph ops and the types of eager ops with recorded tensors, in alphabetical order.

    Args:
        logdir: The logdir.
        run_id: The run, or ALL_RUNS. None means the newest run and the runs of the other processes of its program.
    """
    condition, run_ids = asked_runs(logdir, run_id).condition()
    rows = logdir.rows(
        f"SELECT DISTINCT coalesce(op_name, op_type) AS name FROM tensor_health WHERE {condition} "
        f"AND coalesce(op_name, op_type) IS NOT NULL ORDER BY name LIMIT {_MAX_OPS}",
        run_ids,
    )
    return tuple(name for (name,) in rows)
