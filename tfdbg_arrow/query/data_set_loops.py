"""DataSetLoops: finds the data sets of loops such as `for batch in dataset` in tf.functions."""

from __future__ import annotations

from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.recorded import TensorEvent
from tfdbg_arrow.query.source_arrays import MAKES_BATCHES, SourceArrays, SourceRow

_MAX_DATA_SETS = 100
"""Maximum number of ops of data sets that a search in a graph follows back."""


class DataSetLoops:
    """Finds the data sets of the loops in the graphs of one run. The caller must hold the lock of the data flow."""

    def __init__(self, flow: DataFlow, arrays: SourceArrays) -> None:
        self._flow = flow
        self._arrays = arrays

    def is_batched(self, graph_id: int) -> bool:
        """Returns whether it is certain that the elements of a loop are batches."""
        is_made_here, data_sets = self._data_sets(graph_id)
        return is_made_here or (bool(data_sets) and all(map(self._arrays.is_data_set_of_batches, data_sets)))

    def path(self, graph_id: int, component: int) -> tuple[int | str, ...] | None:
        """Returns the path of a component of a loop's elements; None if the recording does not show it."""
        is_made_here, data_sets = self._data_sets(graph_id)
        paths = {self._arrays.component_path(dataset_id, component) for dataset_id in data_sets}
        return paths.pop() if len(paths) == 1 and not is_made_here else None

    def row(self, component: TensorEvent, sample: int) -> SourceRow | None:
        """Returns the record that a sample of an iteration's batch came from, or None if the record is not known.

        Args:
            component: A component of the batch. This component is an argument of the loop's body.
            sample: The index of the sample in the batch.
        """
        if component.graph_id is None or component.step_id is None:
            return None
        run = self._flow.loop_bodies.run_until(component.graph_id, component.step_id)
        if run is None:
            return None
        is_made_here, data_sets = self._data_sets(component.graph_id, execution_index=run.execution_index)
        if is_made_here or len(data_sets) != 1:
            return None
        (dataset_id,) = data_sets
        return self._arrays.row_in_loop(
            component,
            sample,
            dataset_id=dataset_id,
            first_event=run.first_event,
            num_batches=run.num_iterations,
        )

    def _data_sets(self, graph_id: int, *, execution_index: int | None = None) -> tuple[bool, set[int]]:
        """Returns where a loop's batches come from, as two values.

        The first value says whether the graph that contains the loop makes the batches itself. The second value has the
        tensor IDs of the data sets that this graph takes otherwise. The set is empty if the data sets are not known.

        Args:
            graph_id: The body of the loop.
            execution_index: The execution whose data set is returned; None means all executions.
        """
        loop = self._flow.loop_bodies.by_graph.get(graph_id)
        graphs = self._flow.graphs
        name = None if loop is None else loop.op_name
        for _ in range(_MAX_DATA_SETS):
            op = None if loop is None or name is None else graphs.op(loop.outer_graph_id, name)
            if loop is None or op is None:
                break
            if op.op_type in MAKES_BATCHES:
                return True, set()
            argument = graphs.argument(loop.outer_graph_id, op.op_name, function_name=None)
            if argument is not None:
                functions = [
                    function for function, called in graphs.function_graphs.items() if called == loop.outer_graph_id
                ]
                inputs = [
                    self._flow.events.execution_inputs(call.execution_index).get(argument.input_index)
                    for call in self._flow.events.executions_of(functions)
                    if execution_index in (None, call.execution_index)
                ]
                return False, set() if None in inputs else {tensor_id for tensor_id in inputs if tensor_id is not None}
            name = op.inputs[0][0] if "Dataset" in op.op_type and op.inputs else None
        return False, set()
