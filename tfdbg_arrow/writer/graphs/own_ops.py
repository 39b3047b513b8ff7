"""The ops and attributes that we add to graphs, and the tensors of graphs that are recorded."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

OWN_OP_PREFIX = "TfdbgArrow"
"""Prefix of the types of our own ops."""

OWN_NAME_PREFIX = "tfdbg_arrow_"
"""Prefix of the names of all ops that we add to a graph."""

MARK = "_tfdbg_arrow_graph"
"""The attribute that tells the native core which graph of the program an op belongs to."""

NEEDS, FEEDS = "_tfdbg_arrow_needs", "_tfdbg_arrow_feeds"
"""Attributes of the op that stands for a run of a session: the tensors and ops that the run needs, and the tensors that
it is fed, one per line."""


_own_names = itertools.count(1)


def own_name(what: str = "record") -> str:
    """Returns a name for an op of ours that is not a prefix or suffix of another name in this process."""
    return f"{OWN_NAME_PREFIX}{what}_{next(_own_names)}_"


def is_own(op_type: str, name: str) -> bool:
    """Returns True if the op with this type and name is one of ours."""
    return op_type.startswith(OWN_OP_PREFIX) or name.startswith(OWN_NAME_PREFIX)


@dataclass(frozen=True)
class TensorBatch:
    """The tensors to record of one op.

    Attributes:
        op: The producing `tf.Operation`.
        tensors: The symbolic outputs to record.
        nodes: Their keys in the registry, in the same order.
        is_chosen: Whether the user chose to keep their elements.
        decides: Whether each tensor stops the program if it is bad, with `on_nonfinite`. Empty means that none does.
    """

    op: Any
    tensors: tuple[Any, ...]
    nodes: tuple[int, ...]
    is_chosen: bool = False
    decides: tuple[bool, ...] = ()

    @property
    def all_decides(self) -> tuple[bool, ...]:
        """`decides`, one for each tensor."""
        return self.decides or (False,) * len(self.tensors)
