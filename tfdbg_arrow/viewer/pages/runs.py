"""The runs page: compares runs and workers, and shows which run went bad first and when the other runs went bad."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tfdbg_arrow.query import FunctionCall, Logdir, NonFinite
from tfdbg_arrow.query.asked_runs import asked_runs
from tfdbg_arrow.query.model_health import last_loss
from tfdbg_arrow.query.nonfinite_search import last_call, tensor_call
from tfdbg_arrow.safe_text import number_of
from tfdbg_arrow.viewer.background import WAIT_S, Answers
from tfdbg_arrow.viewer.naming import duration_text
from tfdbg_arrow.viewer.page import PageKind, Parameters
from tfdbg_arrow.viewer.pages.overview import RunSummary, read_run_summaries
from tfdbg_arrow.viewer.strips import AlignedStrips, read_aligned_strips

ORDERS = ("time", "bad")
"""Orders of the runs: by start time, or by the time of their first bad tensor."""
LIMIT = 100
"""Maximum number of runs on one page. Links lead to the others."""
MAX_OTHERS = 100
"""Of the runs on other pages, at most this many are examined: those whose first bad tensor came first."""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The facts about a run that take long to read.

    Attributes:
        last_loss: The last known loss; None if it is not known.
        last_position: The training step of this loss, or its execution if the run has no steps.
        last_call: The call that began last up to this execution. It is a call of the function in which the first bad
            value that did harm arose, as in `LayerMap.calls`. None if the run has steps or no such call.
        first_bad_call: The call that computed the first bad tensor by arrival; None if the tensor has a step, or if the
            call is not known.
        headline: The headline of the tensor to blame, as `first_nonfinite` returns it; None if no tensor is bad.
        culprit_event_index: The event of this tensor.
        culprit_step: The training step of this tensor; None if it has no step.
        culprit_wall_time_ns: When this tensor was recorded, as in `NonFinite`.
        is_harmless: Whether the run has bad tensors, and none of them did harm, as in `NonFinite.is_expected`.
    """

    last_loss: float | None
    last_position: int | None
    last_call: FunctionCall | None = None
    first_bad_call: FunctionCall | None = None
    headline: str | None
    culprit_event_index: int | None
    culprit_step: int | None
    culprit_wall_time_ns: int | None
    is_harmless: bool


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """One run, and how it compares with the run that went bad first.

    Attributes:
        summary: The run's summary.
        is_bad: Whether the run is bad; None if this is not known, because the run has bad tensors whose harm was not
            examined.
        is_first_bad: Whether the run is known to have gone bad before all other runs.
        verdict: `went bad first`, `4 steps later`, `not bad`, `no harm`, `harm not known` and so on.
        facts: The facts that take long to read; None if they were not read.
    """

    summary: RunSummary
    is_bad: bool | None
    is_first_bad: bool
    verdict: str
    facts: RunFacts | None = None


@dataclass(frozen=True, kw_only=True)
class RunsView:
    """The data of the runs page without the facts that take long to read.

    Attributes:
        order: One of ORDERS.
        first: Number of runs before the window.
        summaries: All runs in this order.
        strips: The runs of the window along an axis of training steps or time.
        run_ids: All runs to choose from, oldest first.
        newest_run_ids: The newest run, with the other processes of its program.
    """

    order: str
    first: int
    summaries: tuple[RunSummary, ...]
    strips: AlignedStrips
    run_ids: tuple[str, ...]
    newest_run_ids: tuple[str, ...]

    @property
    def window(self) -> tuple[RunSummary, ...]:
        """The runs that the page shows."""
        return self.summaries[self.first : self.first + LIMIT]

    @property
    def examined(self) -> tuple[RunSummary, ...]:
        """The runs whose facts the page reads: those of the window, and MAX_OTHERS other runs with bad tensors."""
        window = self.window
        shown = {one.run.run_id for one in window}
        others = [one for one in _by_first_bad(self.summaries) if one.run.run_id not in shown]
        return (*window, *others[:MAX_OTHERS])


@dataclass(frozen=True, kw_only=True)
class RunsPage:
    """The data of the runs page.

    A run is bad if it has a bad tensor, and the facts about the run do not say that its bad tensors did no harm. If the
    facts were not read, it is not known whether the run is bad.

    Attributes:
        headline: One sentence that says which run went bad first.
        is_newest_clean: Whether the newest run, with the other processes of its program, is not bad, but another run
            is. A repair can lead to this.
        order: One of ORDERS.
        first: Number of runs before the window.
        limit: Maximum number of runs in a window.
        num_runs: Number of all runs.
        num_bad: Number of runs that are known to be bad.
        num_harmless: Number of runs whose bad tensors are known to have done no harm.
        num_unknown: Number of runs with bad tensors of which it is not known whether they did harm.
        rows: The window.
        strips: The same runs along an axis of training steps or time.
        compared: The two runs that are preselected for a comparison; None if there are fewer than two.
        run_ids: All runs to choose from, oldest first.
        newest_run_ids: The newest run, with the other processes of its program.
        num_pending: Number of runs whose facts are being read.
        num_unread: Number of runs whose facts were not read, because reading takes too long or a part is broken.
        num_unexamined: Number of runs with bad tensors that the page did not examine, because there are too many.
    """

    headline: str
    is_newest_clean: bool
    order: str
    first: int
    limit: int
    num_runs: int
    num_bad: int
    rows: tuple[RunRow, ...]
    strips: AlignedStrips
    compared: tuple[str, str] | None
    run_ids: tuple[str, ...]
    newest_run_ids: tuple[str, ...]
    num_harmless: int
    num_unknown: int
    num_pending: int
    num_unread: int
    num_unexamined: int


def read_run_facts(logdir: Logdir, run_id: str) -> RunFacts:
    """Returns the facts about a run that take long to read."""
    loss = last_loss(logdir, run_id=run_id)
    culprit = logdir.first_nonfinite(run_id=run_id)
    return RunFacts(
        last_loss=None if loss is None else loss[1],
        last_position=None if loss is None else loss[0],
        last_call=None if loss is None or culprit is None else _call_of_loss(logdir, loss[0], culprit),
        first_bad_call=None if culprit is None else _first_bad_call(logdir, run_id),
        headline=None if culprit is None else culprit.headline,
        culprit_event_index=None if culprit is None else culprit.event_index,
        culprit_step=None if culprit is None else culprit.step,
        culprit_wall_time_ns=None if culprit is None else culprit.wall_time_ns,
        is_harmless=culprit is not None and culprit.is_expected,
    )


def _call_of_loss(logdir: Logdir, position: int, culprit: NonFinite) -> FunctionCall | None:
    # The axis of the run's curves has calls in the same case.
    if culprit.call is None or culprit.is_expected:
        return None
    return last_call(logdir, position, like=culprit.call, run_id=culprit.run_id)


def _first_bad_call(logdir: Logdir, run_id: str) -> FunctionCall | None:
    query = "SELECT min(event_index) FROM tensor_health WHERE run_id = ? AND has_inf_or_nan"
    ((event_index,),) = logdir.rows(query, [run_id])
    return tensor_call(logdir, event_index, run_id=run_id)


def read_runs(logdir: Logdir, parameters: Parameters) -> RunsView:
    """Returns the data of the runs page without the facts that take long."""
    order = parameters.choice("order", ORDERS) or "time"
    first = parameters.integer("first") or 0
    summaries = read_run_summaries(logdir)
    if order == "bad":
        bad = _by_first_bad(summaries)
        ids = {summary.run.run_id for summary in bad}
        summaries = (*bad, *(summary for summary in summaries if summary.run.run_id not in ids))
    steps = [step for one in summaries for step in (one.first_step, one.last_step) if step is not None]
    run_ids = [one.run.run_id for one in summaries[first : first + LIMIT]]
    return RunsView(
        order=order,
        first=first,
        summaries=summaries,
        strips=read_aligned_strips(logdir, run_ids, steps=(min(steps), max(steps)) if steps else None),
        run_ids=tuple(run.run_id for run in logdir.runs()),
        newest_run_ids=asked_runs(logdir, None).run_ids,
    )


class _Moment(NamedTuple):
    """When a run went bad: the training step, or None if it is not known, and the time."""

    step: int | None
    wall_time_ns: int


def _first_bad_moment(summary: RunSummary) -> _Moment:
    return _Moment(summary.first_bad_step, summary.first_bad_wall_time_ns or 0)


def _by_first_bad(
    summaries: tuple[RunSummary, ...], moment_of: Callable[[RunSummary], _Moment] = _first_bad_moment
) -> tuple[RunSummary, ...]:
    """Returns the runs with bad tensors. They are ordered by step if all of them have a step, then by time."""
    moments = [(moment_of(summary), summary) for summary in summaries if summary.num_bad]
    has_steps = all(moment.step is not None for moment, _ in moments)
    moments.sort(key=lambda of_run: (of_run[0].step if has_steps else 0, of_run[0].wall_time_ns))
    return tuple(summary for _, summary in moments)


class _Judged:
    """The runs with what is known about their harm.

    Attributes:
        bad: The runs that are known to be bad, in the order of `went_bad`.
        unknown: The runs with bad tensors of which it is not known whether they did harm, in the same order.
        harmless: The IDs of the runs whose bad tensors did no harm.
        first_bad: The run that went bad first; None if no run is bad, or if it may be one of the unknown runs.
    """

    def __init__(self, summaries: tuple[RunSummary, ...], facts: Mapping[str, RunFacts]) -> None:
        self._facts = facts
        harm = {run_id: not facts_of_run.is_harmless for run_id, facts_of_run in facts.items()}
        self.harmless = {one.run.run_id for one in summaries if one.num_bad and harm.get(one.run.run_id) is False}
        may_be_bad = _by_first_bad(
            tuple(one for one in summaries if one.run.run_id not in self.harmless), self.went_bad
        )
        self.bad = tuple(one for one in may_be_bad if one.run.run_id in harm)
        self.unknown = tuple(one for one in may_be_bad if one.run.run_id not in harm)
        self.first_bad = self.bad[0] if self.bad and may_be_bad[0] is self.bad[0] else None
        self._may_be_bad = {one.run.run_id: True if one.run.run_id in harm else None for one in may_be_bad}

    def went_bad(self, summary: RunSummary) -> _Moment:
        """Returns when the tensor to blame was computed, or the first bad tensor if that tensor is not known.

        Bad tensors that did no harm, such as masks, may come before the tensor to blame.
        """
        facts = self._facts.get(summary.run.run_id)
        if facts is None or facts.culprit_wall_time_ns is None:
            return _first_bad_moment(summary)
        return _Moment(facts.culprit_step, facts.culprit_wall_time_ns)

    def is_bad(self, summary: RunSummary) -> bool | None:
        """Returns whether a run is bad; None if it is not known."""
        return self._may_be_bad.get(summary.run.run_id, False)

    def is_newest_clean(self, summaries: tuple[RunSummary, ...], newest_run_ids: tuple[str, ...]) -> bool:
        """Returns whether the newest runs are not bad, but another run is."""
        newest = [one for one in summaries if one.run.run_id in newest_run_ids]
        return bool(self.bad) and all(one.run.measures_health and self.is_bad(one) is False for one in newest)


def _headline(judged: _Judged, num_runs: int, *, is_newest_clean: bool) -> str:
    bad, num_unknown, num_harmless = judged.bad, len(judged.unknown), len(judged.harmless)
    if not num_runs:
        return "There are no runs yet."
    if num_runs == 1 and not bad:
        if num_unknown:
            return "It is not known whether the bad values of the run did harm."
        return "The bad values of the run did no harm." if num_harmless else "The run is not known to be bad."
    of_unknown = ""
    if num_unknown:
        runs = number_of(num_unknown, "other run" if bad else "run")
        of_unknown = f" It is not known whether the bad values of {runs} did harm."
    if not bad:
        of_harmless = f"; the bad values of {number_of(num_harmless, 'run')} did no harm" if num_harmless else ""
        return f"None of {num_runs:,} runs is known to be bad{of_harmless}.{of_unknown}"
    known_to_be = " known to be" if num_unknown else ""
    count = f"{len(bad):,} of {num_runs:,} runs {'is' if len(bad) == 1 else 'are'}{known_to_be} bad"
    first = judged.first_bad
    step = None if first is None else judged.went_bad(first).step
    if is_newest_clean:
        from_step = "" if step is None else f"{', the first' if len(bad) > 1 else ''} from step {step:,} on"
        return f"The newest run is not bad. {count}{from_step}.{of_unknown}"
    if num_runs == 1:
        return "The run is bad." if step is None else f"The run is bad from step {step:,} on."
    if first is None:
        return f"{count}.{of_unknown}"
    name = first.run.run_name or first.run.worker or first.run.run_id
    return f"{name} went bad first{'' if step is None else f', in step {step:,}'}; {count}.{of_unknown}"


def _verdict(summary: RunSummary, judged: _Judged, num_runs: int) -> str:
    if not summary.num_bad:
        return "not bad" if summary.run.measures_health else "not measured"
    if summary.run.run_id in judged.harmless:
        return "no harm"
    if judged.is_bad(summary) is None:
        return "harm not known"
    first = judged.first_bad
    if first is None:
        return "bad"
    if summary is first:
        if len(judged.bad) > 1:
            return "went bad first"
        return "the only bad run" if num_runs > 1 and not judged.unknown else "bad"
    own, earliest = judged.went_bad(summary), judged.went_bad(first)
    if own.step is not None and earliest.step is not None and own.step > earliest.step:
        return f"{number_of(own.step - earliest.step, 'step')} later"
    behind = own.wall_time_ns - earliest.wall_time_ns
    by = duration_text(behind) if behind >= 10**8 else f"{behind / 1e6:.1f} ms"
    is_same_step = own.step is not None and own.step == earliest.step
    return f"{'in the same step, ' if is_same_step else ''}{by} later by the clock"


def _compared(summaries: tuple[RunSummary, ...], judged: _Judged) -> tuple[str, str] | None:
    """Returns two runs to compare: a run that is not bad, and the first bad run.

    If no run is known to be bad, a run that may be bad, or else the second run, replaces the bad run. If all other runs
    may be bad, the first of them replaces the run that is not bad.
    """
    if len(summaries) < 2:
        return None
    may_be_bad = (*judged.bad, *judged.unknown)
    last = may_be_bad[0] if may_be_bad else summaries[1]
    others = [one for one in summaries if one is not last]
    healthy = [one for one in others if judged.is_bad(one) is False]
    return (healthy or others)[0].run.run_id, last.run.run_id


def complete_runs(answers: Answers, view: RunsView) -> RunsPage:
    """Returns the page with the facts of the runs that are known. `answers` reads them."""
    examined = view.examined
    wanted: dict[Hashable, Callable[[Logdir], RunFacts]] = {
        ("run facts", one.run.run_id): functools.partial(read_run_facts, run_id=one.run.run_id) for one in examined
    }
    ready = answers.ready(wanted, wait_s=WAIT_S)
    facts = {
        one.run.run_id: ready.answers[key] for one, key in zip(examined, wanted, strict=True) if key in ready.answers
    }
    num_pending = len([key for key in ready.pending if key not in ready.answers])
    summaries, num_runs = view.summaries, len(view.summaries)
    judged = _Judged(summaries, facts)
    is_newest_clean = judged.is_newest_clean(summaries, view.newest_run_ids)
    return RunsPage(
        headline=_headline(judged, num_runs, is_newest_clean=is_newest_clean),
        is_newest_clean=is_newest_clean,
        order=view.order,
        first=view.first,
        limit=LIMIT,
        num_runs=num_runs,
        num_bad=len(judged.bad),
        rows=tuple(
            RunRow(
                summary=one,
                is_bad=judged.is_bad(one),
                is_first_bad=one is judged.first_bad,
                verdict=_verdict(one, judged, num_runs),
                facts=facts.get(one.run.run_id),
            )
            for one in view.window
        ),
        strips=view.strips,
        compared=_compared(summaries, judged),
        run_ids=view.run_ids,
        newest_run_ids=view.newest_run_ids,
        num_harmless=len(judged.harmless),
        num_unknown=len(judged.unknown),
        num_pending=num_pending,
        num_unread=len(examined) - len(facts) - num_pending,
        num_unexamined=len({one.run.run_id for one in judged.unknown} - {one.run.run_id for one in examined}),
    )


PAGE = PageKind(
    name="runs",
    title="Runs",
    key="u",
    read=read_runs,
    complete=lambda answers, view, _: complete_runs(answers, view),
    assets=("runs.css", "pending.js"),
)
