"""An op of a graph."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Op:
    """One op of a graph.

    Attributes:
        op_name: Its name.
        op_type: Its type.
        op_index: Its place in the order of creation.
        stack_trace_id: The stack that created it, or None.
        inputs: (name of the source op, its output slot) for each data input.
        made_for: For a node that TensorFlow's optimizer made, the op of the program that it computes or prepares. The
            node has that op's order and stack. None for an op of the program.
        replaced_slot: Which output of `made_for` the node computes; None if it only prepares it.
    """

    op_name: str
    op_type: str
    op_index: int
    stack_trace_id: int | None
    inputs: tuple[tuple[str, int], ...]
    made_for: str | None = None
    replaced_slot: int | None = None
