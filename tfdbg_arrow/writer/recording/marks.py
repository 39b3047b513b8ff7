"""Labels events with the training step and with the program's own labels, and decides which steps are recorded.

FitMarks labels the training by Keras's fit with step, epoch and phase.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tfdbg_arrow.errors import SettingError
from tfdbg_arrow.spool.records import NO_STEP
from tfdbg_arrow.writer.recording.capture_stats import CaptureStats
from tfdbg_arrow.writer.rows import Append, Row
from tfdbg_arrow.writer.selection import Schedule

if TYPE_CHECKING:
    from tfdbg_arrow.writer.backend import Backend

AddMark = Callable[[int | None, dict[str, object]], None]
"""`(step, labels)`: labels the following events."""


class StepGate:
    """Tracks the training's steps: whether the current step is recorded, and how many steps were not recorded.

    Args:
        schedule: The schedule.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._step: int | None = None
        self.is_open = True
        """Whether the current step is recorded."""
        self.num_steps = 0
        """Number of steps so far; marking the same step again does not count."""
        self.num_skipped = 0
        """Number of steps that were not recorded."""

    def enter(self, step: int) -> bool:
        """Begins a step; returns whether it is recorded."""
        self.is_open = self._schedule.covers(step)
        if step != self._step:
            self._step = step
            self.num_steps += 1
            self.num_skipped += not self.is_open
        return self.is_open

    def leave(self) -> None:
        """Ends a step; the following events are recorded, like all events before the first step."""
        self.is_open = True

    @property
    def reason(self) -> str:
        """The reason why steps were not recorded."""
        return f"The steps outside of the schedule {self._schedule} were not recorded, as requested."

    @property
    def total(self) -> str:
        """The final reason, with the number of steps."""
        return (
            f"{self.num_skipped} of {self.num_steps} steps were outside of the schedule {self._schedule} and were not "
            "recorded, as requested."
        )


class Marks:
    """The labels of one recording, and the schedule that depends on them.

    Args:
        gate: Decides which steps are recorded; None means that all steps are.
        backend: Stores the step with each event.
        append: Takes rows for a table.
        set_paused: Pauses the recording of ops, or resumes it.
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
        """The training step of the events; NO_STEP before the first mark with a step, and after a fit."""
        return NO_STEP if self._step is None else self._step

    def add(self, step: int | None, labels: dict[str, object]) -> None:
        """Labels the following events as the program asks."""
        self._has_own_steps = self._has_own_steps or step is not None
        self._add(step, labels)

    def add_automatic(self, step: int | None, labels: dict[str, object]) -> None:
        """Labels the following events, unless the program labels its steps itself."""
        if not self._has_own_steps:
            self._add(step, labels)

    def end_step(self) -> None:
        """Ends the training step: the following events have no step until the next mark."""
        self._step = None
        self._backend.set_step(NO_STEP)
        if self._gate is not None:
            self._gate.leave()
            self._set_paused(False)

    def end_automatic_step(self) -> None:
        """Ends the training step, unless the program labels its steps itself."""
        if not self._has_own_steps:
            self.end_step()

    def _add(self, step: int | None, labels: dict[str, object]) -> None:
        event_index = self._backend.num_events()
        if step is not None:
            self._step = step
            self._enter_step(step)
        values = {**({"step": step} if step is not None else {}), **labels}
        common: Row = {"event_index": event_index, "wall_time_ns": time.time_ns(), "step": self._step}
        rows = [{**common, "label": name, "value": _label_text(value)} for name, value in values.items()]
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
            self._stats.add("disabled", f"step {step}", gate.reason, reason_code="schedule")

    def close(self) -> None:
        """Reports how many steps were not recorded."""
        if self._gate is not None and self._gate.num_skipped:
            self._stats.add("disabled", "steps", self._gate.total, reason_code="schedule")


def as_step(step: Any) -> int:
    """Converts the program's step to an integer.

    Raises:
        SettingError: The step is not an integer.
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
        return str(value)
    except Exception:  # the program's own __str__
        return f"<{type(value).__qualname__} that cannot be shown>"


class FitLabels:
    """Labels the batches, epochs and phases that Keras reports to a callback.

    `step` counts the training batches of all epochs, from 0. If `steps_per_execution` is above 1, Keras reports several
    batches at once, and they share the label of the first batch.

    Args:
        mark: Labels the events.
        end_step: Ends the step; called when fit ends.
    """

    def __init__(self, mark: AddMark, end_step: Callable[[], None]) -> None:
        self._mark = mark
        self._end_step = end_step
        self._step = 0
        self._first_batch: int | None = None
        self._is_in_fit = False
        self._logged: set[str] = set()
        """The keys of the logs that batches of the epoch have labeled."""

    def train_begins(self) -> None:
        """Notes that fit has begun."""
        self._is_in_fit = True

    def train_ends(self) -> None:
        """Notes that fit has ended; a batch that raised an error counts as one step."""
        self._is_in_fit = False
        if self._first_batch is not None:
            self._step += 1
            self._first_batch = None
        self._end_step()

    def epoch_begins(self, epoch: int) -> None:
        """Labels the epoch."""
        self._logged.clear()
        self._mark(None, {"epoch": epoch, "phase": "train"})

    def epoch_ends(self, logs: object) -> None:
        """Labels the metrics of the epoch that no batch has labeled, such as the metrics of the validation."""
        self._log({name: value for name, value in _log_items(logs) if name not in self._logged})

    def batch_begins(self, batch: int) -> None:
        """Labels the training step."""
        self._first_batch = batch
        self._mark(self._step, {})

    def batch_ends(self, batch: int, params: Mapping[str, Any] | None, logs: object) -> None:
        """Counts the steps of a call: from its first batch to `batch`, but not beyond the last batch of the epoch.

        Also labels the metrics whose values are on the host.
        """
        num_batches = (params or {}).get("steps")
        last = batch if num_batches is None else min(batch, num_batches - 1)
        first, self._first_batch = self._first_batch, None
        self._step += max(last - (last if first is None else first), 0) + 1
        on_host = {name: value for name, value in _log_items(logs) if _is_on_host(value)}
        self._log(on_host)
        self._logged.update(on_host)

    def _log(self, logs: Mapping[str, Any]) -> None:
        numbers = {f"logs/{name}": _number(value) for name, value in logs.items()}
        labels: dict[str, object] = {name: number for name, number in numbers.items() if number is not None}
        if labels:
            self._mark(None, labels)

    def phase_begins(self, phase: str) -> None:
        """Labels evaluation or prediction."""
        self._mark(None, {"phase": phase})

    def test_ends(self) -> None:
        """Labels the return to training if fit is running."""
        if self._is_in_fit:
            self._mark(None, {"phase": "train"})


def _log_items(logs: object) -> list[tuple[str, Any]]:
    """Returns the logs of a callback, also those in mappings inside it, as pairs of name and value."""
    items: list[tuple[str, Any]] = []
    for name, value in logs.items() if isinstance(logs, Mapping) else ():
        items += _log_items(value) if isinstance(value, Mapping) else [(str(name), value)]
    return items


def _number(value: Any) -> float | None:
    """Returns a number, or the only element of a tensor or an array of rank 0; None for anything else."""
    is_tensor = getattr(value, "shape", None) == () and not hasattr(value, "assign")  # reading a variable runs an op
    if not isinstance(value, (int, float)) and not is_tensor:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):  # a string
        return None


def _is_on_host(value: Any) -> bool:
    """Returns whether a value can be read without waiting for another device."""
    return isinstance(value, (int, float)) or "CPU" in str(getattr(value, "device", "CPU"))


class FitMarks:
    """Labels every fit of a recording that no MarkCallback labels; the step count continues from one fit to the next.

    A fit that begins while another fit runs, in the same or another thread, counts as part of the first fit.

    Args:
        mark: Labels the events.
        end_step: Ends the step; called when a fit ends.
    """

    def __init__(self, mark: AddMark, end_step: Callable[[], None]) -> None:
        self._labels = FitLabels(mark, end_step)
        self._lock = threading.RLock()  # reentrant, because a signal handler can begin a fit, too
        self._thread: int | None = None
        self._callbacks: object = None

    def begin(self) -> bool:
        """Notes that a fit begins; returns True if it is labeled, and then end() must be called."""
        with self._lock:
            if self._thread is not None:
                return False
            self._thread = threading.get_ident()
            return True

    def end(self) -> None:
        """Notes that the fit has ended."""
        try:
            self._labels.train_ends()
        finally:
            with self._lock:
                self._thread = self._callbacks = None

    def labels_for(self, callbacks: object) -> FitLabels | None:
        """Returns the labels for a list of callbacks; None if the list belongs to a fit that is not labeled."""
        if self._thread != threading.get_ident():
            return None
        if self._callbacks is None:
            self._callbacks = callbacks
        return self._labels if self._callbacks is callbacks else None
