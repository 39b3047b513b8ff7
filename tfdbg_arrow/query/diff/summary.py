"""Counts and lists in the answer of a comparison, other than the divergence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfdbg_arrow.query.diff.answer import DtypeChange, Unaligned, UnalignedOp
from tfdbg_arrow.query.diff.calls import AlignedExecutions
from tfdbg_arrow.query.diff.describing import Describer
from tfdbg_arrow.query.diff.ops import GraphPair
from tfdbg_arrow.query.diff.workspace import SIDES, Workspace


@dataclass(frozen=True)
class Counts:
    """How much was aligned. The attributes are those of Diff."""

    num_aligned: int
    num_compared: int
    num_differing: int
    num_aligned_ops: int
    only_a: Unaligned
    only_b: Unaligned


def count_pairs(work: Workspace, pairs: Sequence[GraphPair], executions: AlignedExecutions) -> Counts:
    """Returns the counts of what was aligned in two runs."""
    num_aligned, num_compared, num_differing = work.rows(
        "SELECT count(*), count(kind), count(CASE WHEN excess > 1 THEN 1 END) FROM compared"
    )[0]
    # A graph that one run traced more often is in several pairs. An op is aligned if it is aligned in any of them.
    aligned: tuple[dict[int, set[str]], dict[int, set[str]]] = ({}, {})
    num_ops: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for pair in pairs:
        aligned[0].setdefault(pair.graph_a, set()).update(pair.ops)
        aligned[1].setdefault(pair.graph_b, set()).update(pair.ops.values())
        num_ops[0][pair.graph_a], num_ops[1][pair.graph_b] = pair.num_ops_a, pair.num_ops_b
    only = []
    for index, side in enumerate(SIDES):
        ((num_tensors,),) = work.rows(f"SELECT count(*) FROM health_{side}")
        num_executions = (executions.num_a, executions.num_b)[index] - len(executions.a)
        num_alone = sum(number - len(aligned[index][graph]) for graph, number in num_ops[index].items())
        only.append(Unaligned(num_tensors - num_aligned, num_executions, num_alone))
    num_aligned_ops = sum(map(len, aligned[0].values()))
    return Counts(num_aligned, num_compared, num_differing, num_aligned_ops, only[0], only[1])


def find_dtype_changes(work: Workspace) -> tuple[DtypeChange, ...]:
    """Returns the changes of precision between the runs, those with the most tensors first."""
    rows = work.rows(
        "SELECT dtype_a, dtype_b, count(*) FROM compared WHERE dtype_a <> dtype_b AND kind <> 'dtype' "
        "GROUP BY dtype_a, dtype_b ORDER BY 3 DESC, 1, 2"
    )
    return tuple(DtypeChange(*row) for row in rows)


def find_unaligned(
    work: Workspace, describers: tuple[Describer, Describer], *, limit: int
) -> tuple[tuple[UnalignedOp, ...], bool]:
    """Returns the ops of tensors without a counterpart, and whether either side has more than the limit."""
    found: list[UnalignedOp] = []
    is_cut = False
    for index, side in enumerate(SIDES):
        rows = work.rows(
            "SELECT graph_id, op_name, op_type, count(*), min(event_index) AS first_event, bool_or(is_aligned) FROM ("
            "SELECT h.graph_id, h.op_name, h.op_type, h.event_index, o.op IS NOT NULL AS is_aligned "
            f"FROM health_{side} AS h LEFT JOIN pair AS p ON p.event_{side} = h.event_index "
            f"LEFT JOIN (SELECT DISTINCT graph_{side} AS graph_id, op_{side} AS op FROM op_pair) AS o "
            f"ON o.graph_id = h.graph_id AND o.op = h.op_name WHERE p.event_{side} IS NULL) AS alone "
            f"GROUP BY graph_id, op_name, op_type ORDER BY first_event LIMIT {limit + 1}"
        )
        is_cut = is_cut or len(rows) > limit
        describer = describers[index]
        for graph_id, op_name, op_type, num_tensors, first, is_in_other in rows[:limit]:
            found.append(
                UnalignedOp(
                    side=side,
                    graph_name=None if graph_id is None else describer.flow.graphs.names.get(graph_id),
                    op_name=op_name,
                    op_type=op_type,
                    num_tensors=num_tensors,
                    first_event_index=first,
                    is_in_other=is_in_other,
                    source=describer.source(describer.event(first)),
                )
            )
    return tuple(found), is_cut
