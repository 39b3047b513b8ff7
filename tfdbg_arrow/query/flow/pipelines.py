"""Pipelines: the bad tensors of tf.data from which an element of a data set may have come.

No row links an element to the function that made the element. No row links an argument of such a function to the
tensors from which the argument was made. But the components of an element are known. Output 1 of an iterator is result
1 of the last function. A record of an array has the dtype of the array and the shape of the array's rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.events import EventReader
from tfdbg_arrow.query.flow.graphs import GraphReader
from tfdbg_arrow.query.flow.loop_bodies import LoopBodies
from tfdbg_arrow.query.recorded import GraphTensor, Place, TensorEvent, read_events
from tfdbg_arrow.schema.op_traits import PIPELINE_ENDS, Trait, types_with

_MAX_BAD_ROWS = 256
"""For each function, the calls of at most this many bad tensors are examined. Only the first bad tensors matter."""
_MAX_CACHED = 64
"""Number of functions whose bad results are remembered, so that a function is read once for all its elements."""
_SAME_ELEMENTS = types_with(Trait.EQUAL | Trait.RESHAPED)
_MAX_RESHAPED = 8
"""A result is followed through at most this many ops that hand it on or reshape it. A hostile graph can have cycles."""


class Pipelines:
    """Finds the sources of elements of the data sets of one run.

    Args:
        logdir: The logdir.
        graphs: The graphs of the run.
        events: The events of the run.
        row_of: Returns the row of the op that computed a tensor, or None.
        loop_bodies: The bodies of loops over data sets.
        run_id: The run.
    """

    def __init__(
        self,
        logdir: Engine,
        graphs: GraphReader,
        events: EventReader,
        row_of: Callable[[Place], TensorEvent | None],
        loop_bodies: LoopBodies,
        *,
        run_id: str,
    ) -> None:
        self._logdir = logdir
        self._graphs = graphs
        self._events = events
        self._row_of = row_of
        self._run_id = run_id
        self._loop_bodies = loop_bodies
        self._bad_results = lru_cache(maxsize=_MAX_CACHED)(self._find_bad_results)

    def sources_of(self, event: TensorEvent) -> tuple[TensorEvent, ...]:
        """Returns the earlier bad tensors from which a bad tensor may have come.

        The result is the bad results of the last function that has bad results. If no function has any, the result is
        the bad arrays from which a data set was made.

        Args:
            event: An element that left a data set, an argument of a data set's function, or an element or a result of a
                loop over a data set. For any other tensor, the result is empty.
        """
        if (event.op_type or "").startswith(PIPELINE_ENDS):
            functions, component = self._functions, event.output_slot
        elif event.op_type == "Placeholder" and event.op_name is not None and event.graph_id in self._functions:
            assert event.graph_id is not None
            functions = self._functions[self._functions.index(event.graph_id) + 1 :]
            argument = self._graphs.argument(event.graph_id, event.op_name, function_name=None)
            if argument is None or argument.is_capture:
                return ()
            component = argument.input_index
        elif (component := self._loop_bodies.components(event.graph_id).get(event.op_name or "")) is not None:
            functions = [graph_id for graph_id in self._functions if graph_id < (event.graph_id or 0)]
        elif event.op_type == "ReduceDataset" and event.graph_id is not None:  # it returns the state of a loop
            functions, component = self._loop_bodies.of_reduce(event.graph_id, event.op_name), event.output_slot
        else:
            return ()
        for graph_id in functions:
            results = self._bad_results(graph_id, component or 0)
            if results := tuple(result for result in results if _may_become(result, event)):
                return results
        return tuple(array for array in self._bad_arrays if _may_become(array, event) and _has_rows_of(array, event))

    @cached_property
    def _functions(self) -> Sequence[int]:
        """The graphs that data sets call, last traced first. A pipeline calls functions in the order of tracing."""
        rows = self._logdir.rows(
            "SELECT DISTINCT graph_id FROM graph_op WHERE run_id = ? AND role = 'input' ORDER BY graph_id DESC",
            [self._run_id],
        )
        return [graph_id for (graph_id,) in rows if not self._graphs.callers(graph_id)]

    def _find_bad_results(self, graph_id: int, component: int) -> tuple[TensorEvent, ...]:
        """Returns the first bad tensors that a function returned as a component of its result."""
        rows = read_events(
            self._logdir,
            f"has_inf_or_nan AND scope = 'graph' AND graph_id = ? ORDER BY event_index LIMIT {_MAX_BAD_ROWS}",
            [self._run_id, graph_id],
        )
        results: dict[int, TensorEvent] = {}
        self._events.read_steps(row.step_id for row in rows if row.execution_index is None and row.step_id is not None)
        # The results of a function are neither inside its loops nor inside the functions that it calls.
        for context in dict.fromkeys(replace(row.context, call_site="", frame_id=0, iteration=0) for row in rows):
            for name, slot in self._graphs.results_at(graph_id, component):
                row = self._row_of_elements(GraphTensor(context, graph_id, name, slot, 2**63 - 1))
                if row is not None and row.has_inf_or_nan:
                    results[row.event_index] = row
        return tuple(results[index] for index in sorted(results))

    def _row_of_elements(self, place: GraphTensor) -> TensorEvent | None:
        """Returns the row of a tensor, or the row of the tensor from which it was handed on or reshaped."""
        row = self._row_of(place)
        for _ in range(_MAX_RESHAPED):
            op = self._graphs.op(place.graph_id, place.op_name)
            if row is not None or op is None or op.op_type not in _SAME_ELEMENTS or not op.inputs:
                break
            place = place.of_op(*op.inputs[0])
            row = self._row_of(place)
        return row

    @cached_property
    def _bad_arrays(self) -> Sequence[TensorEvent]:
        """The bad arrays from which data sets were made. They came from outside, or eager ops made them."""
        return read_events(
            self._logdir,
            "has_inf_or_nan AND scope <> 'graph' AND tensor_id IN (SELECT i.tensor_id FROM execution AS e "
            "JOIN execution_input AS i ON i.run_id = e.run_id AND i.execution_index = e.execution_index "
            "WHERE e.run_id = ? AND contains(e.op_type, 'Dataset')) "
            f"ORDER BY event_index LIMIT {_MAX_BAD_ROWS}",
            [self._run_id, self._run_id],
        )


def _may_become(source: TensorEvent, event: TensorEvent) -> bool:
    """Returns whether `source` comes before `event`, has the same dtype, and shares a kind of bad elements with it."""
    is_before = source.event_index < event.event_index
    return is_before and source.dtype == event.dtype and bool(source.bad_kinds() & event.bad_kinds())


def _has_rows_of(array: TensorEvent, event: TensorEvent) -> bool:
    """Returns whether a tensor can be a record of an array, a batch of records, or the array itself."""
    if array.shape is None or event.shape is None:
        return False
    return event.shape == array.shape or array.shape[1:] in (event.shape, event.shape[1:])
