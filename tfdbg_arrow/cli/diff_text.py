"""How a comparison of two runs is printed."""

from __future__ import annotations

import json

from tfdbg_arrow.cli.output import console, printable_line, styled
from tfdbg_arrow.query import Diff, DiffTensor, Divergence, UnalignedOp
from tfdbg_arrow.query.wording import facts_text

_KINDS = {
    "shape": "other shapes",
    "dtype": "dtypes of other kinds",
    "nonfinite": "other NaN or infinities",
    "values": "other values",
    "magnitudes": "other magnitudes",
    "counts": "other numbers of negative, zero or positive elements",
}


def print_diff(found: Diff) -> None:
    """Prints a comparison: the divergence, then what only one run has, then what else differs."""
    out = console()
    out.print(styled(f"A: {found.run_a}"))
    out.print(styled(f"B: {found.run_b}"))
    out.print()
    if found.divergence is None:
        nothing = "Nothing diverges" if found.num_compared else "Nothing could be compared"
        out.print(styled((f"{nothing}: {_aligned_text(found)}.", "bold")))
        if found.num_differing:
            out.print(
                styled(
                    f"{found.num_differing:,} tensors lie further apart than the tolerance, but no op made them so: "
                    "their differences grew from op to op, as rounding does."
                )
            )
    else:
        _print_divergence(found.divergence)
        out.print()
        out.print(styled(f"{_aligned_text(found)}, {found.num_differing:,} lie further apart than the tolerance."))
    if found.is_search_cut:
        out.print(styled(("Not every candidate for the first divergence was looked at: there are too many.", "bold")))
    for change in found.dtype_changes:
        out.print(styled(f"{change.num_tensors:,} tensors are {change.a} in A and {change.b} in B."))
    for text in found.incomparable:
        out.print(styled((text, "yellow")))
    _print_unaligned(found)
    if found.environment:
        out.print()
        out.print(styled(("What else differs", "bold")))
        for setting in found.environment:
            a, b = (_setting_text(setting.name, value) for value in (setting.a, setting.b))
            out.print(styled(f"  {setting.name}: ", a, ("  |  ", "dim"), b))


def _aligned_text(found: Diff) -> str:
    pairs = f"{found.num_compared:,} pairs of tensors were compared"
    return f"{pairs}, in {found.num_aligned_executions:,} pairs of executions"


def _setting_text(name: str, value: str | None) -> str:
    if value is None:
        return "none"
    if name == "command_line":
        try:
            return " ".join(map(str, json.loads(value)))
        except ValueError:
            return value
    return value


def _print_divergence(found: Divergence) -> None:
    out = console()
    is_counted = _is_counted(found)
    by = "" if found.excess is None or is_counted else f", {found.excess:,.4g} times the tolerance"
    out.print(styled((f"The first divergence: {_name(found.a)} has {_KINDS[found.kind]}{by}.", "bold red")))
    if found.difference is not None and found.tolerance is not None:
        if is_counted:
            may = f", {found.tolerance:.0f} may" if found.tolerance >= 1 else ""
            out.print(styled(f"    {found.difference:.6g} of {found.a.size:,} elements differ{may}"))
        else:
            out.print(styled(f"    {found.difference:.6g} is the greatest difference, {found.tolerance:.3g} may be"))
    for name, side in (("A", found.a), ("B", found.b)):
        out.print(styled(f"  {name}  ", (_name(side), "bold"), _where(side)))
        out.print(styled(f"     {facts_text(side)}{_magnitudes(side)}"))
        if side.source is not None:
            code = "" if side.source.code is None else f"  {printable_line(side.source.code)}"
            out.print(styled((f"     {side.source.file_path}:{side.source.lineno}{code}", "dim")))
    if found.worst is not None:
        place = f"[{', '.join(map(str, found.worst.index))}]" if found.worst.index else "the element"
        out.print(styled(f"  furthest apart: {place}, {_number(found.worst.a)} in A, {_number(found.worst.b)} in B"))
    for note in found.notes:
        out.print(styled(f"  {note}"))
    if found.inputs:
        out.print(styled("  made of" if found.is_proven else "  made of, as far as it is known"))
        for input_ in found.inputs:
            apart = "not aligned" if input_.b is None else "not comparable" if input_.excess is None else None
            apart = apart or ("equal" if not input_.excess else f"{input_.excess:.3g} of the tolerance apart")
            out.print(styled(f"     {_name(input_.a)}", _where(input_.a), (f": {apart}", "dim")))


def _is_counted(found: Divergence) -> bool:
    is_exact = found.a.dtype is not None and not found.a.dtype.startswith(("float", "bfloat", "complex"))
    return found.kind == "counts" or (found.kind == "values" and is_exact)


def _number(value: object) -> str:
    return f"{value:.8g}" if isinstance(value, (float, complex)) else str(value)


def _magnitudes(side: DiffTensor) -> str:
    if side.min_finite is None or side.max_finite is None or side.mean_finite is None:
        return ""
    return f", from {side.min_finite:.6g} to {side.max_finite:.6g}, mean {side.mean_finite:.6g}"


def _name(side: DiffTensor | UnalignedOp) -> str:
    slot = f":{side.output_slot}" if isinstance(side, DiffTensor) and side.output_slot is not None else ""
    if side.op_type is None:
        return "a tensor from outside"
    return f"{side.op_type}{slot}, run eagerly" if side.op_name is None else f"{side.op_name}{slot} ({side.op_type})"


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
            times = " of those times that it ran" if op.is_in_other else ""
            out.print(styled(f"  {_name(op)}{graph}: {op.num_tensors:,} tensors{times}", (where, "dim")))
    if found.is_cut:
        out.print(styled(("  …; --limit lists more", "dim")))
