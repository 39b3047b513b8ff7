"""The sentences of a comparison, as the command line and the viewer show them."""

from __future__ import annotations

from tfdbg_arrow.query.diff.answer import Diff, DiffInput, DiffTensor, Divergence, UnalignedOp
from tfdbg_arrow.query.untrusted_json import parse_json

_KINDS = {
    "shape": "a different shape",
    "dtype": "a dtype of a different kind",
    "nonfinite": "different NaN or infinities",
    "values": "different values",
    "magnitudes": "different magnitudes",
    "counts": "different numbers of negative, zero or positive elements",
}


def outcome_text(found: Diff) -> str:
    """Returns whether and where two runs diverge, as a sentence."""
    if found.divergence is not None:
        by = found.divergence.excess
        times = "" if by is None or _is_counted(found.divergence) else f", apart by {by:,.4g} times the tolerance"
        kind = _KINDS[found.divergence.kind]
        return f"The first divergence: {diff_name(found.divergence.a)} has {kind}{times}."
    nothing = "Nothing diverges" if found.num_compared else "Nothing could be compared"
    return f"{nothing}: {aligned_text(found)}."


def aligned_text(found: Diff) -> str:
    """Returns how much was compared, as the beginning of a sentence."""
    pairs = f"{found.num_compared:,} tensor pair(s) were compared"
    return f"{pairs} in {found.num_aligned_executions:,} execution pair(s)"


def differing_text(found: Diff) -> str | None:
    """Returns why tensors differ although nothing diverges, or None if none differ or if something diverges."""
    if found.divergence is not None or not found.num_differing:
        return None
    return (
        f"{found.num_differing:,} tensors differ by more than the tolerance, but no single op caused this: the "
        "differences grew from op to op, as rounding errors do."
    )


def difference_text(found: Divergence) -> str | None:
    """Returns how far the sides of a divergence are apart, or None if there is no measure."""
    if found.difference is None or found.tolerance is None:
        return None
    if _is_counted(found):
        may = f", and {found.tolerance:.0f} may differ" if found.tolerance >= 1 else ""
        return f"{found.difference:.6g} of {found.a.size:,} elements differ{may}"
    return f"The greatest difference is {found.difference:.6g}, and the tolerance is {found.tolerance:.3g}"


def worst_text(found: Divergence) -> str | None:
    """Returns the elements that are furthest apart, or None if they are not known."""
    if found.worst is None:
        return None
    place = f"[{', '.join(map(str, found.worst.index))}]" if found.worst.index else "the element"
    return f"{place}, {_number(found.worst.a)} in A, {_number(found.worst.b)} in B"


def apart_text(input_: DiffInput) -> str:
    """Returns how far an input is from its counterpart."""
    if input_.b is None:
        return "not aligned"
    if input_.excess is None:
        return "not comparable"
    return f"{input_.excess:.3g} times the tolerance apart" if input_.excess else "equal"


def diff_name(side: DiffTensor | UnalignedOp) -> str:
    """Returns a tensor's name and type, or an op's."""
    slot = f":{side.output_slot}" if isinstance(side, DiffTensor) and side.output_slot is not None else ""
    if side.op_type is None:
        return "a tensor from outside"
    return f"{side.op_type}{slot}, run eagerly" if side.op_name is None else f"{side.op_name}{slot} ({side.op_type})"


def setting_text(name: str, value: str | None) -> str:
    """Returns the value of a setting in a run as text."""
    if value is None:
        return "none"
    if name == "command_line":
        try:
            return " ".join(map(str, parse_json(value)))
        except ValueError:
            return value
    return value


def _is_counted(found: Divergence) -> bool:
    is_exact = found.a.dtype is not None and not found.a.dtype.startswith(("float", "bfloat", "complex"))
    return found.kind == "counts" or (found.kind == "values" and is_exact)


def _number(value: object) -> str:
    return f"{value:.8g}" if isinstance(value, (float, complex)) else str(value)
