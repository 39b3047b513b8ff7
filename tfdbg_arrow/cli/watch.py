"""`tfdbg-arrow watch`: follows a recording in the terminal until it ends."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from tfdbg_arrow.cli.command import Command
from tfdbg_arrow.cli.output import console, memory_limit_option, print_json, renderables, run_option
from tfdbg_arrow.query.present.blocks import Blocks, Line, Span, Table
from tfdbg_arrow.safe_text import number_of, printable
from tfdbg_arrow.storage.layout import MARKER_NAME
from tfdbg_arrow.storage.location import parse_location

if TYPE_CHECKING:
    from tfdbg_arrow.query import Logdir, NonFinite
    from tfdbg_arrow.query.following import Figure, TrainingProgress

_MAX_QUERY_S = 5.0
"""Time limit of each query of a round. If a query takes longer, its earlier answer is shown."""
_POLL_S = 0.5
"""How long to wait before looking again for a logdir that does not exist yet."""


@click.command("watch", cls=Command)
@click.argument("logdir", help="The directory or URL that a recording writes.")
@run_option
@click.option(
    "--interval",
    metavar="SECONDS",
    type=click.FloatRange(min=0.1),
    default=2.0,
    help="Wait at least this long between two looks.",
)
@click.option(
    "--exec",
    "command",
    metavar="COMMAND",
    help="Run this shell command once, when a bad value did harm. Its standard input is the answer of "
    "`first-nonfinite --json`.",
)
@memory_limit_option
@click.option("--json", is_flag=True, help="Print one JSON object, in one line, for each look.")
def watch(
    logdir: str, run_id: str | None, interval: float, command: str | None, memory_limit: str | None, json: bool
) -> None:
    """Follows a recording: the step, the loss and other figures, and what was found, until the recording ends.

    It waits for LOGDIR if it does not exist yet. On a terminal, the figures are renewed in place. Elsewhere, each
    change is a line. With --exec, a bad value can send a message or stop a job. Press Ctrl-C to stop watching; the
    program goes on.

    Exit codes: 0 no bad values, or only values that did no harm, 1 a bad value was found, 2 an error.
    """
    from tfdbg_arrow.query import open_logdir

    has_harm = False
    try:
        wait_for(logdir)
        with (
            open_logdir(logdir, memory_limit=memory_limit) as opened,
            _json_lines() if json else _live(logdir) if sys.stdout.isatty() else _lines() as show,
        ):
            for progress in _rounds(opened, run_id, interval=interval):
                show(progress)
                if progress.nonfinite is not None and progress.has_harm and not has_harm:
                    has_harm = True
                    if command is not None:
                        _execute(command, logdir, progress.nonfinite)
    except KeyboardInterrupt:
        click.echo("", err=True)
    raise Exit(1 if has_harm else 0)


def wait_for(logdir: str) -> None:
    """Waits until a path that does not exist yet holds a logdir. A URL must exist already."""
    path = parse_location(logdir)
    if not isinstance(path, Path) or path.is_file() or (path.is_dir() and any(path.iterdir())):
        return
    click.echo(f"Waiting for a recording in {printable(logdir)} …", err=True)
    while not (path / MARKER_NAME).exists():
        time.sleep(_POLL_S)


def _rounds(opened: Logdir, run_id: str | None, *, interval: float) -> Iterator[TrainingProgress]:
    """Yields the progress repeatedly until the recording has ended."""
    from tfdbg_arrow.query.following import read_progress, wait_after_look

    before: TrainingProgress | None = None
    while True:
        started = time.monotonic()
        opened.refresh()
        progress = read_progress(opened, run_id=run_id, seconds=_MAX_QUERY_S, before=before)
        if progress is not None:
            yield progress
            if progress.is_ended:
                return
            before = progress
        wait_after_look(started, interval_s=interval)


def _execute(command: str, logdir: str, tensor: NonFinite) -> None:
    """Runs a shell command with the answer of `first-nonfinite --json` on its standard input."""
    asked = [sys.executable, "-m", "tfdbg_arrow", "first-nonfinite", "--json", "--run", tensor.run_id, "--", logdir]
    answer = subprocess.run(asked, stdout=subprocess.PIPE, check=False).stdout
    ended = subprocess.run(command, shell=True, input=answer, check=False)
    if ended.returncode:
        click.echo(f"tfdbg-arrow: the command of --exec ended with exit code {ended.returncode}", err=True)


@contextlib.contextmanager
def _lines() -> Iterator[Callable[[TrainingProgress], None]]:
    """Yields a function that prints the progress in one line, if it changed."""
    from tfdbg_arrow.query.present.text import line_text

    told: set[str] = set()

    def show(progress: TrainingProgress) -> None:
        step = "" if progress.step is None else f"step {progress.step}: "
        figures = "".join(f"{_uncapitalized(figure.title)} {_number(figure)}, " for figure in progress.figures)
        texts = [step + figures + _counts(progress), *map(line_text, _findings(progress))]
        texts += [_ending(progress)] if progress.is_ended else []
        for text in texts:
            if text not in told:
                click.echo(printable(text))
        told.clear()
        told.update(texts)

    yield show


@contextlib.contextmanager
def _json_lines() -> Iterator[Callable[[TrainingProgress], None]]:
    """Yields a function that prints the progress as a JSON object."""
    yield lambda progress: print_json(progress, indent=None)


@contextlib.contextmanager
def _live(logdir: str) -> Iterator[Callable[[TrainingProgress], None]]:
    """Yields a function that shows the progress in place of the previous progress."""
    from rich.console import Group
    from rich.live import Live

    with Live(console=console(), auto_refresh=False, vertical_overflow="crop") as live:
        yield lambda progress: live.update(Group(*renderables(_picture(logdir, progress))), refresh=True)


def _picture(logdir: str, progress: TrainingProgress) -> Blocks:
    """Yields what a terminal shows."""
    yield Line((logdir, "bold"), f", run {progress.run.run_id}, {_ending(progress)}")
    yield Line(_counts(progress))
    rows: list[tuple[Span, ...]] = [] if progress.step is None else [("Step", f"{progress.step:,}")]
    rows += [(figure.title, (_number(figure), "bad" if figure.is_bad else "")) for figure in progress.figures]
    yield Table((), rows, num_numbers=1)
    if progress.has_harm or progress.rules:
        yield Line(("Found", "bold"))
    yield from _findings(progress)
    if progress.is_cut:
        yield Line(("Not everything could be read in time; some of this may be of an earlier step.", "quiet"))


def _uncapitalized(title: str) -> str:
    return title[:1].lower() + title[1:]


def _counts(progress: TrainingProgress) -> str:
    return f"{number_of(progress.num_tensors, 'tensor')}, {progress.num_nonfinite:,} of them bad"


def _number(figure: Figure) -> str:
    return f"{figure.value:.1%}" if figure.is_share and not figure.is_bad else f"{figure.value:.4g}"


def _ending(progress: TrainingProgress) -> str:
    """Returns whether the recording goes on, such as `recording, last event 2 s ago`."""
    if progress.is_ended:
        return "the recording has ended" if progress.run.is_clean_end else "the recording has ended without closing"
    if progress.last_event_ns is None:
        return "recording, no event yet"
    ago_s = max(time.time_ns() - progress.last_event_ns, 0) // 10**9
    return f"recording, last event {ago_s:,} s ago"


def _findings(progress: TrainingProgress) -> list[Line]:
    """Returns the first bad value and what alert rules found."""
    from tfdbg_arrow.query.present.findings import rule_line

    has_harm = progress.nonfinite is not None and progress.has_harm
    return [
        *([Line((progress.nonfinite.headline, "bad"))] if progress.nonfinite is not None and has_harm else []),
        *(
            rule_line(rule)
            for rule in progress.rules
            if rule.kind != "nonfinite_origin" and not (rule.kind == "nonfinite" and has_harm)
        ),
    ]
