"""`tfdbg-arrow doctor`: finds problems of a logdir and advises what to do."""

from __future__ import annotations

import click
from click.exceptions import Exit

from tfdbg_arrow.cli.command import Command
from tfdbg_arrow.cli.output import byte_progress, json_option, print_result


@click.command("doctor", cls=Command)
@click.argument("logdir", help="The directory or URL to examine; need not be a logdir.")
@json_option
def doctor(logdir: str, json: bool) -> None:
    """Reports what is wrong with a logdir, the evidence, and what to do. Also explains an empty or partial logdir.

    Exit codes: 0 nothing is wrong (there may be findings of severity `info`), 1 something is wrong, 2 the logdir
    cannot be examined.
    """
    from tfdbg_arrow.query import doctor as examine

    with byte_progress("Examining") as progress:
        answer = examine(logdir, progress=progress)
    print_result({"logdir": logdir, "is_healthy": answer.is_healthy, "findings": answer.findings}, answer, json=json)
    raise Exit(0 if answer.is_healthy else 1)
