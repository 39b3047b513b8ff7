"""Describes the content of graphs as rows.

A graph is described when TensorFlow makes a runtime function of it. If TensorFlow makes a second function of the same
graph, such as a forward variant or a loop that a gradient extended, only the new ops are described.
"""

from __future__ import annotations

import functools
import itertools
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Protocol

from tfdbg_arrow.spool.names import GraphLinks, TensorNode
from tfdbg_arrow.writer.graphs.node_defs import TensorBatch, attribute_json, is_own, runs_inline
from tfdbg_arrow.writer.graphs.state import GraphState
from tfdbg_arrow.writer.hooks.runtime import parse_attribute, serialized_graph
from tfdbg_arrow.writer.rows import Append, AppendColumns, Row
from tfdbg_arrow.writer.scopes import ForwardOp, Scope
from tfdbg_arrow.writer.stacks import Location

Reasons = Callable[[Any, str, Any], str | None]
"""`(op, op_type, tensor)`: returns why an output cannot be recorded; None if it can. Called once for every output, in
order of creation."""

_SESSION_GRAPH_NAME = "tf.Graph"

_OUTPUT_COLUMNS = ("op_name", "output_slot", "dtype", "static_shape", "is_recorded", "not_recorded_reason")


class _Columns:
    """New rows of one graph for a table, as columns.

    A list of rows would add thousands of tuples that Python's garbage collector has to examine.

    Args:
        names: The columns after `graph_id`.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.values: dict[str, list[Any]] = {name: [] for name in names}
        self._appends = [column.append for column in self.values.values()]

    def add(self, *row: object) -> None:
        """Adds a row."""
        for append, value in zip(self._appends, row, strict=True):
            append(value)


class Coverage(Protocol):
    """Decides what is recorded, from the settings."""

    def is_chosen(self, op_type: str, op_name: str | None) -> bool:
        """Returns True if the user chose to keep the elements of the op's tensors."""

    def reason_not_recorded(self, op_type: str, dtype_number: int, *, is_chosen: bool) -> str | None:
        """Returns a `not_recorded_reason` for a tensor; None if the tensor is recorded."""


NodeName = tuple[str, str, str]
"""Node name, op name and op type of an op of a function."""


def is_function_graph(graph: Any) -> bool:
    """Returns True if a graph is a FuncGraph, from which TensorFlow can make a function."""
    return hasattr(graph, "control_outputs")


@functools.cache
def _base_dtype(dtype: Any) -> tuple[int, str]:
    """Returns the number and the name of a dtype; a reference dtype counts as the dtype that it refers to."""
    return dtype.base_dtype.as_datatype_enum, dtype.base_dtype.name


class GraphDescriber:
    """Turns graphs into rows, for one recording.

    Args:
        core: The native core, which reads the ops of graphs.
        links: Assigns the keys of tensors, and stores which graph calls which.
        append: Takes rows for a table.
        append_columns: Takes many rows for a table, as columns.
        lock: The lock of the recording (see Journal), which is held while a graph is described.
        coverage: Decides what is recorded.
        intern_stack: Returns the ID of the calling thread's Python stack; -1 for none.
        intern_traceback: Returns the ID of a stack that TensorFlow kept, with the innermost frame first.
        current_scope: Returns the scope of the calling thread's ops.
        on_unknown_callee: `(graph, function_name)`: called for each called function that was created before the
            recording, or in a way that is not recorded.
        on_names: `(graph, state, function_name, names)`: called with the names of the ops of a graph in a runtime
            function. The arguments of the graph are left out.

    Attributes:
        note_created: `(op)`: notes where and when an op of a graph is created, and its scope.
    """

    def __init__(
        self,
        core: Any,
        links: GraphLinks,
        append: Append,
        append_columns: AppendColumns,
        *,
        lock: AbstractContextManager[object],
        coverage: Coverage,
        intern_stack: Callable[[], int],
        intern_traceback: Callable[[Sequence[Location]], int],
        current_scope: Callable[[], Scope],
        on_unknown_callee: Callable[[Any, str], None],
        on_names: Callable[[Any, GraphState, str, Sequence[NodeName]], None],
    ) -> None:
        self._lock = lock
        self._core = core
        self._links = links
        self._graph_ids = itertools.count()
        self._append, self._append_columns = append, append_columns
        self._coverage = coverage
        self._intern_stack = intern_stack
        self._intern_traceback = intern_traceback
        self._on_unknown_callee = on_unknown_callee
        self._on_names = on_names
        self._states: weakref.WeakKeyDictionary[Any, GraphState] = weakref.WeakKeyDictionary()
        self._undescribed: dict[int, Row] = {}
        """Rows of outer graphs that TensorFlow has not yet made into functions."""
        this = weakref.proxy(self)  # no reference cycle
        self._rows = core.GraphRows(
            lambda graph: this.state(graph),
            current_scope,
            lambda serialized: attribute_json(parse_attribute(serialized)),
        )
        self.note_created: Callable[[Any], None] = self._rows.note_created

    def state(self, graph: Any) -> GraphState:
        """Returns the state of a graph."""
        with self._lock:
            state = self._states.get(graph)
            if state is None:
                state = self._states[graph] = GraphState(next(self._graph_ids), self._core.Creations())
            return state

    def note_taped(self, attrs: object, outputs: Sequence[Any]) -> None:
        """Notes that a gradient tape keeps an op of a graph; each op has its own attributes object."""
        op = getattr(outputs[0], "op", None) if outputs and attrs else None
        if op is not None:
            self.state(op.graph).taped[id(attrs)] = (attrs, op.name)

    def op_of_attrs(self, attrs: object, graph: Any) -> Any:
        """Returns the op that passed these attributes to a tape, from a graph or its outer graphs; None if unknown."""
        while graph is not None:
            state = self._states.get(graph)
            taped = None if state is None else state.taped.get(id(attrs))
            if taped is not None:
                return graph.get_operation_by_name(taped[1])
            graph = getattr(graph, "outer_graph", None)
        return None

    def forward_op(self, op: Any) -> ForwardOp | None:
        """Returns the ForwardOp of an op whose gradient is computed; None if the op's graph is not recorded."""
        state = self._states.get(op.graph)
        if state is None or is_own(op.type, op.name):
            return None
        return ForwardOp(state.graph_id, op.name, state.layers.get(op.name))

    @contextmanager
    def describing(self, graph: Any) -> Iterator[GraphState]:
        """Yields the state of a graph, to describe the graph under the lock.

        If the description is interrupted, only some of its rows exist. The graph is then described again later, as
        another graph.
        """
        with self._lock, self._forgotten_if_interrupted(graph) as state:
            yield state

    @contextmanager
    def _forgotten_if_interrupted(self, graph: Any) -> Iterator[GraphState]:
        state = self.state(graph)
        try:
            yield state
        except BaseException:
            self._states.pop(graph, None)
            raise

    def describe_graph(self, graph: Any, state: GraphState) -> None:
        """Adds the row of a graph if it has none yet."""
        if state.is_described:
            return
        stack_id = self._intern_stack()
        row = self._graph_row(graph, state)
        self._append(
            "graph",
            [row | {"stack_trace_id": stack_id if stack_id >= 0 else None}],
            partial(setattr, state, "is_described", True),
            partial(self._undescribed.pop, state.graph_id, None),
        )

    def close(self) -> None:
        """Describes the outer graphs that TensorFlow never made into functions."""
        with self._lock:
            rows, self._undescribed = list(self._undescribed.values()), {}
            if rows:
                self._append("graph", rows)

    def describe_ops(self, graph: Any, state: GraphState, *, reasons: Reasons) -> list[TensorBatch]:
        """Adds the rows of the new ops of a graph; returns the tensors of these ops that are to be recorded."""
        outputs = _Columns(_OUTPUT_COLUMNS)
        calls: list[Row] = []
        # Use lists of plain values, because thousands of tuples would make Python's garbage collector run.
        covered: list[Any] = []
        are_chosen: list[bool] = []
        tensors: list[list[Any]] = []
        nodes: list[TensorNode] = []
        num_outputs: list[int] = []
        all_ops = graph.get_operations()  # before serializing: another thread may add ops meanwhile
        state.taped.clear()  # tapes end before the function is created
        # A gradient may replace the callee of a loop or call that is already described, and add inputs and outputs.
        known_inputs = {name: number for name, (number, _) in state.edges.items()}
        ops, inputs, described, functions = self._rows.describe(
            state.creations, serialized_graph(graph), all_ops, state.num_described, known_inputs
        )
        for op_index, name, op_type in described:
            op = all_ops[op_index]
            op_outputs = op.outputs
            if op_index >= state.num_described:
                num_outputs.append(len(op_outputs))
            num_known = state.edges.get(name, (0, 0))[1]
            if len(op_outputs) > num_known:
                is_chosen = self._coverage.is_chosen(op_type, name)
                new_tensors = self._describe_outputs(
                    op, name, op_type, outputs, first=num_known, is_chosen=is_chosen, reasons=reasons
                )
                if new_tensors:
                    covered.append(op)
                    are_chosen.append(is_chosen)
                    tensors.append(new_tensors)
                    nodes += [(state.graph_id, name, op_type, tensor.value_index) for tensor in new_tensors]
            if op_index in functions:
                calls += self._describe_calls(graph, name, op_type, functions[op_index], state)
                state.edges[name] = (len(op.inputs), len(op_outputs))
        # For ops that were created before the recording began, use the stacks that TensorFlow kept.
        stack_ids = ops["stack_trace_id"]
        for index, stack_id in enumerate(stack_ids):
            if stack_id is None:
                found_id = self._intern_traceback(_traceback_of(all_ops[ops["op_index"][index]]))
                stack_ids[index] = found_id if found_id >= 0 else None
        ops["num_outputs"] = num_outputs
        for table, columns in (("graph_op", ops), ("graph_op_input", inputs), ("graph_op_output", outputs.values)):
            num_rows = len(columns["op_name"])
            if num_rows:
                self._append_columns(table, {"graph_id": [state.graph_id] * num_rows, **columns})
        if calls:
            self._append("graph_call", calls)
        ends = itertools.accumulate(map(len, tensors), initial=self._links.add_nodes(nodes))
        return [
            TensorBatch(op=op, tensors=new_tensors, nodes=range(*keys), is_chosen=is_chosen)
            for op, new_tensors, is_chosen, keys in zip(
                covered, tensors, are_chosen, itertools.pairwise(ends), strict=True
            )
        ]

    def describe_signature(self, function_name: str, graph: Any, state: GraphState) -> None:
        """Adds the rows of a function: its graph, its arguments and its results."""
        self._append("graph_function", [{"function_name": function_name, "graph_id": state.graph_id}])
        captures = {id(tensor) for tensor in graph.internal_captures}
        inputs = {
            "input_index": list(range(len(graph.inputs))),
            "op_name": [tensor.op.name for tensor in graph.inputs],
            "is_capture": [id(tensor) in captures for tensor in graph.inputs],
        }
        outputs = {
            "output_index": list(range(len(graph.outputs))),
            "op_name": [tensor.op.name for tensor in graph.outputs],
            "output_slot": [tensor.value_index for tensor in graph.outputs],
        }
        for table, columns in (("graph_function_input", inputs), ("graph_function_output", outputs)):
            num_rows = len(columns["op_name"])
            if num_rows:
                names, graph_ids = [function_name] * num_rows, [state.graph_id] * num_rows
                self._append_columns(table, {"function_name": names, "graph_id": graph_ids, **columns})

    def note_names(self, graph: Any, function_def: Callable[[], Any]) -> None:
        """Notes how a runtime function renamed ops whose names clash with its arguments and results."""
        with self._lock:
            state = self.state(graph)
            calling = {op_name for op_name, _, _ in state.callees}
            arguments = {tensor.op.name for tensor in graph.inputs}
            names = (op.name for op in graph.get_operations() if op.name not in arguments)
            # TensorFlow keeps the order of the ops.
            definition = function_def()
            node_names = [
                (node_def.name, op_name, node_def.op)
                for op_name, node_def in zip(names, definition.node_def, strict=True)
            ]
            for node_name, op_name, _ in node_names:
                if op_name in calling and node_name != op_name:
                    self._links.add_rename(state.graph_id, op_name, node_name)
            self._on_names(graph, state, definition.signature.name, node_names)

    def _graph_row(self, graph: Any, state: GraphState) -> Row:
        outer = getattr(graph, "outer_graph", None)
        # Outside of functions, the outer graph is the graph that a session runs, or in eager mode an empty graph that
        # never runs.
        is_real = outer is not None and (is_function_graph(outer) or bool(outer.get_operations()))
        outer_state = self.state(outer) if is_real else None
        if outer_state is not None and not outer_state.is_described and outer_state.graph_id not in self._undescribed:
            self._undescribed[outer_state.graph_id] = self._graph_row(outer, outer_state)
        return {
            "graph_id": state.graph_id,
            "graph_name": graph.name if hasattr(graph, "name") else _SESSION_GRAPH_NAME,
            "outer_graph_id": outer_state.graph_id if outer_state is not None else None,
            "stack_trace_id": None,
            "wall_time_ns": time.time_ns(),
        }

    def _describe_outputs(
        self, op: Any, op_name: str, op_type: str, rows: _Columns, *, first: int, is_chosen: bool, reasons: Reasons
    ) -> list[Any]:
        """Adds the rows of an op's outputs from slot `first` on; returns the outputs to record."""
        tensors: list[Any] = []
        for slot, tensor in enumerate(op.outputs[first:], start=first):
            dtype_number, dtype_name = _base_dtype(tensor.dtype)
            hindrance = reasons(op, op_type, tensor)
            reason = self._coverage.reason_not_recorded(op_type, dtype_number, is_chosen=is_chosen) or hindrance
            if reason is None:
                tensors.append(tensor)
            dimensions, is_of_unknown_rank = tensor._shape  # faster than `shape`, which makes a TensorShape
            shape = None if is_of_unknown_rank else tuple(-1 if size is None else size for size in dimensions)
            rows.add(op_name, slot, dtype_name, shape, reason is None, reason)
        return tensors

    def _describe_calls(
        self, graph: Any, op_name: str, op_type: str, functions: Iterable[tuple[str, int, str]], state: GraphState
    ) -> list[Row]:
        rows: list[Row] = []
        for attribute, branch_index, function_name in functions:
            callee = self._links.graph_id_of_function(function_name)
            key = (op_name, attribute, branch_index)
            if key in state.callees and state.callees[key] == callee:
                continue
            state.callees[key] = callee
            is_inline = runs_inline(op_type)
            if callee is None:
                self._on_unknown_callee(graph, function_name)
            elif is_inline:
                self._links.add_callee(state.graph_id, key, callee)
            rows.append(
                {
                    "graph_id": state.graph_id,
                    "op_name": op_name,
                    "attribute": attribute,
                    "branch_index": branch_index,
                    "function_name": function_name,
                    "callee_graph_id": callee,
                    "is_inline": is_inline,
                }
            )
        return rows


def _traceback_of(op: Any) -> list[Location]:
    """Returns the stack that TensorFlow kept when it created an op, with the innermost frame first."""
    return [(frame.filename, max(frame.lineno, 1), frame.name) for frame in reversed(op.traceback or ())]
