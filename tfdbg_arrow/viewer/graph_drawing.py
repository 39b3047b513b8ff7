"""The picture of a neighbourhood: labelled boxes and the lines between them. graph.js computes the layout."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tfdbg_arrow.printable import printable
from tfdbg_arrow.query.structure.borders import Border, CalledGraph
from tfdbg_arrow.query.structure.neighbourhood import Neighbourhood, OpEdge, OpNode
from tfdbg_arrow.viewer.graph_links import GraphLinks
from tfdbg_arrow.viewer.graph_words import (
    STATE_MARKS,
    border_text,
    health_text,
    iterations_text,
    output_text,
    part_text,
)
from tfdbg_arrow.viewer.links import Url

_MAX_LABEL = 30
_MAX_TITLE = 300
_MAX_BORDERS = 12
_MAX_LABELLED_EDGES = 60
"""A picture with more lines than this shows their texts only as titles, not as labels."""


@dataclass(frozen=True, kw_only=True)
class Box:
    """A box for one op, or for a tensor that enters or leaves the graph.

    Attributes:
        kind: `op`, `call` (an op that calls a graph) or `border` (an op in another graph).
        state: The op's health, as in `OpNode.state`; None for a `border`.
        mark: A symbol that shows the state without colour.
        head: The first line: the op type.
        lines: The other lines.
        title: The full text, shown when the pointer is over the box.
        label: The same on one line, for screen readers.
        href: The URL that a click opens.
        into: The URL of the called graph.
        is_focus: Whether this is the op that the page shows.
        level: Distance from that op in ops; inputs have negative levels.
        num_hidden: Number of further inputs (of an input) or consumers (of a consumer) that are not shown.
    """

    kind: str
    state: str | None
    mark: str
    head: str
    lines: tuple[str, ...]
    title: str
    label: str
    href: Url | None
    into: Url | None
    is_focus: bool
    level: int
    num_hidden: int


@dataclass(frozen=True, kw_only=True)
class Line:
    """A tensor or control edge from one box to another. `source` and `target` are positions in the list of boxes."""

    source: int
    target: int
    text: str
    title: str
    is_control: bool
    is_bad: bool


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A picture: boxes, the focused one first, and lines."""

    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]


def draw(around: Neighbourhood, links: GraphLinks) -> Drawing:
    """Returns the picture of a neighbourhood.

    Args:
        around: The neighbourhood.
        links: Links to other ops and graphs.
    """
    places = {node.op_name: place for place, node in enumerate(around.nodes)}
    outputs = {(node.op_name, output.output_slot): output for node in around.nodes for output in node.outputs}
    num_inputs = Counter(name for name, _ in {(edge.op_name, edge.source_op_name) for edge in around.edges})
    num_consumers = Counter(name for name, _ in {(edge.source_op_name, edge.op_name) for edge in around.edges})
    boxes = []
    for node in around.nodes:
        hidden_inputs = node.num_inputs - num_inputs[node.op_name]
        hidden_consumers = node.num_consumers - num_consumers[node.op_name]
        num_hidden = hidden_inputs if node.level < 0 else hidden_consumers if node.level > 0 else 0
        boxes.append(_box(node, links, is_focus=node.op_name == around.op_name, num_hidden=max(0, num_hidden)))
    is_labelled = len(around.edges) <= _MAX_LABELLED_EDGES
    lines = []
    for edge in around.edges:
        output = (
            None if edge.source_output_slot is None else outputs.get((edge.source_op_name, edge.source_output_slot))
        )
        words = "" if edge.is_control else f":{edge.source_output_slot}"
        if output is not None:
            words += f" {output_text(output)}"
        health = "" if output is None else f", {health_text(output)}"
        lines.append(
            Line(
                source=places[edge.source_op_name],
                target=places[edge.op_name],
                text=_shortened(words) if is_labelled else "",
                title=_cut(f"{edge.source_op_name}{words} to {edge.op_name}, {_inputs_text(edge)}{health}"),
                is_control=edge.is_control,
                is_bad=output is not None and output.health is not None and output.health.num_bad > 0,
            )
        )
    # Only the borders closest to the op, so that they do not crowd out ops of the graph itself.
    near = sorted(around.borders, key=lambda border: abs(around.nodes[places[border.op_name]].level))
    for border in near[:_MAX_BORDERS]:
        place = places[border.op_name]
        # Draw tensors that enter only above inputs, and results only below consumers; others would clutter the picture.
        is_result = border.kind == "result"
        if (around.nodes[place].level < 0 and is_result) or (around.nodes[place].level > 0 and not is_result):
            continue
        level = around.nodes[place].level + (1 if is_result else -1)
        boxes.append(_border_box(border, links, level=level))
        here, there = place, len(boxes) - 1
        slot = border.output_slot if is_result else border.other_output_slot
        lines.append(
            Line(
                source=here if is_result else there,
                target=there if is_result else here,
                text="" if slot is None or not is_labelled else f":{slot}",
                title=_cut(border_text(border)),
                is_control=False,
                is_bad=False,
            )
        )
    return Drawing(boxes=tuple(boxes), lines=tuple(lines))


def _box(node: OpNode, links: GraphLinks, *, is_focus: bool, num_hidden: int) -> Box:
    extra = [_part(call) for call in node.calls[:3]]
    extra += [f"and {len(node.calls) - 3} more"] if len(node.calls) > 3 else []
    extra += [iterations_text(call.iterations) for call in node.calls if call.iterations is not None]
    num_bad_inside = sum(call.num_bad for call in node.calls)
    if num_bad_inside:
        extra.append(f"✕ {num_bad_inside:,} bad inside")
    if node.state in ("absorbed", "not recorded", "not computed", "unknown"):
        extra.append("not in the recording" if node.state == "unknown" else node.state)
    ran_as = [name for name in node.executed_types or () if name != node.op_type and name != "_Arg"]
    extra += [f"ran as {', '.join(ran_as)}"] if ran_as else []
    about = [f":{output.output_slot} {output_text(output)}, {health_text(output)}" for output in node.outputs[:8]]
    inner = next((call for call in node.calls if call.attribute == "body"), node.calls[0] if node.calls else None)
    return Box(
        kind="call" if node.calls else "op",
        state=node.state,
        mark=STATE_MARKS[node.state],
        head=_shortened(node.op_type or "?"),
        lines=(_shortened(node.op_name), *map(_shortened, extra)),
        title="\n".join(_cut(text) for text in (f"{node.op_type or '?'} {node.op_name}", *about, *extra)),
        label=_cut("; ".join([f"{node.op_type or '?'} {node.op_name}", node.state, *about[:2], *extra])),
        href=None if node.op_type is None else links.op(node.op_name),
        into=None if inner is None else links.callee(inner),
        is_focus=is_focus,
        level=node.level,
        num_hidden=num_hidden,
    )


def _border_box(border: Border, links: GraphLinks, *, level: int) -> Box:
    where = f"in {border.other_graph_name or border.other_graph_id}"
    words = border_text(border)
    name = border.other_op_name or border.caller_op_name
    return Box(
        kind="border",
        state=None,
        mark="↺" if border.kind == "loop" else "↧" if border.kind == "result" else "↥",
        head=_shortened(border.kind if border.kind != "loop" else "iteration before"),
        lines=(_shortened(name), _shortened(where)),
        title=_cut(f"{words}: {name} {where}"),
        label=_cut(f"{words}: {name} {where}"),
        href=links.border(border),
        into=None,
        is_focus=False,
        level=level,
        num_hidden=0,
    )


def _part(call: CalledGraph) -> str:
    part = part_text(call)
    return f"{part} {_shortened(call.graph_name or call.function_name, _MAX_LABEL - len(part) - 1)}"


def _inputs_text(edge: OpEdge) -> str:
    if edge.is_control:
        return "which waits for it"
    shown = ", ".join(map(str, edge.input_indexes[:8]))
    more = f" and {len(edge.input_indexes) - 8} more" if len(edge.input_indexes) > 8 else ""
    return f"input {shown}{more}"


def _shortened(text: str, most: int = _MAX_LABEL) -> str:
    """Returns a text for a box. A long text keeps its end, because that is where names differ."""
    most = max(most, _MAX_LABEL // 2)
    return printable(text) if len(text) <= most else f"…{printable(text[1 - most :])}"


def _cut(text: str) -> str:
    return printable(text if len(text) <= _MAX_TITLE else f"{text[: _MAX_TITLE - 1]}…")
