"""`tfdbg-arrow first-nonfinite`: names the first bad tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tfdbg_arrow.cli.output import JsonOption, print_json, printable
from tfdbg_arrow.cli.reading import MemoryLimitOption, SkipBrokenOption, reading
from tfdbg_arrow.errors import QueryError

if TYPE_CHECKING:
    from tfdbg_arrow.query import Run, SourceLine


def first_nonfinite(
    logdir: Annotated[str, typer.Argument(metavar="LOGDIR", help="The directory or URL that a recording wrote.")],
    kinds: Annotated[
        str, typer.Option(help="The values to look for: nan, inf or both, separated by a comma.")
    ] = "nan,inf",
    run_id: Annotated[str | None, typer.Option("--run-id", metavar="ID", help="Read only this run.")] = None,
    skip_broken: SkipBrokenOption = False,
    memory_limit: MemoryLimitOption = None,
    json: JsonOption = False,
) -> None:
    """Names the op that is to blame for a NaN or infinity, the reason, its inputs and the line of code.

    A bad value that reached a variable ranks before one that was returned to the program, and that before one in a
    metric. A value that did no harm is named only if there is no other. Examples are a mask of -Inf, and overflowed
    gradients whose step the optimizer skipped.

    Exit codes: 0 no bad values, or only values that did no harm, 1 a bad value was found, 2 an error.
    """
    from tfdbg_arrow.cli.first_nonfinite_text import print_nonfinite
    from tfdbg_arrow.query import read_reasons, source_lines

    wanted = tuple(kind.strip() for kind in kinds.split(",") if kind.strip())
    with reading(logdir, skip_broken=skip_broken, memory_limit=memory_limit) as opened:
        found = opened.first_nonfinite(kinds=wanted, run_id=run_id)
        runs = [run for run in opened.runs() if run_id in (None, run.run_id)]
        unobserved = opened.coverage(run_id=run_id).summary_beside_gaps if found is None else None
        lines: tuple[SourceLine, ...] = ()
        reasons = None if found is None else read_reasons(opened, found.event_index, run_id=found.run_id)
        if found is not None and found.source is not None:
            lines = source_lines(opened, found.source, run_id=found.run_id)
    unmeasured = [run for run in runs if not run.measures_health]
    if found is None and runs and len(unmeasured) == len(runs):
        raise QueryError(_nothing_measured(logdir, unmeasured))
    if json:
        left_out = {run.run_id: run.left_out for run in runs if run.left_out}
        facts = {
            "nonfinite": found,
            "reasons": reasons,
            "source_lines": lines,
            "left_out": left_out,
            "unobserved": unobserved,
        }
        print_json({"logdir": logdir, "kinds": list(wanted), **facts})
    elif found is None or reasons is None:
        typer.echo("Nothing is bad: no recorded tensor contains " + " or ".join(wanted) + ".")
        for run in runs:
            for text in run.left_out:
                typer.echo(printable(f"But the recording of run {run.run_id} is incomplete: {text}"))
        if unobserved is not None:
            typer.echo(f"Not looked at: {printable(unobserved)}; see: tfdbg-arrow coverage {printable(logdir)}")
    else:
        print_nonfinite(found, lines, reasons=reasons)
    if unmeasured and found is None:
        typer.echo(f"tfdbg-arrow: warning: {_nothing_measured(logdir, unmeasured)}", err=True)
    raise typer.Exit(0 if found is None or found.is_expected else 1)


def _nothing_measured(logdir: str, runs: Sequence[Run]) -> str:
    names = ", ".join(f"{run.run_id} ({run.tensor_debug_mode})" for run in runs)
    return (
        f"{logdir} has runs whose mode does not detect infinities and NaN: {names}; "
        "record in mode CURT_HEALTH, CONCISE_HEALTH, FULL_HEALTH, FULL_NUMERICS or FULL_TENSOR."
    )
