"""Data flow: which tensors an op took as inputs, across the borders of graphs, calls and eager code."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.bad_variables import BadVariables
from tfdbg_arrow.query.flow.borders import Borders
from tfdbg_arrow.query.flow.callsites import CallSites
from tfdbg_arrow.query.flow.contents import ELEMENT, Contents, Gaps, TensorLists
from tfdbg_arrow.query.flow.events import EventReader
from tfdbg_arrow.query.flow.graphs import NEVER_BAD, GraphReader
from tfdbg_arrow.query.flow.labels import Label, Labels
from tfdbg_arrow.query.flow.loop_bodies import LoopBodies
from tfdbg_arrow.query.flow.pipelines import Pipelines
from tfdbg_arrow.query.flow.program_ops import ProgramOps
from tfdbg_arrow.query.flow.python_functions import PythonFunctions, has_health_of
from tfdbg_arrow.query.flow.resources import Resources, Write
from tfdbg_arrow.query.flow.search import rows_behind
from tfdbg_arrow.query.recorded import Context, EagerValue, GraphTensor, Op, Place, TensorEvent, Trace
from tfdbg_arrow.query.stacks import StackReader
from tfdbg_arrow.schema.op_traits import (
    COLLECTIVES,
    CONTAINERS,
    OPTIMIZERS,
    POPS,
    READERS,
    TAKES_FROM_STORE,
    Trait,
    types_with,
)

_MAX_PATH = 10_000
"""A tensor is followed across at most this many borders. A longer path counts as a cycle."""
_MAX_BEHIND = 300
"""A search back from a result of a Python function examines at most this many bad tensors."""
_MAX_KEPT = 50_000
"""Maximum number of tensors whose sources are cached."""
_SUMS = types_with(Trait.EQUAL | Trait.RESHAPED) | {"Mean", "Sum"}
"""For non-negative inputs, ops of these types return 0 only where all inputs are 0."""
_MAX_UNRECORDED = 500
"""For one op, at most this many unrecorded tensors are examined."""


@dataclass(frozen=True)
class Input:
    """One input of a recorded tensor's op.

    Attributes:
        index: The index of the input, from 0.
        trace: Where the input came from.
        write: If the input is a variable or another resource, the last write to the input; None if no write was
            recorded.
    """

    index: int
    trace: Trace
    write: Write | None


@dataclass(frozen=True)
class Sources:
    """The nearest recorded tensors on which the values of a tensor depend.

    Attributes:
        events: The rows of these tensors. If the op that computed an input has a row, this row stands for the input.
        is_complete: True if `events` has all these tensors; False if an input that could be bad was not recorded, or
            was not found because the search stopped at a limit.
    """

    events: tuple[TensorEvent, ...]
    is_complete: bool


class DataFlow:
    """Finds the tensors from which a recorded tensor was computed, within one run.

    Attributes:
        records_all: Whether the run recorded all tensors. False if a filter left out tensors, or if tensors were lost.
    """

    def __init__(self, logdir: Engine, *, run_id: str) -> None:
        self.graphs = GraphReader(logdir, run_id=run_id)
        self.events = EventReader(logdir, run_id=run_id)
        self.labels = Labels(logdir, self.graphs, self.events, run_id=run_id)
        self.sites = CallSites(self.graphs, self.events)
        self.borders = Borders(self.graphs, self.events, self.sites)
        self.loop_bodies = LoopBodies(logdir, self.graphs, run_id=run_id)
        self.resources = Resources(self.graphs, self.events, self.borders, self.loop_bodies)
        self.stacks = StackReader(logdir, run_id=run_id)
        self.program_ops = ProgramOps(self.graphs, self.borders, self._row_of)
        self._pipelines = Pipelines(logdir, self.graphs, self.events, self._row_of, self.loop_bodies, run_id=run_id)
        self._python_functions = PythonFunctions(logdir, self.events, self.stacks, run_id=run_id)
        self.lock = threading.RLock()
        self._sources: dict[tuple[int, str | None, int], Sources] = {}
        self._gaps = Gaps(logdir, run_id=run_id)
        bad_variables = BadVariables(self.graphs, self.events, self.resources)
        self._contents = Contents(self.resources, bad_variables, self._gaps)
        self._lists = TensorLists(self.graphs, self.borders.executed, self._made_at)
        settings = logdir.rows(
            "SELECT op_regex IS NULL AND tensor_dtypes IS NULL AND circular_buffer_size <= 0 AND NOT EXISTS "
            "(SELECT 1 FROM capture_stat WHERE run_id = ? AND stat = 'dropped') FROM run WHERE run_id = ?",
            [run_id, run_id],
        )
        self.records_all = bool(settings and settings[0][0])

    @classmethod
    def of(cls, logdir: Engine, *, run_id: str) -> DataFlow:
        """Returns the cached data flow of a run. The data flow keeps everything that earlier questions read.

        The caller must hold the `lock` of the data flow while using it.
        """
        return logdir.kept("data flow", run_id, lambda: cls(logdir, run_id=run_id))

    def inputs_of(self, event: TensorEvent) -> tuple[Input, ...]:
        """Returns the inputs of the op that made a tensor, in order.

        A tensor that only crossed a border (an argument, the result of a call) has one input: the same tensor on the
        other side. A tensor from outside has no inputs.
        """
        inputs = []
        for index, (place, how) in enumerate(self._input_places(event)):
            trace = self.trace(place, how=how, near=event.event_index)
            write = None
            if trace.dtype == "resource":
                write, is_known = self._contents.last_write(trace, event)
                trace = trace if is_known else replace(trace, is_lost=True)
            inputs.append(Input(index, trace, write))
        return tuple(inputs)

    def taken_by(self, event: TensorEvent, *, is_recent: bool = False) -> list[tuple[int, str, TensorEvent]]:
        """Returns the recorded tensors behind the inputs of a tensor's op.

        Args:
            event: The tensor.
            is_recent: Whether to leave out values that were written to a variable before the run's first bad tensor, as
                in `recent_sources_of`.

        Returns:
            Tuples (index of the input, how, row) in the order of the inputs. `how` comes from the input's trace. For a
            variable, `how` is `variable`, and the rows are the tensors from which the variable's content came.
        """
        taken = []
        for index, (place, how) in enumerate(self._input_places(event)):
            trace = self.trace(place, how=how, near=event.event_index)
            if trace.dtype == "resource":
                content = self._contents.content(trace, event, since=self._bad_since if is_recent else 0)
                traces = [self.trace(value, how=how, near=2**63 - 1) for value, how in content.values]
                rows = [value.row for value in traces] + [content.old_value]
                taken += [(index, "variable", row) for row in rows if row is not None]
            elif (row := trace.row) is not None:
                taken.append((index, trace.how, row))
        return taken

    def sources_of(self, event: TensorEvent) -> Sources:
        """Returns the recorded tensors on which a tensor depends.

        If an input was not recorded, the inputs of its op are returned instead. The result is then complete only in
        three cases:

        - The dtype of the input has no infinities and no NaN.
        - The input is a variable or a list, and the tensors that it stores are followed.
        - The optimizer fused the op of the input into another op.
        """
        return self._sources_of(event, since=0)

    def recent_sources_of(self, event: TensorEvent) -> tuple[TensorEvent, ...]:
        """Returns those tensors of `sources_of` that may be bad or belong to the tensor's own call.

        Values that were written to a variable before the run's first bad tensor are left out, because there can be
        many.

        Args:
            event: A tensor of an execution that does not come before the run's first bad tensor.
        """
        return self._sources_of(event, since=self._bad_since).events

    def bad_sources_of(self, event: TensorEvent) -> list[TensorEvent]:
        """Returns the bad tensors among `recent_sources_of`."""
        return [source for source in self.recent_sources_of(event) if source.has_inf_or_nan]

    def _results_of_python_function(self, event: TensorEvent) -> tuple[TensorEvent, ...]:
        """Returns the bad eager tensor that a Python function returned as an output of an op such as `tf.py_function`.

        The result is empty if the function took a bad argument whose source is not known.
        """
        results = self._python_functions.sources_of(event)
        behind = rows_behind(results, self.bad_sources_of, limit=_MAX_BEHIND)
        has_unknown = any(row.scope == "external" and not self.bad_sources_of(row) for row in behind)
        return () if has_unknown else results

    def _argument_of_python_function(self, event: TensorEvent) -> tuple[TensorEvent, ...]:
        """Returns the input that an op such as `tf.py_function` passed to its Python function as this bad argument."""
        output = self._python_functions.output_after(event) if event.scope == "external" else None
        inputs = [] if output is None else [row for _, _, row in self.taken_by(output)]
        return tuple(row for row in inputs if has_health_of(row, event))[:1]

    def output_of_python_function(self, event: TensorEvent) -> TensorEvent | None:
        """Returns the output of an op such as `tf.py_function` that goes back to a bad tensor inside its function.

        The result is None for a tensor that was not computed in such a Python function.
        """
        output = self._python_functions.output_after(event)
        behind = () if output is None else rows_behind([output], self.bad_sources_of, limit=_MAX_BEHIND)
        return output if any(row.event_index == event.event_index for row in behind) else None

    def _sources_of(self, event: TensorEvent, *, since: int) -> Sources:
        key = (event.event_index, event.op_type, since)
        if key not in self._sources:
            if len(self._sources) > _MAX_KEPT:
                self._sources.clear()
                self._contents.clear()
            self._sources[key] = self._find_sources(event, since)
        return self._sources[key]

    def infinities_behind(self, event: TensorEvent) -> tuple[TensorEvent, ...]:
        """Returns the tensors with -Inf that a log-sum-exp hands on: exp(-Inf) is 0, and the logarithm of 0 is -Inf.

        The result is empty if an exponential returned 0 for a finite number. That is an underflow.
        """
        if event.op_type != "Log" or not event.num_neg_inf or event.num_nan or event.num_pos_inf:
            return ()
        infinities: list[TensorEvent] = []
        rows = list(self.sources_of(event).events)
        examined = {event.event_index}
        while rows:
            row = rows.pop()
            if row.event_index in examined:  # several terms share this row, or rows without a context form a cycle
                continue
            examined.add(row.event_index)
            behind = self.sources_of(row).events
            num_infinite = behind[0].num_neg_inf if len(behind) == 1 else None
            # TensorFlow may treat a subnormal number as 0.
            if row.op_type == "Exp" and row.num_zero and num_infinite == row.num_zero and not row.num_subnormal:
                infinities += behind
            elif row.op_type in _SUMS and behind:
                rows += behind
            else:
                return ()
        return tuple(infinities)

    @cached_property
    def _bad_since(self) -> int:
        """The first execution with a bad tensor. Every recorded tensor of earlier executions is clean."""
        return self.events.first_bad_execution()

    def computed(self, event: TensorEvent) -> TensorEvent:
        """Follows a tensor back over borders, and returns the row of the op that computed it."""
        place: Place | None = event.graph_tensor
        if event.scope != "graph" and event.tensor_id is not None:
            place = EagerValue(event.tensor_id)
        if place is None:
            return event
        return self.trace(place, how="graph", near=event.event_index).event or event

    def as_written(self, event: TensorEvent) -> TensorEvent:
        """Returns a row for the optimizer's op that wrote the bad elements of a variable, given a read of the variable.

        The optimizer's op computes the value that it writes, but it has no output, and therefore no row. The result has
        the counts and the event_index of the read. If `event` is not such a read, or if an input of the op may be bad,
        the result is `event` itself.
        """
        if event.op_type not in READERS or not event.has_inf_or_nan:
            return event
        if self.bad_sources_of(event):
            return event
        sources = self.sources_of(event)  # asked last, because it goes through all writes since the start of the run
        if not sources.is_complete:
            return event
        writes = [input_.write for input_ in self.inputs_of(event) if input_.write is not None]
        if len(writes) != 1 or not writes[0].op_type.startswith(OPTIMIZERS):
            return event
        (write,) = writes
        last_taken = max((source for source in sources.events), key=lambda row: row.event_index, default=event)
        at = write.context or Context(None, write.execution_index, None, None, None)
        return replace(
            event, scope="execution" if write.graph_id is None else "graph", execution_index=write.execution_index,
            step_id=at.step_id, frame_id=at.frame_id, iteration=at.iteration, call_site=at.call_site,
            graph_id=write.graph_id, op_name=write.op_name, op_type=write.op_type, output_slot=0, tensor_id=None,
            step=last_taken.step,
        )  # fmt: skip

    def equal_ops(self, event: TensorEvent) -> list[Op]:
        """Returns the program's ops that are equal to the maker of a tensor. TensorFlow ran only one of these ops."""
        maker = self.program_ops.maker(event)
        own = event.graph_tensor if maker is None else maker.place
        if own is None or own.context.call_site is None:
            return []
        node = self.graphs.op(own.graph_id, own.op_name)
        is_inside = maker is not None and node is not None and node.made_for not in (None, maker.op.op_name)
        return [] if is_inside else self.borders.executed.equal_ops(own)

    def label_of_maker(self, event: TensorEvent) -> Label:
        """Returns the label of the op that most likely made a bad tensor.

        If TensorFlow ran one op in place of equal ops of the loss and of a metric, the result is the label of the loss.
        """
        maker = self.program_ops.maker(event)
        label = self.labels.of(event) if maker is None else self.labels.op(maker.place.graph_id, maker.op.op_name)
        if label.role != "metric" or event.graph_id is None:
            return label
        equal = (self.labels.op(event.graph_id, op.op_name) for op in self.equal_ops(event))
        return next((other for other in equal if other.role == "loss"), label)

    def stack_trace_id(self, event: TensorEvent) -> int | None:
        """Returns the ID of the stack that created or executed the op of a tensor, or None if no stack was recorded.

        If TensorFlow did not run the program's op unchanged, the result is the stack of `ProgramOps.maker`.
        """
        if event.scope == "graph":
            if event.graph_id is None or event.op_name is None:
                return None
            maker = self.program_ops.maker(event)
            op = self.graphs.op(event.graph_id, event.op_name) if maker is None else maker.op
            return None if op is None else op.stack_trace_id
        execution = self.events.execution(event.execution_index)
        return None if execution is None else execution.stack_trace_id

    def captured_as(self, event: TensorEvent) -> tuple[int, str] | None:
        """If a function captured an external tensor and used it first, returns the function's graph and Placeholder.

        The result is None if another execution used the tensor first, or if the tensor is an argument of the function.
        """
        execution = self.events.execution(event.execution_index) if event.scope == "external" else None
        if execution is None or execution.graph_id is None:
            return None
        inputs = self.events.execution_inputs(execution.execution_index).items()
        index = next((index for index, tensor_id in inputs if tensor_id == event.tensor_id), None)
        name = None if index is None else self.graphs.placeholder(execution.op_type, index)
        if name is None:
            return None
        argument = self.graphs.argument(execution.graph_id, name, function_name=execution.op_type)
        return None if argument is None or not argument.is_capture else (execution.graph_id, name)

    def trace(self, place: Place, *, how: str, near: int) -> Trace:
        """Follows a tensor back over borders to the op that computed it.

        Args:
            place: The place from which an op takes the tensor.
            how: Where that op ran: `graph` or `eager`.
            near: The event_index of that op.
        """
        place = self._located(place)
        path = [place]
        health = event = self._event(place)
        dtype = self._dtype(place, event)
        is_lost = False
        seen = {place}
        while len(path) < _MAX_PATH:
            crossing = self.borders.crossing(path[-1])
            if crossing is None:
                break
            if how in ("graph", "eager") and crossing.how != "graph":
                how = crossing.how
            if crossing.place is None or crossing.place in seen:
                is_lost = True
                break
            seen.add(crossing.place)
            place = self._located(crossing.place)
            path.append(place)
            if health is None:
                health = self._event(place)
                dtype = dtype or self._dtype(place, health)
        if len(path) > 1:
            event = self._event(path[-1])
        if how == "eager" and self._is_external(path[-1]):
            how = "external"
        return Trace(tuple(path), event, health, dtype, how, is_lost)

    def _row_of(self, place: Place) -> TensorEvent | None:
        return self.trace(place, how="graph", near=2**63 - 1).row

    def is_bad(self, place: Place) -> bool:
        """Returns whether a tensor is bad, or was not recorded and so may be bad."""
        row = self._row_of(place)
        return row is None or bool(row.has_inf_or_nan)

    def made_from(self, place: Place) -> Iterator[tuple[Place, str]]:
        """Yields the places of a tensor's sources, and how each source was passed."""
        crossing = self.borders.crossing(place)
        if crossing is not None and crossing.place is not None:
            yield crossing.place, crossing.how
        elif isinstance(place, GraphTensor):
            op = self.graphs.op(place.graph_id, place.op_name)
            # An argument with an unknown caller, or a loop's result, is not made from the calling op's inputs.
            if crossing is not None and crossing.earlier is not None:
                yield crossing.earlier, crossing.how
            if crossing is None and op is not None:
                popped = self._lists.popped(place) if op.op_type == POPS and place.output_slot == ELEMENT else None
                if popped is not None:
                    yield popped, "graph"
                    return
                for source in self.borders.executed.inputs(place, op):
                    yield source, "graph"
        else:
            tensor = self.events.eager(place.tensor_id)
            if tensor.execution_index is not None:
                for tensor_id in self.events.execution_inputs(tensor.execution_index).values():
                    yield EagerValue(tensor_id), "eager"

    def cannot_be_bad(self, trace: Trace) -> bool:
        """Returns whether the dtype of a tensor has no infinities and no NaN."""
        if trace.dtype is None:
            # A recording without filters has a row for every tensor from outside that could be bad.
            return self.records_all and not trace.is_lost and self._is_external(trace.place)
        return trace.dtype in NEVER_BAD

    def _located(self, place: Place) -> Place:
        """Returns a place with the context of its row, if the loop iteration of the place is not known."""
        if isinstance(place, GraphTensor) and place.context.step_id is not None and place.context.frame_id is None:
            row = self._event(place)
            if row is not None:
                return replace(place, context=row.context)
        return place

    def _find_sources(self, event: TensorEvent, since: int) -> Sources:
        if event.has_inf_or_nan and (elements := self._pipelines.sources_of(event)):
            return Sources(elements, is_complete=False)
        if event.has_inf_or_nan and (results := self._results_of_python_function(event)):
            return Sources(results, is_complete=True)
        if event.has_inf_or_nan and (arguments := self._argument_of_python_function(event)):
            return Sources(arguments, is_complete=True)
        if event.has_inf_or_nan and (constants := self.program_ops.bad_before_folding(event)):
            return Sources(constants, is_complete=True)
        by_event: dict[int, TensorEvent] = {}
        is_complete = self._is_made_known(event)
        to_follow = list(self._input_places(event))
        if event.op_type is not None and event.op_type.startswith(COLLECTIVES):
            # The recording does not say which replicas take part.
            is_complete = False
            to_follow += self._other_replicas(event)
        seen: set[Place] = set()
        while to_follow:
            place, how = to_follow.pop()
            if place in seen:
                continue
            seen.add(place)
            trace = self.trace(place, how=how, near=event.event_index)
            if (row := trace.row) is not None:  # all values on the path are equal
                by_event[row.event_index] = row
                continue
            if self.cannot_be_bad(trace):
                continue
            if len(seen) > _MAX_UNRECORDED:
                return Sources(tuple(by_event.values()), is_complete=False)
            if trace.dtype == "resource":
                content = self._contents.content(trace, event, since=since)
                more, is_known = list(content.values), content.is_known
                if content.old_value is not None:
                    by_event[content.old_value.event_index] = content.old_value
            else:
                more = list(self.made_from(trace.place))
                # The inputs of an unrecorded tensor determine it in two cases: it is a list of tensors, or the
                # optimizer fused its op into another op.
                is_known = not trace.is_lost and self._is_known_by_inputs(trace)
            is_complete = is_complete and is_known
            to_follow.extend(more)
        return Sources(tuple(by_event[index] for index in sorted(by_event)), is_complete)

    def _other_replicas(self, event: TensorEvent) -> Iterator[tuple[Place, str]]:
        """Yields the inputs of ops of the same type in one graph. Replicas of one process are traced into one graph."""
        own = event.graph_tensor
        if own is None:
            return
        graph = self.graphs.graph(own.graph_id)
        dtype = graph.dtypes.get((own.op_name, own.output_slot))
        for op in graph.ops.values():
            if op.op_type == event.op_type and op.inputs and graph.dtypes.get((op.op_name, own.output_slot)) == dtype:
                source, slot = op.inputs[0]
                yield GraphTensor(own.context, own.graph_id, source, slot, own.near), "graph"

    def _is_made_known(self, event: TensorEvent) -> bool:
        """Returns whether the recording shows the inputs of the op that made a tensor."""
        if event.scope == "external":
            return not self._gaps.between(-1, event.execution_index)
        if event.scope != "graph":
            return True
        if event.op_type is not None and TAKES_FROM_STORE.fullmatch(event.op_type):
            return False
        own = event.graph_tensor
        if own is None or self.graphs.op(own.graph_id, own.op_name) is None:
            return False
        crossing = self.borders.crossing(own)
        return crossing is None or crossing.place is not None

    def _input_places(self, event: TensorEvent) -> Iterator[tuple[Place, str]]:
        if event.scope == "external":
            return
        if event.scope == "graph":
            own = event.graph_tensor
            if own is not None:
                yield from self.made_from(own)
        elif event.tensor_id is not None:
            yield from self.made_from(EagerValue(event.tensor_id))
        elif event.execution_index is not None:
            for tensor_id in self.events.execution_inputs(event.execution_index).values():
                yield EagerValue(tensor_id), "eager"

    def _made_at(self, place: GraphTensor) -> Place | None:
        """Returns the place of the op that computed a tensor, or None if that place is not known."""
        trace = self.trace(place, how="graph", near=place.near)
        return None if trace.is_lost else trace.place

    def _event(self, place: Place) -> TensorEvent | None:
        if isinstance(place, EagerValue):
            return self.events.eager(place.tensor_id).event
        return self.events.graph_tensor(place)

    def _dtype(self, place: Place, event: TensorEvent | None) -> str | None:
        if event is not None:
            return event.dtype
        if isinstance(place, EagerValue):
            tensor = self.events.eager(place.tensor_id)
            if tensor.dtype is None and tensor.execution_index is None and self.resources.is_resource(place.tensor_id):
                return "resource"
            return tensor.dtype
        return self.graphs.graph(place.graph_id).dtypes.get((place.op_name, place.output_slot))

    def _is_external(self, place: Place) -> bool:
        return isinstance(place, EagerValue) and self.events.eager(place.tensor_id).execution_index is None

    def _is_known_by_inputs(self, trace: Trace) -> bool:
        place = trace.place
        if not isinstance(place, GraphTensor):
            return False
        if trace.dtype != "variant":
            return self.borders.executed.is_absorbed(place)
        op = self.graphs.op(place.graph_id, place.op_name)
        return op is not None and op.op_type.startswith(CONTAINERS)
