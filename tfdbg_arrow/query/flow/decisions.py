"""Decisions: ops that make an integer or a boolean from the values of numbers. For a NaN, the result is arbitrary."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Sequence

from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.graphs import CHECKS, DISCRETE, NEVER_BAD, Graph
from tfdbg_arrow.query.flow.search import breadth_first
from tfdbg_arrow.query.recorded import Op
from tfdbg_arrow.schema.op_traits import REFERENCE_WRITER, WRITER, Trait, types_with

SELF_CHECKS = types_with(Trait.COMPARES)
"""Types of ops that test for NaN when they compare a tensor with itself."""
_ORDERS = frozenset({"Greater", "GreaterEqual", "Less", "LessEqual"})
"""Types of ops that compare numbers. The output of these ops is false for NaN."""
SELECTS = frozenset({"Select", "SelectV2"})
_IGNORES_VALUES = re.compile(
    rf"{'|'.join(sorted(types_with(Trait.OF_SHAPE)))}|TensorArraySize(V\d)?|Ragged(?!Range)\w+|Sparse\w+"
)
"""Types of ops whose integers and booleans do not depend on the values of floating-point inputs."""
_MAX_KEPT = 100
"""Maximum number of tensors that one search examines."""


class Decisions:
    """Finds the ops of graphs that make decisions, within one run."""

    def __init__(self, flow: DataFlow) -> None:
        self._flow = flow

    def decides(self, graph_id: int, op: Op) -> bool:
        """Returns whether an op makes integers or booleans from its inputs, and one of these outputs is used.

        An op of a metric does not count if the metric also tests whether the values are bad, for example with
        `tf.math.is_nan`: the metric then leaves out the bad values.
        """
        if not is_decision(op.op_type) or is_check(op.op_type, op.inputs):
            return False
        graph = self._flow.graphs.graph(graph_id)
        dtypes = (graph.dtypes.get((op.op_name, slot)) for slot in itertools.count())
        discrete_slots = [slot for slot, dtype in enumerate(itertools.takewhile(bool, dtypes)) if dtype in DISCRETE]
        if not discrete_slots or self._flow.graphs.calls(graph_id, op.op_name):
            return False
        edges = op if op.made_for is None else graph.ops.get(op.made_for, op)
        if all(graph.dtypes.get(edge) in NEVER_BAD for edge in edges.inputs):
            return False
        if self._is_of_metric(graph, op.op_name) and self._is_tested_by_metric(graph, edges):
            return False
        if _rejects_proposals(graph, edges):
            return False
        return any(self._is_used(graph, op, slot) for slot in discrete_slots)

    def _is_tested_by_metric(self, graph: Graph, op: Op) -> bool:
        """Returns whether a metric tests whether one of its inputs is bad, and so may leave out bad results.

        Args:
            graph: The graph of the metric.
            op: An op of the metric. The input reaches this op through other ops of the metric.
        """

        def taken_by_metric(edge: tuple[str, int]) -> Sequence[tuple[str, int]]:
            maker = graph.ops.get(edge[0])
            return maker.inputs if maker is not None and self._is_of_metric(graph, maker.op_name) else ()

        edges = breadth_first(op.inputs, taken_by_metric, limit=_MAX_KEPT)
        users = ((edge, graph.ops[name]) for edge in edges for name in graph.users.get(edge[0], ()))
        return any(
            edge in user.inputs and is_check(user.op_type, user.inputs) and self._is_of_metric(graph, user.op_name)
            for edge, user in users
        )

    def _is_of_metric(self, graph: Graph, op_name: str) -> bool:
        return self._flow.labels.op(graph.graph_id, op_name).role == "metric"

    def _is_used(self, graph: Graph, op: Op, slot: int) -> bool:
        """Returns whether another op takes an output of an op, or a function returns the output."""
        executed = self._flow.graphs.executed(graph.graph_id)
        if executed:
            return any(
                executed_graph.users(node.node_name, slot)
                for executed_graph in executed
                for node in executed_graph.nodes_of(graph.graph_id, op.op_name)
            )
        users = (graph.ops[name] for name in graph.users.get(op.op_name, ()))
        is_taken = any((op.op_name, slot) in user.inputs for user in users)
        return is_taken or self._flow.graphs.may_return(graph.graph_id, op.op_name, slot)


def is_check(op_type: str, inputs: Sequence[object]) -> bool:
    """Returns whether an op only tests whether a tensor is bad.

    Args:
        op_type: The type of the op.
        inputs: The tensors that the op takes.
    """
    return op_type in CHECKS or (op_type in SELF_CHECKS and len(inputs) == 2 and inputs[0] == inputs[1])


def is_decision(op_type: str) -> bool:
    """Returns whether the integers and booleans that an op makes depend on the values that it takes."""
    return op_type not in CHECKS and not is_writer(op_type) and not _IGNORES_VALUES.fullmatch(op_type)


def is_writer(op_type: str) -> bool:
    """Returns whether an op writes to a variable."""
    if op_type == "MakeIterator":
        return False
    return bool(WRITER.fullmatch(op_type) or REFERENCE_WRITER.fullmatch(op_type))


def effect_of_decision(role: str | None) -> str:
    """Returns the effect of a NaN from which an op with this role makes an integer or a boolean."""
    return "metric" if role == "metric" else "result"


def _rejects_proposals(graph: Graph, comparison: Op) -> bool:
    """Returns whether a comparison with NaN makes the program drop the proposal that led to the NaN.

    An example is a sampler: `tf.where(log(u) < density(proposal) - density(state), proposal, state)`. A comparison with
    NaN is false, so the sampler drops the proposal and keeps the state. The comparison may select only between a
    proposal from which the NaN may come and the state from which the proposal was made. If the program also tests
    whether the compared numbers are finite, the comparison may select between any two tensors.
    """
    if comparison.op_type not in _ORDERS:
        return False
    selects: list[Op] = []
    tested: set[tuple[str, int]] = set()
    to_follow = [comparison.op_name]
    while to_follow:
        name = to_follow.pop()
        users = [graph.ops[user] for user in graph.users.get(name, ())]
        if not users or len(selects) > _MAX_KEPT:
            return False  # the function returns the comparison, or uses it very often
        for user in users:
            if user.op_type == "LogicalAnd":
                to_follow.append(user.op_name)
                others = (graph.ops.get(source) for source, _ in user.inputs if source != name)
                tested.update(
                    edge for other in others if other and other.op_type == "IsFinite" for edge in other.inputs
                )
            elif user.op_type in SELECTS and user.inputs[0][0] == name and (name, 0) not in user.inputs[1:]:
                selects.append(user)
            else:
                return False
    if not tested.isdisjoint(comparison.inputs):
        return True
    behind = _behind(graph, comparison)
    return all(
        kept[0] != proposal[0]
        and proposal not in comparison.inputs
        and proposal[0] in behind
        and (kept[0] in _behind(graph, graph.ops[proposal[0]]) or graph.ops[kept[0]].op_type == "Placeholder")
        for select in selects
        for proposal, kept in [select.inputs[1:3]]
        if proposal[0] in graph.ops and kept[0] in graph.ops
    )


def _behind(graph: Graph, op: Op) -> Collection[str]:
    """Returns the ops of a graph from which an op is computed, including the op itself."""

    def sources(name: str) -> Iterator[str]:
        return (source for source, _ in graph.ops[name].inputs if source in graph.ops)

    return set(breadth_first([op.op_name], sources))
