"""The runs page: compares runs and workers, and shows which run went bad first and when the other runs went bad."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

from tfdbg_arrow.query import Logdir
from tfdbg_arrow.query.asked_runs import asked_runs
from tfdbg_arrow.query.model_health import last_loss
from tfdbg_arrow.safe_text import number_of
from tfdbg_arrow.viewer.background import WAIT_S, Answers
from tfdbg_arrow.viewer.naming import duration_text
from tfdbg_arrow.viewer.page import PageKind, Parameters
from tfdbg_arrow.viewer.pages.overview import RunSummary, read_run_summaries
from tfdbg_arrow.viewer.strips import AlignedStrips, read_aligned_strips

ORDERS = ("time", "bad")
"""Orders of the runs: by start time, or by the time at which they went bad."""
LIMIT = 100
"""Maximum number of runs on one page. Links lead to the others."""
_NO_HARM = "no harm"
"""The verdict about a run whose bad tensors did no harm."""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The facts about a run that take long to read.

    Attributes:
        last_loss: The last known loss; None if it is not known.
        last_position: The training step of this loss, or its execution if the run has no steps.
        headline: The headline of the tensor to blame, as `first_nonfinite` returns it; None if no tensor is bad.
        culprit_event_index: The event of this tensor.
        is_harmless: Whether the run has bad tensors, and none of them did harm, as in `NonFinite.is_expected`.
    """

    last_loss: float | None
    last_position: int | None
    headline: str | None
    culprit_event_index: int | None
    is_harmless: bool


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """One run, and how it compares with the run that went bad first.

    Attributes:
        summary: The run's summary.
        is_first_bad: Whether the run went bad before all other runs.
        verdict: `went bad first`, `4 steps later`, `not bad`, `no harm` and so on.
        facts: The facts that take long to read; None if they were not read.
    """

    summary: RunSummary
    is_first_bad: bool
    verdict: str
    facts: RunFacts | None = None


@dataclass(frozen=True, kw_only=True)
class RunsPage:
    """The data of the runs page.

    A run is bad if it has a bad tensor, unless the facts about the run say that its bad tensors did no harm. The facts
    are read only for the window. If the window does not have all runs, `headline` and `num_bad` do not use the facts.

    Attributes:
        headline: One sentence that says which run went bad first.
        is_newest_clean: Whether the newest run, with the other processes of its program, is not bad, but another run
            is. A repair can lead to this.
        order: One of ORDERS.
        first: Number of runs before the window.
        limit: Maximum number of runs in a window.
        num_runs: Number of all runs.
        num_bad: Number of bad runs.
        num_harmless: Number of runs in the window whose bad tensors did no harm.
        rows: The window.
        strips: The same runs along an axis of training steps or time.
        compared: The two runs that are preselected for a comparison; None if there are fewer than two.
        run_ids: All runs to choose from, oldest first.
        newest_run_ids: The newest run, with the other processes of its program.
        num_pending: Number of rows whose facts are being read.
        num_unread: Number of rows whose facts were not read, because reading takes too long or a part is broken.
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
    num_harmless: int = 0
    num_pending: int = 0
    num_unread: int = 0


def read_run_facts(logdir: Logdir, run_id: str) -> RunFacts:
    """Returns the facts about a run that take long to read."""
    loss = last_loss(logdir, run_id=run_id)
    culprit = logdir.first_nonfinite(run_id=run_id)
    return RunFacts(
        last_loss=None if loss is None else loss[1],
        last_position=None if loss is None else loss[0],
        headline=None if culprit is None else culprit.headline,
        culprit_event_index=None if culprit is None else culprit.event_index,
        is_harmless=culprit is not None and culprit.is_expected,
    )


def read_runs(logdir: Logdir, parameters: Parameters) -> RunsPage:
    """Returns the data of the runs page without the facts that take long."""
    order = parameters.choice("order", ORDERS) or "time"
    first = parameters.integer("first") or 0
    summaries = read_run_summaries(logdir)
    bad = _by_first_bad(summaries)
    newest_run_ids = asked_runs(logdir, None).run_ids
    is_newest_clean = _is_newest_clean(summaries, bad, newest_run_ids)
    if order == "bad":
        ids = {summary.run.run_id for summary in bad}
        summaries = (*bad, *(summary for summary in summaries if summary.run.run_id not in ids))
    window = summaries[first : first + LIMIT]
    steps = [step for one in summaries for step in (one.first_step, one.last_step) if step is not None]
    strips = read_aligned_strips(
        logdir, [one.run.run_id for one in window], steps=(min(steps), max(steps)) if steps else None
    )
    return RunsPage(
        headline=_headline(bad, len(summaries), is_newest_clean=is_newest_clean),
        is_newest_clean=is_newest_clean,
        order=order,
        first=first,
        limit=LIMIT,
        num_runs=len(summaries),
        num_bad=len(bad),
        rows=tuple(
            RunRow(summary=one, is_first_bad=bool(bad) and one is bad[0], verdict=_verdict(one, bad, len(summaries)))
            for one in window
        ),
        strips=strips,
        compared=_compared(summaries, bad),
        run_ids=tuple(run.run_id for run in logdir.runs()),
        newest_run_ids=newest_run_ids,
    )


def _by_first_bad(summaries: tuple[RunSummary, ...], harmless: frozenset[str] = frozenset()) -> tuple[RunSummary, ...]:
    """Returns the bad runs. The runs are ordered by step if all of them have a step, then by time.

    Args:
        summaries: The runs.
        harmless: The runs whose bad tensors did no harm.
    """
    bad = [one for one in summaries if one.num_bad and one.run.run_id not in harmless]
    has_steps = all(one.first_bad_step is not None for one in bad)
    return tuple(sorted(bad, key=lambda one: ((one.first_bad_step or 0) if has_steps else 0, _bad_time(one))))


def _bad_time(summary: RunSummary) -> int:
    return summary.first_bad_wall_time_ns or 0


def _is_newest_clean(
    summaries: tuple[RunSummary, ...], bad: tuple[RunSummary, ...], newest_run_ids: tuple[str, ...]
) -> bool:
    newest = [one for one in summaries if one.run.run_id in newest_run_ids]
    bad_ids = {one.run.run_id for one in bad}
    return bool(bad) and all(one.run.measures_health and one.run.run_id not in bad_ids for one in newest)


def _headline(bad: tuple[RunSummary, ...], num_runs: int, *, is_newest_clean: bool, num_harmless: int = 0) -> str:
    if not num_runs:
        return "There are no runs yet."
    if not bad and num_harmless:
        if num_runs == 1:
            return "The bad values of the run did no harm."
        harmless = number_of(num_harmless, "run")
        return f"None of {num_runs:,} runs is known to be bad; the bad values of {harmless} did no harm."
    if not bad:
        return f"None of {num_runs:,} runs is known to be bad." if num_runs > 1 else "The run is not known to be bad."
    count = f"{len(bad):,} of {num_runs:,} runs {'is' if len(bad) == 1 else 'are'} bad"
    step = bad[0].first_bad_step
    if is_newest_clean:
        first = ", the first" if len(bad) > 1 else ""
        return f"The newest run is not bad. {count}" + ("." if step is None else f"{first} from step {step:,} on.")
    if num_runs == 1:
        return "The run is bad." if step is None else f"The run is bad from step {step:,} on."
    name = bad[0].run.run_name or bad[0].run.worker or bad[0].run.run_id
    return f"{name} went bad first{'' if step is None else f', in step {step:,}'}; {count}."


def _verdict(summary: RunSummary, bad: tuple[RunSummary, ...], num_runs: int) -> str:
    if not summary.num_bad:
        return "not bad" if summary.run.measures_health else "not measured"
    if summary is bad[0]:
        if len(bad) > 1:
            return "went bad first"
        return "the only bad run" if num_runs > 1 else "bad"
    steps = (summary.first_bad_step, bad[0].first_bad_step)
    if steps[0] is not None and steps[1] is not None and steps[0] > steps[1]:
        later = steps[0] - steps[1]
        return f"{number_of(later, 'step')} later"
    behind = _bad_time(summary) - _bad_time(bad[0])
    by = duration_text(behind) if behind >= 10**8 else f"{behind / 1e6:.1f} ms"
    return f"{'in the same step, ' if None not in steps and steps[0] == steps[1] else ''}{by} later by the clock"


def _compared(summaries: tuple[RunSummary, ...], bad: tuple[RunSummary, ...]) -> tuple[str, str] | None:
    """Returns two runs to compare: a run that is not bad, and the run that went bad first.

    If no run is bad, the second run replaces the run that went bad first. If all other runs are bad, the first of them
    replaces the run that is not bad.
    """
    if len(summaries) < 2:
        return None
    last = bad[0] if bad else summaries[1]
    others = [one for one in summaries if one is not last]
    bad_ids = {one.run.run_id for one in bad}
    healthy = [one for one in others if one.run.run_id not in bad_ids]
    return (healthy or others)[0].run.run_id, last.run.run_id


def complete_runs(answers: Answers, page: RunsPage) -> RunsPage:
    """Returns the page with the facts of the runs that are known. `answers` reads them."""
    run_ids = [row.summary.run.run_id for row in page.rows]
    wanted: dict[Hashable, Callable[[Logdir], RunFacts]] = {
        ("run facts", run_id): functools.partial(read_run_facts, run_id=run_id) for run_id in run_ids
    }
    ready = answers.ready(wanted, wait_s=WAIT_S)
    rows = tuple(replace(row, facts=ready.answers.get(key)) for row, key in zip(page.rows, wanted, strict=True))
    num_pending = len([key for key in ready.pending if key not in ready.answers])
    num_without = sum(row.facts is None for row in rows)
    page = replace(page, rows=rows, num_pending=num_pending, num_unread=max(0, num_without - num_pending))
    return _without_harmless(page)


def _without_harmless(page: RunsPage) -> RunsPage:
    """Returns the page in which the runs whose bad tensors did no harm are not bad."""
    harmless = frozenset(row.summary.run.run_id for row in page.rows if row.facts is not None and row.facts.is_harmless)
    if not harmless:
        return page
    if page.num_runs > len(page.rows):
        rows = [
            replace(row, is_first_bad=False, verdict=_NO_HARM) if row.summary.run.run_id in harmless else row
            for row in page.rows
        ]
        return replace(page, rows=tuple(rows), num_harmless=len(harmless))
    summaries = tuple(row.summary for row in page.rows)
    bad = _by_first_bad(summaries, harmless)
    is_newest_clean = _is_newest_clean(summaries, bad, page.newest_run_ids)
    rows = [
        replace(
            row,
            is_first_bad=bool(bad) and row.summary is bad[0],
            verdict=_NO_HARM if row.summary.run.run_id in harmless else _verdict(row.summary, bad, page.num_runs),
        )
        for row in page.rows
    ]
    return replace(
        page,
        headline=_headline(bad, page.num_runs, is_newest_clean=is_newest_clean, num_harmless=len(harmless)),
        is_newest_clean=is_newest_clean,
        num_bad=len(bad),
        rows=tuple(rows),
        compared=_compared(summaries, bad),
        num_harmless=len(harmless),
    )


PAGE = PageKind(
    name="runs",
    title="Runs",
    key="u",
    read=read_runs,
    complete=lambda answers, page, _: complete_runs(answers, page),
    assets=("runs.css", "pending.js"),
)
