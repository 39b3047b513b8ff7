"""Reports events, elements and names that the spool lost."""

from __future__ import annotations

from tfdbg_arrow.spool.failures import Failures
from tfdbg_arrow.spool.run_files import RunFiles
from tfdbg_arrow.writer.recorder import Recorder


class SpoolLosses:
    """Reports data that did not fit into the spool or could not be written to disk.

    Not thread-safe; the caller must serialise calls.

    Args:
        recorder: The recorder that owns the spool.
        files: The journals of the spool.
        failures: Collects what went wrong.

    Attributes:
        num_dropped: Number of records that did not fit and have been reported.
    """

    def __init__(self, recorder: Recorder, files: RunFiles, *, failures: Failures) -> None:
        self._recorder, self._files, self._failures = recorder, files, failures
        self.num_dropped = self._num_unkept = self._num_unwritten = 0

    def note(self) -> None:
        """Reports the losses since the last call."""
        dropped = self._recorder.num_dropped()
        if dropped > self.num_dropped:
            reason = "The spool had no room: events came faster than they were written."
            self._failures.note("dropped", "event", reason, dropped - self.num_dropped)
            self.num_dropped = dropped
        unkept = self._recorder.num_unkept_values()
        if unkept > self._num_unkept:
            error = OSError("the elements of tensors could not be written to the spool")
            self._failures.add("tensor_value", error, num_events=unkept - self._num_unkept)
            self._num_unkept = unkept
        self._note_unwritten()

    def _note_unwritten(self) -> None:
        """Reports names and rows that exist only in the memory of this process; writing names is retried first."""
        names, rows = self._files.names, self._files.rows
        names.write_kept()
        unwritten = names.num_unwritten + rows.num_unwritten + self._recorder.write_names()
        if unwritten > self._num_unwritten:
            self._num_unwritten = unwritten
            why = names.last_error or rows.last_error or "the disk did not accept them"
            self._failures.add("journal", OSError(f"names would be lost in a crash, because of a failed write: {why}"))
