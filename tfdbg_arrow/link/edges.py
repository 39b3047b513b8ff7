"""Edges: the tensors from which a tensor can come, and the way from the tensor's pass to the pass of each source."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from tfdbg_arrow.link.arrays import Ints, ints, joined


class Way(IntEnum):
    """How an edge leads from the pass of a tensor to the pass of its source. `detail` is the last field of the edge."""

    SAME = 0
    """The same pass, in the optimized graph `detail` (-1: in every optimized graph)."""
    PROGRAM = 1
    """The same pass, unless the edges of the optimized graph that ran replace the edges of the op `detail`."""
    ARGUMENT = 2
    """The same pass: the caller's tensor."""
    ENTER = 3
    """The pass that entered the loop, in iteration 0."""
    NEXT = 4
    """The previous iteration."""
    EAGER = 5
    """Input `detail` of the execution."""
    RESULT = 6
    """The same pass, if the site `detail` ran in it."""
    SILENT = 7
    """The same pass, if no callee left a row in it."""
    EXIT = 8
    """The last pass of the loop `detail` that was entered here."""
    SKIP = 9
    """The same pass, if the loop `detail` was not entered."""
    # The ways of the loops and branches of TensorFlow 1; see `GraphLoops`.
    ENTRY = 10
    """The pass that entered the frame, in each iteration."""
    PREVIOUS = 11
    """The previous pass."""
    FIRST = 12
    """The same pass, in iteration 0."""
    LATER = 13
    """The same pass, except in iteration 0."""
    LAST = 14
    """The last pass of the loop `detail` that was entered here."""
    MERGED = 15
    """The same pass, if the source has a row in it."""


class Edge(NamedTuple):
    """One edge. The owner of the edge is an op or a tensor."""

    owner: int
    input_index: int
    source: int
    way: int
    detail: int


Column = tuple[Ints, Ints, Ints, int, Ints]
"""(owners, input indexes, sources, way, details) of many edges."""


class Edges:
    """Edges grouped by their owner.

    Attributes:
        starts: Where the edges of each owner begin.
        input_index, source, way, detail: The columns.
    """

    def __init__(self, columns: Sequence[Column], rows: Sequence[Edge], *, size: int) -> None:
        of_rows = np.array(rows, np.int64).reshape(-1, 5).T
        parts = [[*map(ints, (c[0], c[1], c[2], np.full(len(c[0]), c[3]), c[4]))] for c in columns]
        table = np.stack([joined([part[i] for part in parts] + [of_rows[i]]) for i in range(5)])
        table = table[:, np.lexsort(table[::-1])]
        if table.shape[1]:
            is_new = np.concatenate([[True], (table[:, 1:] != table[:, :-1]).any(axis=0)])
            table = table[:, is_new]
        owner, self.input_index, self.source, self.way, self.detail = table
        self.starts: Ints = np.searchsorted(owner, np.arange(size + 1))
