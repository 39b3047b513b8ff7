"""BatchAxis: finds the inputs of a training step from which a tensor takes the batch axis.

The first axis of a tensor counts as the batch axis only if the recording shows this. The tensor must be computed from
an input of the training step through ops that keep the first axis of one of their inputs. An op certainly keeps the
first axis if the graph leaves the size of that axis open, or if no other axis has the same size.
"""

from __future__ import annotations

from typing import NamedTuple

from tfdbg_arrow.query.batch_axis.first_axis import LOOKUPS, Carrier, FirstAxis
from tfdbg_arrow.query.batch_axis.op_facts import OpFacts
from tfdbg_arrow.query.batch_axis.reduced_rows import ReducedRows
from tfdbg_arrow.query.batch_axis.step_batches import StepBatches
from tfdbg_arrow.query.batch_axis.unrecorded_inputs import (
    ELEMENTWISE,
    RESHAPING,
    UnrecordedInputs,
    UnrecordedTensor,
    num_axes_of,
)
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.decisions import SELECTS
from tfdbg_arrow.query.flow.graphs import NEVER_BAD
from tfdbg_arrow.query.outside_tensors import OutsideTensors
from tfdbg_arrow.query.recorded import EagerValue, GraphTensor, TensorEvent
from tfdbg_arrow.query.source_arrays import GETS_ELEMENT
from tfdbg_arrow.query.step_inputs import StepInputs
from tfdbg_arrow.schema.op_traits import READER

_MAX_TENSORS = 1_000
"""Maximum number of tensors that are followed back for one answer. Each tensor takes some time."""


_REORDERED = -1
"""Stands in for the sources of a tensor whose slices are not computed from the slices of the same index."""
_FIRST_REDUCED = -2
"""For a reduced component, the key of the source is `_FIRST_REDUCED` minus the event_index of the component's values. A
mean takes two sums over the same rows. Both sums have the same key, so that they count as one source."""
OUTSIDE = "a tensor from outside"
"""The name of a source that eager code took."""


class BatchSource(NamedTuple):
    """A tensor whose slices along the first axis are the samples of a batch, or an argument that may be a batch.

    Attributes:
        row: An input of the step, or the first recorded tensor that was computed from an input.
        taken_in: The execution that took the batch from a data set; None for an argument of a function.
        argument: If the tensor is an argument that may be a batch, the name of this argument, such as "the argument `x`
            of `step`"; None if the tensor is known to be a batch.
        call: The execution that took the tensor as an argument; None if the tensor is an input of the batch's own
            execution.
        component: The component of the data set's element from which the samples come; None for an argument.
        is_reduced: Whether the samples are the rows of a ragged or sparse component. Then `row` holds the values of
            this component.
    """

    row: TensorEvent
    taken_in: int | None
    argument: str | None = None
    call: int | None = None
    component: GraphTensor | EagerValue | None = None
    is_reduced: bool = False


class BatchAxis:
    """Follows tensors of one run back to the batch. The caller must hold the lock of the data flow."""

    def __init__(self, logdir: Engine, flow: DataFlow, batches: StepBatches, kept: StepInputs, *, run_id: str) -> None:
        self._flow = flow
        self._kept = kept
        self._batches = batches
        facts = OpFacts(logdir, run_id=run_id)
        self._unrecorded = UnrecordedInputs(flow, facts, batches)
        self._first_axis = FirstAxis(flow, facts, self._unrecorded)
        self._reduced_rows = ReducedRows(flow, facts, batches)
        self._outside = OutsideTensors(flow)
        self._sources: dict[int, frozenset[int]] = {}
        self._source_of: dict[int, BatchSource] = {}

    def sources(self, event: TensorEvent) -> list[BatchSource]:
        """Returns the tensors from which a tensor takes the batch axis; an empty list if that is not certain.

        If the first axis does not come from a batch, the result is the arguments of calls from which the axis comes.
        """
        if not self._flow.records_all:
            return []
        num_followed = 0
        carriers: dict[int, list[Carrier]] = {}
        to_follow = [event]
        while to_follow:
            row = to_follow[-1]
            index = row.event_index
            if index in self._sources:
                to_follow.pop()
                continue
            if index not in carriers:
                num_followed += 1
                if num_followed > _MAX_TENSORS:
                    return []
                source = self._source(row)
                if source is not None:
                    key = _FIRST_REDUCED - source.row.event_index if source.is_reduced else index
                    self._source_of[key] = source
                    self._sources[index] = frozenset([key])
                    continue
                carriers[index] = self._first_axis.carriers(row)
                to_follow += [carrier.row for carrier in carriers[index] if carrier.row.event_index not in carriers]
                continue
            to_follow.pop()
            self._sources[index] = self._sources_behind(row, carriers[index])
        if _REORDERED in self._sources[event.event_index]:
            return []
        sources = [self._source_of[index] for index in sorted(self._sources[event.event_index])]
        of_batch = [source for source in sources if source.argument is None]
        if of_batch or event.scope == "external":
            return of_batch or sources
        return [source for source in sources if source.row.event_index != event.event_index]  # a call took it later

    def _sources_behind(self, row: TensorEvent, carriers: list[Carrier]) -> frozenset[int]:
        """Returns the sources of a tensor's carriers. An argument without such sources is its own source.

        The result is `_REORDERED` if a slice may be computed from two samples. Examples are the sum of a batch and the
        same batch after a Roll, and the sum of a batch and a variable that holds an earlier batch.
        """
        behind: set[int] = set()
        for carrier in carriers:
            of_carrier = self._sources.get(carrier.row.event_index, frozenset())
            if _REORDERED in of_carrier or (carrier.is_reordered and of_carrier):
                return frozenset([_REORDERED])
            behind.update(
                source for source in of_carrier if carrier.is_certain or self._source_of[source].argument is None
            )
        without = [carrier.row for carrier in carriers if not self._sources.get(carrier.row.event_index)]
        if behind and any(other.op_type == READER or self._depends_on_source(other) for other in without):
            return frozenset([_REORDERED])
        beside = [row, *without] if row.op_type in SELECTS else without
        if any(map(self._takes_mask, beside)):  # A mask has no row. It may be another argument.
            behind = {source for source in behind if self._source_of[source].argument is None}
        if not behind and (argument := self._as_argument(row)) is not None:
            self._source_of[row.event_index] = argument
            behind.add(row.event_index)
        return frozenset(behind)

    def _depends_on_source(self, row: TensorEvent) -> bool:
        """Returns whether a tensor of the call is computed from inputs of the step, in whatever order.

        Variables are not followed: what a training wrote to them depends on all earlier batches.
        """
        to_follow, seen = [row], {row.event_index}
        while to_follow and len(seen) < _MAX_TENSORS:
            for _, how, taken in self._flow.taken_by(to_follow.pop(), is_recent=True):
                if how == "variable" or taken.event_index in seen:
                    continue
                if self._source(taken) is not None:
                    return True
                seen.add(taken.event_index)
                to_follow.append(taken)
        return bool(to_follow)

    def _takes_mask(self, row: TensorEvent) -> bool:
        """Returns whether the op of a tensor takes booleans, or casts booleans or integers. Constants do not count."""
        place = row.graph_tensor
        op = None if place is None else self._flow.graphs.op(place.graph_id, place.op_name)
        if place is None or op is None:
            return False
        graph = self._flow.graphs.graph(place.graph_id)
        edges = [edge for edge in op.inputs if (source := graph.ops.get(edge[0])) and source.op_type != "Const"]
        dtypes = {graph.dtypes.get(edge) for edge in edges}
        return "bool" in dtypes or (op.op_type == "Cast" and not dtypes.isdisjoint(NEVER_BAD))

    def _as_argument(self, row: TensorEvent) -> BatchSource | None:
        """Returns the source for an eager tensor: the argument of the first call that took the tensor.

        If the call is a step of Keras, or a training step with several such arguments, these arguments are the batch. A
        tensor from outside that no call took is a source only if its elements were kept. The answer then shows the row,
        which is often a record of an array that eager code slices. For other tensors, the result is None.
        """
        uses = () if row.scope == "graph" or row.tensor_id is None else self._flow.events.iter_uses(row.tensor_id)
        for use in uses:
            name = self._outside.argument(use.execution, use.input_index)
            if name is not None:
                call = use.execution.execution_index
                is_of_keras = use.execution.graph_id in self._batches.functions_of_keras  # as in train_on_batch
                is_batch = is_of_keras or self._batches.has_batch(call, (row.shape or (0,))[0])
                return BatchSource(row, None, None if is_batch else name, call)
        is_kept = row.scope == "external" and row.tensor_id is not None and self._kept.of_tensors([row.tensor_id])
        return BatchSource(row, None, OUTSIDE) if is_kept else None

    def _source(self, row: TensorEvent) -> BatchSource | None:
        """Returns a tensor as a source if it is an input of the step, or is computed from an input that has no row."""
        if (values := self._reduced_rows.values_of(row)) is not None:
            return BatchSource(values, None, is_reduced=True)
        if self._batches.is_batch_input(row):
            if self._flow.loop_bodies.is_component(row.graph_tensor):
                return BatchSource(row, None, component=row.graph_tensor)
            if row.op_type not in GETS_ELEMENT:
                return BatchSource(row, None)
            eager = None if row.tensor_id is None else EagerValue(row.tensor_id)
            return BatchSource(row, row.execution_index, component=row.graph_tensor or eager)
        graph_tensor = row.graph_tensor
        if row.op_type in LOOKUPS:
            start = self._unrecorded.indices(row)
        elif (start := self._unrecorded.split_texts(row)) is None:
            is_of_slices = row.op_type in ELEMENTWISE | RESHAPING
            start = (
                None if graph_tensor is None or not is_of_slices else UnrecordedTensor(graph_tensor, num_axes_of(row))
            )
        if start is None:
            return None
        component = self._unrecorded.component_behind(row, start.tensor, num_axes=start.num_axes)
        if component is None or self._batches.siblings_of(component):
            return None
        taken_in = row.execution_index
        if isinstance(component, GraphTensor) and self._flow.loop_bodies.is_component(component):
            is_batched = self._batches.loops.is_batched(component.graph_id)
            return BatchSource(row, None, component=component) if is_batched else None
        if isinstance(component, EagerValue):
            taken_in = self._flow.events.eager(component.tensor_id).execution_index
        has_batches = taken_in is not None and self._batches.has_batches(taken_in)
        return BatchSource(row, taken_in, component=component) if has_batches else None
