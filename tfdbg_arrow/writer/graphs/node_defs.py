"""What NodeDefs say: the functions that they call, their inputs, their attributes."""

from __future__ import annotations

from typing import Any

from tfdbg_arrow.writer.rows import to_json


def runs_inline(op_type: str) -> bool:
    """Whether functions that ops of this type name run within the op's own step.

    Data sets keep theirs and run them apart, in steps of their own.
    """
    return "Dataset" not in op_type


def functions_of(node_def: Any) -> list[tuple[str, int, str]]:
    """Returns the functions that a NodeDef names: (attribute, index in a list, function name)."""
    found: list[tuple[str, int, str]] = []
    for key in node_def.attr:
        value = node_def.attr[key]
        kind = value.WhichOneof("value")
        if kind == "func":
            found.append((key, 0, value.func.name))
        elif kind == "list" and value.list.func:
            found += [(key, index, func.name) for index, func in enumerate(value.list.func)]
    return found


INPUT_COLUMNS = ("op_name", "input_index", "is_control", "source_op_name", "source_output_slot")
"""Columns of `graph_op_input` behind `graph_id`."""

InputRow = tuple[str, int, bool, str, int | None]
"""Values of `INPUT_COLUMNS`."""


def input_rows(node_def: Any, *, first: int | None) -> list[InputRow]:
    """Returns the edges of a NodeDef's inputs: `name`, `name:slot` or `^name`.

    Args:
        node_def: The NodeDef.
        first: Only data edges, from this input on; None: all edges.
    """
    rows: list[InputRow] = []
    op_name, num_control = node_def.name, 0
    for index, text in enumerate(node_def.input):
        row: InputRow
        if text.startswith("^"):
            if first is not None:
                continue
            row = (op_name, num_control, True, text[1:], None)
            num_control += 1
        else:
            if first is not None and index < first:
                continue
            source, _, slot = text.partition(":")
            row = (op_name, index, False, source, int(slot or 0))
        rows.append(row)
    return rows


_MAX_KEPT, _MAX_KEPT_BYTES = 10_000, 64
_kept_values: dict[bytes, str] = {}
"""JSON of attributes' values, by their serialized AttrValue: most ops of a graph have the same few."""


def attributes_json(node_def: Any) -> str:
    """Returns the attributes of a NodeDef as a JSON object, in the order of their names."""
    texts = []
    for key in sorted(node_def.attr):
        value = node_def.attr[key]
        data = value.SerializeToString()
        text = _kept_values.get(data)
        if text is None:
            text = to_json(_attribute_value(value))
            if len(data) <= _MAX_KEPT_BYTES and len(_kept_values) < _MAX_KEPT:
                _kept_values[data] = text
        texts.append(f"{to_json(key)}:{text}")
    return "{" + ",".join(texts) + "}"


def _attribute_value(value: Any) -> object:
    """Returns an AttrValue as something that JSON can hold; tensors by dtype and shape only."""
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    content = getattr(value, kind)
    if kind == "list":
        for name in ("s", "i", "f", "b", "type", "shape", "tensor", "func"):
            items = getattr(content, name)
            if items:
                return [_scalar_attribute(name, item) for item in items]
        return []
    return _scalar_attribute(kind, content)


def _scalar_attribute(kind: str, content: Any) -> object:
    if kind == "s":
        return content.decode("utf-8", errors="backslashreplace")
    if kind == "shape":
        return None if content.unknown_rank else [dim.size for dim in content.dim]
    if kind == "tensor":
        return {"dtype": content.dtype, "shape": [dim.size for dim in content.tensor_shape.dim]}
    if kind == "func":
        return content.name
    return content
