"""The command-line app: loads the module of the subcommand that is run."""

from __future__ import annotations

import importlib
import io
import sys

import click
from click.exceptions import NoSuchCommand

from tfdbg_arrow._version import __version__

GROUPS = {
    "Record": {"run": "run.run"},
    "Find": {
        "first-nonfinite": "first_nonfinite.first_nonfinite",
        "why": "why.why",
        "zoom": "zoom.zoom",
        "repro": "repro.repro",
        "diff": "diff.diff",
        "alerts": "alerts.alerts",
        "check": "alerts.check",
        "coverage": "coverage.coverage",
    },
    "Look": {
        "view": "view.view",
        "watch": "watch.watch",
        "report": "view.report",
        "show": "show.show",
        "info": "info.info",
        "sql": "sql.sql",
        "schema": "schema.schema",
    },
    "Keep": {
        "export": "export.export",
        "import": "import_dump.import_dump",
        "upload": "upload.upload",
        "verify": "verify.verify",
        "doctor": "doctor.doctor",
        "recover": "recover.recover",
    },
}
"""The commands by purpose, in the order of the help. Each entry has the module and the name of the command."""
_PLACES = {name: place for commands in GROUPS.values() for name, place in commands.items()}


class _Commands(click.Group):
    """The commands. The help lists them by group, each with the first sentence of its own help.

    The group imports only the module of the command that runs. Importing all modules would make each command slower.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of the commands."""
        return list(_PLACES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns a command; None if there is none of this name."""
        return _load(_PLACES[cmd_name]) if cmd_name in _PLACES else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Returns the command that the first word names, and the words after it."""
        if args[0] not in _PLACES and not args[0].startswith("-"):
            raise NoSuchCommand(args[0], possibilities=list(_PLACES), ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands."""
        width = max(map(len, _PLACES))
        for group, commands in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl(
                    [(name.ljust(width), _first_sentence(_load(place).help or "")) for name, place in commands.items()]
                )


def _load(place: str) -> click.Command:
    module, _, name = place.partition(".")
    command: click.Command = getattr(importlib.import_module(f"tfdbg_arrow.cli.{module}"), name)
    return command


def _first_sentence(text: str) -> str:
    sentence, stop, _ = " ".join(text.partition("\n\n")[0].split()).partition(". ")
    return sentence if stop else sentence.removesuffix(".")


@click.group(
    "tfdbg-arrow",
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(__version__, message="tfdbg-arrow %(version)s", help="Print the version and exit.")
@click.option("--debug", is_flag=True, help="If tfdbg-arrow has a bug, print the traceback, for a report.")
def app(debug: bool) -> None:
    """Records the tensor values of TensorFlow programs, and finds the op that created the first NaN or infinity.

    Exit codes: 0 clean, 1 something was found, 2 an error, 3 a bug of tfdbg-arrow.
    """


def main() -> None:
    """Runs the command line and exits: 0 clean, 1 something was found, 2 an error, 3 a bug of tfdbg-arrow."""
    if sys.argv[1:2] != ["run"]:  # `run` leaves the streams as they are: the recorded program prints
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
    app(prog_name="tfdbg-arrow")
