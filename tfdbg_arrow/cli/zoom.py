"""`tfdbg-arrow zoom`: runs a program again, and records more around the first bad value."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from tfdbg_arrow.cli.command import Command
from tfdbg_arrow.cli.output import json_option, print_result, run_option
from tfdbg_arrow.errors import SettingError
from tfdbg_arrow.query.present.blocks import Blocks, Line

if TYPE_CHECKING:
    from tfdbg_arrow.reproduction.second_run import SecondRun


@click.command("zoom", cls=Command)
@click.argument("logdir", type=click.Path(path_type=Path), help="The logdir of the first run.")
@click.argument(
    "program",
    metavar="-- SCRIPT",
    nargs=-1,
    help="After `--`: the script and its arguments, or -m, a module and its arguments.",
)
@click.option(
    "--logdir",
    "-o",
    "output",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where to write the second run. Default: LOGDIR-zoom.",
)
@run_option
@click.option("--event", metavar="N", type=int, help="The event index of another bad tensor than the first one.")
@click.option(
    "--seed",
    metavar="N",
    type=int,
    help="Seed Python, NumPy and TensorFlow with this number before the program starts.",
)
@click.option("--timeout", metavar="SECONDS", type=float, help="Stop the program after this time.")
@json_option
def zoom(
    logdir: Path,
    program: tuple[str, ...],
    output: Path | None,
    run_id: str | None,
    event: int | None,
    seed: int | None,
    timeout: float | None,
    json: bool,
) -> None:
    """Runs a program again, and keeps the elements of the tensors around the op that made the first bad value.

    The program is stopped when it has passed the training step after the step of the bad value. It writes its files
    again, such as checkpoints. The answer says whether the same op made a bad value again. If it did not, the answer
    says where the two runs first differ. `tfdbg-arrow repro DIR` then writes a script from the kept inputs.

    Exit codes: 0 the same op made a bad value again, 1 another op or none did, 2 an error.
    """
    from tfdbg_arrow.reproduction.second_run import run_again

    if timeout is not None and timeout <= 0:
        raise SettingError(f"--timeout is {timeout:g}; expected a number of seconds above 0")
    target = logdir.with_name(f"{logdir.name}-zoom") if output is None else output
    rerun = run_again(logdir, program, output=target, run_id=run_id, event_index=event, seed=seed, timeout_s=timeout)
    print_result(rerun, _lines(rerun), json=json, about=rerun.about)
    raise Exit(0 if rerun.is_same_place else 1)


def _lines(rerun: SecondRun) -> Blocks:
    from tfdbg_arrow.query.present.runs import diff

    if rerun.is_same_place:
        yield Line(("The same op made a bad value again:", "bad"), f" {rerun.first.headline}")
        yield Line(f"For a script with its inputs: tfdbg-arrow repro {shlex.quote(rerun.logdir)}")
        return
    if rerun.second is None:
        yield Line(("The second run had no bad value.", "bold"), f" The first run: {rerun.first.headline}")
    else:
        yield Line(("Another value went bad first in the second run.", "bold"))
        yield Line(f"first run:  {rerun.first.headline}", indent=2)
        yield Line(f"second run: {rerun.second.headline}", indent=2)
    if rerun.diff is not None:
        yield Line()
        yield Line("A is the first run, B the second.")
        yield from diff(rerun.diff)
    elif rerun.why_not_compared is not None:
        yield Line(f"The runs could not be compared: {rerun.why_not_compared}")
