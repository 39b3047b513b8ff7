"""What a recording does when the hooks tell of functions and their calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tfdbg_arrow.spool.records import NO_VALUE
from tfdbg_arrow.writer.backend import Backend
from tfdbg_arrow.writer.graphs.compiled import CompiledFunctions
from tfdbg_arrow.writer.graphs.description import GraphDescriber
from tfdbg_arrow.writer.graphs.executed import ExecutedGraphs
from tfdbg_arrow.writer.graphs.instrument import GraphInstrumenter
from tfdbg_arrow.writer.graphs.plain_functions import PlainFunctions
from tfdbg_arrow.writer.graphs.registry import GraphRegistry
from tfdbg_arrow.writer.live_stop.stop import Stop
from tfdbg_arrow.writer.recording.fit_marks import FitMarks
from tfdbg_arrow.writer.recording.function_notes import FunctionNotes
from tfdbg_arrow.writer.schedule import StepGate
from tfdbg_arrow.writer.scopes import Scopes


class FunctionObserver:
    """Records functions and their calls, for one recording.

    No method that the hooks call raises: what fails is counted, said once, and left out. Only what live stop raises
    goes to the program.

    Args:
        backend: Records the calls.
        registry: Knows the functions.
        describer: Turns their graphs into rows.
        instrumenter: Makes their graphs record.
        plain: Gives the functions that run in steps that are left out.
        gate: Follows the steps, of which some are left out; None: all are recorded.
        stop: Stops the program; None: nothing does.
        notes: Told of functions that are not recorded.
        scopes: What the ops of each thread belong to.
        fit_marks: Labels the steps of Keras's fit.
        note_failure: Told of what failed.
        local_task: Returns the address of this process in the cluster that it is connected to.
        generation: Tells the recordings of one process apart.
        xla: What becomes of functions that ask for XLA: `inside`, `observe` or `keep`.
        is_run_by_others: Whether TensorFlow runs what the calling thread traces without a call from eager code.
        compiled: Records functions that XLA compiles; None: nothing does.
        executed: Records functions as TensorFlow's optimizer leaves them; None: they are recorded as they are traced.

    Attributes:
        op_callback: TensorFlow's op callback.
        end_call: A call has returned its outputs, or raised an error.
        note_failed_op: An eager op raised an error.
        generation: As given.
        inlines_all: Whether a function with loops or branches of graph mode may be inlined.
        stop: As given.
        scopes: As given.
        fit_marks: As given.
        note_failure: As given.
        note_call_op: An op of a graph that calls a function was created.
    """

    def __init__(
        self,
        *,
        backend: Backend,
        registry: GraphRegistry,
        describer: GraphDescriber,
        instrumenter: GraphInstrumenter,
        plain: PlainFunctions,
        gate: StepGate | None,
        stop: Stop | None,
        notes: FunctionNotes,
        scopes: Scopes,
        fit_marks: FitMarks,
        note_failure: Callable[[str, object], None],
        local_task: Callable[[], str],
        generation: int,
        xla: str,
        is_run_by_others: Callable[[], bool],
        compiled: CompiledFunctions | None = None,
        executed: ExecutedGraphs | None = None,
    ) -> None:
        self._backend = backend
        self._registry = registry
        self._describer = describer
        self._instrumenter = instrumenter
        self._plain = plain
        self._gate = gate
        self._notes = notes
        self._local_task = local_task
        self.scopes = scopes
        self.fit_marks = fit_marks
        self.note_failure = note_failure
        self.note_call_op = describer.note_call_op
        self.stop = stop
        self.generation = generation
        self._xla = xla
        self._is_run_by_others = is_run_by_others
        self._compiled = compiled
        self.op_callback = backend.op_callback
        self._executed = executed
        self._first_calls: dict[int, bytes] = {}
        self._have_run: set[bytes] = set()
        self.inlines_all = executed is not None
        self.end_call = backend.end_call if stop is None and executed is None else self._end_call_and_tell
        self.note_failed_op = backend.record_failed_op
        self.note_without_xla = notes.without_xla
        self.note_kept_xla = notes.kept_xla
        self.note_remote = notes.remote
        self.note_not_inlined = notes.not_inlined

    def begin_call(self, function_name: bytes, runs_as: bytes, inputs: Sequence[Any], num_outputs: int, /) -> int:
        """A call of a function begins, for which TensorFlow runs it or a copy; returns its index, -1 for none."""
        if self._gate is not None and not self._gate.is_open:
            return NO_VALUE
        settled = self._notes.settled
        if function_name not in settled and self._registry.graph_id_of_function(function_name.decode()) is None:
            self._notes.unobserved(function_name.decode())
        settled.add(function_name)
        index = self._backend.begin_call(function_name, inputs, num_outputs, runs_as=runs_as)
        if self._executed is not None and function_name not in self._have_run:
            self._first_calls[index] = function_name
        return index

    def function_to_run(self, function_name: bytes, /) -> bytes:
        """Which function is to run where a function is called: in a step that is left out, one without record ops."""
        gate = self._gate
        return function_name if gate is None or gate.is_open else self._plain.name_of(function_name)

    def xla_choice(self) -> str:
        """What becomes of a function that asks for XLA, and that the calling thread traces now."""
        # No copy can take the place of a function that TensorFlow runs by itself.
        return "observe" if self._xla == "inside" and self._is_run_by_others() else self._xla

    def copy_to_record(self, function_name: bytes, /) -> bytes:
        """Which function is to run where a function is called, so that what XLA compiles in it is recorded."""
        if self._compiled is None:
            return function_name
        copy = self._compiled.name_of(function_name)
        is_left_out = self._gate is not None and not self._gate.is_open
        return function_name if is_left_out and not self._compiled.keeps_state(function_name) else copy

    def note_refused(self, function_name: bytes, error: Exception) -> None:
        """XLA has not compiled our copy of a function, but the function itself."""
        if self._compiled is not None:
            self._compiled.forget_copy(function_name)
            self._notes.xla_refused(function_name.decode(), error)

    def note_compiled(self, function_name: str) -> None:
        """A function that asked for XLA is compiled with it, and recorded."""
        if self._compiled is not None:
            self._compiled.note_compiled()

    def before_function(
        self, function_name: str, graph: Any, unobserved_for: str | None = None, /, *, is_compiled: bool = False
    ) -> None:
        """A runtime function is about to be made of a graph, of which nothing may be recorded for a reason, if any."""
        try:
            self._instrumenter.prepare(function_name, graph, unobserved_for=unobserved_for, is_compiled=is_compiled)
        except Exception as error:
            self._notes.not_instrumented(function_name, error)

    def after_function(self, function_name: str, graph: Any, function_def: Callable[[], Any]) -> None:
        """A runtime function was made of a graph; `function_def` gives its FunctionDef."""
        try:
            self._describer.note_names(graph, function_def)
        except Exception as error:
            self._notes.names_unknown(function_name, error)

    def note_taped(self, attrs: object, outputs: Sequence[Any]) -> None:
        """A gradient tape keeps an op of a graph, with these attributes and outputs."""
        self._backend.forget_forward(attrs)  # an execution may have had attributes at this address
        self._describer.note_taped(attrs, outputs)

    def note_connected(self) -> None:
        """The process is connected to others, whose devices it can use."""
        task = self._local_task()
        self._backend.set_local_task(task)
        self._notes.connected(task)

    def _end_call_and_tell(
        self, execution_index: int, outputs: Sequence[Any] | None, error_type: str | None, /
    ) -> None:
        self._backend.end_call(execution_index, outputs, error_type)
        if self._executed is not None:
            self._executed.write()
            function_name = self._first_calls.pop(execution_index, None)
            if function_name is not None and error_type is None:
                self._have_run.add(function_name)
                self._note_if_left_alone(self._executed, function_name)
        if self.stop is not None and outputs is not None:
            self.stop.after_call()

    def _note_if_left_alone(self, executed: ExecutedGraphs, function_name: bytes) -> None:
        """Tells of a function that has run, if TensorFlow's optimizer has not made it record."""
        graph_id = self._registry.graph_id_of_function(function_name.decode())
        if graph_id is not None and executed.is_left_alone(graph_id):
            self._notes.not_optimized(function_name.decode())
