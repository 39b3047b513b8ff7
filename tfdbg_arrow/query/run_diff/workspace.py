"""The two runs of a comparison, and a temporary DuckDB database with the data of both runs."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.database import open_database, temporary_files
from tfdbg_arrow.query.engine import sql_literal
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.logdir.live_views import duckdb_share
from tfdbg_arrow.query.logdir.open_logdir import OpenLogdir
from tfdbg_arrow.query.recorded import HEALTH_COLUMNS, TensorEvent, health_facts
from tfdbg_arrow.query.run_diff.answer import DiffTensor
from tfdbg_arrow.query.stacks import Frame, user_source

SIDES = ("a", "b")
UP_TO_STEP = "(step <= ? OR step IS NULL)"
"""The SQL condition for rows up to a training step, or without a step."""

_HEALTH = tuple(name for name in HEALTH_COLUMNS if name not in ("event_index", "shape"))
_TABLES = {
    "health": (
        "SELECT event_index, scope, coalesce(execution_index, -1) AS execution_index, coalesce(step_id, 0) AS step_id, "
        "coalesce(frame_id, 0) AS frame_id, coalesce(iteration, -1) AS iteration, "
        "coalesce(call_site, '?') AS call_site, graph_id, op_name, op_type, output_slot, tensor_id, device_id, "
        f"CAST(shape AS VARCHAR) AS shape, {', '.join(_HEALTH)} FROM tensor_health"
    ),
    "execution": (
        "SELECT execution_index, event_index, coalesce(graph_id, -1) AS graph_id, op_type, stack_trace_id "
        "FROM execution"
    ),
    "execution_input": "SELECT execution_index, input_index, tensor_id FROM execution_input",
    "function_input": (
        "SELECT DISTINCT graph_id, op_name, input_index FROM graph_function_input WHERE output_slot IS NULL"
    ),
}
"""The queries that copy the data of each run, by the name of the new view without the suffix for the side."""


class Side:
    """One of the two runs. A Side describes the tensors of its run.

    Attributes:
        logdir: The logdir.
        run_id: The run.
        flow: The run's data flow.
        graphs: The run's graphs.
    """

    def __init__(self, logdir: OpenLogdir, *, run_id: str) -> None:
        self.logdir = logdir
        self.run_id = run_id
        self.flow = DataFlow(logdir, run_id=run_id)
        self.graphs = self.flow.graphs

    def tensor(self, event: TensorEvent) -> DiffTensor:
        """Returns the description of a row of tensor_health."""
        stack = self.flow.stacks.stack(self._stack_trace_id(event))
        return DiffTensor(
            **health_facts(event),
            run_id=self.run_id,
            step=event.step,
            execution_index=event.execution_index,
            iteration=event.iteration,
            graph_name=None if event.graph_id is None else self.graphs.names.get(event.graph_id),
            op_name=event.op_name,
            op_type=event.op_type,
            output_slot=event.output_slot,
            stack=stack,
            source=user_source(stack),
        )

    def event(self, event_index: int) -> TensorEvent:
        """Returns a row of tensor_health."""
        event = self.flow.events.event(event_index)
        assert event is not None
        return event

    def source(self, event: TensorEvent) -> Frame | None:
        """Returns the user's innermost frame of the op that made a tensor."""
        return user_source(self.flow.stacks.stack(self._stack_trace_id(event)))

    def op_source(self, graph_id: int, op_name: str) -> Frame | None:
        """Returns the user's innermost frame of an op in a graph."""
        op = self.graphs.op(graph_id, op_name)
        return None if op is None else user_source(self.flow.stacks.stack(op.stack_trace_id))

    def _stack_trace_id(self, event: TensorEvent) -> int | None:
        if event.scope == "graph":
            if event.graph_id is None or event.op_name is None:
                return None
            op = self.graphs.op(event.graph_id, event.op_name)
            return None if op is None else op.stack_trace_id
        execution = self.flow.events.execution(event.execution_index)
        return None if execution is None else execution.stack_trace_id


Sides = tuple[Side, Side]
"""Run A and run B."""


class Workspace:
    """A database in a temporary directory. The caller must close it.

    Data beyond `memory_limit` goes to files in the directory, so that larger runs take more time but not more memory.

    Attributes:
        connection: The database.
    """

    def __init__(self, *, memory_limit: int) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="tfdbg_arrow_diff_")
        # The database is in memory, because flushing a database file to disk would only take time.
        self.connection = open_database(
            memory_limit=f"{duckdb_share(memory_limit)}B",
            preserve_insertion_order=False,
            **temporary_files(self._directory.name, memory_limit=memory_limit),
        )

    def close(self) -> None:
        """Closes the database and removes the directory."""
        self.connection.close()
        self._directory.cleanup()

    def stage(self, name: str, side: Side, *, last_step: int | None = None) -> None:
        """Copies the required data of a run to views with names such as `health_a` and `execution_b`.

        Args:
            name: `a` or `b`.
            side: The run.
            last_step: Copies only executions and tensors up to this training step, or without a step; None means all.
        """
        for table, select in _TABLES.items():
            path = Path(self._directory.name) / f"{table}_{name}.parquet"
            joint = " AND " if " WHERE " in select else " WHERE "
            part = f"{select}{joint}run_id = {sql_literal(side.run_id)}"
            if last_step is not None and table in ("health", "execution"):
                part += f" AND {UP_TO_STEP.replace('?', str(last_step))}"
            side.logdir.rows(f"COPY ({part}) TO {sql_literal(str(path))} (FORMAT parquet)")
            self.execute(f"CREATE VIEW {table}_{name} AS SELECT * FROM read_parquet({sql_literal(str(path))})")

    def recorded_ops(self, side: str) -> frozenset[tuple[int, str]]:
        """Returns the ops in graphs for which a run recorded a tensor, as (graph id, name)."""
        rows = self.rows(f"SELECT DISTINCT graph_id, op_name FROM health_{side} WHERE scope = 'graph'")
        return frozenset((graph_id, op_name) for graph_id, op_name in rows)

    def load(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[object]], types: Sequence[type]) -> None:
        """Creates a table from rows."""
        kinds = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}
        cells = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
        arrays = [pa.array(cell, kinds[kind]) for cell, kind in zip(cells, types, strict=True)]
        self.load_arrow(name, pa.table(arrays, names=list(columns)))

    def load_arrow(self, name: str, table: pa.Table) -> None:
        """Creates a table from an Arrow table."""
        self.connection.register("incoming", table)
        self.connection.execute(f"CREATE OR REPLACE TABLE {name} AS SELECT * FROM incoming")
        self.connection.unregister("incoming")

    def append_arrow(self, name: str, table: pa.Table) -> None:
        """Adds the rows of an Arrow table with the same columns to a table."""
        self.connection.register("incoming", table)
        self.connection.execute(f"INSERT INTO {name} SELECT * FROM incoming")
        self.connection.unregister("incoming")

    def execute(self, statement: str) -> None:
        """Runs a statement."""
        self.connection.execute(statement)

    def arrow(self, query: str, parameters: Sequence[object] = ()) -> pa.Table:
        """Returns every row of a query as an Arrow table."""
        return self.connection.sql(query, params=list(parameters)).to_arrow_table()

    def rows(self, query: str, parameters: Sequence[object] | dict[str, object] = ()) -> list[tuple[Any, ...]]:
        """Returns every row of a query.

        Raises:
            QueryError: DuckDB refuses a parameter, such as an unsupported regular expression.
        """
        given = parameters if isinstance(parameters, dict) else list(parameters)
        try:
            return self.connection.execute(query, given).fetchall()
        except duckdb.InvalidInputException as error:
            raise QueryError(str(error)) from error
