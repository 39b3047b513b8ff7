"""What NodeDefs say: the functions that they call, their inputs, their attributes."""

from __future__ import annotations

from typing import Any

from tfdbg_arrow.writer.rows import Row


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


def input_rows(node_def: Any, graph_id: int, *, first: int | None) -> list[Row]:
    """Returns the edges of a NodeDef's inputs: `name`, `name:slot` or `^name`.

    Args:
        node_def: The NodeDef.
        graph_id: Its graph.
        first: Only data edges, from this input on; None: all edges.
    """
    rows: list[Row] = []
    num_control = 0
    for index, text in enumerate(node_def.input):
        row: Row = {"graph_id": graph_id, "op_name": node_def.name}
        if text.startswith("^"):
            if first is not None:
                continue
            row |= {"input_index": num_control, "is_control": True, "source_op_name": text[1:]}
            row |= {"source_output_slot": None}
            num_control += 1
        else:
            if first is not None and index < first:
                continue
            source, _, slot = text.partition(":")
            row |= {"input_index": index, "is_control": False, "source_op_name": source}
            row |= {"source_output_slot": int(slot or 0)}
        rows.append(row)
    return rows


def attribute_value(value: Any) -> object:
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
