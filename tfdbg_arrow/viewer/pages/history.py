"""The history page: counts, magnitudes and distributions of an op's tensors over events or training steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tfdbg_arrow.query import Logdir
from tfdbg_arrow.query.display.row_window import Window
from tfdbg_arrow.query.display.tensor_window import (
    AXES,
    Measure,
    TensorFilter,
    TensorRow,
    TensorSeries,
    filter_condition,
    tensor_series,
    tensors,
)
from tfdbg_arrow.query.model_health.histograms import no_distribution_sentence, read_distributions
from tfdbg_arrow.safe_text import number_of
from tfdbg_arrow.viewer.distribution_drawing import DistributionPicture, distribution_picture
from tfdbg_arrow.viewer.line_drawing import Line, Plot
from tfdbg_arrow.viewer.page import NoSuchPageError, PageKind, Parameters, needed_run, needed_tensor
from tfdbg_arrow.viewer.svg import Columns, number_text

MAX_BAD = 50
"""Maximum number of bad tensors in the list. A link leads to the list of all of them."""
MAX_COLUMNS = 160
"""Maximum number of columns of the picture of distributions."""
SHARES = {"nan": "NaN", "neg_inf": "-Inf", "pos_inf": "+Inf", "zero": "zero"}
"""Labels of the measures that are shares of the elements."""
MAGNITUDES = {"max_abs": "max |finite|", "mean_abs": "|mean|", "stddev": "stddev"}
"""Labels of the measures that are magnitudes."""


@dataclass(frozen=True, kw_only=True)
class HistoryView:
    """The tensors that a request asks for. If it names no op, its event selects the op.

    Attributes:
        run_id: The run.
        graph_id: The graph of the op; None for an eager op.
        op_name: The op's name in the graph; None for an eager op.
        op_type: The op type; None if the op was not recorded.
        output_slot: The output; None means all.
        event_index: The tensor that the address names. The plot marks this tensor.
        axis: The axis of the plot, one of AXES. None selects `step` if the tensors have training steps, otherwise
            `event`.
        first: The first event or step that is shown; None means from the start.
        last: The last event or step that is shown; None means to the end.
    """

    run_id: str
    graph_id: int | None = None
    op_name: str | None = None
    op_type: str | None = None
    output_slot: int | None = None
    event_index: int | None = None
    axis: str | None = None
    first: int | None = None
    last: int | None = None


@dataclass(frozen=True, kw_only=True)
class HistoryPage(HistoryView):
    """The health of the tensors of one op over time. The view has all facts about the op.

    Attributes:
        graph_name: The graph's name.
        mode: The run's tensor debug mode.
        series: The data of the plot.
        summary: The plot in words.
        unmeasured: Sentences about data that is missing from the plot, and why.
        bad: The first bad tensors, and the number of all bad tensors.
        distribution: The picture of the distributions; None if no tensor has a histogram.
        no_distribution: A sentence that says why there is no picture; None if there is a picture, or if there are no
            tensors.
    """

    axis: str
    graph_name: str | None
    mode: str | None
    series: TensorSeries
    summary: str
    unmeasured: tuple[str, ...]
    bad: Window[TensorRow]
    distribution: DistributionPicture | None
    no_distribution: str | None

    @property
    def place(self) -> dict[str, object]:
        """The op, output and event, as URL parameters."""
        of_op = {"graph": self.graph_id, "op": self.op_name} if self.op_name is not None else {"op_type": self.op_type}
        return {"run": self.run_id, **of_op, "slot": self.output_slot, "event": self.event_index}

    @property
    def whole(self) -> dict[str, object]:
        """The whole history along this axis, as URL parameters."""
        return {**self.place, "axis": self.axis}

    @property
    def shares(self) -> dict[str, Measure]:
        """The shares that were measured, by label."""
        return self._known(SHARES)

    @property
    def magnitudes(self) -> dict[str, Measure]:
        """The magnitudes that were measured, by label."""
        return self._known(MAGNITUDES)

    @property
    def columns(self) -> Columns:
        """The columns of the plots. A column links to its first bad tensor or, without one, to its first tensor."""
        buckets = self.series.buckets
        return Columns(
            axis=self.series.axis,
            ranges=tuple(
                (bucket.first_event_index, bucket.last_event_index)
                if self.series.axis == "event"
                else (bucket.first_step or 0, bucket.last_step or 0)
                for bucket in buckets
            ),
            is_cells=False,
            queries=tuple(
                f"event={bucket.first_bad_event_index if bucket.num_bad else bucket.first_event_index}"
                for bucket in buckets
            ),
        )

    @property
    def plots(self) -> dict[str, Plot]:
        """The plots by name: `shares` and `magnitudes` if measured, otherwise `bad`, which only marks bad columns."""
        groups = {
            "shares": ("Share of the elements", "share", self.shares),
            "magnitudes": ("Magnitudes, on a logarithmic scale", "log", self.magnitudes),
        }
        shown_groups = {name: group for name, group in groups.items() if group[2]} or {
            "bad": ("Bad or not", "share", {})
        }
        columns = self.columns
        chosen = None if self.event_index is None else self._column_of(self.event_index)
        return {
            name: Plot(
                title=title,
                scale=scale,
                columns=columns,
                lines=tuple(_line(label, measure, is_share=scale == "share") for label, measure in measures.items()),
                bad=tuple(index for index, bucket in enumerate(self.series.buckets) if bucket.num_bad),
                chosen=chosen,
            )
            for name, (title, scale, measures) in shown_groups.items()
        }

    def _column_of(self, event_index: int) -> int | None:
        return next(
            (
                index
                for index, bucket in enumerate(self.series.buckets)
                if bucket.first_event_index <= event_index <= bucket.last_event_index
            ),
            None,
        )

    def _known(self, names: dict[str, str]) -> dict[str, Measure]:
        return {text: getattr(self.series, name) for name, text in names.items() if getattr(self.series, name).is_known}


def _line(name: str, measure: Measure, *, is_share: bool) -> Line:
    """Returns the line of a measure. The line has gaps at values that are not finite."""

    def text(least: float | None, greatest: float | None) -> str:
        low, high = (number_text(value, is_share=is_share) for value in (least, greatest))
        return low if least == greatest else f"{low} to {high}"

    greatest, least = (
        tuple(value if value is not None and math.isfinite(value) else None for value in side)
        for side in (measure.greatest, measure.least)
    )
    texts = tuple(map(text, measure.least, measure.greatest))
    return Line(name=name, greatest=greatest, least=least, texts=texts)


def read_history(logdir: Logdir, parameters: Parameters) -> HistoryPage:
    """Returns the health of the tensors of one op over time.

    Raises:
        NoSuchPageError: No op is given, or the event is not a tensor that an op computed.
    """
    axis = parameters.choice("axis", AXES)
    ranges = {
        axis_name: (parameters.integer(f"first_{axis_name}"), parameters.integer(f"last_{axis_name}"))
        for axis_name in AXES
    }
    if axis is None:
        axis = next((axis_name for axis_name, (first, last) in ranges.items() if (first, last) != (None, None)), None)
    first, last = (None, None) if axis is None else ranges[axis]
    view = HistoryView(
        run_id=needed_run(logdir, parameters),
        graph_id=parameters.integer("graph"),
        op_name=parameters.text("op"),
        op_type=parameters.text("op_type"),
        output_slot=parameters.integer("slot"),
        event_index=parameters.integer("event"),
        axis=axis,
        first=first,
        last=last,
    )
    run_id = view.run_id
    if view.op_name is None and view.op_type is None:
        if view.event_index is None:
            raise NoSuchPageError("the address names no op; add graph and op, or op_type, or event.")
        tensor = needed_tensor(logdir, view.event_index, run_id=run_id)
        if tensor.op_type is None:
            raise NoSuchPageError(
                f"event {view.event_index} of run {run_id} came from outside the program, so it has no history."
            )
        names = ("graph_id", "op_name", "op_type", "output_slot")
        view = replace(view, **{name: getattr(tensor, name) for name in names})
    whole = TensorFilter(graph_id=view.graph_id, op_name=view.op_name, output_slot=view.output_slot)
    if view.op_name is None:
        whole = TensorFilter(op_type=view.op_type, scope="execution", output_slot=view.output_slot)
    axis = view.axis or _default_axis(logdir, whole, run_id=run_id)
    if axis == "step":
        part = replace(whole, first_step=view.first, last_step=view.last)
    else:
        part = replace(whole, first_event=view.first, last_event=view.last)
    series = tensor_series(logdir, part, run_id=run_id, axis=axis)
    bad = tensors(logdir, replace(part, is_bad=True), run_id=run_id).window(limit=MAX_BAD)
    graph_name, op_type = None, view.op_type
    if view.op_name is not None:
        graph_name, op_type = _graph_op(logdir, view.graph_id, view.op_name, run_id=run_id) or (None, op_type)
    distribution = _distribution(logdir, part, series, positions=(view.first, view.last), run_id=run_id)
    mode = next((run.tensor_debug_mode for run in logdir.runs() if run.run_id == run_id), None)
    return HistoryPage(
        **{**vars(view), "op_type": op_type, "axis": axis},
        graph_name=graph_name,
        mode=mode,
        series=series,
        summary=_summary(series, bad),
        unmeasured=tuple(_unmeasured(series, mode)),
        bad=bad,
        distribution=distribution,
        no_distribution=no_distribution_sentence(logdir, run_id) if distribution is None and series.buckets else None,
    )


def _distribution(
    logdir: Logdir,
    part: TensorFilter,
    series: TensorSeries,
    *,
    positions: tuple[int | None, int | None],
    run_id: str,
) -> DistributionPicture | None:
    if not series.buckets:
        return None
    first, last = positions
    distributions = read_distributions(
        logdir,
        filter_condition(part, run_id=run_id),
        run_id=run_id,
        axis=series.axis,
        positions=(first, None if last is None else last + 1),
        # There is at most one column for each recorded step, because steps without tensors would make gaps.
        max_columns=min(MAX_COLUMNS, len(series.buckets)),
    )
    return None if distributions is None else distribution_picture(distributions)


def _default_axis(logdir: Logdir, filter_: TensorFilter, *, run_id: str) -> str:
    """Returns `step` if tensors have training steps and no bad tensor lacks a step; otherwise `event`."""
    condition, parameters = filter_condition(filter_, run_id=run_id)
    ((num_with_step, num_bad_without_step),) = logdir.rows(
        "SELECT count(h.step), count(CASE WHEN h.step IS NULL AND h.has_inf_or_nan THEN 1 END) "
        f"FROM tensor_health AS h WHERE {condition}",
        parameters,
    )
    return "step" if num_with_step and not num_bad_without_step else "event"


def _graph_op(logdir: Logdir, graph_id: int | None, op_name: str, *, run_id: str) -> tuple[str, str] | None:
    rows = logdir.rows(
        "SELECT g.graph_name, o.op_type FROM graph_op AS o "
        "JOIN graph AS g ON g.run_id = o.run_id AND g.graph_id = o.graph_id "
        "WHERE o.run_id = ? AND (o.graph_id = ? OR ? IS NULL) AND o.op_name = ? ORDER BY o.graph_id LIMIT 1",
        [run_id, graph_id, graph_id, op_name],
    )
    return rows[0] if rows else None


def _summary(series: TensorSeries, bad: Window[TensorRow]) -> str:
    if not series.buckets:
        return "No tensors of this op are recorded."
    start, end = series.buckets[0], series.buckets[-1]
    if series.axis == "step":
        where = f"steps {start.first_step:,} to {end.last_step:,}"
    else:
        where = f"events {start.first_event_index:,} to {end.last_event_index:,}"
    text = f"{number_of(series.num_tensors, 'tensor')}, {where}: "
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
    """Returns sentences about missing data, so that readers do not take missing data for zeros."""
    sentences: list[str] = []
    mode = f"in the mode {mode or 'unknown'}"
    if series.num_unmeasured:
        sentences.append(f"It is not known whether {series.num_unmeasured:,} of them are bad {mode}.")
    for names, why in ((SHARES, ""), (MAGNITUDES, ", or no element is finite")):
        missing = [label for name, label in names.items() if not getattr(series, name).is_known]
        if missing and series.buckets:
            sentences.append(f"Not in the plot: {', '.join(missing)}. They were not measured {mode}{why}.")
    if series.num_without_step:
        sentences.append(
            f"{number_of(series.num_without_step, 'tensor is', 'tensors are')} left out because no training step was "
            "marked there. Switch to events to see all."
        )
    return sentences


PAGE = PageKind(
    name="history",
    title="Over time",
    key=None,
    read=read_history,
    assets=("chart.css", "colours.css", "chart.js"),
)
