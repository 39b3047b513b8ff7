"""OpFacts: facts about a graph op that are known even if none of its tensors was recorded."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.recorded import GraphTensor, TensorEvent
from tfdbg_arrow.safe_text import parse_json
from tfdbg_arrow.schema.tables import INTEGERS


class OpFacts:
    """Reads the static shapes, the attributes and the integer constants of the graphs of one run."""

    def __init__(self, logdir: Engine, *, run_id: str) -> None:
        self._logdir = logdir
        self._run_id = run_id
        self._static_shapes = lru_cache(maxsize=100)(self._read_static_shapes)
        self._attributes = lru_cache(maxsize=1000)(self._read_attributes)
        self._constants = lru_cache(maxsize=20)(self._read_constants)

    def attributes(self, row: TensorEvent) -> dict[str, Any] | None:
        """Returns the attributes of the op that made a tensor; None for an eager op, or if they were not recorded."""
        return None if row.graph_id is None or row.op_name is None else self._attributes(row.graph_id, row.op_name)

    def attributes_of(self, tensor: GraphTensor) -> dict[str, Any] | None:
        """Returns the same as `attributes`, for a tensor that may have no row."""
        return self._attributes(tensor.graph_id, tensor.op_name)

    def _read_attributes(self, graph_id: int, op_name: str) -> dict[str, Any] | None:
        """Returns the attributes of an op of a graph, or None if they were not recorded."""
        rows = self._logdir.rows(
            "SELECT attributes FROM graph_op WHERE run_id = ? AND graph_id = ? AND op_name = ?",
            [self._run_id, graph_id, op_name],
        )
        attributes = parse_json(rows[0][0]) if rows and rows[0][0] is not None else None
        return attributes if isinstance(attributes, dict) else None

    def static_shape(self, tensor: GraphTensor) -> tuple[int, ...] | None:
        """Returns a tensor's shape in its graph, with -1 for axes of unknown size; None if the shape is unknown."""
        return self._static_shapes(tensor.graph_id).get((tensor.op_name, tensor.output_slot))

    def is_open(self, row: TensorEvent, axis: int) -> bool:
        """Returns whether the size of an axis is unknown until the graph runs; True for an eager tensor."""
        if row.scope != "graph" or row.graph_id is None or row.op_name is None or row.output_slot is None:
            return True
        shape = self._static_shapes(row.graph_id).get((row.op_name, row.output_slot), ())
        return axis < len(shape) and shape[axis] < 0

    def _read_static_shapes(self, graph_id: int) -> dict[tuple[str, int], tuple[int, ...]]:
        """Returns the static shapes in a graph, by op and output slot."""
        rows = self._logdir.rows(
            "SELECT op_name, output_slot, static_shape FROM graph_op_output "
            "WHERE run_id = ? AND graph_id = ? AND static_shape IS NOT NULL",
            [self._run_id, graph_id],
        )
        return {(name, slot): tuple(shape) for name, slot, shape in rows}

    def integers(self, tensor: GraphTensor) -> list[int] | None:
        """Returns the elements of a constant of a few integers, or None for another tensor."""
        value = self._constants(tensor.graph_id).get(tensor.op_name)
        attributes = None if value is None else parse_json(value)
        constant = attributes.get("value") if isinstance(attributes, dict) else None
        numbers = constant.get(INTEGERS) if isinstance(constant, dict) else None
        are_integers = isinstance(numbers, list) and all(isinstance(number, int) for number in numbers)
        return numbers if are_integers else None

    def _read_constants(self, graph_id: int) -> dict[str, str]:
        """Returns the attributes of the constants of a graph that have a few integers, by op."""
        return dict(
            self._logdir.rows(
                "SELECT op_name, attributes FROM graph_op WHERE run_id = ? AND graph_id = ? AND op_type = 'Const' "
                f"AND contains(attributes, '\"{INTEGERS}\"')",
                [self._run_id, graph_id],
            )
        )


def slice_masks(attributes: dict[str, Any]) -> list[object]:
    """Returns the masks of a StridedSlice: begin, end, ellipsis, new axis and shrink axis; None for a missing mask."""
    return [attributes.get(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")]
