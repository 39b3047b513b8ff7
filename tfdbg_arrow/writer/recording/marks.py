"""Labels events with the training step and with the program's own labels."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tfdbg_arrow.errors import (
    SettingError,
)
from tfdbg_arrow.spool.records import NO_STEP
from tfdbg_arrow.writer.backend import Backend
from tfdbg_arrow.writer.recording.capture_stats import CaptureStats
from tfdbg_arrow.writer.rows import Append, Row
from tfdbg_arrow.writer.schedule import StepGate
from tfdbg_arrow.writer.stacks import as_utf8


class Marks:
    """The labels of one recording, and the schedule that depends on them.

    Args:
        gate: Decides which steps are recorded; None means that all are.
        backend: Stores the step with each event.
        append: Takes rows for a table.
        set_paused: Stops recording ops, or resumes it.
        stats: Reports the steps that are not recorded.
    """

    def __init__(
        self,
        gate: StepGate | None,
        *,
        backend: Backend,
        append: Append,
        set_paused: Callable[[bool], None],
        stats: CaptureStats,
    ) -> None:
        self._gate = gate
        self._backend = backend
        self._append = append
        self._set_paused = set_paused
        self._stats = stats
        self._step: int | None = None
        self._has_own_steps = False

    @property
    def step(self) -> int:
        """The training step of the events; NO_STEP before the first mark with a step."""
        return NO_STEP if self._step is None else self._step

    def add(self, step: int | None, labels: dict[str, object]) -> None:
        """Labels the following events for the program."""
        self._has_own_steps = self._has_own_steps or step is not None
        self._add(step, labels)

    def add_automatic(self, step: int | None, labels: dict[str, object]) -> None:
        """Labels the following events, unless the program labels its steps itself."""
        if not self._has_own_steps:
            self._add(step, labels)

    def _add(self, step: int | None, labels: dict[str, object]) -> None:
        event_index = self._backend.num_events()
        if step is not None:
            self._step = step
            self._enter_step(step)
        values = {**({"step": step} if step is not None else {}), **labels}
        common: Row = {"event_index": event_index, "wall_time_ns": time.time_ns(), "step": self._step}
        rows = [{**common, "label": as_utf8(name), "value": _label_text(value)} for name, value in values.items()]
        self._append("mark", rows)

    def _enter_step(self, step: int) -> None:
        """Sets the step of the following events, and pauses the recording if the schedule leaves the step out."""
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
            self._stats.add("disabled", f"step {step}", gate.reason)

    def close(self) -> None:
        """Reports how many steps were not recorded."""
        if self._gate is not None and self._gate.num_skipped:
            self._stats.add("disabled", "steps", self._gate.total)


def as_step(step: Any) -> int:
    """Converts the program's step to an integer.

    Raises:
        SettingError: It is not an integer.
    """
    try:
        number = int(step)
        is_whole = bool(number == step)
    except (TypeError, ValueError, OverflowError):
        is_whole = False
    if not is_whole or not -(2**63) < number < 2**63:
        raise SettingError(f"the step of mark() is {step!r}; expected an integer of at most 64 bits")
    return number


def _label_text(value: object) -> str:
    try:
        return as_utf8(str(value))
    except Exception:  # the program's own __str__
        return f"<{type(value).__qualname__} that cannot be shown>"
