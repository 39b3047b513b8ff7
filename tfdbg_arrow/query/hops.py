"""Hops: the tensors on the paths that provenance and spread find, each with its op and source line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeVar

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.forward_ops import forward_op
from tfdbg_arrow.query.health import TensorHealth, health_facts
from tfdbg_arrow.query.info import read_runs
from tfdbg_arrow.query.recorded import TensorEvent
from tfdbg_arrow.query.stacks import Frame, StackReader

DEFAULT_LIMIT = 1000


@dataclass(frozen=True, kw_only=True)
class TensorHop(TensorHealth):
    """One tensor on a path. None means not measured in this mode, unknown, or not applicable.

    It also has the attributes of TensorHealth.

    Attributes:
        hop_index: Its index among the hops.
        input_index: Which input of the later op it is on this path; None for the start of the search, and if
            unrecorded tensors lie between the two ops.
        how: The first border between the two ops, from the later one back, as in `Producer.how`; `unrecorded` if
            unrecorded tensors lie between them; `start` for the start of the search.
        execution_index: The execution, or the call in which its op ran.
        step: The training step, as marked.
        iteration: Iteration of the loop, from 0; None outside graphs.
        op_type: Type of the op that made it; None for a tensor from outside.
        op_name: That op's name in its graph; None outside graphs.
        graph_name: That graph's name; None outside graphs.
        output_slot: Index of the op's output.
        program_ops: The types of the program's ops that TensorFlow ran as this one op; empty if it ran the program's
            op itself.
        layer: The Keras layer or module that the op belongs to, as the user named it. For a gradient, that of its
            forward op. None outside layers.
        op_role: The purpose of the op: `forward`, `gradient`, `optimizer`, `loss`, `metric` or `input`.
        forward_op_type: For a gradient, the type of the op whose gradient it computes.
        forward_op_name: That op's name in its graph; None outside graphs.
        source: The user's innermost frame in the stack that created the op, or for a gradient in that of its forward
            op, if it has one; or None.
    """

    hop_index: int
    input_index: int | None
    how: str
    execution_index: int | None
    step: int | None
    iteration: int | None
    op_type: str | None
    op_name: str | None
    graph_name: str | None
    output_slot: int | None
    program_ops: tuple[str, ...]
    layer: str | None
    op_role: str | None
    forward_op_type: str | None
    forward_op_name: str | None
    source: Frame | None


_Hop = TypeVar("_Hop", bound=TensorHop)


class HopReader:
    """Reads the attributes of hops.

    Args:
        logdir: The logdir.
        flow: The run's data flow.
        run_id: The run.
    """

    def __init__(self, logdir: Engine, flow: DataFlow, *, run_id: str) -> None:
        self._flow = flow
        self._stacks = StackReader(logdir, run_id=run_id)
        self._stack_ids: dict[int, list[int]] = {}

    def facts(self, event: TensorEvent) -> dict[str, Any]:
        """Returns the attributes of a TensorHop that depend only on the tensor. `source` is filled in later."""
        label = self._flow.labels.of(event)
        forward = forward_op(self._flow, self._flow.label_of_maker(event))
        ids = [None if forward is None else forward.stack_trace_id, self._flow.stack_trace_id(event)]
        self._stack_ids[event.event_index] = [each for each in ids if each is not None]
        return {
            **health_facts(event),
            "execution_index": event.execution_index,
            "step": event.step,
            "iteration": event.iteration,
            "op_type": event.op_type,
            "op_name": event.op_name,
            "graph_name": None if event.graph_id is None else self._flow.graphs.names.get(event.graph_id),
            "output_slot": event.output_slot,
            "program_ops": self._flow.program_ops(event),
            "layer": label.layer or (None if forward is None else forward.layer),
            "op_role": label.role,
            "forward_op_type": None if forward is None else forward.op_type,
            "forward_op_name": None if forward is None else forward.op_name,
            "source": None,
        }

    def with_sources(self, hops: Iterable[_Hop]) -> tuple[_Hop, ...]:
        """Returns hops that were made from `facts` with their source lines, which are read together."""
        hops = tuple(hops)
        ids = {hop.event_index: self._stack_ids.get(hop.event_index, ()) for hop in hops}
        sources = self._stacks.user_sources(each for some in ids.values() for each in some)
        return tuple(
            replace(hop, source=next((sources[each] for each in ids[hop.event_index] if each in sources), None))
            for hop in hops
        )


def bad_start(flow: DataFlow, event_index: int, *, run_id: str) -> TensorEvent:
    """Returns the row of a bad tensor from which a search starts.

    Raises:
        QueryError: The row is unknown or not bad.
    """
    event = flow.events.event(event_index)
    if event is None:
        raise QueryError(f"event {event_index} of run {run_id} is not a row of tensor_health.")
    if not event.has_inf_or_nan:
        raise QueryError(
            f"event {event_index} of run {run_id} holds no infinity and no NaN; pass the event_index of "
            "a bad tensor, for example from SELECT event_index FROM nonfinite_tensor."
        )
    return event


def check_one_run(logdir: Engine, run_id: str | None) -> str:
    """Returns the requested run, or the only run of the logdir for None.

    Raises:
        QueryError: The run is not in the logdir, or `run_id` is None and the logdir does not have exactly one run.
    """
    if run_id is not None and logdir.of_run(run_id).rows("SELECT 1 FROM run WHERE run_id = ? LIMIT 1", [run_id]):
        return run_id
    known = [run.run_id for run in read_runs(logdir)]
    if run_id is None and len(known) == 1:
        return known[0]
    if run_id not in known:
        what = f"{logdir.path} holds {len(known)} runs" if run_id is None else f"run {run_id!r} is not in {logdir.path}"
        raise QueryError(f"{what}; set run_id to one of {', '.join(known) or '(it holds none)'}.")
    return run_id


def hop_columns(kind: type[TensorHop]) -> tuple[str, ...]:
    """Returns the column names of the rows for a kind of hop."""
    names = [field.name for field in fields(kind)]
    place = names.index("source")
    return (*names[:place], "file_path", "lineno", *names[place + 1 :])


def hop_row(hop: TensorHop) -> dict[str, Any]:
    """Returns a hop as one flat row of scalars: the source as file and line, lists as text."""
    row: dict[str, Any] = {}
    for field in fields(hop):
        value = getattr(hop, field.name)
        if field.name == "source":
            row["file_path"] = None if value is None else value.file_path
            row["lineno"] = None if value is None else value.lineno
        elif field.name == "shape":
            row["shape"] = None if value is None else str(list(value))
        else:
            row[field.name] = ", ".join(map(str, value)) if isinstance(value, tuple) else value
    return row


class HopRows:
    """An answer that consists of hops, as rows.

    Attributes:
        hop_type: The class of its hops.
        hops: The hops, in order.
    """

    hop_type: ClassVar[type[TensorHop]]
    hops: tuple[TensorHop, ...]

    @classmethod
    def columns(cls) -> tuple[str, ...]:
        """Returns the column names of its rows."""
        return hop_columns(cls.hop_type)

    def rows(self) -> list[dict[str, Any]]:
        """Returns the hops as flat rows of scalars, in order: the source as file_path and lineno, lists as text."""
        return [hop_row(hop) for hop in self.hops]
