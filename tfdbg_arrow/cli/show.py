"""`tfdbg-arrow show`: prints the history of selected tensors."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from tfdbg_arrow.cli.command import Command
from tfdbg_arrow.cli.output import (
    Opening,
    print_about,
    print_blocks,
    print_json,
    progress,
    reading,
    reading_options,
    run_option,
)
from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.safe_text import printable

if TYPE_CHECKING:
    from tfdbg_arrow.query import Logdir

_POLL_S = 0.5
"""Seconds between two readings with --follow. A recording to a disk writes healthy tensors about once a second."""


@click.command("show", cls=Command)
@click.argument("logdir", help="The directory that a recording wrote.")
@click.argument(
    "pattern",
    help="A regular expression that matches an op's whole name, `name:slot` or type, e.g. 'Relu.*'.",
)
@click.option("--step", metavar="A:B", help="Training steps from A up to but excluding B; or one step.")
@click.option(
    "--values",
    metavar="N",
    type=int,
    default=0,
    help="Print the first N elements of tensors whose values were recorded.",
)
@run_option
@click.option("--limit", metavar="N", type=int, default=1000, help="Show at most N tensors.")
@click.option(
    "--follow", "-f", is_flag=True, help="Keep printing new tensors until the recording ends or you press Ctrl-C."
)
@reading_options
def show(
    logdir: str,
    pattern: str,
    step: str | None,
    values: int,
    run_id: str | None,
    limit: int,
    follow: bool,
    opening: Opening,
    json: bool,
) -> None:
    """Shows the history of selected tensors, one line for each time that they were computed.

    Exit codes: 0 success, 2 an error.
    """
    from tfdbg_arrow.query.present.tensors import history_row
    from tfdbg_arrow.query.tensor_history import recorded_ops
    from tfdbg_arrow.query.wording import similar_text

    steps = _parse_steps(step)
    with reading(logdir, opening, what=None) as opened:
        if follow:
            if json:
                raise QueryError("--follow prints endless lines and --json one object; give only one of them.")
            _follow(opened, pattern, steps=steps, run_id=run_id, num_values=values)
            return
        with progress("Reading …"):
            rows = opened.history(pattern, steps=steps, run_id=run_id, limit=limit, num_values=values)
            ops = () if rows else recorded_ops(opened, run_id=run_id)
            about = opened.about_runs(run_id=run_id)
    if json:
        print_json({"logdir": logdir, "pattern": pattern, "tensors": rows, "is_cut": rows.is_cut, "about": about})
        return
    print_about(about)
    for row in rows:
        print_blocks(history_row(row))
    if not rows:
        click.echo(printable(f"No recorded tensor matches {pattern}.{similar_text(pattern, ops)}"))
    if rows.is_cut:
        click.echo(f"There are more than {limit:,}; --limit raises the limit.")


def _follow(
    logdir: Logdir, pattern: str, *, steps: tuple[int | None, int | None], run_id: str | None, num_values: int
) -> None:
    """Prints new tensors until none of the runs is being recorded any more."""
    from tfdbg_arrow.query.asked_runs import asked_runs
    from tfdbg_arrow.query.present.tensors import history_row

    print_about(logdir.about_runs(run_id=run_id))
    after: dict[str, int] = {}
    while True:
        run_ids = asked_runs(logdir, run_id).run_ids
        runs = [run for run in logdir.runs() if run.run_id in run_ids]
        is_over = all(run.is_clean_end for run in runs)
        for run in runs:
            while rows := logdir.history(
                pattern, steps=steps, run_id=run.run_id, after=after.get(run.run_id, -1), num_values=num_values
            ):
                for row in rows:
                    print_blocks(history_row(row))
                after[run.run_id] = rows[-1].event_index
        if is_over:
            return
        try:
            time.sleep(_POLL_S)
        except KeyboardInterrupt:
            return
        logdir.refresh()


def _parse_steps(text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    first, colon, end = text.partition(":")
    try:
        if not colon:
            return int(first), int(first) + 1
        return (int(first) if first else None), (int(end) if end else None)
    except ValueError:
        raise QueryError(
            f"--step is {text!r}; expected a step, or A:B with numbers, either of which can be omitted."
        ) from None
