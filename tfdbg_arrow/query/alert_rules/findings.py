"""Runs one alert rule, and reads the graph, the layer and the user's line of each finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfdbg_arrow.errors import MemoryLimitError, QueryError, TimeLimitError
from tfdbg_arrow.query.alert_rules.rules import COLUMNS, Rule
from tfdbg_arrow.query.engine import MAX_ROWS, Engine
from tfdbg_arrow.query.stacks import GRADIENT_FUNCS, Frame

ORDER = (
    "f.run_id, f.first_event_index NULLS LAST, f.graph_id NULLS LAST, f.op_name NULLS LAST, f.output_slot NULLS LAST"
)
"""The ORDER BY of the findings of a rule; `f` is their alias."""
_MAX_ASKED = 200
"""Maximum number of findings whose lines one statement reads, so that statements stay short."""

Row = tuple[Any, ...]
"""The values of COLUMNS, the execution of the first tensor if it is eager, and the steps of the first and the last
tensor."""


@dataclass
class RuleFindings:
    """The findings of one rule.

    Attributes:
        rows: The first findings.
        number: Total number of findings.
        error: The error that stopped the rule; None if the rule completed.
    """

    rows: list[Row] = field(default_factory=list)
    number: int = 0
    error: MemoryLimitError | None = None


def run_rule(
    logdir: Engine,
    rule: Rule,
    given: Mapping[str, float],
    findings: RuleFindings,
    *,
    limit: int,
    condition: str = "TRUE",
    parameters: Sequence[object] = (),
) -> None:
    """Runs a rule and adds its findings, unless the memory limit already stopped the rule.

    Args:
        logdir: The engine.
        rule: The rule.
        given: Values to use instead of the rule's defaults.
        findings: Receives the findings, or the error of the memory limit.
        limit: Maximum number of rows.
        condition: An SQL condition on a finding with the alias `f`.
        parameters: The parameters of the condition.

    Raises:
        QueryError: The rule cannot be run.
    """
    if findings.error is not None:
        return
    try:
        rows, number = run_select(logdir, rule.sql(given), limit=limit, condition=condition, parameters=parameters)
    except MemoryLimitError as error:
        findings.error = error
    except TimeLimitError:
        raise
    except QueryError as error:
        raise QueryError(f"the rule {rule.kind} cannot be run: {error}") from error
    else:
        findings.rows += rows
        findings.number += number


def run_select(
    logdir: Engine, select: str, *, limit: int, condition: str, parameters: Sequence[object]
) -> tuple[list[Row], int]:
    """Returns the first rows that a SELECT of COLUMNS finds, and the total number of rows."""
    columns = ", ".join(f"f.{column}" for column in COLUMNS)
    # Without the inner LIMIT, DuckDB takes seconds for the joins with ten million tensors.
    rows = logdir.rows(
        f"WITH found AS (\n{select}\n), "
        f"chosen AS (SELECT {columns}, count(*) OVER () AS num_found FROM found AS f WHERE {condition} "
        f"ORDER BY {ORDER} LIMIT ?) "
        f"SELECT {columns}, CASE WHEN f.graph_id IS NULL THEN h.execution_index END, h.step, l.step, f.num_found "
        "FROM chosen AS f "
        "LEFT JOIN tensor_health AS h ON h.run_id = f.run_id AND h.event_index = f.first_event_index "
        "LEFT JOIN tensor_health AS l ON l.run_id = f.run_id AND l.event_index = f.last_event_index "
        f"ORDER BY {ORDER}",
        [*parameters, min(max(limit, 1), MAX_ROWS)],
    )
    return [row[:-1] for row in rows[:limit]], rows[0][-1] if rows else 0


@dataclass(frozen=True)
class FindingPlace:
    """The graph, the layer and the user's line of a finding. An attribute is None if it is unknown."""

    graph_name: str | None
    layer: str | None
    source: Frame | None


def read_places(logdir: Engine, rows: Sequence[Row]) -> list[FindingPlace]:
    """Returns the place of each finding.

    A finding about a gradient op gets the line of the forward op, as in all other answers. The source line of a
    gradient op is only the call that computes the gradient, or the call of `fit`. If the program wrote the gradient
    itself, for example with `tf.custom_gradient`, the finding keeps the line in the gradient.
    """
    places: list[FindingPlace] = []
    for start in range(0, len(rows), _MAX_ASKED):
        places += _read_places(logdir, rows[start : start + _MAX_ASKED])
    return places


def _read_places(logdir: Engine, rows: Sequence[Row]) -> list[FindingPlace]:
    # Spark takes no lists as parameters.
    asked = (
        "SELECT number, run_id, CAST(graph_id AS BIGINT) AS graph_id, CAST(op_name AS STRING) AS op_name, "
        "CAST(execution_index AS BIGINT) AS execution_index "
        f"FROM (VALUES {', '.join(['(?, ?, ?, ?, ?)'] * len(rows))}) "
        "AS v(number, run_id, graph_id, op_name, execution_index)"
    )
    op = [COLUMNS.index(name) for name in ("run_id", "graph_id", "op_name")]
    keys = ((number, *(row[index] for index in op), row[len(COLUMNS)]) for number, row in enumerate(rows))
    place_rows = logdir.rows(
        f"WITH found AS ({asked}), "
        "placed AS (SELECT f.number, f.run_id, g.graph_name, coalesce(o.layer, e.layer) AS layer, "
        "coalesce(o.stack_trace_id, e.stack_trace_id, g.stack_trace_id) AS own, "
        "coalesce(p.stack_trace_id, x.stack_trace_id) AS forward FROM found AS f "
        "LEFT JOIN graph AS g ON g.run_id = f.run_id AND g.graph_id = f.graph_id "
        "LEFT JOIN recorded_op AS o ON o.run_id = f.run_id AND o.graph_id = f.graph_id AND o.op_name = f.op_name "
        "LEFT JOIN graph_op AS p ON p.run_id = f.run_id AND p.graph_id = o.forward_graph_id "
        "AND p.op_name = o.forward_op_name "
        "LEFT JOIN execution AS e ON e.run_id = f.run_id AND e.execution_index = f.execution_index "
        "LEFT JOIN execution AS x ON x.run_id = f.run_id AND x.execution_index = e.forward_execution_index), "
        # For each stack, the innermost frame of the user, and the frame in which TensorFlow calls a gradient.
        "framed AS (SELECT t.run_id, t.stack_trace_id, min(t.depth) FILTER (WHERE f.owner = 'user') AS depth, "
        "min_by(t.stack_frame_id, t.depth) FILTER (WHERE f.owner = 'user') AS stack_frame_id, "
        "max(t.depth) FILTER (WHERE f.owner = 'framework' AND f.func IN (?, ?)) AS gradient_depth "
        "FROM (SELECT run_id, own AS stack_trace_id FROM placed UNION SELECT run_id, forward FROM placed) AS used "
        "JOIN stack_trace AS t ON t.run_id = used.run_id AND t.stack_trace_id = used.stack_trace_id "
        "JOIN stack_frame AS f ON f.run_id = t.run_id AND f.stack_frame_id = t.stack_frame_id "
        "GROUP BY t.run_id, t.stack_trace_id) "
        "SELECT p.number, p.graph_name, p.layer, s.file_path, s.lineno, s.func, s.code, s.owner, s.colno, s.end_colno "
        "FROM placed AS p "
        "LEFT JOIN framed AS own ON own.run_id = p.run_id AND own.stack_trace_id = p.own "
        "LEFT JOIN framed AS w ON w.run_id = p.run_id AND w.stack_trace_id = p.forward "
        "AND NOT coalesce(own.gradient_depth > own.depth, false) "
        "LEFT JOIN stack_frame AS s ON s.run_id = p.run_id "
        "AND s.stack_frame_id = coalesce(w.stack_frame_id, own.stack_frame_id)",
        [*(value for key in keys for value in key), *GRADIENT_FUNCS],
    )
    place_of = {
        number: FindingPlace(graph_name, layer, None if frame[0] is None else Frame(*frame))
        for number, graph_name, layer, *frame in place_rows
    }
    return [place_of[number] for number in range(len(rows))]
