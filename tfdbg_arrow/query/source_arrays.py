"""SourceArrays: finds the records in arrays or files from which a data set made its batches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.recorded import EagerTensor, Execution, TensorEvent
from tfdbg_arrow.safe_text import parse_json
from tfdbg_arrow.schema.op_traits import Trait, types_with

GETS_ELEMENT = types_with(Trait.GETS_ELEMENT)
"""Types of ops that output the components of a data set's element."""
_BATCHES = frozenset({
    "BatchDataset", "BatchDatasetV2", "PaddedBatchDataset", "PaddedBatchDatasetV2", "ParallelBatchDataset",
})  # fmt: skip
"""Types of ops that only group the elements of a data set into batches."""
MAKES_BATCHES = _BATCHES | {"MapAndBatchDataset"}
"""Types of ops that make data sets whose elements are batches."""
_MAPS_IN_PARALLEL = "ParallelMapDatasetV2"
_MAPS = frozenset({"MapDataset", _MAPS_IN_PARALLEL})
_LIMITS = frozenset({"RepeatDataset", "TakeDataset"})
"""Types of ops that repeat a data set, or end a data set early."""
_SKIPS = "SkipDataset"
_READS_FILES_OR_GENERATOR = "FlatMapDataset"
"""The type of op that concatenates the records of several data sets, such as one data set for each file."""
_ARRAYS_OF_KERAS = ("Dataset_map_permutation", "Dataset_flat_map_slice_batch_indices", "Dataset_map_grab_batch")
"""Names of the Keras functions that take batches from arrays."""
_MAX_OF_INDICES = 8
"""Maximum number of data sets in the chain that numbers the rows of arrays. Keras's chains are shorter."""
_MANY = 2**63
"""Stands for an unknown number of records. The number is so large that no record counts as a repetition."""
_HANDING_ON = frozenset({"CacheDataset", "CacheDatasetV2", "ModelDataset", "OptionsDataset", "PrefetchDataset"})
"""Types of data sets that return the elements of their input unchanged."""
_DISTRIBUTES = frozenset({"AutoShardDataset", "RebatchDataset", "RebatchDatasetV2"})
"""Types of data sets that split batches for a distribution strategy. With one worker, the samples stay in order."""
_TAKES_PART = re.compile(r"(?:.*/)?(?:IteratorGetNext(?:_(\d{1,4}))?|cond(?:_(\d{1,4}))?/OptionalGetValue)", re.DOTALL)
"""Matches the name of the op that takes a replica's part of a batch.

Each group is the number of the replica, which is missing for replica 0. If a batch may be incomplete, the op is in a
branch (`cond`).
"""


class _DataSet(NamedTuple):
    """A row of the table `data_set`.

    Attributes:
        is_deterministic: The column of this name.
        paths: The path of each component; empty if the components have no names.
    """

    is_deterministic: bool
    paths: tuple[tuple[int | str, ...], ...]


class _Records(NamedTuple):
    """The records of a data set.

    Attributes:
        number: Number of records.
        are_rows: Whether the records are the rows of arrays.
        are_made_in_parallel: Whether a function made several records at the same time.
        follow_skipped: Whether the data set skipped other records before these records.
    """

    number: int
    are_rows: bool
    are_made_in_parallel: bool
    follow_skipped: bool = False


class SourceRow(NamedTuple):
    """The record from which a data set made a sample.

    Attributes:
        number: Number of the record, from 0.
        is_of_arrays: Whether the record is a row of arrays.
        follows_skipped: Whether the count starts after records that the data set skipped.
    """

    number: int
    is_of_arrays: bool
    follows_skipped: bool


class SourceArrays:
    """Follows elements of data sets back to arrays, within one run. The caller must hold the lock of the data flow."""

    def __init__(self, logdir: Engine, flow: DataFlow, *, run_id: str) -> None:
        self._logdir = logdir
        self._flow = flow
        self._run_id = run_id

    def is_array(self, op_type: str) -> bool:
        """Returns whether the records of a data set of this type are the rows of an array."""
        return op_type == "TensorSliceDataset" or (op_type == "TensorDataset" and self._has_arrays_of_keras)

    def is_batched(self, execution_index: int) -> bool:
        """Returns whether an execution took an element from a data set of batches."""
        made = self._maker(execution_index)
        return made is not None and self.is_data_set_of_batches(self._flow.events.execution_inputs(made).get(0))

    def is_data_set_of_batches(self, dataset_id: int | None) -> bool:
        """Returns whether the elements of a data set are batches; False for None."""
        while dataset_id is not None:
            maker = self._flow.events.eager(dataset_id)
            if maker.op_type in MAKES_BATCHES:
                return True
            is_dataset = maker.op_type is not None and "Dataset" in maker.op_type and maker.execution_index is not None
            inputs = self._flow.events.execution_inputs(maker.execution_index or 0) if is_dataset else {}
            dataset_id = inputs.get(0)
        return False

    def element_component(self, taken_in: int | None, output_slot: int | None) -> tuple[int | str, ...] | None:
        """Returns the path of a component of an element; None if the path is not recorded.

        Args:
            taken_in: The execution that took the element from a data set.
            output_slot: Index of the component among the outputs of the op that took the element.
        """
        made = None if taken_in is None else self._maker(taken_in)
        dataset_id = None if made is None else self._flow.events.execution_inputs(made).get(0)
        return self.component_path(dataset_id, output_slot)

    def array_component(self, tensor_id: int, input_index: int) -> tuple[int | str, ...] | None:
        """Returns the path of an array in the elements of its data set; None if the path is not recorded.

        Args:
            tensor_id: The array.
            input_index: Index of the array among the inputs of the op that made the data set.
        """
        for use in self._flow.events.uses(tensor_id):
            outputs = self._flow.events.execution_outputs(use.execution.execution_index)
            if use.input_index == input_index and self.is_array(use.execution.op_type) and 0 in outputs:
                return self.component_path(outputs[0][0], input_index)
        return None

    @cached_property
    def _data_sets(self) -> dict[int, _DataSet]:
        rows = self._logdir.rows(
            "SELECT tensor_id, is_deterministic, component_paths FROM data_set WHERE run_id = ?", [self._run_id]
        )
        return {tensor_id: _DataSet(is_deterministic, _paths(paths)) for tensor_id, is_deterministic, paths in rows}

    def component_path(self, dataset_id: int | None, index: int | None) -> tuple[int | str, ...] | None:
        """Returns the path of a component in the elements of a data set; None if the path is not recorded."""
        data_set = None if dataset_id is None else self._data_sets.get(dataset_id)
        return None if data_set is None or index is None else dict(enumerate(data_set.paths)).get(index)

    def row(self, source: TensorEvent, sample: int, *, taken_in: int) -> SourceRow | None:
        """Returns the record that a sample of a batch came from, or None if the order of the records is not known.

        Args:
            source: A component of the batch, or a tensor that each step computes with the samples in the same order.
            sample: The index of the sample in the batch.
            taken_in: The execution that took the batch from the data set.
        """
        # The replicas of a distribution strategy take their batches from one iterator.
        if (iterator_id := self._iterator(taken_in, "AnonymousMultiDeviceIterator")) is not None:
            return self._row_of_replica(source, sample, taken_in=taken_in, iterator_id=iterator_id)
        index, made = source.execution_index, self._maker(taken_in)
        records = self._records(taken_in)
        if index is None or made is None or records is None:
            return None
        is_component = source.op_type in GETS_ELEMENT
        # With `steps_per_execution`, an execution takes a batch in each iteration of a loop.
        ((num_executions, are_known, num_taken),) = self._logdir.rows(
            "SELECT count(*), bool_and(num_batches = num_iterations), CAST(sum(num_samples) AS BIGINT) FROM ("
            "SELECT count(*) AS num_batches, max(coalesce(iteration, 0)) + 1 AS num_iterations, "
            "sum(shape[1]) AS num_samples FROM tensor_health "
            "WHERE run_id = ? AND scope = ? AND op_type = ? AND output_slot = ? AND execution_index > ? "
            "AND (? OR op_name IS NOT DISTINCT FROM ?) "
            "AND (execution_index < ? OR execution_index = ? AND coalesce(iteration, 0) <= ?) "
            "GROUP BY execution_index) AS executions",
            [
                *(self._run_id, source.scope, source.op_type, source.output_slot, made),
                *(is_component, source.op_name, index, index, source.iteration or 0),
            ],
        )
        if source.shape is None or not are_known or num_executions != len(self._users(taken_in)):
            # The first user made the iterator. Each of the other users must have taken batches.
            return None
        row = num_taken - source.shape[0] + sample
        return SourceRow(row, records.are_rows, records.follow_skipped) if row < records.number else None

    def _row_of_replica(self, source: TensorEvent, sample: int, *, taken_in: int, iterator_id: int) -> SourceRow | None:
        """Returns the same as `row`, for a batch that a distribution strategy split among replicas in Keras's `fit`.

        The first replica gets the first part of each batch, the next replica the next part, and so on.

        Args:
            source: A component of the batch of one replica.
            sample: The index of the sample in this batch.
            taken_in: The execution that took the batch.
            iterator_id: The iterator of all replicas.
        """
        uses = [use.execution for use in self._flow.events.uses(iterator_id)]
        made = [execution.execution_index for execution in uses if execution.op_type == "MultiDeviceIteratorInit"]
        calls = {execution.execution_index for execution in uses if execution.graph_id is not None}
        own = _turn(source.execution_index, source.iteration, source.op_name)
        if len(made) != 1 or own is None or not self._has_one_worker:
            return None
        dataset_id = self._flow.events.execution_inputs(made[0]).get(0)
        path = [part for part in self._pipeline(dataset_id) if part[0] not in _HANDING_ON | _DISTRIBUTES]
        first = next((index for index, (op_type, _) in enumerate(path) if op_type not in _MAPS), 0)
        records = self._rows_of_keras(path[max(first - 1, 0) :])  # the strategy adds a Map
        taken = {
            turn: size
            for execution, iteration, op_name, size in self._logdir.rows(
                "SELECT execution_index, iteration, op_name, shape[1] FROM tensor_health WHERE run_id = ? "
                "AND scope = 'graph' AND op_type = ? AND output_slot = ? AND execution_index BETWEEN ? AND ?",
                [self._run_id, source.op_type, source.output_slot, made[0], taken_in],
            )
            if (turn := _turn(execution, iteration, op_name)) is not None
        }
        replicas = {turn[2] for turn in taken}
        moments = {turn[:2] for turn in taken}
        are_all = len(taken) == len(replicas) * len(moments) and replicas == set(range(len(replicas)))
        is_known = {call for call, _ in moments} == {call for call in calls if call <= taken_in}
        if records is None or not are_all or not is_known or None in taken.values():
            return None
        row = sum(size for turn, size in taken.items() if turn < own) + sample
        return SourceRow(row, is_of_arrays=True, follows_skipped=False) if row < records.number else None

    def _iterator(self, taken_in: int, made_by: str) -> int | None:
        """Returns the iterator that an execution takes; None if the execution takes no iterator or several iterators.

        Args:
            taken_in: The execution.
            made_by: The first letters of the type of the op that made the iterator. Other iterators do not count.
        """
        events = self._flow.events
        iterators = [
            tensor_id
            for tensor_id in events.execution_inputs(taken_in).values()
            if (events.eager(tensor_id).op_type or "").startswith(made_by)
        ]
        return iterators[0] if len(iterators) == 1 else None

    @cached_property
    def _has_one_worker(self) -> bool:
        return bool(self._logdir.rows("SELECT 1 FROM run WHERE run_id = ? AND worker IS NULL", [self._run_id]))

    def row_in_loop(
        self, source: TensorEvent, sample: int, *, dataset_id: int, first_event: int, num_batches: int
    ) -> SourceRow | None:
        """Returns the same as `row`, for the batch of an iteration of a loop over a data set in a tf.function.

        Args:
            source: A component of the batch. This component is an argument of the loop's body.
            sample: The index of the sample in the batch.
            dataset_id: The data set.
            first_event: The first event_index of the loop.
            num_batches: Number of batches that the loop took, including this batch.
        """
        records = self._records_of(dataset_id)
        ((num_found, num_taken),) = self._logdir.rows(
            "SELECT count(*), CAST(sum(shape[1]) AS BIGINT) FROM tensor_health WHERE run_id = ? AND graph_id = ? "
            "AND op_name = ? AND output_slot = ? AND event_index BETWEEN ? AND ?",
            [self._run_id, source.graph_id, source.op_name, source.output_slot, first_event, source.event_index],
        )
        if records is None or not source.shape or num_found != num_batches or num_taken is None:
            return None
        row = num_taken - source.shape[0] + sample
        return SourceRow(row, records.are_rows, records.follow_skipped) if row < records.number else None

    def calls_in_order(self, source: TensorEvent) -> bool:
        """Returns whether the data set that made a tensor called its functions in the order of the records."""
        records = None if source.execution_index is None else self._records(source.execution_index)
        return records is not None and not records.are_made_in_parallel

    def _maker(self, taken_in: int) -> int | None:
        """Returns the execution that made an iterator from a data set; None if the execution is not known.

        Args:
            taken_in: The execution that used the iterator.
        """
        made = [user.execution_index for user in self._users(taken_in) if user.op_type == "MakeIterator"]
        return made[0] if len(made) == 1 else None

    def _users(self, taken_in: int) -> list[Execution]:
        """Returns the earlier executions that used the same iterator as a given execution.

        The result is empty if the given execution used no iterator or several iterators.
        """
        iterator_id = self._iterator(taken_in, "AnonymousIterator")
        uses = [] if iterator_id is None else self._flow.events.uses(iterator_id)
        return [use.execution for use in uses if use.execution.execution_index < taken_in]

    def _records(self, taken_in: int) -> _Records | None:
        """Returns the records of the data set that an execution used; None if they or their order are unknown."""
        made = self._maker(taken_in)
        return self._records_of(None if made is None else self._flow.events.execution_inputs(made).get(0))

    def _records_of(self, dataset_id: int | None) -> _Records | None:
        data_set = None if dataset_id is None else self._data_sets.get(dataset_id)
        if data_set is None or not data_set.is_deterministic:
            return None
        path = [(op_type, index) for op_type, index in self._pipeline(dataset_id) if op_type not in _HANDING_ON]
        return self._records_of_program(path) or self._rows_of_keras(path)

    def _records_of_program(self, path: Sequence[tuple[str, int]]) -> _Records | None:
        """Returns the records of a data set that makes batches once. None for other data sets.

        The data set may call functions for each record, because these calls keep the order of the records.

        Args:
            path: The type and the execution of each data set in the pipeline, last data set first.
        """
        types = [op_type for op_type, _ in path if op_type not in _LIMITS]
        limits = {op_type for op_type, _ in path} & _LIMITS
        follow_skipped = types[-2:-1] == [_SKIPS]  # `skip` directly follows the source of the records
        if follow_skipped:
            del types[-2]
        if len(types) < 2 or types[0] not in _BATCHES or not set(types[1:-1]) <= _MAPS:
            return None
        is_parallel = _MAPS_IN_PARALLEL in types
        # If the run has an op that shuffles, the files may be in random order.
        is_numbered = types[-1] == "RangeDataset" or (types[-1] == _READS_FILES_OR_GENERATOR and not self._shuffles)
        # The number of skipped rows of arrays is not known.
        is_numbered |= follow_skipped and types[-1] == "TensorSliceDataset"
        if is_numbered and "RepeatDataset" not in limits:
            return _Records(_MANY, are_rows=False, are_made_in_parallel=is_parallel, follow_skipped=follow_skipped)
        if follow_skipped or types[-1] != "TensorSliceDataset" or _repeats_a_part(path):
            return None  # the number of records before the first repetition is not known
        length = self._length_of(path[-1][1])
        if length is None and limits:
            return None
        are_rows = not _MAPS.intersection(types) or not self._may_be_numbers_of_rows(path[-1][1])
        return _Records(_MANY if length is None else length, are_rows=are_rows, are_made_in_parallel=is_parallel)

    def _may_be_numbers_of_rows(self, execution_index: int) -> bool:
        """Returns whether the elements of a data set may be numbers of rows in other arrays.

        A function of the data set would then read these rows.
        """
        inputs = [*self._flow.events.execution_inputs(execution_index).values()]
        # An array without a row in tensor_health has no floating-point numbers, so it may have numbers of rows.
        return len(inputs) == 1 and self._flow.events.eager(inputs[0]).event is None

    def _rows_of_keras(self, path: Sequence[tuple[str, int]]) -> _Records | None:
        """Returns the rows of the arrays from which Keras takes batches; None if it does not take them in order."""
        is_of_keras = len(path) > 1 and path[0][0] in _MAPS and path[1][0] == "ZipDataset"
        if not is_of_keras or not self._has_arrays_of_keras:
            return None
        zipped = self._flow.events.execution_inputs(path[1][1])
        arrays = list(self._pipeline(zipped.get(1)))
        if not arrays or arrays[-1][0] != "TensorDataset" or self._is_shuffled_by_keras(zipped.get(0)):
            return None
        length = self._length_of(arrays[-1][1])
        return _Records(_MANY if length is None else length, are_rows=True, are_made_in_parallel=False)

    def _is_shuffled_by_keras(self, indices_id: int | None) -> bool:
        """Returns whether Keras shuffles the numbers of rows. True if the recording does not show this.

        Args:
            indices_id: The last data set of the chain that numbers the rows. The chain consists of Range, Map,
                Prefetch, perhaps Repeat, and FlatMap.
        """
        made: EagerTensor | None = None
        for depth in range(_MAX_OF_INDICES):
            made = None if indices_id is None else self._flow.events.eager(indices_id)
            if made is None or made.execution_index is None:
                break
            if made.op_type in _MAPS:
                if depth == 0:  # with shuffle="batch", a Map after FlatMap shuffles the rows of each batch
                    return True
                break
            indices_id = self._flow.events.execution_inputs(made.execution_index).get(0)
        if made is None or made.op_type not in _MAPS:
            return True
        # Keras traced the function of the Map right before it made the Map.
        rows = self._logdir.rows(
            "SELECT max_by(g.graph_id, g.wall_time_ns) FROM graph AS g JOIN execution AS e ON e.run_id = g.run_id "
            "WHERE g.run_id = ? AND g.graph_name = ? AND e.execution_index = ? AND g.wall_time_ns <= e.wall_time_ns",
            [self._run_id, _ARRAYS_OF_KERAS[0], made.execution_index],
        )
        graph_id = rows[0][0] if rows else None
        ops = () if graph_id is None else self._flow.graphs.graph(graph_id).ops.values()
        return not ops or any("Shuffle" in op.op_type for op in ops)

    def _pipeline(self, dataset_id: int | None) -> Iterator[tuple[str, int]]:
        """Yields the type and the execution of each data set in a pipeline, from the last data set to the first."""
        following = _HANDING_ON | MAKES_BATCHES | _MAPS | _LIMITS | _DISTRIBUTES | {_SKIPS}
        while dataset_id is not None:
            made = self._flow.events.eager(dataset_id)
            if made.op_type is None or made.execution_index is None:
                return
            yield made.op_type, made.execution_index
            inputs = self._flow.events.execution_inputs(made.execution_index)
            dataset_id = inputs.get(0) if made.op_type in following else None

    def _length_of(self, execution_index: int) -> int | None:
        """Returns the first dimension of an execution's recorded inputs; None if they differ in this dimension."""
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


def _repeats_a_part(path: Sequence[tuple[str, int]]) -> bool:
    """Returns whether a data set repeats another data set that `take` ended early.

    Args:
        path: The type and the execution of each data set in the pipeline, last data set first.
    """
    types = [op_type for op_type, _ in path]
    return "RepeatDataset" in types and "TakeDataset" in types[types.index("RepeatDataset") :]


def _turn(execution_index: int | None, iteration: int | None, op_name: str | None) -> tuple[int, int, int] | None:
    """Returns (execution, iteration, replica) if an op takes a replica's part of a batch; None for other ops."""
    match = _TAKES_PART.fullmatch(op_name or "")
    if execution_index is None or match is None:
        return None
    return execution_index, iteration or 0, int(match[1] or match[2] or 0)


def _paths(text: str | None) -> tuple[tuple[int | str, ...], ...]:
    """Parses the paths of components. In a logdir from an untrusted source, the text can be anything."""
    try:
        paths = [] if text is None else parse_json(text)
    except ValueError:
        return ()
    if not isinstance(paths, list) or not all(isinstance(path, list) for path in paths):
        return ()
    return tuple(tuple(key for key in path if isinstance(key, (int, str))) for path in paths)
