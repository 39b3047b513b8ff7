"""`tfdbg-arrow diff`: where two runs first diverge."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from tfdbg_arrow.cli.output import JsonOption, print_json
from tfdbg_arrow.cli.reading import MemoryLimitOption, SkipBrokenOption, reading

if TYPE_CHECKING:
    from tfdbg_arrow.query import Diff


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="The directory or URL that one recording wrote.")],
    b: Annotated[
        str | None, typer.Argument(metavar="B", help="That of another; without it, two runs of A are compared.")
    ] = None,
    run_a: Annotated[str | None, typer.Option("--run-a", metavar="ID", help="Which run of A.")] = None,
    run_b: Annotated[str | None, typer.Option("--run-b", metavar="ID", help="Which run of B.")] = None,
    rtol: Annotated[
        float | None,
        typer.Option(
            "--rtol",
            metavar="R",
            help="Relative tolerance, against a tensor's largest magnitude. Default: 16 units in the last place of the "
            "coarsest dtype in which a difference came up so far (float32 1.9e-6, float16 1.6e-2, bfloat16 0.13).",
        ),
    ] = None,
    atol: Annotated[
        float | None,
        typer.Option(
            "--atol",
            metavar="A",
            help="Absolute tolerance. Default: where the coarser dtype loses its relative precision (float16 6e-8).",
        ),
    ] = None,
    growth: Annotated[
        float | None,
        typer.Option(
            metavar="G",
            help="An op diverges if its output differs relatively more than G times as much as its inputs do. "
            "Default: 10.",
        ),
    ] = None,
    known: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN",
            help="Look behind ops that are known to diverge: a regular expression for the whole of a name or type.",
        ),
    ] = None,
    last_step: Annotated[
        int | None,
        typer.Option("--last-step", metavar="N", help="Compare only what ran up to training step N, which is quicker."),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", help="List at most N ops that only one run has, of each.")] = 20,
    skip_broken: SkipBrokenOption = False,
    memory_limit: MemoryLimitOption = None,
    json: JsonOption = False,
) -> None:
    """Names the op at which two runs of a program first diverge, by data flow, with both sides and the line of code.

    Executions, graphs, ops, loop iterations and training steps of the runs are aligned by structure and source, not by
    ids or names' numbers. An op diverges if its output differs by more than the tolerance and its inputs do not, or by
    far less: rounding that grows from op to op, as in float16 against float32, is no divergence.

    Exit codes: 0 nothing diverges, 1 something does, 2 an error.
    """
    from tfdbg_arrow.query import diff as compare
    from tfdbg_arrow.query.diff.tolerance import DEFAULT_GROWTH

    with contextlib.ExitStack() as stack:
        logdir_a = stack.enter_context(
            reading(a, skip_broken=skip_broken, memory_limit=memory_limit, what="Comparing …")
        )
        logdir_b = (
            None
            if b is None
            else stack.enter_context(reading(b, skip_broken=skip_broken, memory_limit=memory_limit, what=None))
        )
        found = compare(
            logdir_a,
            logdir_b,
            run_a=run_a,
            run_b=run_b,
            rtol=rtol,
            atol=atol,
            growth=DEFAULT_GROWTH if growth is None else growth,
            known=known,
            last_step=last_step,
            limit=limit,
        )
    if json:
        print_json({"a": a, "b": b, "diff": found})
    else:
        _print(found)
    raise typer.Exit(0 if found.divergence is None else 1)


def _print(found: Diff) -> None:
    from tfdbg_arrow.cli.diff_text import print_diff

    print_diff(found)
