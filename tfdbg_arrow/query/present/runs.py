"""Where two runs part, by layer and by op."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tfdbg_arrow.query.present.blocks import Block, Heading, Item, Line, Span, items
from tfdbg_arrow.query.present.tensors import code_line
from tfdbg_arrow.query.wording import facts_text
from tfdbg_arrow.safe_text import number_of

if TYPE_CHECKING:
    from tfdbg_arrow.query.model_health.answers import LayerDifferences
    from tfdbg_arrow.query.run_diff.answer import Diff, DiffTensor, Divergence


def diff(found: Diff, layers: LayerDifferences | None = None) -> Iterator[Block]:
    """Yields a comparison: layers, the divergent op, what only one run has, and other differences of the runs."""
    from tfdbg_arrow.query.present.models import parted_layers
    from tfdbg_arrow.query.run_diff.answer import aligned_text, differing_text, outcome_text, setting_text

    yield Line(f"A: {found.run_a}")
    yield Line(f"B: {found.run_b}")
    if layers is not None:
        yield from parted_layers(layers)
    yield Heading((outcome_text(found), "bold" if found.divergence is None else "bad"))
    differing = differing_text(found)
    if differing is not None:
        yield Line(differing)
    if found.divergence is not None:
        yield from _divergence(found.divergence)
        yield Line()
        yield Line(f"{aligned_text(found)}, {found.num_differing:,} differ by more than the tolerance.")
    if found.is_search_cut:
        yield Line(("There are too many candidates for the first divergence; not all were examined.", "bold"))
    changes = [
        f"{number_of(change.num_tensors, 'tensor is', 'tensors are')} {change.a} in A and {change.b} in B."
        for change in found.dtype_changes
    ]
    yield items(*((Line(text),) for text in changes), *((Line((text, "warning")),) for text in found.incomparable))
    yield from _unaligned(found)
    if found.environment:
        yield Heading("Other differences")
        yield items(
            *(
                (
                    Line(
                        f"{setting.name}: ",
                        setting_text(setting.name, setting.a),
                        ("  |  ", "quiet"),
                        setting_text(setting.name, setting.b),
                        indent=2,
                    ),
                )
                for setting in found.environment
            )
        )


def diff_text(found: Diff) -> str:
    """Returns whether and where two runs diverge, as a sentence."""
    from tfdbg_arrow.query.run_diff.answer import outcome_text

    return outcome_text(found)


def diff_tensor(side: DiffTensor) -> Iterator[Block]:
    """Yields one side of two compared tensors."""
    yield items(_side(side))


def _divergence(found: Divergence) -> Iterator[Block]:
    from tfdbg_arrow.query.run_diff.answer import apart_text, diff_name, difference_text, worst_text

    difference, worst = difference_text(found), worst_text(found)
    if difference is not None:
        yield Line(difference, indent=4)
    yield items(_side(found.a, "A  "), _side(found.b, "B  "))
    if worst is not None:
        yield Line(f"furthest apart: {worst}", indent=2)
    yield items(*((Line(note, indent=2),) for note in found.notes))
    if found.inputs:
        yield Line("computed from" if found.is_proven else "computed from, as far as known", indent=2)
        inputs = [
            Line(diff_name(each.a), _where(each.a), (f": {apart_text(each)}", "quiet"), indent=5)
            for each in found.inputs
        ]
        yield items(*((line,) for line in inputs))


def _side(side: DiffTensor, name: str = "") -> Item:
    from tfdbg_arrow.query.run_diff.answer import diff_name

    least, greatest, mean = side.min_finite, side.max_finite, side.mean_finite
    magnitudes = (
        ""
        if least is None or greatest is None or mean is None
        else f", from {least:.6g} to {greatest:.6g}, mean {mean:.6g}"
    )
    return (
        Line(name, (diff_name(side), "bold"), _where(side), indent=2),
        Line(f"{facts_text(side)}{magnitudes}", indent=5),
        *(() if side.source is None else (code_line(side.source, indent=5),)),
    )


def _where(side: DiffTensor) -> str:
    facts = [
        None if side.graph_name is None else f"in {side.graph_name}",
        f"iteration {side.iteration}" if side.iteration else None,
        None if side.step is None else f"step {side.step}",
        None if side.execution_index is None else f"execution {side.execution_index}",
    ]
    return "".join(f", {fact}" for fact in facts if fact is not None)


def _unaligned(found: Diff) -> Iterator[Block]:
    from tfdbg_arrow.query.run_diff.answer import diff_name

    for side, only in (("a", found.only_a), ("b", found.only_b)):
        if not (only.num_tensors or only.num_executions or only.num_ops):
            continue
        tensors, executions = number_of(only.num_tensors, "tensor"), number_of(only.num_executions, "execution")
        ops = f"{number_of(only.num_ops, 'op')} of the graphs that both have"
        yield Heading(f"Only {side.upper()} has {tensors}, {executions} and {ops}")
        lines = []
        for op in found.unaligned:
            if op.side == side:
                graph = "" if op.graph_name is None else f" in {op.graph_name}"
                times = " in executions that only this run has" if op.is_in_other else ""
                where: Span = "" if op.source is None else (f"  {op.source.place}", "quiet")
                text = f"{diff_name(op)}{graph}: {number_of(op.num_tensors, 'tensor')}{times}"
                lines.append(Line(text, where, indent=2))
        yield items(*((line,) for line in lines))
    if found.is_cut:
        yield Line("…", ("; raise --limit to list more", "option"), indent=2)
