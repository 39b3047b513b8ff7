"""`tfdbg-arrow export`: writes a logdir in the formats of other tools."""

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
from tfdbg_arrow.cli.reading import MemoryLimitOption, SkipBrokenOption, reading
from tfdbg_arrow.errors import SettingError

if TYPE_CHECKING:
    from tfdbg_arrow.query import Exported
    from tfdbg_arrow.writer.debugger_v2.export import ExportedRun


def export(
    logdir: Annotated[str, typer.Argument(metavar="LOGDIR", help="The directory or URL that a recording wrote.")],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="Where to write: a directory (dump, Parquet, CSV) or a file (DuckDB, SQLite)."
        ),
    ],
    parquet: Annotated[
        bool, typer.Option("--parquet", help="Write flat Parquet files for BI tools, one per table and view.")
    ] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Write CSV files, one per table and view.")] = False,
    duckdb: Annotated[bool, typer.Option("--duckdb", help="Write a DuckDB database.")] = False,
    sqlite: Annotated[bool, typer.Option("--sqlite", help="Write a SQLite database.")] = False,
    debugger_v2: Annotated[
        bool,
        typer.Option("--debugger-v2", help="Write a dump that TensorFlow's Debugger V2 and TensorBoard can read."),
    ] = False,
    table: Annotated[
        list[str] | None,
        typer.Option(
            "--table", metavar="NAME", help="Export only this table or public view. Can be given several times."
        ),
    ] = None,
    run_id: Annotated[
        str | None,
        typer.Option(
            "--run-id",
            metavar="ID",
            help="The run to export; the default is all runs. With several runs, each dump goes to TARGET/<run id>.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing export. A dump is never replaced.")
    ] = False,
    tensor_debug_mode: Annotated[
        str | None,
        typer.Option(
            "--tensor-debug-mode",
            metavar="MODE",
            help="How much of each tensor a dump holds, limited to what was recorded. Default: the recording's mode.",
        ),
    ] = None,
    skip_broken: SkipBrokenOption = False,
    memory_limit: MemoryLimitOption = None,
    json: JsonOption = False,
) -> None:
    """Writes a logdir in the format of another tool. Give exactly one of the format options.

    Exit codes: 0 the export was written, 2 an error.
    """
    asked = {"parquet": parquet, "csv": csv, "duckdb": duckdb, "sqlite": sqlite, "debugger-v2": debugger_v2}
    formats = [name for name, is_asked in asked.items() if is_asked]
    if len(formats) != 1:
        options = ", ".join(f"--{name}" for name in asked)
        what = "several formats were given" if formats else "no format was given"
        raise SettingError(f"{what}; give one of {options}.")
    if not debugger_v2:
        if tensor_debug_mode is not None:
            raise SettingError(f"--tensor-debug-mode was given with --{formats[0]}; it works only with --debugger-v2.")
        _export_tables(
            logdir,
            target,
            formats[0],
            tables=table,
            run_id=run_id,
            overwrite=overwrite,
            skip_broken=skip_broken,
            memory_limit=memory_limit,
            json=json,
        )
        return
    for option, is_given in (("--table", table), ("--overwrite", overwrite), ("--skip-broken", skip_broken)):
        if is_given:
            raise SettingError(
                f"{option} was given with --debugger-v2; its dumps are always complete and are never replaced."
            )
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


def _export_tables(
    logdir: str,
    target: str,
    format_: str,
    *,
    tables: list[str] | None,
    run_id: str | None,
    overwrite: bool,
    skip_broken: bool,
    memory_limit: str | None,
    json: bool,
) -> None:
    from tfdbg_arrow.query import export as export_to

    with (
        reading(logdir, skip_broken=skip_broken, memory_limit=memory_limit, what=None) as opened,
        _table_progress_bar() as progress,
    ):
        exported = export_to(
            opened,
            target,
            format=format_,
            tables=tables or None,
            run_id=run_id,
            overwrite=overwrite,
            progress=progress,
        )
    if json:
        print_json({"logdir": logdir, **vars(exported)})
    else:
        _print_exported(exported)


@contextlib.contextmanager
def _table_progress_bar() -> Iterator[Callable[[str, int, int, int], None]]:
    """Yields a progress callback for an export of tables; it draws a bar on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda name, num_rows, num_done, num_all: None
        return
    columns = (
        TextColumn("Exporting"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[now]}"),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True, markup=False, emoji=False), transient=True) as bar:
        task = bar.add_task("export", total=None, now="")

        def show(name: str, num_rows: int, num_done: int, num_all: int) -> None:
            bar.update(task, completed=num_done, total=num_all, now=f"{name}, {num_rows:,} rows")

        yield show


@contextlib.contextmanager
def _progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yields a callback for (done, total); it draws a progress bar on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True, markup=False, emoji=False), transient=True) as bar:
        task = bar.add_task(printable(what), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print_run(run: ExportedRun) -> None:
    out = console()
    source = "the imported dump, unchanged" if run.is_imported else run.tensor_debug_mode or ""
    out.print(styled(("run ", "dim"), (run.run_id, "bold"), f", {source}"))
    out.print(styled(f"  {run.dump}: {run.size_bytes:,} bytes"))
    counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in run.num_records.items())
    out.print(styled(f"  records: {counts}"))
    for note in run.notes:
        out.print(styled(f"  {note}"))
    for item in run.left_out:
        out.print(styled(f"  left out: {item.num_rows:,} rows of {item.table}. {item.reason}"))


def _print_exported(exported: Exported) -> None:
    out = console()
    out.print(styled((str(exported.path), "bold"), f": {exported.format}, {exported.size_bytes:,} bytes"))
    for table in exported.tables:
        of_a_view = " of a view" if table.kind == "rows of a view" else ""
        what = "a view" if table.num_rows is None else f"{table.num_rows:,} rows{of_a_view}"
        out.print(styled(f"  {table.name}: {what}"))
