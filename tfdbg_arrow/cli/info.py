"""`tfdbg-arrow info`: lists the runs and tables of a logdir."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tfdbg_arrow.cli.command import BAD_TEXTS, Command
from tfdbg_arrow.cli.output import Opening, print_result, progress, reading, reading_options
from tfdbg_arrow.errors import NoLogdirError
from tfdbg_arrow.query.present.blocks import Blocks, Line, Span, Table
from tfdbg_arrow.safe_text import number_of, time_text

if TYPE_CHECKING:
    from tfdbg_arrow.query.logdirs import LogdirSummary
    from tfdbg_arrow.storage.search import LogdirsBelow


@click.command("info", cls=Command)
@click.argument("logdir", help="The directory or URL that a recording wrote.")
@reading_options
def info(logdir: str, opening: Opening, json: bool) -> None:
    """Lists the runs and tables of a logdir, with rows and bytes, and the number of bad tensors.

    If LOGDIR is another directory, it lists the logdirs below it.
    """
    try:
        with reading(logdir, opening) as opened:
            answer = opened.info()
    except NoLogdirError as error:
        if not error.below.logdirs:
            raise
        _tell_below(error.below, json=json)
    else:
        print_result(answer, answer, json=json)


def _tell_below(below: LogdirsBelow, *, json: bool) -> None:
    from tfdbg_arrow.query.logdirs import read_summaries

    with progress("Reading …"):
        summaries = read_summaries(below)
    facts = {"path": str(below.path), "logdirs": summaries, "is_cut": below.is_cut}
    print_result(facts, _below(below, summaries), json=json)


def _below(below: LogdirsBelow, summaries: Sequence[LogdirSummary]) -> Blocks:
    from tfdbg_arrow.storage.search import cut_text

    number = number_of(len(summaries), "logdir is", "logdirs are")
    yield Line((str(below.path), "bold"), f" is not a logdir; {number} below it:")
    rows: list[tuple[Span, ...]] = [
        (
            summary.path,
            time_text(summary.wall_time_ns),
            (BAD_TEXTS[summary.is_bad], "bad" if summary.is_bad else ""),
            "?" if summary.num_runs is None else f"{summary.num_runs:,}",
        )
        for summary in summaries
    ]
    yield Table(("logdir", "changed (UTC)", "bad", "runs"), rows, num_numbers=1)
    if below.is_cut:
        yield Line(f"There may be more: {cut_text(below)}.")
