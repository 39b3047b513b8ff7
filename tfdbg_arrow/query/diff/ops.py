"""Aligns the ops of two graphs that were traced from the same function in two processes.

Ops are created in the order of the Python program, so two traces of a program are two sequences that differ by edits,
such as ops that mixed precision inserts or a changed line. Names do not identify ops: an inserted op renumbers those
behind it, and a layer that is created earlier changes the scopes.
"""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from tfdbg_arrow.query.diff.sequences import Tokens, align, match_rest
from tfdbg_arrow.query.diff.stack_keys import StackKeys
from tfdbg_arrow.query.diff.tolerance import PRECISIONS
from tfdbg_arrow.query.flow.graphs import Call, Graph, GraphReader, Op

_NUMBER = re.compile(r"_\d+")
_LOOSEST = 2
"""The level at which ops are aligned only by their type."""
_MAX_SOURCES = 256

Tensor = tuple[str, int]
"""Name of an op, and the index of its output."""
RecordedOp = tuple[int, str]
"""Graph id, and name of an op in the graph."""


@dataclass(frozen=True)
class GraphPair:
    """Two graphs whose ops are aligned.

    Attributes:
        graph_a: The graph of A.
        graph_b: The graph of B.
        ops: The op of B for each aligned op of A.
        sources: For each aligned op of A, the tensors of aligned ops of A that it or its counterpart was made from.
            These are its inputs. Inputs from ops that only one of the graphs has, or that were not recorded, are
            replaced by the inputs of these ops.
        jumps: For each aligned op of A, those of its sources that come through an unrecorded integer or bool.
        num_ops_a: Number of ops in the graph of A.
        num_ops_b: Number of ops in the graph of B.
        extra: For each aligned op of A with unaligned ops between it and its sources, the first of them, as (side, op
            name).
    """

    graph_a: int
    graph_b: int
    ops: dict[str, str] = field(repr=False)
    sources: dict[str, tuple[Tensor, ...]] = field(repr=False)
    jumps: dict[str, frozenset[Tensor]] = field(repr=False)
    num_ops_a: int
    num_ops_b: int
    extra: dict[str, tuple[str, str]] = field(repr=False)


class OpAligner:
    """Aligns the graphs of two runs, one pair at a time.

    Args:
        a: The graphs of A.
        b: The graphs of B.
        stacks: The stacks of both runs.
        recorded: The ops with rows in tensor_health, as (graph id, name), of A and of B.
    """

    def __init__(
        self, a: GraphReader, b: GraphReader, stacks: StackKeys, recorded: tuple[Set[RecordedOp], Set[RecordedOp]]
    ) -> None:
        self._graphs = (a, b)
        self._recorded = recorded
        self._stacks = stacks
        self.pair = lru_cache(maxsize=None)(self._align)

    def calls_a(self, graph_id: int, op_name: str) -> list[Call]:
        """Returns the functions that an op of A calls within the caller's step."""
        return self._graphs[0].calls(graph_id, op_name)

    def _align(self, graph_a: int, graph_b: int) -> GraphPair:
        graphs = (self._graphs[0].graph(graph_a), self._graphs[1].graph(graph_b))
        ops = tuple(list(graph.ops.values()) for graph in graphs)
        levels = self._levels(graphs)
        pairs = align(levels[0], levels[1])
        taken = ({i for i, _, _ in pairs}, {j for _, j, _ in pairs})
        rest = tuple(
            np.array([i for i in range(len(ops[side])) if i not in taken[side]], np.int64) for side in range(2)
        )
        # Ops in a different order, such as those of branches from a loop over a set, match by name, type and stack.
        pairs += ((i, j, 0) for i, j in match_rest(levels[0][0], levels[1][0], rest[0], rest[1]))
        aligned = {ops[0][i].op_name: ops[1][j].op_name for i, j, _ in pairs}
        for i, j, level in pairs:
            if level == _LOOSEST and not _is_supported(ops[0][i], ops[1][j], graphs, aligned):
                del aligned[ops[0][i].op_name]
        back = {b: a for a, b in aligned.items()}
        known = {
            a: b for a, b in aligned.items() if (graph_a, a) in self._recorded[0] and (graph_b, b) in self._recorded[1]
        }
        of_a = _Sources(graphs[0], set(aligned), set(known))
        of_b = _Sources(graphs[1], set(back), set(known.values()))
        sources: dict[str, tuple[Tensor, ...]] = {}
        jumps: dict[str, frozenset[Tensor]] = {}
        extra: dict[str, tuple[str, str]] = {}
        for name_a, name_b in aligned.items():
            from_a, through_a = of_a.of(name_a)
            from_b, through_b = of_b.of(name_b)
            translated = {(back[name], slot): is_jump for (name, slot), is_jump in from_b.items()}
            sources[name_a] = tuple(dict.fromkeys((*from_a, *translated)))
            jumped = frozenset(tensor for found in (from_a, translated) for tensor, is_jump in found.items() if is_jump)
            if jumped:
                jumps[name_a] = jumped
            if through_a is not None or through_b is not None:
                extra[name_a] = ("a", through_a) if through_a is not None else ("b", str(through_b))
        return GraphPair(graph_a, graph_b, aligned, sources, jumps, len(ops[0]), len(ops[1]), extra)

    def _levels(self, graphs: tuple[Graph, Graph]) -> tuple[list[Tokens], list[Tokens]]:
        numbers: dict[object, int] = {}
        found: tuple[list[Tokens], list[Tokens]] = ([], [])
        for side, graph in enumerate(graphs):
            kinds: dict[str, list[str]] = {}
            for (name, _), dtype in sorted(graph.dtypes.items()):
                kinds.setdefault(name, []).append(PRECISIONS[dtype].kind if dtype in PRECISIONS else str(dtype))
            keys: tuple[list[object], list[object], list[object]] = ([], [], [])
            for op in graph.ops.values():
                is_call = bool(self._graphs[side].calls(graph.graph_id, op.op_name))
                # The number of captured tensors may differ.
                loose: tuple[object, ...] = (op.op_type, "call")
                if not is_call:
                    loose = (op.op_type, len(op.inputs), *kinds.get(op.op_name, ()))
                keys[0].append((*loose, self._stacks.whole(side, op.stack_trace_id), _NUMBER.sub("", op.op_name)))
                keys[1].append((*loose, "line", self._stacks.line(side, op.stack_trace_id)))
                keys[2].append(loose)
            for level in keys:
                found[side].append(np.array([numbers.setdefault(key, len(numbers)) for key in level], np.int64))
        return found


class _Sources:
    """The aligned and recorded tensors that ops of one graph were made from."""

    def __init__(self, graph: Graph, aligned: Set[str], known: Set[str]) -> None:
        self._graph = graph
        self._aligned = aligned
        self._known = known

    def of(self, op_name: str) -> tuple[dict[Tensor, bool], str | None]:
        """Returns the tensors, each with whether it comes through an unrecorded integer or bool, and an op or None.

        The op is the first one on the way that has no counterpart and does more than pass a tensor on.
        """
        found: dict[Tensor, bool] = {}
        through: str | None = None
        seen: set[tuple[str, bool]] = set()
        waiting = [(source, False) for source in reversed(self._graph.ops[op_name].inputs)]
        while waiting and len(found) < _MAX_SOURCES:
            (name, slot), is_jump = waiting.pop()
            if name in self._known:
                found[name, slot] = found.get((name, slot), False) or is_jump
                continue
            op = self._graph.ops.get(name)
            dtype = self._graph.dtypes.get((name, slot))
            is_jump = is_jump or (dtype in PRECISIONS and PRECISIONS[dtype].kind in ("integer", "bool"))
            if op is None or (name, is_jump) in seen:
                continue
            seen.add((name, is_jump))
            if through is None and name not in self._aligned and op.op_type not in PRECISION_OPS:
                through = name
            waiting += ((source, is_jump) for source in reversed(op.inputs))
        return found, through


PRECISION_OPS = frozenset({"Cast", "Identity", "IdentityN"})
"""Ops that mixed precision inserts, and ops that pass tensors on unchanged."""


def _is_supported(a: Op, b: Op, graphs: tuple[Graph, Graph], aligned: dict[str, str]) -> bool:
    """Returns whether ops without inputs that are aligned only by their type are also used alike."""
    if a.inputs or b.inputs or a.op_type == "Placeholder":
        return True
    return any(
        _indexes(graphs[0].ops[user], a.op_name) & _indexes(graphs[1].ops[aligned[user]], b.op_name)
        for user in graphs[0].users.get(a.op_name, ())
        if user in aligned and user in graphs[0].ops and aligned[user] in graphs[1].ops
    )


def _indexes(op: Op, source: str) -> set[int]:
    return {index for index, (name, _) in enumerate(op.inputs) if name == source}
