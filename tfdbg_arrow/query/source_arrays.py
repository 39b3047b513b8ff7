"""SourceArrays: the arrays that the batches of data sets come from, and the order of their rows in the batches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.recorded import Execution, TensorEvent
from tfdbg_arrow.safe_text import parse_json
from tfdbg_arrow.schema.op_traits import Trait, types_with

GETS_ELEMENT = types_with(Trait.GETS_ELEMENT)
"""Types of ops whose outputs are the components of an element of a data set."""
_MAKES_BATCHES = frozenset({
    "BatchDataset", "BatchDatasetV2", "MapAndBatchDataset", "PaddedBatchDataset", "PaddedBatchDatasetV2",
    "ParallelBatchDataset",
})  # fmt: skip
"""Types of ops that make the elements of a data set batches."""
_ARRAYS_OF_KERAS = ("Dataset_map_permutation", "Dataset_flat_map_slice_batch_indices", "Dataset_map_grab_batch")
"""Names of the functions with which Keras takes batches from arrays."""
_MANY = 2**63
"""The number of rows of arrays without a row, such as file names. Without repetitions, each is returned once."""
_HANDING_ON = frozenset({"ModelDataset", "OptionsDataset", "PrefetchDataset"})
"""Types of data sets with the elements of their input."""


class SourceArrays:
    """Follows elements of data sets back to arrays, within one run. The caller must hold the lock of the data flow."""

    def __init__(self, logdir: Engine, flow: DataFlow, *, run_id: str) -> None:
        self._logdir = logdir
        self._flow = flow
        self._run_id = run_id

    def is_array(self, op_type: str) -> bool:
        """Returns whether a data set of this type, which takes an array, has its rows as records."""
        return op_type == "TensorSliceDataset" or (op_type == "TensorDataset" and self._has_arrays_of_keras)

    def is_batched(self, row: TensorEvent) -> bool:
        """Returns whether the data set has batches from which an op took a tensor."""
        made = self._maker(row)
        dataset_id = None if made is None else self._flow.events.execution_inputs(made).get(0)
        while dataset_id is not None:
            maker = self._flow.events.eager(dataset_id)
            if maker.op_type in _MAKES_BATCHES:
                return True
            is_dataset = maker.op_type is not None and "Dataset" in maker.op_type and maker.execution_index is not None
            inputs = self._flow.events.execution_inputs(maker.execution_index or 0) if is_dataset else {}
            dataset_id = inputs.get(0)
        return False

    def element_component(self, source: TensorEvent) -> tuple[int | str, ...] | None:
        """Returns the path to an output of an op that gets an element; None if the elements have no names."""
        made = self._maker(source)
        dataset_id = None if made is None else self._flow.events.execution_inputs(made).get(0)
        return self._components.get((dataset_id, source.output_slot))

    def array_component(self, tensor_id: int, input_index: int) -> tuple[int | str, ...] | None:
        """Returns the path to an array in the elements of the data set that was made of it; None without names."""
        for use in self._flow.events.uses(tensor_id):
            outputs = self._flow.events.execution_outputs(use.execution.execution_index)
            if use.input_index == input_index and self.is_array(use.execution.op_type) and 0 in outputs:
                return self._components.get((outputs[0][0], input_index))
        return None

    @cached_property
    def _components(self) -> dict[tuple[int | None, int | None], tuple[int | str, ...]]:
        """The paths to the tensors in elements of data sets, by data set and index."""
        rows = self._logdir.rows(
            "SELECT tensor_id, component_index, path FROM data_component WHERE run_id = ?", [self._run_id]
        )
        return {(tensor_id, index): _keys(path) for tensor_id, index, path in rows}

    def row(self, source: TensorEvent, sample: int) -> int | None:
        """Returns the row of a sample in the arrays that the batches come from, or None if their order is not known."""
        index, made = source.execution_index, self._maker(source)
        num_rows = None if made is None else self._num_rows(self._flow.events.execution_inputs(made).get(0))
        if index is None or made is None or num_rows is None:
            return None
        # With `steps_per_execution`, an execution takes a batch in each iteration of a loop.
        ((num_executions, are_known, num_taken),) = self._logdir.rows(
            "SELECT count(*), bool_and(num_batches = num_iterations), CAST(sum(num_samples) AS BIGINT) FROM ("
            "SELECT count(*) AS num_batches, max(coalesce(iteration, 0)) + 1 AS num_iterations, "
            "sum(shape[1]) AS num_samples FROM tensor_health "
            "WHERE run_id = ? AND scope = ? AND op_type = ? AND output_slot = ? AND execution_index > ? "
            "AND (execution_index < ? OR execution_index = ? AND coalesce(iteration, 0) <= ?) "
            "GROUP BY execution_index) AS executions",
            [
                *(self._run_id, source.scope, source.op_type, source.output_slot, made),
                *(index, index, source.iteration or 0),
            ],
        )
        if source.shape is None or not are_known or num_executions != len(self._users(source)):
            return None  # the first user made the iterator, and each other one must have taken batches
        row = num_taken - source.shape[0] + sample
        return row if row < num_rows else None

    def _maker(self, source: TensorEvent) -> int | None:
        """Returns the execution that gave a data set to the iterator that made a tensor, or None if it is not known."""
        made = [user.execution_index for user in self._users(source) if user.op_type == "MakeIterator"]
        return made[0] if len(made) == 1 else None

    def _users(self, source: TensorEvent) -> list[Execution]:
        """Returns the executions that used an iterator before the one in which it made a tensor; none if not known."""
        events, index = self._flow.events, source.execution_index
        if source.op_type not in GETS_ELEMENT or index is None:
            return []
        inputs = events.execution_inputs(index).values()
        iterators = [each for each in inputs if (events.eager(each).op_type or "").startswith("AnonymousIterator")]
        if len(iterators) != 1:
            return []
        return [use.execution for use in events.uses(iterators[0]) if use.execution.execution_index < index]

    def _num_rows(self, dataset_id: int | None) -> int | None:
        """Returns the number of rows of the arrays that a data set has in their order, batch by batch.

        The result is None if their order is not known, and _MANY if only their number is not.
        """
        path = [(op_type, index) for op_type, index in self._pipeline(dataset_id) if op_type not in _HANDING_ON]
        types = [op_type for op_type, _ in path]
        if types[:1] in (["BatchDatasetV2"], ["ParallelBatchDataset"]) and types[-1] == "TensorSliceDataset":
            # A function that is called for each record keeps their order.
            length = self._length_of(path[-1][1])
            return None if not set(types[1:-1]) <= {"MapDataset"} else _MANY if length is None else length
        is_of_keras = types[:2] == ["ParallelMapDatasetV2", "ZipDataset"] or types[:2] == ["MapDataset", "ZipDataset"]
        if not is_of_keras or not self._has_arrays_of_keras or self._shuffles:
            return None
        data = self._flow.events.execution_inputs(path[1][1]).get(1)
        arrays = list(self._pipeline(data, also=frozenset({"RepeatDataset"})))
        return self._length_of(arrays[-1][1]) if arrays and arrays[-1][0] == "TensorDataset" else None

    def _pipeline(self, dataset_id: int | None, *, also: frozenset[str] = frozenset()) -> Iterator[tuple[str, int]]:
        """Yields the type and the execution of each data set, last one first, up to one that is made of no other."""
        following = _HANDING_ON | _MAKES_BATCHES | {"MapDataset", "ParallelMapDatasetV2"} | also
        while dataset_id is not None:
            made = self._flow.events.eager(dataset_id)
            if made.op_type is None or made.execution_index is None:
                return
            yield made.op_type, made.execution_index
            inputs = self._flow.events.execution_inputs(made.execution_index)
            dataset_id = inputs.get(0) if made.op_type in following else None

    def _length_of(self, execution_index: int) -> int | None:
        """Returns the first dimension of the recorded inputs of an execution, if it is one; otherwise None."""
        inputs = self._flow.events.execution_inputs(execution_index).values()
        rows = [self._flow.events.eager(tensor_id).event for tensor_id in inputs]
        lengths = {row.shape[0] for row in rows if row is not None and row.shape}
        return lengths.pop() if len(lengths) == 1 else None

    @cached_property
    def _shuffles(self) -> bool:
        """Whether the run has an op that shuffles."""
        rows = self._logdir.rows(
            "SELECT 1 FROM graph_op WHERE run_id = ? AND contains(op_type, 'Shuffle') LIMIT 1", [self._run_id]
        )
        return bool(rows) or any("Shuffle" in op_type for op_type, _ in self._flow.events.op_types())

    @cached_property
    def _has_arrays_of_keras(self) -> bool:
        return set(_ARRAYS_OF_KERAS) <= set(self._flow.graphs.names.values())


def _keys(path: str) -> tuple[int | str, ...]:
    """Parses the path of a component, which may be any text in a logdir from an untrusted source."""
    try:
        keys = parse_json(path)
    except ValueError:
        return ()
    return tuple(key for key in keys if isinstance(key, (int, str))) if isinstance(keys, list) else ()
