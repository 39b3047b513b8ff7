"""Places of a tensor: an output of an op in one run of a graph, or an eager tensor."""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.query.recorded import Context, TensorEvent


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """An output of an op, in one run of its graph.

    Attributes:
        context: Where the graph ran.
        graph_id: The graph.
        op_name: The op.
        output_slot: Which output.
        near: event_index of its user. It selects the row if the context is not known.
    """

    context: Context
    graph_id: int
    op_name: str
    output_slot: int
    near: int


@dataclass(frozen=True, slots=True)
class EagerValue:
    """An eager tensor, by its id."""

    tensor_id: int


Place = GraphTensor | EagerValue


@dataclass(frozen=True, slots=True)
class Trace:
    """Where a tensor came from.

    Attributes:
        path: The places that it passed, from its user back to the op that computed it; never empty.
        event: The row of the last place, or None.
        health: The first row on the path, or None. It is the tensor's health, since all places hold equal values.
        dtype: Its dtype; None if unknown.
        how: The first border it crossed, from its user back: `graph` (none), `argument`, `capture`, `loop`,
            `call`, `variable`, `eager`, `external`.
        is_lost: Whether the path ends at a border and nothing was recorded on its other side.
    """

    path: tuple[Place, ...]
    event: TensorEvent | None
    health: TensorEvent | None
    dtype: str | None
    how: str
    is_lost: bool

    @property
    def place(self) -> Place:
        """The last place: the op that computed the tensor, as far as it is known."""
        return self.path[-1]
