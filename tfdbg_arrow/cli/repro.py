"""`tfdbg-arrow repro`: writes a script that makes the first bad value again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tfdbg_arrow.cli.command import Command
from tfdbg_arrow.cli.output import (
    Opening,
    console,
    print_about,
    print_json,
    progress,
    reading,
    reading_options,
    run_option,
    styled,
)
from tfdbg_arrow.safe_text import number_of

if TYPE_CHECKING:
    from rich.console import Console

    from tfdbg_arrow.reproduction import Repro, TriedFix


@click.command("repro", cls=Command)
@click.argument("logdir", help="The directory or URL that a recording wrote.")
@click.option(
    "--output", "-o", metavar="FILE", default="repro.py", help="The script. An .npz file beside it has the inputs."
)
@click.option("--event", metavar="N", type=int, help="Another bad tensor: its event_index. Default: the first one.")
@run_option
@click.option(
    "--depth",
    metavar="N",
    type=click.IntRange(min=0),
    default=0,
    help="Number of ops before the op, on each path, that the script runs too.",
)
@click.option("--fix", is_flag=True, help="Try standard repairs, and show which give finite results. Needs TensorFlow.")
@click.option(
    "--minimise",
    is_flag=True,
    help="Shrink the inputs to the smallest ones that go bad in the same way. Needs TensorFlow.",
)
@click.option(
    "--time-limit",
    metavar="SECONDS",
    type=click.FloatRange(min=1.0),
    default=60.0,
    help="How long --minimise searches at most.",
)
@reading_options
def repro(
    logdir: str,
    output: str,
    event: int | None,
    run_id: str | None,
    depth: int,
    fix: bool,
    minimise: bool,
    time_limit: float,
    opening: Opening,
    json: bool,
) -> None:
    """Writes a script that runs the op that made the first bad value, with its recorded inputs.

    The script needs only TensorFlow and NumPy. It shows the bad value, and asserts what was recorded. The inputs must
    have been recorded, with on_nonfinite="keep", with values=, or in mode FULL_TENSOR.

    Exit codes: 0 the script was written, 2 an error.
    """
    from tfdbg_arrow.reproduction import write_repro

    with (
        reading(logdir, opening, what=None) as opened,
        progress("Working …"),
    ):
        written = write_repro(
            opened,
            output,
            event_index=event,
            run_id=run_id,
            depth=depth,
            fix=fix,
            minimise=minimise,
            time_limit_s=time_limit,
        )
        about = opened.about_runs(run_id=run_id)
    if json:
        print_json({"logdir": logdir, "repro": written, "about": about})
    else:
        print_about(about)
        _print_repro(written, is_fixed=fix)


def _print_repro(written: Repro, *, is_fixed: bool) -> None:
    out = console()
    out.print(styled((written.nonfinite.headline, "bold red")))
    ops = number_of(len(written.op_types), "op")
    out.print(styled("wrote ", (written.path, "bold"), f", which runs {ops}: {', '.join(written.op_types)}"))
    out.print(styled("wrote ", (written.data_path, "bold"), ", its inputs:"))
    for input_ in written.inputs:
        before = None if written.shapes_before is None else written.shapes_before[input_.name]
        was = "" if before in (None, input_.shape) else f", {list(before or ())} before"
        made_by = "" if input_.made_by is None else f"  made by {input_.made_by}"
        out.print(styled(f"  {input_.name:<11} ", f"{input_.dtype} {list(input_.shape)}{was}", (made_by, "dim")))
    if written.sample_path is not None:
        samples = written.nonfinite.samples
        which = "" if samples is None else f", {samples.unit} {samples.first:,} of {samples.whole}"
        out.print(styled("wrote ", (written.sample_path, "bold"), f"{which}, as a batch of one:"))
        for input_ in written.sample:
            out.print(styled(f"  {input_.name:<11} ", f"{input_.dtype} {list(input_.shape)}"))
    if written.is_cut:
        out.print(styled("The time limit ended the search for smaller inputs; --time-limit sets another one."))
    if is_fixed:
        _print_fixes(written, out)
    out.print(styled("run it with: ", (f"python {written.path}", "bold")))


def _print_fixes(written: Repro, out: Console) -> None:
    out.print()
    if written.advice is not None:
        out.print(styled(written.advice))
    if not written.fixes:
        out.print(styled("repro has no standard repair that replaces an op of this script."))
    else:
        out.print(
            styled(
                "These repairs were run with the inputs of the script. They are suggestions: each one changes what the "
                "program computes, and only you know which is right."
            )
        )
    for fix in written.fixes:
        out.print()
        out.print(styled((fix.label, "bold"), ": ", *_outcome(fix)))
        for line in fix.diff:
            style = "red" if line.startswith("-") else "green" if line.startswith("+") else ""
            out.print(styled("  ", (line, style)))
    out.print()


def _outcome(fix: TriedFix) -> tuple[str | tuple[str, str], ...]:
    if fix.error is not None:
        return (("cannot be run: ", "red"), fix.error)
    if fix.is_finite:
        return (("the result is finite", "green"),)
    return ((f"the result still has {number_of(fix.num_bad, 'bad element')}", "red"),)
