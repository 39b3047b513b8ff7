"""One recording: creates, starts and ends the hooks, the backend, the sink and the objects between them."""

from __future__ import annotations

import itertools
import os
import shlex
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from tfdbg_arrow.safe_text import number_of
from tfdbg_arrow.spool.journal import RunFiles
from tfdbg_arrow.spool.names import GraphLinks
from tfdbg_arrow.storage.layout import make_run_id, spool_paths
from tfdbg_arrow.writer.backend import Handlers, OnNonFinite
from tfdbg_arrow.writer.backend_choice import choose_backend, compiled_calls
from tfdbg_arrow.writer.graphs.compiled import CompiledFunctions
from tfdbg_arrow.writer.graphs.description import GraphDescriber, NodeName
from tfdbg_arrow.writer.graphs.executed import ExecutedGraphs, FailingOps, GraphOptimizer
from tfdbg_arrow.writer.graphs.function_edit import PlainFunctions
from tfdbg_arrow.writer.graphs.state import GraphState
from tfdbg_arrow.writer.hooks import runtime
from tfdbg_arrow.writer.hooks.autograph import original_location, original_span
from tfdbg_arrow.writer.hooks.calls import let_pass
from tfdbg_arrow.writer.hooks.graph_optimizer import is_used_by_graph
from tfdbg_arrow.writer.hooks.installation import Hooks
from tfdbg_arrow.writer.hooks.sessions import SessionHooks
from tfdbg_arrow.writer.hooks.unobserved import is_defun, local_task
from tfdbg_arrow.writer.live_stop.masking import stop_rules
from tfdbg_arrow.writer.live_stop.stop import EagerWatch, GraphJudge, Origin, Stop, find_origins
from tfdbg_arrow.writer.recording.capture_stats import CaptureStats, FunctionNotes, pass_on, sentence_of
from tfdbg_arrow.writer.recording.function_observer import FunctionObserver
from tfdbg_arrow.writer.recording.marks import FitMarks, Marks, StepGate
from tfdbg_arrow.writer.recording.run_row import run_row
from tfdbg_arrow.writer.recording.session_runs import SessionRuns
from tfdbg_arrow.writer.recover import remove_run, remove_spool_files
from tfdbg_arrow.writer.remote.uploader import Uploader
from tfdbg_arrow.writer.rows import Redaction, Row
from tfdbg_arrow.writer.scopes import Scopes
from tfdbg_arrow.writer.settings import Settings
from tfdbg_arrow.writer.sink.sink import Sink
from tfdbg_arrow.writer.stacks import StackTable

_generations = itertools.count(1)


class Recording:
    """One recording, from enable() to disable().

    The objects of a recording hold only weak references to this object and to an object that they are made for. So
    there are no reference cycles. The memory of a recording is freed when it ends, not when Python's garbage collector
    runs.

    Args:
        settings: The settings.
        undo: Takes callbacks that undo each step of the creation and of start(), if the recording cannot begin.

    Attributes:
        settings: As given.
        run_id: The ID of the recorded run.
        stop: Stops the program at bad values; None means that bad values do not stop it.
    """

    def __init__(self, settings: Settings, undo: ExitStack) -> None:
        self.settings = settings
        self._generation = next(_generations)
        redaction = Redaction(settings.redact, logdir=settings.logdir)
        self._start_ns = time.time_ns()
        self.run_id = make_run_id(self._start_ns, host_name=redaction.host_name, pid=os.getpid())
        undo.callback(remove_run, settings.logdir, run_id=self.run_id)
        links, optimizer = self._open_files(redaction, undo)
        judge = GraphJudge(is_used_by_graph=is_used_by_graph)
        self.stop = self._make_stop(judge, links) if settings.stops_or_calls else None
        self._open_sink(links, redaction, undo)
        self._has_forked = False
        self._make_observers(links, judge, optimizer)
        undo.callback(self.stop_recording)
        undo.callback(self.remove_hooks)

    def _open_files(self, redaction: Redaction, undo: ExitStack) -> tuple[GraphLinks, GraphOptimizer]:
        """Creates the files of the run, its uploader, the backend, and what counts the tensors that are left out."""
        settings = self.settings
        self._uploader = (
            Uploader(
                settings.remote,
                local=settings.logdir,
                run_id=self.run_id,
                on_trouble=_weakly(self._note_upload_trouble),
            )
            if settings.remote is not None
            else None
        )
        if self._uploader is not None:
            undo.callback(self._uploader.discard)
        paths = spool_paths(settings.logdir, run_id=self.run_id)
        # These files must exist before the spool: a spool without them counts as left by a dead process.
        self._files = RunFiles(
            paths,
            run_id=self.run_id,
            host_name=redaction.host_name,
            retention=settings.retention,
        )
        undo.callback(self._files.close)
        self._backend = choose_backend(settings, paths=paths, journal=self._files.names, generation=self._generation)
        undo.callback(self._backend.close)
        self._backend.open_journal()
        optimizer = self._backend.load_optimizer(records_others=settings.op_regex is None)
        self._stats = CaptureStats(_weakly(self._append), num_events=self._backend.num_events)
        self._coverage = Coverage(settings, stats=self._stats)
        optimizer.set_stop_rules(*stop_rules())
        return GraphLinks(self._files.names), optimizer

    def _open_sink(self, links: GraphLinks, redaction: Redaction, undo: ExitStack) -> None:
        """Creates the sink, and the table of stacks, which writes to it."""
        settings = self.settings
        self._sink = Sink(
            settings.logdir,
            self.run_id,
            recorder=self._backend,
            files=self._files,
            links=links,
            retention=settings.retention,
            max_bytes=settings.max_bytes,
            memory=settings.memory,
            on_failure=self._stats.warn_once,
            uploader=self._uploader,
            on_records=None if self.stop is None else self.stop.see_records,
            redact=redaction.rows if settings.redact else None,
        )
        undo.callback(self._sink.discard)
        if self._backend.counts_on_device:
            self._note_left_out_on_device()
        self._backend.stack_table = StackTable(
            _weakly(self._sink.append),
            _weakly(self._sink.append_columns),
            lock=self._files.lock,
            original_location=original_location,
            original_span=original_span,
        )

    def _make_observers(self, links: GraphLinks, judge: GraphJudge, optimizer: GraphOptimizer) -> None:
        """Creates the objects that observe functions, graphs, sessions and training steps, and their hooks."""
        settings = self.settings
        notes = FunctionNotes(self._stats)
        self._executed = self._make_executed(optimizer, links, judge)
        self._xla = self._choose_xla()
        self._compiled = self._make_compiled(notes) if self._xla == "inside" else None
        scopes = Scopes(self._backend)
        self._describer = GraphDescriber(
            self._backend.core,
            links,
            self._sink.append,
            self._sink.append_columns,
            lock=self._files.lock,
            coverage=self._coverage,
            intern_stack=self._backend.intern_stack,
            intern_traceback=self._backend.stack_table.add_traceback,
            current_scope=scopes.current,
            on_unknown_callee=lambda graph, name: notes.unobserved(name, is_defun=is_defun(graph, name)),
            on_names=_weakly(self._note_names),
        )
        scopes.graphs = weakref.proxy(self._describer)
        gate = StepGate(settings.steps) if settings.steps is not None else None
        self._marks = marks = Marks(
            gate,
            backend=self._backend,
            append=self._sink.append,
            set_paused=_weakly(self._set_paused),
            stats=self._stats,
        )
        self._session_runs = SessionRuns(
            settings,
            links=links,
            describer=self._describer,
            append=self._sink.append,
            backend=self._backend,
            step=lambda: marks.step,
            note=self._stats.note,
            generation=self._generation,
            after_run=None if self.stop is None else self.stop.after_call,
            executed=self._executed,
            keeps_ops=settings.keeps_ops,
        )
        observer = FunctionObserver(
            backend=self._backend,
            links=links,
            describer=self._describer,
            plain=PlainFunctions(runtime.RuntimeFunctions(), lock=self._files.lock, on_error=self._stats.note_failure),
            gate=gate,
            stop=self.stop,
            judge=judge,
            notes=notes,
            scopes=scopes,
            fit_marks=FitMarks(self._marks.add_automatic, self._marks.end_automatic_step),
            append=_weakly(self._sink.append),
            note_failure=self._stats.note_failure,
            generation=self._generation,
            xla=self._xla,
            compiled=self._compiled,
            executed=self._executed,
        )
        self._hooks = Hooks(observer)
        self._session_hooks = SessionHooks(self._session_runs)

    def start(self) -> None:
        """Starts to record."""
        if self._uploader is not None:
            self._uploader.start()
        self._sink.append("run", [self._run_row(is_clean_end=False)])
        self._sink.start()
        handlers = Handlers(
            covers_op=self._coverage.level_of_op if self.settings.has_op_filter else None,
            on_error=self._stats.note_failure,
        )
        if self.stop is not None:
            handlers = replace(handlers, on_nonfinite=self.stop.on_eager_op)
            reaction = OnNonFinite.FAIL if self.settings.on_nonfinite == "raise" else OnNonFinite.NOTE
            self._backend.set_on_nonfinite(reaction, self.run_id)
        self._backend.start(handlers)
        self._session_runs.start(handlers)
        self._hooks.install()
        self._session_hooks.install()

    def is_in_core(self) -> bool:
        """Returns True while the core records something in the calling thread."""
        return self._backend.is_recording()

    def observe_thread(self) -> None:
        """Observes the calling thread, so that remove_hooks() keeps op callbacks that other code has added there."""
        self._hooks.observe_thread()

    def remove_hooks(self) -> None:
        """Removes the hooks from TensorFlow and from all threads."""
        self._session_hooks.remove()
        self._hooks.remove()

    def stop_recording(self) -> None:
        """Stops recording in all threads; waits until the core has recorded the events that it is recording now."""
        self._session_runs.stop()
        self._backend.stop()

    def write_rest(self, on_progress: Callable[[float], None]) -> None:
        """Writes the remaining events and ends the run; call it after stop_recording(), from any thread.

        Args:
            on_progress: Called with the share of the work that is done, from 0 to 1.
        """
        on_progress(0.0)
        try:
            self._executed.write()
            self._describer.close()
            self._marks.close()
        finally:
            self._sink.close(run_row=self._run_row(is_clean_end=True), on_progress=on_progress)
        is_all_written = self._sink.is_all_written
        is_in_place = self._files.is_in_place()
        reason = remove_spool_files(self._backend, self._files, is_all_written=is_all_written)
        logdir = self.settings.logdir
        recover = f"tfdbg-arrow recover {shlex.quote(str(logdir))}"
        if not is_all_written and not is_in_place:
            self._stats.warn_once(
                f"{logdir} was removed or replaced while the run {self.run_id} was recorded into it; what was recorded "
                "is lost. Keep the logdir until disable() returns, or record into another one."
            )
        elif not is_all_written:
            num_lost = self._files.num_unwritten
            lost = (
                f", but at most {num_lost:,} entries about graphs, lines and names are lost, because they did not fit "
                "there either"
            )
            self._stats.warn_once(
                f"the end of the run {self.run_id} could not be written to {logdir}; it is kept in {logdir / 'spool'}"
                f"{lost if num_lost else ''}. When there is room, write it with: {recover}"
            )
        elif reason is not None:
            self._stats.warn_once(
                f"the run {self.run_id} is written completely, but its files in {logdir / 'spool'} could not be "
                f"removed ({reason}); remove them later with: {recover}"
            )
        if self._uploader is not None:
            self._close_uploader(self._uploader)

    @property
    def may_have_bad_values(self) -> bool:
        """False if the run is completely written, and no tensor has a NaN or an infinity."""
        return self._sink.has_bad_values or not self._sink.is_all_written

    def note_fork(self) -> None:
        """Reports once that the program forked a child process, which is not recorded."""
        if not self._has_forked:
            self._has_forked = True
            reason = "a fork of this process records nothing, unless it calls enable() for itself"
            self._stats.add("unobservable", "forked processes", reason, reason_code="forked")

    def abandon(self) -> None:
        """Drops the recording in a forked child, which must not write into its parent's run."""
        self._session_hooks.remove()
        self._hooks.remove()
        self._backend.abandon()
        self._files.abandon()
        if self._uploader is not None:
            self._uploader.unlock()

    def flush(self) -> None:
        """Writes everything recorded so far."""
        self._executed.write()
        self._sink.flush()
        if self._uploader is not None:
            self._uploader.hurry()

    def mark(self, step: int | None, labels: dict[str, object]) -> None:
        """Labels the following events."""
        self._marks.add(step, labels)

    def end_step(self) -> None:
        """Ends the training step: the following events have no step until the next mark with a step."""
        self._marks.end_step()

    def _choose_xla(self) -> str:
        """Returns how to treat functions with jit_compile=True: `inside`, `observe` or `keep`."""
        if self.settings.xla != "auto":
            return self.settings.xla
        # On an H200, XLA took more than 45 s to compile a small CNN with the ops that count its tensors.
        runs_without_xla = self.settings.keeps_values or self.settings.histograms or runtime.has_accelerator()
        return "observe" if runs_without_xla else "inside"

    def _make_compiled(self, notes: FunctionNotes) -> CompiledFunctions:
        from tfdbg_arrow.writer.tensorflow_backend.compiled import CompiledSummaries

        return CompiledFunctions(
            CompiledSummaries(self.settings.mode, host_calls=compiled_calls()),
            CompiledSummaries(self.settings.mode, host_calls=None),
            lock=self._files.lock,
            generation=self._generation,
            on_failure=notes.not_copied,
            on_left_out=notes.left_out_of_xla,
        )

    def _note_names(self, graph: Any, state: GraphState, function_name: str, names: Sequence[NodeName]) -> None:
        self._executed.add_function(graph, state, names)
        if self._compiled is not None:
            self._compiled.add_function(function_name, graph, state, names)

    def _make_executed(self, optimizer: GraphOptimizer, links: GraphLinks, judge: GraphJudge) -> ExecutedGraphs:
        return ExecutedGraphs(
            optimizer,
            links=links,
            append_columns=self._sink.append_columns,
            lock=self._files.lock,
            generation=self._generation,
            keeps_ops=self.settings.keeps_ops,
            judge=judge,
            note_failure=self._stats.note_failure,
            failing=FailingOps() if self._backend.counts_on_device else None,
        )

    def _note_left_out_on_device(self) -> None:
        """Reports which settings do not apply to tensors that are counted on their devices."""
        backend = f"With health_backend={self._backend.name!r},"
        if self.settings.keeps_inputs:
            reason = f"{backend} on_nonfinite='keep' keeps, of ops in graphs, only the inputs of those on a CPU."
            self._stats.note("changed", "on_nonfinite", reason)
        if self.settings.histograms:
            reason = f"{backend} large tensors of graphs are counted on their device and have no histograms."
            self._stats.note("changed", "histograms", reason)

    def _set_paused(self, paused: bool) -> None:
        self._backend.set_paused(paused)
        self._session_runs.set_paused(paused)

    def _append(self, table: str, rows: Sequence[Row], /, *notes: Callable[[], object]) -> None:
        self._sink.append(table, rows, *notes)

    def _run_row(self, *, is_clean_end: bool) -> Row:
        return run_row(
            self.settings,
            run_id=self.run_id,
            start_ns=self._start_ns,
            health_backend=self._backend.name,
            xla=self._xla,
            local_task=local_task(),
            is_clean_end=is_clean_end,
        )

    def _make_stop(self, judge: GraphJudge, links: GraphLinks) -> Stop:
        flush, logdir, run_id, stats = _weakly(self.flush), self.settings.logdir, self.run_id, self._stats

        def find(event_indexes: Sequence[int]) -> Sequence[Origin]:
            flush()
            return find_origins(logdir, run_id, event_indexes)

        noted: set[tuple[str, str]] = set()

        def note(subject: str, reason: str) -> None:
            if (subject, reason) not in noted:
                noted.add((subject, reason))
                stats.add("masked", subject, reason)

        watch = EagerWatch(
            lock=self._files.lock,
            tensor_id=runtime.eager_tensor_id,
            set_watching=self._backend.set_watching,
            is_function=lambda name: links.graph_id_of_function(name) is not None,
            note=note,
        )
        return Stop(
            self.settings.on_nonfinite,
            logdir=self.settings.logdir if self.settings.remote is None else self.settings.shown_logdir,
            run_id=self.run_id,
            find=find,
            watch=watch,
            judge=judge,
            note=note,
            take_notes=self._backend.take_nonfinite_notes,
            let_pass=let_pass,
            on_error=self._stats.note_failure,
        )

    def _note_upload_trouble(self, reason: str) -> None:
        text = f"{self.settings.shown_logdir} cannot be reached ({reason}); parts wait in {self.settings.logdir}"
        self._stats.add("failed", "upload", text, reason_code="upload_waits")
        self._stats.warn_once(f"{text}, and are sent when it can be reached again", key="upload")

    def _say_waiting(self, num_parts: int, timeout_s: float) -> None:
        shown = self.settings.shown_logdir
        sys.stderr.write(
            f"tfdbg_arrow: sending the last {number_of(num_parts, 'part')} to {shown}, {timeout_s:.0f} s at most\n"
        )

    def _close_uploader(self, uploader: Uploader) -> None:
        shown = self.settings.shown_logdir
        unsent = uploader.close(on_wait=self._say_waiting)
        if unsent is not None:
            parts = number_of(unsent.num_parts, "part was", "parts were")
            self._stats.warn_once(
                f"{parts} not sent to {shown} ({unsent.size_bytes:,} bytes of the run {self.run_id}), and "
                f"{'is' if unsent.num_parts == 1 else 'are'} kept in {unsent.directory}. When this process has ended: "
                f"tfdbg-arrow upload --remove {shlex.quote(str(unsent.directory))} {shlex.quote(shown)}"
            )


def _weakly(method: Callable[..., object]) -> Callable[..., None]:
    """Returns a function that calls a bound method, but does not keep the object alive; later calls do nothing."""
    reference = weakref.WeakMethod(method)

    def call(*args: Any, **kwargs: Any) -> None:
        alive = reference()
        if alive is not None:
            alive(*args, **kwargs)

    return call


class Coverage:
    """Applies the settings of one recording to single ops.

    Args:
        settings: The settings.
        stats: Reports errors of the user's callable.
    """

    def __init__(self, settings: Settings, *, stats: CaptureStats) -> None:
        self._settings = settings
        self._stats = stats
        self._has_failed = False

    def is_chosen(self, op_type: str, op_name: str | None) -> bool:
        """Returns True if the user's `values` chose the op."""
        if self._settings.values is None:
            return False
        try:
            return self._settings.values.chooses(op_type, op_name)
        except Exception as error:  # the program's own callable
            pass_on(error)
            if not self._has_failed:
                self._has_failed = True
                self._stats.note(
                    "failed", "values", f"the callable {self._settings.values.text} raised {sentence_of(error)}"
                )
            return False

    def reason_not_recorded(self, op_type: str, dtype_number: int, *, is_chosen: bool) -> str | None:
        """Returns a `not_recorded_reason` for a tensor; None if the tensor is recorded."""
        return self._settings.reason_not_recorded(op_type, dtype_number, is_chosen=is_chosen)

    def level_of_op(self, op_type: str | bytes) -> int:
        """Returns what to record of the tensors of an eager op type: 0 nothing, 1 facts, 2 facts and elements."""
        text = op_type.decode() if isinstance(op_type, bytes) else op_type
        return 2 if self.is_chosen(text, None) else int(self._settings.covers_op(text))
