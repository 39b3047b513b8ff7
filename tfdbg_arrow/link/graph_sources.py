"""GraphSources: the tensors from which a tensor of a graph was computed. They may have no row."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tfdbg_arrow.link.arrays import Bools, Ints, has, ints, place_of, ranges
from tfdbg_arrow.link.border_edges import BorderEdges
from tfdbg_arrow.link.eager import Eager
from tfdbg_arrow.link.edges import Edges, Way
from tfdbg_arrow.link.graph_loops import GraphLoops
from tfdbg_arrow.link.keys import EAGER
from tfdbg_arrow.link.ops import Ops
from tfdbg_arrow.link.passes import Passes
from tfdbg_arrow.link.program_edges import ProgramEdges
from tfdbg_arrow.link.visits import Visits

TENSOR, ARGUMENT, RESULT, VARIABLE, NOT_RECORDED = range(5)
KINDS = ("tensor", "argument", "result", "variable", "not recorded")
"""What an input is: the tensor of another op, the caller's tensor, the callee's tensor, the content of a variable, or
an input that was not recorded."""
_KIND_OF_WAY = ints([TENSOR, TENSOR, *[ARGUMENT] * 4, *[RESULT] * 4, *[TENSOR] * 6])


class Sources(NamedTuple):
    """The sources from which tensors were computed. One row is one source of one tensor.

    Attributes:
        item: The index of the tensor among the requested tensors.
        input_index: The index of the source among the inputs of the tensor's op, -1 if it is unknown.
        key: The source, -1 if it is not recorded.
        kind: The index in KINDS.
    """

    item: Ints
    input_index: Ints
    key: Ints
    kind: Ints

    def where(self, wanted: Bools) -> Sources:
        """Returns the wanted rows."""
        return Sources(*(column[wanted] for column in self))


class GraphSources:
    """Follows tensors of graphs one step back.

    Attributes:
        passes: The passes of the run.
        visits: The call sites that ran in these passes.
        ops: The ops at all call sites.
        eager: The executions.
        loops: The loops of TensorFlow 1.
    """

    def __init__(
        self,
        *,
        passes: Passes,
        visits: Visits,
        ops: Ops,
        eager: Eager,
        loops: GraphLoops,
        program: ProgramEdges,
        borders: BorderEdges,
        row_keys: Ints,
    ) -> None:
        self.passes, self.visits, self.ops, self.eager, self.loops = passes, visits, ops, eager, loops
        self._is_fed, self._row_keys = borders.is_fed, row_keys
        self._of_op = Edges(loops.with_ways(program.of_ops), borders.of_ops, size=len(ops))
        self._of_tensor = Edges(program.of_tensors, borders.of_tensors, size=ops.num_tensors)
        self._replaced, self._num_executed = program.replaced, len(program.executed_graphs)
        self._executed = place_of(passes.executed_graph, program.executed_graphs)
        self._execution = eager.place_of(passes.execution)

    def of(self, keys: Ints, *, of_op_only: bool = False) -> Sources:
        """Returns the sources of tensors, whatever their dtypes.

        Args:
            keys: Tensors of graphs.
            of_op_only: Whether to return only the inputs of the op, even if the output of the op comes from a callee.
        """
        passes, tensor = np.divmod(keys, self.ops.num_tensors)
        parts = []
        is_computed = ~self._is_fed[tensor]
        for edges, owner, is_used in (
            (self._of_op, self.ops.of_tensor[tensor], is_computed),
            (self._of_tensor, tensor, np.ones(len(keys), bool)),
        ):
            first = edges.starts[owner]
            item, at = ranges(first, np.where(is_used, edges.starts[owner + 1], first))
            parts.append((item, edges.input_index[at], edges.source[at], edges.way[at], edges.detail[at]))
        columns = parts[0] if of_op_only else [np.concatenate(pair) for pair in zip(*parts, strict=True)]
        item, input_index, source, way, detail = columns
        source_pass = self._source_pass(item, passes[item], source, way, detail)
        key = source_pass * self.ops.num_tensors + source
        at = np.nonzero((way == Way.EAGER) & (source_pass >= 0))[0]
        argument = self.eager.argument(self._execution[self.passes.frame_of(source_pass[at])], detail[at])
        key[at] = np.where(argument >= 0, EAGER + argument, -1)
        return Sources(item, input_index, key, _KIND_OF_WAY[way]).where((source_pass >= 0) & (key >= 0))

    def _source_pass(self, item: Ints, passes: Ints, source: Ints, way: Ints, detail: Ints) -> Ints:
        """Returns the pass in which the source of each edge was computed, -1 if the edge does not apply."""
        frame = self.passes.frame_of(passes)
        source_pass = passes.copy()
        executed = self._executed[frame]
        source_pass[(way == Way.SAME) & (detail >= 0) & (detail != executed)] = -1
        at = np.nonzero((way == Way.PROGRAM) & (executed >= 0))[0]
        source_pass[at[has(detail[at] * self._num_executed + executed[at], self._replaced)]] = -1
        is_first = passes == self.passes.start[frame]
        at = np.nonzero(way == Way.ENTER)[0]
        source_pass[at] = np.where(is_first[at], self.visits.entry[frame[at]], -1)
        at = np.nonzero(way == Way.NEXT)[0]
        source_pass[at] = np.where(~is_first[at] & self.visits.has(passes[at] - 1, detail[at]), passes[at] - 1, -1)
        at = np.nonzero(way == Way.RESULT)[0]
        source_pass[at[~self.visits.has(passes[at], detail[at])]] = -1
        has_result = np.zeros(int(item.max(initial=-1)) + 1, bool)
        has_result[item[at[source_pass[at] >= 0]]] = True
        source_pass[(way == Way.SILENT) & has_result[item]] = -1
        at = np.nonzero(way == Way.EXIT)[0]
        last = self.visits.last_pass(passes[at], detail[at])
        site = self.ops.site[self.ops.of_tensor[source[at]]]
        source_pass[at] = np.where((last >= 0) & self.visits.has(np.maximum(last, 0), site), last, -1)
        at = np.nonzero(way == Way.SKIP)[0]
        is_skipped = self.visits.last_pass(passes[at], detail[at]) < 0
        is_skipped &= self.visits.has_known_entries(passes[at], detail[at])
        source_pass[at[~is_skipped]] = -1
        return self._in_loops(source_pass, passes, source, way, detail) if self.loops.is_border.any() else source_pass

    def _in_loops(self, source_pass: Ints, passes: Ints, source: Ints, way: Ints, detail: Ints) -> Ints:
        """Returns the passes of sources after applying the ways of the loops and branches of TensorFlow 1."""
        frame = self.passes.frame_of(passes)
        start = self.passes.start[frame]
        made_by = self.ops.of_tensor[source]
        # A tensor that enters a loop and does not change there has a row only in iteration 0.
        is_invariant = self.loops.is_enter[made_by] & ((way == Way.SAME) | (way == Way.PROGRAM)) & (source_pass >= 0)
        source_pass = np.where(is_invariant, start, source_pass)
        source_pass = np.where(way == Way.ENTRY, self.loops.entry[frame], source_pass)
        source_pass = np.where(way == Way.PREVIOUS, np.where(passes > start, passes - 1, -1), source_pass)
        source_pass[(way == Way.FIRST) & (passes > start)] = -1
        source_pass[(way == Way.LATER) & (passes == start)] = -1
        at = np.nonzero(way == Way.LAST)[0]
        source_pass[at] = self.loops.last_pass(passes[at], detail[at])
        needs_row = (way == Way.MERGED) & (source_pass >= 0)
        has_row = has(source_pass * self.ops.num_tensors + source, self._row_keys)
        return np.where(needs_row & ~has_row, -1, source_pass)
