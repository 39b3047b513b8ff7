"""Records the runs of TensorFlow's sessions and the graphs that they run.

A run computes only the part of its graph that its fetches and targets need. Our graph optimizer records this part,
after TensorFlow's own optimizer has changed it. Each run gets one more target, an op that stands for the run
(`create_run_op`).

In the tables, all runs of one session with the same feeds, fetches and targets are the calls of one function. The feeds
are the function's arguments, and the fetches are its results.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tfdbg_arrow.schema.op_traits import REFERENCE_WRITER, Trait, types_with
from tfdbg_arrow.spool.names import GraphLinks
from tfdbg_arrow.writer.backend import Backend, Handlers
from tfdbg_arrow.writer.graphs.description import GraphDescriber
from tfdbg_arrow.writer.graphs.executed import ExecutedGraphs
from tfdbg_arrow.writer.hooks import runtime
from tfdbg_arrow.writer.hooks.graph_optimizer import MIN_GRAPH_NODES, is_run_optimized, keeps_ops, optimizing_config
from tfdbg_arrow.writer.hooks.sessions import (
    STRING,
    RunPlan,
    RunRequest,
    TensorName,
    add_token,
    attach,
    attached,
    create_run_op,
    extend_session,
    has_loops_or_branches,
    is_reference,
    new_tensor_id,
)
from tfdbg_arrow.writer.recording.capture_stats import pass_on, sentence_of
from tfdbg_arrow.writer.recording.session_events import FedArray, SessionEvents
from tfdbg_arrow.writer.rows import Append, to_json
from tfdbg_arrow.writer.settings import Settings

_NOT_OPTIMIZED = (
    "is not recorded, so a bad value in it is not seen: TensorFlow's graph optimizer, which makes graphs record, "
    "leaves out functions that call themselves, or it failed"
)
_SWITCHED_OFF = (
    "was created before enable(), with TensorFlow's graph optimizer switched off: what it computes is not recorded; "
    "create it after enable()"
)
_OPTIMIZED = (
    "was created before enable(): its ops are recorded as TensorFlow's optimizer leaves them, and not as traced; "
    "create it after enable()"
)
_ON_ACCELERATOR = "runs on a GPU: tensors on the GPU inside the loops and branches of its graph are not recorded"
_FUNCTION_NAME = "Session.run"
_PLACEHOLDERS = types_with(Trait.FED)
_ENTERS = types_with(Trait.ENTERS)
_ALIASES = types_with(Trait.SHARES_MEMORY)


@dataclass
class _GraphRecord:
    """The state of one graph.

    Attributes:
        graph_id: The ID of the graph.
        to_record: The tensors to record.
        references: The tensors that refer to the memory of a reference variable, or that may share this memory.
        token: The Placeholder for an execution's index, and the op that takes it; None before the first run.
    """

    graph_id: int = -1
    to_record: set[TensorName] = field(default_factory=set)
    references: set[TensorName] = field(default_factory=set)
    token: tuple[Any, Any] | None = None

    def reason(self, op: Any, op_type: str, tensor: Any) -> str | None:
        """Returns why an output is not recorded; None if it is recorded."""
        if is_reference(tensor):
            shares_memory = REFERENCE_WRITER.fullmatch(op_type) is None  # a writer returns what it has just written
        else:
            shares_memory = op_type in _ALIASES and any(
                (source.op.name, source.value_index) in self.references for source in op.inputs
            )
        if shares_memory:
            # Another op may write to the memory before a record op reads it, or the memory may not be initialized yet.
            self.references.add((op.name, tensor.value_index))
            return "reference"
        if op_type in _ENTERS and op.get_attr("is_constant"):
            # The value is computed once, but appears in every iteration.
            return "control_flow"
        return None


@dataclass
class _SessionRecord:
    """The state of one session."""

    session_index: int
    plans: dict[RunRequest, RunPlan | None] = field(default_factory=dict)


class SessionRuns:
    """Records the runs of sessions, for one recording. Methods that the hooks call do not raise.

    Args:
        settings: The settings of the recording.
        links: Assigns the keys of tensors, and stores which graph calls which.
        describer: Describes graphs.
        append: Takes rows for a table.
        backend: Takes the records of runs.
        step: Returns the training step of the events.
        note: `(stat, subject, reason)`: reports what could not be recorded.
        generation: The number of the recording in this process.
        after_run: Called when a run has returned; it may raise an error. None means no call.
        executed: Records graphs after TensorFlow's optimizer has changed them.
        keeps_ops: Whether TensorFlow's optimizer leaves the ops of graphs unchanged.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        links: GraphLinks,
        describer: GraphDescriber,
        append: Append,
        backend: Backend,
        step: Callable[[], int],
        note: Callable[[str, str, str], None],
        generation: int,
        executed: ExecutedGraphs,
        keeps_ops: bool,
        after_run: Callable[[], None] | None = None,
    ) -> None:
        self._after_run = after_run
        self._executed = executed
        self._keeps_ops = keeps_ops
        self._links = links
        self._describer = describer
        self._append = append
        self._note = note
        self._events = SessionEvents(settings, backend=backend, step=step)
        self._generation = generation
        # A number is never used again, even after an interruption.
        self._session_indexes, self._plan_numbers = itertools.count(), itertools.count()
        self._has_noted_partial_run = False
        self._not_optimized: set[str] = set()
        self._lock = threading.RLock()

    def start(self, handlers: Handlers) -> None:
        """Starts to record runs; bad values among feeds and fetches do not stop the program."""
        self._events.start(replace(handlers, on_nonfinite=None))

    def stop(self) -> None:
        """Stops recording; runs that begin later are not recorded."""
        self._events.stop()

    def set_paused(self, paused: bool) -> None:
        """Pauses the recording of runs, or resumes it."""
        self._events.is_paused = paused

    def session_config(self, config: Any) -> Any:
        """Returns the ConfigProto to create a session with, given the program's ConfigProto or None."""
        try:
            changed = optimizing_config(config, keeps_ops=self._keeps_ops)
            return config if changed is None else changed
        except Exception as error:
            pass_on(error)
            self._note("failed", "Session", f"its configuration could not be changed: {sentence_of(error)}")
            return config

    def plan_run(self, session: Any, request: RunRequest) -> RunPlan | None:
        """Returns how to record runs with this request; None means that they are not recorded."""
        if self._events.is_paused:
            return None
        try:
            session_record: _SessionRecord | None = attached(session, self._generation)
            if session_record is not None and request in session_record.plans:
                return session_record.plans[request]
            with self._lock:
                return self._plan_anew(session, request)
        except Exception as error:
            pass_on(error)
            self._note("failed", "Session.run", f"a run could not be instrumented: {sentence_of(error)}")
            return None

    def begin_run(self, plan: RunPlan, values: Sequence[Any]) -> int:
        """Records that a run begins; returns its execution index, or -1 if it is not recorded."""
        try:
            feeds = [self._array(value, dtype) for value, dtype in zip(values, plan.feed_dtypes, strict=True)]
        except Exception as error:
            pass_on(error)
            self._note("failed", plan.function_name, f"its feeds could not be recorded: {sentence_of(error)}")
            feeds = []
        return self._events.begin_run(plan.function_name, feeds, len(plan.fetch_dtypes))

    def end_run(
        self, plan: RunPlan, execution_index: int, values: Sequence[Any] | None, error_type: str | None
    ) -> None:
        """Records that the run returned the values of its fetches, or raised an error of the class with this name."""
        fetches = None
        if values is not None:
            try:
                fetches = [self._array(value, dtype) for value, dtype in zip(values, plan.fetch_dtypes, strict=True)]
            except Exception as error:
                pass_on(error)
                self._note("failed", plan.function_name, f"its fetches could not be recorded: {sentence_of(error)}")
        self._events.end_run(execution_index, fetches, error_type)
        self._executed.write()
        if values is not None and plan.run_op is not None and plan.function_name not in self._not_optimized:
            self._note_if_not_optimized(plan.function_name, plan.run_op)
        if self._after_run is not None and values is not None:
            self._after_run()

    def _note_if_not_optimized(self, function_name: str, run_op: str) -> None:
        if not self._executed.has_run(run_op):
            self._not_optimized.add(function_name)
            self._note("unobservable", function_name, _NOT_OPTIMIZED)

    def note_partial_run(self) -> None:
        """Reports once that a partial run is not recorded."""
        if not self._has_noted_partial_run:
            self._has_noted_partial_run = True
            reason = "a run in pieces (partial_run) is not recorded; use Session.run, which computes the same tensors"
            self._note("unobservable", "Session.partial_run", reason)

    def _array(self, value: Any, dtype: Any) -> FedArray:
        array = np.asarray(value)
        # The value may be a handle to a tensor in the session. Its array then has dtype object, although the feed has
        # another dtype.
        if array.dtype.hasobject and dtype.is_numpy_compatible and dtype.name != "string":
            return FedArray(value, STRING, new_tensor_id())
        return FedArray(array, dtype, new_tensor_id())

    def _plan_anew(self, session: Any, request: RunRequest) -> RunPlan | None:
        session_record: _SessionRecord | None = attached(session, self._generation)
        if session_record is None:
            session_record = _SessionRecord(session_index=next(self._session_indexes))
            attach(session, self._generation, session_record)
            self._note_what_is_unobservable(session)
        if request not in session_record.plans:
            try:
                plan = None if _is_remote(session) else self._make_plan(session, request, session_record.session_index)
            except Exception as error:
                pass_on(error)
                session_record.plans[request] = None  # after a failure, do not try again
                raise
            session_record.plans[request] = plan
        return session_record.plans[request]

    def _note_what_is_unobservable(self, session: Any) -> None:
        if _is_remote(session):
            reason = "runs on a server, which does not have the record ops: what it computes is not recorded"
            self._note("unobservable", f"Session({_target_of(session)!r})", reason)
        elif not is_run_optimized(session):
            self._note("unobservable", "Session", _SWITCHED_OFF)
        elif self._keeps_ops and not keeps_ops(session):
            self._note("changed", "Session", _OPTIMIZED)
        if runtime.has_accelerator() and has_loops_or_branches(session.graph):
            self._note("unobservable", "Session", _ON_ACCELERATOR)

    def _make_plan(self, session: Any, request: RunRequest, session_index: int) -> RunPlan:
        graph = session.graph
        record: _GraphRecord | None = attached(graph, self._generation)
        if record is None:
            record = _GraphRecord()
            attach(graph, self._generation, record)
        self._prepare(graph, record)
        function_name = f"{_FUNCTION_NAME}_{next(self._plan_numbers)}"
        ops: list[Any] = []
        run_op, token = None, None
        if is_run_optimized(session) and not record.to_record.isdisjoint(computed_tensors(graph, request)):
            mark = self._executed.mark(record.graph_id)
            needs, feeds = _needs(request), _texts(request.feeds)
            ops.append(create_run_op(graph, mark, needs=needs, feeds=feeds, min_nodes=MIN_GRAPH_NODES))
            run_op = ops[0].name
            if record.token is None:
                node = self._links.add_nodes([(record.graph_id, "", "", 0)])
                record.token = add_token(graph, node, generation=self._generation)
            token, token_op = record.token
            ops.append(token_op)
        extend_session(session)
        self._links.add_function(function_name, record.graph_id)
        self._describe(function_name, record.graph_id, request, session_index)
        return RunPlan(
            function_name=function_name,
            request=request,
            own_ops=tuple(ops),
            token=token,
            run_op=run_op,
            feed_dtypes=tuple(_tensor(graph, name).dtype.base_dtype for name in request.feeds),
            fetch_dtypes=tuple(_tensor(graph, name).dtype.base_dtype for name in request.fetches),
        )

    def _prepare(self, graph: Any, record: _GraphRecord) -> None:
        """Describes the new ops of a graph, and prepares the graph for recording."""
        with self._describer.describing(graph) as state:
            if record.graph_id != state.graph_id:  # the first time, or after an interruption
                record.graph_id, record.token = state.graph_id, None
            self._describer.describe_graph(graph, state)
            num_ops = len(graph.get_operations())
            if num_ops > state.num_described:
                batches = self._describer.describe_ops(graph, state, reasons=record.reason)
                self._executed.add_session_graph(graph, state, batches)
                for batch in batches:
                    record.to_record.update((tensor.op.name, tensor.value_index) for tensor in batch.tensors)
            state.num_described = num_ops

    def _describe(self, function_name: str, graph_id: int, request: RunRequest, session_index: int) -> None:
        common = {"function_name": function_name, "graph_id": graph_id}
        targets = to_json(request.targets)
        self._append("graph_function", [{**common, "session_index": session_index, "session_targets": targets}])
        self._append(
            "graph_function_input",
            [
                {**common, "input_index": index, "op_name": op_name, "is_capture": False, "output_slot": slot}
                for index, (op_name, slot) in enumerate(request.feeds)
            ],
        )
        self._append(
            "graph_function_output",
            [
                {**common, "output_index": index, "op_name": op_name, "output_slot": slot}
                for index, (op_name, slot) in enumerate(request.fetches)
            ],
        )


def computed_tensors(graph: Any, request: RunRequest) -> set[TensorName]:
    """Returns the tensors that a run computes, and the fed tensors that it uses.

    Args:
        graph: The graph.
        request: The feeds, fetches and targets of the run.

    Source: tensorflow/core/graph/subgraph.cc, RewriteGraphForExecution: a fed tensor replaces the output of its op for
    data edges. If the op is a Placeholder, the tensor also replaces the op for control edges.
    """
    fed = set(request.feeds)
    fed_ops = {name for name, _ in request.feeds}
    used = {name for name in request.fetches if name in fed}
    unvisited = [graph.get_operation_by_name(name) for name in request.targets]
    unvisited += [
        graph.get_operation_by_name(op_name) for op_name, slot in request.fetches if (op_name, slot) not in fed
    ]
    reached: dict[str, Any] = {}
    while unvisited:
        op = unvisited.pop()
        if op.name in reached:
            continue
        reached[op.name] = op
        for tensor in op.inputs:
            name = (tensor.op.name, tensor.value_index)
            if name in fed:
                used.add(name)
            else:
                unvisited.append(tensor.op)
        unvisited += [
            source for source in op.control_inputs if not (source.name in fed_ops and source.type in _PLACEHOLDERS)
        ]
    return used.union((op.name, slot) for op in reached.values() for slot in range(len(op.outputs)))


def _texts(names: Sequence[TensorName]) -> list[str]:
    return [f"{op_name}:{slot}" for op_name, slot in names]


def _needs(request: RunRequest) -> list[str]:
    return [*_texts(request.fetches), *request.targets]


def _tensor(graph: Any, name: TensorName) -> Any:
    return graph.get_operation_by_name(name[0]).outputs[name[1]]


def _target_of(session: Any) -> str:
    target = session.sess_str
    return target.decode() if isinstance(target, bytes) else target or ""


def _is_remote(session: Any) -> bool:
    return _target_of(session) not in ("", "local")
