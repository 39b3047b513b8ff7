"""Classes for recorded tensors and executions, and for the graphs and eager tensors that a value passed through."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any

from tfdbg_arrow.query.displayed import Displayed
from tfdbg_arrow.query.engine import Engine

FLAT = "is_flat"
"""A key in the metadata of a dataclass field whose value is another dataclass.

In a data frame, each attribute of the inner dataclass becomes a column.
"""
EFFECTS = ("variable", "result", "metric", "absorbed")
"""Where bad values can end up, the most harmful effect first."""
KINDS = ("nan", "inf")
"""The kinds of bad values."""


@dataclass(frozen=True, slots=True, repr=False)
class TensorHealth(Displayed):
    """The health of a tensor. An attribute is None if the mode of the recording does not measure it.

    Attributes:
        event_index: The event_index of the tensor's row in tensor_health.
        dtype: TensorFlow's name of the dtype; None if an imported dump does not contain it.
        shape: Dimensions.
        size: Number of elements.
        has_inf_or_nan: Whether any element is infinite or NaN.
        num_neg_inf: Number of elements that are -infinity.
        num_pos_inf: Number of elements that are +infinity.
        num_nan: Number of elements that are NaN.
        num_neg_finite: Number of finite elements below zero.
        num_zero: Number of elements that are zero.
        num_pos_finite: Number of finite elements above zero.
        num_subnormal: Number of subnormal elements.
        min_finite: Least finite element.
        max_finite: Greatest finite element.
        mean_finite: Mean of the finite elements.
        stddev_finite: Standard deviation of the finite elements.
        max_abs_finite: Greatest magnitude of a finite element.
        first_bad_index: Index of the first element that is infinite or NaN, in row-major order. Also None if no element
            is infinite or NaN.
        num_bad_slices: Number of slices along the first axis that have an infinite or NaN element. Also None for a
            scalar, and if no element is infinite or NaN.
    """

    event_index: int
    dtype: str | None
    shape: tuple[int, ...] | None
    size: int | None
    has_inf_or_nan: bool | None
    num_neg_inf: int | None
    num_pos_inf: int | None
    num_nan: int | None
    num_neg_finite: int | None
    num_zero: int | None
    num_pos_finite: int | None
    num_subnormal: int | None
    min_finite: float | None
    max_finite: float | None
    mean_finite: float | None
    stddev_finite: float | None
    max_abs_finite: float | None
    first_bad_index: int | None
    num_bad_slices: int | None

    @property
    def first_bad_place(self) -> tuple[int, ...] | None:
        """The index of the first bad element in each dimension; None for a scalar, and if it was not measured."""
        if self.first_bad_index is None or not self.shape or not 0 <= self.first_bad_index < prod(self.shape):
            return None
        indexes, rest = [], self.first_bad_index
        for size in reversed(self.shape):
            rest, index = divmod(rest, size)
            indexes.append(index)
        return tuple(reversed(indexes))

    @property
    def num_bad(self) -> int | None:
        """Number of elements that are infinite or NaN."""
        if self.num_nan is None or self.num_neg_inf is None or self.num_pos_inf is None:
            return None
        return self.num_nan + self.num_neg_inf + self.num_pos_inf


HEALTH_COLUMNS = tuple(field.name for field in fields(TensorHealth))
"""The attributes of TensorHealth, which are columns of tensor_health."""


def health_facts(tensor: TensorHealth) -> dict[str, Any]:
    """Returns the health attributes of an answer, as keyword arguments that make another answer about this tensor."""
    return {name: getattr(tensor, name) for name in HEALTH_COLUMNS}


def health_of(tensor: TensorHealth) -> TensorHealth:
    """Returns only the health attributes of an answer or a row."""
    return TensorHealth(**health_facts(tensor))


@dataclass(frozen=True, slots=True)
class TensorEvent(TensorHealth):
    """One row of tensor_health. The attributes are its columns, with None for NULL."""

    wall_time_ns: int
    scope: str
    execution_index: int | None
    step_id: int | None
    frame_id: int | None
    iteration: int | None
    call_site: str | None
    graph_id: int | None
    op_name: str | None
    op_type: str | None
    output_slot: int | None
    tensor_id: int | None
    device_id: int | None
    step: int | None
    executed_graph_id: int | None

    def bad_kinds(self, kinds: Iterable[str] = KINDS) -> frozenset[str]:
        """Returns those of the given kinds of bad values that the tensor has.

        If only `has_inf_or_nan` was measured (CURT_HEALTH), a bad tensor may have any kind, so all given kinds are
        returned.
        """
        if not self.has_inf_or_nan:
            return frozenset()
        counts = {
            "nan": self.num_nan,
            "inf": None
            if self.num_neg_inf is None or self.num_pos_inf is None
            else self.num_neg_inf + self.num_pos_inf,
        }
        return frozenset(kind for kind in kinds if counts[kind] is None or counts[kind])

    @property
    def loop_iteration(self) -> int | None:
        """The loop iteration in which the tensor was computed, from 0; None outside loops."""
        return self.iteration if self.frame_id else None

    @property
    def context(self) -> Context:
        """The position in the run's control flow at which a tensor of a graph was computed."""
        return Context(self.step_id, self.execution_index, self.call_site, self.frame_id, self.iteration)

    @property
    def graph_tensor(self) -> GraphTensor | None:
        """The tensor as an output of an op in a graph; None for a tensor of eager code."""
        if self.scope != "graph" or self.graph_id is None or self.op_name is None or self.output_slot is None:
            return None
        return GraphTensor(self.context, self.graph_id, self.op_name, self.output_slot, self.event_index)


@dataclass(frozen=True, slots=True)
class Context:
    """The position in the run's control flow at which a graph ran. An attribute is None if it is unknown.

    Attributes:
        step_id: TensorFlow's step ID.
        execution_index: The call from eager code.
        call_site: The call site: the path of calling ops from the outermost graph.
        frame_id: The control-flow frame.
        iteration: Iteration of this frame's loop, from 0.
    """

    step_id: int | None
    execution_index: int | None
    call_site: str | None
    frame_id: int | None
    iteration: int | None


@dataclass(frozen=True, slots=True)
class SiteVisit:
    """Facts about the rows that have the same step, graph, call site and control-flow frame.

    Attributes:
        graph_id: The graph.
        call_site: The call site.
        frame_id: The control-flow frame.
        iterations: The iterations with a row, in order.
        first_event_index: Smallest event_index of the rows.
        num_rows: Number of rows.
    """

    graph_id: int
    call_site: str
    frame_id: int
    iterations: tuple[int, ...]
    first_event_index: int
    num_rows: int

    @property
    def last_iteration(self) -> int:
        """The last iteration with a row."""
        return self.iterations[-1]


@dataclass(frozen=True, slots=True)
class EagerTensor:
    """The recorded facts about an eager tensor.

    Attributes:
        tensor_id: The tensor's ID.
        event: The tensor's row in tensor_health, or None.
        execution_index: The execution that made the tensor; None for a tensor from outside.
        op_type: Op type or function name of this execution.
        graph_id: The graph of the called function; None for an op.
        output_slot: Index of the tensor among the outputs of the execution.
        dtype: The tensor's dtype; None if unknown.
    """

    tensor_id: int
    event: TensorEvent | None
    execution_index: int | None
    op_type: str | None
    graph_id: int | None
    output_slot: int | None
    dtype: str | None


@dataclass(frozen=True)
class Op:
    """One op of a graph.

    Attributes:
        op_name: The op's name.
        op_type: The op's type.
        op_index: The op's position in the order of creation.
        stack_trace_id: The stack that created the op, or None.
        inputs: (name of the source op, output slot of the source op) for each data input.
        made_for: For a node that TensorFlow's optimizer made, the program's op that the node computes or prepares. The
            node has the op_index and the stack of that op. None for an op of the program.
        replaced_slot: The output of `made_for` that the node computes; None if the node only prepares `made_for`.
    """

    op_name: str
    op_type: str
    op_index: int
    stack_trace_id: int | None
    inputs: tuple[tuple[str, int], ...]
    made_for: str | None = None
    replaced_slot: int | None = None


@dataclass(frozen=True, slots=True)
class Execution:
    """One eager op or call. The attributes are columns of the table `execution`, with None for NULL."""

    execution_index: int
    event_index: int
    op_type: str
    graph_id: int | None
    stack_trace_id: int | None


@dataclass(frozen=True, slots=True)
class Use:
    """One input of an execution."""

    execution: Execution
    input_index: int


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """An output of an op, in one run of its graph.

    Attributes:
        near: The event_index of a tensor that was computed from this one. If the context is not known, `near` selects
            the row.
    """

    context: Context
    graph_id: int
    op_name: str
    output_slot: int
    near: int

    def of_op(self, op_name: str, output_slot: int = 0) -> GraphTensor:
        """Returns an output of another op in the same run of the graph."""
        return replace(self, op_name=op_name, output_slot=output_slot)


@dataclass(frozen=True, slots=True)
class EagerValue:
    """An eager tensor, identified by its tensor ID."""

    tensor_id: int


Place = GraphTensor | EagerValue


@dataclass(frozen=True, slots=True)
class Trace:
    """Where a tensor came from.

    Attributes:
        path: The places that have the tensor's value. The first place is an input of the op that takes the tensor. The
            last place is the output of the op that computed the tensor. Never empty.
        event: The row of the last place, or None.
        health: The first row on the path, or None. All places on the path have equal values, so this is also the health
            of the tensor.
        dtype: The tensor's dtype; None if unknown.
        how: The first border on the path: `graph` (no border), `argument`, `capture`, `loop`, `call`, `variable`,
            `eager` or `external`.
        is_lost: Whether the path ends at a border because nothing was recorded on the other side of the border.
    """

    path: tuple[Place, ...]
    event: TensorEvent | None
    health: TensorEvent | None
    dtype: str | None
    how: str
    is_lost: bool

    @property
    def row(self) -> TensorEvent | None:
        """The row of the last place or, if that place has no row, the first row on the path."""
        return self.event or self.health

    @property
    def place(self) -> Place:
        """The last place: the output of the op that computed the tensor or, if unknown, of the earliest known op."""
        return self.path[-1]


_COLUMNS = tuple(field.name for field in fields(TensorEvent))


_SHAPE = _COLUMNS.index("shape")


_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM tensor_health WHERE run_id = ? AND "


def read_events(logdir: Engine, condition: str, parameters: Sequence[object]) -> list[TensorEvent]:
    """Returns rows of tensor_health.

    Args:
        logdir: The logdir.
        condition: SQL that follows `WHERE run_id = ? AND`.
        parameters: The run, followed by the values for the `?` in the condition.
    """
    return [_event(row) for row in logdir.rows(_SELECT + condition, parameters)]


def bad_condition(kinds: Sequence[str]) -> str:
    """Returns the SQL condition on tensor_health that selects tensors with bad values of these kinds.

    The condition first tests one boolean column, so a scan of a healthy run does not read the counts.
    """
    if set(kinds) == set(KINDS):
        return "has_inf_or_nan"
    if tuple(kinds) == ("nan",):
        return "(has_inf_or_nan AND (num_nan IS NULL OR num_nan > 0))"
    return "(has_inf_or_nan AND (num_neg_inf IS NULL OR num_neg_inf > 0 OR num_pos_inf > 0))"


def _event(row: tuple[Any, ...]) -> TensorEvent:
    values = list(row)
    values[_SHAPE] = None if row[_SHAPE] is None else tuple(row[_SHAPE])
    return TensorEvent(*values)
