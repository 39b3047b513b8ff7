"""Fills the views that `tfdbg_arrow.link` computes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from tfdbg_arrow.link.graph_sources import KINDS
from tfdbg_arrow.link.linked_run import LinkedRun
from tfdbg_arrow.link.tables import Columns
from tfdbg_arrow.query.engine import sql_literal
from tfdbg_arrow.query.logdir.statements import Statements

_BATCH = "linked_batch"


class LogdirTables:
    """The tables of one run of a logdir, for `link`."""

    def __init__(self, logdir: Statements) -> None:
        self._logdir = logdir

    def columns(self, query: str, parameters: Sequence[object] = ()) -> Columns:
        """Returns the rows of a SELECT as arrays; see `link.Tables`."""
        table = self._logdir.stream(query, lambda rows: rows.read_all(), parameters=parameters)
        return {name: _array(table.column(name)) for name in table.column_names}

    def run(self, statement: str, parameters: Sequence[object] = ()) -> None:
        """Runs a statement that returns nothing."""
        self._logdir.rows(statement, parameters)


def _array(column: pa.ChunkedArray) -> Any:
    if pa.types.is_boolean(column.type):
        return column.fill_null(False).to_numpy()
    if pa.types.is_integer(column.type):
        return column.fill_null(-1).to_numpy().astype("int64")
    return column.to_numpy()


def fill_tensor_input(runs: Iterable[tuple[str, Statements]], target: str) -> None:
    """Inserts the rows of `tensor_input` of runs into a table.

    Args:
        runs: The ID of each run, and the logdir restricted to it.
        target: The table.

    Raises:
        MemoryLimitError: The graphs of a run have too many ops.
    """
    for run_id, scope in runs:
        for columns in LinkedRun(LogdirTables(scope)).tensor_inputs():
            batch = pa.table(columns)
            scope._connection.register(_BATCH, batch)
            try:
                scope.rows(_insert(target, run_id))
            finally:
                scope._connection.unregister(_BATCH)


def _insert(target: str, run_id: str) -> str:
    kinds = ", ".join(map(sql_literal, KINDS))
    return f"""
INSERT INTO {target}
SELECT
    {sql_literal(run_id)}, b.node_id, CASE WHEN b.node_id >= 0 THEN b.node_id END, nullif(b.input_index, -1),
    nullif(b.source_node_id, -1), CASE WHEN b.source_node_id >= 0 THEN b.source_node_id END,
    list_extract([{kinds}], b.kind + 1), o.graph_id, o.op_name, coalesce(o.op_type, t.op_type), nullif(b.slot, -1)
FROM {_BATCH} AS b
LEFT JOIN linked_op AS o ON o.op = b.op
LEFT JOIN linked_type AS t ON t.type = b.type"""
