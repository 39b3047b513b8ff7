"""Describes graphs and makes them record: rows for what a graph holds, record ops for its tensors.

The record ops are added in one go, just before TensorFlow makes a runtime function of a graph, and are
control outputs of it: so every op that was traced runs and is recorded, arguments' Placeholders and
outermost backward graphs included, and the user's own tracing code never sees them.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tfdbg_arrow.writer.graphs import GraphRegistry, GraphState, Row, now_columns, to_json, wall_time_columns
from tfdbg_arrow.writer.stacks import Location

Append = Callable[[str, Sequence[Row]], None]

OWN_OP_PREFIX = "TfdbgArrow"
"""Begins the type of every op that only we have."""
OWN_NAME_PREFIX = "tfdbg_arrow_"
"""Begins the name of every op that we add to a graph."""
Reasons = Callable[[Any, str, Any], str | None]
"""`(op, op_type, tensor)`: why an output cannot be recorded; None for one that can. Told of every output once, in order
of creation."""
_SESSION_GRAPH_NAME = "tf.Graph"


class Coverage(Protocol):
    """What the settings ask to be recorded."""

    def is_chosen(self, op_type: str, op_name: str | None) -> bool:
        """Returns whether the elements of an op's tensors are kept by the user's choice."""

    def reason_not_recorded(self, op_type: str, dtype_number: int, *, is_chosen: bool) -> str | None:
        """Returns None for a tensor to record, else a `not_recorded_reason`."""


class RecordOps(Protocol):
    """Adds the ops that record, in the way of the health backend."""

    def add(self, graph: Any, batches: Sequence[TensorBatch]) -> list[Any]:
        """Adds record ops for the tensors to the graph; returns those that must run."""


class SingleRecordOps(Protocol):
    """Adds ops that record a single tensor, in the way of the health backend."""

    def add_record(self, graph: Any, tensor: Any, node: int, *, keep: bool, decides: bool) -> Any:
        """Adds the op that records a tensor, and keeps its elements or stops the program at it or not; returns it."""

    def add_token(self, graph: Any, node: int) -> tuple[Any, Any] | None:
        """Adds a Placeholder for the index of an execution and the op that takes it; None where none can."""


@dataclass(frozen=True)
class TensorBatch:
    """The tensors of one op that are to be recorded.

    Attributes:
        op: The producing `tf.Operation`.
        tensors: Its covered outputs, symbolic.
        nodes: Their keys in the registry, in the same order.
        is_chosen: Whether their elements are kept by the user's choice.
        decides: For each whether it stops the program if it is bad, under `on_nonfinite`; empty: none does.
    """

    op: Any
    tensors: tuple[Any, ...]
    nodes: tuple[int, ...]
    is_chosen: bool = False
    decides: tuple[bool, ...] = ()

    @property
    def all_decides(self) -> tuple[bool, ...]:
        """`decides`, one for each tensor."""
        return self.decides or (False,) * len(self.tensors)


def is_function_graph(graph: Any) -> bool:
    """Whether a graph is a FuncGraph, which TensorFlow can make a function of."""
    return hasattr(graph, "control_outputs")


def ops_needed_for(asked_for: Sequence[Any]) -> list[Any]:
    """Returns the ops that run if some are asked for, in no order."""
    waiting = list(asked_for)
    reached: dict[str, Any] = {}
    while waiting:
        op = waiting.pop()
        if op.name not in reached:
            reached[op.name] = op
            waiting += [tensor.op for tensor in op.inputs]
            waiting += op.control_inputs
    return list(reached.values())


def runs_inline(op_type: str) -> bool:
    """Whether functions that ops of this type name run within the op's own step.

    Data sets keep theirs and run them apart, in steps of their own.
    """
    return "Dataset" not in op_type


class GraphInstrumenter:
    """Turns graphs into rows and record ops, for one recording.

    Args:
        registry: Gives out ids and keys.
        append: Takes rows for a table.
        coverage: What is to be recorded.
        record_ops: How it is recorded.
        single_record_ops: How a tensor is recorded by an op of its own.
        is_pruned: Whether only those ops of a function's graph run that its results need.
        make_run: `(graph, ops)`: makes TensorFlow run ops of a graph whose outputs nobody uses.
        own_result: Returns the user's tensor for a graph's result that `make_run` put in its place.
        intern_stack: Returns the id of the calling thread's Python stack, -1 for none.
        intern_traceback: Returns the id of a stack that TensorFlow kept, given innermost first.
        on_unknown_callee: Told of each function that a graph calls and that was made while not recording.
        is_remote: Whether a device, by name, is another process's, where our ops have no kernels.
        judge: `(graph, batches)`: says of the tensors of a graph which stop the program if they are bad; None: none.
    """

    def __init__(
        self,
        registry: GraphRegistry,
        append: Append,
        *,
        coverage: Coverage,
        record_ops: RecordOps,
        single_record_ops: SingleRecordOps,
        is_pruned: Callable[[Any], bool],
        make_run: Callable[[Any, Sequence[Any]], None],
        own_result: Callable[[Any], Any],
        intern_stack: Callable[[], int],
        intern_traceback: Callable[[Sequence[Location]], int],
        on_unknown_callee: Callable[[str], None],
        is_remote: Callable[[str], bool] = lambda _: False,
        judge: Callable[[Any, list[TensorBatch]], list[TensorBatch]] | None = None,
    ) -> None:
        self._registry = registry
        self._append = append
        self._coverage = coverage
        self._record_ops = record_ops
        self._single_record_ops = single_record_ops
        self._is_pruned = is_pruned
        self._make_run = make_run
        self._own_result = own_result
        self._intern_stack = intern_stack
        self._intern_traceback = intern_traceback
        self._judge = judge
        self._on_unknown_callee = on_unknown_callee
        self._is_remote = is_remote
        self._states: weakref.WeakKeyDictionary[Any, GraphState] = weakref.WeakKeyDictionary()
        self._undescribed: dict[int, Row] = {}
        """Rows of graphs that others were traced in and that no function was made of, so far."""
        self._lock = threading.RLock()

    def note_creation(
        self, op_type: str, op_name: str | None, outputs: Sequence[Any], graph: Any, stack_id: int, wall_time_ns: int
    ) -> None:
        """Notes where and when an op of a graph is created; TensorFlow's op callback tells."""
        if outputs:
            # Not always the graph that is told of: the gradient of a loop puts some ops into the forward graph.
            graph = outputs[0].graph
        name = outputs[0].op.name if outputs else op_name
        if name is not None and not op_type.startswith(OWN_OP_PREFIX):
            self._state(graph).creations[name] = (stack_id, wall_time_ns)

    def prepare(self, function_name: str, graph: Any, *, unobserved_for: str | None = None) -> None:
        """Describes what is new in a graph and makes it record; a function is about to be made of it.

        Args:
            function_name: The function.
            graph: The FuncGraph.
            unobserved_for: Why nothing may be added to the graph, as a `not_recorded_reason`; None where it may.
        """
        with self._lock:
            state = self._state(graph)
            self._registry.add_function(function_name, state.graph_id)
            if not state.is_described:
                state.is_described = True
                self._describe_graph(graph, state)
            batches = self._describe_ops(graph, state, reasons=self._function_reasons(unobserved_for))
            self._describe_signature(function_name, graph, state)
            if unobserved_for is not None:
                state.num_described = len(graph.get_operations())
                return
            if self._judge is not None:
                batches = self._judge(graph, batches)
            if self._is_pruned(graph):
                must_run = self._add_where_reached(graph, batches, state)
            else:
                must_run = self._record_ops.add(graph, batches) if batches else []
            # TensorFlow keeps what a call holds only if the call itself must run.
            must_run += [graph.get_operation_by_name(name) for name in sorted({key[0] for key in state.callees})]
            self._make_run(graph, must_run)
            state.num_described = len(graph.get_operations())

    def close(self) -> None:
        """Describes the graphs that no function was ever made of, but that others name as their outer graph."""
        with self._lock:
            rows, self._undescribed = list(self._undescribed.values()), {}
            if rows:
                self._append("graph", rows)

    def prepare_session_graph(self, graph: Any, reasons: Reasons) -> tuple[int, list[TensorBatch]]:
        """Describes what is new in a graph that a session runs.

        Args:
            graph: The graph.
            reasons: Why tensors of it are not recorded.

        Returns:
            The graph's id, and the new tensors to record.
        """
        with self._lock:
            state = self._state(graph)
            if not state.is_described:
                state.is_described = True
                self._describe_graph(graph, state)
            ops = graph.get_operations()
            batches = self._describe_ops(graph, state, reasons=reasons) if len(ops) > state.num_described else []
            state.num_described = len(ops)
            return state.graph_id, batches if self._judge is None else self._judge(graph, batches)

    def note_names(self, graph: Any, function_def: Callable[[], Any]) -> None:
        """Notes which calling ops a runtime function renamed, to keep clear of its arguments and results."""
        with self._lock:
            state = self._state(graph)
            if not state.callees:
                return
            calling = {op_name for op_name, _, _ in state.callees}
            arguments = {tensor.op.name for tensor in graph.inputs}
            names = (op.name for op in graph.get_operations() if op.name not in arguments)
            # TensorFlow keeps the order of the ops.
            for op_name, node_def in zip(names, function_def().node_def, strict=True):
                if op_name in calling and node_def.name != op_name:
                    self._registry.add_rename(state.graph_id, op_name, node_def.name)

    def _add_where_reached(self, graph: Any, batches: Sequence[TensorBatch], state: GraphState) -> list[Any]:
        """Adds record ops to a graph of which only what its results need runs: one for each tensor that does."""
        for batch in batches:
            for tensor, node, decides in zip(batch.tensors, batch.nodes, batch.all_decides, strict=True):
                state.unreached[tensor.op.name, tensor.value_index] = (node, batch.is_chosen, decides)
        asked_for = [tensor.op for tensor in graph.outputs] + list(graph.control_outputs)
        added = []
        for op in ops_needed_for(asked_for):
            for slot, tensor in enumerate(op.outputs):
                if (op.name, slot) in state.unreached:
                    node, keep, decides = state.unreached.pop((op.name, slot))
                    record_ops = self._single_record_ops
                    added.append(record_ops.add_record(graph, tensor, node, keep=keep, decides=decides))
        return added

    def _state(self, graph: Any) -> GraphState:
        with self._lock:
            state = self._states.get(graph)
            if state is None:
                state = self._states[graph] = self._registry.new_graph()
            return state

    def _function_reasons(self, unobserved_for: str | None) -> Reasons:
        """The reasons of a function's graph; `unobserved_for` is that of all its tensors, None for no such."""

        def reason(op: Any, op_type: str, tensor: Any) -> str | None:
            return unobserved_for or ("remote" if self._is_remote(op.device) else None)

        return reason

    def _describe_graph(self, graph: Any, state: GraphState) -> None:
        stack_id = self._intern_stack()
        row = self._graph_row(graph, state)
        self._undescribed.pop(state.graph_id, None)
        self._append("graph", [row | {"stack_trace_id": stack_id if stack_id >= 0 else None}])

    def _graph_row(self, graph: Any, state: GraphState) -> Row:
        outer = getattr(graph, "outer_graph", None)
        outer_state = self._state(outer) if is_function_graph(outer) else None
        if outer_state is not None and not outer_state.is_described and outer_state.graph_id not in self._undescribed:
            self._undescribed[outer_state.graph_id] = self._graph_row(outer, outer_state)
        return {
            "graph_id": state.graph_id,
            "graph_name": graph.name if hasattr(graph, "name") else _SESSION_GRAPH_NAME,
            "outer_graph_id": outer_state.graph_id if outer_state is not None else None,
            "stack_trace_id": None,
            **now_columns(),
        }

    def _describe_ops(self, graph: Any, state: GraphState, *, reasons: Reasons) -> list[TensorBatch]:
        ops: list[Row] = []
        inputs: list[Row] = []
        outputs: list[Row] = []
        calls: list[Row] = []
        batches: list[TensorBatch] = []
        all_ops = graph.get_operations()  # before the node_defs: another thread may add ops meanwhile
        node_defs = {node.name: node for node in graph.as_graph_def().node}
        for op_index, op in enumerate(all_ops):
            name = op.name
            if op.type.startswith(OWN_OP_PREFIX) or name.startswith(OWN_NAME_PREFIX):
                continue
            node_def = node_defs[name]
            # A gradient may give a loop or call that was described another callee, and more inputs and outputs.
            calls += self._describe_calls(node_def, state)
            num_inputs, num_outputs = state.edges.get(name, (0, 0))
            is_new = op_index >= state.num_described
            if not is_new and name not in state.edges:
                continue
            op_outputs = op.outputs
            inputs += _input_rows(node_def, state.graph_id, first=None if is_new else num_inputs)
            if len(op_outputs) > num_outputs:
                rows, batch = self._describe_outputs(
                    op, node_def.op, op_outputs, state.graph_id, first=num_outputs, reasons=reasons
                )
                outputs += rows
                if batch is not None:
                    batches.append(batch)
            if functions_of(node_def):
                state.edges[name] = (len(op.inputs), len(op_outputs))
            if not is_new:
                continue
            stack_id, wall_time_ns = state.creations.pop(name, (-1, 0))
            if stack_id < 0:
                stack_id = self._intern_traceback(_traceback_of(op))  # made before recording began
            times = wall_time_columns(wall_time_ns) if wall_time_ns else now_columns()
            ops.append(
                {
                    "graph_id": state.graph_id,
                    "op_index": op_index,
                    "op_name": name,
                    "op_type": node_def.op,
                    "num_outputs": len(op_outputs),
                    "device_name": node_def.device or None,
                    "attributes": to_json({key: _attribute(node_def.attr[key]) for key in sorted(node_def.attr)}),
                    "stack_trace_id": stack_id if stack_id >= 0 else None,
                    **times,
                }
            )
        for table, table_rows in (
            ("graph_op", ops),
            ("graph_op_input", inputs),
            ("graph_op_output", outputs),
            ("graph_call", calls),
        ):
            if table_rows:
                self._append(table, table_rows)
        return batches

    def _describe_outputs(
        self,
        op: Any,
        op_type: str,
        op_outputs: Sequence[Any],
        graph_id: int,
        *,
        first: int,
        reasons: Reasons,
    ) -> tuple[list[Row], TensorBatch | None]:
        """The rows of an op's outputs from slot `first` on, and those of them to record."""
        op_name = op.name
        is_chosen = self._coverage.is_chosen(op_type, op_name)
        rows: list[Row] = []
        tensors: list[Any] = []
        nodes: list[int] = []
        for slot, tensor in enumerate(op_outputs[first:], start=first):
            dtype = tensor.dtype.base_dtype
            hindrance = reasons(op, op_type, tensor)
            reason = self._coverage.reason_not_recorded(op_type, dtype.as_datatype_enum, is_chosen=is_chosen)
            reason = reason or hindrance
            if reason is None:
                tensors.append(tensor)
                nodes.append(self._registry.add_node((graph_id, op_name, op_type, slot)))
            rank = tensor.shape.rank
            rows.append(
                {
                    "graph_id": graph_id,
                    "op_name": op_name,
                    "output_slot": slot,
                    "dtype": dtype.name,
                    "static_shape": None if rank is None else [-1 if d is None else d for d in tensor.shape.as_list()],
                    "is_recorded": reason is None,
                    "not_recorded_reason": reason,
                }
            )
        if not tensors:
            return rows, None
        return rows, TensorBatch(op=op, tensors=tuple(tensors), nodes=tuple(nodes), is_chosen=is_chosen)

    def _describe_calls(self, node_def: Any, state: GraphState) -> list[Row]:
        rows: list[Row] = []
        for attribute, branch_index, function_name in functions_of(node_def):
            callee = self._registry.graph_id_of_function(function_name)
            key = (node_def.name, attribute, branch_index)
            if key in state.callees and state.callees[key] == callee:
                continue
            state.callees[key] = callee
            is_inline = runs_inline(node_def.op)
            if callee is None:
                self._on_unknown_callee(function_name)
            elif is_inline:
                self._registry.add_callee(state.graph_id, key, callee)
            rows.append(
                {
                    "graph_id": state.graph_id,
                    "op_name": node_def.name,
                    "attribute": attribute,
                    "branch_index": branch_index,
                    "function_name": function_name,
                    "callee_graph_id": callee,
                    "is_inline": is_inline,
                }
            )
        return rows

    def _describe_signature(self, function_name: str, graph: Any, state: GraphState) -> None:
        common = {"function_name": function_name, "graph_id": state.graph_id}
        self._append("graph_function", [common])
        captures = {id(tensor) for tensor in graph.internal_captures}
        inputs: list[Row] = [
            {**common, "input_index": index, "op_name": tensor.op.name, "is_capture": id(tensor) in captures}
            for index, tensor in enumerate(graph.inputs)
        ]
        outputs: list[Row] = [
            {**common, "output_index": index, "op_name": tensor.op.name, "output_slot": tensor.value_index}
            for index, tensor in enumerate(map(self._own_result, graph.outputs))
        ]
        if inputs:
            self._append("graph_function_input", inputs)
        if outputs:
            self._append("graph_function_output", outputs)


def _traceback_of(op: Any) -> list[Location]:
    """The stack that TensorFlow kept of an op's creation, innermost frame first."""
    return [(frame.filename, max(frame.lineno, 1), frame.name) for frame in reversed(op.traceback or ())]


def _input_rows(node_def: Any, graph_id: int, *, first: int | None) -> list[Row]:
    """The edges of a NodeDef's inputs: `name`, `name:slot` or `^name`.

    Args:
        node_def: The NodeDef.
        graph_id: Its graph.
        first: Only data edges, from this input on; None: all edges.
    """
    rows: list[Row] = []
    num_control = 0
    for index, text in enumerate(node_def.input):
        row: Row = {"graph_id": graph_id, "op_name": node_def.name}
        if text.startswith("^"):
            if first is not None:
                continue
            row |= {"input_index": num_control, "is_control": True, "source_op_name": text[1:]}
            row |= {"source_output_slot": None}
            num_control += 1
        else:
            if first is not None and index < first:
                continue
            source, _, slot = text.partition(":")
            row |= {"input_index": index, "is_control": False, "source_op_name": source}
            row |= {"source_output_slot": int(slot or 0)}
        rows.append(row)
    return rows


def functions_of(node_def: Any) -> list[tuple[str, int, str]]:
    """Returns the functions that a NodeDef names: (attribute, index in a list, function name)."""
    found: list[tuple[str, int, str]] = []
    for key in node_def.attr:
        value = node_def.attr[key]
        kind = value.WhichOneof("value")
        if kind == "func":
            found.append((key, 0, value.func.name))
        elif kind == "list" and value.list.func:
            found += [(key, index, func.name) for index, func in enumerate(value.list.func)]
    return found


def _attribute(value: Any) -> object:
    """An AttrValue as something that JSON can hold; tensors by dtype and shape only."""
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    content = getattr(value, kind)
    if kind == "list":
        for name in ("s", "i", "f", "b", "type", "shape", "tensor", "func"):
            items = getattr(content, name)
            if items:
                return [_scalar_attribute(name, item) for item in items]
        return []
    return _scalar_attribute(kind, content)


def _scalar_attribute(kind: str, content: Any) -> object:
    if kind == "s":
        return content.decode("utf-8", errors="backslashreplace")
    if kind == "shape":
        return None if content.unknown_rank else [dim.size for dim in content.dim]
    if kind == "tensor":
        return {"dtype": content.dtype, "shape": [dim.size for dim in content.tensor_shape.dim]}
    if kind == "func":
        return content.name
    return content
