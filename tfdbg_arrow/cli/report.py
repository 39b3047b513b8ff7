"""`tfdbg-arrow report`: writes the pages of a logdir as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tfdbg_arrow.cli.output import JsonOption, print_json, printable
from tfdbg_arrow.cli.reading import MemoryLimitOption, SkipBrokenOption, reading
from tfdbg_arrow.cli.viewer_extra import viewer_extra


def report(
    logdir: Annotated[str, typer.Argument(metavar="LOGDIR", help="The directory or URL that a recording wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")] = Path(
        "report.html"
    ),
    run_id: Annotated[str | None, typer.Option("--run-id", metavar="ID", help="Read only this run.")] = None,
    max_bytes: Annotated[
        int, typer.Option(metavar="N", min=200_000, help="Maximum size of the file; omitted content is listed.")
    ] = 10_000_000,
    skip_broken: SkipBrokenOption = False,
    memory_limit: MemoryLimitOption = None,
    json: JsonOption = False,
) -> None:
    """Writes one HTML file to attach to a bug report: the first bad tensor, the alerts and their source code.

    The pages are those of `view`. The file opens from disk, loads nothing and sends nothing. It contains source code
    of the recorded program.

    Exit codes: 0 the file was written, 2 an error.
    """
    with viewer_extra("report"):
        from tfdbg_arrow.viewer.report import write_report

    with reading(logdir, skip_broken=skip_broken, memory_limit=memory_limit) as opened:
        written = write_report(opened, output, run_id=run_id, max_bytes=max_bytes)
    if json:
        print_json({"logdir": logdir, "report": str(output), "bytes": written.size, "left_out": written.left_out})
        return
    typer.echo(f"{printable(str(output))}: {written.size:,} bytes")
    for text in written.left_out:
        typer.echo(printable(f"left out: {text}"))
