"""Texts for the structure of a graph: shapes, outputs, their health, calls, loops, borders."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tfdbg_arrow.query.structure.borders import Border, CalledGraph, Iterations
from tfdbg_arrow.query.structure.output_health import OpOutput, OutputHealth
from tfdbg_arrow.query.untrusted_json import parse_json
from tfdbg_arrow.viewer.pills import Pill

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


def shape_text(shape: Sequence[int] | None) -> str:
    """Returns a static shape as `[?, 64]`, or as `[…]` if the rank is unknown."""
    return "[…]" if shape is None else f"[{', '.join('?' if size < 0 else str(size) for size in shape)}]"


def output_text(output: OpOutput) -> str:
    """Returns the dtype and static shape of an output, as `float32 [?, 64]`."""
    return f"{output.dtype or 'dtype unknown'} {shape_text(output.static_shape)}"


def health_text(output: OpOutput) -> str:
    """Returns the health of an output in words."""
    health = output.health
    if health is None:
        if output.is_recorded is False:
            return f"not recorded ({output.not_recorded_reason or 'reason unknown'})"
        return "never computed" if output.is_recorded else "no tensor was recorded"
    counts = ", ".join(pill.text for pill in count_pills(health))
    if health.num_bad:
        return f"{health.num_bad:,} of {health.num_tensors:,} bad" + (f": {counts}" if counts else "")
    return f"{health.num_tensors:,} recorded, " + ("none bad" if health.num_measured else "health not measured")


def count_pills(health: OutputHealth) -> tuple[Pill, ...]:
    """Returns the counts of bad elements over all tensors of an output, without zero counts."""
    counts = (("nan", health.num_nan, "NaN"), ("neg-inf", health.num_neg_inf, "-Inf"))
    return tuple(
        Pill(kind, f"{count:,} {text}")
        for kind, count, text in (*counts, ("pos-inf", health.num_pos_inf, "+Inf"))
        if count
    )


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
        found = parse_json(attributes)
    except ValueError:
        return [("attributes", attributes)]
    if not isinstance(found, dict):
        return [("attributes", attributes)]
    return [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in found.items()]
