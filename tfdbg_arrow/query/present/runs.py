"""The blocks of answers about two runs: where they diverge, by layer and by op."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tfdbg_arrow.query import wording
from tfdbg_arrow.query.present.blocks import Blocks, Heading, Line, Span
from tfdbg_arrow.query.present.models import parted_layers
from tfdbg_arrow.query.present.tensors import code_line
from tfdbg_arrow.safe_text import number_of, parse_json

if TYPE_CHECKING:
    from tfdbg_arrow.query.model_health.answers import LayerDifferences
    from tfdbg_arrow.query.run_diff.answer import Diff, DiffInput, DiffTensor, Divergence

_KINDS = {
    "shape": "a different shape",
    "dtype": "a dtype of a different kind",
    "nonfinite": "different NaN or infinities",
    "values": "different values",
    "magnitudes": "different magnitudes",
    "counts": "different numbers of negative, zero or positive elements",
}
"""The ways in which two tensors can differ (`Divergence.kind`), in words."""


def diff(answer: Diff, layers: LayerDifferences | None = None) -> Blocks:
    """Yields a comparison: layers, the divergent op, the parts that only one run has, and other differences."""
    yield Line(f"A: {answer.run_a}")
    yield Line(f"B: {answer.run_b}")
    if layers is not None:
        yield from parted_layers(layers)
    yield Heading((outcome_text(answer), "bold" if answer.divergence is None else "bad"))
    differing = differing_text(answer)
    if differing is not None:
        yield Line(differing)
    if answer.divergence is not None:
        yield from _divergence(answer.divergence)
        yield Line()
        yield Line(f"{aligned_text(answer)}, {answer.num_differing:,} differ by more than the tolerance.")
    if answer.is_search_cut:
        yield Line(("There are too many candidates for the first divergence; not all were examined.", "bold"))
    for change in answer.dtype_changes:
        tensors = number_of(change.num_tensors, "tensor is", "tensors are")
        yield Line(f"{tensors} {change.a} in A and {change.b} in B.")
    for text in answer.incomparable:
        yield Line((text, "warning"))
    yield from _unaligned(answer)
    if answer.environment:
        yield Heading("Other differences")
    for setting in answer.environment:
        a, b = (setting_text(setting.name, value) for value in (setting.a, setting.b))
        yield Line(f"{setting.name}: ", a, ("  |  ", "quiet"), b, indent=2)


def diff_tensor(side: DiffTensor, name: str = "") -> Iterator[Line]:
    """Yields one side of two compared tensors."""
    numbers = wording.range_text(side, digits=6)
    yield Line(name, (wording.output_text(side), "bold"), _where(side), indent=2)
    yield Line(wording.facts_text(side), numbers and f", {numbers}", indent=5)
    yield from code_line(side.source, indent=5)


def outcome_text(answer: Diff) -> str:
    """Returns whether and where two runs diverge, as a sentence."""
    if answer.divergence is not None:
        by = answer.divergence.excess
        times = "" if by is None or _is_counted(answer.divergence) else f", apart by {by:,.4g} times the tolerance"
        kind = _KINDS[answer.divergence.kind]
        return f"The first divergence: {wording.output_text(answer.divergence.a)} has {kind}{times}."
    nothing = "Nothing diverges" if answer.num_compared else "Nothing could be compared"
    return f"{nothing}: {aligned_text(answer)}."


def aligned_text(answer: Diff) -> str:
    """Returns how much was compared, as the beginning of a sentence."""
    pairs = number_of(answer.num_compared, "pair of tensors was", "pairs of tensors were")
    return f"{pairs} compared in {number_of(answer.num_aligned_executions, 'pair')} of executions"


def differing_text(answer: Diff) -> str | None:
    """Returns why tensors differ although nothing diverges, or None if no tensor differs or if something diverges."""
    if answer.divergence is not None or not answer.num_differing:
        return None
    differ = number_of(answer.num_differing, "tensor differs", "tensors differ")
    return (
        f"{differ} by more than the tolerance, but no single op caused this: the "
        "differences grew from op to op, as rounding errors do."
    )


def difference_text(divergence: Divergence) -> str | None:
    """Returns the difference between the two sides of a divergence, or None if there is no measure."""
    if divergence.difference is None or divergence.tolerance is None:
        return None
    if _is_counted(divergence):
        may = f", and {divergence.tolerance:.0f} may differ" if divergence.tolerance >= 1 else ""
        return f"{divergence.difference:.6g} of {number_of(divergence.a.size, 'element')} differ{may}"
    return f"The greatest difference is {divergence.difference:.6g}, and the tolerance is {divergence.tolerance:.3g}"


def worst_text(divergence: Divergence) -> str | None:
    """Returns the elements that are furthest apart, or None if they are not known."""
    if divergence.worst is None:
        return None
    element = f"[{', '.join(map(str, divergence.worst.index))}]" if divergence.worst.index else "the element"
    return f"{element}, {_number(divergence.worst.a)} in A, {_number(divergence.worst.b)} in B"


def apart_text(input_: DiffInput) -> str:
    """Returns the difference between an input and its counterpart in the other run."""
    if input_.b is None:
        return "not aligned"
    if input_.excess is None:
        return "not comparable"
    return f"{input_.excess:.3g} times the tolerance apart" if input_.excess else "equal"


def setting_text(name: str, value: str | None) -> str:
    """Returns the value of a setting in a run as text."""
    if value is None:
        return "none"
    return command_text(value) if name == "command_line" else value


def command_text(command_line: str) -> str:
    """Returns a recorded command line as text."""
    words = command_words(command_line)
    return command_line if words is None else " ".join(words)


def command_words(command_line: str) -> list[str] | None:
    """Returns the words of a recorded command line, which is a JSON list; None if it is something else."""
    try:
        words = parse_json(command_line)
    except ValueError:
        return None
    return list(map(str, words)) if isinstance(words, list) else None


def _divergence(divergence: Divergence) -> Iterator[Line]:
    difference, worst = difference_text(divergence), worst_text(divergence)
    if difference is not None:
        yield Line(difference, indent=4)
    yield from diff_tensor(divergence.a, "A  ")
    yield from diff_tensor(divergence.b, "B  ")
    if worst is not None:
        yield Line(f"furthest apart: {worst}", indent=2)
    for note in divergence.notes:
        yield Line(note, indent=2)
    if divergence.inputs:
        yield Line("computed from" if divergence.is_proven else "computed from, as far as known", indent=2)
    for input_ in divergence.inputs:
        yield Line(wording.output_text(input_.a), _where(input_.a), (f": {apart_text(input_)}", "quiet"), indent=5)


def _where(side: DiffTensor) -> str:
    facts = (
        None if side.graph_name is None else f"in {side.graph_name}",
        f"iteration {side.iteration}" if side.iteration else None,
        None if side.step is None else f"step {side.step}",
        None if side.execution_index is None else f"execution {side.execution_index}",
    )
    return "".join(f", {fact}" for fact in facts if fact is not None)


def _unaligned(answer: Diff) -> Blocks:
    for side, only in (("a", answer.only_a), ("b", answer.only_b)):
        if not (only.num_tensors or only.num_executions or only.num_ops):
            continue
        tensors, executions = number_of(only.num_tensors, "tensor"), number_of(only.num_executions, "execution")
        ops = f"{number_of(only.num_ops, 'op')} of the graphs that both have"
        yield Heading(f"Only {side.upper()} has {tensors}, {executions} and {ops}")
        for op in answer.unaligned:
            if op.side == side:
                graph = "" if op.graph_name is None else f" in {op.graph_name}"
                times = " in executions that only this run has" if op.is_in_other else ""
                where: Span = "" if op.source is None else (f"  {op.source.place}", "quiet")
                text = f"{wording.output_text(op)}{graph}: {number_of(op.num_tensors, 'tensor')}{times}"
                yield Line(text, where, indent=2)
    if answer.is_cut:
        yield Line("…", ("; raise --limit to list more", "option"), indent=2)


def _is_counted(divergence: Divergence) -> bool:
    is_exact = divergence.a.dtype is not None and not divergence.a.dtype.startswith(("float", "bfloat", "complex"))
    return divergence.kind == "counts" or (divergence.kind == "values" and is_exact)


def _number(value: object) -> str:
    return f"{value:.8g}" if isinstance(value, (float, complex)) else str(value)
