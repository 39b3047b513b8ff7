"""Reports what was not recorded or ran differently, as rows of capture_stat and as warnings.

Errors of the program that arrive while the recorder runs are not reported: pass_on() raises them again.
"""

from __future__ import annotations

import functools
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from types import CodeType

from tfdbg_arrow.writer.own_frames import PACKAGE_DIRECTORY
from tfdbg_arrow.writer.rows import Append, Row
from tfdbg_arrow.writer.stacks import AUTOGRAPH_FILE, FrameOwners


class CaptureStats:
    """Reports what one recording left out or changed.

    Args:
        append: Takes rows for a table.
        num_events: Returns the number of events so far.
    """

    def __init__(self, append: Append, *, num_events: Callable[[], int]) -> None:
        self._append = append
        self._num_events = num_events
        self._warned: set[str] = set()

    def add(self, stat: str, subject: str, reason: str, *, reason_code: str | None = None) -> None:
        """Adds a row to capture_stat."""
        row: Row = {
            "event_index": self._num_events(),
            "wall_time_ns": time.time_ns(),
            "stat": stat,
            "subject": subject,
            "reason": reason,
            "reason_code": reason_code,
            "num_events": None,
        }
        self._append("capture_stat", [row])

    def note(self, stat: str, subject: str, reason: str, *, reason_code: str | None = None) -> None:
        """Adds a row to capture_stat, and warns once for each stat and reason."""
        self.add(stat, subject, reason, reason_code=reason_code)
        self.warn_once(f"{stat}: {subject}: {reason}", key=f"{stat}: {reason}")

    def note_failure(self, what: str, error: object) -> None:
        """Notes that something failed; `error` is the exception or a description.

        An exception of the program that arrived while the recorder ran is raised again.
        """
        pass_on(error)
        self.note("failed", what, sentence_of(error))

    def warn_once(self, message: str, *, key: str | None = None) -> None:
        """Warns once for each message, or once for each key if a key is given."""
        if (key or message) not in self._warned:
            self._warned.add(key or message)
            warn(message)


def sentence_of(error: object) -> str:
    """Returns the class and message of an exception, or the text of anything else."""
    return f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)


class FunctionNotes:
    """Reports functions, for one recording.

    Args:
        stats: Takes the reports.

    Attributes:
        settled: Functions that are recorded, or that were already reported as not recorded.
    """

    def __init__(self, stats: CaptureStats) -> None:
        self._stats = stats
        self._remote: set[str] = set()
        self.settled: set[bytes] = set()

    def unobserved(self, function_name: str, *, is_defun: bool = False) -> None:
        """Reports once that a function is not recorded, unless the function is settled.

        Args:
            function_name: The function.
            is_defun: Whether the function was made with Defun. Otherwise, the function was created before the
                recording.
        """
        if function_name.encode() in self.settled:
            return
        self.settled.add(function_name.encode())
        if is_defun:
            reason = (
                "is a function of TensorFlow's older kind (Defun), which some library functions such as tf.nn.ctc_loss "
                "make for their loops in a graph: what runs inside it is not recorded; with "
                "tf.config.run_functions_eagerly(True), such a loop runs as eager ops, which are recorded"
            )
            # There is no warning, because the program only calls the library.
            self._stats.add("unobservable", function_name, reason)
            return
        reason = (
            "was traced before recording began and is held as a concrete function: what runs inside it is not "
            "recorded; call the tf.function itself, or trace it after enable()"
        )
        self._stats.note("unobservable", function_name, reason, reason_code="traced_before")

    def not_instrumented(self, function_name: str, error: Exception) -> None:
        """Reports that a function could not be instrumented; raises an exception of the program again."""
        pass_on(error)
        self.settled.add(function_name.encode())
        self._stats.note("failed", function_name, f"its graph could not be instrumented: {sentence_of(error)}")

    def names_unknown(self, function_name: str, error: Exception) -> None:
        """Reports that the names of a function's calls could not be read; raises an exception of the program again."""
        pass_on(error)
        self._stats.note("failed", function_name, f"its call sites could not be read: {sentence_of(error)}")

    def without_xla(self, function_name: str) -> None:
        """Reports that a function with jit_compile=True runs without XLA."""
        reason = "runs without XLA while recording: its numbers can differ"
        self._stats.note("changed", function_name, reason, reason_code="ran_without_xla")

    def kept_xla(self, function_name: str) -> None:
        """Reports that a function with jit_compile=True is compiled by XLA and not recorded."""
        # There is no warning, because the user asked for it.
        reason = "is compiled by XLA, as xla='keep' asks: the ops inside it are not recorded"
        self._stats.add("unobservable", function_name, reason, reason_code="xla_kept")

    def xla_refused(self, function_name: str, error: Exception) -> None:
        """Reports that XLA does not compile a function with the ops that we add to it."""
        reason = f"is compiled by XLA, which refuses the summaries of its tensors: {sentence_of(error)}"
        self._stats.note("unobservable", function_name, reason, reason_code="xla_refused")

    def left_out_of_xla(self, function_name: str, reason: str) -> None:
        """Reports that a function that XLA compiles is not recorded."""
        text = f"{reason}: not recorded, since XLA compiles it"
        self._stats.add("unobservable", function_name, text, reason_code="xla_left_out")

    def not_copied(self, function_name: str, error: object) -> None:
        """Reports that a function cannot be recorded inside XLA; raises an exception of the program again."""
        pass_on(error)
        self._stats.note("failed", function_name, f"the part that XLA compiles could not be recorded: {error}")

    def not_optimized(self, function_name: str) -> None:
        """Reports that TensorFlow's optimizer failed for a function, which then ran without being recorded."""
        reason = (
            "ran unrecorded, so a bad value in it was not seen: TensorFlow's graph optimizer, which makes functions "
            "record, failed for it, or left it out because it calls itself; record again with graphs='traced' "
            "(tfdbg-arrow run --graphs traced) or with tf.config.run_functions_eagerly(True)"
        )
        self._stats.note("unobservable", function_name, reason)

    def remote(self, function_name: str, device_name: str | None) -> None:
        """Reports once that a function is created for, or called on, a device of another process."""
        if function_name not in self._remote:
            self._remote.add(function_name)
            self.settled.add(function_name.encode())
            reason = f"runs in another process{'' if device_name is None else f', on {device_name}'}: not recorded"
            self._stats.add("unobservable", function_name, reason, reason_code="other_process")

    def connected(self, local_task: str) -> None:
        """Reports that the process is connected to other processes, whose devices it can use."""
        reason = "tensors and ops on devices of other processes are not recorded; this process is " + local_task
        self._stats.add("unobservable", "other processes", reason, reason_code="other_devices")


def _stacklevel() -> int:
    """Returns the stacklevel for warn(): the innermost frame of the program or, without one, outside this package."""
    owners = FrameOwners()
    paths = [frame.f_code.co_filename for frame, _ in traceback.walk_stack(sys._getframe(2))]
    outside = [
        level
        for level, path in enumerate(paths, start=2)
        if not path.startswith(PACKAGE_DIRECTORY) and AUTOGRAPH_FILE not in path
    ]
    of_program = (level for level in outside if owners.owner(paths[level - 2]) == "user")
    return next(of_program, outside[0] if outside else 2)


def warn(message: str) -> None:
    """Issues a warning for the running line of the program. If the warning raises an error, writes it to stderr.

    A warning can raise an error if the program turns warnings into errors or shows them itself.

    Args:
        message: The warning, as a sentence.
    """
    try:
        warnings.warn(f"tfdbg_arrow: {message}", RuntimeWarning, stacklevel=_stacklevel())
    except Exception as error:
        pass_on(error)
        sys.stderr.write(f"tfdbg_arrow: {message}\n")


def pass_on(error: object) -> None:
    """Raises an error again if it belongs to the program; otherwise does nothing.

    Python runs the program's signal handlers wherever the main thread is, also in the recorder. Errors that a handler
    raises there must reach the program: KeyboardInterrupt, the TimeoutError of an alarm, or an exception of its own. If
    another thread sends an exception, its traceback has no frame of a handler. Of these exceptions, TimeoutError is
    recognized: it has no errno, unlike a TimeoutError that the system raises.

    Args:
        error: An exception that the recorder caught; anything else is ignored.
    """
    if isinstance(error, BaseException) and _is_of_program(error):
        raise error


def _is_of_program(error: BaseException) -> bool:
    if not isinstance(error, Exception):
        return True
    if isinstance(error, TimeoutError) and error.errno is None:
        return True
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    traceback = error.__traceback__ if handlers else None
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            return True
        traceback = traceback.tb_next
    return False


def _code_of(handler: object) -> CodeType | None:
    """Returns the code that a signal handler runs; None if it is not Python code."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    call = getattr(type(handler), "__call__", None)  # noqa: B004 - its code is needed, not whether it exists
    for function in (handler, getattr(handler, "__func__", None), call):
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            return code
    return None
