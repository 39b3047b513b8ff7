"""The borders of a graph: where tensors pass between a graph and its callers, or the graphs that it calls.

These borders apply to all calls of the graphs. `Borders` follows the borders of one recorded call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow

_MAX_ROWS = 2000
"""Maximum number of rows of one query, which bounds the time. Only ops with very many callers exceed it."""
_MAX_CALLERS = 3
"""Maximum number of callers that are returned for each argument and result."""
_MAX_LISTED_CALLERS = 50
"""Maximum number of callers of a graph. A page shows 20 of them, and says how many more there are."""
_SHIFTED = "c.attribute IN ('then_branch', 'else_branch', 'branches')"
"""The SQL condition for calls by If and Case. The first input of these ops is the predicate."""


@dataclass(frozen=True)
class Iterations:
    """The number of runs of a loop, and the least and the greatest number of iterations of one run."""

    num_loops: int
    fewest: int
    most: int


@dataclass(frozen=True)
class CalledGraph:
    """One function that an op can call.

    Attributes:
        op_name: The op.
        attribute: The attribute of the op that names the function: `f`, `body`, `then_branch` and so on.
        branch_index: Position of the function if the attribute is a list of functions.
        function_name: The function's runtime name.
        is_inline: Whether the function runs within the caller's step.
        graph_id: The function's graph; None if this graph was not recorded.
        graph_name: The name of this graph.
        entry_op_name: The op in this graph to show first: the op of the first bad tensor, or of the first result; None
            if unknown.
        num_bad: Number of bad tensors in this graph and in all graphs that it calls, over the run.
        iterations: The iterations of a loop's body; None otherwise.
    """

    op_name: str
    attribute: str
    branch_index: int
    function_name: str
    is_inline: bool
    graph_id: int | None
    graph_name: str | None
    entry_op_name: str | None
    num_bad: int
    iterations: Iterations | None


@dataclass(frozen=True)
class Border:
    """One place where a tensor enters or leaves a graph.

    Attributes:
        kind: `argument` or `capture`; `loop`: from the previous iteration; `result`: back to the caller.
        op_name: The op of this graph.
        output_slot: The output of this op that leaves the graph; None for a tensor that enters the graph.
        index: Index of the argument or result.
        caller_graph_id: The graph of the calling op.
        caller_graph_name: The name of the caller's graph.
        caller_op_name: The calling op.
        attribute: The attribute of the calling op that names this graph.
        other_graph_id: The graph on the other side.
        other_graph_name: The name of the graph on the other side.
        other_op_name: The op on the other side: the source of the tensor, or the op whose output it becomes; None if
            unknown.
        other_output_slot: The output of the op on the other side.
    """

    kind: str
    op_name: str
    output_slot: int | None
    index: int
    caller_graph_id: int
    caller_graph_name: str | None
    caller_op_name: str
    attribute: str
    other_graph_id: int
    other_graph_name: str | None
    other_op_name: str | None
    other_output_slot: int | None


@dataclass(frozen=True)
class Caller:
    """An op that calls a graph."""

    graph_id: int
    graph_name: str | None
    op_name: str
    attribute: str


def called_graphs(
    logdir: Engine, op_names: Sequence[str], *, run_id: str, graph_id: int
) -> dict[str, tuple[CalledGraph, ...]]:
    """Returns the graphs that ops of a graph call, by op name."""
    if not op_names:
        return {}
    rows = logdir.rows(
        "SELECT c.op_name, c.attribute, c.branch_index, c.function_name, c.is_inline, c.callee_graph_id, g.graph_name, "
        "r.op_name FROM graph_call AS c LEFT JOIN graph AS g ON g.run_id = c.run_id AND g.graph_id = c.callee_graph_id "
        "LEFT JOIN graph_function_output AS r ON r.run_id = c.run_id AND r.function_name = c.function_name "
        "AND r.output_index = 0 WHERE c.run_id = ? AND c.graph_id = ? "
        f"AND c.op_name IN ({', '.join('?' * len(op_names))}) "
        "ORDER BY c.op_name, c.attribute, c.branch_index",
        [run_id, graph_id, *op_names],
    )
    callees = sorted({row[5] for row in rows if row[5] is not None})
    flow = DataFlow.of(logdir, run_id=run_id)
    with flow.lock:
        parts = {callee: flow.graphs.parts(callee) for callee in callees}
    bad = _bad_graphs(logdir, sorted({part for some in parts.values() for part in some}), run_id=run_id)
    bodies = [row[5] for row in rows if row[1] == "body" and row[5] is not None]
    iterations = _iterations(logdir, bodies, run_id=run_id)
    calls_of_op: dict[str, list[CalledGraph]] = {}
    for *called, result in rows:
        op_name, attribute, _, _, _, callee, _ = called
        entry = bad[callee][1] if callee in bad else result
        num_bad = sum(bad[part][0] for part in parts.get(callee, ()) if part in bad)
        of_body = iterations.get(callee) if attribute == "body" else None
        facts = [*called, entry, num_bad, of_body]
        calls_of_op.setdefault(op_name, []).append(CalledGraph(*facts))
    return {op_name: tuple(calls) for op_name, calls in calls_of_op.items()}


def callers(logdir: Engine, graph_id: int, *, run_id: str) -> tuple[tuple[Caller, ...], int]:
    """Returns the first ops that call a graph, and the total number of these ops."""
    rows = logdir.rows(
        "SELECT c.graph_id, g.graph_name, c.op_name, c.attribute, count(*) OVER () FROM graph_call AS c "
        "LEFT JOIN graph AS g ON g.run_id = c.run_id AND g.graph_id = c.graph_id WHERE c.run_id = ? "
        f"AND c.callee_graph_id = ? ORDER BY c.graph_id, c.op_name, c.attribute LIMIT {_MAX_LISTED_CALLERS}",
        [run_id, graph_id],
    )
    return tuple(Caller(*caller) for *caller, _ in rows), rows[0][-1] if rows else 0


def borders(logdir: Engine, op_names: Sequence[str], *, run_id: str, graph_id: int) -> tuple[Border, ...]:
    """Returns where tensors enter and leave a graph at the given ops, for the first _MAX_CALLERS callers of each op."""
    if not op_names:
        return ()
    names = ", ".join("?" * len(op_names))
    is_called = "c.function_name = f.function_name"
    # For a gradient, TensorFlow creates the function again with the same graph. The recorded call names the first
    # function.
    caller = (
        "JOIN graph_call AS c ON c.run_id = f.run_id AND c.callee_graph_id = f.graph_id AND c.is_inline "
        "LEFT JOIN graph AS g ON g.run_id = c.run_id AND g.graph_id = c.graph_id "
    )
    where = f"WHERE f.run_id = ? AND f.graph_id = ? AND f.op_name IN ({names}) "
    order = (
        f"ORDER BY CASE WHEN {is_called} THEN 0 ELSE 1 END, c.graph_id, c.op_name, c.attribute, "
        f"f.{{index}}, f.op_name, f.function_name LIMIT {_MAX_ROWS}"
    )
    by_input, by_output = order.format(index="input_index"), order.format(index="output_index")
    arguments = logdir.rows(
        "SELECT CASE WHEN f.is_capture THEN 'capture' ELSE 'argument' END, f.op_name, NULL, f.input_index, c.graph_id, "
        "g.graph_name, c.op_name, c.attribute, c.graph_id, g.graph_name, e.source_op_name, e.source_output_slot "
        f"FROM graph_function_input AS f {caller}LEFT JOIN graph_op_input AS e ON e.run_id = c.run_id "
        "AND e.graph_id = c.graph_id AND e.op_name = c.op_name AND NOT e.is_control "
        f"AND e.input_index = f.input_index + CASE WHEN {_SHIFTED} THEN 1 ELSE 0 END {where}{by_input}",
        [run_id, graph_id, *op_names],
    )
    loops = logdir.rows(
        "SELECT 'loop', f.op_name, NULL, f.input_index, c.graph_id, g.graph_name, c.op_name, c.attribute, "
        "b.callee_graph_id, h.graph_name, r.op_name, r.output_slot "
        f"FROM graph_function_input AS f {caller}JOIN graph_call AS b ON b.run_id = c.run_id "
        "AND b.graph_id = c.graph_id AND b.op_name = c.op_name AND b.attribute = 'body' "
        "JOIN graph_function_output AS r ON r.run_id = b.run_id AND r.function_name = b.function_name "
        "AND r.output_index = f.input_index LEFT JOIN graph AS h ON h.run_id = b.run_id "
        f"AND h.graph_id = b.callee_graph_id {where}AND c.attribute IN ('body', 'cond') {by_input}",
        [run_id, graph_id, *op_names],
    )
    results = logdir.rows(
        "SELECT 'result', f.op_name, f.output_slot, f.output_index, c.graph_id, g.graph_name, c.op_name, c.attribute, "
        "c.graph_id, g.graph_name, c.op_name, f.output_index "
        f"FROM graph_function_output AS f {caller}{where}AND c.attribute <> 'cond' {by_output}",
        [run_id, graph_id, *op_names],
    )
    border_of_key: dict[tuple[object, ...], Border] = {}
    num_given: dict[tuple[object, ...], int] = {}
    for row in (*arguments, *loops, *results):
        border = Border(*row)
        tensor = (border.kind, border.op_name, border.output_slot)
        key = (*tensor, border.caller_graph_id, border.caller_op_name, border.attribute)
        # A loop passes its captures on unchanged.
        other = (border.other_graph_id, border.other_op_name)
        is_itself = border.kind == "loop" and other == (graph_id, border.op_name)
        if key not in border_of_key and not is_itself and num_given.get(tensor, 0) < _MAX_CALLERS:
            border_of_key[key] = border
            num_given[tensor] = num_given.get(tensor, 0) + 1
    return tuple(border_of_key.values())


def _bad_graphs(logdir: Engine, graph_ids: Sequence[int], *, run_id: str) -> dict[int, tuple[int, str]]:
    """Returns (number of bad tensors, op of the first bad tensor) for graphs with bad tensors, by graph_id."""
    if not graph_ids:
        return {}
    rows = logdir.rows(
        "SELECT graph_id, count(*), min_by(op_name, event_index) FROM tensor_health WHERE run_id = ? "
        f"AND has_inf_or_nan AND graph_id IN ({', '.join('?' * len(graph_ids))}) GROUP BY graph_id",
        [run_id, *graph_ids],
    )
    return {graph_id: (number, op_name) for graph_id, number, op_name in rows}


def _iterations(logdir: Engine, graph_ids: Sequence[int], *, run_id: str) -> dict[int, Iterations]:
    if not graph_ids:
        return {}
    rows = logdir.rows(
        "SELECT graph_id, count(*), min(number), max(number) FROM (SELECT graph_id, max(iteration) + 1 AS number "
        f"FROM tensor_health WHERE run_id = ? AND graph_id IN ({', '.join('?' * len(graph_ids))}) "
        "AND iteration IS NOT NULL GROUP BY graph_id, execution_index, step_id, call_site, frame_id) AS loops "
        "GROUP BY graph_id",
        [run_id, *graph_ids],
    )
    return {graph_id: Iterations(*numbers) for graph_id, *numbers in rows}
