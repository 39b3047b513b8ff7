"""The structure of a graph on a page: the picture of a neighbourhood, and texts.

The picture consists of labelled boxes and the lines between them; graph.js computes their layout.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tfdbg_arrow.query.display.graph_borders import Border, CalledGraph, Iterations
from tfdbg_arrow.query.display.graph_ops import OpOutput
from tfdbg_arrow.query.display.graph_scopes import GRADIENT, ROOT, OpenScope, ScopeGraph, ScopeHealth, ScopeNode
from tfdbg_arrow.query.display.neighbourhood import Neighbourhood, OpEdge, OpNode
from tfdbg_arrow.safe_text import number_of, parse_json, printable, shortened, some_of
from tfdbg_arrow.viewer.charts import bad_pills
from tfdbg_arrow.viewer.graph_links import GraphLinks
from tfdbg_arrow.viewer.links import Url

STATE_MARKS = {
    "bad": "✕",
    "healthy": "✓",
    "unmeasured": "·",
    "absorbed": "·",
    "not computed": "·",
    "not recorded": "○",
    "no output": "○",
    "unknown": "?",
}
_PARTS = {"f": "calls", "cond": "condition", "body": "body", "then_branch": "then", "else_branch": "else"}
_MAX_LABEL = 30
"""Maximum number of characters of a line in a box, which makes the box wider. The title has the whole text."""
_MAX_TITLE = 300
"""Maximum number of characters of a title, which a browser shows beside the pointer."""
_MAX_BORDERS = 12
"""Maximum number of borders that are drawn, so that room remains for the ops."""
_MAX_LABELLED_EDGES = 60
"""A picture with more lines than this shows the texts of lines only as titles, not as labels."""


@dataclass(frozen=True, kw_only=True)
class Box:
    """A box for one op, for ops of a scope, or for a tensor that enters or leaves the graph.

    Attributes:
        kind: `op`, `call` (an op that calls a graph) or `border` (an op in another graph); in the model graph also
            `scope` (a folded scope) and `rest` (the other ops of a scope).
        state: The health, as in `OpNode.state`; None for a `border`.
        mark: A symbol that shows the state without colour.
        head: The first line: the op type.
        lines: The other lines.
        title: The full text, shown when the pointer is over the box.
        label: The texts of the box and the rest of the title on one line, for screen readers and voice control.
        href: The URL that a click opens.
        into: The URL of the called graph.
        is_focus: Whether this is the op that the page shows.
        level: Distance in ops from the op that the page shows; inputs have negative levels.
        num_hidden: For an input, the number of its own inputs that are not shown. For a consumer, the number of its own
            consumers that are not shown.
        scope_id: The number of a folded scope of the model graph; None if the box cannot be unfolded.
        outer: The position in `Drawing.frames` of the frame around the box; None for an outermost box.
    """

    kind: str
    state: str | None
    mark: str
    head: str
    lines: tuple[str, ...]
    title: str
    label: str
    href: Url | None
    into: Url | None = None
    is_focus: bool = False
    level: int = 0
    num_hidden: int = 0
    scope_id: int | None = None
    outer: int | None = None


@dataclass(frozen=True, kw_only=True)
class Line:
    """A tensor or control edge from one box to another. `source` and `target` are positions in the list of boxes."""

    source: int
    target: int
    text: str
    title: str
    is_control: bool = False
    is_bad: bool = False


@dataclass(frozen=True, kw_only=True)
class ScopeFrame:
    """The frame around the boxes of an unfolded scope.

    Attributes:
        scope_id: The number of the scope.
        state: The health of the scope, as in `Box`.
        mark: A symbol that shows the state without colour.
        head: The name of the scope.
        label: The name and the health of the scope, for screen readers.
        href: The URL that folds the scope.
        outer: The position in `Drawing.frames` of the frame around this frame; None for an outermost frame.
    """

    scope_id: int
    state: str
    mark: str
    head: str
    label: str
    href: Url | None
    outer: int | None


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A picture.

    Attributes:
        title: What it shows.
        boxes: The boxes. In a neighbourhood, the box of the focused op is the first box.
        lines: The lines between boxes.
        frames: The frames around boxes of the model graph. Outer frames come before inner frames.
    """

    title: str
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    frames: tuple[ScopeFrame, ...] = ()


def draw_model(model: ScopeGraph, links: GraphLinks) -> Drawing:
    """Returns the picture of a graph whose ops are grouped by scope.

    Args:
        model: The graph.
        links: Links to ops, and to the graph with other scopes unfolded.
    """
    index_of_scope = {scope.scope_id: index for index, scope in enumerate(model.open_scopes)}
    frames = tuple(
        ScopeFrame(
            scope_id=scope.scope_id,
            state=scope.health.state,
            mark=STATE_MARKS[scope.health.state],
            head=_shortened(scope_title(scope)),
            label=_cut(f"fold {scope_title(scope)}; {scope_health_text(scope)}"),
            href=links.folded(model, scope.scope_id),
            outer=index_of_scope.get(scope.outer_id),
        )
        for scope in model.open_scopes
    )
    is_labelled = len(model.edges) <= _MAX_LABELLED_EDGES
    return Drawing(
        title="The graph by its scopes, inputs above",
        boxes=tuple(_scope_box(node, model, links, outer=index_of_scope.get(node.outer_id)) for node in model.nodes),
        frames=frames,
        lines=tuple(
            Line(
                source=edge.source,
                target=edge.target,
                text=f"{edge.num_tensors:,} tensors" if is_labelled and edge.num_tensors > 1 else "",
                title=_cut(
                    f"{scope_title(model.nodes[edge.source])} to {scope_title(model.nodes[edge.target])}: "
                    f"{number_of(edge.num_tensors, 'tensor')} of the graph"
                    + (f", {edge.num_bad:,} of them bad" if edge.num_bad else "")
                ),
                is_bad=edge.num_bad > 0,
            )
            for edge in model.edges
        ),
    )


def _scope_box(node: ScopeNode, model: ScopeGraph, links: GraphLinks, *, outer: int | None) -> Box:
    health = node.health
    is_scope = node.kind == "scope"
    extra = [number_of(node.num_ops, "op")] if is_scope else []
    if health.num_bad:
        extra.append(f"✕ {health.num_bad:,} bad")
    extra += [_part(call) for call in node.calls[:2]]
    extra += _bad_inside(node.calls)
    title = scope_title(node)
    names = [_shortened(node.op_type or title), *([_shortened(node.name)] if node.kind == "op" else [])]
    hrefs = {
        "op": links.op(node.op_name or ""),
        "scope": None if node.scope_id is None else links.unfolded(model, node.scope_id),
        "rest": links.graph(model.graph_id),
    }
    return Box(
        kind="call" if node.calls else node.kind,
        state=health.state,
        mark="▸" if is_scope and health.state != "bad" else STATE_MARKS[health.state],
        head=names[0],
        lines=(*names[1:], *extra),
        title=_cut(f"{node.op_name or title}: {scope_health_text(node)}"),
        label=_cut("; ".join([" ".join(names), *extra, *_whole_name(node.op_name, names), _tensors_text(health)])),
        href=hrefs[node.kind],
        into=_into(node.calls, links),
        scope_id=node.scope_id if is_scope else None,
        outer=outer,
    )


def scope_title(scope: OpenScope) -> str:
    """Returns the title of a scope, such as `gradient of digits` for the gradient side of an outermost layer."""
    if scope.outer_id != ROOT:
        return scope.name
    if scope.is_layer and scope.side == GRADIENT:
        return f"gradient of {scope.name}"
    return f"{scope.name} outside layers" if scope.name in ("forward", GRADIENT) else scope.name


def scope_health_text(scope: OpenScope) -> str:
    """Returns the number of ops and tensors of a scope in words."""
    return f"{number_of(scope.num_ops, 'op')}, {_tensors_text(scope.health)}"


def _tensors_text(health: ScopeHealth) -> str:
    if health.num_bad:
        return f"{health.num_bad:,} of {number_of(health.num_tensors, 'tensor')} bad"
    if not health.num_tensors:
        return "no tensor was recorded"
    return f"{number_of(health.num_tensors, 'tensor')}, " + (
        "none bad" if health.num_measured else "health not measured"
    )


def draw(around: Neighbourhood, links: GraphLinks) -> Drawing:
    """Returns the picture of a neighbourhood.

    Args:
        around: The neighbourhood.
        links: Links to other ops and graphs.
    """
    index_of_op = {node.op_name: index for index, node in enumerate(around.nodes)}
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
            words += f" {type_text(output)}"
        health = "" if output is None else f", {health_text(output)}"
        lines.append(
            Line(
                source=index_of_op[edge.source_op_name],
                target=index_of_op[edge.op_name],
                text=_shortened(words) if is_labelled else "",
                title=_cut(f"{edge.source_op_name}{words} to {edge.op_name}, {_inputs_text(edge)}{health}"),
                is_control=edge.is_control,
                is_bad=output is not None and output.health is not None and output.health.num_bad > 0,
            )
        )
    # Draw only the borders closest to the op, so that enough room remains for the ops of the graph itself.
    near = sorted(around.borders, key=lambda border: abs(around.nodes[index_of_op[border.op_name]].level))
    for border in near[:_MAX_BORDERS]:
        index = index_of_op[border.op_name]
        # Skip results at inputs of the op, and tensors that enter the graph at consumers, to keep the picture clear.
        is_result = border.kind == "result"
        if (around.nodes[index].level < 0 and is_result) or (around.nodes[index].level > 0 and not is_result):
            continue
        level = around.nodes[index].level + (1 if is_result else -1)
        boxes.append(_border_box(border, links, level=level))
        here, there = index, len(boxes) - 1
        slot = border.output_slot if is_result else border.other_output_slot
        lines.append(
            Line(
                source=here if is_result else there,
                target=there if is_result else here,
                text="" if slot is None or not is_labelled else f":{slot}",
                title=_cut(border_text(border)),
            )
        )
    title = "The ops around the op, inputs above, consumers below"
    return Drawing(title=title, boxes=tuple(boxes), lines=tuple(lines))


def _box(node: OpNode, links: GraphLinks, *, is_focus: bool, num_hidden: int) -> Box:
    names = [_shortened(node.op_type or "?"), _shortened(node.op_name)]
    extra = [_part(call) for call in node.calls[:3]]
    extra += [f"and {len(node.calls) - 3} more"] if len(node.calls) > 3 else []
    extra += [iterations_text(call.iterations) for call in node.calls if call.iterations is not None]
    extra += _bad_inside(node.calls)
    if node.state in ("absorbed", "not recorded", "not computed", "unknown"):
        extra.append("not in the recording" if node.state == "unknown" else node.state)
    ran_as = [name for name in node.executed_types or () if name != node.op_type and name != "_Arg"]
    extra += [f"ran as {', '.join(ran_as)}"] if ran_as else []
    extra = [_shortened(text) for text in extra]
    about = [f":{output.output_slot} {type_text(output)}, {health_text(output)}" for output in node.outputs[:8]]
    return Box(
        kind="call" if node.calls else "op",
        state=node.state,
        mark=STATE_MARKS[node.state],
        head=names[0],
        lines=(*names[1:], *extra),
        title="\n".join(_cut(text) for text in (f"{node.op_type or '?'} {node.op_name}", *about, *extra)),
        label=_cut("; ".join([" ".join(names), *extra, *_whole_name(node.op_name, names), node.state, *about[:2]])),
        href=None if node.op_type is None else links.op(node.op_name),
        into=_into(node.calls, links),
        is_focus=is_focus,
        level=node.level,
        num_hidden=num_hidden,
    )


def _whole_name(op_name: str | None, shown: Sequence[str]) -> list[str]:
    """Returns the full name of an op if its box shows a shortened one."""
    return [] if op_name is None or op_name in shown else [op_name]


def _border_box(border: Border, links: GraphLinks, *, level: int) -> Box:
    where = f"in {border.other_graph_name or border.other_graph_id}"
    words = border_text(border)
    name = border.other_op_name or border.caller_op_name
    head = "iteration before" if border.kind == "loop" else _shortened(border.kind)
    lines = (_shortened(name), _shortened(where))
    return Box(
        kind="border",
        state=None,
        mark="↺" if border.kind == "loop" else "↧" if border.kind == "result" else "↥",
        head=head,
        lines=lines,
        title=_cut(f"{words}: {name} {where}"),
        label=_cut("; ".join([head, *lines, words])),
        href=links.border(border),
        level=level,
    )


def _bad_inside(calls: Sequence[CalledGraph]) -> list[str]:
    """Returns a text about the bad tensors in called graphs if there are any."""
    number = sum(call.num_bad for call in calls)
    return [f"✕ {number:,} bad inside"] if number else []


def _into(calls: Sequence[CalledGraph], links: GraphLinks) -> Url | None:
    """Returns the link into a called graph: into the body of a loop or, without a loop, into the first graph."""
    first = min(calls, key=lambda call: call.attribute != "body", default=None)
    return None if first is None else links.callee(first)


def _part(call: CalledGraph) -> str:
    part = part_text(call)
    return f"{part} {_shortened(call.graph_name or call.function_name, _MAX_LABEL - len(part) - 1)}"


def _inputs_text(edge: OpEdge) -> str:
    if edge.is_control:
        return "which waits for it"
    return f"input {some_of(list(map(str, edge.input_indexes)), 8)}"


def _shortened(text: str, most: int = _MAX_LABEL) -> str:
    """Returns a text for a box. A long text keeps its end, because most names differ at the end."""
    most = max(most, _MAX_LABEL // 2)
    return printable(text) if len(text) <= most else f"…{printable(text[1 - most :])}"


def _cut(text: str) -> str:
    return printable(shortened(text, _MAX_TITLE))


def shape_text(shape: Sequence[int] | None) -> str:
    """Returns a static shape as `[?, 64]`, or as `[…]` if the rank is unknown."""
    return "[…]" if shape is None else f"[{', '.join('?' if size < 0 else str(size) for size in shape)}]"


def type_text(output: OpOutput) -> str:
    """Returns the dtype and static shape of an output, as `float32 [?, 64]`."""
    return f"{output.dtype or 'dtype unknown'} {shape_text(output.static_shape)}"


def health_text(output: OpOutput) -> str:
    """Returns the health of an output in words."""
    health = output.health
    if health is None:
        if output.is_recorded is False:
            return f"not recorded ({output.not_recorded_reason or 'reason unknown'})"
        return "never computed" if output.is_recorded else "no tensor was recorded"
    counts = ", ".join(pill.text for pill in bad_pills(health))
    if health.num_bad:
        return f"{health.num_bad:,} of {health.num_tensors:,} bad" + (f": {counts}" if counts else "")
    return f"{health.num_tensors:,} recorded, " + ("none bad" if health.num_measured else "health not measured")


def part_text(call: CalledGraph) -> str:
    """Returns the role of a called graph for the op that calls it, e.g. `body` or `branch 2`."""
    return f"branch {call.branch_index}" if call.attribute == "branches" else _PARTS.get(call.attribute, call.attribute)


def iterations_text(iterations: Iterations) -> str:
    """Returns the number of iterations of a loop as text."""
    number = (
        f"{iterations.fewest:,}"
        if iterations.fewest == iterations.most
        else f"{iterations.fewest:,} to {iterations.most:,}"
    )
    times = "once" if iterations.num_loops == 1 else f"{iterations.num_loops:,} times"
    return f"{number} iteration{'' if iterations.most == 1 else 's'}, run {times}"


def border_text(border: Border) -> str:
    """Returns the description of a border."""
    caller = f"{border.caller_op_name} in {border.caller_graph_name or border.caller_graph_id}"
    if border.kind == "loop":
        return "from the iteration before"
    if border.kind == "result":
        return f"result {border.index} of {caller}"
    return f"{'captured by' if border.kind == 'capture' else f'argument {border.index} of'} {caller}"


def attribute_items(attributes: str | None) -> list[tuple[str, str]]:
    """Returns the attributes of an op as (name, text) pairs."""
    if attributes is None:
        return []
    try:
        parsed = parse_json(attributes)
    except ValueError:
        return [("attributes", attributes)]
    if not isinstance(parsed, dict):
        return [("attributes", attributes)]
    return [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in parsed.items()]
