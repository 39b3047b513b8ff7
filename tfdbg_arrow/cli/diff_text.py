"""Prints a comparison of two runs."""

from __future__ import annotations

from tfdbg_arrow.cli.output import console, printable_line, styled
from tfdbg_arrow.query import Diff, DiffTensor, Divergence
from tfdbg_arrow.query.diff.wording import (
    aligned_text,
    apart_text,
    diff_name,
    difference_text,
    differing_text,
    outcome_text,
    setting_text,
    worst_text,
)
from tfdbg_arrow.query.wording import facts_text


def print_diff(found: Diff) -> None:
    """Prints a comparison: the divergence, then what only one run has, then other differences of the runs."""
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
    out = console()
    for side, only in (("a", found.only_a), ("b", found.only_b)):
        if not (only.num_tensors or only.num_executions or only.num_ops):
            continue
        out.print()
        alone = f"Only {side.upper()} has {only.num_tensors:,} tensors, {only.num_executions:,} executions"
        out.print(styled((f"{alone} and {only.num_ops:,} ops of the graphs that both have", "bold")))
        for op in found.unaligned:
            if op.side != side:
                continue
            graph = "" if op.graph_name is None else f" in {op.graph_name}"
            where = "" if op.source is None else f"  {op.source.file_path}:{op.source.lineno}"
            times = " in executions that only this run has" if op.is_in_other else ""
            out.print(styled(f"  {diff_name(op)}{graph}: {op.num_tensors:,} tensors{times}", (where, "dim")))
    if found.is_cut:
        out.print(styled(("  …; raise --limit to list more", "dim")))
