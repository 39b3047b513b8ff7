"""`tfdbg-arrow info`: lists the runs and tables of a logdir."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tfdbg_arrow.cli.command import BAD_TEXTS
from tfdbg_arrow.cli.output import (
    JsonOption,
    MemoryLimitOption,
    SkipBrokenOption,
    console,
    plain_table,
    print_json,
    progress,
    reading,
    styled,
    time_text,
)
from tfdbg_arrow.errors import NoLogdirError
from tfdbg_arrow.safe_text import number_of

if TYPE_CHECKING:
    from tfdbg_arrow.query import LogdirInfo, Run
    from tfdbg_arrow.query.logdirs import LogdirSummary
    from tfdbg_arrow.storage.search import LogdirsBelow


def info(
    logdir: Annotated[str, typer.Argument(metavar="LOGDIR", help="The directory or URL that a recording wrote.")],
    skip_broken: SkipBrokenOption = False,
    memory_limit: MemoryLimitOption = None,
    json: JsonOption = False,
) -> None:
    """Lists the runs and tables of a logdir, with rows and bytes, and the number of bad tensors.

    If LOGDIR is another directory, it lists the logdirs below it.
    """
    try:
        with reading(logdir, skip_broken=skip_broken, memory_limit=memory_limit) as opened:
            found = opened.info()
    except NoLogdirError as error:
        if not error.below.logdirs:
            raise
        _tell_below(error.below, json=json)
        return
    if json:
        print_json(dataclasses.asdict(found))
    else:
        _print_info(found)


def _tell_below(below: LogdirsBelow, *, json: bool) -> None:
    from tfdbg_arrow.query.logdirs import read_summaries

    with progress("Reading …"):
        summaries = read_summaries(below)
    if json:
        print_json({"path": str(below.path), "logdirs": summaries, "is_cut": below.is_cut})
    else:
        _print_below(below, summaries)


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
        out.print(styled(f"  {time_text(found.first_wall_time_ns)} to {time_text(found.last_wall_time_ns)} UTC"))
    for run in found.runs:
        out.print()
        out.print(styled(("run ", "dim"), (run.run_id, "bold"), "" if run.run_name is None else f" {run.run_name}"))
        for name, text in (("tags", ", ".join(run.tags)), ("notes", run.notes)):
            if text:
                out.print(styled(f"  {name}: {text}"))
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
    table = plain_table("table", numbers=("rows", "parts", "bytes"))
    for entry in found.tables:
        table.add_row(entry.name, f"{entry.rows:,}", f"{entry.parts:,}", f"{entry.bytes:,}")
    out.print(table)


def _ending(run: Run) -> str:
    if run.health_backend == "debugger_v2":
        return f"from {time_text(run.wall_time_ns)} UTC, imported" + ("" if run.is_clean_end else ", incomplete")
    if run.end_wall_time_ns is None:
        return f"started {time_text(run.wall_time_ns)} UTC, still recording or ended without closing"
    return f"{time_text(run.wall_time_ns)} to {time_text(run.end_wall_time_ns)} UTC" + (
        "" if run.is_clean_end else ", not closed cleanly"
    )


def _print_below(below: LogdirsBelow, summaries: Sequence[LogdirSummary]) -> None:
    from tfdbg_arrow.storage.search import cut_text

    out = console()
    number = number_of(len(summaries), "logdir is", "logdirs are")
    out.print(styled((str(below.path), "bold"), f" is not a logdir; {number} below it:"))
    table = plain_table("logdir", "changed (UTC)", "bad", numbers=("runs",))
    for summary in summaries:
        runs = "?" if summary.num_runs is None else f"{summary.num_runs:,}"
        bad = BAD_TEXTS[summary.is_bad], "bold red" if summary.is_bad else ""
        table.add_row(styled(summary.path), time_text(summary.wall_time_ns), styled(bad), runs)
    out.print(table)
    if below.is_cut:
        out.print(styled(f"There may be more: {cut_text(below)}."))
