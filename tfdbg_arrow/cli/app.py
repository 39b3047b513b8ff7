"""The command-line app: registers the subcommands."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from tfdbg_arrow._version import __version__
from tfdbg_arrow.cli import (
    alerts,
    coverage,
    diff,
    doctor,
    export,
    first_nonfinite,
    import_dump,
    info,
    recover,
    repro,
    run,
    schema,
    show,
    sql,
    upload,
    verify,
    view,
    watch,
    why,
    zoom,
)
from tfdbg_arrow.cli.command import Command

app = typer.Typer(
    name="tfdbg-arrow",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"tfdbg-arrow {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Records the tensor values of TensorFlow programs, and finds the op that created the first NaN or infinity.

    Exit codes: 0 clean, 1 something was found, 2 an error.
    """


app.command("first-nonfinite", cls=Command)(first_nonfinite.first_nonfinite)
app.command("why", cls=Command)(why.why)
app.command("zoom", cls=Command)(zoom.zoom)
app.command("repro", cls=Command)(repro.repro)
app.command("show", cls=Command)(show.show)
app.command("diff", cls=Command)(diff.diff)
app.command("alerts", cls=Command)(alerts.alerts)
app.command("check", cls=Command)(alerts.check)
app.command("sql", cls=Command)(sql.sql)
app.command("schema", cls=Command)(schema.schema)
app.command("coverage", cls=Command)(coverage.coverage)
app.command("doctor", cls=Command)(doctor.doctor)
app.command("info", cls=Command)(info.info)
app.command("view", cls=Command)(view.view)
app.command("report", cls=Command)(view.report)
app.command("watch", cls=Command)(watch.watch)
app.command("recover", cls=Command)(recover.recover)
app.command("verify", cls=Command)(verify.verify)
app.command("upload", cls=Command)(upload.upload)
app.command("export", cls=Command)(export.export)
app.command("import", cls=Command)(import_dump.import_dump)
# The script's name and everything after it belong to the script.
app.command("run", cls=run.RunCommand, context_settings={"allow_interspersed_args": False})(run.run)


def main() -> None:
    """Runs the command line and exits: 0 clean, 1 something was found, 2 an error."""
    # `run` leaves the streams alone: the recorded program prints to them.
    for stream in (sys.stdout, sys.stderr) if sys.argv[1:2] != ["run"] else ():
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="tfdbg-arrow")
