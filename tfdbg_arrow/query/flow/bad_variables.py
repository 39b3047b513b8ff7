"""Bad variables: finds the first read of a variable that had the same bad elements as a later read.

In a long training, thousands of steps read a variable that stays bad. The cause of its bad elements is before the first
of these reads, so a search does not have to go through the steps in between.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from itertools import islice

from tfdbg_arrow.query.flow.events import EventReader
from tfdbg_arrow.query.flow.graphs import GraphReader
from tfdbg_arrow.query.flow.resources import Resources, name_in
from tfdbg_arrow.query.recorded import EagerValue, Op, TensorEvent, Trace
from tfdbg_arrow.schema.op_traits import ADDING, READER, REPLACING, WRITER

_KEEPING = {*ADDING, "ResourceScatterAdd", "ResourceScatterSub"}
"""Types of writers that keep each bad element bad: a sum or a difference with a bad element is bad."""
_KEEPING_VALUES = {"Add", "AddN", "AddV2", "Identity", "Mul", "Sub"}
"""Types of ops whose result is bad at each place at which one of their inputs is bad."""

_MAX_WRITES = 20_000
"""Maximum number of eager writes that are examined for one read."""
_MAX_OPS = 300_000
"""Maximum number of eager ops that are read to find the values of eager writes."""
_MAX_READS = 8
"""Maximum number of reads that are noted for a tensor. A sum over all weights, for example, has more."""


class BadVariables:
    """Finds reads of variables that stay bad within one run."""

    def __init__(self, graphs: GraphReader, events: EventReader, resources: Resources) -> None:
        self._graphs = graphs
        self._events = events
        self._resources = resources
        self._keeps_bad_in: dict[tuple[int, str], bool] = {}

    def first_equally_bad_read(self, handle: Trace, read: TensorEvent) -> TensorEvent | None:
        """Returns the first read of a variable that had the same bad elements as a later read.

        The result is proven: no write since the first read makes a NaN another number, or an infinity finite. So if the
        reads hold equal numbers of NaN and infinities, the same elements are bad.

        Args:
            handle: Where the variable came from, seen from the reading op.
            read: The row of the later read.

        Returns:
            The row of the first read by the same op; None if there is no earlier one, or no proof.
        """
        if read.op_type != READER or not read.has_inf_or_nan or not isinstance(handle.place, EagerValue):
            return None
        tensor_id = handle.place.tensor_id
        first = self._events.first_equally_bad_read(read, tensor_id)
        if first is None:
            return None
        event_index, execution_index = first
        if read.scope == "graph" and not self._takes_same_input(handle, read, execution_index):
            return None
        if not self._all_writes_keep_bad(tensor_id, since=execution_index, before=read.event_index):
            return None
        return self._events.event(event_index)

    def _takes_same_input(self, handle: Trace, read: TensorEvent, execution_index: int) -> bool:
        """Returns whether an earlier call of the same function took the same variable as the same input."""
        call, earlier = self._events.execution(read.execution_index), self._events.execution(execution_index)
        if call is None or call.graph_id is None or earlier is None or earlier.op_type != call.op_type:
            return False
        name = name_in(handle, call.graph_id)
        if name is None:
            return False
        argument = self._graphs.argument(call.graph_id, name, function_name=call.op_type)
        inputs = [self._events.execution_inputs(index) for index in (execution_index, call.execution_index)]
        return argument is not None and len({taken.get(argument.input_index) for taken in inputs}) == 1

    def _all_writes_keep_bad(self, tensor_id: int, *, since: int, before: int) -> bool:
        """Returns whether all writes to a variable keep each bad element of the variable.

        Args:
            tensor_id: The variable.
            since: The first execution to consider.
            before: The event_index before which the last execution starts.
        """
        ways = self._resources.all_users(tensor_id, since=since)
        replacing = {op_type for op_type, graph_id, _ in ways if graph_id is None and op_type in REPLACING}
        if not all(op_type in replacing or self._keeps_bad(op_type, called, index) for op_type, called, index in ways):
            return False
        if not replacing:
            return True
        # An eager write has no graph, so each write is examined. A function may write to the variable.
        functions = {op_type for op_type, called, _ in ways if called is not None}
        types = tuple(sorted({*functions, *replacing, *_KEEPING}))
        executions = self._events.uses_before(tensor_id, op_types=types, before=before, since=since)
        writes = list(islice(executions, _MAX_WRITES + 1))
        if len(writes) > _MAX_WRITES:
            return False
        last_writes = [write.execution_index for write in writes[1:]]
        return all(
            self._old_reads.get(write.execution_index, -1) >= last_write
            for write, last_write in zip(writes, [*last_writes, since], strict=False)  # there may be no write
            if write.op_type in replacing
        )

    @cached_property
    def _old_reads(self) -> dict[int, int]:
        """The eager writes whose value is bad where the old value is bad, as in `v.assign(v - x)`.

        The keys are the executions that write, and the values are the executions that read the old value.
        """
        ops = self._events.eager_ops([*REPLACING, READER, *_KEEPING_VALUES], limit=_MAX_OPS)
        old_reads: dict[int, int] = {}
        reads: dict[int, set[tuple[int, int]]] = {}
        """For each tensor, the reads whose bad elements are bad in the tensor, too."""
        for op in ops:
            if op.op_type == READER:
                reads_behind = {(op.inputs[0], op.execution_index)}
            else:
                reads_behind = set().union(*(reads.get(source, ()) for source in op.inputs))
            if op.op_type in REPLACING:
                of_handle = [execution_index for handle, execution_index in reads_behind if handle == op.inputs[0]]
                if of_handle:
                    old_reads[op.execution_index] = max(of_handle)
            elif op.output is not None and len(reads_behind) <= _MAX_READS:
                reads[op.output] = reads_behind
        return old_reads

    def _keeps_bad(self, op_type: str, graph_id: int | None, index: int) -> bool:
        """Returns whether an op or a function keeps each bad element of the variable that it takes as an input."""
        if graph_id is None:
            return WRITER.fullmatch(op_type) is None or op_type in _KEEPING
        placeholder = self._graphs.placeholder(op_type, index)
        return placeholder is not None and self._graph_keeps_bad(graph_id, placeholder)

    def _graph_keeps_bad(self, graph_id: int, handle_name: str) -> bool:
        """Returns whether a graph and the functions that it calls keep each bad element of a variable."""
        key = (graph_id, handle_name)
        if key not in self._keeps_bad_in:
            self._keeps_bad_in[key] = True  # ends the search in a function that calls itself
            writers = self._resources.writing_ops(graph_id, handle_name)
            self._keeps_bad_in[key] = all(self._op_keeps_bad(op, graph_id, handle_name) for op in writers)
        return self._keeps_bad_in[key]

    def _op_keeps_bad(self, op: Op, graph_id: int, handle_name: str) -> bool:
        if WRITER.fullmatch(op.op_type):
            return op.op_type in _KEEPING or self._is_computed_from_old(op, graph_id, handle_name)
        return all(
            self._graph_keeps_bad(call.callee_graph_id, name)
            for call in self._graphs.calls(graph_id, op.op_name)
            if call.callee_graph_id is not None
            for name in self._resources.callee_handles(op, call, handle_name)
        )

    def _is_computed_from_old(self, write: Op, graph_id: int, handle_name: str) -> bool:
        """Returns whether an op writes a value that is bad where the old value is bad, as in `v.assign(v - x)`."""
        if write.op_type not in REPLACING:
            return False
        before = (op for op in self._resources.writing_ops(graph_id, handle_name) if op.op_index < write.op_index)
        last_write = max((op.op_index for op in before), default=-1)
        handles = self._resources.aliases(graph_id, handle_name)
        to_follow = [source for source, _ in write.inputs]
        followed: set[str] = set()
        while to_follow:
            name = to_follow.pop()
            op = None if name in followed else self._graphs.op(graph_id, name)
            followed.add(name)
            if op is None:
                continue
            if op.op_type == READER and _is_of(op, handles) and op.op_index > last_write:
                return True
            if op.op_type in _KEEPING_VALUES:
                to_follow += [source for source, _ in op.inputs]
        return False


def _is_of(read: Op, handles: Collection[str]) -> bool:
    return bool(read.inputs) and read.inputs[0][0] in handles
