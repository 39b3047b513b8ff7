"""The graphs that TensorFlow ran after its optimizer changed them: nodes, and how tensors pass between nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from tfdbg_arrow.query.recorded import Op
from tfdbg_arrow.safe_text import parse_json
from tfdbg_arrow.schema.op_traits import BORDERS, Trait, types_with

ENTERS = types_with(Trait.ENTERS)
EXITS = types_with(Trait.EXITS)
MERGES = types_with(Trait.MERGES)
NEXT_ITERATIONS = types_with(Trait.NEXT)
SWITCHES = types_with(Trait.SWITCHES)
"""Types of the nodes at the borders of loops and branches."""
RESULTS = types_with(Trait.RESULT)
"""Types of the nodes that return a result of the outermost function."""
HANDING_ON = types_with(Trait.STANDS_FOR_CALL)
_BORDERS = types_with(BORDERS | Trait.STANDS_FOR_CALL)
MAX_PASSED = 1_000
"""One edge is followed through at most this many nodes that stand for no op of the program."""
_REPLACING = ("AddOpsRewrite_", "HoistCommonFactor_Mul_", "ReplaceMulWithSquare_", "ReplaceMulWithBroadcastByTile_")
"""Prefixes of names that TensorFlow's arithmetic optimizer gives to nodes that replace an op."""
_PREPARING = "AddOpsRewrite_Leaf_"


@dataclass(frozen=True, slots=True)
class ExecutedNode:
    """One node of an optimized graph.

    Attributes:
        node_name: The name of the node.
        op_type: The type that ran.
        graph_id: The program's graph from which the node comes; None if unknown.
        op_name: The program's op whose outputs the node computes; None if there is no such op.
        made_for: If op_name is None, the program's op for which the optimizer made the node, if known.
        call_site: Path of calling ops from the outermost graph; None if unknown.
        dtypes: Dtypes of the node's outputs; None if unknown.
        interface_index: If the node stands for an argument or a result of the outermost function, the index of this
            argument or result; otherwise None.
        inputs: (name of the source node, output slot of the source node) for each data input.
    """

    node_name: str
    op_type: str
    graph_id: int | None
    op_name: str | None
    made_for: str | None
    call_site: str | None
    dtypes: tuple[str | None, ...] | None
    interface_index: int | None
    inputs: tuple[tuple[str, int], ...]

    @property
    def name(self) -> str:
        """The op_name of the node's rows in tensor_health."""
        return self.node_name if self.op_name is None else self.op_name


class ExecutedGraph:
    """One graph that TensorFlow ran, after its optimizer changed it."""

    def __init__(self, nodes: Iterable[ExecutedNode]) -> None:
        self.nodes = {node.node_name: node for node in nodes}
        self._at: dict[tuple[int, str], dict[str, ExecutedNode]] = {}
        for node in self.nodes.values():
            if node.graph_id is not None and node.call_site is not None:
                self._at.setdefault((node.graph_id, node.call_site), {}).setdefault(node.name, node)

    def node(self, graph_id: int, call_site: str, name: str) -> ExecutedNode | None:
        """Returns the node whose rows in tensor_health have this graph, call site and op_name."""
        return self._at.get((graph_id, call_site), {}).get(name)

    def has_site(self, graph_id: int, call_site: str) -> bool:
        """Returns whether any node comes from a graph at a call site."""
        return (graph_id, call_site) in self._at

    @property
    def sites(self) -> Iterable[tuple[int, str]]:
        """The graphs and call sites from which the nodes come."""
        return self._at.keys()

    def has_op(self, graph_id: int, op_name: str) -> bool:
        """Returns whether an op of a graph has a node at any call site."""
        return bool(self.nodes_of(graph_id, op_name))

    def nodes_of(self, graph_id: int, op_name: str) -> list[ExecutedNode]:
        """Returns the nodes of an op of a graph, one for each call site."""
        return [nodes[op_name] for (other, _), nodes in self._at.items() if other == graph_id and op_name in nodes]

    def users(self, node_name: str, output_slot: int) -> list[tuple[ExecutedNode, int, int]]:
        """Returns (node that takes the tensor, index of the input, slot of the tensor) for each use of a tensor."""
        return [use for use in self._users.get(node_name, ()) if use[2] == output_slot]

    @cached_property
    def _users(self) -> dict[str, list[tuple[ExecutedNode, int, int]]]:
        users: dict[str, list[tuple[ExecutedNode, int, int]]] = {}
        for node in self.nodes.values():
            for index, (source, slot) in enumerate(node.inputs):
                users.setdefault(source, []).append((node, index, slot))
        return users

    def steps(self, merge: ExecutedNode) -> list[int]:
        """Returns the indexes of those inputs of a Merge that carry a loop's tensor from one iteration to the next."""
        return [
            index
            for index, (source, _) in enumerate(merge.inputs)
            if source in self.nodes and self.nodes[source].op_type in NEXT_ITERATIONS
        ]

    @cached_property
    def unchanged(self) -> frozenset[str]:
        """The Merges of loop variables that each iteration hands on unchanged, such as a captured tensor."""
        return frozenset(node.node_name for node in self.nodes.values() if node.op_type in MERGES and self._keeps(node))

    def _keeps(self, merge: ExecutedNode) -> bool:
        steps = self.steps(merge)
        if len(steps) != 1 or len(merge.inputs) != 2:
            return False
        name = merge.inputs[steps[0]][0]
        for _ in range(MAX_PASSED):
            node = self.nodes.get(name)
            if node is None or node is merge:
                return node is merge
            if not is_border(node) or node.op_type == "IdentityN" or not node.inputs:
                return False
            if node.op_type not in HANDING_ON | SWITCHES | NEXT_ITERATIONS:
                return False
            name = node.inputs[0][0]
        return False

    @cached_property
    def results(self) -> dict[int, ExecutedNode]:
        """The nodes that return the results of the outermost function, by the index of the result."""
        return {
            node.interface_index: node
            for node in self.nodes.values()
            if node.op_type in RESULTS and node.interface_index is not None
        }

    def made_nodes(self, graph_id: int) -> list[ExecutedNode]:
        """Returns the nodes that the optimizer made for a graph and that are not ops of the program."""
        return [node for node in self.nodes.values() if node.graph_id == graph_id and node.op_name is None]

    def replaced(self, made: ExecutedNode, ops: Mapping[str, Op]) -> tuple[str, int] | None:
        """Returns the op and slot that a node of the optimizer replaces, or None if they are not known.

        A user of the node shows the op: in the program, the user takes the output of the op in place of the output of
        the node. The optimizer also sorts the inputs of ops such as Mul by name, so the inputs at the same index can
        differ. So the result counts only if the name of the node does not contain the op.

        Args:
            made: The node.
            ops: The ops of the node's graph, by name.
        """
        for user, index, _ in self._users.get(made.node_name, ()):
            op = ops.get(user.op_name or "") if user.graph_id == made.graph_id else None
            if op is None or op.op_type != user.op_type or len(op.inputs) != len(user.inputs):
                continue
            name, slot = op.inputs[index]
            others = {source for source, _ in user.inputs} & {other for other, _ in op.inputs}
            if name in ops and name not in others and not self.has_op(made.graph_id or 0, name):
                return name, slot
        return None


def replaced_slot_named_in(node_name: str) -> int | None:
    """Returns the output slot that a node of the optimizer computes. The slot belongs to the op in the node's name.

    The result is None if the node only prepares the output.
    """
    last = node_name.rpartition("/")[2]
    is_replacing = last.startswith(_REPLACING) and not last.startswith(_PREPARING)
    return 0 if last == "unary_ops_composition" or is_replacing else None


def read_dtypes(text: str | None) -> tuple[str | None, ...] | None:
    """Parses output_dtypes, which may be any text in a logdir from an untrusted source."""
    try:
        names = parse_json(text) if text is not None else None
    except ValueError:
        return None
    return tuple(name if isinstance(name, str) else None for name in names) if isinstance(names, list) else None


def is_border(node: ExecutedNode) -> bool:
    """Returns whether a node is no op of the program and only passes a tensor across a border."""
    return node.op_name is None and node.op_type in _BORDERS


def handed_on(node: ExecutedNode, index: int, slot: int) -> Iterator[tuple[str, int]]:
    """Yields those outputs of a border node that have the value of an input."""
    if not is_border(node):
        return
    if node.op_type in SWITCHES and index == 0:
        yield from ((node.node_name, output) for output in range(len(node.dtypes or ()) or 2))
    elif node.op_type in HANDING_ON:
        yield node.node_name, index if node.op_type == "IdentityN" else 0


@dataclass(frozen=True, slots=True)
class Passed:
    """A tensor of an op, found behind nodes that only hand the tensor on.

    Attributes:
        node: The node of the op.
        slot: The output of the node.
        is_of_loop: Whether the tensor is the result of a loop. If so, only the tensor of the last iteration is handed
            on.
        is_carried: Whether a loop carries the tensor to the next iteration. If so, the tensor of the last iteration is
            not handed on.
    """

    node: ExecutedNode
    slot: int
    is_of_loop: bool
    is_carried: bool = False


def passed_on(graph: ExecutedGraph, name: str, slot: int) -> Passed | None:
    """Returns the source of a tensor, which is a tensor of an op. None if the source depends on the context."""
    is_of_loop = False
    for _ in range(MAX_PASSED):
        node = graph.nodes.get(name)
        if node is None:
            return None
        if not is_border(node):
            return Passed(node, slot, is_of_loop)
        index = slot if node.op_type == "IdentityN" else 0
        if node.op_type in EXITS:
            is_of_loop = True
        elif node.op_type in MERGES:
            steps = graph.steps(node)
            if not is_of_loop or len(steps) != 1:
                return None
            index = steps[0]
        elif node.op_type not in HANDING_ON | SWITCHES | NEXT_ITERATIONS:
            return None
        if index >= len(node.inputs):
            return None
        name, slot = node.inputs[index]
    return None


def all_passed_on(graph: ExecutedGraph, name: str, slot: int) -> Iterator[Passed]:
    """Yields the possible sources of a tensor, which are tensors of ops.

    A loop variable can come from outside the loop or from the loop's body. The result of a conditional can come from
    any branch. A tensor that a branch only hands on is left out.
    """
    to_follow = [(name, slot, False)]
    seen = set(to_follow)
    while to_follow and len(seen) < MAX_PASSED:
        name, slot, is_carried = to_follow.pop()
        node, more = graph.nodes.get(name), []
        if node is None:
            continue
        passed = passed_on(graph, name, slot)
        if passed is not None:
            yield replace(passed, is_carried=is_carried)
        elif node.op_type in MERGES and len(steps := graph.steps(node)) == 1 and len(node.inputs) == 2:
            more = [(*node.inputs[index], is_carried or index == steps[0]) for index in range(2)]
        elif node.op_type in MERGES and not graph.steps(node):
            inside = (passed_on(graph, *edge) for edge in node.inputs)
            yield from (
                replace(inner, is_carried=is_carried)
                for inner in inside
                if inner is not None and inner.node.call_site not in (None, node.call_site)
            )
        elif is_border(node) and node.op_type in HANDING_ON | SWITCHES | ENTERS | NEXT_ITERATIONS:
            index = slot if node.op_type == "IdentityN" else 0
            more = [(*edge, is_carried) for edge in node.inputs[index : index + 1]]
        to_follow += [edge for edge in more if edge not in seen]
        seen.update(more)
