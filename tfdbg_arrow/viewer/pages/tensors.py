"""The tensors page: a filtered window of the recorded tensors of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tfdbg_arrow.query import Logdir
from tfdbg_arrow.query.display.tensor_window import SCOPES, SIDES, TensorFilter, TensorRow, tensors
from tfdbg_arrow.query.wording import similar_text
from tfdbg_arrow.viewer.page import (
    DEFAULT_LIMIT,
    MAX_LIMIT,
    PageKind,
    Parameters,
    RowsPage,
    one_run,
    read_graph_choices,
    read_texts,
    read_window,
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


def read_tensors(logdir: Logdir, parameters: Parameters) -> TensorsPage:
    """Returns a window of the recorded tensors of a run; see `read_window`."""
    filter_ = TensorFilter(
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
    )
    limit = min(parameters.integer("limit") or DEFAULT_LIMIT, MAX_LIMIT)
    run_id = one_run(logdir, parameters)
    if run_id is None:
        return TensorsPage(run_id=None, filter=filter_, limit=limit)
    matching, bad = (tensors(logdir, one, run_id=run_id) for one in (filter_, replace(filter_, is_bad=True)))
    window, before_bad, after_bad = read_window(matching, bad, parameters, run_id=run_id, limit=limit)
    op_types = read_texts(
        logdir,
        "SELECT op_type FROM graph_op WHERE run_id = ? UNION SELECT op_type FROM execution WHERE run_id = ?",
        run_id,
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


PAGE = PageKind(name="tensors", title="Tensors", key="t", read=read_tensors, assets=("windows.css", "windows.js"))
