"""Which tensors one record op takes.

Each record op costs a turn of TensorFlow's scheduler, as much as counting a small tensor; but an op that takes many
tensors keeps the first alive until the last is there, and an error in between loses them all. So it takes those of a
few neighbours.

Tensors that share one buffer go to one record op, which then counts their elements once: what a variable was read as
twice, and what only gives its input another name or shape. That keeps nothing alive that is not alive anyway. It is
a hint: the record op looks where the tensors are.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tfdbg_arrow.writer.graphs.own_ops import TensorBatch

_MAX_NEIGHBOURS = 4
"""Ops whose tensors one record op takes because they were created one after the other."""
_MAX_TENSORS_WITH_ALIASES = 16
"""Tensors of a record op, beyond which it takes none for the buffer's sake."""

_ALIASES = frozenset({"Identity", "IdentityN", "PreventGradient", "Reshape", "ExpandDims", "Squeeze", "StopGradient"})
"""Ops whose output `i` is their input `i`, in the same buffer, and that wait for nothing else."""

_CHECKS = frozenset({"CheckNumerics", "CheckNumericsV2"})
"""Ops that end a program where a tensor is bad: the records of their neighbours are to tell of it."""


class Recorded(NamedTuple):
    """A tensor that a record op takes.

    Attributes:
        tensor: Symbolic.
        node: Its key in the registry.
        keep: Whether its elements are kept by the user's choice.
        decides: Whether it stops the program if it is bad.
    """

    tensor: Any
    node: int
    keep: bool
    decides: bool


@dataclass
class RecordGroup:
    """The tensors of one record op.

    Attributes:
        device: Where the ops that make them run.
        tensors: In order of creation.
    """

    device: str
    tensors: list[Recorded] = field(default_factory=list)
    num_neighbours: int = 0


def single_groups(batches: Sequence[TensorBatch]) -> list[RecordGroup]:
    """Returns one group for each op, so that none of its users has to wait for another op's record."""
    return [RecordGroup(device=batch.op.device, tensors=list(_recorded(batch))) for batch in batches]


def groups(batches: Sequence[TensorBatch], *, arguments: frozenset[int]) -> list[RecordGroup]:
    """Returns groups of tensors on the same device: those of neighbours in order of creation, and their aliases.

    Args:
        batches: The tensors of a graph, by their ops, in order of creation.
        arguments: `id()` of the tensors that are arguments of the graph's function: they are there before all others,
            so only aliases join them.
    """
    found: list[RecordGroup] = []
    filling: dict[tuple[str, bool], RecordGroup] = {}
    of_buffer: dict[Hashable, RecordGroup] = {}
    for batch in batches:
        device = batch.op.device
        key = (device, id(batch.tensors[0]) in arguments)
        home: RecordGroup | None = None
        if batch.op.type in _CHECKS:
            filling.clear()  # what comes after it may never run
        for recorded in _recorded(batch):
            buffer = (device, _buffer_of(recorded.tensor))
            group = of_buffer.get(buffer)
            if group is None or len(group.tensors) >= _MAX_TENSORS_WITH_ALIASES:
                if home is None:
                    home = filling.get(key)
                    if home is None or home.num_neighbours >= _MAX_NEIGHBOURS:
                        home = filling[key] = RecordGroup(device=device)
                        found.append(home)
                    home.num_neighbours += 1
                group = of_buffer[buffer] = home
            group.tensors.append(recorded)
    return found


def _recorded(batch: TensorBatch) -> Iterator[Recorded]:
    for tensor, node, decides in zip(batch.tensors, batch.nodes, batch.all_decides, strict=True):
        yield Recorded(tensor=tensor, node=node, keep=batch.is_chosen, decides=decides)


def _buffer_of(tensor: Any) -> Hashable:
    """Returns the same value for tensors of a graph that are likely to share a buffer."""
    source = _source_of(tensor)
    op = source.op
    if op.type == "ReadVariableOp":
        # Reads that wait for the same ops lie between the same writes.
        variable = _source_of(op.inputs[0])
        return (variable.op.name, variable.value_index, frozenset(waited.name for waited in op.control_inputs))
    return (op.name, source.value_index)


def _source_of(tensor: Any) -> Any:
    """Returns the tensor whose buffer a tensor has, through all ops that only hand it on."""
    while (op := tensor.op).type in _ALIASES and not op.control_inputs:
        tensor = op.inputs[tensor.value_index]
    return tensor
