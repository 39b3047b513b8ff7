"""What does not come through the spool, told of."""

from __future__ import annotations

from tfdbg_arrow.spool.failures import Failures
from tfdbg_arrow.spool.run_files import RunFiles
from tfdbg_arrow.writer.recorder import Recorder


class SpoolLosses:
    """Notes what the spool had no room for, and what the disk refused it. Not thread-safe: its caller serialises.

    Args:
        recorder: Whose spool it is.
        files: The journals beside it.
        failures: What went wrong.

    Attributes:
        num_dropped: Records that found no room, as far as they were noted.
    """

    def __init__(self, recorder: Recorder, files: RunFiles, *, failures: Failures) -> None:
        self._recorder, self._files, self._failures = recorder, files, failures
        self.num_dropped = self._num_unkept = self._num_unwritten = 0

    def note(self) -> None:
        """Notes what was lost since the last call."""
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
        """Tells of names and rows that only this process has, as long as it lives; names are tried again."""
        names, rows = self._files.names, self._files.rows
        names.write_kept()
        unwritten = names.num_unwritten + rows.num_unwritten + self._recorder.write_names()
        if unwritten > self._num_unwritten:
            self._num_unwritten = unwritten
            why = names.last_error or rows.last_error or "the disk refused them"
            self._failures.add("journal", OSError(f"names could not be kept for the case of a crash: {why}"))
