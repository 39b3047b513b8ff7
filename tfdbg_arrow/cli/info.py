"""`tfdbg-arrow info`: lists the runs and tables of a logdir."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from tfdbg_arrow.cli.output import JsonOption, MemoryLimitOption, SkipBrokenOption, console, print_json, reading, styled
from tfdbg_arrow.safe_text import number_of

if TYPE_CHECKING:
    from tfdbg_arrow.query import LogdirInfo, Run


def info(
    logdir: Annotated[str, typer.Argument(metavar="LOGDIR", help="The directory or URL that a recording wrote.")],
    skip_broken: SkipBrokenOption = False,
    memory_limit: MemoryLimitOption = None,
    json: JsonOption = False,
) -> None:
    """Lists the runs and tables of a logdir, with rows and bytes, and the number of bad tensors."""
    with reading(logdir, skip_broken=skip_broken, memory_limit=memory_limit) as opened:
        found = opened.info()
    if json:
        print_json(dataclasses.asdict(found))
    else:
        _print_info(found)


def _print_info(found: LogdirInfo) -> None:
    out = console()
    out.print(styled((found.path, "bold")))
    out.print(
        styled(
            f"  {found.bytes:,} bytes, {number_of(found.num_tensors, 'tensor')}, {found.num_nonfinite:,} of them bad"
        )
    )
    if found.unobserved is not None:
        out.print(styled(f"  not looked at: {found.unobserved}; see coverage"))
    if found.first_wall_time_ns is not None and found.last_wall_time_ns is not None:
        out.print(styled(f"  {_time(found.first_wall_time_ns)} to {_time(found.last_wall_time_ns)} UTC"))
    for run in found.runs:
        out.print()
        out.print(styled(("run ", "dim"), (run.run_id, "bold")))
        out.print(styled(f"  {run.tensor_debug_mode or 'no events'}, measured by {run.health_backend}, {_ending(run)}"))
        if run.worker is not None:
            out.print(styled(f"  worker {run.worker}"))
        pid = "" if run.pid is None else f"pid {run.pid} on "
        version = run.tensorflow_version or ("not imported" if run.health_backend != "debugger_v2" else "unknown")
        out.print(styled(f"  {pid}{run.host_name or 'an unknown host'}, TensorFlow {version}"))
        if run.command_line is not None:
            out.print(styled(f"  {run.command_line}"))
        for text in run.left_out:
            out.print(styled("  ", ("the recording is incomplete: ", "bold"), text))
    out.print()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("table")
    for name in ("rows", "parts", "bytes"):
        table.add_column(name, justify="right")
    for entry in found.tables:
        table.add_row(entry.name, f"{entry.rows:,}", f"{entry.parts:,}", f"{entry.bytes:,}")
    out.print(table)


def _ending(run: Run) -> str:
    if run.health_backend == "debugger_v2":
        return f"from {_time(run.wall_time_ns)} UTC, imported" + ("" if run.is_clean_end else ", incomplete")
    if run.end_wall_time_ns is None:
        return f"started {_time(run.wall_time_ns)} UTC, still recording or ended without closing"
    return f"{_time(run.wall_time_ns)} to {_time(run.end_wall_time_ns)} UTC" + (
        "" if run.is_clean_end else ", not closed cleanly"
    )


def _time(wall_time_ns: int) -> str:
    return f"{datetime.fromtimestamp(wall_time_ns // 1_000_000_000, tz=UTC):%Y-%m-%d %H:%M:%S}"
