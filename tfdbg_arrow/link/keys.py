"""Keys: one int64 for each tensor that a program computed, and for the content of a variable after each write.

pass * number of tensors + tensor      a tensor of a graph
EAGER + tensor_id                      an eager tensor; for a variable's handle, the variable's first value
CONTENT + number of the write          the content of a variable after a write
"""

from __future__ import annotations

from tfdbg_arrow.link.arrays import Bools, Ints

EAGER = 1 << 60
"""The first key of an eager tensor. The keys of graphs are far below it, because they are passes times tensors."""
CONTENT = 1 << 61
"""The first key of a variable's content. The keys of eager tensors are below it."""


def is_graph(keys: Ints) -> Bools:
    """Returns which keys are tensors of graphs."""
    return (keys >= 0) & (keys < EAGER)


def is_eager(keys: Ints) -> Bools:
    """Returns which keys are eager tensors."""
    return (keys >= EAGER) & (keys < CONTENT)
