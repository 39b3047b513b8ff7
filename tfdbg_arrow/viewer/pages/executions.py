"""The page of executions: a filtered window of the executions of a run, and one execution in detail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tfdbg_arrow.query import Frame, Logdir, user_source
from tfdbg_arrow.query.display.execution_window import (
    ExecutionFilter,
    ExecutionRow,
    ExecutionTensor,
    execution_tensors,
    execution_window,
    first_execution_of_step,
    next_execution,
    read_execution,
)
from tfdbg_arrow.query.keras_graphs import user_names
from tfdbg_arrow.query.stacks import StackReader
from tfdbg_arrow.viewer.page import (
    DEFAULT_LIMIT,
    MAX_LIMIT,
    NUM_ABOVE,
    NoSuchPageError,
    PageKind,
    Parameters,
    RowsPage,
    one_run,
    read_graph_choices,
    read_texts,
)
from tfdbg_arrow.viewer.source_text import Excerpt, read_excerpt
from tfdbg_arrow.viewer.strips import ExecutionStrip, read_execution_strip


@dataclass(frozen=True, kw_only=True)
class ExecutionDetail:
    """One execution in detail.

    Attributes:
        execution: The execution.
        inputs: The input tensors, at most MAX_TENSORS of `execution_tensors`.
        outputs: The output tensors.
        stack: The Python stack of the execution, innermost frame first.
        source: The lines around the user's innermost frame.
        previous_execution_index: The previous execution that matches the filter; None for the first.
        next_execution_index: The next execution that matches the filter; None for the last.
    """

    execution: ExecutionRow
    inputs: tuple[ExecutionTensor, ...]
    outputs: tuple[ExecutionTensor, ...]
    stack: tuple[Frame, ...]
    source: Excerpt | None
    previous_execution_index: int | None
    next_execution_index: int | None


@dataclass(frozen=True, kw_only=True)
class ExecutionsPage(RowsPage[ExecutionRow]):
    """A window of the executions of a run.

    Attributes:
        start_ns: Start time of the run, in nanoseconds since 1970-01-01T00:00:00Z.
        measures_health: Whether the run's mode distinguishes bad tensors from healthy ones.
        filter: The filter.
        next_bad_execution_index: The first bad execution after the window.
        previous_bad_execution_index: The last bad execution before the window.
        strip: The whole run, without the filter; None if it has no executions.
        focus: The execution to show in detail; None if the request names none.
        user_names: The user's names of the graphs that Keras created, by graph_id, as in `keras_graphs.user_names`.
    """

    start_ns: int = 0
    measures_health: bool = False
    filter: ExecutionFilter
    next_bad_execution_index: int | None = None
    previous_bad_execution_index: int | None = None
    strip: ExecutionStrip | None = None
    focus: ExecutionDetail | None = None
    user_names: Mapping[int, str] = field(default_factory=dict)


def read_executions(
    logdir: Logdir,
    filter_: ExecutionFilter | None = None,
    *,
    run_id: str | None,
    first: int | None = None,
    before: int | None = None,
    step: int | None = None,
    place: int | None = None,
    focus: int | None = None,
    limit: int = DEFAULT_LIMIT,
) -> ExecutionsPage:
    """Returns a window of the executions of a run.

    Args:
        logdir: The logdir.
        filter_: The filter; None means all executions.
        run_id: The run; None if the logdir has no run.
        first: The window starts at the first matching execution from this execution_index on. None starts the window a
            little above `focus`, or else above the first bad execution, or else at the first execution.
        before: Instead, the window ends directly before this execution_index.
        step: Instead, the window starts at this training step.
        place: Instead, the window starts after this number of matching executions.
        focus: The execution_index of an execution to return in detail.
        limit: Maximum number of executions; values above MAX_LIMIT are reduced to it.

    Raises:
        NoSuchPageError: The run has no execution `focus`.
    """
    filter_ = filter_ or ExecutionFilter()
    limit = max(1, min(limit, MAX_LIMIT))
    run = next((run for run in logdir.runs() if run.run_id == run_id), None)
    if run_id is None or run is None:
        return ExecutionsPage(run_id=None, filter=filter_, limit=limit)
    if step is not None:
        # If the step has no executions, the window starts after the last one and is empty.
        execution_index = first_execution_of_step(logdir, step, run_id=run_id)
        first, before = 2**63 - 1 if execution_index is None else execution_index, None
    only_bad = replace(filter_, is_bad=True)
    detail = None if focus is None else _detail(logdir, filter_, focus, run_id=run_id)
    if first is None and before is None and place is None:
        shown = next_execution(logdir, only_bad, -1, run_id=run_id) if focus is None else focus
        here = execution_window(logdir, filter_, run_id=run_id, first=shown or 0, limit=1)
        place = max(0, here.num_before - NUM_ABOVE)
    window = execution_window(logdir, filter_, run_id=run_id, first=first or 0, before=before, place=place, limit=limit)
    rows = window.rows
    return ExecutionsPage(
        run_id=run_id,
        start_ns=run.wall_time_ns,
        measures_health=run.measures_health,
        filter=filter_,
        **vars(window),
        limit=limit,
        next_bad_execution_index=(
            next_execution(logdir, only_bad, rows[-1].execution_index, run_id=run_id) if rows else None
        ),
        previous_bad_execution_index=(
            next_execution(logdir, only_bad, rows[0].execution_index, run_id=run_id, is_backwards=True)
            if rows
            else None
        ),
        strip=read_execution_strip(logdir, run_id=run_id),
        focus=detail,
        op_types=read_texts(logdir, "SELECT DISTINCT op_type FROM execution WHERE run_id = ?", run_id),
        graphs=read_graph_choices(logdir, run_id),
        user_names=user_names(logdir, run_id=run_id),
    )


def _detail(logdir: Logdir, filter_: ExecutionFilter, execution_index: int, *, run_id: str) -> ExecutionDetail:
    execution = read_execution(logdir, execution_index, run_id=run_id)
    if execution is None:
        raise NoSuchPageError(f"execution {execution_index} of run {run_id} was not recorded.")
    inputs, outputs = execution_tensors(logdir, execution_index, run_id=run_id)
    stack = StackReader(logdir, run_id=run_id).stack(execution.stack_trace_id)
    return ExecutionDetail(
        execution=execution,
        inputs=inputs,
        outputs=outputs,
        stack=stack,
        source=read_excerpt(logdir, user_source(stack), run_id=run_id),
        previous_execution_index=next_execution(logdir, filter_, execution_index, run_id=run_id, is_backwards=True),
        next_execution_index=next_execution(logdir, filter_, execution_index, run_id=run_id),
    )


def _read(logdir: Logdir, parameters: Parameters) -> ExecutionsPage:
    return read_executions(
        logdir,
        ExecutionFilter(
            op_type=parameters.text("op_type"),
            name=parameters.text("name"),
            graph_id=parameters.integer("graph"),
            thread_id=parameters.integer("thread"),
            first_step=parameters.integer("first_step"),
            last_step=parameters.integer("last_step"),
            is_call=parameters.flag("calls"),
            is_bad=parameters.flag("bad"),
        ),
        run_id=one_run(logdir, parameters),
        first=parameters.integer("at"),
        before=parameters.integer("before"),
        step=parameters.integer("step"),
        place=parameters.integer("place"),
        focus=parameters.integer("execution"),
        limit=parameters.integer("limit") or DEFAULT_LIMIT,
    )


PAGE = PageKind(
    name="executions", title="Executions", key="x", read=_read, assets=("windows.css", "executions.css", "windows.js")
)
