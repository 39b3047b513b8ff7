"""The neighbourhood of an op in its graph: what it was computed from and what takes it, so many ops away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.recorded import Context
from tfdbg_arrow.query.structure.borders import Border, CalledGraph, borders, called_graphs
from tfdbg_arrow.query.structure.output_health import OpOutput, bad_ops, op_outputs

MAX_DEPTH = 8
MAX_OPS = 150
"""Ops that are shown in all."""
MAX_FAN = 24
"""Inputs, and consumers, that are shown of one op."""
_MAX_EDGES = 4000
STATES = ("bad", "healthy", "unmeasured", "absorbed", "not computed", "not recorded", "no output", "unknown")
"""What is known of an op's health: the worst of its outputs. `unmeasured`: recorded without health; `absorbed`: left
without a node of its own by TensorFlow's optimizer; `not computed`: no row although it was to be recorded;
`not recorded`: left out, by its dtype or a setting; `unknown`: the graph names an op that it does not hold."""


@dataclass(frozen=True, kw_only=True)
class OpNode:
    """One op.

    Attributes:
        op_name: Its name.
        op_type: Its type; None where the graph does not hold it.
        executed_types: The types of the nodes that ran for it, none where TensorFlow's optimizer absorbed it; None
            where the graph ran as the program has it.
        level: How many ops away: 0 is the op that was asked for, -1 its inputs, 1 its consumers.
        state: One of STATES.
        outputs: Its outputs, by slot.
        calls: What it calls.
        num_inputs: How many ops it takes tensors from or waits for; also those that are not shown.
        num_consumers: How many ops take its tensors or wait for it.
    """

    op_name: str
    op_type: str | None
    executed_types: tuple[str, ...] | None
    level: int
    state: str
    outputs: tuple[OpOutput, ...]
    calls: tuple[CalledGraph, ...]
    num_inputs: int
    num_consumers: int


@dataclass(frozen=True, kw_only=True)
class OpEdge:
    """A tensor that goes from one op to another, or that one waits for the other.

    Attributes:
        source_op_name: The op it comes from.
        source_output_slot: Which output; None for a control edge.
        op_name: The op that takes it.
        input_indexes: As which inputs.
        is_control: Whether no tensor flows.
    """

    source_op_name: str
    source_output_slot: int | None
    op_name: str
    input_indexes: tuple[int, ...]
    is_control: bool


@dataclass(frozen=True, kw_only=True)
class Neighbourhood:
    """The neighbourhood of an op.

    Attributes:
        run_id: The run.
        graph_id: The graph.
        op_name: The op that was asked for.
        up: How far to its inputs.
        down: How far to its consumers.
        nodes: The op itself, then the others, the near ones first.
        edges: The edges between them.
        borders: Where tensors come into the graph or leave it at these ops.
        num_inputs_left_out: How many inputs of the op itself are not shown for want of room.
        num_consumers_left_out: How many of its consumers are not.
        is_cut: Whether anything within the depth was left out for want of room.
    """

    run_id: str
    graph_id: int
    op_name: str
    up: int
    down: int
    nodes: tuple[OpNode, ...]
    edges: tuple[OpEdge, ...]
    borders: tuple[Border, ...]
    num_inputs_left_out: int
    num_consumers_left_out: int
    is_cut: bool


def neighbourhood(
    logdir: Engine,
    op_name: str,
    *,
    run_id: str,
    graph_id: int,
    up: int = 2,
    down: int = 2,
    has_control: bool = True,
    context: Context | None = None,
    max_ops: int = MAX_OPS,
    max_fan: int = MAX_FAN,
) -> Neighbourhood | None:
    """Returns the neighbourhood of an op, or None where its graph has no such op.

    That of a node that TensorFlow's optimizer made is the one of the op that it is made for.

    Where there is no room for all, ops with something bad come first, then data edges, in the order of the inputs.

    Args:
        logdir: The logdir.
        op_name: The op.
        run_id: The run.
        graph_id: Its graph.
        up: How many ops far to go against the edges, at most MAX_DEPTH.
        down: How many ops far to go along the edges.
        has_control: Whether control edges count.
        context: Health in this run of the graph; None: the worst over the run.
        max_ops: At most so many ops.
        max_fan: At most so many inputs, and so many consumers, of each.
    """
    reader = _Edges(logdir, run_id=run_id, graph_id=graph_id, has_control=has_control)
    if not reader.types([op_name]):
        op = DataFlow.of(logdir, run_id=run_id).graphs.op(graph_id, op_name)
        if op is None or op.made_for is None:
            return None
        op_name = op.made_for
    up, down = min(up, MAX_DEPTH), min(down, MAX_DEPTH)
    bad = [op.op_name for op in bad_ops(logdir, run_id=run_id, graph_id=graph_id, context=context)]
    levels = {op_name: 0}
    is_cut = False
    # In turn, so that neither side takes all the room.
    frontiers = {-1: [op_name], 1: [op_name]}
    for depth in range(1, max(up, down) + 1):
        for direction, limit in ((-1, up), (1, down)):
            if depth > limit:
                continue
            found, is_fan_cut = reader.next_ops(frontiers[direction], direction, first=bad, max_fan=max_fan)
            new = [name for name in found if name not in levels]
            room = max_ops - len(levels)
            is_cut = is_cut or is_fan_cut or len(new) > room
            levels |= dict.fromkeys(new[:room], direction * depth)
            frontiers[direction] = new[:room]
    names = list(levels)
    edges = reader.edges_between(names)
    num_inputs, num_consumers = reader.counts(names, -1), reader.counts(names, 1)
    shown_inputs = len({edge.source_op_name for edge in edges if edge.op_name == op_name})
    shown_consumers = len({edge.op_name for edge in edges if edge.source_op_name == op_name})
    types = reader.types(names)
    executed_types = reader.executed_types(names)
    outputs = op_outputs(logdir, names, run_id=run_id, graph_id=graph_id, context=context)
    calls = called_graphs(logdir, names, run_id=run_id, graph_id=graph_id)
    nodes = tuple(
        OpNode(
            op_name=name,
            op_type=types.get(name),
            level=level,
            executed_types=executed_types.get(name),
            state=_state(outputs.get(name, ()), executed_types.get(name)) if name in types else "unknown",
            outputs=outputs.get(name, ()),
            calls=calls.get(name, ()),
            num_inputs=num_inputs.get(name, 0),
            num_consumers=num_consumers.get(name, 0),
        )
        for name, level in levels.items()
    )
    return Neighbourhood(
        run_id=run_id,
        graph_id=graph_id,
        op_name=op_name,
        up=up,
        down=down,
        nodes=nodes,
        edges=edges,
        borders=borders(logdir, names, run_id=run_id, graph_id=graph_id),
        num_inputs_left_out=num_inputs.get(op_name, 0) - shown_inputs if up else 0,
        num_consumers_left_out=num_consumers.get(op_name, 0) - shown_consumers if down else 0,
        is_cut=is_cut,
    )


class _Edges:
    """Reads ops and edges of one graph."""

    def __init__(self, logdir: Engine, *, run_id: str, graph_id: int, has_control: bool) -> None:
        self._logdir = logdir
        self._run_id = run_id
        self._graph_id = graph_id
        self._of_graph = "run_id = ? AND graph_id = ?" + ("" if has_control else " AND NOT is_control")

    def next_ops(
        self, op_names: Sequence[str], direction: int, *, first: Sequence[str], max_fan: int
    ) -> tuple[list[str], bool]:
        """Returns the ops one edge away from some, and whether some were left out: more than so many of one op."""
        if not op_names:
            return [], False
        near, far = _ends(direction)
        is_first = f"CASE WHEN far IN ({', '.join('?' * len(first))}) THEN 0 ELSE 1 END, " if first else ""
        rows = self._logdir.rows(
            "SELECT near, far, place, num_far FROM (SELECT near, far, row_number() OVER (PARTITION BY near "
            f"ORDER BY {is_first}is_waiting, input_index, far) AS place, count(*) OVER (PARTITION BY near) AS num_far "
            f"FROM (SELECT {near} AS near, {far} AS far, min(CASE WHEN is_control THEN 1 ELSE 0 END) AS is_waiting, "
            f"min(input_index) AS input_index FROM graph_op_input WHERE {self._of_graph} "
            f"AND {near} IN ({_marks(op_names)}) GROUP BY {near}, {far}) AS edges) AS ranked "
            "WHERE place <= ? ORDER BY place, near",
            [*first, self._run_id, self._graph_id, *op_names, max_fan],
        )
        return list(dict.fromkeys(far for _, far, _, _ in rows)), any(number > max_fan for *_, number in rows)

    def counts(self, op_names: Sequence[str], direction: int) -> dict[str, int]:
        """Returns how many ops are one edge away from each."""
        near, far = _ends(direction)
        rows = self._logdir.rows(
            f"SELECT {near}, count(DISTINCT {far}) FROM graph_op_input WHERE {self._of_graph} "
            f"AND {near} IN ({_marks(op_names)}) GROUP BY {near}",
            [self._run_id, self._graph_id, *op_names],
        )
        return dict(rows)

    def edges_between(self, op_names: Sequence[str]) -> tuple[OpEdge, ...]:
        rows = self._logdir.rows(
            "SELECT source_op_name, source_output_slot, op_name, is_control, input_index FROM graph_op_input "
            f"WHERE {self._of_graph} AND op_name IN ({_marks(op_names)}) AND source_op_name IN ({_marks(op_names)}) "
            f"ORDER BY op_name, is_control, input_index LIMIT {_MAX_EDGES}",
            [self._run_id, self._graph_id, *op_names, *op_names],
        )
        found: dict[tuple[str, int | None, str, bool], list[int]] = {}
        for source, slot, op_name, is_control, index in rows:
            found.setdefault((source, None if is_control else slot, op_name, is_control), []).append(index)
        return tuple(
            OpEdge(
                source_op_name=source,
                source_output_slot=slot,
                op_name=op_name,
                input_indexes=tuple(indexes),
                is_control=is_control,
            )
            for (source, slot, op_name, is_control), indexes in found.items()
        )

    def types(self, op_names: Sequence[str]) -> dict[str, str]:
        """Returns the types of those ops that the graph holds."""
        rows = self._logdir.rows(
            "SELECT op_name, op_type FROM graph_op WHERE run_id = ? AND graph_id = ? "
            f"AND op_name IN ({_marks(op_names)})",
            [self._run_id, self._graph_id, *op_names],
        )
        return dict(rows)

    def executed_types(self, op_names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Returns the types that ran for each op; nothing for a graph that ran as the program has it."""
        graph = [self._run_id, self._graph_id]
        if not self._logdir.rows("SELECT 1 FROM executed_op WHERE run_id = ? AND graph_id = ? LIMIT 1", graph):
            return {}
        found: dict[str, tuple[str, ...]] = dict.fromkeys(op_names, ())
        for name, op_type in self._logdir.rows(
            "SELECT DISTINCT op_name, op_type FROM executed_op WHERE run_id = ? AND graph_id = ? "
            f"AND op_name IN ({_marks(op_names)}) ORDER BY op_name, op_type",
            [*graph, *op_names],
        ):
            found[name] += (op_type,)
        return found


def _ends(direction: int) -> tuple[str, str]:
    """Returns the columns of an edge's ends: the one to go from, the one to go to."""
    return ("op_name", "source_op_name") if direction < 0 else ("source_op_name", "op_name")


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _state(outputs: Iterable[OpOutput], executed_types: Sequence[str] | None) -> str:
    """Returns what is known of an op's health by its outputs, and by the types that ran for it."""
    outputs = tuple(outputs)
    health = [output.health for output in outputs if output.health is not None]
    if any(each.num_bad for each in health):
        return "bad"
    if any(each.num_measured for each in health):
        return "healthy"
    if health:
        return "unmeasured"
    if not outputs:
        return "no output"
    if executed_types is not None and not executed_types:
        return "absorbed"
    return "not computed" if any(output.is_recorded for output in outputs) else "not recorded"
