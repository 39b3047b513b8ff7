"""The blocks of answers about tensors: bad tensors and why they went bad, paths between tensors, and their history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from tfdbg_arrow.query import wording
from tfdbg_arrow.query.headline import executed_code, is_of_library
from tfdbg_arrow.query.present.blocks import Blocks, Code, Facts, Heading, Line, Span
from tfdbg_arrow.query.stacks import short_place
from tfdbg_arrow.safe_text import number_of, printable_line, some_of

if TYPE_CHECKING:
    from tfdbg_arrow.query.explanation import Explanation, Growth, Reasons
    from tfdbg_arrow.query.nonfinite_tensor import NonFinite
    from tfdbg_arrow.query.recorded import TensorHealth
    from tfdbg_arrow.query.stacks import Frame, SourceLine
    from tfdbg_arrow.query.tensor_history import HistoryRow
    from tfdbg_arrow.query.trace_back import Provenance, TensorHop
    from tfdbg_arrow.query.trace_forward import Spread, SpreadHop

_AnyHop = TypeVar("_AnyHop", bound="TensorHop")
_NUM_FIRST = 3
"""Number of tensors at the start of a long path, next to the given tensor, that are shown without --full."""
_NUM_LAST = 7
"""Number of tensors at the end of a long path that are shown without --full: the origin, its inputs, and a few more."""
_MAX_INDENT = 40
"""Maximum indentation in characters. It leaves half of a terminal with 80 columns for the text."""
_NUM_SPREAD = 20
"""Number of spoilt tensors that are shown without --full. A line counts the others."""
_NUM_NAMES = 5
"""Maximum number of names in a line. The line counts the others."""
ROLES: Mapping[str, str] = {
    "origin": "it went bad here",
    "candidate": "bad here; an input was not recorded",
    "cause": "healthy",
    "infinite": "infinite",
    "literal": "infinite from the start",
    "unfollowed": "not followed any further",
}
"""The meaning of a hop's role. Roles that need no explanation are missing."""
HARMLESS_ORIGIN = "it began here"
"""The meaning of the role `origin` on the path of a value that did no harm."""


def nonfinite(tensor: NonFinite, reasons: Reasons | None = None, source_lines: Sequence[SourceLine] = ()) -> Blocks:
    """Yields a bad tensor: its headline, the reasons, its op, effect, inputs, stack and callers, and its source.

    Args:
        tensor: The bad tensor.
        reasons: Why the tensor went bad; None if the reasons were not requested.
        source_lines: The lines around the line of its op.
    """
    yield _headline(tensor)
    if reasons is not None:
        yield from _reasons_of(tensor, reasons)
    yield Facts(wording.nonfinite_facts(tensor))
    if tensor.inputs:
        yield Heading("inputs")
    for input_ in tensor.inputs:
        yield Line((f"{input_.index:<3}", "quiet"), wording.producer_text(input_), indent=2)
        yield Line((wording.input_health_text(input_), "quiet" if input_.health is None else ""), indent=5)
    yield from _stack(tensor.stack)
    calls = wording.call_lines(tensor)
    if calls:
        yield Heading("called from, innermost first")
    for call in calls:
        yield Line(call, indent=2)
    if tensor.source is not None and (source_lines or tensor.source not in tensor.stack):
        yield Heading("source ", tensor.source.place)
        yield Code(tuple(_source(tensor.source, source_lines)))


def nonfinite_in_brief(tensor: NonFinite, reasons: Reasons, *other_facts: tuple[str, str]) -> Blocks:
    """Yields a bad tensor with further facts but without its stack, for an error message that has its own stack."""
    yield _headline(tensor)
    yield from _reasons_of(tensor, reasons)
    facts = wording.nonfinite_facts(tensor)
    for input_ in tensor.inputs:
        facts.append((f"input {input_.index}", f"{wording.producer_text(input_)}: {wording.input_health_text(input_)}"))
    if tensor.source is not None:
        facts.append(("source", wording.frame_text(tensor.source)))
    yield Facts([*facts, *(("called", call) for call in wording.call_lines(tensor)), *other_facts])


def verdict(tensor: NonFinite, reasons: Reasons) -> Iterator[Line]:
    """Yields the headline, the reasons, the effect and the samples of a bad tensor, and other bugs in the same call."""
    yield _headline(tensor)
    yield from _reasons_of(tensor, reasons)
    is_of_part = is_of_library(tensor) or tensor.role == "optimizer"
    if tensor.made_at is not None and is_of_part and not tensor.is_expected:
        code = "" if tensor.made_at.code is None else f": {tensor.made_at.code}"
        yield Line(f"Created at {short_place(tensor.made_at)}{code}")
    yield from _effect(tensor)
    yield from _samples(tensor)
    yield from _also_bad(tensor)


def _also_bad(tensor: NonFinite) -> Iterator[Line]:
    for line in tensor.also_bad:
        code = "" if line.code is None else f"{executed_code(line, None)} at "
        yield Line(f"Also bad in the same call, and may need a fix of its own: {code}{short_place(line)}.")


def nonfinite_line(tensor: NonFinite) -> Line:
    """Returns a bad tensor in one line."""
    return Line(*_headline(tensor).spans, f" Event {tensor.event_index}: ", wording.op_text(tensor))


def reasons(answer: Reasons) -> Blocks:
    """Yields why a tensor went bad, and how to fix it."""
    known_reasons = [known_reason for known_reason in (answer.explanation, answer.growth) if known_reason is not None]
    for known_reason in known_reasons:
        yield from reason(known_reason)
    if not known_reasons:
        yield Line("the counts do not prove why it went bad")


def reason(answer: Explanation | Growth) -> Iterator[Line]:
    """Yields one reason, and how to fix it."""
    yield from _reason(answer.sentence, answer.repair)


def health(tensor: TensorHealth) -> Blocks:
    """Yields the health of a tensor."""
    facts: Span = wording.facts_text(tensor), "bad" if tensor.has_inf_or_nan else ""
    yield Line(("event ", "quiet"), f"{tensor.event_index}: ", facts)


def history_row(row: HistoryRow) -> Blocks:
    """Yields one computation of a tensor, and the tensor's elements if they were requested."""
    slot = "" if row.output_slot is None else f":{row.output_slot}"
    name = f"{row.op_name or row.op_type or 'a tensor from outside'}{slot}"
    step = "" if row.step is None else f" step {row.step}"
    iteration = f" iteration {row.iteration}" if row.iteration else ""
    graph = "" if row.graph_name is None else f" in {row.graph_name}"
    title: Span = f"{name}{step}{iteration}{graph}", "bad" if row.has_inf_or_nan else "bold"
    numbers = wording.range_text(row, digits=4)
    yield Line((f"{row.event_index:>8}  ", "quiet"), title, f"  {wording.facts_text(row)}", numbers and f"  {numbers}")
    if row.values is not None:
        elements = (
            f"{element:.6g}" if isinstance(element, (float, complex)) else str(element) for element in row.values
        )
        ending = ", …" if row.size is not None and row.size > len(row.values) else ""
        yield Line((f"{', '.join(elements)}{ending}", "quiet"), indent=10)


def provenance(answer: Provenance, start: NonFinite | None = None, *, tree: bool = False, full: bool = True) -> Blocks:
    """Yields the path from a bad tensor back to its origin.

    Args:
        answer: The path or paths.
        start: The tensor, if its headline and its samples are to be shown.
        tree: Whether to show all paths.
        full: Whether to show every tensor of a long path.
    """
    origin = answer.origin
    lines: list[Line] = [] if start is None else [_headline(start)]
    if origin is not None:
        lines += _reason(origin.why, origin.repair)
        lines += [] if answer.growth is None else reason(answer.growth)
    lines += _effect(answer)
    lines += [] if start is None else [*_samples(start), *_also_bad(start)]
    yield from lines
    if lines:
        yield Line()
    # If the value did no harm, no note calls a hop bad.
    notes = ROLES if answer.expected_reason is None else {**ROLES, "origin": HARMLESS_ORIGIN}
    if tree:
        ordered = list(_in_tree_order(answer.hops, (hop.user_hop_index for hop in answer.hops)))
    else:
        ordered = [(hop, 2 * (hop.is_input or hop.role == "literal")) for hop in reversed(answer.path)]
    num_folded = 0 if tree or full else max(0, len(ordered) - _NUM_FIRST - _NUM_LAST)
    for index, (hop, depth) in enumerate(ordered):
        if index == _NUM_FIRST and num_folded:
            yield Line((f"... {num_folded:,} more tensors on the path; --full shows them", "quiet"))
        if not _NUM_FIRST <= index < _NUM_FIRST + num_folded:
            yield from _hop(hop, note=notes.get(hop.role), indent=2 * depth)
    yield from _cut(answer)


def provenance_text(answer: Provenance) -> str:
    """Returns both ends of the path in one line."""
    origin = "the origin is not known" if answer.origin is None else f"from {wording.output_text(answer.origin)}"
    end = f" to {wording.output_text(answer.hops[0])}" if answer.hops else ""
    return f"{origin}{end}: {number_of(len(answer.path), 'tensor')} on the path"


def spread(answer: Spread, start: NonFinite | None = None, *, full: bool = True) -> Blocks:
    """Yields the tensors that a bad tensor made bad: totals, then each tensor once, below the tensor that it came from.

    Args:
        answer: The tensors that became bad.
        start: The tensor, if its headline is to be shown.
        full: Whether to show every tensor, not only the first tensors.
    """
    if start is not None:
        yield _headline(start)
    number = len(answer.hops) - 1
    created = " or created by its gradient" if any(hop.how == "gradient" for hop in answer.hops) else ""
    computed = number_of(number, "tensor was computed", "tensors were computed")
    text = f"{computed} from it{created} and {'is' if number == 1 else 'are'} bad"
    if answer.returned_by:
        text += f"; returned to eager code by {some_of(answer.returned_by, _NUM_NAMES)}"
    if answer.variables:
        text += f"; written to variables {some_of(_numbers(answer.variables), _NUM_NAMES)}"
    yield Line((f"{text}.", "bold"))
    yield from _effect(answer)
    yield Line()
    num_more = 0 if full else max(0, len(answer.hops) - _NUM_SPREAD)
    ordered = list(_in_tree_order(answer.hops, (hop.source_hop_index for hop in answer.hops)))
    for hop, depth in ordered[: len(ordered) - num_more]:
        yield from _hop(hop, note=_reach(hop), indent=2 * depth)
    if num_more:
        yield Line((f"... {number_of(num_more, 'more tensor')}; --full shows all", "quiet"))
    yield from _cut(answer)


def tensor_hop(hop: TensorHop) -> Blocks:
    """Yields one tensor of a path."""
    yield from _hop(hop, note=ROLES.get(getattr(hop, "role", "")))


def code_line(source: Frame | None, *, indent: int) -> Iterator[Line]:
    """Yields the line of the user's code that made the item in the line above."""
    if source is not None:
        code = "" if source.code is None else f"  {source.code}"
        yield Line((f"{source.place}{code}", "quiet"), indent=indent)


def _headline(tensor: NonFinite) -> Line:
    return Heading((tensor.headline, "bold" if tensor.is_expected else "bad"))


def _reasons_of(tensor: NonFinite, reasons: Reasons) -> Iterator[Line]:
    """Yields why a tensor went bad and, unless it did no harm, how to fix it."""
    if reasons.explanation is not None:
        yield from _reason(reasons.explanation.sentence, None if tensor.is_expected else reasons.explanation.repair)
    if reasons.growth is not None and not tensor.is_expected:
        yield from reason(reasons.growth)


def _reason(sentence: str | None, repair: str | None) -> Iterator[Line]:
    if sentence is not None:
        yield Line(sentence)
    if repair is not None:
        yield Line(f"To fix it: {repair}")


def _effect(answer: NonFinite | Provenance | Spread) -> Iterator[Line]:
    """Yields the harm that a bad value did; no line if the harm is not known."""
    text = wording.effect_text(answer)
    if text is not None:
        yield Line(f"Effect: {text}.")


def _samples(tensor: NonFinite) -> Iterator[Line]:
    """Yields the bad slices of a tensor, or the origin of the bad samples that the headline names."""
    text = (
        wording.slices_text(tensor, None) if tensor.samples is None else "; ".join(wording.data_texts(tensor.samples))
    )
    if text:
        yield Line(f"{text[0].upper()}{text[1:]}.")
    if tensor.samples is not None and tensor.samples.first_sample:
        inputs = ", ".join(f"{name} = {text}" for name, text in wording.sample_texts(tensor.samples))
        yield Line(f"{tensor.samples.unit.capitalize()} {tensor.samples.first:,}: {inputs}.")


def _stack(stack: Sequence[Frame]) -> Iterator[Line]:
    if stack:
        yield Heading("stack, innermost first")
    for frame in stack:
        if frame.is_user:
            yield Line(f"{frame.place} in {frame.func}", indent=2)
            if frame.code:
                yield Line((frame.code, "bold"), indent=6)
    owners = [frame.owner for frame in stack if frame.owner != "user"]
    if owners:
        counts = " and ".join(f"{owners.count(owner)} {owner}" for owner in sorted(set(owners)))
        yield Line((f"and {counts} {'frames' if len(owners) > 1 else 'frame'}", "quiet"), indent=2)


def _source(source: Frame, lines: Sequence[SourceLine]) -> Iterator[Line]:
    """Yields the lines around a line, and marks the executed part. Without these lines, yields only the line."""
    if not lines:
        yield Line((source.code or "", "bold"), indent=2)
        return
    width = len(str(lines[-1].lineno))
    for line in lines:
        is_it = line.lineno == source.lineno
        text = f"{'>' if is_it else ' '} {line.lineno:>{width}} | {printable_line(line.text)}"
        yield Line((text.rstrip(), "bold" if is_it else ""))
        marks = wording.carets(source, line.text) if is_it else None
        if marks is not None:
            yield Line((f"  {'':>{width}} | {marks}", "bad"))


def _hop(hop: TensorHop, *, note: str | None, indent: int = 0) -> Iterator[Line]:
    indent = min(indent, _MAX_INDENT)
    noted: Span = "" if note is None else (f"  <- {note}", "bold" if note == ROLES["origin"] else "quiet")
    name: Span = wording.output_text(hop), "bad" if hop.has_inf_or_nan else "bold"
    yield Line(name, _place(hop), noted, indent=indent)
    yield Line(wording.facts_text(hop), indent=indent + 4)
    yield from code_line(hop.source, indent=indent + 4)
    if hop.made_at is not None:
        yield Line((f"created at {wording.made_at_text(hop.made_at)}", "quiet"), indent=indent + 4)


def _place(hop: TensorHop) -> str:
    """Returns the graph, layer, iteration and step of a hop, and how its tensor reached the next op."""
    facts = (
        None if hop.forward_op_type is None else f"gradient of {hop.forward_op_type}",
        None if hop.layer is None else f"layer {hop.layer}",
        None if hop.iteration is None else f"iteration {hop.iteration}",
        None if hop.step is None else f"step {hop.step}",
        wording.HOW.get(hop.how),
    )
    graph = "" if hop.graph_name is None else f" in {hop.graph_name}"
    return graph + "".join(f", {fact}" for fact in facts if fact is not None)


def _in_tree_order(hops: Sequence[_AnyHop], parents: Iterable[int | None]) -> Iterator[tuple[_AnyHop, int]]:
    """Yields each hop once with its depth, below the hop that led to it.

    Args:
        hops: The hops.
        parents: For each hop, the index of the hop that led to it; None for the start of the search.
    """
    children: dict[int | None, list[_AnyHop]] = {}
    for hop, parent in zip(hops, parents, strict=True):
        children.setdefault(parent, []).append(hop)
    to_show = [(hop, 0) for hop in reversed(children[None])]
    while to_show:
        hop, depth = to_show.pop()
        yield hop, depth
        to_show += [(child, depth + 1) for child in reversed(children.get(hop.hop_index, []))]


def _reach(hop: SpreadHop) -> str | None:
    """Returns the functions that returned a tensor, and the variables that hold it; None if it stayed in its graph."""
    returned = [f"returned by {some_of(hop.returned_by, _NUM_NAMES)}"] if hop.returned_by else []
    written = [f"written to variable {some_of(_numbers(hop.variables), _NUM_NAMES)}"] if hop.variables else []
    return "; ".join(returned + written) or None


def _numbers(variables: Sequence[int]) -> list[str]:
    return [f"#{variable}" for variable in variables]


def _cut(answer: Provenance | Spread) -> Iterator[Line]:
    if answer.is_cut:
        yield Line()
        text = f"The search stopped after {number_of(len(answer.hops), 'tensor')}"
        yield Line((text, "bold"), ("; --limit raises the limit", "option"), (".", "bold"))
