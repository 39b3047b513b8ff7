"""PythonFunctions: the eager tensors that a Python function returned to the op that called it.

`tf.py_function` calls a Python function, which may execute eager ops. No row links the results of the function to the
outputs of the op. So the results are found by their dtype, shape and counts.
"""

from __future__ import annotations

from itertools import islice

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.events import EventReader
from tfdbg_arrow.query.recorded import HEALTH_COLUMNS, TensorEvent, read_events
from tfdbg_arrow.query.stacks import Frame, StackReader, file_name

PYTHON_FUNCTION = "EagerPyFunc"
"""The type of op that calls a Python function which can execute eager ops."""
_MAX_BAD_ROWS = 64
"""Of the bad tensors recorded before a bad output, at most this many are examined, starting with the latest."""


class PythonFunctions:
    """Finds the results of Python functions in one run.

    Args:
        logdir: The logdir.
        events: The events of the run.
        stacks: The stacks of the run.
        run_id: The run.
    """

    def __init__(self, logdir: Engine, events: EventReader, stacks: StackReader, *, run_id: str) -> None:
        self._logdir = logdir
        self._events = events
        self._stacks = stacks
        self._run_id = run_id

    def sources_of(self, event: TensorEvent) -> tuple[TensorEvent, ...]:
        """Returns the bad eager tensor that a Python function returned as this output of the calling op.

        The result is empty for other ops, and if the function executed no eager op that made such a tensor.
        """
        if event.op_type != PYTHON_FUNCTION:
            return ()
        rows = read_events(
            self._logdir,
            "has_inf_or_nan AND scope = 'execution' AND event_index < ? AND dtype IS NOT DISTINCT FROM ? "
            "AND event_index > coalesce((SELECT max(event_index) FROM tensor_health WHERE run_id = ? "
            "AND event_index < ? AND op_type = ? AND graph_id IS NOT DISTINCT FROM ? "
            "AND op_name IS NOT DISTINCT FROM ? AND output_slot IS NOT DISTINCT FROM ?), -1) "
            f"ORDER BY event_index DESC LIMIT {_MAX_BAD_ROWS}",
            [
                *(self._run_id, event.event_index, event.dtype),
                *(self._run_id, event.event_index, event.op_type),
                *(event.graph_id, event.op_name, event.output_slot),
            ],
        )
        results = (row for row in rows if has_health_of(row, event) and self._is_called_by_op(row))
        return tuple(islice(results, 1))

    def output_after(self, event: TensorEvent) -> TensorEvent | None:
        """Returns the first bad output of an op that calls Python functions after a given eager tensor was recorded."""
        if event.scope == "graph" or not self._is_called_by_op(event):
            return None
        rows = read_events(
            self._logdir,
            "has_inf_or_nan AND op_type = ? AND event_index > ? ORDER BY event_index LIMIT 1",
            [self._run_id, PYTHON_FUNCTION, event.event_index],
        )
        return next(iter(rows), None)

    def _is_called_by_op(self, row: TensorEvent) -> bool:
        """Returns whether an op called the code that made or took an eager tensor."""
        execution = self._events.execution(row.execution_index)
        stack = () if execution is None else self._stacks.stack(execution.stack_trace_id)
        return any(map(_calls_python_functions, stack))


def has_health_of(row: TensorEvent, event: TensorEvent) -> bool:
    """Returns whether two rows have the same dtype, shape and counts.

    An attribute that was measured for only one of the rows is not compared. For example, the places of bad elements are
    not measured on a GPU.
    """
    pairs = ((getattr(row, name), getattr(event, name)) for name in HEALTH_COLUMNS if name != "event_index")
    return all(one == other or None in (one, other) for one, other in pairs)


def _calls_python_functions(frame: Frame) -> bool:
    return (
        frame.owner == "framework"
        and file_name(frame.file_path) == "script_ops.py"
        and frame.func == "EagerFunc.__call__"
    )
