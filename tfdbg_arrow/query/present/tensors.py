"""What answers about tensors say: bad ones and why they went bad, paths between them, and their history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from tfdbg_arrow.query.present.blocks import EMPTY, Block, Code, Facts, Heading, Item, Line, Span, items
from tfdbg_arrow.query.wording import (
    HOP_ROLES,
    call_lines,
    carets,
    facts_text,
    frame_text,
    harm_text,
    hop_place_text,
    hop_text,
    input_health_text,
    made_at_text,
    nonfinite_facts,
    op_text,
    place_facts,
    producer_text,
    spread_text,
)
from tfdbg_arrow.safe_text import number_of, printable_line

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
_NUM_LAST = 7
_MAX_INDENT = 40
_NUM_SPREAD = 20
_NUM_NAMES = 5


def nonfinite(
    found: NonFinite, reasons: Reasons | None = None, source_lines: Sequence[SourceLine] = ()
) -> Iterator[Block]:
    """Yields a bad tensor: its headline, the reasons, its op, effect, inputs, stack and callers, and its source.

    Args:
        found: The tensor.
        reasons: Why it went bad; None if that was not asked for.
        source_lines: The lines around the line of its op.
    """
    yield _headline(found)
    if reasons is not None:
        yield from _reasons_of(found, reasons)
    yield Facts(nonfinite_facts(found))
    if found.inputs:
        yield Heading("inputs")
        yield items(
            *(
                (
                    Line((f"{each.index:<3}", "quiet"), producer_text(each), indent=2),
                    Line((input_health_text(each), "quiet" if each.health is None else ""), indent=5),
                )
                for each in found.inputs
            )
        )
    yield from _stack(found.stack)
    calls = call_lines(found)
    if calls:
        yield Heading("called from, innermost first")
        yield items(*((Line(call, indent=2),) for call in calls))
    if found.source is not None and (source_lines or found.source not in found.stack):
        yield Heading("source ", found.source.place)
        yield Code(tuple(_source(found.source, source_lines)))


def nonfinite_in_brief(found: NonFinite, reasons: Reasons, *more: tuple[str, str]) -> Iterator[Block]:
    """Yields a bad tensor for an error message, which has a stack of its own.

    Args:
        found: The tensor.
        reasons: Why it went bad.
        *more: Further facts.
    """
    yield _headline(found)
    yield from _reasons_of(found, reasons)
    yield Facts(
        [
            *nonfinite_facts(found),
            *((f"input {each.index}", f"{producer_text(each)}: {input_health_text(each)}") for each in found.inputs),
            *([] if found.source is None else [("source", frame_text(found.source))]),
            *(("called", line) for line in call_lines(found)),
            *more,
        ]
    )


def verdict(found: NonFinite, why: Reasons) -> Iterator[Line]:
    """Yields the headline, the reasons, the effect and the samples of a bad tensor."""
    yield _headline(found)
    yield from _reasons_of(found, why)
    yield from _effect(found.effect, found.expected_reason)
    yield from _samples(found)


def nonfinite_line(found: NonFinite) -> Line:
    """Returns a bad tensor in one line."""
    return Line((found.headline, "bad"), f" Event {found.event_index}: ", op_text(found))


def reasons(found: Reasons) -> Iterator[Block]:
    """Yields why a tensor went bad, and how to fix it."""
    explained = [each for each in (found.explanation, found.growth) if each is not None]
    for each in explained:
        yield from reason(each)
    if not explained:
        yield Line("the counts do not prove why it went bad")


def reason(found: Explanation | Growth) -> Iterator[Line]:
    """Yields one reason, and how to fix it."""
    yield from _reason(found.sentence, found.repair)


def health(found: TensorHealth) -> Iterator[Block]:
    """Yields the health of a tensor."""
    yield Line(("event ", "quiet"), f"{found.event_index}: ", _facts(found))


def history(rows: Sequence[HistoryRow]) -> Iterator[Block]:
    """Yields the history of tensors, one line for each time that they were computed."""
    yield items(*map(history_item, rows))


def history_item(row: HistoryRow) -> Item:
    """Returns one computation of a tensor, and its elements if they were asked for."""
    slot = "" if row.output_slot is None else f":{row.output_slot}"
    where = [
        None if row.step is None else f"step {row.step}",
        f"iteration {row.iteration}" if row.iteration else None,
        None if row.graph_name is None else f"in {row.graph_name}",
    ]
    name = f"{row.op_name or row.op_type or 'a tensor from outside'}{slot}"
    head = " ".join([name, *(fact for fact in where if fact)])
    numbers = (
        ""
        if row.min_finite is None or row.max_finite is None or row.mean_finite is None
        else f"  from {row.min_finite:.4g} to {row.max_finite:.4g}, mean {row.mean_finite:.4g}"
    )
    name_and_place: Span = head, "bad" if row.has_inf_or_nan else "bold"
    line = Line((f"{row.event_index:>8}  ", "quiet"), name_and_place, f"  {facts_text(row)}", numbers)
    if row.values is None:
        return (line,)
    more = ", …" if row.size is not None and row.size > len(row.values) else ""
    elements = ", ".join(f"{each:.6g}" if isinstance(each, (float, complex)) else str(each) for each in row.values)
    return line, Line((f"{elements}{more}", "quiet"), indent=10)


def provenance(
    found: Provenance, start: NonFinite | None = None, *, tree: bool = False, full: bool = True
) -> Iterator[Block]:
    """Yields the path from a bad tensor back to its origin.

    Args:
        found: The path or paths.
        start: The tensor, if its headline and its samples are to be named.
        tree: Whether to show all paths.
        full: Whether to show every tensor of a long path.
    """
    origin = found.origin
    lines: list[Line] = [] if start is None else [_headline(start)]
    if origin is not None:
        lines += _reason(origin.why, origin.repair)
        lines += [] if found.growth is None else reason(found.growth)
    lines += _effect(found.effect, found.expected_reason)
    lines += [] if start is None else _samples(start)
    yield from lines
    if lines:
        yield EMPTY
    # If the value did no harm, no hop is called bad.
    notes = HOP_ROLES if found.expected_reason is None else {**HOP_ROLES, "origin": "it began here"}
    if tree:
        ordered = _in_tree_order(found.hops, (each.user_hop_index for each in found.hops))
        yield items(*(_hop(each, note=notes.get(each.role), indent=2 * depth) for each, depth in ordered))
    else:
        way = [
            _hop(each, note=notes.get(each.role), indent=4 if each.role == "cause" else 0)
            for each in reversed(found.path)
        ]
        if full or len(way) <= _NUM_FIRST + _NUM_LAST:
            yield items(*way)
        else:
            yield items(*way[:_NUM_FIRST])
            num_folded = len(way) - _NUM_FIRST - _NUM_LAST
            yield Line((f"... {num_folded:,} more tensors on the path; --full shows them", "quiet"))
            yield items(*way[-_NUM_LAST:])
    yield from _cut(found)


def provenance_text(found: Provenance) -> str:
    """Returns both ends of the path in one line."""
    origin = "the origin is not known" if found.origin is None else f"from {hop_text(found.origin)}"
    end = f" to {hop_text(found.hops[0])}" if found.hops else ""
    return f"{origin}{end}: {number_of(len(found.path), 'tensor')} on the path"


def spread(found: Spread, start: NonFinite | None = None, *, full: bool = True) -> Iterator[Block]:
    """Yields where a bad tensor went: totals, then each tensor once, below the one that it was computed from.

    Args:
        found: The tensors that became bad.
        start: The tensor, if its headline is to be named.
        full: Whether to show every tensor, not only the first ones.
    """
    if start is not None:
        yield _headline(start)
    parts = [spread_text(found)]
    if found.returned_by:
        parts.append("returned to eager code by " + _some(found.returned_by))
    if found.variables:
        parts.append("written to variables " + _some([f"#{variable}" for variable in found.variables]))
    yield Line(("; ".join(parts) + ".", "bold"))
    yield from _effect(found.effect, found.expected_reason)
    yield EMPTY
    ordered = _in_tree_order(found.hops, (each.source_hop_index for each in found.hops))
    shown = [_hop(each, note=_reach(each), indent=2 * depth) for each, depth in ordered]
    num_more = 0 if full else max(0, len(shown) - _NUM_SPREAD)
    yield items(*shown[: len(shown) - num_more])
    if num_more:
        yield Line((f"... {number_of(num_more, 'more tensor')}; --full shows all", "quiet"))
    yield from _cut(found)


def hop(found: TensorHop) -> Iterator[Block]:
    """Yields one tensor of a path."""
    yield items(_hop(found, note=HOP_ROLES.get(getattr(found, "role", ""))))


def code_line(source: Frame, *, indent: int) -> Line:
    """Returns a line of the user's code, below what it is about."""
    code = "" if source.code is None else f"  {source.code}"
    return Line((f"{source.place}{code}", "quiet"), indent=indent)


def _headline(found: NonFinite) -> Line:
    return Heading((found.headline, "bold" if found.is_expected else "bad"))


def _reasons_of(found: NonFinite, reasons: Reasons) -> Iterator[Line]:
    """Yields why a tensor went bad and, unless it did no harm, how to fix it."""
    if reasons.explanation is not None:
        yield from _reason(reasons.explanation.sentence, None if found.is_expected else reasons.explanation.repair)
    if reasons.growth is not None and not found.is_expected:
        yield from reason(reasons.growth)


def _reason(sentence: str | None, repair: str | None) -> Iterator[Line]:
    if sentence is not None:
        yield Line(sentence)
    if repair is not None:
        yield Line(f"To fix it: {repair}")


def _effect(effect: str | None, expected_reason: str | None) -> Iterator[Line]:
    """Yields the harm that a bad value did; nothing if that is not known."""
    text = harm_text(effect, expected_reason)
    if text is not None:
        yield Line(f"Effect: {text}.")


def _samples(found: NonFinite) -> Iterator[Line]:
    """Yields which samples or slices of a tensor are bad, and from where they came."""
    for _, text in place_facts(found, found.samples):
        yield Line(f"{text[0].upper()}{text[1:]}.")


def _facts(found: TensorHealth) -> Span:
    return facts_text(found), "bad" if found.has_inf_or_nan else ""


def _stack(stack: Sequence[Frame]) -> Iterator[Block]:
    if not stack:
        return
    yield Heading("stack, innermost first")
    yield items(
        *(
            (
                Line(f"{frame.place} in {frame.func}", indent=2),
                *((Line((frame.code, "bold"), indent=6),) if frame.code else ()),
            )
            for frame in stack
            if frame.is_user
        )
    )
    owners = [frame.owner for frame in stack if frame.owner != "user"]
    if owners:
        counts = " and ".join(f"{owners.count(owner)} {owner}" for owner in sorted(set(owners)))
        yield Line((f"and {counts} {'frames' if len(owners) > 1 else 'frame'}", "quiet"), indent=2)


def _source(source: Frame, lines: Sequence[SourceLine]) -> Iterator[Line]:
    """Yields the lines around a line, and marks the part that was executed; without them, only the line."""
    if not lines:
        yield Line((source.code or "", "bold"), indent=2)
        return
    width = len(str(lines[-1].lineno))
    for line in lines:
        is_it = line.lineno == source.lineno
        text = f"{'>' if is_it else ' '} {line.lineno:>{width}} | {printable_line(line.text)}"
        yield Line((text.rstrip(), "bold" if is_it else ""))
        marks = carets(source, line.text) if is_it else None
        if marks is not None:
            yield Line((f"  {'':>{width}} | {marks}", "bad"))


def _hop(found: TensorHop, *, note: str | None, indent: int = 0) -> Item:
    indent = min(indent, _MAX_INDENT)
    name: Span = hop_text(found), "bad" if found.has_inf_or_nan else "bold"
    noted: Span = "" if note is None else (f"  <- {note}", "bold" if note == HOP_ROLES["origin"] else "quiet")
    return (
        Line(name, hop_place_text(found), noted, indent=indent),
        Line(facts_text(found), indent=indent + 4),
        *(() if found.source is None else (code_line(found.source, indent=indent + 4),)),
        *(
            ()
            if found.made_at is None
            else (Line((f"made at {made_at_text(found.made_at)}", "quiet"), indent=indent + 4),)
        ),
    )


def _in_tree_order(hops: Sequence[_AnyHop], parents: Iterable[int | None]) -> Iterator[tuple[_AnyHop, int]]:
    """Yields each hop once, below the one that led to it, with its depth.

    Args:
        hops: The hops.
        parents: For each of them, the index of the hop that led to it; None for the start of the search.
    """
    children: dict[int | None, list[_AnyHop]] = {}
    for each, parent in zip(hops, parents, strict=True):
        children.setdefault(parent, []).append(each)
    to_show = [(each, 0) for each in reversed(children[None])]
    while to_show:
        each, depth = to_show.pop()
        yield each, depth
        to_show += [(child, depth + 1) for child in reversed(children.get(each.hop_index, []))]


def _reach(found: SpreadHop) -> str | None:
    """Returns which functions returned a tensor and which variables hold it; None if it did not leave its graph."""
    parts = []
    if found.returned_by:
        parts.append("returned by " + _some(found.returned_by))
    if found.variables:
        parts.append("written to variable " + _some([f"#{variable}" for variable in found.variables]))
    return "; ".join(parts) or None


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NUM_NAMES
    return ", ".join(names[:_NUM_NAMES]) + (f" and {more:,} more" if more > 0 else "")


def _cut(found: Provenance | Spread) -> Iterator[Line]:
    if found.is_cut:
        yield EMPTY
        text = f"The search stopped after {number_of(len(found.hops), 'tensor')}"
        yield Line((text, "bold"), ("; --limit raises the limit", "option"), (".", "bold"))
