"""Builds small logdirs for tests. A test only sets the columns that matter. All other columns get default values."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tfdbg_arrow.schema import FORMAT_VERSION, TABLES, arrow_schema, parquet_options, table
from tfdbg_arrow.schema.declaration import Type
from tfdbg_arrow.storage.layout import MARKER_NAME, manifest_path, part_path
from tfdbg_arrow.storage.manifest import ManifestEntry, add_line, checksummed
from tfdbg_arrow.storage.marker import marker_text

START_NS = 1_700_000_000_000_000_000
CPU = "/job:localhost/replica:0/task:0/device:CPU:0"

_DEFAULTS: dict[Type, Any] = {
    Type.BIGINT: 0,
    Type.INTEGER: 0,
    Type.DOUBLE: 0.0,
    Type.VARCHAR: "",
    Type.BOOLEAN: False,
    Type.TIMESTAMP: 0,
    Type.BLOB: b"",
    Type.BIGINT_LIST: [],
}


def counts(
    *, neg_inf: int = 0, pos_inf: int = 0, nan: int = 0, neg: int = 0, zero: int = 0, pos: int = 0
) -> dict[str, Any]:
    """Returns the health columns of a tensor of rank 1 with these elements."""
    size = neg_inf + pos_inf + nan + neg + zero + pos
    return {
        "rank": 1,
        "shape": [size],
        "size": size,
        "has_inf_or_nan": neg_inf + pos_inf + nan > 0,
        "num_neg_inf": neg_inf,
        "num_pos_inf": pos_inf,
        "num_nan": nan,
        "num_neg_finite": neg,
        "num_zero": zero,
        "num_pos_finite": pos,
    }


def counts_of(elements: Iterable[float]) -> dict[str, Any]:
    """Returns the health columns that FULL_HEALTH measures for a vector."""
    array = np.array(elements, np.float64)
    finite = array[np.isfinite(array)]
    return counts(
        neg_inf=int((array == -np.inf).sum()),
        pos_inf=int((array == np.inf).sum()),
        nan=int(np.isnan(array).sum()),
        neg=int((finite < 0).sum()),
        zero=int((finite == 0).sum()),
        pos=int((finite > 0).sum()),
    )


def numerics(*elements: float, dtype: str = "float32") -> dict[str, Any]:
    """Returns the health columns that FULL_NUMERICS measures for a vector."""
    finite = np.array(elements, np.float64)[np.isfinite(elements)]
    magnitudes: dict[str, float] = {}
    if finite.size:
        magnitudes = {
            "min_finite": float(finite.min()),
            "max_finite": float(finite.max()),
            "mean_finite": float(finite.mean()),
            "stddev_finite": float(finite.std()),
            "max_abs_finite": float(abs(finite).max()),
        }
    return {**counts_of(elements), **magnitudes, "dtype": dtype}


CLEAN = counts(pos=2)
NAN = counts(nan=1, pos=1)
INF = counts(pos_inf=1, pos=1)
NEG_INF = counts(neg_inf=1, pos=1)


class GraphBuilder:
    """One graph. Its ops count as created in the order in which a test adds them."""

    def __init__(self, run: RunBuilder, graph_id: int, name: str) -> None:
        self.run = run
        self.graph_id = graph_id
        self.name = name
        self.op_types: dict[str, str] = {}

    def op(
        self,
        op_name: str,
        op_type: str | None = None,
        inputs: Iterable[str] = (),
        *,
        dtypes: Iterable[str] = ("float32",),
        stack: int | None = None,
        not_recorded: str | None = None,
        **columns: Any,
    ) -> GraphBuilder:
        """Adds an op. An input is `op_name:slot`, or `op_name` for slot 0. `columns` sets other columns of graph_op."""
        dtypes = tuple(dtypes)
        self.run.add(
            "graph_op",
            graph_id=self.graph_id,
            op_index=len(self.op_types),
            op_name=op_name,
            op_type=op_type or op_name,
            num_outputs=len(dtypes),
            attributes="{}",
            stack_trace_id=stack,
            **columns,
        )
        self.op_types[op_name] = op_type or op_name
        for index, source in enumerate(inputs):
            name, _, slot = source.partition(":")
            self.run.add(
                "graph_op_input",
                graph_id=self.graph_id,
                op_name=op_name,
                input_index=index,
                is_control=False,
                source_op_name=name,
                source_output_slot=int(slot or 0),
            )
        for slot_, dtype in enumerate(dtypes):
            self.run.add(
                "graph_op_output",
                graph_id=self.graph_id,
                op_name=op_name,
                output_slot=slot_,
                dtype=dtype,
                is_recorded=not_recorded is None,
                not_recorded_reason=not_recorded,
            )
        return self

    def function(
        self, name: str, arguments: Iterable[str] = (), results: Iterable[str] = (), *, captures: Iterable[str] = ()
    ) -> GraphBuilder:
        """Adds a function that was made from the graph. Captures come after the other arguments."""
        captures = tuple(captures)
        self.run.add("graph_function", function_name=name, graph_id=self.graph_id)
        for index, op_name in enumerate((*arguments, *captures)):
            self.run.add(
                "graph_function_input",
                function_name=name,
                graph_id=self.graph_id,
                input_index=index,
                op_name=op_name,
                is_capture=op_name in captures,
            )
        for index, result in enumerate(results):
            op_name, _, slot = result.partition(":")
            self.run.add(
                "graph_function_output",
                function_name=name,
                graph_id=self.graph_id,
                output_index=index,
                op_name=op_name,
                output_slot=int(slot or 0),
            )
        return self

    def calls(
        self, op_name: str, function: str, callee: GraphBuilder, *, attribute: str = "f", branch: int = 0
    ) -> GraphBuilder:
        """Records that an op calls a function of another graph."""
        self.run.add(
            "graph_call",
            graph_id=self.graph_id,
            op_name=op_name,
            attribute=attribute,
            branch_index=branch,
            function_name=function,
            callee_graph_id=callee.graph_id,
            is_inline=True,
        )
        return self


class ExecutedBuilder:
    """One optimized graph. An input is `node:slot`, or `node` for slot 0."""

    def __init__(self, run: RunBuilder, executed_graph_id: int, graph: GraphBuilder | None) -> None:
        self.run = run
        self.executed_graph_id = executed_graph_id
        self.graph = graph

    def argument(self, name: str) -> ExecutedBuilder:
        """Adds the node of the only argument."""
        return self.node(name, "_Arg", index=0)

    def result(self, source: str) -> ExecutedBuilder:
        """Adds the node of the only result."""
        ExecutedBuilder(self.run, self.executed_graph_id, None).node("result", "_Retval", [source], index=0)
        return self

    def node(
        self,
        name: str,
        op_type: str,
        inputs: Iterable[str] = (),
        *,
        of: GraphBuilder | None = None,
        op: str | None = None,
        made_for: str | None = None,
        site: str | None = "",
        dtypes: str | None = '["float32"]',
        index: int | None = None,
    ) -> ExecutedBuilder:
        """Adds a node.

        Args:
            of: The program's graph that contains the op of the node. None means the graph of the optimized graph.
            op: The program's op that the node stands for. None means the op with the name of the node. If the node was
                `made_for` another op or has no graph, None means no op.
        """
        of = of or self.graph
        op = name if op is None and of is not None and made_for is None else op
        self.run.add(
            "executed_op",
            executed_graph_id=self.executed_graph_id,
            node_name=name,
            op_type=op_type,
            graph_id=None if of is None else of.graph_id,
            op_name=op,
            made_for=made_for,
            call_site=None if of is None else site,
            interface_index=index,
            output_dtypes=dtypes,
        )
        for input_index, source in enumerate(inputs):
            source_name, _, slot = source.partition(":")
            self.run.add(
                "executed_op_input",
                executed_graph_id=self.executed_graph_id,
                node_name=name,
                input_index=input_index,
                is_control=False,
                source_node_name=source_name,
                source_output_slot=int(slot or 0),
            )
        return self


class RunBuilder:
    """One run. Events are numbered from 0 in the order in which they are added."""

    def __init__(self, run_id: str, **settings: Any) -> None:
        self.run_id = run_id
        self.rows: dict[str, list[dict[str, Any]]] = {table_.name: [] for table_ in TABLES}
        self.next_event_index = 0
        self._frame_ids: dict[tuple[str, int, str, str | None, str], int] = {}
        self._num_stacks = 0
        self._num_executed = 0
        self._start_ns = settings.pop("wall_time_ns", START_NS)
        self.add(
            "run",
            **{
                "wall_time_ns": self._start_ns,
                "end_wall_time_ns": self._start_ns + 10**9,
                "is_clean_end": True,
                "format_version": FORMAT_VERSION,
                "tfdbg_arrow_version": "0.1.0",
                "tensorflow_version": "2.21.0",
                "host_name": "host",
                "pid": 4242,
                "command_line": '["python", "train.py"]',
                "tensor_debug_mode": "FULL_HEALTH",
                "circular_buffer_size": -1,
                "health_backend": "native",
                "settings": "{}",
                **settings,
            },
        )
        self.add("device", device_id=0, device_name=CPU)

    def add(self, table_name: str, **values: Any) -> None:
        """Adds a row. Other columns are NULL. If such a column is not nullable, it is 0, empty or false."""
        columns = {column.name: column for column in table(table_name).columns}
        assert set(values) <= set(columns), set(values) - set(columns)
        row = {name: None if column.nullable else _DEFAULTS[column.type] for name, column in columns.items()}
        self.rows[table_name].append({**row, "run_id": self.run_id, **values})

    def graph(self, name: str) -> GraphBuilder:
        graph_id = len(self.rows["graph"])
        self.add("graph", graph_id=graph_id, graph_name=name)
        return GraphBuilder(self, graph_id, name)

    def executed(self, graph: GraphBuilder | None = None) -> ExecutedBuilder:
        """Adds an optimized graph. The nodes of this graph stand for the ops of one of the program's graphs."""
        self._num_executed += 1
        return ExecutedBuilder(self, self._num_executed - 1, graph)

    def stack(self, *frames: tuple[str, int, str, str | None, str]) -> int:
        """Adds a stack trace and returns its ID.

        Args:
            frames: The frames as (file_path, lineno, func, code, owner), innermost frame first.
        """
        stack_id = self._num_stacks
        self._num_stacks += 1
        for depth, frame in enumerate(frames):
            frame_id = self._frame_ids.setdefault(frame, len(self._frame_ids))
            if frame_id == len(self.rows["stack_frame"]):
                columns = dict(zip(("file_path", "lineno", "func", "code", "owner"), frame, strict=True))
                self.add("stack_frame", stack_frame_id=frame_id, **columns)
            self.add("stack_trace", stack_trace_id=stack_id, depth=depth, stack_frame_id=frame_id)
        return stack_id

    def execution(
        self,
        op_type: str,
        *,
        inputs: Iterable[int] = (),
        outputs: Mapping[int, str] | None = None,
        graph: GraphBuilder | None = None,
        stack: int | None = None,
    ) -> int:
        """Adds an execution and returns its index. `inputs` are tensor IDs, and `outputs` maps tensor IDs to dtypes."""
        index = len(self.rows["execution"])
        inputs, outputs = tuple(inputs), dict(outputs or {})
        event_index = self._take_event_index()
        self.add(
            "execution",
            execution_index=index,
            event_index=event_index,
            wall_time_ns=self._start_ns + event_index * 1000,
            op_type=op_type,
            graph_id=None if graph is None else graph.graph_id,
            num_inputs=len(inputs),
            num_outputs=len(outputs),
            stack_trace_id=stack,
        )
        for input_index, tensor_id in enumerate(inputs):
            self.add("execution_input", execution_index=index, input_index=input_index, tensor_id=tensor_id)
        for slot, (tensor_id, dtype) in enumerate(outputs.items()):
            self.add("execution_output", execution_index=index, output_slot=slot, tensor_id=tensor_id, dtype=dtype)
        return index

    def tensor(
        self,
        graph: GraphBuilder,
        name: str,
        health: Mapping[str, Any],
        *,
        execution: int | None = None,
        step: int | None = 1,
        frame: int = 0,
        iteration: int = 0,
        site: str = "",
        op_type: str | None = None,
    ) -> int:
        """Adds a row for the tensor `op_name:slot` of a graph and returns its event_index.

        Args:
            step: The step ID. None omits the context (step, frame, iteration and call site).
            op_type: The type of the op that ran, if it differs from the type of the op in the graph.
        """
        op_name, _, slot = name.partition(":")
        context: dict[str, Any] = {}
        if step is not None:
            context = {"step_id": step, "frame_id": frame, "iteration": iteration, "call_site": site}
        return self._tensor_row(
            scope="graph",
            execution_index=execution,
            graph_id=graph.graph_id,
            op_name=op_name,
            op_type=op_type or graph.op_types[op_name],
            output_slot=int(slot or 0),
            device_id=0,
            **context,
            **health,
        )

    def tensors(self, graph: GraphBuilder, healths: Mapping[str, Mapping[str, Any]], **place: Any) -> list[int]:
        """Adds a row for each tensor of a graph, as `tensor` does, and returns their event_indexes."""
        return [self.tensor(graph, name, health, **place) for name, health in healths.items()]

    def eager(self, execution: int, health: Mapping[str, Any], *, tensor_id: int, slot: int = 0) -> int:
        """Adds a row for an output of an execution and returns its event_index."""
        return self._tensor_row(
            scope="execution",
            execution_index=execution,
            op_type=self.rows["execution"][execution]["op_type"],
            output_slot=slot,
            tensor_id=tensor_id,
            device_id=0,
            **health,
        )

    def eager_op(
        self,
        op_type: str,
        health: Mapping[str, Any],
        *,
        tensor_id: int,
        inputs: Iterable[int] = (),
        stack: int | None = None,
    ) -> int:
        """Adds an eager op with one output and a row for the output, and returns the event_index of the row."""
        execution = self.execution(op_type, inputs=inputs, outputs={tensor_id: "float32"}, stack=stack)
        return self.eager(execution, health, tensor_id=tensor_id)

    def external(self, tensor_id: int, health: Mapping[str, Any], *, execution: int) -> int:
        """Adds a row for an eager tensor from outside. `execution` is the first execution that takes it."""
        return self._tensor_row(scope="external", execution_index=execution, tensor_id=tensor_id, device_id=0, **health)

    def _tensor_row(self, **values: Any) -> int:
        event_index = self._take_event_index()
        wall_time_ns = self._start_ns + event_index * 1000
        self.add(
            "tensor_health",
            **{"event_index": event_index, "wall_time_ns": wall_time_ns, "dtype": "float32", **values},
        )
        return event_index

    def _take_event_index(self) -> int:
        self.next_event_index += 1
        return self.next_event_index - 1

    def write(self, logdir: Path, *, parts: int = 1) -> Path:
        """Writes the run into a logdir and returns the logdir.

        Args:
            logdir: The directory to write to.
            parts: The number of parts of each table.
        """
        self._set_executed_graphs()
        logdir.mkdir(parents=True, exist_ok=True)
        (logdir / MARKER_NAME).write_text(marker_text())
        lines = []
        for name, rows in self.rows.items():
            size = max(1, -(-len(rows) // parts))
            for number in range(parts):
                part = rows[number * size : (number + 1) * size]
                path = part_path(name, run_id=self.run_id, number=number)
                lines.append(add_line(_write_part(logdir, path, name=name, rows=part)))
        manifest = logdir / manifest_path(self.run_id)
        manifest.parent.mkdir(exist_ok=True)
        manifest.write_text(checksummed(lines))
        return logdir

    def _set_executed_graphs(self) -> None:
        """Sets the optimized graph for the rows of each step.

        This is the graph whose nodes match the names and types of the most rows.
        """
        nodes: dict[int, dict[tuple[Any, ...], str]] = {}
        for node in self.rows["executed_op"]:
            place = node["graph_id"], node["call_site"], node["op_name"] or node["node_name"]
            nodes.setdefault(node["executed_graph_id"], {})[place] = node["op_type"]
        steps: dict[int | None, list[dict[str, Any]]] = {}
        for row in self.rows["tensor_health"]:
            steps.setdefault(row["step_id"], []).append(row)
        for rows in steps.values():
            types = {(row["graph_id"], row["call_site"], row["op_name"]): row["op_type"] for row in rows}
            fitting = {
                graph: sum(1 + (there[place] == types[place]) for place in types.keys() & there.keys())
                for graph, there in nodes.items()
            }
            best = max(fitting, key=fitting.__getitem__, default=None)
            ran = best if best is not None and fitting[best] else None
            for row in rows:
                row["executed_graph_id"] = ran if row["scope"] == "graph" else None


def _write_part(logdir: Path, path: str, *, name: str, rows: list[dict[str, Any]]) -> ManifestEntry:
    file = logdir / path
    file.parent.mkdir(parents=True, exist_ok=True)
    data = pa.Table.from_pylist(rows, schema=arrow_schema(name))
    pq.write_table(data, file, **parquet_options(name))
    events = [row["event_index"] for row in rows if "event_index" in row]
    return ManifestEntry(
        table=name,
        path=path,
        rows=len(rows),
        bytes=file.stat().st_size,
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        min_event_index=min(events, default=None),
        max_event_index=max(events, default=None),
    )
