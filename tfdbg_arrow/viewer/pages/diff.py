"""The comparison page: where two runs first diverge, with both tensors, and other differences of the runs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query import Diff, Logdir
from tfdbg_arrow.query.run_diff.answer import outcome_text
from tfdbg_arrow.viewer.comparison import compare, comparison_of
from tfdbg_arrow.viewer.page import NoSuchPageError, PageKind, Parameters, chosen_run
from tfdbg_arrow.viewer.source_text import Excerpt, read_excerpt

TIMEOUT_S = 18.0
"""A little less than the time limit of a page, so that the answer can name the command."""


@dataclass(frozen=True, kw_only=True)
class DiffPage:
    """The data of the comparison page.

    Attributes:
        run_ids: All runs to choose from, oldest first.
        run_a: Run A; None if none was chosen.
        run_b: Run B; None if none was chosen.
        known: Ops that are known to diverge: a regular expression that matches a whole name or type.
        last_step: The last training step that is compared; None means all.
        diff: The comparison; None unless both runs were chosen.
        headline: The answer in one sentence.
        known_next: The value of `known` that also searches past this divergence; None if the divergence has no op.
        source_a: The lines around the user's innermost frame, in A.
        source_b: The lines around the user's innermost frame, in B.
        command: The command that makes the same comparison; None unless both runs were chosen.
    """

    run_ids: tuple[str, ...]
    run_a: str | None
    run_b: str | None
    known: str | None
    last_step: int | None
    diff: Diff | None = None
    headline: str
    known_next: str | None = None
    source_a: Excerpt | None = None
    source_b: Excerpt | None = None
    command: str | None = None


def read_diff(
    logdir: Logdir,
    *,
    run_a: str | None = None,
    run_b: str | None = None,
    known: str | None = None,
    last_step: int | None = None,
    timeout_s: float = TIMEOUT_S,
) -> DiffPage:
    """Returns the comparison of two runs.

    Args:
        logdir: The logdir.
        run_a: Run A.
        run_b: Run B.
        known: Ops that are known to diverge, to search past them.
        last_step: The last training step to compare; None means all.
        timeout_s: Time limit for the comparison, in seconds.

    Raises:
        QueryError: Both are the same run, or nothing in them can be aligned.
        TookTooLongError: The comparison takes longer.
    """
    run_ids = tuple(run.run_id for run in logdir.runs())
    if run_a is None or run_b is None:
        text = "Choose two runs to compare." if len(run_ids) > 1 else "There are no two runs here to compare."
        return DiffPage(run_ids=run_ids, run_a=run_a, run_b=run_b, known=known, last_step=last_step, headline=text)
    if run_a == run_b:
        raise QueryError(f"run and other are both {run_a}; choose two runs.")
    asked = comparison_of(logdir, run_a=run_a, run_b=run_b, known=known, last_step=last_step)
    found = compare(asked, timeout_s=timeout_s)
    divergence = found.divergence
    return DiffPage(
        run_ids=run_ids,
        run_a=run_a,
        run_b=run_b,
        known=known,
        last_step=last_step,
        diff=found,
        headline=outcome_text(found),
        known_next=_known_next(found, known),
        source_a=None if divergence is None else read_excerpt(logdir, divergence.a.source, run_id=run_a),
        source_b=None if divergence is None else read_excerpt(logdir, divergence.b.source, run_id=run_b),
        command=asked.command,
    )


def _known_next(found: Diff, known: str | None) -> str | None:
    if found.divergence is None:
        return None
    op = found.divergence.a.op_name or found.divergence.a.op_type
    if op is None:
        return None
    return re.escape(op) if known is None else f"{known}|{re.escape(op)}"


def _read(logdir: Logdir, parameters: Parameters) -> DiffPage:
    other = parameters.text("other")
    if other is not None and other not in [run.run_id for run in logdir.runs()]:
        raise NoSuchPageError(f"run {other!r} is not in {logdir.path}.")
    return read_diff(
        logdir,
        run_a=chosen_run(logdir, parameters),
        run_b=other,
        known=parameters.text("known"),
        last_step=parameters.integer("last_step"),
    )


PAGE = PageKind(name="diff", title="Comparison", key=None, read=_read, assets=("diff.css",))
