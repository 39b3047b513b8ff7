"""The tensors page: a filtered window of the recorded tensors of a run."""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.query import Logdir
from tfdbg_arrow.query.display.tensor_window import (
    SCOPES,
    SIDES,
    TensorFilter,
    TensorRow,
    first_of_step,
    next_bad,
    tensor_window,
)
from tfdbg_arrow.query.wording import similar_text
from tfdbg_arrow.viewer.page import (
    DEFAULT_LIMIT,
    MAX_LIMIT,
    NUM_ABOVE,
    PageKind,
    Parameters,
    RowsPage,
    one_run,
    read_graph_choices,
    read_texts,
)


@dataclass(frozen=True, kw_only=True)
class TensorsPage(RowsPage[TensorRow]):
    """A window of the recorded tensors of a run.

    Attributes:
        filter: The filter.
        next_bad_event_index: The first bad tensor after the window.
        previous_bad_event_index: The last bad tensor before the window.
        dtypes: Dtypes to choose from.
        hint: If no tensor matches the filter, a text about names that are similar to the filter's layer or op type.
    """

    filter: TensorFilter
    next_bad_event_index: int | None = None
    previous_bad_event_index: int | None = None
    dtypes: tuple[str, ...] = ()
    hint: str = ""


def read_tensors(
    logdir: Logdir,
    filter_: TensorFilter | None = None,
    *,
    run_id: str | None,
    first: int | None = 0,
    before: int | None = None,
    step: int | None = None,
    place: int | None = None,
    limit: int = DEFAULT_LIMIT,
) -> TensorsPage:
    """Returns a window of the recorded tensors of a run.

    Args:
        logdir: The logdir.
        filter_: The filter; None means all tensors.
        run_id: The run; None if the logdir has no run.
        first: The window starts at the first matching tensor from this event_index on. None starts the window a little
            above the first bad tensor, or else at the first tensor.
        before: Instead, the window ends directly before this event_index.
        step: Instead, the window starts at this training step.
        place: Instead, the window starts after this number of matching tensors.
        limit: Maximum number of tensors; values above MAX_LIMIT are reduced to it.
    """
    filter_ = filter_ or TensorFilter()
    limit = max(1, min(limit, MAX_LIMIT))
    if run_id is None:
        return TensorsPage(run_id=None, filter=filter_, limit=limit)
    if step is not None:
        first, before = first_of_step(logdir, step, run_id=run_id) or 0, None
    elif first is None and before is None and place is None:
        first_bad = next_bad(logdir, filter_, -1, run_id=run_id)
        if first_bad is not None:
            here = tensor_window(logdir, filter_, run_id=run_id, first=first_bad, limit=1)
            place = max(0, here.num_before - NUM_ABOVE)
    window = tensor_window(logdir, filter_, run_id=run_id, first=first or 0, before=before, place=place, limit=limit)
    after_bad = before_bad = None
    if window.rows:
        after_bad = next_bad(logdir, filter_, window.rows[-1].event_index, run_id=run_id)
        before_bad = next_bad(logdir, filter_, window.rows[0].event_index, run_id=run_id, is_backwards=True)
    op_types = read_texts(
        logdir,
        "SELECT op_type FROM graph_op WHERE run_id = ? UNION SELECT op_type FROM execution WHERE run_id = ?",
        run_id,
    )
    hint = ""
    if not window.num_matching and filter_.layer is not None:
        layers = read_texts(logdir, "SELECT DISTINCT layer FROM graph_op WHERE run_id = ?", run_id)
        hint = similar_text(filter_.layer, layers)
    elif not window.num_matching and filter_.op_type is not None:
        hint = similar_text(filter_.op_type, op_types)
    return TensorsPage(
        run_id=run_id,
        filter=filter_,
        **vars(window),
        limit=limit,
        next_bad_event_index=after_bad,
        previous_bad_event_index=before_bad,
        op_types=op_types,
        dtypes=read_texts(logdir, "SELECT DISTINCT dtype FROM tensor_health WHERE run_id = ?", run_id),
        graphs=read_graph_choices(logdir, run_id),
        hint=hint,
    )


def _read(logdir: Logdir, parameters: Parameters) -> TensorsPage:
    return read_tensors(
        logdir,
        TensorFilter(
            op_type=parameters.text("op_type"),
            name=parameters.text("name"),
            graph_id=parameters.integer("graph"),
            dtype=parameters.text("dtype"),
            scope=parameters.choice("scope", SCOPES),
            execution_index=parameters.integer("execution"),
            first_step=parameters.integer("first_step"),
            last_step=parameters.integer("last_step"),
            layer=parameters.text("layer"),
            side=parameters.choice("side", SIDES),
            is_bad=parameters.flag("bad"),
        ),
        run_id=one_run(logdir, parameters),
        first=parameters.integer("at"),
        before=parameters.integer("before"),
        step=parameters.integer("step"),
        place=parameters.integer("place"),
        limit=parameters.integer("limit") or DEFAULT_LIMIT,
    )


PAGE = PageKind(name="tensors", title="Tensors", key="t", read=_read, assets=("windows.css", "windows.js"))
