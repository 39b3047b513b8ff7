"""`tfdbg-arrow export`: a logdir in the formats of other tools."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tfdbg_arrow.cli.output import JsonOption, console, print_json, printable, styled
from tfdbg_arrow.errors import SettingError

if TYPE_CHECKING:
    from tfdbg_arrow.writer.debugger_v2.export import ExportedRun


def export(
    logdir: Annotated[str, typer.Argument(metavar="LOGDIR", help="The directory that a recording or an import wrote.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Where to write; a directory for a dump.")],
    debugger_v2: Annotated[
        bool,
        typer.Option("--debugger-v2", help="Write a dump that TensorFlow's Debugger V2 and TensorBoard read."),
    ] = False,
    run_id: Annotated[
        str | None,
        typer.Option(
            "--run-id", metavar="ID", help="The run to export; without it all, each of several into TARGET/<run id>."
        ),
    ] = None,
    tensor_debug_mode: Annotated[
        str | None,
        typer.Option(
            "--tensor-debug-mode",
            metavar="MODE",
            help="What a dump holds of each tensor, as far as the recording has it; without it, the recording's mode.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Writes a logdir in the format of another tool: give the option that names it.

    Exit codes: 0, 2 an error.
    """
    if not debugger_v2:
        raise SettingError("no format was asked for; give --debugger-v2.")
    from tfdbg_arrow.writer.debugger_v2.export import export_logdir

    with _progress_bar("Exporting") as progress:
        runs = export_logdir(
            Path(logdir), Path(target), run_id=run_id, tensor_debug_mode=tensor_debug_mode, progress=progress
        )
    if json:
        print_json({"format": "debugger_v2", "runs": runs})
    else:
        for run in runs:
            _print_run(run)


@contextlib.contextmanager
def _progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yields what is told how much is done, and of how much; shown on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True, markup=False, emoji=False), transient=True) as bar:
        task = bar.add_task(printable(what), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print_run(run: ExportedRun) -> None:
    out = console()
    source = "given back as it was imported" if run.is_imported else run.tensor_debug_mode or ""
    out.print(styled(("run ", "dim"), (run.run_id, "bold"), f", {source}"))
    out.print(styled(f"  {run.dump}: {run.size_bytes:,} bytes"))
    counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in run.num_records.items())
    out.print(styled(f"  records: {counts}"))
    for note in run.notes:
        out.print(styled(f"  {note}"))
    for item in run.left_out:
        out.print(styled(f"  left out: {item.num_rows:,} rows of {item.table}. {item.reason}"))
