"""Removes our ops and marks from definitions of functions and graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfdbg_arrow.writer.graphs.node_defs import MARK, is_own


def strip_function(function_def: Any) -> bool:
    """Removes all of our ops and marks from a FunctionDef; returns True if there were any."""
    marked = [owner for owner in (*function_def.node_def, *function_def.arg_attr.values()) if MARK in owner.attr]
    for owner in marked:
        del owner.attr[MARK]
    names = strip_own_nodes(function_def.node_def)
    for key in [key for key, node in function_def.control_ret.items() if node in names]:
        del function_def.control_ret[key]
        function_def.signature.control_output.remove(key)
    return bool(marked or names)


def strip_own_nodes(nodes: Any) -> set[str]:
    """Removes all of our ops and marks from a list of NodeDefs; returns the names of the ops."""
    for node in nodes:
        if MARK in node.attr:
            del node.attr[MARK]
    names = {node.name for node in nodes if is_own(node.op, node.name)}
    if names:
        delete_from(nodes, lambda node: node.name in names)
        for node in nodes:
            delete_from(node.input, lambda text: text.removeprefix("^") in names)
    return names


def delete_from(repeated: Any, is_unwanted: Callable[[Any], bool]) -> None:
    """Deletes items from a repeated field."""
    for index in range(len(repeated) - 1, -1, -1):
        if is_unwanted(repeated[index]):
            del repeated[index]
