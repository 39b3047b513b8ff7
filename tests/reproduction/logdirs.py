"""A small logdir in which an op makes -Inf, with the elements of its input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.query.builder import CLEAN, NEG_INF, RunBuilder


def elements(*numbers: float) -> bytes:
    """Returns numbers as in tensor_value, as float32."""
    return np.array(numbers, "<f4").tobytes()


def logdir_of(
    path: Path,
    text: str = "Log",
    *,
    op_type: str = "Log",
    attributes: object = None,
    values: dict[int, bytes] | None = None,
    inputs: dict[int, tuple[str, list[int], bytes]] | None = None,
    source_op: str = "Softmax",
) -> Path:
    """Writes a run in which an op makes -Inf at event 1 of the tensor at event 0.

    Args:
        path: The logdir.
        text: The name of the op, its graph, its source file, its function and its code.
        op_type: The type of the op.
        attributes: The attributes of the op.
        values: Rows of tensor_value, by event.
        inputs: Rows of input_value for event 1: dtype, shape and elements by index.
        source_op: The type of the op before.
    """
    run = RunBuilder("run-a")
    run.add("source_file", source_file_id=0, file_path=text, source_text=f"{text}\n" * 3)
    graph = run.graph(text)
    stack = run.stack((text, 2, text, text, "user"))
    name = text.replace(":", ";")
    graph.op(f"in-{name}", source_op, stack=stack).op(name, op_type, [f"in-{name}"], stack=stack)
    run.rows["graph_op"][-1].update(attributes=json.dumps(attributes or {}), layer=text, role=text)
    run.tensor(graph, f"in-{name}", CLEAN)
    run.tensor(graph, name, NEG_INF)
    for event, value in (values or {}).items():
        run.add("tensor_value", event_index=event, dtype="float32", shape=[2], value=value)
    for index, (dtype, shape, value) in (inputs or {}).items():
        run.add("input_value", event_index=1, input_index=index, dtype=dtype, shape=shape, value=value)
    return run.write(path)


VALUES = {0: elements(0, 1), 1: elements(float("-inf"), 0)}
"""The elements of the input and of the output of the op."""
