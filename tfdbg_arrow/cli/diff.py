"""`tfdbg-arrow diff`: where two runs first diverge."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from tfdbg_arrow.cli.output import JsonOption, MemoryLimitOption, SkipBrokenOption, console, print_json, reading, styled
from tfdbg_arrow.safe_text import number_of, printable_line

if TYPE_CHECKING:
    from tfdbg_arrow.query import Diff, DiffTensor, Divergence


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="The logdir (directory or URL) of one recording.")],
    b: Annotated[
        str | None, typer.Argument(metavar="B", help="The logdir of another. Without it, two runs of A are compared.")
    ] = None,
    run_a: Annotated[str | None, typer.Option("--run-a", metavar="ID", help="The run of A to compare.")] = None,
    run_b: Annotated[str | None, typer.Option("--run-b", metavar="ID", help="The run of B to compare.")] = None,
    rtol: Annotated[
        float | None,
        typer.Option(
            "--rtol",
            metavar="R",
            help="Relative tolerance, measured against a tensor's largest magnitude. Default: 16 units in the last "
            "place of the coarsest dtype that has differed so far (float32 1.9e-6, float16 1.6e-2, bfloat16 0.13).",
        ),
    ] = None,
    atol: Annotated[
        float | None,
        typer.Option(
            "--atol",
            metavar="A",
            help="Absolute tolerance. Default: the magnitude below which the coarser dtype loses relative precision "
            "(float16 6e-8).",
        ),
    ] = None,
    growth: Annotated[
        float | None,
        typer.Option(
            metavar="G",
            help="An op diverges if the relative difference of its output is more than G times that of its inputs. "
            "Default: 10.",
        ),
    ] = None,
    known: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN",
            help="Search past ops that are known to diverge: a regular expression that matches a whole name or type.",
        ),
    ] = None,
    last_step: Annotated[
        int | None,
        typer.Option("--last-step", metavar="N", help="Compare only up to training step N, which is faster."),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", help="List at most N ops per run that only this run has.")] = 20,
    skip_broken: SkipBrokenOption = False,
    memory_limit: MemoryLimitOption = None,
    json: JsonOption = False,
) -> None:
    """Names the op at which two runs of a program first diverge in data flow, with both tensors and the line of code.

    Executions, graphs, ops, loop iterations and training steps of the runs are aligned by structure and source, not by
    ids or by the numbers in names. An op diverges if its output differs by more than the tolerance while its inputs do
    not, or differ far less. Rounding that grows from op to op, as in float16 against float32, is not a divergence.

    Exit codes: 0 nothing diverges, 1 something does, 2 an error.
    """
    from tfdbg_arrow.query import diff as compare
    from tfdbg_arrow.query.run_diff.comparing import DEFAULT_GROWTH

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
        print_diff(found)
    raise typer.Exit(0 if found.divergence is None else 1)


def print_diff(found: Diff) -> None:
    """Prints a comparison: the divergence, then what only one run has, then other differences of the runs."""
    from tfdbg_arrow.query.run_diff.answer import aligned_text, differing_text, outcome_text, setting_text

    out = console()
    out.print(styled(f"A: {found.run_a}"))
    out.print(styled(f"B: {found.run_b}"))
    out.print()
    if found.divergence is None:
        out.print(styled((outcome_text(found), "bold")))
        differing = differing_text(found)
        if differing is not None:
            out.print(styled(differing))
    else:
        out.print(styled((outcome_text(found), "bold red")))
        _print_divergence(found.divergence)
        out.print()
        out.print(styled(f"{aligned_text(found)}, {found.num_differing:,} differ by more than the tolerance."))
    if found.is_search_cut:
        out.print(styled(("There are too many candidates for the first divergence; not all were examined.", "bold")))
    for change in found.dtype_changes:
        out.print(styled(f"{change.num_tensors:,} tensors are {change.a} in A and {change.b} in B."))
    for text in found.incomparable:
        out.print(styled((text, "yellow")))
    _print_unaligned(found)
    if found.environment:
        out.print()
        out.print(styled(("Other differences", "bold")))
        for setting in found.environment:
            a, b = (setting_text(setting.name, value) for value in (setting.a, setting.b))
            out.print(styled(f"  {setting.name}: ", a, ("  |  ", "dim"), b))


def _print_divergence(found: Divergence) -> None:
    from tfdbg_arrow.query.run_diff.answer import apart_text, diff_name, difference_text, worst_text
    from tfdbg_arrow.query.wording import facts_text

    out = console()
    difference, worst = difference_text(found), worst_text(found)
    if difference is not None:
        out.print(styled(f"    {difference}"))
    for name, side in (("A", found.a), ("B", found.b)):
        out.print(styled(f"  {name}  ", (diff_name(side), "bold"), _where(side)))
        out.print(styled(f"     {facts_text(side)}{_magnitudes(side)}"))
        if side.source is not None:
            code = "" if side.source.code is None else f"  {printable_line(side.source.code)}"
            out.print(styled((f"     {side.source.file_path}:{side.source.lineno}{code}", "dim")))
    if worst is not None:
        out.print(styled(f"  furthest apart: {worst}"))
    for note in found.notes:
        out.print(styled(f"  {note}"))
    if found.inputs:
        out.print(styled("  computed from" if found.is_proven else "  computed from, as far as known"))
        for input_ in found.inputs:
            out.print(styled(f"     {diff_name(input_.a)}", _where(input_.a), (f": {apart_text(input_)}", "dim")))


def _magnitudes(side: DiffTensor) -> str:
    if side.min_finite is None or side.max_finite is None or side.mean_finite is None:
        return ""
    return f", from {side.min_finite:.6g} to {side.max_finite:.6g}, mean {side.mean_finite:.6g}"


def _where(side: DiffTensor) -> str:
    facts = [
        None if side.graph_name is None else f"in {side.graph_name}",
        f"iteration {side.iteration}" if side.iteration else None,
        None if side.step is None else f"step {side.step}",
        None if side.execution_index is None else f"execution {side.execution_index}",
    ]
    return "".join(f", {fact}" for fact in facts if fact is not None)


def _print_unaligned(found: Diff) -> None:
    from tfdbg_arrow.query.run_diff.answer import diff_name

    out = console()
    for side, only in (("a", found.only_a), ("b", found.only_b)):
        if not (only.num_tensors or only.num_executions or only.num_ops):
            continue
        out.print()
        tensors, executions = number_of(only.num_tensors, "tensor"), number_of(only.num_executions, "execution")
        ops = f"{number_of(only.num_ops, 'op')} of the graphs that both have"
        out.print(styled((f"Only {side.upper()} has {tensors}, {executions} and {ops}", "bold")))
        for op in found.unaligned:
            if op.side != side:
                continue
            graph = "" if op.graph_name is None else f" in {op.graph_name}"
            where = "" if op.source is None else f"  {op.source.file_path}:{op.source.lineno}"
            times = " in executions that only this run has" if op.is_in_other else ""
            out.print(styled(f"  {diff_name(op)}{graph}: {number_of(op.num_tensors, 'tensor')}{times}", (where, "dim")))
    if found.is_cut:
        out.print(styled(("  …; raise --limit to list more", "dim")))
