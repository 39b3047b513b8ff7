"""Command: a subcommand that turns the package's errors into messages and exit code 2, and bugs into exit code 3."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Abort, ClickException, Exit, UsageError

from tfdbg_arrow.cli.output import print_json
from tfdbg_arrow.errors import NoLogdirError, QueryError, TfdbgArrowError
from tfdbg_arrow.safe_text import number_of, printable, printable_lines, time_text

if TYPE_CHECKING:
    from tfdbg_arrow.query.logdirs import LogdirSummary

EXIT_ERROR = 2
"""Exit code if a command could not do its work, as for a wrong option in Click. 1 means that something was found."""
EXIT_BUG = 3
"""Exit code after a bug of this package, so that scripts can distinguish it from the errors of users."""
_MAX_NAMED = 10
"""Maximum number of logdirs that the error lists, so that it fits on a screen. Its last line counts the others."""
_MAX_READ_S = 1.0
"""Seconds after which no more logdirs are opened for the error, so that it appears soon."""
NO_BUGS = (ClickException, Exit, Abort, BrokenPipeError)
"""The exceptions that Click handles. The last of them means that nobody reads stdout."""


class Command(click.Command):
    """A command that prints the package's own errors on stderr and exits with code 2.

    Any other error is a bug of this package: the command says so in one sentence, and exits with code 3. With --debug,
    the traceback precedes this sentence. With --json, the command also prints the error as a JSON object on stdout, so
    that stdout is JSON in any case.
    """

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parses the words of the command."""
        is_json = "--json" in args
        try:
            return super().make_context(info_name, args, parent, **extra)
        except UsageError as error:
            if is_json:
                self.print_error_json("UsageError", error.format_message())
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except TfdbgArrowError as error:
            summaries = _summaries(error)
            click.echo(f"tfdbg-arrow: {_message(error, summaries)}", err=True)
            if _is_json(ctx):
                details = {"logdirs": summaries} if summaries else {}
                self.print_error_json(type(error).__name__, str(error), **details)
            raise Exit(EXIT_ERROR) from None
        except NO_BUGS:
            raise
        except Exception as error:
            text = tell_bug(ctx, error)
            if _is_json(ctx):
                self.print_error_json(type(error).__name__, text)
            raise Exit(EXIT_BUG) from None

    def print_error_json(self, type_: str, message: str, **details: object) -> None:
        """Prints an error as a JSON object."""
        print_json(error_object(type_, message, **details))


def tell_bug(ctx: click.Context, error: Exception) -> str:
    """Prints the sentence about a bug of this package, and returns it. With --debug, the traceback comes first."""
    from tfdbg_arrow.query.integrity.damage import bug_text

    if ctx.find_root().params.get("debug"):
        lines = "".join(traceback.format_exception(error)).splitlines()
        click.echo("\n".join(map(printable, lines)), err=True)
    text = printable(bug_text(error, evidence="the output of --debug"))
    click.echo(text, err=True)
    return text


def _is_json(ctx: click.Context) -> bool:
    return bool(ctx.params.get("json")) or ctx.params.get("format_") == "json"


def error_object(type_: str, message: str, **details: object) -> dict[str, object]:
    """Returns the JSON object of an error."""
    return {"error": {"type": type_, "message": message, **details}}


def _summaries(error: TfdbgArrowError) -> tuple[LogdirSummary, ...]:
    if not isinstance(error, NoLogdirError) or not error.below.logdirs:
        return ()
    from tfdbg_arrow.query.logdirs import read_summaries

    return read_summaries(error.below, max_read=_MAX_NAMED, max_seconds=_MAX_READ_S)


def _message(error: TfdbgArrowError, summaries: tuple[LogdirSummary, ...]) -> str:
    if isinstance(error, NoLogdirError) and summaries:
        from tfdbg_arrow.storage.search import cut_text

        number = number_of(len(summaries), "logdir is", "logdirs are")
        lines = [f"{error.reason}; {number} below it, newest first:"]
        lines += [f"{summary.path}  {', '.join(summary_facts(summary))}" for summary in summaries[:_MAX_NAMED]]
        if len(summaries) > _MAX_NAMED:
            lines.append(f"… and {len(summaries) - _MAX_NAMED:,} more; see: tfdbg-arrow info {error.below.path}")
        if error.below.is_cut:
            lines.append(f"There may be more: {cut_text(error.below)}.")
        return "\n    ".join(map(printable, lines))
    # The message about an SQL statement has a line with the statement, and below it a line with a mark.
    return printable_lines(str(error), indent=4) if isinstance(error, QueryError) else printable(str(error))


def summary_facts(summary: LogdirSummary) -> list[str]:
    """Returns the number of runs of a logdir, the time of its last change, and whether it is bad, as texts."""
    return [
        "runs cannot be listed" if summary.num_runs is None else number_of(summary.num_runs, "run"),
        f"changed {time_text(summary.wall_time_ns)} UTC",
        BAD_TEXTS[summary.is_bad],
    ]


BAD_TEXTS = {True: "has bad tensors", False: "nothing is bad", None: "not read"}
