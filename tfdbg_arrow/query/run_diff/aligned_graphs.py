"""Aligns the ops of two graphs that were traced from the same function, and the call sites in two runs.

Ops are created in the order of the Python program, so two traces of a program are two sequences that differ by edits.
Examples of edits are a changed line, and ops that mixed precision inserts. Names do not identify ops: an inserted op
renumbers the ops after it, and a layer that is created earlier changes the scopes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from tfdbg_arrow.query.flow.callsites import CallSites, Level
from tfdbg_arrow.query.flow.graphs import Graph, GraphReader
from tfdbg_arrow.query.recorded import Op
from tfdbg_arrow.query.run_diff.alignment import StackKeys, Tokens, align_all
from tfdbg_arrow.query.run_diff.comparing import PRECISIONS
from tfdbg_arrow.query.run_diff.workspace import Sides
from tfdbg_arrow.schema.op_traits import Trait, types_with

PRECISION_OPS = types_with(Trait.STANDS_FOR_CALL) | {"Cast"}
"""Ops that mixed precision inserts, and ops without a meaning to the program. StopGradient and some other ops also pass
tensors on unchanged, but have a meaning."""
_NUMBER = re.compile(r"_\d+")
_LOOSEST = 2
"""The index of the level that aligns ops only by their type."""
_MAX_SOURCES = 256
"""Number of sources of an op at which the search ends. Bounds the time behind many unrecorded ops."""
UNKNOWN_SITE = "?"
"""The call site of rows with an unknown context."""

Tensor = tuple[str, int]
"""The name of an op, and the index of its output."""
RecordedOp = tuple[int, str]
"""The id of a graph, and the name of an op in the graph."""
Step = tuple[int, str, str, int]
"""One call on a path: the graph, the op, the attribute and the branch."""
Path = tuple[int, tuple[Step, ...]]
"""The outermost graph, and the calls on the way from this graph."""


@dataclass(frozen=True)
class GraphPair:
    """Two graphs whose ops are aligned.

    Attributes:
        graph_a: The graph of A.
        graph_b: The graph of B.
        ops: For each aligned op of A, the op of B.
        sources: For each aligned op of A, the tensors from which the inputs of the op or of its counterpart were
            computed. The tensors are outputs of other aligned ops of A. An input from an op that only one of the graphs
            has, or that was not recorded, is replaced by the inputs of that op.
        jumps: For each aligned op of A, the sources that reach the op through an unrecorded integer or bool.
        num_ops_a: Number of ops in the graph of A.
        num_ops_b: Number of ops in the graph of B.
        extra: For each aligned op of A with unaligned ops between the op and its sources, the first unaligned op, as
            (side, op name).
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
        recorded: The ops with rows in tensor_health, as (graph id, name), of A and of B.
    """

    def __init__(self, sides: Sides, stacks: StackKeys, recorded: tuple[Set[RecordedOp], Set[RecordedOp]]) -> None:
        self._graphs = (sides[0].graphs, sides[1].graphs)
        self._recorded = recorded
        self._stacks = stacks
        self.pair = lru_cache(maxsize=None)(self._align)

    def _align(self, graph_a: int, graph_b: int) -> GraphPair:
        graphs = (self._graphs[0].graph(graph_a), self._graphs[1].graph(graph_b))
        ops = tuple(list(graph.ops.values()) for graph in graphs)
        levels = self._levels(graphs)
        # Ops that are in a different order match by name, type and stack. A loop over a set creates such ops.
        pairs = align_all(*levels)
        aligned = {ops[0][i].op_name: ops[1][j].op_name for i, j, _ in pairs}
        for i, j, level in pairs:
            if level == _LOOSEST and not _is_supported(ops[0][i], ops[1][j], graphs, aligned):
                del aligned[ops[0][i].op_name]
        back = {b: a for a, b in aligned.items()}
        recorded_pairs = {
            a: b for a, b in aligned.items() if (graph_a, a) in self._recorded[0] and (graph_b, b) in self._recorded[1]
        }
        of_a = _Sources(graphs[0], set(aligned), set(recorded_pairs))
        of_b = _Sources(graphs[1], set(back), set(recorded_pairs.values()))
        sources: dict[str, tuple[Tensor, ...]] = {}
        jumps: dict[str, frozenset[Tensor]] = {}
        extra: dict[str, tuple[str, str]] = {}
        for name_a, name_b in aligned.items():
            from_a, through_a = of_a.of(name_a)
            from_b, through_b = of_b.of(name_b)
            translated = {(back[name], slot): is_jump for (name, slot), is_jump in from_b.items()}
            sources[name_a] = tuple(dict.fromkeys((*from_a, *translated)))
            jumped = frozenset(
                tensor for tensors in (from_a, translated) for tensor, is_jump in tensors.items() if is_jump
            )
            if jumped:
                jumps[name_a] = jumped
            if through_a is not None or through_b is not None:
                extra[name_a] = ("a", through_a) if through_a is not None else ("b", str(through_b))
        return GraphPair(graph_a, graph_b, aligned, sources, jumps, len(ops[0]), len(ops[1]), extra)

    def _levels(self, graphs: tuple[Graph, Graph]) -> tuple[list[Tokens], list[Tokens]]:
        numbers: dict[object, int] = {}
        levels: tuple[list[Tokens], list[Tokens]] = ([], [])
        for side, graph in enumerate(graphs):
            kinds: dict[str, list[str | None]] = {}
            for (name, _), dtype in sorted(graph.dtypes.items()):
                kinds.setdefault(name, []).append(PRECISIONS[dtype].kind if dtype in PRECISIONS else str(dtype))
            keys: tuple[list[object], list[object], list[object]] = ([], [], [])
            for op in graph.ops.values():
                is_call = bool(self._graphs[side].calls(graph.graph_id, op.op_name))
                # The number of captured tensors may differ, so the number of inputs of a call is not compared.
                loose: tuple[object, ...] = (op.op_type, "call")
                if not is_call:
                    loose = (op.op_type, len(op.inputs), *kinds.get(op.op_name, ()))
                keys[0].append(
                    (*loose, self._stacks.number("whole", side, op.stack_trace_id), _NUMBER.sub("", op.op_name))
                )
                keys[1].append((*loose, "line", self._stacks.number("line", side, op.stack_trace_id)))
                keys[2].append(loose)
            for level in keys:
                levels[side].append(np.array([numbers.setdefault(key, len(numbers)) for key in level], np.int64))
        return levels


class _Sources:
    """Finds the aligned and recorded tensors that the inputs of ops of one graph came from."""

    def __init__(self, graph: Graph, aligned: Set[str], recorded_ops: Set[str]) -> None:
        self._graph = graph
        self._aligned = aligned
        self._recorded_ops = recorded_ops

    def of(self, op_name: str) -> tuple[dict[Tensor, bool], str | None]:
        """Returns the source tensors of an op, and the first op without a counterpart on the way to them, or None.

        The value for each tensor says whether the tensor comes through an unrecorded integer or bool. The second result
        is the first op without a counterpart that does more than pass a tensor on.
        """
        sources: dict[Tensor, bool] = {}
        through: str | None = None
        seen: set[tuple[str, bool]] = set()
        unvisited = [(source, False) for source in reversed(self._graph.ops[op_name].inputs)]
        while unvisited and len(sources) < _MAX_SOURCES:
            (name, slot), is_jump = unvisited.pop()
            if name in self._recorded_ops:
                sources[name, slot] = sources.get((name, slot), False) or is_jump
                continue
            op = self._graph.ops.get(name)
            dtype = self._graph.dtypes.get((name, slot))
            is_jump = is_jump or (dtype in PRECISIONS and PRECISIONS[dtype].kind in ("integer", "bool"))
            if op is None or (name, is_jump) in seen:
                continue
            seen.add((name, is_jump))
            if through is None and name not in self._aligned and op.op_type not in PRECISION_OPS:
                through = name
            unvisited += ((source, is_jump) for source in reversed(op.inputs))
        return sources, through


def _is_supported(a: Op, b: Op, graphs: tuple[Graph, Graph], aligned: dict[str, str]) -> bool:
    """Returns whether two ops that are aligned only by their type have inputs, or are also used in the same way."""
    if a.inputs or b.inputs or a.op_type == "Placeholder":
        return True
    return any(
        _indexes(graphs[0].ops[user], a.op_name) & _indexes(graphs[1].ops[aligned[user]], b.op_name)
        for user in graphs[0].users.get(a.op_name, ())
        if user in aligned and user in graphs[0].ops and aligned[user] in graphs[1].ops
    )


def _indexes(op: Op, source: str) -> set[int]:
    return {index for index, (name, _) in enumerate(op.inputs) if name == source}


@dataclass(frozen=True)
class FoundSite:
    """A call site in recorded rows: the graph of the execution (-1 for no graph), the op's graph, the path as text."""

    root: int
    graph_id: int
    call_site: str


@dataclass(frozen=True)
class AlignedSite:
    """One call site in both runs.

    Attributes:
        site_id: The number of the site.
        start_id: The number of the pair of outermost graphs.
        graph_a: The graph at the site in A.
        graph_b: The graph at the site in B.
        a: The occurrences of the site in rows of A: (graph of the execution in A, graph of the execution in B, site).
        b: The occurrences of the site in rows of B.
    """

    site_id: int
    start_id: int
    graph_a: int
    graph_b: int
    a: tuple[tuple[int, int, FoundSite], ...]
    b: tuple[tuple[int, int, FoundSite], ...]


def align_sites(
    roots: Iterable[tuple[int, int]], sites: tuple[list[FoundSite], list[FoundSite]], sides: Sides, aligner: OpAligner
) -> list[AlignedSite]:
    """Aligns the call sites that two runs recorded rows for.

    Args:
        roots: The graphs of A and B that aligned executions call; (-1, -1) for rows without an execution.
        sites: The call sites of each run.
        sides: The two runs.
        aligner: The aligner for the ops of the runs.
    """
    by_root: tuple[dict[int, dict[Path, list[FoundSite]]], ...] = ({}, {})
    for side in range(2):
        for site in sites[side]:
            path = _path(site, sides[side].flow.sites)
            by_root[side].setdefault(site.root, {}).setdefault(path, []).append(site)
    root_b_of = dict(roots)
    aligned: list[AlignedSite] = []
    starts: dict[tuple[int, int], int] = {}
    ids: dict[tuple[int, int, Path], int] = {}
    for root_a, root_b in sorted(set(roots)):
        others = by_root[1].get(root_b, {})
        start_b = _starts_by_name(sides, by_root[0].get(root_a, {}), others, root_b_of)
        for path_a, sites_a in by_root[0].get(root_a, {}).items():
            start = root_b if path_a[0] == root_a else start_b.get(path_a[0])
            if start is None:
                continue
            translated = _translate(path_a, start, sides, aligner)
            if translated is None or translated[0] not in others:
                continue
            path_b, pair = translated
            aligned.append(
                AlignedSite(
                    ids.setdefault((root_a, root_b, path_b), len(ids)),
                    starts.setdefault((path_a[0], start), len(starts)),
                    pair.graph_a,
                    pair.graph_b,
                    tuple((root_a, root_b, site) for site in sites_a),
                    tuple((root_a, root_b, site) for site in others[path_b]),
                )
            )
    return aligned


def _path(site: FoundSite, call_sites: CallSites) -> Path:
    if site.call_site == UNKNOWN_SITE:
        return site.graph_id, ((site.graph_id, UNKNOWN_SITE, "", 0),)
    levels: tuple[Level, ...] | None = None
    if site.root >= 0:
        levels = call_sites.levels(site.graph_id, site.call_site, root=site.root)
    if levels is None:  # a function of a dataset, which runs during the execution but in separate steps
        levels = call_sites.levels(site.graph_id, site.call_site, root=None)
    if levels is None:
        return site.graph_id, ((site.graph_id, UNKNOWN_SITE, "", 0),)
    start = levels[0].call.graph_id if levels else site.graph_id
    return start, tuple(
        (level.call.graph_id, level.call.op_name, level.call.attribute, level.call.branch_index) for level in levels
    )


def _starts_by_name(sides: Sides, a: Iterable[Path], b: Iterable[Path], root_b_of: dict[int, int]) -> dict[int, int]:
    """Returns the graph of B for each outermost graph of A, from `root_b_of`, or by name and order."""
    names: dict[str, list[int]] = {}
    for graph_id in sorted({path[0] for path in b}):
        names.setdefault(sides[1].graphs.names.get(graph_id, ""), []).append(graph_id)
    start_b: dict[int, int] = {}
    for graph_id in sorted({path[0] for path in a}):
        if graph_id in root_b_of:
            start_b[graph_id] = root_b_of[graph_id]
            continue
        same = names.get(sides[0].graphs.names.get(graph_id, ""), [])
        if same:
            start_b[graph_id] = same.pop(0)
    return start_b


def _translate(path: Path, start: int, sides: Sides, aligner: OpAligner) -> tuple[Path, GraphPair] | None:
    """Returns the path of B for a path of A, and the graphs at its end; None if an op on the path is not aligned."""
    pair = aligner.pair(path[0], start)
    steps: list[Step] = []
    for graph_id, op_name, attribute, branch in path[1]:
        if op_name == UNKNOWN_SITE:
            steps.append((pair.graph_b, UNKNOWN_SITE, "", 0))
            break
        other = pair.ops.get(op_name)
        callee_a = _callee(sides[0].graphs, graph_id, op_name, attribute, branch)
        callee_b = None if other is None else _callee(sides[1].graphs, pair.graph_b, other, attribute, branch)
        if other is None or callee_a is None or callee_b is None:
            return None
        steps.append((pair.graph_b, other, attribute, branch))
        pair = aligner.pair(callee_a, callee_b)
    return (start, tuple(steps)), pair


def _callee(graphs: GraphReader, graph_id: int, op_name: str, attribute: str, branch: int) -> int | None:
    """Returns the graph that an op calls through an attribute, or None."""
    calls = graphs.calls(graph_id, op_name)
    fitting = (call.callee_graph_id for call in calls if (call.attribute, call.branch_index) == (attribute, branch))
    return next(fitting, None)
