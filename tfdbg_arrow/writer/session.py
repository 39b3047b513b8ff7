"""enable(), disable(), capture(), mark(): the recording in force, its identity and its end."""

from __future__ import annotations

import atexit
import itertools
import json
import os
import platform
import re
import shlex
import shutil
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tfdbg_arrow._version import __version__
from tfdbg_arrow.errors import (
    LogdirError,
    MissingDependencyError,
    NonFiniteError,
    RecordingError,
    SettingError,
    TfdbgArrowError,
)
from tfdbg_arrow.schema import FORMAT_VERSION
from tfdbg_arrow.schema.location import parse_location
from tfdbg_arrow.schema.logdir_layout import make_run_id, spool_path, value_spool_path
from tfdbg_arrow.writer.backend import Handlers, OnNonFinite, choose_backend
from tfdbg_arrow.writer.chosen_values import Choice
from tfdbg_arrow.writer.graphs.plain_functions import PlainFunctions
from tfdbg_arrow.writer.graphs.registry import GraphRegistry
from tfdbg_arrow.writer.records import NO_STEP, NO_VALUE
from tfdbg_arrow.writer.remote.settings import (
    DEFAULT_MAX_LOCAL_BYTES,
    DEFAULT_UPLOAD_TIMEOUT_S,
    LOCAL_FLUSH_INTERVAL_S,
    REMOTE_FLUSH_INTERVAL_S,
)
from tfdbg_arrow.writer.remote.uploader import Uploader
from tfdbg_arrow.writer.rows import Row, now_columns, to_json, wall_time_columns
from tfdbg_arrow.writer.schedule import StepGate
from tfdbg_arrow.writer.settings import DEFAULT_SPOOL_SIZE_BYTES, Request, Settings
from tfdbg_arrow.writer.sink.sink import Sink
from tfdbg_arrow.writer.stacks import StackTable, as_utf8
from tfdbg_arrow.writer.stopping import EagerWatch, GraphJudge, Origin, Stop

_lock = threading.RLock()
_active: Recording | None = None
_generations = itertools.count(1)
_is_registered_at_exit = False
FindOrigins = Callable[[Path, str, Sequence[int]], Sequence[Origin]]
_find_origins: FindOrigins = lambda logdir, run_id, event_indexes: ()  # noqa: E731


def look_up_origins_with(find_origins: FindOrigins) -> None:
    """Says how a recording with `on_nonfinite` finds its answer; the query layer knows it, which is not imported here.

    Args:
        find_origins: `(logdir, run_id, event_indexes)`: returns the origins that bad tensors go back to, each once.
    """
    global _find_origins
    _find_origins = find_origins


@dataclass(frozen=True)
class Capture:
    """A recording, as `capture()` gives it.

    Attributes:
        logdir: Where it goes, a URL as text; None where TFDBG_ARROW=0 turned it off.
        run_id: Its run's id; None likewise.
    """

    logdir: Path | str | None
    run_id: str | None


class Recording:
    """One recording, from enable() to disable(): what the hooks call, and what it writes.

    No method that the hooks call raises: what fails is counted, said once, and left out.
    """

    def __init__(self, settings: Settings) -> None:
        from tfdbg_arrow.writer.graphs.description import GraphDescriber
        from tfdbg_arrow.writer.graphs.instrument import GraphInstrumenter
        from tfdbg_arrow.writer.hooks import autograph, cluster, must_run, runtime, sessions
        from tfdbg_arrow.writer.hooks.installation import Hooks
        from tfdbg_arrow.writer.session_runs import SessionRuns

        self.settings = settings
        self.generation = next(_generations)
        self._start_ns = time.time_ns()
        self.run_id = make_run_id(self._start_ns, host_name=socket.gethostname(), pid=os.getpid())
        self._failures: set[str] = set()
        self._uploader = (
            Uploader(settings.remote, local=settings.logdir, run_id=self.run_id, on_trouble=self._note_upload_trouble)
            if settings.remote is not None
            else None
        )
        self._backend = choose_backend(
            settings,
            spool_path=settings.logdir / spool_path(self.run_id),
            value_path=settings.logdir / value_spool_path(self.run_id),
            generation=self.generation,
        )
        self.registry = GraphRegistry()
        judge = GraphJudge(is_used_by_graph=must_run.is_used_by_graph)
        self.stop = None if settings.on_nonfinite == "record" else self._make_stop(judge)
        self._sink = Sink(
            settings.logdir,
            self.run_id,
            recorder=self._backend,
            nodes=self.registry,
            call_graph=self.registry,
            circular_buffer_size=settings.circular_buffer_size,
            flush_interval_s=LOCAL_FLUSH_INTERVAL_S if self._uploader is None else REMOTE_FLUSH_INTERVAL_S,
            dump_after=settings.dump_after if settings.dump_on is not None else None,
            max_bytes=settings.max_bytes,
            on_failure=self._warn_once,
            uploader=self._uploader,
            on_records=None if self.stop is None else self.stop.see_records,
        )
        self._backend.stack_table = StackTable(self._sink.append, original_location=autograph.original_location)
        self._describer = GraphDescriber(
            self.registry,
            self._sink.append,
            coverage=self,
            own_result=must_run.own_result,
            intern_stack=self._backend.intern_stack,
            intern_traceback=self._backend.stack_table.add_traceback,
            on_unknown_callee=self._note_unobserved,
        )
        self._instrumenter = GraphInstrumenter(
            self.registry,
            self._describer,
            record_ops=self._backend.record_ops,
            single_record_ops=self._backend.session_record_ops,
            is_pruned=sessions.is_pruned,
            make_run=must_run.make_run if settings.on_nonfinite != "raise" else must_run.make_run_before_next,
            is_remote=cluster.is_remote,
            judge=None if self.stop is None else judge.judge,
        )
        self._called: set[bytes] = set()
        self._remote: set[str] = set()
        self._local_task = cluster.local_task
        self.keeps_xla = settings.xla == "keep"
        self.op_callback = self._backend.op_callback
        self.end_call = self._backend.end_call if self.stop is None else self._end_call_and_tell
        self._step: int | None = None
        self._session_runs = SessionRuns(
            settings,
            registry=self.registry,
            instrumenter=self._instrumenter,
            append=self._sink.append,
            record_ops=self._backend.session_record_ops,
            events=self._backend.events,
            step=lambda: NO_STEP if self._step is None else self._step,
            note=self.note,
            generation=self.generation,
        )
        self._gate = StepGate(settings.steps) if settings.steps is not None else None
        self._plain = PlainFunctions(runtime.RuntimeFunctions(), on_error=self._note_failure)
        self._hooks = Hooks(self)
        self._session_hooks = sessions.SessionHooks(self._session_runs)

    def start(self) -> None:
        """Begins to record."""
        try:
            if self._uploader is not None:
                self._uploader.start()
            self._sink.append("run", [self._run_row(is_clean_end=False)])
            self._sink.start()
        except Exception:
            self._backend.stop()
            self._backend.remove_files()
            if self._uploader is not None:
                self._uploader.discard()
            raise
        handlers = Handlers(
            on_graph_op=self._describer.note_creation,
            covers_op=self._level_of_op if self.settings.has_op_filter else None,
            on_error=self._note_failure,
        )
        if self.stop is not None:
            handlers = replace(
                handlers, on_nonfinite=self.stop.on_eager_op, on_bad_graph_tensors=self.stop.on_bad_graph_tensors
            )
            reaction = OnNonFinite.FAIL if self.settings.on_nonfinite == "raise" else OnNonFinite.NOTE
            self._backend.set_on_nonfinite(reaction, self.run_id)
        self._backend.start(handlers)
        self._session_runs.start(handlers)
        self._hooks.install()
        self._session_hooks.install()

    def close(self) -> None:
        """Ends recording and writes what is left."""
        self._session_hooks.remove()
        self._hooks.remove()
        self._session_runs.stop()
        self._backend.stop()
        self._describer.close()
        if self._gate is not None and self._gate.num_skipped:
            self._add_stat("disabled", "steps", self._gate.total, num_events=None)
        self._sink.close(run_row=self._run_row(is_clean_end=True))
        self._backend.remove_files()
        if self._uploader is not None:
            self._close_uploader(self._uploader)

    def abandon(self) -> None:
        """Forgets the recording in a fork's child, which must not write into its parent's run."""
        self._session_hooks.remove()
        self._hooks.remove()
        self._backend.abandon()
        if self._uploader is not None:
            self._uploader.unlock()

    def flush(self) -> None:
        """Writes everything recorded so far."""
        self._sink.flush()
        if self._uploader is not None:
            self._uploader.hurry()

    # A logdir at a URL.

    def _note_upload_trouble(self, reason: str) -> None:
        text = f"{self.settings.shown_logdir} cannot be reached ({reason}); parts wait in {self.settings.logdir}"
        self._add_stat("failed", "upload", text, num_events=None)
        self._warn_once(f"{text}, and are sent when it can be reached again", key="upload")

    def _say_waiting(self, num_parts: int, timeout_s: float) -> None:
        shown = self.settings.shown_logdir
        sys.stderr.write(f"tfdbg_arrow: sending the last {num_parts} parts to {shown}, {timeout_s:.0f} s at most\n")

    def _close_uploader(self, uploader: Uploader) -> None:
        shown = self.settings.shown_logdir
        unsent = uploader.close(on_wait=self._say_waiting)
        if unsent is not None:
            self._warn_once(
                f"{unsent.num_parts} parts ({unsent.size_bytes:,} bytes) of the run {self.run_id} were not sent to "
                f"{shown}; they are kept in {unsent.directory}. When this process has ended, send them by: "
                f"tfdbg-arrow upload --remove {shlex.quote(str(unsent.directory))} {shlex.quote(shown)}"
            )

    # What the hooks call.

    def begin_call(self, function_name: bytes, inputs: Sequence[Any], num_outputs: int, /) -> int:
        """A call of a function begins; returns its execution index, -1 for none."""
        if self._gate is not None and not self._gate.is_open:
            return NO_VALUE
        if function_name not in self._called and self.registry.graph_id_of_function(function_name.decode()) is None:
            self._note_unobserved(function_name.decode())
        self._called.add(function_name)
        return self._backend.begin_call(function_name, inputs, num_outputs)

    def function_to_run(self, function_name: bytes, /) -> bytes:
        """Which function is to run where a function is called: in a step that is left out, one without record ops."""
        gate = self._gate
        return function_name if gate is None or gate.is_open else self._plain.name_of(function_name)

    def before_function(self, function_name: str, graph: Any, unobserved_for: str | None = None, /) -> None:
        """A runtime function is about to be made of a graph, of which nothing may be recorded for a reason, if any."""
        try:
            self._instrumenter.prepare(function_name, graph, unobserved_for=unobserved_for)
        except Exception as error:
            self._called.add(function_name.encode())
            self.note("failed", function_name, f"its graph could not be instrumented: {_sentence(error)}")

    def after_function(self, function_name: str, graph: Any, function_def: Callable[[], Any]) -> None:
        """A runtime function was made of a graph; `function_def` gives its FunctionDef."""
        try:
            self._describer.note_names(graph, function_def)
        except Exception as error:
            self.note("failed", function_name, f"its call sites could not be read: {_sentence(error)}")

    def note_without_xla(self, function_name: str) -> None:
        """A function that asked for XLA is compiled without it."""
        self.note("changed", function_name, "runs without XLA while recording: compiled ops cannot be observed")

    def note_kept_xla(self, function_name: str) -> None:
        """A function that asked for XLA is compiled with it, and not recorded."""
        # No warning: that is what the user asked for.
        reason = "is compiled by XLA, as xla='keep' asks: the ops inside it are not recorded"
        self._add_stat("unobservable", function_name, reason, num_events=None)

    def note_connected(self) -> None:
        """The process is connected to others, whose devices it can use."""
        self._backend.set_local_task(self._local_task())
        reason = "tensors and ops on devices of other processes are not recorded; this process is " + self._local_task()
        self._add_stat("unobservable", "other processes", reason, num_events=None)

    def note_remote(self, function_name: str, device_name: str | None) -> None:
        """A function is made for, or called on, a device of another process."""
        if function_name not in self._remote:
            self._remote.add(function_name)
            self._called.add(function_name.encode())
            reason = f"runs in another process{'' if device_name is None else f', on {device_name}'}: not recorded"
            self._add_stat("unobservable", function_name, reason, num_events=None)

    def note_not_inlined(self, function_name: str) -> None:
        """A function with loops or branches of graph mode is kept as a call."""
        reason = (
            "holds loops or branches of graph mode and is not inlined while recording: where several calls of it run "
            "in one step, call_site does not tell their rows apart"
        )
        self._add_stat("changed", function_name, reason, num_events=None)

    # What is recorded of which op.

    def is_chosen(self, op_type: str, op_name: str | None) -> bool:
        """Returns whether the user chose an op's values."""
        if self.settings.values is None:
            return False
        try:
            return self.settings.values.chooses(op_type, op_name)
        except Exception as error:  # the program's own callable
            if "values" not in self._failures:
                self._failures.add("values")
                self.note("failed", "values", f"the callable {self.settings.values.text} raised {_sentence(error)}")
            return False

    def reason_not_recorded(self, op_type: str, dtype_number: int, *, is_chosen: bool) -> str | None:
        """Returns None for a tensor to record, else a `not_recorded_reason`."""
        return self.settings.reason_not_recorded(op_type, dtype_number, is_chosen=is_chosen)

    def _level_of_op(self, op_type: str | bytes) -> int:
        """What is recorded of the tensors of eager ops of a type: 0 nothing, 1 their facts, 2 their elements too."""
        text = op_type.decode() if isinstance(op_type, bytes) else op_type
        return 2 if self.is_chosen(text, None) else int(self.settings.covers_op(text))

    # Live stop.

    def _make_stop(self, judge: GraphJudge) -> Stop:
        from tfdbg_arrow.writer.hooks import runtime, stop_errors

        def find(event_indexes: Sequence[int]) -> Sequence[Origin]:
            self.flush()
            return _find_origins(self.settings.logdir, self.run_id, event_indexes)

        noted: set[tuple[str, str]] = set()

        def note(subject: str, reason: str) -> None:
            if (subject, reason) not in noted:
                noted.add((subject, reason))
                self._add_stat("masked", subject, reason, num_events=None)

        watch = EagerWatch(
            tensor_id=runtime.eager_tensor_id,
            set_watching=self._backend.set_watching,
            is_function=lambda name: self.registry.graph_id_of_function(name) is not None,
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
            let_pass=stop_errors.let_pass,
            on_error=self._note_failure,
        )

    def _end_call_and_tell(self, execution_index: int, outputs: Sequence[Any] | None, /) -> None:
        self._backend.end_call(execution_index, outputs)
        if self.stop is not None and outputs is not None:
            self.stop.after_call()

    # What was not recorded.

    def _note_unobserved(self, function_name: str) -> None:
        """Tells once that a function was not made while recording; not where that failed, which has been told."""
        if function_name.encode() in self._called:
            return
        self._called.add(function_name.encode())
        reason = (
            "was traced before recording began and is held as a concrete function: what runs inside it is not "
            "recorded; call the tf.function itself, or trace it after enable()"
        )
        self.note("unobservable", function_name, reason)

    def note(self, stat: str, subject: str, reason: str, *, num_events: int | None = None) -> None:
        """Adds a row to capture_stat, and warns the first time for each kind."""
        self._add_stat(stat, subject, reason, num_events=num_events)
        self._warn_once(f"{stat}: {subject}: {reason}", key=f"{stat}: {reason}")

    def _add_stat(self, stat: str, subject: str, reason: str, *, num_events: int | None) -> None:
        row: Row = {"stat": stat, "subject": as_utf8(subject), "reason": as_utf8(reason), "num_events": num_events}
        self._sink.append("capture_stat", [{"event_index": self._backend.num_events(), **now_columns(), **row}])

    def _note_failure(self, what: str, error: object) -> None:
        self.note("failed", what, _sentence(error))

    def _warn_once(self, message: str, *, key: str | None = None) -> None:
        if (key or message) not in self._failures:
            self._failures.add(key or message)
            # Never an exception, even where the program turns warnings into errors.
            try:
                warnings.warn(f"tfdbg_arrow: {message}", RuntimeWarning, stacklevel=2)
            except RuntimeWarning:
                sys.stderr.write(f"tfdbg_arrow: {message}\n")

    # Labels.

    def mark(self, step: int | None, labels: dict[str, object]) -> None:
        """Labels the events from here on."""
        event_index = self._backend.num_events()
        if step is not None:
            self._step = step
            self._enter_step(step)
        values = {**({"step": step} if step is not None else {}), **labels}
        common = {"event_index": event_index, **now_columns(), "step": self._step}
        rows = [{**common, "label": as_utf8(name), "value": _label_text(value)} for name, value in values.items()]
        self._sink.append("mark", rows)

    def _set_paused(self, paused: bool) -> None:
        self._backend.set_paused(paused)
        self._session_runs.set_paused(paused)

    def _enter_step(self, step: int) -> None:
        """Labels the events from here on, and leaves them out where the schedule does."""
        gate = self._gate
        if gate is None:
            self._backend.set_step(step)
            return
        had_skipped = gate.num_skipped > 0
        if gate.enter(step):
            self._backend.set_step(step)
            self._set_paused(False)
            return
        self._set_paused(True)
        self._backend.set_step(step)
        if not had_skipped:
            self._add_stat("disabled", f"step {step}", gate.reason, num_events=None)

    def _run_row(self, *, is_clean_end: bool) -> Row:
        import numpy
        import tensorflow as tf

        settings = self.settings
        keras = sys.modules.get("keras")
        return {
            "run_id": self.run_id,
            **wall_time_columns(self._start_ns),
            "end_wall_time_ns": time.time_ns() if is_clean_end else None,
            "is_clean_end": is_clean_end,
            "format_version": FORMAT_VERSION,
            "tfdbg_arrow_version": __version__,
            "tensorflow_version": tf.__version__,
            "keras_version": getattr(keras, "__version__", None),
            "python_version": platform.python_version(),
            "platform": platform.platform(),
            "host_name": socket.gethostname(),
            "pid": os.getpid(),
            "worker": _worker_of(os.environ.get("TF_CONFIG")) or _worker_at(self._local_task()),
            "command_line": as_utf8(to_json(sys.orig_argv)),
            "working_directory": _working_directory(),
            "tensor_debug_mode": settings.mode.name,
            "circular_buffer_size": settings.circular_buffer_size,
            "op_regex": settings.op_regex.pattern if settings.op_regex is not None else None,
            "tensor_dtypes": settings.tensor_dtypes_text,
            "health_backend": self._backend.name,
            "settings": to_json(
                {
                    "requested_health_backend": settings.health_backend,
                    "spool_size_bytes": settings.spool_size_bytes,
                    "dtypes": sorted(settings.dtypes),
                    "xla": settings.xla,
                    "values": settings.values.text if settings.values is not None else None,
                    "steps": str(settings.steps) if settings.steps is not None else None,
                    "max_bytes": settings.max_bytes,
                    "dump_on": settings.dump_on,
                    "dump_after": settings.dump_after if settings.dump_on is not None else None,
                    "numpy_version": numpy.__version__,
                    "num_cpus": os.cpu_count(),
                    "on_nonfinite": settings.on_nonfinite if isinstance(settings.on_nonfinite, str) else "callable",
                }
            ),
        }


def enable(
    logdir: str | os.PathLike[str],
    tensor_debug_mode: str = "FULL_HEALTH",
    circular_buffer_size: int = -1,
    op_regex: str | None = None,
    tensor_dtypes: Collection[Any] | Callable[[Any], bool] | None = None,
    *,
    health_backend: str = "auto",
    spool_size_bytes: int = DEFAULT_SPOOL_SIZE_BYTES,
    xla: str = "observe",
    storage_options: Mapping[str, Any] | None = None,
    local_dir: str | os.PathLike[str] | None = None,
    upload_timeout_s: float = DEFAULT_UPLOAD_TIMEOUT_S,
    max_local_bytes: int = DEFAULT_MAX_LOCAL_BYTES,
    values: str | re.Pattern[str] | Choice | None = None,
    steps: object = None,
    max_bytes: int | None = None,
    dump_on: str | None = None,
    dump_after: int | None = None,
    on_nonfinite: str | Callable[[Any], object] = "record",
) -> str | None:
    """Records this process into a logdir until disable() or its end.

    Eager ops, function calls, graphs and the health of tensors are recorded, from all threads.
    Functions traced earlier are traced again at their next call.

    Args:
        logdir: Directory to write to, or a URL that fsspec opens, as `s3://bucket/path`; made if missing. It may hold
            other runs. To a URL, parts are sent in the background while they are made.
        tensor_debug_mode: How much of each tensor: NO_TENSOR, CURT_HEALTH, CONCISE_HEALTH, FULL_HEALTH,
            FULL_NUMERICS, SHAPE or FULL_TENSOR (spec/README.md says which columns each fills).
        circular_buffer_size: Keep only so many last executions and graph tensors, and what lies around the first
            infinity and the first NaN; 0 or less: all.
        op_regex: Record tensors only of ops whose type matches (`re.match`).
        tensor_dtypes: Record tensors only of these dtypes, or for which the callable is true of their dtype;
            None: the mode's own, which for health modes are the floating and complex ones.
        health_backend: `native` (the compiled core), `tensorflow` (TensorFlow's own summary op, also
            on accelerators), or `auto`.
        spool_size_bytes: Size of the file through which events pass.
        xla: `observe`: functions with jit_compile=True run without XLA, and are recorded; `keep`: they stay compiled,
            and what runs inside them is not recorded: `Logdir.coverage()` lists it.
        storage_options: fsspec's arguments for the URL, as `{"endpoint_url": …}`; None: what its configuration and
            the store's client find.
        local_dir: Directory for the local files of a recording to a URL, of which each gets a directory of its own
            there; None: that of the environment variable TFDBG_ARROW_LOCAL_DIR, else that for temporary files.
        upload_timeout_s: Seconds that the end of a recording to a URL waits for the last uploads; what is not sent by
            then is kept in the local directory, and a warning says how to send it.
        max_local_bytes: Bytes of parts that a recording to a URL keeps locally. Beyond them the oldest events that
            could not be sent are dropped, and counted in `capture_stat`. The spool, and a part that is being merged,
            come on top.
        values: Keep the elements of the tensors of these ops, and only the health of the others: a regular expression
            that the op's name or type matches (`re.match`), or a callable that takes (op_type, op_name). An eager op
            has no name: None, and it is asked once for a type. No other filter leaves chosen ops out.
        steps: Record only these training steps, as mark(step=...) or MarkCallback tell them: a number k for every
            k-th, a range or slice, text such as "0:100,1000:,::10" (in which a number alone is that one step), or a
            list of these. What runs before the first mark is recorded.
        max_bytes: What the parts of executions and tensors may take on disk: beyond it the middle of the run is
            dropped, the first half of these bytes and the last are kept, and so is what lies around the first
            infinity and the first NaN. At least 1 MiB; None: no bound.
        dump_on: `nonfinite`: hold the last `circular_buffer_size` executions and graph tensors in memory, and write
            them only when a bad value comes up. Of a healthy run no execution and no tensor is written.
        dump_after: With dump_on, write so many executions and graph tensors after the bad one; None: as many as
            the buffer holds.
        on_nonfinite: What a NaN or an infinity does: `record`, only recorded; `raise`, the program is stopped with a
            NonFiniteError at the op where it came up; a callable, it is called with the NonFinite, once for each
            origin and at most 100 times, in the thread that runs the program, and what it raises goes to the program.
            Values that nothing computes with, as those that `tf.where` leaves out, do neither (docs/live_stop.md).

    Returns:
        The run's id; None where the environment variable TFDBG_ARROW=0 turned recording off.

    Raises:
        SettingError: A setting cannot be used.
        LogdirError: The logdir cannot be written.
        RecordingError: A recording is in force already, or cannot start.
        MissingDependencyError: TensorFlow, or what opens the URL, is not installed.
    """
    return start(
        Request(
            logdir=logdir,
            tensor_debug_mode=tensor_debug_mode,
            circular_buffer_size=circular_buffer_size,
            op_regex=op_regex,
            tensor_dtypes=tensor_dtypes,
            health_backend=health_backend,
            spool_size_bytes=spool_size_bytes,
            xla=xla,
            storage_options=storage_options,
            local_dir=local_dir,
            upload_timeout_s=upload_timeout_s,
            max_local_bytes=max_local_bytes,
            values=values,
            steps=steps,
            max_bytes=max_bytes,
            dump_on=dump_on,
            dump_after=dump_after,
            on_nonfinite=on_nonfinite,
        )
    )


def is_turned_off() -> bool:
    """Returns whether the environment variable TFDBG_ARROW=0 turned all recording off."""
    return os.environ.get("TFDBG_ARROW") == "0"


def check(request: Request) -> Settings:
    """Returns a request as settings, and makes the logdir; raises what enable() does."""
    return request.check(_tensorflow().as_dtype)


def _tensorflow() -> Any:
    try:
        import tensorflow as tf
    except ImportError as error:
        raise MissingDependencyError(
            "recording needs TensorFlow, which is not installed; run: pip install 'tfdbg-arrow[tensorflow]'"
        ) from error
    return tf


def start(request: Request) -> str | None:
    """Starts a recording; returns and raises what enable() does."""
    global _active
    if is_turned_off():
        return None
    _tensorflow()
    with _lock:
        if _active is not None:
            raise RecordingError(
                f"a recording to {_active.settings.shown_logdir} is in force; call tfdbg_arrow.disable() before another"
            )
        settings = check(request)
        try:
            recording = Recording(settings)
            recording.start()
        except Exception as error:
            if settings.remote is not None:
                shutil.rmtree(settings.logdir, ignore_errors=True)
            if not isinstance(error, OSError) or isinstance(error, TfdbgArrowError):
                raise
            raise LogdirError(
                f"the logdir {settings.logdir} cannot be written: {error}; free space or choose another path"
            ) from error
        _active = recording
        _register_at_exit()
        return recording.run_id


def disable() -> None:
    """Ends the recording in force and writes what is left; does nothing if there is none.

    Functions instrumented meanwhile run on; at their next call they are traced without recording.

    Raises:
        NonFiniteError: Under `on_nonfinite="raise"`, a bad value has come up that no op has taken yet.
    """
    recording = _active
    try:
        if recording is not None and recording.stop is not None:
            recording.stop.at_boundary()
    finally:
        end()


def end() -> None:
    """Ends the recording in force as disable() does, whatever has come up."""
    global _active
    with _lock:
        recording, _active = _active, None
    if recording is not None:
        recording.close()


def stop_error() -> NonFiniteError | None:
    """Returns the first error with which the recording in force has stopped the program; None if it has not."""
    recording = _active
    return None if recording is None or recording.stop is None else recording.stop.first_error


def flush() -> None:
    """Writes everything recorded so far to the logdir; does nothing if nothing records.

    Raises:
        NonFiniteError: Under `on_nonfinite="raise"`, a bad value has come up that no op has taken yet.
    """
    recording = _active
    if recording is not None:
        recording.flush()
        if recording.stop is not None:
            recording.stop.at_boundary()


@contextmanager
def capture(logdir: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Iterator[Capture]:
    """Records the body of a `with` statement; takes the arguments of enable(), raises its errors and disable()'s."""
    run_id = enable(logdir, *args, **kwargs)
    try:
        yield Capture(logdir=_shown_location(logdir) if run_id is not None else None, run_id=run_id)
    except BaseException:
        if run_id is not None:
            end()
        raise
    if run_id is not None:
        disable()


def mark(step: int | None = None, **labels: object) -> None:
    """Labels the events from here on with a training step and with labels of your own.

    Does nothing while nothing records.

    Args:
        step: The training step: an integer within 64 bits (a scalar tensor or NumPy integer will do).
        **labels: Names and values, kept as text, as `epoch=3, phase="validation"`.

    Raises:
        SettingError: The step is no integer.
        NonFiniteError: Under `on_nonfinite="raise"`, a bad value has come up that no op has taken yet.
    """
    recording = _active
    if recording is None:
        return
    if recording.stop is not None:
        recording.stop.at_boundary()
    recording.mark(None if step is None else _as_step(step), labels)


def is_recording() -> bool:
    """Returns whether a recording is in force in this process."""
    return _active is not None


def run_id() -> str | None:
    """Returns the id of the run that is being recorded, None if there is none."""
    recording = _active
    return None if recording is None else recording.run_id


def _as_step(step: Any) -> int:
    try:
        number = int(step)
        is_whole = bool(number == step)
    except (TypeError, ValueError, OverflowError):
        is_whole = False
    if not is_whole or not -(2**63) < number < 2**63:
        raise SettingError(f"the step of mark() is {step!r}; expected an integer within 64 bits")
    return number


def _shown_location(logdir: str | os.PathLike[str]) -> Path | str:
    location = parse_location(logdir)
    return location if isinstance(location, Path) else location.url


def _end_at_exit() -> None:
    try:
        disable()
    except NonFiniteError as error:  # nobody is left to catch it
        sys.stderr.write(f"tfdbg_arrow: {error}\n")


def _register_at_exit() -> None:
    global _is_registered_at_exit
    if not _is_registered_at_exit:
        _is_registered_at_exit = True
        atexit.register(_end_at_exit)
        os.register_at_fork(after_in_child=_after_fork_in_child)


def _after_fork_in_child() -> None:
    """A fork's child records nothing: the spool and the sink's thread are its parent's."""
    global _active, _lock
    recording, _active = _active, None
    _lock = threading.RLock()
    if recording is not None:
        recording.abandon()


def _worker_of(tf_config: str | None) -> str | None:
    """Task type and index from the environment variable that TensorFlow's clusters set."""
    try:
        task = json.loads(tf_config or "{}").get("task", {})
        return f"{task['type']}:{task['index']}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _worker_at(task: str) -> str | None:
    """Task type and index from an address, as `/job:chief/replica:0/task:0`."""
    parts = dict(part.split(":", 1) for part in task.split("/") if ":" in part)
    return f"{parts['job']}:{parts['task']}" if "job" in parts and "task" in parts else None


def _working_directory() -> str:
    try:
        return as_utf8(os.getcwd())
    except OSError:
        return ""


def _label_text(value: object) -> str:
    try:
        return as_utf8(str(value))
    except Exception:  # the program's own __str__
        return f"<{type(value).__qualname__} that cannot be shown>"


def _sentence(error: object) -> str:
    return f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
