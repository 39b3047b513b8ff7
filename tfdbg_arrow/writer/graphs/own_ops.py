"""The ops that we add to graphs: how they are known, and who adds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

OWN_OP_PREFIX = "TfdbgArrow"
"""Begins the type of every op that only we have."""

OWN_NAME_PREFIX = "tfdbg_arrow_"
"""Begins the name of every op that we add to a graph."""

MARK = "_tfdbg_arrow_graph"
"""The attribute that tells the native core of which graph of the program an op is."""

NEEDS, FEEDS = "_tfdbg_arrow_needs", "_tfdbg_arrow_feeds"
"""The attributes of the op that stands for a run of a session: what the run needs and what it is fed, one a line."""


def is_own(op_type: str, name: str) -> bool:
    """Returns whether an op, by its type and its name, is one of ours."""
    return op_type.startswith(OWN_OP_PREFIX) or name.startswith(OWN_NAME_PREFIX)


class RecordOps(Protocol):
    """Adds the ops that record, in the way of the health backend."""

    def add(self, graph: Any, batches: Sequence[TensorBatch], *, is_stateless: bool = False) -> list[Any]:
        """Adds record ops for the tensors to the graph; returns those that must run.

        Args:
            graph: The FuncGraph.
            batches: The tensors.
            is_stateless: Whether TensorFlow treats the ops as stateless. tf.data runs a pipeline differently if one
                of its functions is stateful.
        """


class HoldForRecordOps(Protocol):
    """Makes ops wait for ours."""

    def __call__(self, op: Any, tensors: Sequence[Any], *, calls: Sequence[Any]) -> None:
        """Makes an op wait for all that ours do with tensors of its graph, and in the functions of ops that call."""


class SingleRecordOps(Protocol):
    """Adds ops that record a single tensor, in the way of the health backend."""

    def add_record(self, graph: Any, tensor: Any, node: int, *, keep: bool, decides: bool) -> Any:
        """Adds the op that records a tensor, and keeps its elements or stops the program at it or not; returns it."""

    def add_token(self, graph: Any, node: int) -> tuple[Any, Any] | None:
        """Adds a Placeholder for the index of an execution and the op that takes it; None where none can."""


@dataclass(frozen=True)
class TensorBatch:
    """The tensors of one op that are to be recorded.

    Attributes:
        op: The producing `tf.Operation`.
        tensors: Its covered outputs, symbolic.
        nodes: Their keys in the registry, in the same order.
        is_chosen: Whether their elements are kept by the user's choice.
        is_alone: Whether the op that records them takes none of other ops, as a sum waits for it.
        decides: For each whether it stops the program if it is bad, under `on_nonfinite`; empty: none does.
    """

    op: Any
    tensors: tuple[Any, ...]
    nodes: tuple[int, ...]
    is_chosen: bool = False
    is_alone: bool = False
    decides: tuple[bool, ...] = ()

    @property
    def all_decides(self) -> tuple[bool, ...]:
        """`decides`, one for each tensor."""
        return self.decides or (False,) * len(self.tensors)
