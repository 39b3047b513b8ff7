"""The command-line app: registers the subcommands and turns errors into exit codes."""

from __future__ import annotations

import io
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

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
    run,
    schema,
    show,
    sql,
    upgrade,
    upload,
    verify,
    view,
    why,
)
from tfdbg_arrow.errors import TfdbgArrowError
from tfdbg_arrow.safe_text import printable

EXIT_ERROR = 2


class _Group(TyperGroup):
    """A command group that prints the package's own errors on stderr and exits with code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TfdbgArrowError as error:
            typer.echo(f"tfdbg-arrow: {printable(str(error))}", err=True)
            raise typer.Exit(EXIT_ERROR) from None


app = typer.Typer(
    name="tfdbg-arrow",
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
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


app.command("first-nonfinite")(first_nonfinite.first_nonfinite)
app.command("why")(why.why)
app.command("show")(show.show)
app.command("diff")(diff.diff)
app.command("alerts")(alerts.alerts)
app.command("check")(alerts.check)
app.command("sql")(sql.sql)
app.command("schema")(schema.schema)
app.command("coverage")(coverage.coverage)
app.command("doctor")(doctor.doctor)
app.command("info")(info.info)
app.command("view")(view.view)
app.command("report")(view.report)
app.command("recover")(recover.recover)
app.command("verify")(verify.verify)
app.command("upgrade")(upgrade.upgrade)
app.command("upload")(upload.upload)
app.command("export")(export.export)
app.command("import")(import_dump.import_dump)
# The script's name and everything after it belong to the script.
app.command("run", cls=run.RunCommand, context_settings={"allow_interspersed_args": False})(run.run)


def main() -> None:
    """Runs the command line and exits: 0 clean, 1 something was found, 2 an error."""
    # `run` leaves the streams alone: the recorded program prints to them.
    for stream in (sys.stdout, sys.stderr) if sys.argv[1:2] != ["run"] else ():
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="tfdbg-arrow")
