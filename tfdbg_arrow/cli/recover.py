"""`tfdbg-arrow recover`: makes parts of what processes that died left."""

from __future__ import annotations

from typing import Annotated

import typer

from tfdbg_arrow.cli.output import JsonOption, print_json, printable, progress


def recover(
    logdir: Annotated[str, typer.Argument(metavar="LOGDIR", help="The directory that a recording wrote.")],
    other_machines: Annotated[
        bool,
        typer.Option(
            "--other-machines",
            help="Take processes of other machines for dead that were heard of in the last ten minutes.",
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Writes what killed programs had recorded and not yet written to a logdir.

    Reading a logdir shows it anyway, without changing the logdir; other tools see it once it is recovered. What still
    records is left alone.
    """
    from tfdbg_arrow.writer.recover import recover as recover_logdir

    with progress(f"Recovering {logdir} …"):
        runs = recover_logdir(logdir, other_machines=other_machines)
    if json:
        print_json({"logdir": logdir, "runs": runs})
    elif not runs:
        typer.echo("Nothing is left to recover.")
    else:
        for run in runs:
            what = {
                "recovered": f"recovered {run.num_events:,} events",
                "recording": "may be recording still, and was left alone",
                "failed": f"could not be recovered: {run.reason}",
            }[run.state]
            typer.echo(printable(f"{run.run_id}: {what}"), err=run.state == "failed")
    if any(run.state == "failed" for run in runs):
        raise typer.Exit(2)
