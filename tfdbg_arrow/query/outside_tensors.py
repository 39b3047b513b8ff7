"""OutsideTensors: names tensors that no recorded op made, such as arguments and feeds."""

from __future__ import annotations

from collections.abc import Iterator

from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.graphs import BRANCHES
from tfdbg_arrow.query.flow.labels import Label
from tfdbg_arrow.query.recorded import Execution, Op, TensorEvent
from tfdbg_arrow.schema.op_traits import READER, WRITER

_Place = tuple[int, Op]
_PARTS = {"metric": "of a metric", "optimizer": "of the optimizer"}
"""The owner of a variable, by the role of the ops that read the variable."""
_MAX_COPIES = 10
"""Maximum number of copies of a tensor that are searched for a write to a variable."""
ASSIGNED = "a value for a variable"
"""The first words of the name of a tensor from outside that the program only assigned to a variable."""
CAPTURED = "a tensor made outside the function"
"""The name of a tensor from outside that a function captured."""
WRITTEN = "an infinity that the program wrote"
"""The name of an infinity from outside, if the line that first took the infinity also contains it as a literal."""


class OutsideTensors:
    """Names the tensors of one run that came from outside. The caller must hold the lock of the data flow."""

    def __init__(self, flow: DataFlow) -> None:
        self._flow = flow

    def name(self, event: TensorEvent) -> str | None:
        """Returns the name of a tensor from outside; None for other tensors, and if the name is not known."""
        if event.scope != "external" or event.tensor_id is None:
            return None
        ways = self._flow.events.ways_of_use(event.tensor_id)
        if ways and all(WRITER.fullmatch(op_type) and index > 0 for op_type, _, index in ways):
            return self._assigned(event)
        execution = self._flow.events.execution(event.execution_index)
        inputs = {} if execution is None else self._flow.events.execution_inputs(execution.execution_index)
        index = next((index for index, tensor_id in inputs.items() if tensor_id == event.tensor_id), None)
        return None if execution is None or index is None else self.argument(execution, index)

    def argument(self, execution: Execution, index: int) -> str | None:
        """Returns the name of an execution's input: an argument of the called function, or a feed of the session.

        The result is None for a tensor that a function captured, and for an op.
        """
        name = self.argument_name(execution, index)
        if name is None:
            return None
        if execution.op_type in self._flow.graphs.feeds:
            return f"the feed of `{name}`"
        function = self._flow.graphs.names.get(execution.graph_id or 0, execution.op_type)
        return f"the argument `{name}` of `{function}`"

    def argument_name(self, execution: Execution, index: int) -> str | None:
        """Returns the same as `argument`, but without the function: the name of the argument or of the fed op."""
        graphs, graph_id = self._flow.graphs, execution.graph_id
        feeds = graphs.feeds.get(execution.op_type)
        if feeds is not None:
            return next((op_name for (op_name, _), fed in feeds.items() if fed == index), None)
        name = graphs.placeholder(execution.op_type, index)
        if graph_id is None or name is None:
            return None
        argument = graphs.argument(graph_id, name, function_name=execution.op_type)
        return None if argument is None or argument.is_capture else name

    def _assigned(self, event: TensorEvent) -> str:
        handle = self._flow.events.execution_inputs(event.execution_index or 0).get(0)
        part = None if handle is None else self._owner(handle)
        return ASSIGNED + ("" if part is None else f" {part}")

    def stored_in(self, event: TensorEvent) -> str | None:
        """Returns the owner of a variable, such as `of the layer bn`; None if the owner is not known.

        Args:
            event: A tensor that eager code wrote to the variable.
        """
        tensor_ids, seen = [event.tensor_id], set[int]()
        while tensor_ids and len(seen) < _MAX_COPIES:
            tensor_id = tensor_ids.pop()
            if tensor_id is None or tensor_id in seen:
                continue
            seen.add(tensor_id)
            for use in self._flow.events.uses(tensor_id):
                execution = use.execution
                if execution.op_type == "Identity":
                    outputs = self._flow.events.execution_outputs(execution.execution_index)
                    tensor_ids += [copy for copy, _ in outputs.values()]
                elif WRITER.fullmatch(execution.op_type) and use.input_index > 0:
                    handle = self._flow.events.execution_inputs(execution.execution_index).get(0)
                    return None if handle is None else self._owner(handle)
        return None

    def _owner(self, handle: int) -> str | None:
        """Returns the owner of a variable, such as `of the layer bn`; None if the owner is not known.

        Args:
            handle: The tensor ID of the variable's handle.
        """
        labels = list(self._readers(handle))
        layer = next((label.layer for label in labels if label.role != "optimizer" and label.layer), None)
        parts = {_PARTS.get(label.role or "") for label in labels}
        return f"of the layer {layer}" if layer else parts.pop() if len(parts) == 1 else None

    def _readers(self, handle: int) -> Iterator[Label]:
        """Yields the labels of the ops that read a variable: first eager ops, then ops of graphs."""
        for use in self._flow.events.uses_before(handle, op_types=[READER], before=2**63 - 1):
            yield self._flow.labels.execution(use.execution_index)
        for op_type, graph_id, index in self._flow.events.ways_of_use(handle):
            name = self._flow.graphs.placeholder(op_type, index)
            if graph_id is not None and name is not None:
                for user_graph_id, op in users_of(self._flow, graph_id, name):
                    yield self._flow.labels.op(user_graph_id, op.op_name)


def users_of(flow: DataFlow, graph_id: int, name: str, seen: set[tuple[int, str]] | None = None) -> Iterator[_Place]:
    """Yields the ops that take an argument of a graph, in order of creation. Includes ops in called functions.

    Args:
        flow: The data flow of the run.
        graph_id: The graph.
        name: The Placeholder of the argument.
        seen: Placeholders whose ops are not yielded. The search adds each Placeholder that it visits.
    """
    seen = set() if seen is None else seen
    if (graph_id, name) in seen:
        return
    seen.add((graph_id, name))
    graph = flow.graphs.graph(graph_id)
    users = (graph.ops[user] for user in graph.users.get(name, ()) if user in graph.ops)
    for op in sorted(users, key=lambda user: user.op_index):
        calls = flow.graphs.calls(graph_id, op.op_name)
        if not calls:
            yield graph_id, op
        for call in calls:
            shift = 1 if call.attribute in BRANCHES else 0
            taken = (index for index, (source, _) in enumerate(op.inputs) if source == name)
            for argument in (flow.graphs.placeholder(call.function_name, index - shift) for index in taken):
                if argument is not None and call.callee_graph_id is not None:
                    yield from users_of(flow, call.callee_graph_id, argument, seen)
