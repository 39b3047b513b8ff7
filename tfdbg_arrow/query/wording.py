"""How a bad tensor reads: the pieces of a sentence, as the command line and errors put them together."""

from __future__ import annotations

from tfdbg_arrow.query.bad_tensor import InputTensor, NonFinite, Producer
from tfdbg_arrow.query.health import TensorHealth

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


def facts_text(health: TensorHealth) -> str:
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
