"""StepBatches: the batches that training steps take, as arguments or as elements of data sets."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property, lru_cache

from tfdbg_arrow.query.data_set_loops import DataSetLoops
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.keras_graphs import user_names
from tfdbg_arrow.query.outside_tensors import OutsideTensors
from tfdbg_arrow.query.recorded import EagerValue, GraphTensor, TensorEvent, read_events
from tfdbg_arrow.query.source_arrays import GETS_ELEMENT, SourceArrays
from tfdbg_arrow.query.stacks import library_function_names

METHODS_OF_KERAS = frozenset({"evaluate", "fit", "predict"})
"""The methods in which Keras takes elements from data sets."""
_PHASES_OF_KERAS = ("train", "test", "predict")
"""The phases that a recording marks in fit, evaluate and predict.

In these methods, Keras treats each element as a batch.
"""


class StepBatches:
    """Recognizes the batches of one run's training steps. The caller must hold the lock of the data flow."""

    def __init__(self, logdir: Engine, flow: DataFlow, arrays: SourceArrays, *, run_id: str) -> None:
        self._logdir = logdir
        self._flow = flow
        self._arrays = arrays
        self._stacks = flow.stacks
        self._run_id = run_id
        self._outside = OutsideTensors(flow)
        self.loops = DataSetLoops(flow, arrays)
        self._cached_arguments = lru_cache(maxsize=100)(self._read_arguments)
        self._first_sizes_of_arguments = lru_cache(maxsize=100)(self._find_first_sizes_of_arguments)

    def is_batch_input(self, row: TensorEvent) -> bool:
        """Returns whether a tensor is an input of the step, and its first axis is the batch axis."""
        size = (row.shape or (0,))[0]
        user = row.execution_index
        if row.graph_id is not None and self._flow.loop_bodies.is_component(row.graph_tensor):
            return self._first_sizes(row) == {size} and self.loops.is_batched(row.graph_id)
        if row.op_type in GETS_ELEMENT:
            sizes = self._first_sizes(row)
            if sizes != {size} or self.has_batches(row.execution_index):
                return sizes == {size}
            # A distributed data set passes its elements through a function.
            uses = () if row.tensor_id is None else self._flow.events.uses(row.tensor_id)
            user = next((use.execution.execution_index for use in uses if use.execution.graph_id is not None), None)
        return user is not None and row.event_index in self.arguments(user) and self.has_batch(user, size)

    def _first_sizes(self, component: TensorEvent) -> set[int]:
        """Returns the sizes of the first axes of the recorded components of an element."""
        return {sibling.shape[0] for sibling in self.siblings(component) if sibling.shape}

    def has_batch(self, call: int, size: int) -> bool:
        """Returns whether a call is a training step that takes several arguments with a first axis of this size."""
        return self._first_sizes_of_arguments(call).count(size) > 1 and self._has_gradient(call)

    def _find_first_sizes_of_arguments(self, call: int) -> list[int | None]:
        """Returns the sizes of the first axes of the arguments of a call.

        Arguments without a row, such as class labels, count if their graph has a fixed size for them.
        """
        execution = self._flow.events.execution(call)
        if execution is None or execution.graph_id is None:
            return []
        fixed = dict(
            self._logdir.rows(
                "SELECT op_name, list_at(static_shape, 0) FROM graph_op_output WHERE run_id = ? AND graph_id = ? "
                "AND NOT is_recorded AND list_at(static_shape, 0) > 0",
                [self._run_id, execution.graph_id],
            )
        )
        sizes: list[int | None] = []
        for index, tensor_id in self._flow.events.execution_inputs(call).items():
            placeholder = self._flow.graphs.placeholder(execution.op_type, index)
            if placeholder is not None and self._outside.argument(execution, index) is not None:
                row = self._flow.events.eager(tensor_id).event
                sizes += [fixed.get(placeholder)] if row is None else (row.shape or ())[:1]
        return sizes

    def _has_gradient(self, execution_index: int) -> bool:
        """Returns whether an execution ran gradient ops, as a training step does."""
        rows = self._logdir.rows(
            "SELECT DISTINCT t.graph_id FROM tensor_health AS t JOIN graph_op AS o ON o.run_id = t.run_id "
            "AND o.graph_id = t.graph_id AND o.op_name = t.op_name "
            "WHERE t.run_id = ? AND t.execution_index = ? AND o.role = 'gradient' LIMIT 1",
            [self._run_id, execution_index],
        )
        return bool(rows)

    def has_batches(self, execution_index: int | None) -> bool:
        """Returns whether the elements that an execution took from a data set are batches."""
        if execution_index is None:
            return self._is_of_keras
        return (self._is_of_keras and self._is_in_keras(execution_index)) or self._arrays.is_batched(execution_index)

    @cached_property
    def _is_of_keras(self) -> bool:
        """Whether Keras takes the elements of data sets in the run."""
        rows = self._logdir.rows(
            "SELECT 1 FROM mark WHERE run_id = ? AND label = 'phase' AND value IN (?, ?, ?) LIMIT 1",
            [self._run_id, *_PHASES_OF_KERAS],
        )
        return bool(rows) or bool(self.functions_of_keras)

    @cached_property
    def functions_of_keras(self) -> Collection[int]:
        """The graphs that Keras made from the steps of models."""
        return user_names(self._logdir, run_id=self._run_id).keys()

    def _is_in_keras(self, execution_index: int) -> bool:
        """Returns whether Keras called an execution. An execution without a known stack counts as called by Keras."""
        execution = self._flow.events.execution(execution_index)
        stack = () if execution is None else self._stacks.stack(execution.stack_trace_id)
        return not stack or not library_function_names(stack).isdisjoint(METHODS_OF_KERAS)

    def arguments(self, execution_index: int | None) -> dict[int, tuple[str, TensorEvent]]:
        """Returns (name, row) of each recorded argument of a call, or feed of a session's run, by event_index."""
        return self._cached_arguments(execution_index)

    def _read_arguments(self, execution_index: int | None) -> dict[int, tuple[str, TensorEvent]]:
        execution = self._flow.events.execution(execution_index)
        if execution is None or execution.graph_id is None:
            return {}
        arguments: dict[int, tuple[str, TensorEvent]] = {}
        for index, tensor_id in self._flow.events.execution_inputs(execution.execution_index).items():
            name = self._outside.argument(execution, index)
            row = self._flow.events.eager(tensor_id).event
            if row is not None and name is not None:
                arguments[row.event_index] = (name, row)
        return arguments

    def siblings(self, row: TensorEvent) -> list[TensorEvent]:
        """Returns the recorded outputs of the op that made a tensor, from the same run of this op.

        For a component of the element in the body of a loop over a data set, these are all recorded components.
        """
        graph_tensor = row.graph_tensor
        return self._outputs_of(row.execution_index) if graph_tensor is None else self.siblings_of(graph_tensor)

    def siblings_of(self, tensor: GraphTensor | EagerValue) -> list[TensorEvent]:
        """Returns the same as `siblings`, for a tensor that may have no row."""
        if isinstance(tensor, EagerValue):
            return self._outputs_of(self._flow.events.eager(tensor.tensor_id).execution_index)
        components = self._flow.loop_bodies.components(tensor.graph_id)
        names = sorted(components) if tensor.op_name in components else [tensor.op_name]
        return read_events(
            self._logdir,
            f"graph_id = ? AND op_name IN ({', '.join('?' * len(names))}) AND step_id IS NOT DISTINCT FROM ? "
            "AND iteration IS NOT DISTINCT FROM ? ORDER BY op_name, output_slot",
            [self._run_id, tensor.graph_id, *names, tensor.context.step_id, tensor.context.iteration],
        )

    def _outputs_of(self, execution_index: int | None) -> list[TensorEvent]:
        """Returns the recorded outputs of an eager op."""
        condition = "scope = 'execution' AND execution_index = ? ORDER BY output_slot"
        return read_events(self._logdir, condition, [self._run_id, execution_index])
