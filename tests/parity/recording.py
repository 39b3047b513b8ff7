"""A common form of the two recorders' data, so that the data can be compared."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Frame = tuple[str, int, str]
"""File path, line number, function name."""
Stack = tuple[Frame, ...]
"""Outermost frame first."""
Value = tuple[Any, ...] | None
"""A summary without its tensor ID. In FULL_TENSOR: dtype, shape and digest of the elements. None: not measured."""

UNREADABLE: Value = ("unreadable",)
"""The value of a string tensor without elements: TensorFlow's own reader raises an error for such a tensor."""


@dataclass(frozen=True, kw_only=True)
class Graph:
    graph_id: str
    name: str
    outer_graph_id: str | None


@dataclass(frozen=True, kw_only=True)
class GraphOp:
    """An op created in a graph.

    Attributes:
        graph_id: ID of the graph.
        op_name: Name of the op.
        op_type: Type of the op.
        num_outputs: Number of output tensors.
        input_names: Input tensors as `name:slot`.
        stack: The Python stack. Empty if unknown.
        has_node: Whether the recording says that TensorFlow ran a node for the op.
    """

    graph_id: str
    op_name: str
    op_type: str
    num_outputs: int
    input_names: tuple[str, ...]
    stack: Stack
    has_node: bool = True


@dataclass(frozen=True, kw_only=True)
class Execution:
    """An eager op or a call of a function.

    Attributes:
        op_type: The type of the op or the name of the function.
        graph_id: The function's graph. None for an op, or if the recorder does not know it.
        input_ids: IDs of the eager input tensors.
        output_ids: IDs of the eager output tensors.
        values: One value for each output.
        stack: The Python stack.
    """

    op_type: str
    graph_id: str | None
    input_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    values: tuple[Value, ...]
    stack: Stack


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One computation of a graph tensor."""

    graph_id: str
    op_name: str
    op_type: str
    output_slot: int
    device_name: str | None
    value: Value


@dataclass(frozen=True, kw_only=True)
class Recording:
    """The data that one recorder wrote about the corpus.

    Attributes:
        mode: The tensor debug mode.
        graphs: Graphs in the order in which they were first seen.
        ops: Ops in order of creation within a graph.
        executions: Executions of the main thread, in order.
        traces: Traces in order of arrival.
        source_files: Text of each file, by path.
        num_elsewhere: Number of executions of other threads.
        failed: The exception of each program that raised an exception, by program.
    """

    mode: str
    graphs: list[Graph] = field(default_factory=list)
    ops: list[GraphOp] = field(default_factory=list)
    executions: list[Execution] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    source_files: dict[str, str | None] = field(default_factory=dict)
    num_elsewhere: int = 0
    failed: dict[str, str] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Writes the recording as JSON, with each distinct stack once."""
        stacks: dict[Stack, int] = {}
        content = asdict(self)
        for rows, objects in ((content["ops"], self.ops), (content["executions"], self.executions)):
            for row, item in zip(rows, objects, strict=True):
                row["stack"] = stacks.setdefault(item.stack, len(stacks))
        path.write_text(json.dumps({**content, "stacks": list(stacks)}), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Recording:
        """Reads a file written by write()."""
        content = json.loads(path.read_text("utf-8"))
        stacks = [tuple(tuple(frame) for frame in stack) for stack in content.pop("stacks")]

        def items(kind: Any, rows: list[dict[str, Any]]) -> list[Any]:
            return [kind(**{k: _as_tuple(stacks[v] if k == "stack" else v) for k, v in row.items()}) for row in rows]

        return cls(
            **{
                **content,
                "graphs": items(Graph, content["graphs"]),
                "ops": items(GraphOp, content["ops"]),
                "executions": items(Execution, content["executions"]),
                "traces": items(Trace, content["traces"]),
            }
        )


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list | tuple) else value


def tensor_value(dtype: str, shape: tuple[int, ...], elements: bytes) -> Value:
    """Returns the value that represents a whole tensor."""
    return (dtype, tuple(shape), hashlib.sha1(elements).hexdigest())
