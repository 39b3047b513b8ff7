"""The comparison page: the first layer and the first op in which two runs differ, and other differences."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query import Diff, LayerDifferences, Logdir, Measure
from tfdbg_arrow.query.asked_runs import ALL_RUNS
from tfdbg_arrow.query.model_health.answers import MEASURES
from tfdbg_arrow.query.model_health.differences import LARGEST_DIFFERENCE
from tfdbg_arrow.query.present.runs import outcome_text
from tfdbg_arrow.query.run_diff import check_pattern
from tfdbg_arrow.storage.location import RemoteLocation
from tfdbg_arrow.viewer.background import WAIT_S, Answers, ReadyAnswers
from tfdbg_arrow.viewer.comparison import Compared, Comparison, answer_of, compare_layers, compare_ops
from tfdbg_arrow.viewer.map_scale import shown_measure
from tfdbg_arrow.viewer.page import NoSuchPageError, PageKind, Parameters, chosen_run
from tfdbg_arrow.viewer.reading import state_of
from tfdbg_arrow.viewer.source_text import Excerpt

TIMEOUT_S = 18.0
"""Time limit of the comparisons in seconds. This limit is below the time limit of a page, so that the page can name the
command."""
_NUM_PARTINGS = 12
"""Maximum number of rows of the table of layers, so that it fits on a screen. A line counts the others."""


@dataclass(frozen=True, kw_only=True)
class OtherLogdir:
    """Another logdir that the server shows.

    Attributes:
        key: The key of the logdir in addresses.
        name: The name of the logdir.
        path: The path of the logdir.
        run_ids: The runs of the logdir.
    """

    key: str
    name: str
    path: Path
    run_ids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RunChoice:
    """A run to choose from: the value of the parameter, and the text of the choice."""

    value: str
    text: str


@dataclass(frozen=True, kw_only=True)
class DiffView:
    """The comparison that a request asks for.

    Attributes:
        run_a: Run A; None if none was chosen.
        other: Run B, or the key of another logdir and a run in it; None if none was chosen.
        known: Ops that are known to diverge: a regular expression that matches a whole name or type.
        last_step: The last training step whose ops are compared; None means all.
        first: The first position of the map; None means from the start.
        last: The last position of the map; None means to the end.
    """

    run_a: str | None
    other: str | None
    known: str | None
    last_step: int | None
    first: int | None
    last: int | None


@dataclass(frozen=True, kw_only=True)
class DiffPage(DiffView):
    """The data of the comparison page.

    Attributes:
        run_ids: The runs of this logdir to choose from, oldest first.
        others: The runs of other logdirs to choose from.
        run_b: Run B; None if none was chosen.
        other_key: The key of B's logdir; None if B is in this logdir.
        layers: The comparison of the layers; None unless both runs were chosen and have tensors.
        measure: The measure that the map shows; None if there is no map.
        diff: The comparison of the ops; None unless both runs were chosen.
        headline: The answer in one or two sentences.
        known_next: The value of `known` that makes the search continue past this divergence; None if the divergence has
            no op.
        source_a: The lines around the user's innermost frame, in A.
        source_b: The lines around the user's innermost frame, in B.
        command: The command that makes the same comparison; None unless both runs were chosen.
        pending: The comparisons that still run: `layers`, `ops`.
        failures: Texts that say why a comparison failed.
    """

    run_ids: tuple[str, ...]
    others: tuple[RunChoice, ...] = ()
    run_b: str | None
    other_key: str | None = None
    layers: LayerDifferences | None = None
    measure: Measure | None = None
    diff: Diff | None = None
    headline: str
    known_next: str | None = None
    source_a: Excerpt | None = None
    source_b: Excerpt | None = None
    command: str | None = None
    pending: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()

    @property
    def place(self) -> dict[str, object]:
        """The page's parameters, without the range."""
        return {
            "run": self.run_a,
            "other": self.other,
            "known": self.known,
            "last_step": self.last_step,
            "measure": None if self.measure is None else self.measure.name,
        }

    @property
    def state(self) -> str:
        """`bad` if the runs differ, `healthy` if they do not differ, `unmeasured` if this is not known."""
        if self._parted or (self.diff is not None and self.diff.divergence is not None):
            return "bad"
        is_known = self.diff is not None and self.diff.num_compared
        return "healthy" if is_known and not self.pending else "unmeasured"

    @property
    def op_sentence(self) -> str | None:
        """The result of the comparison of ops; None if the headline is about the ops, or if there is no result."""
        return outcome_text(self.diff) if self.diff is not None and self._parted else None

    @property
    def num_partings(self) -> int:
        """Number of rows of the table of layers."""
        return _NUM_PARTINGS

    @property
    def _parted(self) -> bool:
        return self.layers is not None and self.layers.first_parting is not None


@dataclass(frozen=True)
class _Start:
    """The page without the comparisons, and the request to compare.

    Attributes:
        page: The page.
        asked: The request to compare; None unless both runs were chosen.
        other_state: The state of B's logdir.
    """

    page: DiffPage
    asked: Comparison | None
    other_state: object


def _start(logdir: Logdir, others: Sequence[OtherLogdir], view: DiffView) -> _Start:
    """Returns the page without the comparisons.

    If the server shows other logdirs, and only two runs can be chosen, the page compares these runs.
    """
    run_a, other = view.run_a, view.other
    run_ids = tuple(run.run_id for run in logdir.runs())
    choices = {
        f"{other_logdir.key}:{run_id}": (other_logdir, run_id)
        for other_logdir in others
        for run_id in other_logdir.run_ids
    }
    if run_a is None and len(run_ids) == 1 and choices:
        (run_a,) = run_ids
    if other is None and run_a is not None and choices:
        remaining = [*(run_id for run_id in run_ids if run_id != run_a), *choices]
        other = remaining[0] if len(remaining) == 1 else None
    if other is not None and other not in run_ids and other not in choices:
        raise NoSuchPageError(f"run {other!r} is not in {logdir.path}.")
    in_other, run_b = choices.get(other or "", (None, other))
    page = DiffPage(
        **{**vars(view), "run_a": run_a, "other": other},
        run_ids=run_ids,
        others=tuple(
            RunChoice(value=value, text=f"{other_logdir.name}: {run_id}")
            for value, (other_logdir, run_id) in choices.items()
        ),
        run_b=run_b,
        other_key=None if in_other is None else in_other.key,
        headline="",
    )
    if run_a is None or run_b is None:
        is_choice = len(run_ids) + len(choices) > 1
        text = "Choose two runs to compare." if is_choice else "There are no two runs here to compare."
        return _Start(replace(page, headline=text), None, None)
    if run_a == run_b and in_other is None:
        raise QueryError(f"run and other are both {run_a}; choose two runs.")
    if view.known is not None:
        check_pattern(view.known)
    asked = Comparison(
        path=logdir.path.url if isinstance(logdir.path, RemoteLocation) else str(logdir.path),
        storage_options=logdir.storage_options,
        run_a=run_a,
        run_b=run_b,
        other_path=None if in_other is None else str(in_other.path),
        known=view.known,
        last_step=view.last_step,
        positions=(view.first, None if view.last is None else view.last + 1),
    )
    return _Start(replace(page, command=asked.command), asked, None if in_other is None else state_of(in_other.path))


def complete(answers: Answers, start: _Start, parameters: Parameters) -> DiffPage:
    """Adds the comparisons that are known. The layers are compared first, because this takes less time."""
    asked = start.asked
    if asked is None:
        return start.page
    prefix = ("diff", asked.run_a, asked.run_b, asked.other_path, start.other_state)
    keys = {"layers": (*prefix, "layers", asked.positions), "ops": (*prefix, "ops", asked.known, asked.last_step)}
    comparisons = {"layers": compare_layers, "ops": compare_ops}
    ready: ReadyAnswers[Any] = answers.ready(
        {keys[name]: functools.partial(_answer, asked, compare, answers) for name, compare in comparisons.items()},
        wait_s=WAIT_S,
    )
    layers: LayerDifferences | None = ready.answers.get(keys["layers"])
    ops: Compared | None = ready.answers.get(keys["ops"])
    op_diff = None if ops is None else ops.diff
    pending = tuple(name for name, key in keys.items() if key in ready.pending)
    if layers is not None and (layers.first_parting is not None or op_diff is None):
        headline = layers.sentence
    elif op_diff is not None:
        headline = outcome_text(op_diff)
    else:
        headline = "The runs are being compared." if pending else "The runs could not be compared."
    return replace(
        start.page,
        layers=layers,
        measure=None if layers is None else shown_measure(layers, _measure(parameters)),
        diff=op_diff,
        headline=headline,
        known_next=None if op_diff is None else _known_next(op_diff, asked.known),
        source_a=None if ops is None else ops.source_a,
        source_b=None if ops is None else ops.source_b,
        failures=tuple(dict.fromkeys(ready.failed[key] for key in keys.values() if key in ready.failed)),
        pending=pending,
    )


def _answer(asked: Comparison, compare: Callable[..., object], answers: Answers, _: Logdir) -> object:
    return answer_of(compare, asked, timeout_s=min(TIMEOUT_S, answers.left_s))


def _known_next(op_diff: Diff, known: str | None) -> str | None:
    if op_diff.divergence is None:
        return None
    op = op_diff.divergence.a.op_name or op_diff.divergence.a.op_type
    if op is None:
        return None
    return re.escape(op) if known is None else f"{known}|{re.escape(op)}"


def _measure(parameters: Parameters) -> str | None:
    return parameters.choice("measure", (measure.name for measure in (LARGEST_DIFFERENCE, *MEASURES)))


def diff_page(others: Sequence[OtherLogdir] = ()) -> PageKind:
    """Returns the comparison page.

    Args:
        others: Other logdirs whose runs can be compared with those of the logdir.
    """

    def read(logdir: Logdir, parameters: Parameters) -> _Start:
        _measure(parameters)  # checks the parameter before the comparison starts
        run_a = chosen_run(logdir, parameters)
        view = DiffView(
            run_a=None if run_a == ALL_RUNS else run_a,
            other=parameters.text("other"),
            known=parameters.text("known"),
            last_step=parameters.integer("last_step"),
            first=parameters.integer("first"),
            last=parameters.integer("last"),
        )
        return _start(logdir, others, view)

    return PageKind(
        name="diff",
        title="Comparison",
        key=None,
        read=read,
        complete=complete,
        assets=("diff.css", "chart.css", "colours.css", "chart.js", "pending.js"),
        version=lambda: tuple((other, state_of(other.path)) for other in others),
    )


PAGE = diff_page()
