"""enable(), disable(), capture(), mark(): the recording in force, its identity and its end."""

from __future__ import annotations

import atexit
import itertools
import json
import os
import platform
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
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
from tfdbg_arrow.schema.logdir_layout import make_run_id, spool_path, value_spool_path
from tfdbg_arrow.writer.backend import Handlers, OnNonFinite, choose_backend
from tfdbg_arrow.writer.graphs import GraphRegistry, Row, now_columns, to_json, wall_time_columns
from tfdbg_arrow.writer.settings import DEFAULT_SPOOL_SIZE_BYTES, Request, Settings
from tfdbg_arrow.writer.sink import Sink
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
        logdir: Where it goes; None where TFDBG_ARROW=0 turned it off.
        run_id: Its run's id; None likewise.
    """

    logdir: Path | None
    run_id: str | None


class Recording:
    """One recording, from enable() to disable(): what the hooks call, and what it writes.

    No method that the hooks call raises: what fails is counted, said once, and left out.
    """

    def __init__(self, settings: Settings) -> None:
        from tfdbg_arrow.writer import hooks
        from tfdbg_arrow.writer.instrument import GraphInstrumenter

        self.settings = settings
        self.generation = next(_generations)
        self._start_ns = time.time_ns()
        self.run_id = make_run_id(self._start_ns, host_name=socket.gethostname(), pid=os.getpid())
        self._failures: set[str] = set()
        self._backend = choose_backend(
            settings,
            spool_path=settings.logdir / spool_path(self.run_id),
            value_path=settings.logdir / value_spool_path(self.run_id),
            generation=self.generation,
        )
        self.registry = GraphRegistry()
        judge = GraphJudge(is_used_by_graph=hooks.is_used_by_graph)
        self.stop = None if settings.on_nonfinite == "record" else self._make_stop(judge)
        self._sink = Sink(
            settings.logdir,
            self.run_id,
            recorder=self._backend,
            nodes=self.registry,
            call_graph=self.registry,
            circular_buffer_size=settings.circular_buffer_size,
            on_failure=self._warn_once,
            on_records=None if self.stop is None else self.stop.see_records,
        )
        self._backend.stack_table = StackTable(self._sink.append, original_location=hooks.original_location)
        self._instrumenter = GraphInstrumenter(
            self.registry,
            self._sink.append,
            coverage=settings,
            record_ops=self._backend.record_ops,
            make_run=hooks.make_run if settings.on_nonfinite != "raise" else hooks.make_run_before_next,
            judge=None if self.stop is None else judge.judge,
            own_result=hooks.own_result,
            intern_stack=self._backend.intern_stack,
            on_unknown_callee=self._note_unobserved,
            on_session_graph=self._note_session_graph,
        )
        self._called: set[bytes] = set()
        self.op_callback = self._backend.op_callback
        self.end_call = self._backend.end_call if self.stop is None else self._end_call_and_tell
        self._step: int | None = None
        self._hooks = hooks.Hooks(self)

    def start(self) -> None:
        """Begins to record."""
        try:
            self._sink.append("run", [self._run_row(is_clean_end=False)])
            self._sink.start()
        except Exception:
            self._backend.stop()
            self._backend.remove_files()
            raise
        handlers = Handlers(
            on_graph_op=self._instrumenter.note_creation,
            covers_op=self.settings.covers_op if self.settings.op_regex is not None else None,
            on_error=self._note_failure,
        )
        if self.stop is not None:
            handlers = replace(
                handlers, on_nonfinite=self.stop.on_eager_op, on_bad_graph_tensors=self.stop.on_bad_graph_tensors
            )
            reaction = OnNonFinite.FAIL if self.settings.on_nonfinite == "raise" else OnNonFinite.NOTE
            self._backend.set_on_nonfinite(reaction, self.run_id)
        self._backend.start(handlers)
        self._hooks.install()

    def close(self) -> None:
        """Ends recording and writes what is left."""
        self._hooks.remove()
        self._backend.stop()
        self._sink.close(run_row=self._run_row(is_clean_end=True))
        self._backend.remove_files()

    def abandon(self) -> None:
        """Forgets the recording in a fork's child, which must not write into its parent's run."""
        self._hooks.remove()
        self._backend.abandon()

    def flush(self) -> None:
        """Writes everything recorded so far."""
        self._sink.flush()

    # What the hooks call.

    def begin_call(self, function_name: bytes, inputs: Sequence[Any], num_outputs: int, /) -> int:
        """A call of a function begins; returns its execution index, -1 for none."""
        if function_name not in self._called and self.registry.graph_id_of_function(function_name.decode()) is None:
            self._note_unobserved(function_name.decode())
        self._called.add(function_name)
        return self._backend.begin_call(function_name, inputs, num_outputs)

    def before_function(self, function_name: str, graph: Any) -> None:
        """A runtime function is about to be made of a graph."""
        try:
            self._instrumenter.prepare(function_name, graph)
        except Exception as error:
            self._called.add(function_name.encode())
            self.note("failed", function_name, f"its graph could not be instrumented: {_sentence(error)}")

    def after_function(self, function_name: str, graph: Any, function_def: Callable[[], Any]) -> None:
        """A runtime function was made of a graph; `function_def` gives its FunctionDef."""
        try:
            self._instrumenter.note_names(graph, function_def)
        except Exception as error:
            self.note("failed", function_name, f"its call sites could not be read: {_sentence(error)}")

    def note_without_xla(self, function_name: str) -> None:
        """A function that asked for XLA is compiled without it."""
        self.note("changed", function_name, "runs without XLA while recording: compiled ops cannot be observed")

    # Live stop.

    def _make_stop(self, judge: GraphJudge) -> Stop:
        from tfdbg_arrow.writer import hooks

        def find(event_indexes: Sequence[int]) -> Sequence[Origin]:
            self.flush()
            return _find_origins(self.settings.logdir, self.run_id, event_indexes)

        noted: set[tuple[str, str]] = set()

        def note(subject: str, reason: str) -> None:
            if (subject, reason) not in noted:
                noted.add((subject, reason))
                self._add_stat("masked", subject, reason, num_events=None)

        watch = EagerWatch(
            tensor_id=hooks.eager_tensor_id,
            set_watching=self._backend.set_watching,
            is_function=lambda name: self.registry.graph_id_of_function(name) is not None,
            note=note,
        )
        return Stop(
            self.settings.on_nonfinite,
            logdir=self.settings.logdir,
            run_id=self.run_id,
            find=find,
            watch=watch,
            judge=judge,
            note=note,
            take_notes=self._backend.take_nonfinite_notes,
            let_pass=hooks.let_pass,
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

    def _note_session_graph(self) -> None:
        # No warning: TensorFlow itself makes such graphs, to save models.
        reason = "ops of a graph that is no function's would run in a Session, which is not recorded"
        self._add_stat("unobservable", "tf.Graph", reason, num_events=None)

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
            self._backend.set_step(step)
        values = {**({"step": step} if step is not None else {}), **labels}
        common = {"event_index": event_index, **now_columns(), "step": self._step}
        rows = [{**common, "label": as_utf8(name), "value": _label_text(value)} for name, value in values.items()]
        self._sink.append("mark", rows)

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
            "worker": _worker_of(os.environ.get("TF_CONFIG")),
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
    on_nonfinite: str | Callable[[Any], object] = "record",
) -> str | None:
    """Records this process into a logdir until disable() or its end.

    Eager ops, function calls, graphs and the health of tensors are recorded, from all threads.
    Functions traced earlier are traced again at their next call.

    Args:
        logdir: Directory to write to; made if missing. It may hold other runs.
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
        MissingDependencyError: TensorFlow is not installed.
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
            on_nonfinite=on_nonfinite,
        )
    )


def start(request: Request) -> str | None:
    """Starts a recording; returns and raises what enable() does."""
    global _active
    if os.environ.get("TFDBG_ARROW") == "0":
        return None
    try:
        import tensorflow as tf
    except ImportError as error:
        raise MissingDependencyError(
            "recording needs TensorFlow, which is not installed; run: pip install 'tfdbg-arrow[tensorflow]'"
        ) from error
    with _lock:
        if _active is not None:
            raise RecordingError(
                f"a recording to {_active.settings.logdir} is in force; call tfdbg_arrow.disable() before another"
            )
        settings = request.check(tf.as_dtype)
        try:
            recording = Recording(settings)
            recording.start()
        except TfdbgArrowError:
            raise
        except OSError as error:
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
        yield Capture(logdir=Path(logdir) if run_id is not None else None, run_id=run_id)
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


def _as_step(step: Any) -> int:
    try:
        number = int(step)
        is_whole = bool(number == step)
    except (TypeError, ValueError, OverflowError):
        is_whole = False
    if not is_whole or not -(2**63) < number < 2**63:
        raise SettingError(f"the step of mark() is {step!r}; expected an integer within 64 bits")
    return number


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
