"""first_nonfinite and nonfinite: which op made a bad value, from which inputs, on which line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.capture_stats import gap_sentences, read_capture_stats
from tfdbg_arrow.query.coverage import check_run
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import COLLECTIVES, DataFlow, Input
from tfdbg_arrow.query.flow.expected import Expectation
from tfdbg_arrow.query.flow.origins import Origins
from tfdbg_arrow.query.flow.places import EagerValue
from tfdbg_arrow.query.health import TensorHealth, health_facts
from tfdbg_arrow.query.logdir import Logdir, opened
from tfdbg_arrow.query.recorded import KINDS, TensorEvent, bad_condition
from tfdbg_arrow.query.stacks import Frame, StackReader, user_source


@dataclass(frozen=True)
class Producer:
    """Where an input came from.

    Attributes:
        op_type: Type of the op that computed it, or the name of an unrecorded function; None for a tensor from outside.
        op_name: That op's name in its graph; None outside graphs.
        graph_name: That graph's name; None outside graphs.
        output_slot: Which of its outputs; None for a variable's writer and where unknown.
        event_index: Its row in tensor_health; None where it was not recorded.
        execution_index: The execution that made it, or in whose call it was made; None where unknown.
        how: The first border between it and its user: `graph` (none, in one graph), `argument` and `capture`
            (of a function), `loop` (a loop variable), `call` (a function's result), `variable` (read from one; the
            op is the one that wrote it last), `eager` (none, between eager ops), `external` (from outside).
    """

    op_type: str | None
    op_name: str | None
    graph_name: str | None
    output_slot: int | None
    event_index: int | None
    execution_index: int | None
    how: str


@dataclass(frozen=True)
class InputTensor:
    """One input of the op that made a bad tensor.

    Attributes:
        index: Which input, from 0.
        health: Its health; of a variable that of the value last assigned; None where not recorded.
        producer: Where it came from; None where that was not recorded.
    """

    index: int
    health: TensorHealth | None
    producer: Producer | None


@dataclass(frozen=True, kw_only=True)
class NonFinite(TensorHealth):
    """A tensor with an infinity or a NaN in it; None is "not measured in this mode" or does not apply.

    It also has the attributes of TensorHealth.

    Attributes:
        run_id: The run.
        wall_time_ns: When it was recorded, in nanoseconds since 1970-01-01T00:00:00Z.
        op_type: Type of the op that made it; None for a tensor from outside.
        op_name: That op's name in its graph; None outside graphs.
        graph_name: That graph's name; None outside graphs.
        iteration: Iteration of the loop, from 0; None outside graphs.
        output_slot: Which output of the op, from 0; None for a tensor from outside.
        device_name: Where it was computed.
        is_origin: Whether it is proven that one of the kinds asked for came up in this op: the tensor holds it, and no
            input of the op does. False where an input does, and where an input that could was not recorded.
        inputs: The inputs of the op, in order.
        stack: The Python stack that created the op (in a graph), executed it (eagerly) or first used the tensor
            (from outside), innermost frame first.
        source: The user's innermost frame, or None.
        is_expected: Whether it is proven that the program, which looks for such values, threw it away, as an optimizer
            with dynamic loss scaling does with a step whose gradients overflow: nothing was assigned or returned from
            it, and it came up as an overflow, not as a NaN of its own nor out of a zero.
        expected_reason: How that is known; None where it is not expected.
        worker: The task of a cluster that the run was, as `worker:1`; None outside one.
        left_out: What the run was told not to record, or lost: an earlier bad tensor may be in it.
    """

    run_id: str
    wall_time_ns: int
    op_type: str | None
    op_name: str | None
    graph_name: str | None
    iteration: int | None
    output_slot: int | None
    device_name: str | None
    is_origin: bool
    inputs: tuple[InputTensor, ...]
    stack: tuple[Frame, ...]
    source: Frame | None
    is_expected: bool = False
    expected_reason: str | None = None
    worker: str | None = None
    left_out: tuple[str, ...] = ()


def first_nonfinite(
    logdir: Engine | str | Path,
    *,
    kinds: Iterable[str] = KINDS,
    run_id: str | None = None,
    is_allowed: Callable[[str | None, str | None], bool] = lambda op_type, op_name: False,
) -> NonFinite | None:
    """Returns the earliest origin of a bad value, by data flow.

    Args:
        logdir: A logdir, opened or its path.
        kinds: What counts as bad: `nan`, `inf` or both.
        run_id: Only this run; None: the run in which a bad value was recorded first.
        is_allowed: Told the type and the name of an op (None where it has none), whether it may make bad values:
            origins for which it is true are passed over.

    Returns:
        Among the origins that no origin is an ancestor of, the one with the least event_index; one that `is_expected`
        only where no run asked for has another. Of several workers that reduce together, the one where it came up,
        not one that received it. Where filters left no
        proven origin, the bad tensor whose recorded inputs are not bad, with `is_origin` False. None where no recorded
        tensor holds one of the kinds. Where only has_inf_or_nan was measured (CURT_HEALTH), a bad
        tensor counts as holding every kind asked for.

    Raises:
        LogdirError: The path is not a logdir that can be read.
        QueryError: A kind or the run is unknown.
        BrokenPartError: A part cannot be read.
    """
    wanted = _check_kinds(kinds)
    with opened(logdir) as open_:
        readers = []
        received: NonFinite | None = None
        for run in _bad_runs(open_, wanted, run_id=run_id):
            reader = _RunReader(open_, run_id=run, kinds=wanted)
            event = reader.first(is_expected=False, is_allowed=is_allowed)
            if event is not None:
                found = reader.describe(event)
                if found.is_origin or not (found.op_type or "").startswith(COLLECTIVES):
                    return found
                received = received or found
            readers.append(reader)
        if received is not None:
            return received
        for reader in readers:
            event = reader.first(is_expected=True, is_allowed=is_allowed)
            if event is not None:
                return reader.describe(event)
    return None


def first_nan(logdir: Engine | str | Path, *, run_id: str | None = None) -> NonFinite | None:
    """Returns the earliest origin of a NaN: `first_nonfinite` with kinds=("nan",)."""
    return first_nonfinite(logdir, kinds=("nan",), run_id=run_id)


def origins_of(logdir: Engine | str | Path, event_indexes: Iterable[int], *, run_id: str) -> list[NonFinite]:
    """Returns the origins that bad tensors of a run go back to, each once, in the order of the tensors.

    Args:
        logdir: A logdir, opened or its path.
        event_indexes: The tensors, as rows of tensor_health; one that is not there, or not bad, is left out.
        run_id: The run.

    Raises:
        LogdirError: The path is not a logdir that can be read.
        BrokenPartError: A part cannot be read.
    """
    found: dict[int, NonFinite] = {}
    with opened(logdir) as open_:
        reader = _RunReader(open_, run_id=run_id, kinds=KINDS)
        for event_index in event_indexes:
            bad = reader.flow.events.bad_events(KINDS, limit=1, after=event_index - 1, before=event_index + 1)
            for event in bad:
                origin = reader.origin_of(event)
                if origin.event_index not in found:
                    found[origin.event_index] = reader.describe(origin)
    return list(found.values())


def nonfinite(
    logdir: Engine | str | Path,
    *,
    kinds: Iterable[str] = KINDS,
    run_id: str | None = None,
    limit: int | None = 1000,
) -> list[NonFinite]:
    """Returns the tensors that hold a bad value, by run and event_index.

    Args:
        logdir: A logdir, opened or its path.
        kinds: What counts as bad: `nan`, `inf` or both.
        run_id: Only this run; None: all, the one in which a bad value was recorded first at the front.
        limit: At most so many; None: all. After its first NaN nearly every tensor of a training is bad.

    Raises:
        LogdirError: The path is not a logdir that can be read.
        QueryError: A kind, the run or the limit cannot be used.
        BrokenPartError: A part cannot be read.
    """
    wanted = _check_kinds(kinds)
    if limit is not None and limit < 0:
        raise QueryError(f"limit is {limit}, expected a number of tensors from 0 on, or None for all.")
    found: list[NonFinite] = []
    with opened(logdir) as open_:
        for run in _bad_runs(open_, wanted, run_id=run_id):
            reader = _RunReader(open_, run_id=run, kinds=wanted)
            left = None if limit is None else limit - len(found)
            found.extend(reader.describe(event) for event in reader.flow.events.bad_events(wanted, limit=left))
            if limit is not None and len(found) >= limit:
                break
    return found


class _RunReader:
    """Describes the bad tensors of one run."""

    def __init__(self, logdir: Engine, *, run_id: str, kinds: tuple[str, ...]) -> None:
        logdir = logdir.of_run(run_id)
        self._logdir = logdir
        self._run_id = run_id
        self._stacks = StackReader(logdir, run_id=run_id)
        self.flow = DataFlow.of(logdir, run_id=run_id)
        self.origins = Origins(self.flow, kinds=kinds)

    @cached_property
    def expectation(self) -> Expectation:
        """Tells expected bad values from others."""
        return Expectation(self._logdir, self.flow, run_id=self._run_id)

    @cached_property
    def _devices(self) -> dict[int, str]:
        return dict(self._logdir.rows("SELECT device_id, device_name FROM device WHERE run_id = ?", [self._run_id]))

    @cached_property
    def _worker(self) -> str | None:
        ((worker,),) = self._logdir.rows("SELECT max(worker) FROM run WHERE run_id = ?", [self._run_id])
        return None if worker is None else str(worker)

    @cached_property
    def _left_out(self) -> tuple[str, ...]:
        stats = read_capture_stats(self._logdir, run_id=self._run_id)
        return gap_sentences(stats).get(self._run_id, ())

    def first(self, *, is_expected: bool, is_allowed: Callable[[str | None, str | None], bool]) -> TensorEvent | None:
        """Returns the earliest origin that is expected or not, and not allowed; None where there is none."""
        with self.flow.lock:
            return self.origins.first(
                lambda root: (
                    not is_allowed(root.op_type, root.op_name)
                    and (self.expectation.reason(root) is not None) == is_expected
                )
            )

    def origin_of(self, event: TensorEvent) -> TensorEvent:
        """Returns the origin that a bad tensor goes back to."""
        with self.flow.lock:
            return self.origins.of(event)

    def describe(self, event: TensorEvent) -> NonFinite:
        """Returns all that is known of a bad tensor."""
        with self.flow.lock:
            return self._describe(event)

    def _describe(self, event: TensorEvent) -> NonFinite:
        inputs, stack = self.inputs_and_stack(event)
        expected_reason = self.expectation.reason(event)
        return NonFinite(
            run_id=self._run_id,
            **health_facts(event),
            wall_time_ns=event.wall_time_ns,
            op_type=event.op_type,
            op_name=event.op_name,
            graph_name=self._graph_name(event.graph_id),
            iteration=event.iteration,
            output_slot=event.output_slot,
            device_name=None if event.device_id is None else self._devices.get(event.device_id),
            is_origin=self.origins.verdict(event).is_origin,
            inputs=inputs,
            stack=stack,
            source=user_source(stack),
            is_expected=expected_reason is not None,
            expected_reason=expected_reason,
            worker=self._worker,
            left_out=self._left_out,
        )

    def inputs_and_stack(self, event: TensorEvent) -> tuple[tuple[InputTensor, ...], tuple[Frame, ...]]:
        """Returns what the op of a tensor took, and the stack that made or ran it."""
        inputs = tuple(self._input(input_) for input_ in self.flow.inputs_of(event))
        return inputs, self._stacks.stack(self.flow.stack_trace_id(event))

    def _input(self, input_: Input) -> InputTensor:
        trace = input_.trace
        if trace.dtype == "resource":
            return self._resource_input(input_)
        health = trace.health
        return InputTensor(input_.index, None if health is None else _health(health), self._producer(input_))

    def _resource_input(self, input_: Input) -> InputTensor:
        write = input_.write
        if write is None:
            producer = None if input_.trace.is_lost else Producer(None, None, None, None, None, None, "external")
            return InputTensor(input_.index, None, producer)
        health = None
        if write.is_replacing and len(write.values) == 1:
            health = self.flow.trace(write.values[0], how="graph", near=2**63 - 1).health
        producer = Producer(
            op_type=write.op_type,
            op_name=write.op_name,
            graph_name=self._graph_name(write.graph_id),
            output_slot=None,
            event_index=None,
            execution_index=write.execution_index,
            how="variable",
        )
        return InputTensor(input_.index, None if health is None else _health(health), producer)

    def _producer(self, input_: Input) -> Producer | None:
        trace = input_.trace
        event_index = None if trace.event is None else trace.event.event_index
        if isinstance(trace.place, EagerValue):
            tensor = self.flow.events.eager(trace.place.tensor_id)
            return Producer(
                op_type=tensor.op_type,
                op_name=None,
                graph_name=None,
                output_slot=tensor.output_slot,
                event_index=event_index,
                execution_index=tensor.execution_index,
                how=trace.how,
            )
        op = self.flow.graphs.op(trace.place.graph_id, trace.place.op_name)
        return Producer(
            op_type=None if op is None else op.op_type,
            op_name=trace.place.op_name,
            graph_name=self._graph_name(trace.place.graph_id),
            output_slot=trace.place.output_slot,
            event_index=event_index,
            execution_index=trace.place.context.execution_index,
            how=trace.how,
        )

    def _graph_name(self, graph_id: int | None) -> str | None:
        return None if graph_id is None else self.flow.graphs.names.get(graph_id)


def _health(event: TensorEvent) -> TensorHealth:
    return TensorHealth(**health_facts(event))


def _check_kinds(kinds: Iterable[str]) -> tuple[str, ...]:
    given: tuple[Any, ...] = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    unknown = [kind for kind in given if kind not in KINDS]
    if unknown or not given:
        what = f"kind {unknown[0]!r}" if unknown else "kinds ()"
        raise QueryError(f"{what} is unknown, expected 'nan', 'inf' or both.")
    return tuple(kind for kind in KINDS if kind in given)


def _bad_runs(logdir: Engine, kinds: tuple[str, ...], *, run_id: str | None) -> list[str]:
    """Returns the runs with a bad tensor, by the time of the first one."""
    check_run(logdir, run_id)
    if isinstance(logdir, Logdir):
        scope = logdir if run_id is None else logdir.of_run(run_id)
        return scope.bad_runs.by_first(kinds)
    rows = logdir.rows(
        f"SELECT run_id FROM tensor_health WHERE {bad_condition(kinds)} AND (run_id = ? OR ? IS NULL) "
        "GROUP BY run_id ORDER BY min(wall_time_ns), run_id",
        [run_id, run_id],
    )
    return [row[0] for row in rows]


def inputs_and_stack(
    logdir: Engine, event_index: int, *, run_id: str
) -> tuple[tuple[InputTensor, ...], tuple[Frame, ...]]:
    """Returns what the op of a recorded tensor, bad or not, took in that very call and iteration, and its stack.

    Args:
        logdir: The logdir.
        event_index: The tensor's row in tensor_health.
        run_id: The run.

    Returns:
        (its inputs in order, its stack with the innermost frame first); see `NonFinite`.

    Raises:
        QueryError: The run has no such row.
        BrokenPartError: A part cannot be read.
    """
    reader = _RunReader(logdir, run_id=run_id, kinds=KINDS)
    with reader.flow.lock:
        event = reader.flow.events.event(event_index)
        if event is None:
            raise QueryError(f"event {event_index} of run {run_id} is no row of tensor_health.")
        return reader.inputs_and_stack(event)
