"""Records functions and their calls when the hooks report them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tfdbg_arrow.spool.names import GraphLinks
from tfdbg_arrow.spool.records import NO_VALUE
from tfdbg_arrow.writer.backend import Backend
from tfdbg_arrow.writer.graphs.compiled import CompiledFunctions
from tfdbg_arrow.writer.graphs.description import GraphDescriber
from tfdbg_arrow.writer.graphs.executed import ExecutedGraphs
from tfdbg_arrow.writer.graphs.function_edit import PlainFunctions
from tfdbg_arrow.writer.hooks.graph_optimizer import call_options
from tfdbg_arrow.writer.hooks.runtime import is_graph_mode
from tfdbg_arrow.writer.hooks.unobserved import is_connected, is_remote, local_task
from tfdbg_arrow.writer.live_stop.stop import GraphJudge, Stop
from tfdbg_arrow.writer.recording.capture_stats import FunctionNotes
from tfdbg_arrow.writer.recording.marks import FitMarks, StepGate
from tfdbg_arrow.writer.rows import Row
from tfdbg_arrow.writer.scopes import Scopes


class FunctionObserver:
    """Records functions and their calls, for one recording.

    Methods that the hooks call do not raise. Failures are counted and reported once. Only the errors of live stop go to
    the program.

    The public attributes and methods are those that the hooks use.

    Args:
        backend: Records the calls.
        links: Stores the functions and their graphs.
        describer: Turns the graphs of functions into rows.
        plain: Returns the copies of functions that run in steps that are not recorded.
        gate: Decides which steps are recorded; None means that all steps are.
        stop: Stops the program at bad values; None means that bad values do not stop it.
        judge: Decides which tensors stop the program.
        notes: Reports functions that are not recorded.
        scopes: The scopes of the ops of each thread.
        fit_marks: Labels the steps of Keras's fit.
        append: Adds rows of a table.
        note_failure: Reports failures.
        generation: The number of the recording in this process.
        xla: How to treat functions with jit_compile=True: `inside`, `observe` or `keep`.
        compiled: Records functions that XLA compiles; None means that they are not recorded.
        executed: Records functions after TensorFlow's optimizer has changed them.
    """

    def __init__(
        self,
        *,
        backend: Backend,
        links: GraphLinks,
        describer: GraphDescriber,
        plain: PlainFunctions,
        gate: StepGate | None,
        stop: Stop | None,
        judge: GraphJudge,
        notes: FunctionNotes,
        scopes: Scopes,
        fit_marks: FitMarks,
        append: Callable[[str, list[Row]], None],
        note_failure: Callable[[str, object], None],
        generation: int,
        xla: str,
        executed: ExecutedGraphs,
        compiled: CompiledFunctions | None = None,
    ) -> None:
        self._backend = backend
        self._links = links
        self._describer = describer
        self._judge = judge
        self._plain = plain
        self._gate = gate
        self._notes = notes
        self.scopes = scopes
        self.fit_marks = fit_marks
        self.append = append
        self.note_failure = note_failure
        self.stop = stop
        self.generation = generation
        self._xla = xla
        self._compiled = compiled
        self.op_callback = backend.op_callback
        self.op_executor = backend.op_executor
        self._executed = executed
        self._first_calls: dict[int, bytes] = {}
        self._have_run: set[bytes] = set()
        self.note_failed_op = backend.record_failed_op
        self.note_without_xla = notes.without_xla
        self.note_kept_xla = notes.kept_xla
        self.note_remote = notes.remote

    def begin_call(self, function_name: bytes, runs_as: bytes, inputs: Sequence[Any], num_outputs: int, /) -> int:
        """Records that a call of a function begins; returns its execution index, or -1 if it is not recorded."""
        if self._gate is not None and not self._gate.is_open:
            return NO_VALUE
        settled = self._notes.settled
        if function_name not in settled and self._links.graph_id_of_function(function_name.decode()) is None:
            self._notes.unobserved(function_name.decode())
        settled.add(function_name)
        index = self._backend.begin_call(function_name, inputs, num_outputs, runs_as)
        if function_name not in self._have_run:
            self._first_calls[index] = function_name
        return index

    def function_to_run(self, function_name: bytes, /) -> bytes:
        """Returns the function to run for a call: in a step that is not recorded, a copy without record ops."""
        gate = self._gate
        return function_name if gate is None or gate.is_open else self._plain.name_of(function_name)

    def call_options(self, function_name: bytes, options: Any, /) -> Any:
        """Returns the FunctionCallOptions to call a function with; None if the program's own options can be used."""
        keeps_ops = self._executed.keeps_ops(function_name)
        return call_options(options.config_proto_serialized, options.executor_type, keeps_ops=keeps_ops)

    def is_untried(self, function_name: bytes, /) -> bool:
        """Returns True if TensorFlow's optimizer may break a function and has not tried the function yet."""
        return self._executed.is_untried(function_name)

    def trying(self, function_name: bytes, /) -> AbstractContextManager[None]:
        """Observes whether TensorFlow can optimize an untried function, which does not run meanwhile."""
        graph_id = self._links.graph_id_of_function(function_name.decode())
        return nullcontext() if graph_id is None else self._executed.trying(function_name, graph_id)

    def xla_choice(self) -> str:
        """Returns how to treat a function with jit_compile=True that the calling thread traces now."""
        # A function that TensorFlow runs by itself, in a pipeline or a session, cannot be replaced by a copy.
        is_run_by_others = self.scopes.current().is_of_pipeline or is_graph_mode()
        return "observe" if self._xla == "inside" and is_run_by_others else self._xla

    def copy_to_record(self, function_name: bytes, /) -> bytes:
        """Returns the function to run for a call, so that the part that XLA compiles is recorded."""
        if self._compiled is None:
            return function_name
        copy = self._compiled.name_of(function_name)
        is_left_out = self._gate is not None and not self._gate.is_open
        return function_name if is_left_out and not self._compiled.keeps_state(function_name) else copy

    def note_refused(self, function_name: bytes, error: Exception) -> None:
        """Notes that XLA refused to compile our copy of a function, but compiled the function itself."""
        if self._compiled is not None:
            self._compiled.forget_copy(function_name)
            self._notes.xla_refused(function_name.decode(), error)

    def note_compiled(self, function_name: str) -> None:
        """Notes that a function with jit_compile=True is compiled by XLA and recorded."""
        if self._compiled is not None:
            self._compiled.note_compiled()

    def before_function(
        self, function_name: str, graph: Any, unobserved_for: str | None = None, /, *, is_compiled: bool = False
    ) -> None:
        """Prepares a graph that becomes a runtime function; `unobserved_for` is the reason not to record it, if any."""
        try:
            self._prepare(function_name, graph, unobserved_for, is_compiled=is_compiled)
        except Exception as error:
            self._notes.not_instrumented(function_name, error)

    def _prepare(self, function_name: str, graph: Any, unobserved_for: str | None, *, is_compiled: bool) -> None:
        """Describes the new ops of a graph that becomes a function, and prepares the graph for recording."""

        def reason(op: Any, op_type: str, tensor: Any) -> str | None:
            if unobserved_for is None and is_connected() and is_remote(op.device):
                return "remote"
            return unobserved_for

        with self._describer.describing(graph) as state:
            self._links.add_function(function_name, state.graph_id)
            self._describer.describe_graph(graph, state)
            batches = self._describer.describe_ops(graph, state, reasons=reason)
            self._describer.describe_signature(function_name, graph, state)
            state.num_described = len(graph.get_operations())
            if unobserved_for is not None:
                return
            if is_compiled and self._compiled is not None:
                self._compiled.add_tensors(state, batches if self.stop is None else self._judge.judge(graph, batches))
            else:
                self._executed.prepare(function_name, graph, state, batches)

    def after_function(self, function_name: str, graph: Any, function_def: Callable[[], Any]) -> None:
        """Notes that a graph became a runtime function; `function_def` returns its FunctionDef."""
        try:
            self._describer.note_names(graph, function_def)
        except Exception as error:
            self._notes.names_unknown(function_name, error)

    def note_created(self, op: Any) -> None:
        """Notes that an op was created in a graph."""
        try:
            self._describer.note_created(op)
        except Exception as error:
            self.note_failure("noting an op of a graph", error)

    def note_taped(self, attrs: object, outputs: Sequence[Any]) -> None:
        """Notes that a gradient tape keeps an op of a graph with these attributes and outputs."""
        self._backend.forget_forward(attrs)  # an execution may have had attributes at this address
        self._describer.note_taped(attrs, outputs)

    def note_connected(self) -> None:
        """Notes that the process is connected to other processes, whose devices it can use."""
        task = local_task()
        self._backend.set_local_task(task)
        self._notes.connected(task)

    def end_call(self, execution_index: int, outputs: Sequence[Any] | None, error_type: str | None, /) -> None:
        """Records that a call returned its outputs or raised an error."""
        self._backend.end_call(execution_index, outputs, error_type)
        self._executed.write()
        function_name = self._first_calls.pop(execution_index, None)
        if function_name is not None and error_type is None:
            self._have_run.add(function_name)
            self._note_if_left_alone(function_name)
        if self.stop is not None and outputs is not None:
            self.stop.after_call()

    def _note_if_left_alone(self, function_name: bytes) -> None:
        """Reports a function that ran without having passed through TensorFlow's optimizer."""
        graph_id = self._links.graph_id_of_function(function_name.decode())
        if graph_id is not None and self._executed.is_left_alone(graph_id):
            self._notes.not_optimized(function_name.decode())
