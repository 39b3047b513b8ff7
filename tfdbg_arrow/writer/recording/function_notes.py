"""What is told of functions that are not recorded, or run otherwise than they would."""

from __future__ import annotations

from tfdbg_arrow.writer.recording.capture_stats import CaptureStats, sentence_of


class FunctionNotes:
    """Tells of functions, for one recording.

    Args:
        stats: Where it is told.

    Attributes:
        settled: The functions that need no more telling that they are not recorded: it has been told, or they are.
    """

    def __init__(self, stats: CaptureStats) -> None:
        self._stats = stats
        self._remote: set[str] = set()
        self.settled: set[bytes] = set()

    def unobserved(self, function_name: str) -> None:
        """Tells once that a function was not made while recording; not where that failed, which has been told."""
        if function_name.encode() in self.settled:
            return
        self.settled.add(function_name.encode())
        reason = (
            "was traced before recording began and is held as a concrete function: what runs inside it is not "
            "recorded; call the tf.function itself, or trace it after enable()"
        )
        self._stats.note("unobservable", function_name, reason)

    def not_instrumented(self, function_name: str, error: Exception) -> None:
        """Tells that a function could not be made to record."""
        self.settled.add(function_name.encode())
        self._stats.note("failed", function_name, f"its graph could not be instrumented: {sentence_of(error)}")

    def names_unknown(self, function_name: str, error: Exception) -> None:
        """Tells that the names of a function's calls could not be read."""
        self._stats.note("failed", function_name, f"its call sites could not be read: {sentence_of(error)}")

    def without_xla(self, function_name: str) -> None:
        """Tells that a function that asked for XLA is compiled without it."""
        reason = "runs without XLA while recording: compiled ops cannot be observed"
        self._stats.note("changed", function_name, reason)

    def kept_xla(self, function_name: str) -> None:
        """Tells that a function that asked for XLA is compiled with it, and not recorded."""
        # No warning: that is what the user asked for.
        reason = "is compiled by XLA, as xla='keep' asks: the ops inside it are not recorded"
        self._stats.add("unobservable", function_name, reason)

    def xla_refused(self, function_name: str, error: Exception) -> None:
        """Tells that XLA does not compile a function with what we add to it."""
        reason = f"is compiled by XLA, which refuses the summaries of its tensors: {sentence_of(error)}"
        self._stats.note("unobservable", function_name, reason)

    def left_out_of_xla(self, function_name: str, reason: str) -> None:
        """Tells that a function that XLA compiles is not recorded."""
        self._stats.add("unobservable", function_name, f"{reason}: not recorded, since XLA compiles it")

    def not_copied(self, function_name: str, error: object) -> None:
        """Tells that a function cannot be recorded inside XLA."""
        self._stats.note("failed", function_name, f"what XLA compiles in it could not be recorded: {error}")

    def not_optimized(self, function_name: str) -> None:
        """Tells that TensorFlow's optimizer failed for a function, which ran as it was."""
        reason = (
            "ran unrecorded: TensorFlow's optimizer, which makes functions record, failed for it (TensorFlow's log has "
            "the reason); record it with graphs='traced'"
        )
        self._stats.note("unobservable", function_name, reason)

    def remote(self, function_name: str, device_name: str | None) -> None:
        """Tells once that a function is made for, or called on, a device of another process."""
        if function_name not in self._remote:
            self._remote.add(function_name)
            self.settled.add(function_name.encode())
            reason = f"runs in another process{'' if device_name is None else f', on {device_name}'}: not recorded"
            self._stats.add("unobservable", function_name, reason)

    def not_inlined(self, function_name: str) -> None:
        """Tells that a function with loops or branches of graph mode is kept as a call."""
        reason = (
            "holds loops or branches of graph mode and is not inlined while recording: where several calls of it run "
            "in one step, call_site does not tell their rows apart"
        )
        self._stats.add("changed", function_name, reason)

    def connected(self, local_task: str) -> None:
        """Tells that the process is connected to others, whose devices it can use."""
        reason = "tensors and ops on devices of other processes are not recorded; this process is " + local_task
        self._stats.add("unobservable", "other processes", reason)
