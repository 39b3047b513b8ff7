"""Aligns call sites: the same path of calls through the aligned ops of two runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tfdbg_arrow.query.diff.ops import GraphPair, OpAligner
from tfdbg_arrow.query.flow.callsites import CallSites, Level
from tfdbg_arrow.query.flow.graphs import GraphReader

UNKNOWN_SITE = "?"
"""Stands for the call site of rows with an unknown context."""

Step = tuple[int, str, str, int]
"""One call on a path: graph, op, attribute, branch."""
Path = tuple[int, tuple[Step, ...]]
"""The outermost graph, and the calls starting from it."""


@dataclass(frozen=True)
class FoundSite:
    """A call site in recorded rows: the graph of the execution (-1 for none), the op's graph, the path as text."""

    root: int
    graph_id: int
    call_site: str


@dataclass(frozen=True)
class AlignedSite:
    """One call site in both runs.

    Attributes:
        site_id: Its number.
        start_id: Number of the outermost graph's pair.
        graph_a: The graph there in A.
        graph_b: The graph there in B.
        a: Its occurrences in rows of A: (graph of the execution in A, graph of the execution in B, site).
        b: Its occurrences in rows of B.
    """

    site_id: int
    start_id: int
    graph_a: int
    graph_b: int
    a: tuple[tuple[int, int, FoundSite], ...]
    b: tuple[tuple[int, int, FoundSite], ...]


def align_sites(
    roots: Iterable[tuple[int, int]],
    found: tuple[list[FoundSite], list[FoundSite]],
    graphs: tuple[GraphReader, GraphReader],
    call_sites: tuple[CallSites, CallSites],
    aligner: OpAligner,
) -> list[AlignedSite]:
    """Aligns the call sites at which two runs left rows.

    Args:
        roots: The graphs of A and B that aligned executions call; (-1, -1) for rows without an execution.
        found: The call sites of each run.
        graphs: The graphs of each run.
        call_sites: The readers for the call sites of each run.
        aligner: The aligner for their ops.
    """
    by_root: tuple[dict[int, dict[Path, list[FoundSite]]], ...] = ({}, {})
    for side in range(2):
        for site in found[side]:
            path = _path(site, call_sites[side])
            by_root[side].setdefault(site.root, {}).setdefault(path, []).append(site)
    known = dict(roots)
    aligned: list[AlignedSite] = []
    starts: dict[tuple[int, int], int] = {}
    ids: dict[tuple[int, int, Path], int] = {}
    for root_a, root_b in sorted(set(roots)):
        others = by_root[1].get(root_b, {})
        start_b = _starts_by_name(graphs, by_root[0].get(root_a, {}), others, known)
        for path_a, sites_a in by_root[0].get(root_a, {}).items():
            start = root_b if path_a[0] == root_a else start_b.get(path_a[0])
            if start is None:
                continue
            translated = _translate(path_a, start, graphs[1], aligner)
            if translated is None:
                continue
            path_b, pair = translated
            sites_b = others.get(path_b, [])
            if not sites_b:
                continue
            key = (root_a, root_b, path_b)
            aligned.append(
                AlignedSite(
                    ids.setdefault(key, len(ids)),
                    starts.setdefault((path_a[0], start), len(starts)),
                    pair.graph_a,
                    pair.graph_b,
                    tuple((root_a, root_b, site) for site in sites_a),
                    tuple((root_a, root_b, site) for site in sites_b),
                )
            )
    return aligned


def _path(site: FoundSite, call_sites: CallSites) -> Path:
    if site.call_site == UNKNOWN_SITE:
        return site.graph_id, ((site.graph_id, UNKNOWN_SITE, "", 0),)
    levels: tuple[Level, ...] | None = None
    if site.root >= 0:
        levels = call_sites.levels(site.graph_id, site.call_site, root_graph_id=site.root)
    if levels is None:  # a function of a dataset, which runs in the execution but in steps of its own
        levels = call_sites.levels(site.graph_id, site.call_site, root_graph_id=None)
    if levels is None:
        return site.graph_id, ((site.graph_id, UNKNOWN_SITE, "", 0),)
    start = levels[0].call.graph_id if levels else site.graph_id
    return start, tuple(
        (level.call.graph_id, level.call.op_name, level.call.attribute, level.call.branch_index) for level in levels
    )


def _starts_by_name(
    graphs: tuple[GraphReader, GraphReader],
    a: Iterable[Path],
    b: Iterable[Path],
    known: dict[int, int],
) -> dict[int, int]:
    """Returns, for outermost graphs of A that no execution calls, those of B: if known, or else by name and order."""
    names: dict[str, list[int]] = {}
    for graph_id in sorted({path[0] for path in b}):
        names.setdefault(graphs[1].names.get(graph_id, ""), []).append(graph_id)
    found: dict[int, int] = {}
    for graph_id in sorted({path[0] for path in a}):
        if graph_id in known:
            found[graph_id] = known[graph_id]
            continue
        same = names.get(graphs[0].names.get(graph_id, ""), [])
        if same:
            found[graph_id] = same.pop(0)
    return found


def _translate(path: Path, start: int, graphs_b: GraphReader, aligner: OpAligner) -> tuple[Path, GraphPair] | None:
    """Returns a path of A as a path of B, and the graphs at its end, or None if an op on it is not aligned."""
    pair = aligner.pair(path[0], start)
    steps: list[Step] = []
    for index, (_, op_name, attribute, branch) in enumerate(path[1]):
        if op_name == UNKNOWN_SITE:
            steps.append((pair.graph_b, UNKNOWN_SITE, "", 0))
            break
        other = pair.ops.get(op_name)
        if other is None:
            return None
        call = next(
            (
                call
                for call in graphs_b.calls(pair.graph_b, other)
                if (call.attribute, call.branch_index) == (attribute, branch)
            ),
            None,
        )
        if call is None or call.callee_graph_id is None:
            return None
        steps.append((pair.graph_b, other, attribute, branch))
        callee = _callee(path, index, aligner, call.callee_graph_id)
        if callee is None:
            return None
        pair = callee
    return (start, tuple(steps)), pair


def _callee(path: Path, index: int, aligner: OpAligner, graph_b: int) -> GraphPair | None:
    """Returns the pair of graphs that call number `index` of a path leads to, or None."""
    graph_id, op_name, attribute, branch = path[1][index]
    call = next(
        (
            call
            for call in aligner.calls_a(graph_id, op_name)
            if (call.attribute, call.branch_index) == (attribute, branch)
        ),
        None,
    )
    return None if call is None or call.callee_graph_id is None else aligner.pair(call.callee_graph_id, graph_b)
