"""Reads a logdir of tfdbg_arrow as a Recording."""

from __future__ import annotations

from collections import defaultdict
from math import prod
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from tfdbg_arrow.schema.dtypes import DTYPES, decode_strings

from .recording import Execution, Frame, Graph, GraphOp, Recording, Stack, Trace, Value, tensor_value

Row = dict[str, Any]
_NUMBERS = {dtype.name: dtype.number for dtype in DTYPES}
_MAX_DIMS_OF_SHAPE = 6


def read_logdir(logdir: Path) -> Recording:
    """Returns the only run of a logdir in the common form.

    Summary vectors are computed from our columns in the form that Debugger V2 would write.
    """
    mode = _rows(logdir, "run")[0]["tensor_debug_mode"]
    stacks = _stacks(logdir)
    full = {row["event_index"]: row for row in _rows(logdir, "tensor_value")}
    health = sorted(_rows(logdir, "tensor_health"), key=lambda row: row["event_index"])
    values = {row["event_index"]: _value(row, mode, full) for row in health}
    devices = {row["device_id"]: row["device_name"] for row in _rows(logdir, "device")}
    # Debugger V2 does not record executions with an error.
    failed = {row["execution_index"] for row in _rows(logdir, "execution_error")}
    rows = [row for row in _rows(logdir, "execution") if row["execution_index"] not in failed]
    executions = sorted(rows, key=lambda row: row["execution_index"])
    thread = executions[0]["thread_id"]  # the main thread runs the first op of the corpus
    of_main = [row for row in executions if row["thread_id"] == thread]
    inputs, outputs = _by_execution(logdir, "execution_input"), _by_execution(logdir, "execution_output")
    by_slot = {
        (row["execution_index"], row["output_slot"]): values[row["event_index"]]
        for row in health
        if row["scope"] == "execution"
    }
    return Recording(
        mode=mode,
        graphs=[
            Graph(graph_id=str(row["graph_id"]), name=row["graph_name"], outer_graph_id=_text(row["outer_graph_id"]))
            for row in sorted(_rows(logdir, "graph"), key=lambda row: row["graph_id"])
        ],
        ops=_ops(logdir, stacks),
        executions=[
            Execution(
                op_type=row["op_type"],
                graph_id=_text(row["graph_id"]),
                input_ids=tuple(item["tensor_id"] for item in inputs[row["execution_index"]]),
                output_ids=tuple(item["tensor_id"] for item in outputs[row["execution_index"]]),
                values=tuple(
                    (item["dtype"], by_slot.get((row["execution_index"], item["output_slot"])))
                    for item in outputs[row["execution_index"]]
                ),
                stack=stacks.get(row["stack_trace_id"], ()),
            )
            for row in of_main
        ],
        traces=[
            Trace(
                graph_id=str(row["graph_id"]),
                op_name=row["op_name"],
                op_type=row["op_type"],
                output_slot=row["output_slot"],
                device_name=devices.get(row["device_id"]),
                value=values[row["event_index"]],
            )
            for row in health
            if row["scope"] == "graph"
        ],
        source_files={row["file_path"]: row["source_text"] for row in _rows(logdir, "source_file")},
        num_elsewhere=len(executions) - len(of_main),
    )


def _rows(logdir: Path, table: str) -> list[Row]:
    rows: list[Row] = ds.dataset(logdir / table).to_table().to_pylist()
    return rows


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


def _stacks(logdir: Path) -> dict[int, Stack]:
    frames: dict[int, Frame] = {
        row["stack_frame_id"]: (row["file_path"], row["lineno"], row["func"]) for row in _rows(logdir, "stack_frame")
    }
    found: dict[int, list[Frame]] = defaultdict(list)
    for row in sorted(_rows(logdir, "stack_trace"), key=lambda row: -row["depth"]):
        found[row["stack_trace_id"]].append(frames[row["stack_frame_id"]])
    return {stack_id: tuple(stack) for stack_id, stack in found.items()}


def _by_execution(logdir: Path, table: str) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = defaultdict(list)
    order = "input_index" if table == "execution_input" else "output_slot"
    for row in sorted(_rows(logdir, table), key=lambda row: row[order]):
        found[row["execution_index"]].append(row)
    return found


def _ops(logdir: Path, stacks: dict[int, Stack]) -> list[GraphOp]:
    edges: dict[tuple[int, str], list[Row]] = defaultdict(list)
    nodes = {(row["graph_id"], row["op_name"]) for row in _rows(logdir, "executed_op")}
    for row in sorted(_rows(logdir, "graph_op_input"), key=lambda row: row["input_index"]):
        if not row["is_control"]:
            edges[row["graph_id"], row["op_name"]].append(row)
    return [
        GraphOp(
            graph_id=str(row["graph_id"]),
            op_name=row["op_name"],
            op_type=row["op_type"],
            num_outputs=row["num_outputs"],
            input_names=tuple(
                f"{edge['source_op_name']}:{edge['source_output_slot']}"
                for edge in edges[row["graph_id"], row["op_name"]]
            ),
            stack=stacks.get(row["stack_trace_id"], ()),
            has_node=(row["graph_id"], row["op_name"]) in nodes,
        )
        for row in sorted(_rows(logdir, "graph_op"), key=lambda row: (row["graph_id"], row["op_index"]))
    ]


def _value(row: Row, mode: str, full: dict[int, Row]) -> Value:
    """Returns the summary that Debugger V2 would write for a tensor, without its tensor ID.

    Source: DebugNumericSummaryV2 in tensorflow/core/ops/debug_ops.cc.
    """
    number = float(_NUMBERS[row["dtype"]])
    bad = (row["num_neg_inf"], row["num_pos_inf"], row["num_nan"])
    if mode == "CURT_HEALTH":
        return (float(row["has_inf_or_nan"]),)
    if mode == "CONCISE_HEALTH":
        return (float(row["size"]), *map(float, bad))
    if mode == "FULL_HEALTH":
        finite = (row["num_neg_finite"], row["num_zero"], row["num_pos_finite"])
        # The device number (always -1), the dtype, the rank and the size.
        return (-1.0, number, float(row["rank"]), float(row["size"]), *map(float, (*bad, *finite)))
    if mode == "SHAPE":
        dims = row["shape"][-_MAX_DIMS_OF_SHAPE:]
        padding = [0] * (_MAX_DIMS_OF_SHAPE - len(dims))
        return (number, float(row["rank"]), float(row["size"]), *map(float, (*dims, *padding)))
    value = full[row["event_index"]]
    shape = tuple(value["shape"])
    if value["dtype"] == "string":
        return ("string", shape, tuple(item.decode("latin-1") for item in decode_strings(value["value"], prod(shape))))
    return tensor_value(value["dtype"], shape, value["value"])
