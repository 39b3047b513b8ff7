"""Decides which tensors of which ops are recorded."""

from __future__ import annotations

from tfdbg_arrow.writer.recording.capture_stats import CaptureStats, sentence_of
from tfdbg_arrow.writer.settings import Settings


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
            if not self._has_failed:
                self._has_failed = True
                self._stats.note(
                    "failed", "values", f"the callable {self._settings.values.text} raised {sentence_of(error)}"
                )
            return False

    def reason_not_recorded(self, op_type: str, dtype_number: int, *, is_chosen: bool) -> str | None:
        """Returns None for a tensor to record, otherwise a `not_recorded_reason`."""
        return self._settings.reason_not_recorded(op_type, dtype_number, is_chosen=is_chosen)

    def level_of_op(self, op_type: str | bytes) -> int:
        """Returns what is recorded of the tensors of eager ops of a type: 0 nothing, 1 facts, 2 also their elements."""
        text = op_type.decode() if isinstance(op_type, bytes) else op_type
        return 2 if self.is_chosen(text, None) else int(self._settings.covers_op(text))
