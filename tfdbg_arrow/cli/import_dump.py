"""`tfdbg-arrow import`: imports a dump of TensorFlow's Debugger V2 into a logdir."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from tfdbg_arrow.cli.command import Command
from tfdbg_arrow.cli.output import byte_progress, json_option, print_result
from tfdbg_arrow.query.present.blocks import Line
from tfdbg_arrow.safe_text import number_of

if TYPE_CHECKING:
    from tfdbg_arrow.debugger_v2.importer import Imported, ImportedRun


@click.command("import", cls=Command)
@click.argument("dump", help="The dump_root that Debugger V2 wrote to.")
@click.argument("logdir", help="The logdir to write to; created if missing.")
@json_option
def import_dump(dump: str, logdir: str, json: bool) -> None:
    """Imports dumps of TensorFlow's Debugger V2, each file set as one run. TensorFlow is not needed.

    Runs that were imported before are skipped; an interrupted import starts over.
    """
    from tfdbg_arrow.debugger_v2.importer import import_dump as run_import

    with byte_progress("Importing") as progress:
        imported = run_import(dump, logdir, progress=progress)
    names = ("dump", "logdir", "seconds", "num_events", "runs")
    print_result({name: getattr(imported, name) for name in names}, _lines(imported), json=json)


def _lines(imported: Imported) -> Iterator[Line]:
    for run in imported.runs:
        yield Line(("run ", "quiet"), (run.run_id, "bold"))
        number = number_of(run.num_events, "record")
        skipped_text = f"is already in the logdir, with {number}; skipped"
        yield Line(f"{number}: {_counts(run)}" if run.is_new else skipped_text, indent=2)
        for stat in run.dropped:
            count = "" if stat["num_events"] is None else f" ({stat['num_events']:,})"
            yield Line((f"{stat['stat']}: {stat['subject']}: {stat['reason']}{count}", "warning"), indent=2)
    yield Line(f"{number_of(imported.num_events, 'record')} in {imported.seconds:.1f} s")


def _counts(run: ImportedRun) -> str:
    names = ("execution", "tensor_health", "graph", "graph_op", "source_file")
    return ", ".join(f"{run.rows.get(name, 0):,} {name}" for name in names)
