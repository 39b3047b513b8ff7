"""`tfdbg-arrow verify`: checks that a logdir is as it was written."""

from __future__ import annotations

import click
from click.exceptions import Exit

from tfdbg_arrow.cli.command import Command
from tfdbg_arrow.cli.output import byte_progress, json_option, print_result


@click.command("verify", cls=Command)
@click.argument("logdir", help="The directory that a recording wrote.")
@json_option
def verify(logdir: str, json: bool) -> None:
    """Finds every changed, missing and extra byte of data in a local logdir, without changing it.

    Files that a killed process left are listed as `leftover` and are not damage. Data of its spool that has no
    checksum is listed as `unchecked`.

    Exit codes: 0 nothing is damaged, 1 something is damaged, 2 the logdir cannot be read.
    """
    from tfdbg_arrow.query import verify as examine

    with byte_progress("Verifying") as progress:
        answer = examine(logdir, progress=progress)
    print_result({"logdir": logdir, "is_intact": answer.is_intact, "verification": answer}, answer, json=json)
    raise Exit(0 if answer.is_intact else 1)
