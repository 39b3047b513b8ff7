"""TensorLists: which element a pop from a list of tensors returns.

Loops store the tensors that their gradients need in lists. The forward loop pushes one element per iteration, and the
backward loop pops them. A list has no row of its own, so it is followed back to the ops that pushed and popped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tfdbg_arrow.query.flow.executed_edges import ExecutedEdges
from tfdbg_arrow.query.flow.graphs import GraphReader
from tfdbg_arrow.query.flow.places import GraphTensor, Place
from tfdbg_arrow.query.recorded import Context

PUSH, POP = "TensorListPushBack", "TensorListPopBack"
ELEMENT = 1
"""The output slot of a pop that holds the element. Slot 0 is the rest of the list."""

_Key = tuple[Context, int, str, int]


@dataclass(frozen=True)
class _List:
    """A list of tensors: its last element, and the list without it (None if it is empty or unknown)."""

    last: Place
    rest: _List | None


class TensorLists:
    """Follows the lists of tensors of one run.

    Args:
        graphs: The run's graphs.
        executed: The edges that ran.
        resolve: Returns the place of the op that made a tensor, or None if it was not recorded.
    """

    def __init__(
        self, graphs: GraphReader, executed: ExecutedEdges, resolve: Callable[[GraphTensor], Place | None]
    ) -> None:
        self._graphs = graphs
        self._executed = executed
        self._resolve = resolve
        self._known: dict[_Key, _List | None] = {}
        """The lists by their places."""

    def popped(self, pop: GraphTensor) -> Place | None:
        """Returns the place of the element that a pop returns, or None if it is not known."""
        op = self._graphs.op(pop.graph_id, pop.op_name)
        tensors = None if op is None or not op.inputs else self._list(self._executed.aligned_inputs(pop, op)[0])
        return None if tensors is None else tensors.last

    def _list(self, place: GraphTensor) -> _List | None:
        """Returns a list. Loops make long lists, so the search does not recurse and visits each place once."""
        waiting: list[tuple[_Key, Place | None]] = []
        found: _List | None = None
        at = self._resolve(place)
        while isinstance(at, GraphTensor) and None not in (
            at.context.step_id,
            at.context.frame_id,
            at.context.iteration,
        ):
            key = (at.context, at.graph_id, at.op_name, at.output_slot)
            if key in self._known:
                found = self._known[key]
                break
            self._known[key] = None  # ends a cycle
            op = self._graphs.op(at.graph_id, at.op_name)
            if op is None or not (op.op_type == PUSH or (op.op_type == POP and at.output_slot != ELEMENT)):
                break
            inputs = self._executed.aligned_inputs(at, op)
            waiting.append((key, inputs[1] if op.op_type == PUSH else None))
            at = self._resolve(inputs[0])
        for key, pushed in reversed(waiting):
            if pushed is not None:
                found = _List(pushed, found)
            elif found is not None:
                found = found.rest
            self._known[key] = found
        return found
