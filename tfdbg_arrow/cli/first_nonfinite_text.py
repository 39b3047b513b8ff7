"""How a bad tensor reads in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from tfdbg_arrow.cli.output import console, printable_line, styled
from tfdbg_arrow.query import Frame, Hop, InputTensor, NonFinite, Producer, SourceLine, TensorHealth

_COUNTS = (
    ("num_nan", "NaN"),
    ("num_neg_inf", "-Inf"),
    ("num_pos_inf", "+Inf"),
    ("num_neg_finite", "negative"),
    ("num_zero", "zero"),
    ("num_pos_finite", "positive"),
)
_BORDERS = {
    "graph": "",
    "argument": ", passed as an argument",
    "capture": ", captured by the function",
    "loop": ", handed on by the loop",
    "call": ", returned by a call",
    "variable": "",
    "eager": "",
    "external": "",
}


def print_nonfinite(found: NonFinite, lines: Sequence[SourceLine]) -> None:
    """Prints a bad tensor: what it is, its inputs, the stack with the user's frames first, the line of code.

    Args:
        found: The tensor.
        lines: The lines around its source.
    """
    out = console()
    out.print(styled((bad_kinds_text(found), "bold red"), " in ", (tensor_text(found), "bold")))
    facts = [
        ("graph", graph_text(found)),
        ("tensor", facts_text(found)),
        ("device", found.device_name),
        ("event", f"{found.event_index}, {_time_text(found.wall_time_ns)}, run {found.run_id}"),
        ("origin", _origin_text(found)),
    ]
    for name, value in facts:
        if value is not None:
            out.print(styled((f"  {name:<8}", "dim"), value))
    if found.inputs:
        out.print()
        out.print(styled(("inputs", "bold")))
        for input_ in found.inputs:
            out.print(styled((f"  {input_.index:<3}", "dim"), producer_text(input_)))
            out.print(styled("     ", (input_health_text(input_), "dim" if input_.health is None else "")))
    _print_stack(found.stack)
    if found.source is not None and lines:
        out.print()
        out.print(styled(("source ", "bold"), f"{found.source.file_path}:{found.source.lineno}"))
        width = len(str(lines[-1].lineno))
        for line in lines:
            is_it = line.lineno == found.source.lineno
            text = f"{'>' if is_it else ' '} {line.lineno:>{width}} | {printable_line(line.text)}"
            out.print(styled((text.rstrip(), "bold" if is_it else "")))


def bad_kinds_text(found: NonFinite) -> str:
    """Returns the kinds of bad element in a tensor, as `NaN and -Inf`."""
    names = [name for column, name in _COUNTS[:3] if getattr(found, column)]
    return " and ".join(names) or "Inf or NaN"


def tensor_text(found: NonFinite) -> str:
    """Returns a tensor's name, as `Log:0 (Log)`."""
    if found.op_type is None:
        return "an eager tensor that came from outside"
    if found.op_name is None:
        return f"output {found.output_slot} of {found.op_type}, run eagerly"
    return f"{found.op_name}:{found.output_slot} ({found.op_type})"


def graph_text(found: NonFinite) -> str | None:
    """Returns the graph and the loop's iteration, or None outside graphs."""
    if found.graph_name is None:
        return None
    return found.graph_name + (f", iteration {found.iteration}" if found.iteration else "")


def facts_text(health: NonFinite | TensorHealth | Hop) -> str:
    """Returns dtype, shape and the counts above zero, as `float32 [2, 3]: 2 zero, 4 positive of 6`."""
    text = health.dtype or "dtype not known"
    if health.shape is not None:
        text += f" [{', '.join(map(str, health.shape))}]"
    counts = [f"{getattr(health, column):,} {name}" for column, name in _COUNTS if getattr(health, column)]
    if counts:
        text += ": " + ", ".join(counts)
    if health.size is not None:
        text += f" of {health.size:,} elements" if counts else f", {health.size:,} elements"
    return text


def producer_text(input_: InputTensor) -> str:
    """Returns where an input came from, as `Softmax:0 (Softmax) in model, passed as an argument`."""
    producer = input_.producer
    if producer is None:
        return "of unknown source"
    border = _BORDERS[producer.how]
    if producer.how == "variable":
        return f"a variable, last written by {_op_text(producer)}"
    if producer.op_type is None and producer.op_name is None:
        return f"an eager tensor that came from outside{border}"
    return _op_text(producer) + border


def input_health_text(input_: InputTensor) -> str:
    """Returns an input's health, or that it was not recorded."""
    return "not recorded" if input_.health is None else facts_text(input_.health)


def _op_text(producer: Producer) -> str:
    slot = "" if producer.output_slot is None else f":{producer.output_slot}"
    if producer.op_name is None:
        return f"{producer.op_type}{slot}, run eagerly"
    op_type = "" if producer.op_type is None else f" ({producer.op_type})"
    return f"{producer.op_name}{slot}{op_type}" + (f" in {producer.graph_name}" if producer.graph_name else "")


def _origin_text(found: NonFinite) -> str:
    if found.is_origin:
        return "yes: no input holds what it holds"
    return "not proven: an input was not recorded, or holds it too"


def _time_text(wall_time_ns: int) -> str:
    time = datetime.fromtimestamp(wall_time_ns // 1_000_000_000, tz=UTC)
    return f"{time:%Y-%m-%d %H:%M:%S}.{wall_time_ns % 1_000_000_000 // 1000:06d} UTC"


def _print_stack(stack: Sequence[Frame]) -> None:
    if not stack:
        return
    out = console()
    out.print()
    out.print(styled(("stack", "bold"), ", innermost first"))
    for frame in stack:
        if frame.is_user:
            out.print(styled(f"  {frame.file_path}:{frame.lineno} in {frame.func}"))
            if frame.code:
                out.print(styled((f"      {printable_line(frame.code)}", "bold")))
    folded = {
        owner: sum(frame.owner == owner for frame in stack) for owner in sorted({f.owner for f in stack} - {"user"})
    }
    if folded:
        counts = " and ".join(f"{number} {owner}" for owner, number in folded.items())
        out.print(styled((f"  and {counts} frame{'s' if sum(folded.values()) > 1 else ''}", "dim")))
