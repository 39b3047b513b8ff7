"""Finds the op of the program for an op that TensorFlow moved to the other side of a Concat or Split.

If a program computes `concat([log(a), log(b)])`, TensorFlow runs `log(concat([a, b]))`. If a program computes the
logarithm of each output of a Split, TensorFlow runs one logarithm before the Split. The op that runs has the name of
the op on one of the parts, or a name with that of the Split. The position of the first bad element shows which part is
bad.

Source: HoistCWiseUnaryChainsStage in tensorflow/core/grappler/optimizers/arithmetic_optimizer.cc.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from math import prod

from tfdbg_arrow.query.flow.executed_edges import ExecutedEdges
from tfdbg_arrow.query.flow.graphs import GraphReader
from tfdbg_arrow.query.recorded import GraphTensor, Op, TensorEvent

_CONCATS = {"Concat": slice(1, None), "ConcatV2": slice(None, -1)}
"""The inputs that are parts; the other input is the axis."""
_SPLITS = ("Split", "SplitV")
_MAX_OPS = 32
"""Maximum number of ops on each part. TensorFlow moves chains of elementwise ops, and few chains have more than ten."""


class JoinedParts:
    """Finds the ops that TensorFlow moved, in one run.

    Args:
        graphs: The graphs.
        executed: The edges of the graphs that TensorFlow ran.
        row_of: Returns the row of the tensor at a place, or of an equal tensor; None if there is no row.
    """

    def __init__(
        self,
        graphs: GraphReader,
        executed: ExecutedEdges,
        row_of: Callable[[GraphTensor], TensorEvent | None],
    ) -> None:
        self._graphs, self._executed, self._row_of = graphs, executed, row_of

    def op_of_bad_part(self, event: TensorEvent, maker: Op | None) -> Op | None:
        """Returns the op of the program on the part that holds the first bad element of a tensor.

        The result is None if TensorFlow did not move the op, if the op of the program is already the right one, or if
        it is not known which part is bad.

        Args:
            event: The row of the tensor.
            maker: The op of the program that made the tensor, if the tensor were only the part that has its name. None
                means the op that is named in the row.
        """
        own = event.graph_tensor
        node = None if own is None else self._graphs.op(own.graph_id, own.op_name)
        if own is None or node is None or own.context.call_site is None or event.first_bad_index is None:
            return None
        op = maker or node
        if op.op_type in _SPLITS:
            return self._op_after_split(own, op, event) if op.op_type != event.op_type else None
        on_part = self._op_before_concat(own, node, op, event)
        is_another = on_part is not None and on_part.op_name != op.op_name and on_part.op_type == op.op_type
        return on_part if is_another else None

    def _op_before_concat(self, own: GraphTensor, node: Op, op: Op, event: TensorEvent) -> Op | None:
        ops = self._graphs.graph(own.graph_id).ops
        after = list(self._chain_of_users(own, op))
        concat = after[-1] if after else op
        if concat.op_type not in _CONCATS or not self._runs_before(concat, own, node):
            return None
        parts = self._executed.aligned_inputs(own.of_op(concat.op_name), concat)[_CONCATS[concat.op_type]]
        number = _part_of(event, [self._shape(part) for part in parts])
        if number is None:
            return None
        on_part = ops.get(concat.inputs[_CONCATS[concat.op_type]][number][0])
        for _ in after[:-1]:
            is_unary = on_part is not None and len(on_part.inputs) == 1
            on_part = ops.get(on_part.inputs[0][0]) if on_part is not None and is_unary else None
        return on_part

    def _op_after_split(self, own: GraphTensor, split: Op, event: TensorEvent) -> Op | None:
        """Returns the op that takes the bad part of a Split. TensorFlow ran this op on all parts before the Split."""
        graph = self._graphs.graph(own.graph_id)
        slots = sorted(slot for name, slot in graph.dtypes if name == split.op_name)
        number = _part_of(event, [self._shape(own.of_op(split.op_name, slot)) for slot in slots])
        edge = (split.op_name, number)
        for _ in range(_MAX_OPS):
            users = [graph.ops[name] for name in graph.users.get(edge[0], ()) if edge in graph.ops[name].inputs]
            if len(users) != 1 or len(users[0].inputs) != 1:
                return None
            if users[0].op_type == event.op_type:
                return users[0]
            edge = (users[0].op_name, 0)
        return None

    def _chain_of_users(self, own: GraphTensor, op: Op) -> Iterator[Op]:
        """Yields the ops after an op in the program, up to the first Concat or the first op with other inputs."""
        graph = self._graphs.graph(own.graph_id)
        for _ in range(_MAX_OPS):
            users = graph.users.get(op.op_name, ())
            if len(users) != 1:
                return
            op = graph.ops[users[0]]
            yield op
            if len(op.inputs) != 1:
                return

    def _runs_before(self, concat: Op, own: GraphTensor, node: Op) -> bool:
        """Returns whether TensorFlow ran a Concat of the program before a node."""
        tensor, op = own, self._graphs.op(own.graph_id, node.op_name)
        for _ in range(_MAX_OPS):
            sources = () if op is None else self._executed.inputs(tensor, op)
            if len(sources) != 1:
                return False
            tensor = sources[0]
            if (tensor.graph_id, tensor.op_name) == (own.graph_id, concat.op_name):
                return True
            op = self._graphs.op(tensor.graph_id, tensor.op_name)
        return False

    def _shape(self, place: GraphTensor) -> tuple[int, ...] | None:
        row = self._row_of(place)
        return None if row is None else row.shape


def _part_of(event: TensorEvent, shapes: Sequence[tuple[int, ...] | None]) -> int | None:
    """Returns the number of the part that holds the first bad element; None if a shape is not known or does not fit.

    Args:
        event: The row of the whole tensor.
        shapes: The shapes of the parts.
    """
    whole, index = event.shape, event.first_bad_index
    recorded = [shape for shape in shapes if shape is not None]
    if whole is None or index is None or len(recorded) < max(len(shapes), 2):
        return None
    for axis, length in enumerate(whole):
        ends = list(accumulate(shape[axis] for shape in recorded if len(shape) == len(whole)))
        others = {(*shape[:axis], *shape[axis + 1 :]) for shape in recorded}
        if len(ends) == len(recorded) and ends[-1] == length and others == {(*whole[:axis], *whole[axis + 1 :])}:
            position = index // prod(whole[axis + 1 :]) % length
            return bisect_right(ends, position)
    return None
