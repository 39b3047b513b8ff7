"""The first screen: the op that created the first bad value, its inputs and source line, and what was not checked."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfdbg_arrow.errors import BrokenPartError
from tfdbg_arrow.query import AboutRuns, BrokenPart, Coverage, FunctionCall, Growth, Hop, Logdir, NonFinite, Run
from tfdbg_arrow.query.bad_runs import BadRuns
from tfdbg_arrow.query.model_health import layers_and_curves
from tfdbg_arrow.query.model_health.answers import TrainingCurves
from tfdbg_arrow.query.nonfinite_search import tensor_call, tensor_callers
from tfdbg_arrow.query.stacks import Frame
from tfdbg_arrow.viewer.background import Answers
from tfdbg_arrow.viewer.page import PageKind, Parameters, chosen_run
from tfdbg_arrow.viewer.pages.alerts import AlertsView, RuleSummary, rule_results, wanted_rules
from tfdbg_arrow.viewer.source_text import Excerpt, read_excerpt
from tfdbg_arrow.viewer.strips import Strip, read_strip

_MAX_FINDINGS = 3
"""Maximum number of findings per rule on the first screen."""
_MAX_HOPS = 2000
"""Maximum number of tensors that are followed back. Bounds the time of the first screen."""
_MAX_BROKEN = 5
"""Maximum number of broken files that one line names. The line counts all of them."""
WAIT_S = 0.8
"""How long a request waits for rules and curves that are computed in the background, in seconds."""
_MAX_TENSORS_BEFORE = 2_000_000
"""The page of a healthy run has the answer about an older bad run only if that run has at most this many tensors,
because finding the answer takes time."""
_NUM_FIRST = 2
"""Number of alert rules that run before the curves are read."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One run with its number of tensors, its number of bad tensors, and its first bad tensor.

    Attributes:
        run: The run.
        num_tensors: Number of recorded tensors.
        num_bad: Number of tensors with an infinity or a NaN.
        first_bad_event_index: The first bad tensor by arrival; None if no tensor is bad.
        first_bad_step: The marked training step of this tensor.
        first_bad_wall_time_ns: The time at which this tensor was recorded, in nanoseconds since 1970-01-01T00:00:00Z.
        first_step: The first training step.
        last_step: The last training step.
    """

    run: Run
    num_tensors: int
    num_bad: int
    first_bad_event_index: int | None
    first_bad_step: int | None
    first_bad_wall_time_ns: int | None
    first_step: int | None
    last_step: int | None


@dataclass(frozen=True, kw_only=True)
class Training:
    """The course of a training: the sentence of the model's map, and the curves.

    Attributes:
        run_id: The run.
        sentence: As in LayerHealth.
        curves: The curves; None if the run has no tensors.
        is_finished: Whether there was enough time to read the sentence and the curves.
        is_pending: Whether the sentence and the curves are still being read.
    """

    run_id: str
    sentence: str | None
    curves: TrainingCurves | None
    is_finished: bool
    is_pending: bool = False


@dataclass(frozen=True, kw_only=True)
class OverviewPage:
    """The first screen.

    Attributes:
        verdict: `bad`, `expected` (the bad values did no harm), `healthy`, `unmeasured` (no run looked for infinities
            or NaN) or `empty` (nothing is recorded).
        headline: The answer in one sentence.
        origin: The tensor that is to blame, as `first_nonfinite` returns it; None if no tensor is bad.
        before: The tensor that was to blame in the last bad run, if the page is about a newest run that is healthy;
            otherwise None.
        why: What the origin's op did, if the counts prove it.
        repair: How to fix the bad values.
        growth: A quantity that grew from step to step until the origin went bad.
        path: The path from the origin's inputs to the origin, as in `Provenance.path`.
        num_unrecorded_inputs: Number of inputs of the origin's op that were not recorded.
        source: The line of the user's code that created the origin's op.
        callers: The user's lines that called the function with this line, innermost first, as `tensor_callers` returns
            them.
        runs: All runs, oldest first.
        first_bad_calls: For the runs of `origin` and `before`, by ID of the run: the call that computed the first bad
            tensor by arrival. None if the tensor has a step, or if the call is not known.
        about: The runs that the page is about.
        rules: The alert rules that found something, the most severe first.
        unfinished_rules: The rules that ran out of time or memory.
        pending_rules: The rules that still run.
        strip: The strip of the origin's run or, without an origin, of the last selected run; None if there is no strip.
        is_strip_pending: Whether the strip is still being read.
        training: The course of the training, for the same run; None if there is none.
        not_observed: One line about tensors that could be bad but were not checked; None if there are no such tensors.
        coverage: The full coverage.
        left_out: (run ID, text) pairs about data that a run lost or did not record.
        broken: The first broken files that were skipped.
        num_broken: Number of all broken files.
    """

    verdict: str
    headline: str
    origin: NonFinite | None
    before: NonFinite | None
    why: str | None
    repair: str | None
    growth: Growth | None
    path: tuple[Hop, ...]
    num_unrecorded_inputs: int
    source: Excerpt | None
    callers: tuple[Frame, ...]
    runs: tuple[RunSummary, ...]
    first_bad_calls: Mapping[str, FunctionCall | None]
    about: AboutRuns
    rules: tuple[RuleSummary, ...]
    unfinished_rules: tuple[str, ...]
    pending_rules: tuple[str, ...] = ()
    strip: Strip | None
    is_strip_pending: bool = False
    training: Training | None
    not_observed: str | None
    coverage: Coverage
    left_out: tuple[tuple[str, str], ...]
    broken: tuple[BrokenPart, ...]
    num_broken: int

    @property
    def is_bad_before_harm(self) -> bool:
        """Whether the run of the origin had bad values in an earlier step than that of the origin."""
        if self.origin is None or self.verdict != "bad" or self.origin.step is None:
            return False
        steps = [run.first_bad_step for run in self.runs if run.run.run_id == self.origin.run_id]
        return any(step is not None and step < self.origin.step for step in steps)


def read_overview(logdir: Logdir, parameters: Parameters) -> OverviewPage:
    """Returns the first screen without the strip, the alerts and the curves."""
    run_id = chosen_run(logdir, parameters)
    summaries = read_run_summaries(logdir)
    about = logdir.about_runs(run_id=run_id)
    asked = tuple(summary for summary in summaries if summary.run.run_id in about.run_ids)
    origin = logdir.first_nonfinite(run_id=run_id)
    path: tuple[Hop, ...] = ()
    growth: Growth | None = None
    if origin is not None:
        provenance = logdir.provenance(origin, limit=_MAX_HOPS)
        path, growth = provenance.path, provenance.growth
    why, repair = next(((hop.why, hop.repair) for hop in path if hop.why is not None), (None, None))
    if origin is not None and origin.is_expected:
        repair = growth = None  # there is nothing to fix
    verdict = _verdict(origin, asked)
    coverage = logdir.coverage(run_id=run_id)
    shown_run = origin.run_id if origin is not None else asked[-1].run.run_id if asked else None
    before = _before(logdir, summaries, about) if verdict == "healthy" else None
    source = None if origin is None else read_excerpt(logdir, origin.source, run_id=origin.run_id)
    training = None
    if shown_run is not None and any(summary.num_tensors for summary in asked if summary.run.run_id == shown_run):
        training = Training(run_id=shown_run, sentence=None, curves=None, is_finished=False)
    return OverviewPage(
        verdict=verdict,
        headline=_headline(verdict, asked) if origin is None else origin.headline,
        origin=origin,
        before=before,
        why=why,
        repair=repair,
        growth=growth,
        path=path,
        num_unrecorded_inputs=0 if origin is None else sum(input_.health is None for input_ in origin.inputs),
        source=source,
        callers=() if origin is None else tensor_callers(logdir, origin.event_index, run_id=origin.run_id),
        runs=summaries,
        first_bad_calls={
            summary.run.run_id: _first_bad_call(logdir, summary)
            for summary in summaries
            if summary.run.run_id in [tensor.run_id for tensor in (origin, before) if tensor is not None]
        },
        about=about,
        rules=(),
        unfinished_rules=(),
        strip=None,
        training=training,
        not_observed=coverage.summary,
        coverage=coverage,
        left_out=tuple((summary.run.run_id, text) for summary in asked for text in summary.run.left_out),
        broken=logdir.broken_parts[:_MAX_BROKEN],
        num_broken=len(logdir.broken_parts),
    )


def _before(logdir: Logdir, summaries: Sequence[RunSummary], about: AboutRuns) -> NonFinite | None:
    """Returns the tensor that was to blame in the last bad run. The newest run may be a repaired program."""
    if not summaries or summaries[-1].run.run_id not in about.run_ids:
        return None
    bad = [summary for summary in summaries if summary.num_bad and summary.run.run_id not in about.run_ids]
    if not bad or bad[-1].num_tensors > _MAX_TENSORS_BEFORE:
        return None
    with contextlib.suppress(BrokenPartError):  # the overview of that run reports the broken part
        first = logdir.first_nonfinite(run_id=bad[-1].run.run_id)
        return None if first is None or first.is_expected else first
    return None


def _first_bad_call(logdir: Logdir, summary: RunSummary) -> FunctionCall | None:
    if summary.first_bad_event_index is None or summary.first_bad_step is not None:
        return None
    return tensor_call(logdir, summary.first_bad_event_index, run_id=summary.run.run_id)


def complete_overview(
    answers: Answers, page: OverviewPage, view: AlertsView, *, wait_s: float = WAIT_S
) -> OverviewPage:
    """Returns the page with the strip, the alerts and the curves that are known.

    Args:
        answers: Computes the strip, the alerts and the curves.
        page: The page without these answers.
        view: The alerts of the page. Pages with equal views share the answers.
        wait_s: Maximum time to wait for answers that are computed in the background, in seconds.
    """
    wanted: dict[Hashable, Callable[[Logdir], Any]] = {**wanted_rules(view)}
    strip_key = training_key = None
    if page.training is not None:
        run_id = page.training.run_id
        strip_key, training_key = ("strip", run_id), ("training", run_id)
        rules = list(wanted.items())
        wanted = {
            strip_key: functools.partial(read_strip, run_id=run_id),
            **dict(rules[:_NUM_FIRST]),
            training_key: functools.partial(read_training, run_id=run_id),
            **dict(rules[_NUM_FIRST:]),
        }
    ready = answers.ready(wanted, wait_s=wait_s)
    results = rule_results(ready)
    strip = ready.answers.get(strip_key)
    training = ready.answers.get(training_key, page.training)
    if training is not None:
        training = replace(training, is_pending=not training.is_finished and training_key in ready.pending)
    return replace(
        page,
        rules=tuple(rule.summary(limit=_MAX_FINDINGS) for rule in results.finished if rule.alerts),
        unfinished_rules=results.unfinished,
        pending_rules=results.pending,
        strip=strip,
        is_strip_pending=strip is None and strip_key in ready.pending,
        training=training,
    )


def read_training(logdir: Logdir, *, run_id: str) -> Training:
    """Returns the course of the training of a run."""
    health, curves = layers_and_curves(logdir, run_id=run_id) or (None, None)
    return Training(
        run_id=run_id, sentence=None if health is None else health.sentence, curves=curves, is_finished=True
    )


def read_run_summaries(logdir: Logdir) -> tuple[RunSummary, ...]:
    """Returns a summary of each run, oldest first."""
    rows = logdir.rows("SELECT run_id, count(*), min(step), max(step) FROM tensor_health GROUP BY run_id")
    counts_of_run = {row[0]: row[1:] for row in rows}
    runs = logdir.runs()
    bad_runs = logdir.lasting(BadRuns).bad_runs([run.run_id for run in runs])
    summaries = []
    for run in runs:
        num_tensors, first_step, last_step = counts_of_run.get(run.run_id, (0, None, None))
        bad_run = bad_runs.get(run.run_id)
        summaries.append(
            RunSummary(
                run=run,
                num_tensors=num_tensors,
                num_bad=0 if bad_run is None else bad_run.num_bad,
                first_bad_event_index=None if bad_run is None else bad_run.first_event_index,
                first_bad_step=None if bad_run is None else bad_run.first_step,
                first_bad_wall_time_ns=None if bad_run is None else bad_run.first_wall_time_ns,
                first_step=first_step,
                last_step=last_step,
            )
        )
    return tuple(summaries)


def _verdict(origin: NonFinite | None, runs: tuple[RunSummary, ...]) -> str:
    if origin is not None:
        return "expected" if origin.is_expected else "bad"
    if not any(summary.num_tensors for summary in runs):
        return "empty" if all(summary.run.measures_health for summary in runs) else "unmeasured"
    return "healthy" if any(summary.run.measures_health for summary in runs) else "unmeasured"


def _headline(verdict: str, runs: tuple[RunSummary, ...]) -> str:
    """Returns the answer in one sentence if nothing is bad."""
    if verdict == "empty":
        return "Nothing is recorded here yet."
    if verdict == "unmeasured":
        modes = sorted({summary.run.tensor_debug_mode or "unknown" for summary in runs})
        return f"It is not known whether there are infinities or NaN: the mode {', '.join(modes)} does not detect them."
    num_tensors = sum(summary.num_tensors for summary in runs)
    return f"Nothing is bad: none of {num_tensors:,} recorded tensors contains an infinity or a NaN."


def _complete(answers: Answers, page: OverviewPage, parameters: Parameters) -> OverviewPage:
    return complete_overview(answers, page, AlertsView(run_id=parameters.text("run")), wait_s=WAIT_S)


PAGE = PageKind(
    name="overview",
    title="Overview",
    key="o",
    read=read_overview,
    complete=_complete,
    assets=("chart.css", "colours.css", "chart.js", "pending.js"),
)
