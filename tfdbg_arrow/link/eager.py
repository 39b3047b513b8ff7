"""Eager: the tensors of eager code, and the executions that took or made these tensors."""

from __future__ import annotations

import numpy as np

from tfdbg_arrow.link.arrays import Bools, Ints, place_of, ranges
from tfdbg_arrow.link.ops import NEVER_BAD, REPLACING, WRITER, unlinked_types
from tfdbg_arrow.link.tables import Tables

_EXECUTIONS = f"""
SELECT
    execution_index, event_index, coalesce(graph_id, -1) AS graph_id, t.type,
    regexp_full_match(op_type, '{WRITER}') AS is_writer, op_type IN {REPLACING} AS is_replacing,
    op_type = 'MakeIterator' AS is_iterator, regexp_full_match(op_type, '{unlinked_types()}') AS is_unlinked
FROM execution JOIN linked_type AS t USING (op_type)
WHERE execution_index >= 0 AND event_index >= 0
ORDER BY execution_index"""
_MADE = f"""
SELECT
    tensor_id, min(execution_index) AS execution_index, arg_min(output_slot, execution_index) AS slot,
    min(dtype) = 'resource' AS is_resource, regexp_full_match(min(dtype), '{NEVER_BAD}') AS is_never_bad
FROM execution_output
WHERE tensor_id >= 0
GROUP BY tensor_id
ORDER BY tensor_id"""


class Eager:
    """The executions of a run.

    Attributes:
        index, event, graph, type: Columns with one value for each execution: `execution_index`, `event_index`,
            `graph_id` (-1 for an op), and the index of the op type in `types`.
        is_writer, is_replacing, is_iterator, is_unlinked: Flags of each execution, with the same meaning as the flags
            of ops in `Ops`.
        types: The types of ops, and the names of functions.
    """

    def __init__(self, tables: Tables) -> None:
        tables.run(
            "CREATE OR REPLACE TEMP TABLE linked_type AS "
            "SELECT row_number() OVER (ORDER BY op_type) - 1 AS type, op_type "
            "FROM (SELECT DISTINCT op_type FROM execution)"
        )
        self.types: list[str] = tables.columns("SELECT op_type FROM linked_type ORDER BY type")["op_type"].tolist()
        rows = tables.columns(_EXECUTIONS)
        self.index, self.event = rows["execution_index"], rows["event_index"]
        self.graph, self.type = rows["graph_id"], rows["type"]
        self.is_writer, self.is_replacing = rows["is_writer"], rows["is_replacing"]
        self.is_iterator, self.is_unlinked = rows["is_iterator"], rows["is_unlinked"]
        taken = tables.columns(
            "SELECT execution_index, input_index, tensor_id FROM execution_input WHERE tensor_id >= 0 ORDER BY 1, 2"
        )
        self._taken, self._taken_index = taken["tensor_id"], taken["input_index"]
        self._first = np.searchsorted(taken["execution_index"], self.index, "left")
        self._last = np.searchsorted(taken["execution_index"], self.index, "right")
        outputs = tables.columns(_MADE)
        self._made_tensor, self._made_by = outputs["tensor_id"], place_of(outputs["execution_index"], self.index)
        self._made_slot, self._is_resource, self._is_never_bad = (
            outputs["slot"],
            outputs["is_resource"],
            outputs["is_never_bad"],
        )

    def place_of(self, execution_index: Ints) -> Ints:
        """Returns the place of each execution in the columns, -1 for executions without a row."""
        return place_of(execution_index, self.index)

    def inputs(self, places: Ints) -> tuple[Ints, Ints, Ints]:
        """Returns (item, tensor_id, input index) of the inputs of executions, given by their places."""
        item, at = ranges(self._first[places], self._last[places])
        return item, self._taken[at], self._taken_index[at]

    def argument(self, places: Ints, index: Ints) -> Ints:
        """Returns the tensor_id of one input of each execution, -1 if it is unknown."""
        arguments = np.full(len(places), -1)
        at = np.nonzero(places >= 0)[0]
        item, tensor_id, input_index = self.inputs(places[at])
        is_it = input_index == index[at][item]
        arguments[at[item[is_it]]] = tensor_id[is_it]
        return arguments

    def maker(self, tensor_ids: Ints) -> tuple[Ints, Ints]:
        """Returns (place of the execution, output slot) that made each tensor, -1 for tensors from outside."""
        at = place_of(tensor_ids, self._made_tensor)
        if not len(self._made_tensor):
            return np.full(len(tensor_ids), -1), np.full(len(tensor_ids), -1)
        is_made = at >= 0
        at = np.maximum(at, 0)
        return np.where(is_made, self._made_by[at], -1), np.where(is_made, self._made_slot[at], -1)

    def is_resource(self, tensor_ids: Ints) -> Bools:
        """Returns which tensors are resources that a recorded execution made."""
        return self._flag(self._is_resource, tensor_ids)

    def is_never_bad(self, tensor_ids: Ints) -> Bools:
        """Returns which tensors a recorded execution made with a dtype that cannot hold a bad value."""
        return self._flag(self._is_never_bad, tensor_ids)

    def _flag(self, flags: Bools, tensor_ids: Ints) -> Bools:
        at = place_of(tensor_ids, self._made_tensor)
        return (at >= 0) & flags[np.maximum(at, 0)] if len(flags) else np.zeros(len(at), bool)
