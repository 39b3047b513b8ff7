"""Divides a graph into scopes (layers, roles and name scopes), which can be unfolded down to the ops.

The forward ops of a layer are in its scope. The gradient ops of the layer are in a second scope, the layer's gradient
side, so that the edges of a training step do not form a cycle. Ops outside layers are in a scope for their role, which
contains their name scopes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tfdbg_arrow.query.display.graph_borders import CalledGraph, called_graphs
from tfdbg_arrow.query.engine import Engine

MAX_NODES = 300
"""Maximum number of nodes that are shown."""
MAX_OPS_OF_SCOPE = 60
"""Maximum number of ops that an unfolded scope shows; the other ops are merged into one node."""
_NUM_AT_FIRST = 40
"""At first, layers are unfolded as long as there are at most this many nodes."""
ROOT = 0
"""The number of the scope that contains all ops."""
GRADIENT = "gradient"
_OTHER = "other ops"
_MAX_DEPTH = 24
"""Maximum number of layers that contain an op, and of name scopes below the layers. Deeper scopes are left out."""


@dataclass(frozen=True)
class ScopeHealth:
    """The health of some ops over the run.

    Attributes:
        num_tensors: Number of recorded tensors.
        num_measured: Number of tensors that are known to be bad or not bad.
        num_bad: Number of tensors that hold an infinity or a NaN.
        first_bad_event_index: The first bad tensor; None if no tensor is bad.
    """

    num_tensors: int
    num_measured: int
    num_bad: int
    first_bad_event_index: int | None

    @property
    def state(self) -> str:
        """The health as one word, as in `neighbourhood.OpNode`."""
        if self.num_bad:
            return "bad"
        return "healthy" if self.num_measured else "unmeasured" if self.num_tensors else "not recorded"


@dataclass(frozen=True, kw_only=True)
class OpenScope:
    """An unfolded scope.

    Attributes:
        scope_id: The number of the scope.
        name: The name without the names of the outer scopes.
        side: `gradient` for a scope of gradient ops, otherwise the role of an outermost scope; None if it is not known.
        is_layer: Whether the scope is a layer or contains layers.
        outer_id: The unfolded scope that contains this scope; ROOT for an outermost scope.
        num_ops: Total number of ops.
        health: The health of these ops.
    """

    scope_id: int
    name: str
    side: str | None
    is_layer: bool
    outer_id: int
    num_ops: int
    health: ScopeHealth


@dataclass(frozen=True, kw_only=True)
class ScopeNode(OpenScope):
    """A node: a folded scope, an op, or the ops of a scope that do not fit. It also has the attributes of OpenScope.

    Attributes:
        kind: `scope`, `op` or `rest`.
        scope_id: For `rest`, the scope of the ops; for `op`, None.
        op_name: The name of the op.
        op_type: The type of the op.
        calls: The graphs that the op calls.
    """

    kind: str
    scope_id: int | None  # type: ignore[assignment]
    op_name: str | None = None
    op_type: str | None = None
    calls: tuple[CalledGraph, ...] = ()


@dataclass(frozen=True)
class ScopeEdge:
    """The tensors that go from one node to another.

    Attributes:
        source: The position of the source in `ScopeGraph.nodes`.
        target: The position of the target.
        num_tensors: Number of op outputs.
        num_bad: Number of these outputs that were bad at least once.
    """

    source: int
    target: int
    num_tensors: int
    num_bad: int


@dataclass(frozen=True, kw_only=True)
class ScopeGraph:
    """A graph by its scopes.

    Attributes:
        graph_id: The graph.
        num_ops: Total number of ops.
        nodes: The nodes. The outer scopes are in the order of their first ops.
        open_scopes: The unfolded scopes, each after the scope that contains it.
        edges: The edges between nodes. Control edges are left out.
        no_room: The names of scopes that stay folded because there would be more than MAX_NODES nodes.
    """

    graph_id: int
    num_ops: int
    nodes: tuple[ScopeNode, ...]
    open_scopes: tuple[OpenScope, ...]
    edges: tuple[ScopeEdge, ...]
    no_room: tuple[str, ...]

    @property
    def open_ids(self) -> tuple[int, ...]:
        """The numbers of the unfolded scopes."""
        return tuple(scope.scope_id for scope in self.open_scopes)


def scope_graph(
    logdir: Engine, *, run_id: str, graph_id: int, open_ids: Sequence[int] | None = None, max_nodes: int = MAX_NODES
) -> ScopeGraph:
    """Returns a graph by its scopes.

    Args:
        logdir: The logdir.
        run_id: The run.
        graph_id: The graph.
        open_ids: The numbers of the scopes to unfold; unknown numbers are ignored. A scope has the same number in every
            answer about a graph. None unfolds the layers that contain layers.
        max_nodes: Maximum number of nodes. A scope for which there is no room stays folded.
    """
    tree = logdir.kept("graph scopes", (run_id, graph_id), lambda: _read_tree(logdir, run_id=run_id, graph_id=graph_id))
    is_open, no_room = tree.opened(open_ids, max_nodes)
    nodes, open_scopes, node_of = tree.shown(is_open)
    calls = called_graphs(
        logdir, [node.op_name for node in nodes if node.op_name is not None], run_id=run_id, graph_id=graph_id
    )
    return ScopeGraph(
        graph_id=graph_id,
        num_ops=len(tree.ops),
        nodes=tuple(replace(node, calls=calls.get(node.op_name or "", ())) for node in nodes),
        open_scopes=tuple(open_scopes),
        edges=_edges(tree, node_of),
        no_room=tuple(tree.scopes[number].name for number in no_room),
    )


@dataclass(frozen=True)
class _Op:
    """An op: its name and type, the number of its scope, and its health."""

    name: str
    op_type: str
    health: ScopeHealth


@dataclass
class _Scope:
    """A scope.

    Attributes:
        name: The name of the scope without the names of the outer scopes.
        side: As in ScopeNode.
        is_layer: As in ScopeNode.
        scopes: The inner scopes, by name.
        ops: The positions of the ops that are directly in the scope.
        number: The number of the scope.
        outer: The number of the scope that contains this scope.
        all_ops: The positions of all ops in the scope.
    """

    name: str
    side: str | None
    is_layer: bool
    scopes: dict[tuple[str, str | None], _Scope] = field(default_factory=dict)
    ops: list[int] = field(default_factory=list)
    number: int = ROOT
    outer: int = ROOT
    all_ops: list[int] = field(default_factory=list)

    def inside(self, name: str, side: str | None, *, is_layer: bool) -> _Scope:
        return self.scopes.setdefault((name, side), _Scope(name, side, is_layer))


@dataclass(frozen=True)
class _Tree:
    """The scopes of a graph by number, its ops in order of creation, and its data edges.

    An edge is (source op, output, target op, whether the output was bad); ops are given by position.
    """

    scopes: tuple[_Scope, ...]
    ops: tuple[_Op, ...]
    edges: tuple[tuple[int, int, int, bool], ...]

    def opened(self, wanted: Sequence[int] | None, max_nodes: int) -> tuple[set[int], list[int]]:
        """Returns the scopes that are unfolded, and the scopes for which there is no room."""
        is_open, no_room = {ROOT}, []
        number = _num_inside(self.scopes[ROOT])
        if wanted is None:
            # Breadth first, so that the layers of a model are unfolded evenly.
            order = sorted(self.scopes[1:], key=lambda scope: self._depth(scope))
            order = [scope for scope in order if any(inner.is_layer for inner in scope.scopes.values())]
            max_nodes = min(max_nodes, _NUM_AT_FIRST)
        else:
            scope_ids = dict.fromkeys(scope_id for scope_id in wanted if ROOT < scope_id < len(self.scopes))
            order = sorted((self.scopes[scope_id] for scope_id in scope_ids), key=lambda scope: self._depth(scope))
        for scope in order:
            if scope.outer not in is_open:
                continue
            num_added = _num_inside(scope) - 1
            if number + num_added <= max_nodes:
                is_open.add(scope.number)
                number += num_added
            elif wanted is not None:
                no_room.append(scope.number)
        return is_open, no_room

    def _depth(self, scope: _Scope) -> int:
        depth = 0
        while scope.number != ROOT:
            scope = self.scopes[scope.outer]
            depth += 1
        return depth

    def shown(self, is_open: set[int]) -> tuple[list[ScopeNode], list[OpenScope], list[int]]:
        """Returns the nodes, the unfolded scopes, and for each op the position of the node that contains it."""
        nodes: list[ScopeNode] = []
        open_scopes: list[OpenScope] = []
        node_of = [0] * len(self.ops)

        def add(node: ScopeNode, ops: Iterable[int]) -> None:
            for op in ops:
                node_of[op] = len(nodes)
            nodes.append(node)

        unvisited = [self.scopes[ROOT]]
        while unvisited:
            scope = unvisited.pop()
            if scope.number != ROOT:
                open_scopes.append(OpenScope(**self._facts(scope)))
            for inner in scope.scopes.values():
                if inner.number not in is_open:
                    add(ScopeNode(kind="scope", **self._facts(inner)), inner.all_ops)
            unvisited += [inner for inner in reversed(scope.scopes.values()) if inner.number in is_open]
            alone, rest = self._divided(scope)
            for position in alone:
                op = self.ops[position]
                name = op.name.rpartition("/")[2]
                of_op = ScopeNode(
                    kind="op",
                    scope_id=None,
                    name=name,
                    op_name=op.name,
                    op_type=op.op_type,
                    **self._inside(scope, [position]),
                )
                add(of_op, [position])
            if rest:
                name = f"{len(rest):,} more ops"
                add(ScopeNode(kind="rest", scope_id=scope.number, name=name, **self._inside(scope, rest)), rest)
        return nodes, open_scopes, node_of

    def _facts(self, scope: _Scope) -> dict[str, Any]:
        """Returns the attributes of an OpenScope."""
        return {
            "scope_id": scope.number,
            "name": scope.name,
            "side": scope.side,
            "is_layer": scope.is_layer,
            "outer_id": scope.outer,
            "num_ops": len(scope.all_ops),
            "health": self._health(scope.all_ops),
        }

    def _inside(self, scope: _Scope, ops: Sequence[int]) -> dict[str, Any]:
        """Returns the attributes of a ScopeNode for some ops of an unfolded scope."""
        return {
            "side": scope.side,
            "is_layer": False,
            "outer_id": scope.number,
            "num_ops": len(ops),
            "health": self._health(ops),
        }

    def _divided(self, scope: _Scope) -> tuple[list[int], list[int]]:
        """Returns the ops of a scope that are shown, and the other ops.

        If there is no room for all, bad ops come first.
        """
        if len(scope.ops) <= MAX_OPS_OF_SCOPE:
            return scope.ops, []
        first = sorted(scope.ops, key=lambda op: (-self.ops[op].health.num_bad, op))[:MAX_OPS_OF_SCOPE]
        return sorted(first), sorted(set(scope.ops) - set(first))

    def _health(self, ops: Iterable[int]) -> ScopeHealth:
        return _total([self.ops[op].health for op in ops])


def _total(healths: Sequence[ScopeHealth]) -> ScopeHealth:
    bad = [health.first_bad_event_index for health in healths if health.first_bad_event_index is not None]
    return ScopeHealth(
        num_tensors=sum(health.num_tensors for health in healths),
        num_measured=sum(health.num_measured for health in healths),
        num_bad=sum(health.num_bad for health in healths),
        first_bad_event_index=min(bad, default=None),
    )


def _num_inside(scope: _Scope) -> int:
    """Returns the number of nodes in an unfolded scope whose inner scopes are folded."""
    return len(scope.scopes) + min(len(scope.ops), MAX_OPS_OF_SCOPE + 1)


def _edges(tree: _Tree, node_of: Sequence[int]) -> tuple[ScopeEdge, ...]:
    tensors_of_edge: dict[tuple[int, int], set[tuple[int, int, bool]]] = {}
    for source, slot, target, is_bad in tree.edges:
        ends = node_of[source], node_of[target]
        if ends[0] != ends[1]:
            tensors_of_edge.setdefault(ends, set()).add((source, slot, is_bad))
    return tuple(
        ScopeEdge(*ends, len(tensors), sum(is_bad for _, _, is_bad in tensors))
        for ends, tensors in sorted(tensors_of_edge.items())
    )


def _read_tree(logdir: Engine, *, run_id: str, graph_id: int) -> _Tree:
    of_graph = [run_id, graph_id]
    rows = logdir.rows(
        "SELECT op_name, op_type, layer, role FROM graph_op WHERE run_id = ? AND graph_id = ? ORDER BY op_index",
        of_graph,
    )
    outputs = {
        (op_name, slot): ScopeHealth(*health)
        for op_name, slot, *health in logdir.rows(
            "SELECT op_name, output_slot, count(*), count(has_inf_or_nan), "
            "count(CASE WHEN has_inf_or_nan THEN 1 END), min(CASE WHEN has_inf_or_nan THEN event_index END) "
            "FROM tensor_health WHERE run_id = ? AND graph_id = ? AND scope = 'graph' GROUP BY op_name, output_slot",
            of_graph,
        )
    }
    of_op: dict[str, list[ScopeHealth]] = {}
    for (op_name, _), health in outputs.items():
        of_op.setdefault(op_name, []).append(health)
    ops = tuple(_Op(name, op_type, _total(of_op.get(name, ()))) for name, op_type, _, _ in rows)
    root = _Scope("", None, False)
    for position, (name, _, layer, role) in enumerate(rows):
        scope = root
        for layer_name in layer.split("/")[:_MAX_DEPTH] if layer else ():
            scope = scope.inside(layer_name, GRADIENT if role == GRADIENT else None, is_layer=True)
        if not layer:
            scope = root.inside(role or _OTHER, GRADIENT if role == GRADIENT else None, is_layer=False)
        for part in name.split("/")[:-1][:_MAX_DEPTH]:
            scope = scope.inside(part, scope.side, is_layer=False)
        scope.ops.append(position)
    # A graph without layers and roles needs no scope around all ops.
    if len(root.scopes) == 1 and (_OTHER, None) in root.scopes:
        root = root.scopes[_OTHER, None]
    _merge_chains(root)
    scopes: list[_Scope] = []
    _number(root, scopes)
    position_of_op = {name: position for position, (name, *_) in enumerate(rows)}
    bad_outputs = {output for output, health in outputs.items() if health.num_bad}
    edges = logdir.rows(
        "SELECT source_op_name, source_output_slot, op_name FROM graph_op_input "
        "WHERE run_id = ? AND graph_id = ? AND NOT is_control",
        of_graph,
    )
    return _Tree(
        scopes=tuple(scopes),
        ops=ops,
        edges=tuple(
            (position_of_op[source], slot, position_of_op[target], (source, slot) in bad_outputs)
            for source, slot, target in edges
            if source in position_of_op and target in position_of_op
        ),
    )


def _walk(root: _Scope) -> Iterator[_Scope]:
    unvisited = [root]
    while unvisited:
        scope = unvisited.pop()
        yield scope
        unvisited += scope.scopes.values()


def _merge_chains(root: _Scope) -> None:
    """Removes scopes whose only content is one name scope.

    TensorFlow's name scopes repeat the names of the layers, with a number, so the names below a layer add no
    information.
    """
    for scope in _walk(root):
        while not scope.ops and len(scope.scopes) == 1:
            (only,) = scope.scopes.values()
            if only.is_layer or (scope is root and only.name):
                break
            if not scope.is_layer and scope is not root and scope.outer != ROOT:
                scope.name = f"{scope.name}/{only.name}"
            scope.scopes, scope.ops = only.scopes, only.ops


def _number(root: _Scope, scopes: list[_Scope]) -> None:
    """Numbers the scopes, each after the scope that contains it, and collects the ops in each of them."""
    unvisited = [(root, ROOT)]
    while unvisited:
        scope, outer = unvisited.pop()
        scope.number, scope.outer = len(scopes), outer
        scopes.append(scope)
        unvisited += [(inner, scope.number) for inner in reversed(scope.scopes.values())]
    for scope in reversed(scopes):
        scope.all_ops = sorted([*scope.ops, *(op for inner in scope.scopes.values() for op in inner.all_ops)])
