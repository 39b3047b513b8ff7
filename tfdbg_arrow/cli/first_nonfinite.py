"""`tfdbg-arrow first-nonfinite`: names the first bad tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from tfdbg_arrow.cli.command import Command
from tfdbg_arrow.cli.output import Opening, print_about, print_blocks, print_json, reading, reading_options, run_option
from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.safe_text import printable

if TYPE_CHECKING:
    from tfdbg_arrow.query import Run, SourceLine


@click.command("first-nonfinite", cls=Command)
@click.argument("logdir", help="The directory or URL that a recording wrote.")
@click.option(
    "--kinds",
    metavar="KINDS",
    default="nan,inf",
    help="The values to look for: nan, inf or both, separated by a comma.",
)
@run_option
@reading_options
def first_nonfinite(logdir: str, kinds: str, run_id: str | None, opening: Opening, json: bool) -> None:
    """Names the line of code and the op that are to blame for a NaN or infinity, the reason and the op's inputs.

    A bad value that reached a variable ranks before one that was returned to the program, and that before one in a
    metric. A value that did no harm is named only if there is no other. Examples are a mask of -Inf, and overflowed
    gradients whose step the optimizer skipped.

    Exit codes: 0 no bad values, or only values that did no harm, 1 a bad value was found, 2 an error.
    """
    from tfdbg_arrow.query import read_reasons, source_lines
    from tfdbg_arrow.query.present.tensors import nonfinite

    wanted = tuple(kind.strip() for kind in kinds.split(",") if kind.strip())
    with reading(logdir, opening) as opened:
        tensor = opened.first_nonfinite(kinds=wanted, run_id=run_id)
        about = opened.about_runs(run_id=run_id)
        runs = [run for run in opened.runs() if run.run_id in about.run_ids]
        unobserved = opened.coverage(run_id=run_id).summary_beside_gaps if tensor is None else None
        lines: tuple[SourceLine, ...] = ()
        reasons = None if tensor is None else read_reasons(opened, tensor)
        if tensor is not None and tensor.source is not None:
            lines = source_lines(opened, tensor.source, run_id=tensor.run_id)
    unmeasured = [run for run in runs if not run.measures_health]
    if tensor is None and runs and len(unmeasured) == len(runs):
        raise QueryError(_nothing_measured(logdir, unmeasured))
    if json:
        left_out = {run.run_id: run.left_out for run in runs if run.left_out}
        facts = {
            "nonfinite": tensor,
            "reasons": reasons,
            "source_lines": lines,
            "left_out": left_out,
            "unobserved": unobserved,
            "about": about,
        }
        print_json({"logdir": logdir, "kinds": list(wanted), **facts})
    elif tensor is None or reasons is None:
        print_about(about)
        click.echo("Nothing is bad: no recorded tensor contains " + " or ".join(wanted) + ".")
        for run in runs:
            for text in run.left_out:
                click.echo(printable(f"But the recording of run {run.run_id} is incomplete: {text}"))
        if unobserved is not None:
            click.echo(f"Not looked at: {printable(unobserved)}; see: tfdbg-arrow coverage {printable(logdir)}")
    else:
        print_about(about)
        print_blocks(nonfinite(tensor, reasons, lines))
    if unmeasured and tensor is None:
        click.echo(f"tfdbg-arrow: warning: {_nothing_measured(logdir, unmeasured)}", err=True)
    raise Exit(0 if tensor is None or tensor.is_expected else 1)


def _nothing_measured(logdir: str, runs: Sequence[Run]) -> str:
    names = ", ".join(f"{run.run_id} ({run.tensor_debug_mode})" for run in runs)
    return (
        f"{logdir} has runs whose mode does not detect infinities and NaN: {names}; "
        "record in mode CURT_HEALTH, CONCISE_HEALTH, FULL_HEALTH, FULL_NUMERICS or FULL_TENSOR."
    )
