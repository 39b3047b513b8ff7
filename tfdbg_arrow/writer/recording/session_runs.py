"""Runs of TensorFlow's sessions: what is recorded of the graphs that they run, and of each run.

A run computes just the part of its graph that its fetches and targets need, and so does recording: each recorded
tensor has an op of its own that records it, made when a run first needs the tensor, and a run is given the record
ops of the tensors that it computes anyway and of those that it is fed. So nothing runs that would not have run.

All runs of one session with the same feeds, fetches and targets are to the tables as the calls of one function: the
feeds are its arguments, the fetches its results.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.spool.records import Records
from tfdbg_arrow.writer.backend import Handlers
from tfdbg_arrow.writer.events import EventWriter
from tfdbg_arrow.writer.graphs.executed import ExecutedGraphs
from tfdbg_arrow.writer.graphs.instrument import GraphInstrumenter
from tfdbg_arrow.writer.graphs.own_ops import SingleRecordOps
from tfdbg_arrow.writer.graphs.registry import GraphRegistry
from tfdbg_arrow.writer.hooks import session_ops
from tfdbg_arrow.writer.hooks.executed import MIN_GRAPH_NODES, is_run_optimized
from tfdbg_arrow.writer.hooks.sessions import RunPlan, RunRequest, TensorName
from tfdbg_arrow.writer.python_eager import EagerRecorder
from tfdbg_arrow.writer.recording.capture_stats import sentence_of
from tfdbg_arrow.writer.rows import Append, to_json
from tfdbg_arrow.writer.settings import Settings, TensorDebugMode
from tfdbg_arrow.writer.tensorflow_backend import summary

_NOT_OPTIMIZED = "is not recorded, since TensorFlow does not optimize it for this session; use graphs='traced'"
_FUNCTION_NAME = "Session.run"
_HOST = "/job:localhost/replica:0/task:0/device:CPU:0"
_PLACEHOLDERS = frozenset({"Placeholder", "PlaceholderV2"})
_ENTERS = frozenset({"Enter", "RefEnter"})
_REFERENCE_WRITERS = ("Apply", "Assign", "Scatter", "SparseApply")
"""How the types of ops begin that give out a reference to what they have just written."""
_ALIASES = frozenset({
    "CheckNumerics", "EnsureShape", "Enter", "Exit", "ExpandDims", "Identity", "IdentityN", "Merge", "NextIteration",
    "PlaceholderWithDefault", "PreventGradient", "RefEnter", "RefExit", "RefIdentity", "RefMerge", "RefNextIteration",
    "RefSelect", "RefSwitch", "Reshape", "Slice", "Snapshot", "Split", "SplitV", "Squeeze", "StopGradient",
    "StridedSlice", "Switch", "Unpack",
})  # fmt: skip
"""Op types whose output may be the very memory of an input."""


@dataclass(frozen=True, eq=False)
class _Array:
    """A value that goes into a run or comes out of it, as the eager path takes a tensor."""

    value: Any
    dtype: Any
    tensor_id: int
    device: str = _HOST

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(np.shape(self.value))

    def numpy(self) -> npt.NDArray[Any]:
        return np.asarray(self.value)


class _ArrayMeasure:
    """Measures arrays on the host."""

    def __init__(self, mode: TensorDebugMode) -> None:
        self._mode = mode

    def tensor_id(self, tensor: _Array) -> int:
        return tensor.tensor_id

    def rows(self, tensors: Sequence[_Array]) -> tuple[npt.NDArray[np.float64], Exception | None]:
        try:
            return np.stack([summary.measure_array(tensor.numpy(), mode=self._mode) for tensor in tensors]), None
        except Exception as error:
            return np.stack([summary.shape_row(tensor.shape) for tensor in tensors]), error

    def fill(self, records: Records, rows: npt.NDArray[np.float64], *, mode: TensorDebugMode) -> None:
        summary.fill_records(records, rows, mode=mode)


@dataclass
class _GraphRecord:
    """What is known of one graph.

    Attributes:
        graph_id: Its id.
        to_record: The tensors to record, with their keys and whether their elements are kept.
        record_ops: Those of them that have a record op.
        references: The tensors that are, or may share, the memory of a reference variable.
        token: The Placeholder for an execution's index, and the op that takes it; False before it was asked for.
    """

    graph_id: int = -1
    to_record: dict[TensorName, tuple[Any, int, bool]] = field(default_factory=dict)
    record_ops: dict[TensorName, Any] = field(default_factory=dict)
    references: set[TensorName] = field(default_factory=set)
    token: tuple[Any, Any] | bool | None = False

    def reason(self, op: Any, op_type: str, tensor: Any) -> str | None:
        """Returns why an output is not recorded; None for one that is."""
        if session_ops.is_reference(tensor):
            is_reference = not op_type.startswith(_REFERENCE_WRITERS)
        else:
            is_reference = op_type in _ALIASES and any(
                (source.op.name, source.value_index) in self.references for source in op.inputs
            )
        if is_reference:
            # Other ops may write to that memory before a record op has read it, or nobody has yet.
            self.references.add((op.name, tensor.value_index))
            return "reference"
        if op_type in _ENTERS and op.get_attr("is_constant"):
            # It is computed once, but seen in every iteration.
            return "control_flow"
        return None


@dataclass
class _SessionRecord:
    """What is known of one session."""

    session_index: int
    plans: dict[RunRequest, RunPlan | None] = field(default_factory=dict)


class SessionRuns:
    """Records the runs of sessions, for one recording. No method that the hooks call raises.

    Args:
        settings: What to record.
        registry: Gives out ids and keys.
        instrumenter: Describes graphs.
        append: Takes rows for a table.
        record_ops: How tensors of graphs are recorded.
        events: Takes the records of runs.
        step: Returns the training step that labels the events.
        note: `(stat, subject, reason)`: something could not be recorded.
        generation: Tells the recordings of one process apart.
        note_not_stopping: `(key, tensor)`: a tensor is recorded by an op that cannot stop the program.
        after_run: Called when a run has returned; it may raise an error. None: nothing is called.
        executed: Records what TensorFlow's optimizer leaves of graphs; None: they are recorded as they were made.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        registry: GraphRegistry,
        instrumenter: GraphInstrumenter,
        append: Append,
        record_ops: SingleRecordOps,
        events: EventWriter,
        step: Callable[[], int],
        note: Callable[[str, str, str], None],
        generation: int,
        note_not_stopping: Callable[[int, Any], None],
        after_run: Callable[[], None] | None = None,
        executed: ExecutedGraphs | None = None,
    ) -> None:
        self._note_not_stopping = note_not_stopping
        self._after_run = after_run
        self._executed = executed
        self._registry = registry
        self._instrumenter = instrumenter
        self._append = append
        self._record_ops = record_ops
        self._note = note
        self._eager = EagerRecorder(settings, events=events, measure=_ArrayMeasure(settings.mode), step=step)
        self._generation = generation
        self._num_sessions = 0
        self._num_plans = 0
        self._has_noted_partial_run = False
        self._not_optimized: set[str] = set()
        self._lock = threading.RLock()

    def start(self, handlers: Handlers) -> None:
        """From here on runs are recorded; what they are fed and fetch stops no program."""
        self._eager.start(replace(handlers, on_nonfinite=None))

    def stop(self) -> None:
        """No run that begins after it returns is recorded."""
        self._eager.stop()

    def set_paused(self, paused: bool) -> None:
        """Leaves out the runs from here on, or records them again."""
        self._eager.is_paused = paused

    def plan_run(self, session: Any, request: RunRequest) -> RunPlan | None:
        """Returns how runs with a request are recorded; None: not at all."""
        if self._eager.is_paused:
            return None
        try:
            known: _SessionRecord | None = session_ops.attached(session, self._generation)
            if known is not None and request in known.plans:
                return known.plans[request]
            with self._lock:
                return self._plan_anew(session, request)
        except Exception as error:
            self._note("failed", "Session.run", f"a run could not be instrumented: {sentence_of(error)}")
            return None

    def begin_run(self, plan: RunPlan, values: Sequence[Any]) -> int:
        """A run begins; returns its execution index, -1 for none."""
        try:
            feeds = [self._array(value, dtype) for value, dtype in zip(values, plan.feed_dtypes, strict=True)]
        except Exception as error:
            self._note("failed", plan.function_name, f"its feeds could not be recorded: {sentence_of(error)}")
            feeds = []
        return self._eager.begin_call(plan.function_name, feeds, len(plan.fetch_dtypes), runs_as=plan.function_name)

    def end_run(
        self, plan: RunPlan, execution_index: int, values: Sequence[Any] | None, error_type: str | None
    ) -> None:
        """The run has returned the values of its fetches, or raised an error of a class, by name."""
        fetches = None
        if values is not None:
            try:
                fetches = [self._array(value, dtype) for value, dtype in zip(values, plan.fetch_dtypes, strict=True)]
            except Exception as error:
                self._note("failed", plan.function_name, f"its fetches could not be recorded: {sentence_of(error)}")
        self._eager.end_call(execution_index, fetches, error_type)
        if self._executed is not None:
            self._executed.write()
            if values is not None and plan.function_name not in self._not_optimized:
                self._note_what_was_not_optimized(plan, self._executed)
        if self._after_run is not None and values is not None:
            self._after_run()

    def _note_what_was_not_optimized(self, plan: RunPlan, executed: ExecutedGraphs) -> None:
        if plan.run_op is not None and not executed.has_run(plan.run_op):
            what = "its graph"
        elif not executed.has_graphs(plan.optimized_graphs):
            what = "a function in it"
        else:
            return
        self._not_optimized.add(plan.function_name)
        self._note("unobservable", plan.function_name, f"{what} {_NOT_OPTIMIZED}")

    def note_partial_run(self) -> None:
        """A run in pieces is set up."""
        if not self._has_noted_partial_run:
            self._has_noted_partial_run = True
            reason = "a run in pieces (partial_run) is not recorded; use Session.run, which computes the same tensors"
            self._note("unobservable", "Session.partial_run", reason)

    def _array(self, value: Any, dtype: Any) -> _Array:
        array = np.asarray(value)
        # What is fed may be a handle to a tensor that the session holds, and of no number's type.
        if array.dtype.hasobject and dtype.is_numpy_compatible and dtype.name != "string":
            return _Array(value, session_ops.STRING, session_ops.new_tensor_id())
        return _Array(array, dtype, session_ops.new_tensor_id())

    def _plan_anew(self, session: Any, request: RunRequest) -> RunPlan | None:
        known: _SessionRecord | None = session_ops.attached(session, self._generation)
        if known is None:
            known = _SessionRecord(session_index=self._num_sessions)
            session_ops.attach(session, self._generation, known)
            self._num_sessions += 1
            self._note_what_is_unobservable(session)
        if request not in known.plans:
            plan = None
            try:
                if not _is_remote(session):
                    plan = self._make_plan(session, request, known.session_index)
            finally:
                known.plans[request] = plan  # where it fails, it fails once
        return known.plans[request]

    def _note_what_is_unobservable(self, session: Any) -> None:
        if _is_remote(session):
            reason = "runs on a server, which has no op that records: what it computes is not recorded"
            self._note("unobservable", f"Session({_target_of(session)!r})", reason)

    def _make_plan(self, session: Any, request: RunRequest, session_index: int) -> RunPlan:
        graph = session.graph
        record: _GraphRecord | None = session_ops.attached(graph, self._generation)
        if record is None:
            record = _GraphRecord()
            session_ops.attach(graph, self._generation, record)
        record.graph_id, batches = self._instrumenter.prepare_session_graph(graph, record.reason)
        for batch in batches:
            for tensor, node in zip(batch.tensors, batch.nodes, strict=True):
                record.to_record[tensor.op.name, tensor.value_index] = (tensor, node, batch.is_chosen)
        function_name = f"{_FUNCTION_NAME}_{self._num_plans}"
        self._num_plans += 1
        computed = computed_tensors(graph, request)
        names = [name for name in computed if name in record.to_record]
        run_op = None
        optimized_graphs: frozenset[int] = frozenset()
        if names and self._executed is not None and is_run_optimized(session):
            mark = self._executed.mark(record.graph_id)
            needs, feeds = _needs(request), _texts(request.feeds)
            ops = [session_ops.create_run_op(graph, mark, needs=needs, feeds=feeds, min_nodes=MIN_GRAPH_NODES)]
            run_op = ops[0].name
        else:
            ops = [self._record_op(graph, record, name) for name in names]
            op_names = {op_name for op_name, slot in computed if (op_name, slot) not in request.feeds}
            # TensorFlow runs the record ops of a branch only if the op that calls the branch must run.
            calls = sorted(op_names & self._registry.calling_ops(record.graph_id))
            ops += [graph.get_operation_by_name(name) for name in calls]
            if self._executed is not None:
                optimized_graphs = self._executed.called_from(record.graph_id, op_names)
        token = None
        if ops:
            if record.token is False:
                node = self._registry.add_nodes([(record.graph_id, "", "", 0)])
                record.token = self._record_ops.add_token(graph, node)
            if isinstance(record.token, tuple):
                token, token_op = record.token
                ops.append(token_op)
        session_ops.extend_session(session)
        self._registry.add_function(function_name, record.graph_id)
        self._describe(function_name, record.graph_id, request, session_index)
        return RunPlan(
            function_name=function_name,
            request=request,
            record_ops=tuple(ops),
            token=token,
            run_op=run_op,
            optimized_graphs=optimized_graphs,
            feed_dtypes=tuple(_tensor(graph, name).dtype.base_dtype for name in request.feeds),
            fetch_dtypes=tuple(_tensor(graph, name).dtype.base_dtype for name in request.fetches),
        )

    def _record_op(self, graph: Any, record: _GraphRecord, name: TensorName) -> Any:
        op = record.record_ops.get(name)
        if op is None:
            op = record.record_ops[name] = self._add_record(graph, *record.to_record[name])
        return op

    def _add_record(self, graph: Any, tensor: Any, node: int, keep: bool) -> Any:
        self._note_not_stopping(node, tensor)
        return self._record_ops.add_record(graph, tensor, node, keep=keep, decides=False)

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


def computed_tensors(graph: Any, request: RunRequest) -> list[TensorName]:
    """Returns the tensors that a run computes or is fed and uses, in order of creation.

    Args:
        graph: The graph.
        request: What the run is asked for.

    Source: tensorflow/core/graph/subgraph.cc, RewriteGraphForExecution: a fed tensor takes the place of what its op
    would give, for data edges, and for control edges where the op is a Placeholder.
    """
    fed = set(request.feeds)
    fed_ops = {name for name, _ in request.feeds}
    used = {name for name in request.fetches if name in fed}
    waiting = [graph.get_operation_by_name(name) for name in request.targets]
    waiting += [graph.get_operation_by_name(op_name) for op_name, slot in request.fetches if (op_name, slot) not in fed]
    reached: dict[str, Any] = {}
    while waiting:
        op = waiting.pop()
        if op.name in reached:
            continue
        reached[op.name] = op
        for tensor in op.inputs:
            name = (tensor.op.name, tensor.value_index)
            if name in fed:
                used.add(name)
            else:
                waiting.append(tensor.op)
        waiting += [
            source for source in op.control_inputs if not (source.name in fed_ops and source.type in _PLACEHOLDERS)
        ]
    computed = used.union((op.name, slot) for op in reached.values() for slot in range(len(op.outputs)))
    places = {op.name: place for place, op in enumerate(graph.get_operations())}
    return sorted(computed, key=lambda name: (places[name[0]], name[1]))


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
