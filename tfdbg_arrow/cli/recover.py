"""`tfdbg-arrow recover`: turns the spools of dead processes into parts."""

from __future__ import annotations

import click
from click.exceptions import Exit

from tfdbg_arrow.cli.command import Command
from tfdbg_arrow.cli.output import json_option, print_json, progress
from tfdbg_arrow.safe_text import number_of, printable


@click.command("recover", cls=Command)
@click.argument("logdir", help="The directory that a recording wrote.")
@click.option(
    "--other-machines",
    is_flag=True,
    help="Also recover runs of other machines that were active in the last ten minutes: treat their processes as dead.",
)
@json_option
def recover(logdir: str, other_machines: bool, json: bool) -> None:
    """Writes the data that killed programs had recorded but not yet written to the logdir.

    The commands that read a logdir show this data anyway, without changing the logdir. Other tools see it only after
    recovery. Runs that are still being recorded are left alone.
    """
    from tfdbg_arrow.writer.recover import recover as recover_logdir

    with progress(f"Recovering {logdir} …"):
        runs = recover_logdir(logdir, other_machines=other_machines)
    if json:
        print_json({"logdir": logdir, "runs": runs})
    elif not runs:
        click.echo("There is nothing to recover.")
    else:
        for run in runs:
            what = {
                "recovered": f"recovered {number_of(run.num_events, 'event')}",
                "recording": "may still be recording; left alone",
                "failed": f"could not be recovered: {run.reason}",
            }[run.state]
            click.echo(printable(f"{run.run_id}: {what}"), err=run.state == "failed")
    if any(run.state == "failed" for run in runs):
        raise Exit(2)
