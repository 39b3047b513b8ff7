"""The health of op outputs, over a whole run or in one run of their graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.recorded import Context


@dataclass(frozen=True, kw_only=True)
class OutputHealth:
    """The health of one output of an op. An attribute is None if the mode does not measure it.

    Attributes:
        num_tensors: Number of recorded tensors.
        num_measured: How many of them are known to be bad or not bad.
        num_bad: How many hold an infinity or a NaN.
        first_event_index: The first tensor.
        first_bad_event_index: The first bad tensor; None if none is bad.
        num_neg_inf: Total number of elements that are -infinity.
        num_pos_inf: Total number of elements that are +infinity.
        num_nan: Total number of elements that are NaN.
        min_finite: Least finite element.
        max_finite: Greatest finite element.
        max_abs_finite: Greatest magnitude of a finite element.
    """

    num_tensors: int
    num_measured: int
    num_bad: int
    first_event_index: int
    first_bad_event_index: int | None
    num_neg_inf: int | None
    num_pos_inf: int | None
    num_nan: int | None
    min_finite: float | None
    max_finite: float | None
    max_abs_finite: float | None


@dataclass(frozen=True, kw_only=True)
class OpOutput:
    """One output of an op: columns of graph_op_output, and its health, which is None if no tensor was recorded."""

    output_slot: int
    dtype: str | None
    static_shape: tuple[int, ...] | None
    is_recorded: bool | None
    not_recorded_reason: str | None
    health: OutputHealth | None


@dataclass(frozen=True, kw_only=True)
class BadOp:
    """An op with a bad output: its name, its number of bad tensors, and the first of them."""

    op_name: str
    num_bad: int
    first_bad_event_index: int


def context_condition(context: Context | None) -> tuple[str, list[object]]:
    """Returns SQL to append to a condition on tensor_health, and its parameters. None means any call: empty SQL."""
    if context is None:
        return "", []
    names = ("execution_index", "step_id", "call_site", "frame_id", "iteration")
    text = "".join(f" AND {name} IS NOT DISTINCT FROM ?" for name in names)
    return text, [getattr(context, name) for name in names]


def output_health(
    logdir: Engine, op_names: Sequence[str], *, run_id: str, graph_id: int, context: Context | None = None
) -> dict[tuple[str, int], OutputHealth]:
    """Returns the health of outputs of some ops, by (op name, output slot). Outputs that were not recorded are omitted.

    Args:
        logdir: The logdir.
        op_names: The ops.
        run_id: The run.
        graph_id: Their graph.
        context: Only this run of the graph; None means the whole run.
    """
    if not op_names:
        return {}
    where, parameters = context_condition(context)
    rows = logdir.rows(
        "SELECT op_name, output_slot, count(*), count(has_inf_or_nan), count(CASE WHEN has_inf_or_nan THEN 1 END), "
        "min(event_index), min(CASE WHEN has_inf_or_nan THEN event_index END), CAST(sum(num_neg_inf) AS BIGINT), "
        "CAST(sum(num_pos_inf) AS BIGINT), CAST(sum(num_nan) AS BIGINT), min(min_finite), max(max_finite), "
        "max(max_abs_finite) FROM tensor_health WHERE run_id = ? AND graph_id = ? AND scope = 'graph' "
        f"AND output_slot IS NOT NULL AND op_name IN ({', '.join('?' * len(op_names))}){where} "
        "GROUP BY op_name, output_slot",
        [run_id, graph_id, *op_names, *parameters],
    )
    return {
        (op_name, slot): OutputHealth(
            num_tensors=num_tensors,
            num_measured=num_measured,
            num_bad=num_bad,
            first_event_index=first,
            first_bad_event_index=first_bad,
            num_neg_inf=neg_inf,
            num_pos_inf=pos_inf,
            num_nan=nan,
            min_finite=least,
            max_finite=greatest,
            max_abs_finite=magnitude,
        )
        for (
            op_name,
            slot,
            num_tensors,
            num_measured,
            num_bad,
            first,
            first_bad,
            neg_inf,
            pos_inf,
            nan,
            least,
            greatest,
            magnitude,
        ) in rows
    }


def op_outputs(
    logdir: Engine, op_names: Sequence[str], *, run_id: str, graph_id: int, context: Context | None = None
) -> dict[str, tuple[OpOutput, ...]]:
    """Returns the outputs of some ops in order of slots, by op name. The arguments are those of `output_health`."""
    if not op_names:
        return {}
    health = output_health(logdir, op_names, run_id=run_id, graph_id=graph_id, context=context)
    rows = logdir.rows(
        "SELECT op_name, output_slot, dtype, static_shape, is_recorded, not_recorded_reason FROM graph_op_output "
        f"WHERE run_id = ? AND graph_id = ? AND op_name IN ({', '.join('?' * len(op_names))}) "
        "ORDER BY op_name, output_slot",
        [run_id, graph_id, *op_names],
    )
    found: dict[str, list[OpOutput]] = {}
    for name, slot, dtype, shape, is_recorded, reason in rows:
        found.setdefault(name, []).append(
            OpOutput(
                output_slot=slot,
                dtype=dtype,
                static_shape=None if shape is None else tuple(shape),
                is_recorded=is_recorded,
                not_recorded_reason=reason,
                health=health.get((name, slot)),
            )
        )
    return {name: tuple(outputs) for name, outputs in found.items()}


def bad_ops(
    logdir: Engine, *, run_id: str, graph_id: int, context: Context | None = None, limit: int = 300
) -> tuple[BadOp, ...]:
    """Returns the ops of a graph with a bad output, ordered by their first bad tensor.

    Args:
        logdir: The logdir.
        run_id: The run.
        graph_id: The graph.
        context: Only this run of the graph; None means the whole run.
        limit: Maximum number of ops.
    """
    where, parameters = context_condition(context)
    rows = logdir.rows(
        "SELECT op_name, count(*), min(event_index) AS first_bad FROM tensor_health WHERE run_id = ? "
        f"AND graph_id = ? AND has_inf_or_nan AND op_name IS NOT NULL{where} "
        f"GROUP BY op_name ORDER BY first_bad LIMIT {int(limit)}",
        [run_id, graph_id, *parameters],
    )
    return tuple(BadOp(op_name=name, num_bad=number, first_bad_event_index=first) for name, number, first in rows)
