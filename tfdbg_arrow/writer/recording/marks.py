"""Labels of events: the training step, and the program's own."""

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
    """The labels of one recording, and the schedule that asks for them.

    Args:
        gate: Follows the steps, of which some are left out; None: all are recorded.
        backend: Labels the events.
        append: Takes rows for a table.
        set_paused: Leaves out what runs from here on, or records it again.
        stats: Told of the steps that are left out.
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
        """The training step that labels the events; NO_STEP before the first mark of one."""
        return NO_STEP if self._step is None else self._step

    def add(self, step: int | None, labels: dict[str, object]) -> None:
        """Labels the events from here on, as the program asks."""
        self._has_own_steps = self._has_own_steps or step is not None
        self._add(step, labels)

    def add_automatic(self, step: int | None, labels: dict[str, object]) -> None:
        """Labels the events from here on, unless the program labels its steps itself."""
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
            self._stats.add("disabled", f"step {step}", gate.reason)

    def close(self) -> None:
        """Tells how many steps were left out."""
        if self._gate is not None and self._gate.num_skipped:
            self._stats.add("disabled", "steps", self._gate.total)


def as_step(step: Any) -> int:
    """Returns what the program gives as a step.

    Raises:
        SettingError: It is no integer.
    """
    try:
        number = int(step)
        is_whole = bool(number == step)
    except (TypeError, ValueError, OverflowError):
        is_whole = False
    if not is_whole or not -(2**63) < number < 2**63:
        raise SettingError(f"the step of mark() is {step!r}; expected an integer within 64 bits")
    return number


def _label_text(value: object) -> str:
    try:
        return as_utf8(str(value))
    except Exception:  # the program's own __str__
        return f"<{type(value).__qualname__} that cannot be shown>"
