"""Sessions: the runs of TensorFlow 1 sessions. Each run counts as a call of a function that runs a part of a graph.

See "Runs of a session" in the specification.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tfdbg_arrow.link.tables import Tables, listed, rows_of
from tfdbg_arrow.schema.op_traits import REFERENCE_WRITER, WRITER, Trait, types_with

FIRST_ROOT = -2
"""The root of the first function. Other functions have smaller roots, graphs have roots from 0 on, and -1 is
unknown."""

_FUNCTIONS = f"""
CREATE OR REPLACE TEMP TABLE linked_session AS
SELECT
    {FIRST_ROOT} + 1 - row_number() OVER (ORDER BY function_name) AS root, function_name, graph_id, session_index,
    session_targets
FROM graph_function
WHERE session_index IS NOT NULL"""
_FED_OPS = types_with(Trait.FED)
_NEXT = types_with(Trait.NEXT)

_Tensor = tuple[str, int]


class _GraphOp(NamedTuple):
    op_type: str
    data: list[_Tensor]
    control: list[str]


@dataclass(frozen=True)
class SessionFunction:
    """All runs of a session with the same feeds, fetches and targets.

    Attributes:
        root: The number that stands for the outermost graph of the function.
        name: The name of the function in `execution.op_type`.
        graph_id: The graph of the session.
        positions: The ops that the function runs, each with its place in a possible order of execution. A write to a
            variable comes after all ops that do not have to wait for the write.
        feeds: (op, output) that is fed -> index of the feed.
    """

    root: int
    name: str
    graph_id: int
    positions: dict[str, int] = field(default_factory=dict)
    feeds: dict[_Tensor, int] = field(default_factory=dict)


class Sessions:
    """The runs of sessions.

    The class also creates the temporary tables `linked_session` (the functions) and `linked_ran` (the ops that the
    functions run, and the fed ops).

    Attributes:
        functions: The functions by their roots.
    """

    def __init__(self, tables: Tables) -> None:
        tables.run(_FUNCTIONS)
        self.functions: dict[int, SessionFunction] = {}
        targets: dict[int, list[str]] = {}
        for root, name, graph_id, text in rows_of(
            tables.columns("SELECT root, function_name, graph_id, session_targets FROM linked_session")
        ):
            self.functions[root] = SessionFunction(root, name, graph_id)
            targets[root] = _names(text)
        if self.functions:
            self._read_interfaces(tables, targets)
            graphs = _read_graphs(tables)
            for root, function in self.functions.items():
                ops = graphs[function.graph_id]
                function.positions.update(_ordered(ops, _needed(ops, targets[root], function.feeds), function.feeds))
        ran = [(root, *op, True) for root, function in self.functions.items() for op in function.positions.items()]
        for root, function in self.functions.items():
            fed = {op_name for op_name, _ in function.feeds} - function.positions.keys()
            ran += [(root, op_name, 0, False) for op_name in sorted(fed)]
        listed(
            tables,
            "linked_ran",
            root=("BIGINT", [row[0] for row in ran]),
            op_name=("VARCHAR", [row[1] for row in ran]),
            position=("BIGINT", [row[2] for row in ran]),
            has_run=("BOOLEAN", [row[3] for row in ran]),
        )

    def graph_of(self, root: int) -> int | None:
        """Returns the outermost graph that a root stands for, None if that graph is unknown."""
        if root in self.functions:
            return self.functions[root].graph_id
        return root if root >= 0 else None

    def root_of(self, function_name: str, graph_id: int) -> int:
        """Returns the root that stands for a function's graph."""
        roots = (root for root, function in self.functions.items() if function.name == function_name)
        return next(roots, graph_id)

    def has_run(self, root: int, graph_id: int, text: str, op_name: str) -> bool:
        """Returns whether an op ran when its graph ran. A session runs only some of the ops of its own graph."""
        function = self.functions.get(root)
        is_outermost = function is not None and not text and function.graph_id == graph_id
        return not is_outermost or op_name in self.functions[root].positions

    def _read_interfaces(self, tables: Tables, targets: dict[int, list[str]]) -> None:
        for root, index, op_name, slot in rows_of(
            tables.columns(
                "SELECT s.root, i.input_index, i.op_name, i.output_slot FROM graph_function_input AS i "
                "JOIN linked_session AS s USING (function_name) ORDER BY ALL"
            )
        ):
            self.functions[root].feeds.setdefault((op_name, max(slot, 0)), index)
        for root, op_name in rows_of(
            tables.columns(
                "SELECT s.root, o.op_name FROM graph_function_output AS o "
                "JOIN linked_session AS s USING (function_name) ORDER BY ALL"
            )
        ):
            targets[root].append(op_name)


def _names(text: str | None) -> list[str]:
    """Returns the names in a JSON array, which may be any text in a logdir from an untrusted source."""
    try:
        names = json.loads(text or "[]")
    except ValueError:
        return []
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _read_graphs(tables: Tables) -> dict[int, dict[str, _GraphOp]]:
    """Returns the ops of the graphs of sessions in the order of their creation."""
    of_session = "graph_id IN (SELECT graph_id FROM linked_session)"
    graphs: dict[int, dict[str, _GraphOp]] = defaultdict(dict)
    for graph_id, op_name, op_type in rows_of(
        tables.columns(f"SELECT graph_id, op_name, op_type FROM graph_op WHERE {of_session} ORDER BY op_index, op_name")
    ):
        graphs[graph_id][op_name] = _GraphOp(op_type, [], [])
    for graph_id, op_name, source, slot, is_control in rows_of(
        tables.columns(
            "SELECT graph_id, op_name, source_op_name, source_output_slot, is_control FROM graph_op_input "
            f"WHERE {of_session} ORDER BY graph_id, op_name, input_index"
        )
    ):
        if op_name in graphs[graph_id] and source in graphs[graph_id]:
            op = graphs[graph_id][op_name]
            if is_control:
                op.control.append(source)
            else:
                op.data.append((source, slot))
    return graphs


def _sources(ops: dict[str, _GraphOp], name: str, feeds: dict[_Tensor, int]) -> Iterator[str]:
    """Yields the ops that must run before an op, given the feeds."""
    fed_ops = {fed for fed, _ in feeds}
    yield from (source for source, slot in ops[name].data if (source, slot) not in feeds)
    for source in ops[name].control:
        if not (source in fed_ops and ops[source].op_type in _FED_OPS):
            yield source


def _needed(ops: dict[str, _GraphOp], asked_for: list[str], feeds: dict[_Tensor, int]) -> set[str]:
    """Returns the ops that a run executes to compute the requested ops."""
    unexpanded = [name for name in asked_for if name in ops]
    needed = set(unexpanded)
    while unexpanded:
        new = set(_sources(ops, unexpanded.pop(), feeds)) - needed
        needed |= new
        unexpanded += new
    return needed


def _ordered(ops: dict[str, _GraphOp], needed: set[str], feeds: dict[_Tensor, int]) -> dict[str, int]:
    """Returns the place of each needed op in a possible order of execution, with each write as late as possible."""
    num_missing: dict[str, int] = {}
    takers: dict[str, list[str]] = defaultdict(list)
    for name in ops:
        if name not in needed:
            continue
        sources = {source for source in _sources(ops, name, feeds) if ops[source].op_type not in _NEXT}
        num_missing[name] = len(sources)
        for source in sources:
            takers[source].append(name)
    ready: tuple[deque[str], deque[str]] = deque(), deque()  # ops that compute, and ops that write

    def add(name: str) -> None:
        op_type = ops[name].op_type
        ready[bool(WRITER.fullmatch(op_type) or REFERENCE_WRITER.fullmatch(op_type))].append(name)

    for name, number in num_missing.items():
        if not number:
            add(name)
    positions: dict[str, int] = {}
    while ready[0] or ready[1]:
        name = (ready[0] or ready[1]).popleft()
        positions[name] = len(positions)
        for taker in takers[name]:
            num_missing[taker] -= 1
            if not num_missing[taker]:
                add(taker)
    # A cycle that is not a loop occurs only in a hostile logdir.
    positions.update((name, len(positions)) for name in num_missing if name not in positions)
    return positions
