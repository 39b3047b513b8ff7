"""Reports functions that are not recorded, or that run differently while recording."""

from __future__ import annotations

from tfdbg_arrow.writer.recording.capture_stats import CaptureStats, sentence_of


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

    def unobserved(self, function_name: str) -> None:
        """Reports once that a function was created before the recording, unless the function is settled."""
        if function_name.encode() in self.settled:
            return
        self.settled.add(function_name.encode())
        reason = (
            "was traced before recording began and is held as a concrete function: what runs inside it is not "
            "recorded; call the tf.function itself, or trace it after enable()"
        )
        self._stats.note("unobservable", function_name, reason)

    def not_instrumented(self, function_name: str, error: Exception) -> None:
        """Reports that a function could not be instrumented."""
        self.settled.add(function_name.encode())
        self._stats.note("failed", function_name, f"its graph could not be instrumented: {sentence_of(error)}")

    def names_unknown(self, function_name: str, error: Exception) -> None:
        """Reports that the names of a function's calls could not be read."""
        self._stats.note("failed", function_name, f"its call sites could not be read: {sentence_of(error)}")

    def without_xla(self, function_name: str) -> None:
        """Reports that a function with jit_compile=True runs without XLA."""
        reason = "runs without XLA while recording: compiled ops cannot be observed"
        self._stats.note("changed", function_name, reason)

    def kept_xla(self, function_name: str) -> None:
        """Reports that a function with jit_compile=True is compiled by XLA and not recorded."""
        # There is no warning, because the user asked for it.
        reason = "is compiled by XLA, as xla='keep' asks: the ops inside it are not recorded"
        self._stats.add("unobservable", function_name, reason)

    def xla_refused(self, function_name: str, error: Exception) -> None:
        """Reports that XLA does not compile a function with the ops that we add to it."""
        reason = f"is compiled by XLA, which refuses the summaries of its tensors: {sentence_of(error)}"
        self._stats.note("unobservable", function_name, reason)

    def left_out_of_xla(self, function_name: str, reason: str) -> None:
        """Reports that a function that XLA compiles is not recorded."""
        self._stats.add("unobservable", function_name, f"{reason}: not recorded, since XLA compiles it")

    def not_copied(self, function_name: str, error: object) -> None:
        """Reports that a function cannot be recorded inside XLA."""
        self._stats.note("failed", function_name, f"the part that XLA compiles could not be recorded: {error}")

    def not_optimized(self, function_name: str) -> None:
        """Reports that TensorFlow's optimizer failed for a function, which then ran without being recorded."""
        reason = (
            "ran unrecorded: TensorFlow's graph optimizer, which makes functions record, did not run for it or failed "
            "(see TensorFlow's log)"
        )
        self._stats.note("unobservable", function_name, reason)

    def remote(self, function_name: str, device_name: str | None) -> None:
        """Reports once that a function is created for, or called on, a device of another process."""
        if function_name not in self._remote:
            self._remote.add(function_name)
            self.settled.add(function_name.encode())
            reason = f"runs in another process{'' if device_name is None else f', on {device_name}'}: not recorded"
            self._stats.add("unobservable", function_name, reason)

    def connected(self, local_task: str) -> None:
        """Reports that the process is connected to others, whose devices it can use."""
        reason = "tensors and ops on devices of other processes are not recorded; this process is " + local_task
        self._stats.add("unobservable", "other processes", reason)
