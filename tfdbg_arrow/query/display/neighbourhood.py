"""The neighbourhood of an op in its graph: its inputs and consumers up to a given distance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfdbg_arrow.query.display.graph_borders import Border, CalledGraph, borders, called_graphs
from tfdbg_arrow.query.display.graph_ops import OpOutput, bad_ops, op_outputs
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.recorded import Context

MAX_DEPTH = 8
"""Maximum distance from the op, in ops. A picture with more levels is too wide for a screen."""
MAX_OPS = 150
"""Maximum number of ops in a neighbourhood."""
MAX_FAN = 24
"""Maximum number of inputs per op. It also limits the consumers."""
_MAX_EDGES = 4000
"""Maximum number of inputs that are read. Bounds the page if the ops have very many inputs."""


@dataclass(frozen=True, kw_only=True)
class OpNode:
    """One op.

    Attributes:
        op_name: The name of the op.
        op_type: The type of the op; None if the graph does not contain the op.
        executed_types: The types of the nodes that ran in place of the op. Empty if TensorFlow's optimizer absorbed the
            op; None if the optimized graph was not recorded.
        level: The distance from the given op: 0 for the op itself, -1 for its inputs, 1 for its consumers, and so on.
        state: The health of the worst output of the op:

            * `bad`, `healthy` or `no output`
            * `unmeasured`: the op was recorded without health
            * `absorbed`: TensorFlow's optimizer removed the node of the op
            * `not computed`: the op has no row although it should be recorded
            * `not recorded`: the op's dtype or a setting excluded it
            * `unknown`: the graph refers to the op but does not contain it
        outputs: The outputs of the op, by slot.
        calls: The graphs that the op calls.
        num_inputs: Number of ops that the op takes tensors from or waits for, including ops that are left out.
        num_consumers: Number of ops that take its tensors or wait for it, including ops that are left out.
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


@dataclass(frozen=True)
class OpEdge:
    """An edge from one op to another: a tensor, or a control edge.

    Attributes:
        source_op_name: The source op.
        source_output_slot: The output of the source op; None for a control edge.
        op_name: The op that takes the tensor.
        input_indexes: The inputs of this op that take the tensor.
        is_control: Whether it is a control edge.
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
        op_name: The given op.
        up: The greatest distance against the direction of the edges, to the inputs.
        down: The greatest distance along the edges, to the consumers.
        nodes: The op itself, then the other ops, the nearest first.
        edges: The edges between the nodes.
        borders: Where tensors enter or leave the graph at these ops.
        num_inputs_left_out: Number of inputs of the given op that were left out because of the limits.
        num_consumers_left_out: Number of consumers of the given op that were left out because of the limits.
        num_edges_left_out: Number of inputs of the nodes that come from a node, and whose edges were left out.
        is_cut: Whether the limits left out any op within the distance.
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
    num_edges_left_out: int
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
    """Returns the neighbourhood of an op, or None if the graph has no such op.

    For a node that TensorFlow's optimizer created, the result is the neighbourhood of the op that the node was created
    for.

    If the limits leave out ops, ops with bad outputs are kept first, then ops at data edges, in the order of the
    inputs.

    Args:
        logdir: The logdir.
        op_name: The op.
        run_id: The run.
        graph_id: The graph of the op.
        up: Number of steps to go against the edges, at most MAX_DEPTH.
        down: Number of steps to go along the edges, at most MAX_DEPTH.
        has_control: Whether control edges count.
        context: The run of the graph whose health to read; None means the worst health over the whole run.
        max_ops: Maximum number of ops.
        max_fan: Maximum number of inputs of each op. It also limits the consumers.
    """
    reader = _Edges(logdir, run_id=run_id, graph_id=graph_id, has_control=has_control, context=context)
    if not reader.types([op_name]):
        flow = DataFlow.of(logdir, run_id=run_id)
        with flow.lock:
            op = flow.graphs.op(graph_id, op_name)
        if op is None or op.made_for is None:
            return None
        op_name = op.made_for
    up, down = min(up, MAX_DEPTH), min(down, MAX_DEPTH)
    levels = {op_name: 0}
    is_cut = False
    # The two directions alternate, so that neither direction uses up the limit.
    frontiers = {-1: [op_name], 1: [op_name]}
    for depth in range(1, max(up, down) + 1):
        for direction, limit in ((-1, up), (1, down)):
            if depth > limit:
                continue
            neighbours, is_fan_cut = reader.next_ops(frontiers[direction], direction, max_fan=max_fan)
            new = [name for name in neighbours if name not in levels]
            room = max_ops - len(levels)
            is_cut = is_cut or is_fan_cut or len(new) > room
            levels |= dict.fromkeys(new[:room], direction * depth)
            frontiers[direction] = new[:room]
    names = list(levels)
    edges, num_edges_left_out = reader.edges_between(names)
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
        num_edges_left_out=num_edges_left_out,
        is_cut=is_cut,
    )


class _Edges:
    """Reads ops and edges of one graph."""

    def __init__(
        self, logdir: Engine, *, run_id: str, graph_id: int, has_control: bool, context: Context | None
    ) -> None:
        self._logdir = logdir
        self._run_id = run_id
        self._graph_id = graph_id
        self._of_graph = "run_id = ? AND graph_id = ?" + ("" if has_control else " AND NOT is_control")
        self._bad_ops = bad_ops(run_id=run_id, graph_id=graph_id, context=context)

    def next_ops(self, op_names: Sequence[str], direction: int, *, max_fan: int) -> tuple[list[str], bool]:
        """Returns the ops one edge away from the given ops, and whether `max_fan` left out any op."""
        if not op_names:
            return [], False
        near, far = _ends(direction)
        select_bad, of_bad = self._bad_ops
        rows = self._logdir.rows(
            "SELECT near, far, place, num_far FROM (SELECT near, far, row_number() OVER (PARTITION BY near "
            "ORDER BY CASE WHEN bad.op_name IS NULL THEN 1 ELSE 0 END, is_waiting, input_index, far) AS place, "
            "count(*) OVER (PARTITION BY near) AS num_far "
            f"FROM (SELECT {near} AS near, {far} AS far, min(CASE WHEN is_control THEN 1 ELSE 0 END) AS is_waiting, "
            f"min(input_index) AS input_index FROM graph_op_input WHERE {self._of_graph} "
            f"AND {near} IN ({_marks(op_names)}) GROUP BY {near}, {far}) AS edges "
            f"LEFT JOIN ({select_bad}) AS bad ON bad.op_name = far) AS ranked WHERE place <= ? ORDER BY place, near",
            [self._run_id, self._graph_id, *op_names, *of_bad, max_fan],
        )
        return list(dict.fromkeys(far for _, far, _, _ in rows)), any(number > max_fan for *_, number in rows)

    def counts(self, op_names: Sequence[str], direction: int) -> dict[str, int]:
        """Returns the number of ops one edge away from each op."""
        near, far = _ends(direction)
        rows = self._logdir.rows(
            f"SELECT {near}, count(DISTINCT {far}) FROM graph_op_input WHERE {self._of_graph} "
            f"AND {near} IN ({_marks(op_names)}) GROUP BY {near}",
            [self._run_id, self._graph_id, *op_names],
        )
        return dict(rows)

    def edges_between(self, op_names: Sequence[str]) -> tuple[tuple[OpEdge, ...], int]:
        """Returns the edges between ops, and the number of inputs whose edges are left out."""
        rows = self._logdir.rows(
            "SELECT source_op_name, source_output_slot, op_name, is_control, input_index, count(*) OVER () "
            f"FROM graph_op_input WHERE {self._of_graph} AND op_name IN ({_marks(op_names)}) "
            f"AND source_op_name IN ({_marks(op_names)}) ORDER BY op_name, is_control, input_index LIMIT {_MAX_EDGES}",
            [self._run_id, self._graph_id, *op_names, *op_names],
        )
        indexes_of_edge: dict[tuple[str, int | None, str, bool], list[int]] = {}
        for source, slot, op_name, is_control, index, _ in rows:
            indexes_of_edge.setdefault((source, None if is_control else slot, op_name, is_control), []).append(index)
        edges = tuple(OpEdge(*edge[:3], tuple(indexes), edge[3]) for edge, indexes in indexes_of_edge.items())
        return edges, rows[0][-1] - len(rows) if rows else 0

    def types(self, op_names: Sequence[str]) -> dict[str, str]:
        """Returns the types of the ops that the graph contains, by name."""
        rows = self._logdir.rows(
            "SELECT op_name, op_type FROM graph_op WHERE run_id = ? AND graph_id = ? "
            f"AND op_name IN ({_marks(op_names)})",
            [self._run_id, self._graph_id, *op_names],
        )
        return dict(rows)

    def executed_types(self, op_names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Returns the types of the nodes that ran for each op. Empty if the optimized graph was not recorded."""
        graph = [self._run_id, self._graph_id]
        if not self._logdir.rows("SELECT 1 FROM executed_op WHERE run_id = ? AND graph_id = ? LIMIT 1", graph):
            return {}
        types_of_op: dict[str, tuple[str, ...]] = dict.fromkeys(op_names, ())
        for name, op_type in self._logdir.rows(
            "SELECT DISTINCT op_name, op_type FROM executed_op WHERE run_id = ? AND graph_id = ? "
            f"AND op_name IN ({_marks(op_names)}) ORDER BY op_name, op_type",
            [*graph, *op_names],
        ):
            types_of_op[name] += (op_type,)
        return types_of_op


def _ends(direction: int) -> tuple[str, str]:
    """Returns the columns with the ends of an edge: the near end, then the far end."""
    return ("op_name", "source_op_name") if direction < 0 else ("source_op_name", "op_name")


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _state(outputs: Sequence[OpOutput], executed_types: Sequence[str] | None) -> str:
    """Returns the health of an op, as in OpNode, from its outputs and the types of the nodes that ran for it."""
    healths = [output.health for output in outputs if output.health is not None]
    if any(health.num_bad for health in healths):
        return "bad"
    if any(health.num_measured for health in healths):
        return "healthy"
    if healths:
        return "unmeasured"
    if not outputs:
        return "no output"
    if executed_types is not None and not executed_types:
        return "absorbed"
    return "not computed" if any(output.is_recorded for output in outputs) else "not recorded"
