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
    executions,
    read_execution,
)
from tfdbg_arrow.query.display.row_window import Rows
from tfdbg_arrow.query.keras_graphs import user_names
from tfdbg_arrow.query.stacks import StackReader
from tfdbg_arrow.viewer.page import (
    DEFAULT_LIMIT,
    MAX_LIMIT,
    NoSuchPageError,
    PageKind,
    Parameters,
    RowsPage,
    one_run,
    read_graph_choices,
    read_texts,
    read_window,
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


def read_executions(logdir: Logdir, parameters: Parameters) -> ExecutionsPage:
    """Returns a window of the executions of a run; see `read_window`.

    Raises:
        NoSuchPageError: The run has no execution `execution`.
    """
    filter_ = ExecutionFilter(
        op_type=parameters.text("op_type"),
        name=parameters.text("name"),
        graph_id=parameters.integer("graph"),
        thread_id=parameters.integer("thread"),
        first_step=parameters.integer("first_step"),
        last_step=parameters.integer("last_step"),
        is_call=parameters.flag("calls"),
        is_bad=parameters.flag("bad"),
    )
    limit = min(parameters.integer("limit") or DEFAULT_LIMIT, MAX_LIMIT)
    focus = parameters.integer("execution")
    run_id = one_run(logdir, parameters)
    run = next((run for run in logdir.runs() if run.run_id == run_id), None)
    if run_id is None or run is None:
        return ExecutionsPage(run_id=None, filter=filter_, limit=limit)
    matching, bad = (executions(logdir, one, run_id=run_id) for one in (filter_, replace(filter_, is_bad=True)))
    detail = None if focus is None else _detail(logdir, matching, focus, run_id=run_id)
    window, before_bad, after_bad = read_window(matching, bad, parameters, run_id=run_id, limit=limit, focus=focus)
    return ExecutionsPage(
        run_id=run_id,
        start_ns=run.wall_time_ns,
        measures_health=run.measures_health,
        filter=filter_,
        **vars(window),
        limit=limit,
        next_bad_execution_index=after_bad,
        previous_bad_execution_index=before_bad,
        strip=read_execution_strip(logdir, run_id=run_id),
        focus=detail,
        op_types=read_texts(logdir, "SELECT DISTINCT op_type FROM execution WHERE run_id = ?", run_id),
        graphs=read_graph_choices(logdir, run_id),
        user_names=user_names(logdir, run_id=run_id),
    )


def _detail(logdir: Logdir, matching: Rows[ExecutionRow], execution_index: int, *, run_id: str) -> ExecutionDetail:
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
        previous_execution_index=matching.next(execution_index, is_backwards=True),
        next_execution_index=matching.next(execution_index),
    )


PAGE = PageKind(
    name="executions",
    title="Executions",
    key="x",
    read=read_executions,
    assets=("windows.css", "executions.css", "windows.js"),
)
