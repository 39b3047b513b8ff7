"""`tfdbg-arrow diff`: where two runs part, by layer and by op."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from tfdbg_arrow.cli.output import (
    JsonOption,
    MemoryLimitOption,
    SkipBrokenOption,
    console,
    plain_table,
    print_json,
    reading,
    styled,
)
from tfdbg_arrow.safe_text import number_of, printable_line

if TYPE_CHECKING:
    from tfdbg_arrow.query import Diff, DiffTensor, Divergence, LayerDifferences, Logdir, Parting

_MAX_PARTINGS = 10


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="The logdir (directory or URL) of one recording.")],
    b: Annotated[
        str | None, typer.Argument(metavar="B", help="The logdir of another. Without it, two runs of A are compared.")
    ] = None,
    run_a: Annotated[str | None, typer.Option("--run-a", metavar="RUN", help="The run of A to compare.")] = None,
    run_b: Annotated[str | None, typer.Option("--run-b", metavar="RUN", help="The run of B to compare.")] = None,
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
    """Names the layer that parted first, and the op at which two runs of a program first diverge in data flow.

    Layers are compared by name, step by step. The op comes with both tensors and the line of code.

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
        layers = _compare_layers(logdir_a, logdir_b, found, rtol=rtol, last_step=last_step)
    if json:
        print_json({"a": a, "b": b, "diff": found, "layers": None if layers is None else _layers_json(layers)})
    else:
        print_diff(found, layers)
    raise typer.Exit(0 if found.divergence is None else 1)


def _compare_layers(
    a: Logdir, b: Logdir | None, found: Diff, *, rtol: float | None, last_step: int | None
) -> LayerDifferences | None:
    from tfdbg_arrow.query import layer_differences

    positions = (None, None if last_step is None else last_step + 1)
    layers = layer_differences(a, b, run_a=found.run_a, run_b=found.run_b, rtol=rtol, positions=positions)
    if layers is not None and layers.axis != "step" and last_step is not None:  # the positions are no steps
        layers = layer_differences(a, b, run_a=found.run_a, run_b=found.run_b, rtol=rtol)
    return layers


def _layers_json(layers: LayerDifferences) -> dict[str, object]:
    """Returns the comparison of the layers without the numbers of each cell."""

    def place(parting: Parting | None) -> dict[str, object] | None:
        if parting is None:
            return None
        row = layers.rows[parting.row]
        named = {"layer": row.layer, "kind": row.kind, "side": row.side}
        return named | {name: value for name, value in vars(parting).items() if name not in ("row", "column")}

    return {
        "sentence": layers.sentence,
        "notes": layers.notes,
        "axis": layers.axis,
        "range_a": layers.range_a,
        "range_b": layers.range_b,
        "rtol": layers.rtol,
        "first_parting": place(layers.first_parting),
        "large_parting": place(layers.large_parting),
        "partings": [place(parting) for parting in layers.partings],
        "only_a": layers.only_a,
        "only_b": layers.only_b,
    }


def _print_layers(layers: LayerDifferences) -> None:
    from tfdbg_arrow.query.model_health.sentences import parting_texts

    out = console()
    out.print(styled((layers.sentence, "bold red" if layers.first_parting is not None else "bold")))
    for note in layers.notes:
        out.print(styled(note))
    if layers.partings:
        table = plain_table("layer", "side", f"apart from {layers.axis}", "measure", numbers=("A", "B"))
        for parting in layers.partings[:_MAX_PARTINGS]:
            row = layers.rows[parting.row]
            steps = f"{parting.first:,}" if parting.first == parting.last else f"{parting.first:,} to {parting.last:,}"
            style = "bold" if parting == layers.first_parting else ""
            table.add_row(*map(styled, (row.layer, row.side, steps, *parting_texts(parting))), style=style)
        out.print(table)
        if len(layers.partings) > _MAX_PARTINGS:
            out.print(styled((f"… and {number_of(len(layers.partings) - _MAX_PARTINGS, 'layer')} more", "dim")))
    for side, only in (("A", layers.only_a), ("B", layers.only_b)):
        if only:
            names = ", ".join(f"{row.layer} ({row.side})" for row in only[:5])
            more = f" and {len(only) - 5:,} more" if len(only) > 5 else ""
            out.print(styled((f"Only {side} has {names}{more}.", "yellow")))
    out.print()


def print_diff(found: Diff, layers: LayerDifferences | None = None) -> None:
    """Prints a comparison: layers, the divergent op, then what only one run has, then other differences of the runs."""
    from tfdbg_arrow.query.run_diff.answer import aligned_text, differing_text, outcome_text, setting_text

    out = console()
    out.print(styled(f"A: {found.run_a}"))
    out.print(styled(f"B: {found.run_b}"))
    out.print()
    if layers is not None:
        _print_layers(layers)
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
        tensors = number_of(change.num_tensors, "tensor is", "tensors are")
        out.print(styled(f"{tensors} {change.a} in A and {change.b} in B."))
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
            out.print(styled((f"     {side.source.place}{code}", "dim")))
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
            where = "" if op.source is None else f"  {op.source.place}"
            times = " in executions that only this run has" if op.is_in_other else ""
            out.print(styled(f"  {diff_name(op)}{graph}: {number_of(op.num_tensors, 'tensor')}{times}", (where, "dim")))
    if found.is_cut:
        out.print(styled(("  …; raise --limit to list more", "dim")))
