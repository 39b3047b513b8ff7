"""The command-line app: registers the subcommands."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
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

GROUPS: dict[str, dict[str, Callable[..., None]]] = {
    "Record": {"run": run.run},
    "Find": {
        "first-nonfinite": first_nonfinite.first_nonfinite,
        "why": why.why,
        "zoom": zoom.zoom,
        "repro": repro.repro,
        "diff": diff.diff,
        "alerts": alerts.alerts,
        "check": alerts.check,
        "coverage": coverage.coverage,
    },
    "Look": {
        "view": view.view,
        "watch": watch.watch,
        "report": view.report,
        "show": show.show,
        "info": info.info,
        "sql": sql.sql,
        "schema": schema.schema,
    },
    "Keep": {
        "export": export.export,
        "import": import_dump.import_dump,
        "upload": upload.upload,
        "verify": verify.verify,
        "doctor": doctor.doctor,
        "recover": recover.recover,
    },
}
"""The commands by what they are for, in the order of the help."""


class _Commands(TyperGroup):
    """The commands, which the help lists by group, each with its whole first sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the commands."""
        width = max(map(len, self.commands))
        for group, names in GROUPS.items():
            rows = [(name.ljust(width), _first_sentence(self.commands[name].help or "")) for name in names]
            with formatter.section(group):
                formatter.write_dl(rows)


def _first_sentence(text: str) -> str:
    sentence, stop, _ = " ".join(text.partition("\n\n")[0].split()).partition(". ")
    return sentence if stop else sentence.removesuffix(".")


app = typer.Typer(
    name="tfdbg-arrow",
    cls=_Commands,
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
    debug: Annotated[
        bool, typer.Option("--debug", help="If tfdbg-arrow has a bug, print the traceback, for a report.")
    ] = False,
) -> None:
    """Records the tensor values of TensorFlow programs, and finds the op that created the first NaN or infinity.

    Exit codes: 0 clean, 1 something was found, 2 an error, 3 a bug of tfdbg-arrow.
    """


for _commands in GROUPS.values():
    for _name, _function in _commands.items():
        # The script's name and everything after it belong to the script.
        if _name == "run":
            app.command(_name, cls=run.RunCommand, context_settings={"allow_interspersed_args": False})(_function)
        else:
            app.command(_name, cls=Command)(_function)


def main() -> None:
    """Runs the command line and exits: 0 clean, 1 something was found, 2 an error, 3 a bug of tfdbg-arrow."""
    # `run` leaves the streams alone: the recorded program prints to them.
    for stream in (sys.stdout, sys.stderr) if sys.argv[1:2] != ["run"] else ():
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="tfdbg-arrow")
