"""`tfdbg-arrow upgrade`: rewrites a logdir of an older format."""

from __future__ import annotations

from typing import Annotated

import typer

from tfdbg_arrow.cli.output import JsonOption, print_json, progress
from tfdbg_arrow.safe_text import number_of, printable


def upgrade(
    logdir: Annotated[str, typer.Argument(metavar="LOGDIR", help="The directory that a recording wrote.")],
    json: JsonOption = False,
) -> None:
    """Rewrites a logdir of format 1 in the present format, in which other tools read tables by their path alone.

    All commands also read logdirs of format 1. Rows keep their values. The logdir stays readable meanwhile, and if you
    interrupt the command, you can repeat it.
    """
    from tfdbg_arrow.writer.upgrade import upgrade as upgrade_logdir

    with progress(f"Upgrading {logdir} …"):
        runs = upgrade_logdir(logdir)
    if json:
        print_json({"logdir": logdir, "runs": runs})
    elif not runs:
        typer.echo("The logdir already has the present format.")
    for run in () if json else runs:
        typer.echo(printable(f"{run.run_id}: rewrote {number_of(run.num_rows, 'row')}"))
