"""The health of an op's tensors over time: counts and magnitudes along the events or the training steps."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tfdbg_arrow.query import Logdir
from tfdbg_arrow.query.windows.series import AXES, Measure, TensorSeries, tensor_series
from tfdbg_arrow.query.windows.tensors import TensorFilter, TensorWindow, read_tensor, tensor_window
from tfdbg_arrow.viewer.failures import NoSuchPageError
from tfdbg_arrow.viewer.page import PageKind, needed_run
from tfdbg_arrow.viewer.parameters import Parameters

MAX_BAD = 50
SHARES = {"nan": "NaN", "neg_inf": "-Inf", "pos_inf": "+Inf", "zero": "zero"}
"""Measures that are shares of the elements, and what they are called."""
MAGNITUDES = {"max_abs": "max |finite|", "mean_abs": "|mean|", "stddev": "stddev"}
"""Measures that are magnitudes."""


@dataclass(frozen=True, kw_only=True)
class HistoryPage:
    """What the tensors of one op held over time.

    Attributes:
        run_id: The run.
        graph_id: The graph of the op; None for one that was run eagerly.
        graph_name: Its name.
        op_name: The op in it; None for one that was run eagerly.
        op_type: Its type; None where nothing of it was recorded.
        output_slot: Which output; None: all.
        event_index: The tensor that the address named, to be found in the picture.
        axis: What the picture goes along, one of AXES.
        first: Least event or step of the part that is shown; None: from the start.
        last: Greatest one; None: to the end.
        mode: The run's tensor debug mode.
        series: The picture.
        summary: It in words.
        unmeasured: What of it is not there, and why, as sentences.
        bad: The first bad tensors, and how many there are.
    """

    run_id: str
    graph_id: int | None
    graph_name: str | None
    op_name: str | None
    op_type: str | None
    output_slot: int | None
    event_index: int | None
    axis: str
    first: int | None
    last: int | None
    mode: str | None
    series: TensorSeries
    summary: str
    unmeasured: tuple[str, ...]
    bad: TensorWindow

    @property
    def place(self) -> dict[str, object]:
        """What the history is of, as parameters of its address."""
        of_op = {"graph": self.graph_id, "op": self.op_name} if self.op_name is not None else {"op_type": self.op_type}
        return {"run": self.run_id, **of_op, "slot": self.output_slot, "event": self.event_index}

    @property
    def whole(self) -> dict[str, object]:
        """All of it along this axis, as parameters of its address."""
        return {**self.place, "axis": self.axis}

    @property
    def part(self) -> dict[str, object]:
        """What is shown, as parameters of its address; a range is one of its axis and holds for no other."""
        return {**self.whole, f"first_{self.axis}": self.first, f"last_{self.axis}": self.last}

    @property
    def shares(self) -> dict[str, Measure]:
        """The shares that were measured, by what they are called."""
        return self._known(SHARES)

    @property
    def magnitudes(self) -> dict[str, Measure]:
        """The magnitudes that were measured, by what they are called."""
        return self._known(MAGNITUDES)

    def _known(self, names: dict[str, str]) -> dict[str, Measure]:
        return {text: getattr(self.series, name) for name, text in names.items() if getattr(self.series, name).is_known}


def read_history(
    logdir: Logdir,
    *,
    run_id: str,
    graph_id: int | None = None,
    op_name: str | None = None,
    op_type: str | None = None,
    output_slot: int | None = None,
    event_index: int | None = None,
    axis: str = "event",
    first: int | None = None,
    last: int | None = None,
) -> HistoryPage:
    """Returns what the tensors of one op held over time.

    Args:
        logdir: The logdir.
        run_id: The run.
        graph_id: The graph of the op.
        op_name: The op in it.
        op_type: The type, of ops that were run eagerly.
        output_slot: Which output; None: all.
        event_index: A recorded tensor: of its op, where the others are not given.
        axis: What to go along, one of AXES.
        first: Only from this event, or step, on.
        last: Only to this event, or step.

    Raises:
        NoSuchPageError: No op is named, or the event is no tensor of an op.
    """
    if op_name is None and op_type is None:
        if event_index is None:
            raise NoSuchPageError("the address names no op; it needs graph and op, or op_type, or event.")
        tensor = read_tensor(logdir, event_index, run_id=run_id)
        if tensor is None:
            raise NoSuchPageError(f"event {event_index} of run {run_id} is no recorded tensor.")
        if tensor.op_type is None:
            raise NoSuchPageError(
                f"event {event_index} of run {run_id} came from outside: no op made it more than once."
            )
        graph_id, op_name, op_type, output_slot = tensor.graph_id, tensor.op_name, tensor.op_type, tensor.output_slot
    whole = TensorFilter(graph_id=graph_id, op_name=op_name, output_slot=output_slot)
    if op_name is None:
        whole = TensorFilter(op_type=op_type, scope="execution", output_slot=output_slot)
    if axis == "step":
        part = replace(whole, first_step=first, last_step=last)
    else:
        part = replace(whole, first_event=first, last_event=last)
    series = tensor_series(logdir, part, run_id=run_id, axis=axis)
    bad = tensor_window(logdir, replace(part, is_bad=True), run_id=run_id, limit=MAX_BAD)
    graph_name = None
    if op_name is not None:
        graph_name, op_type = _graph_op(logdir, graph_id, op_name, run_id=run_id) or (None, op_type)
    mode = next((run.tensor_debug_mode for run in logdir.runs() if run.run_id == run_id), None)
    return HistoryPage(
        run_id=run_id,
        graph_id=graph_id,
        graph_name=graph_name,
        op_name=op_name,
        op_type=op_type,
        output_slot=output_slot,
        event_index=event_index,
        axis=axis,
        first=first,
        last=last,
        mode=mode,
        series=series,
        summary=_summary(series, bad),
        unmeasured=tuple(_unmeasured(series, mode)),
        bad=bad,
    )


def _graph_op(logdir: Logdir, graph_id: int | None, op_name: str, *, run_id: str) -> tuple[str, str] | None:
    rows = logdir.rows(
        "SELECT g.graph_name, o.op_type FROM graph_op AS o "
        "JOIN graph AS g ON g.run_id = o.run_id AND g.graph_id = o.graph_id "
        "WHERE o.run_id = ? AND (o.graph_id = ? OR ? IS NULL) AND o.op_name = ? ORDER BY o.graph_id LIMIT 1",
        [run_id, graph_id, graph_id, op_name],
    )
    return rows[0] if rows else None


def _summary(series: TensorSeries, bad: TensorWindow) -> str:
    if not series.buckets:
        return "Nothing of it is recorded here."
    start, end = series.buckets[0], series.buckets[-1]
    if series.axis == "step":
        where = f"steps {start.first_step:,} to {end.last_step:,}"
    else:
        where = f"events {start.first_event_index:,} to {end.last_event_index:,}"
    text = f"{series.num_tensors:,} tensor{'' if series.num_tensors == 1 else 's'}, {where}: "
    if series.num_bad:
        first = bad.rows[0] if bad.rows else None
        step = "" if first is None or first.step is None else f", step {first.step:,}"
        text += f"{series.num_bad:,} bad" + (
            "" if first is None else f", the first at event {first.event_index:,}{step}"
        )
    else:
        text += "none known to be bad" if series.num_unmeasured else "none bad"
    for name, label in (*SHARES.items(), ("max_abs", MAGNITUDES["max_abs"])):
        peak = getattr(series, name).peak
        if peak:
            text += f"; {label} up to {peak:.3g}" if name == "max_abs" else f"; up to {100 * peak:.3g} % {label}"
    return text + "."


def _unmeasured(series: TensorSeries, mode: str | None) -> list[str]:
    """Returns what the picture cannot show, so that nobody takes its absence for a zero."""
    found: list[str] = []
    mode = f"in the mode {mode or 'unknown'}"
    if series.num_unmeasured:
        found.append(f"Of {series.num_unmeasured:,} of them is not known whether they are bad {mode}.")
    for names, why in ((SHARES, ""), (MAGNITUDES, ", or no element is finite")):
        missing = [label for name, label in names.items() if not getattr(series, name).is_known]
        if missing and series.buckets:
            found.append(f"Not in the picture: {', '.join(missing)}. They were not measured {mode}{why}.")
    if series.num_without_step:
        found.append(
            f"{series.num_without_step:,} tensors are left out: no training step was marked for them. Along the events "
            "they are there."
        )
    return found


def _read(logdir: Logdir, parameters: Parameters) -> HistoryPage:
    axis = parameters.choice("axis", AXES) or "event"
    return read_history(
        logdir,
        run_id=needed_run(logdir, parameters),
        graph_id=parameters.integer("graph"),
        op_name=parameters.text("op"),
        op_type=parameters.text("op_type"),
        output_slot=parameters.integer("slot"),
        event_index=parameters.integer("event"),
        axis=axis,
        first=parameters.integer(f"first_{axis}"),
        last=parameters.integer(f"last_{axis}"),
    )


PAGE = PageKind(
    name="history",
    title="Over time",
    key=None,
    read=_read,
    assets=("vendor/uplot/uPlot.min.css", "history.css", "vendor/uplot/uPlot.iife.min.js", "history.js"),
)
