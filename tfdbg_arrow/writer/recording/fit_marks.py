"""Labels the training by Keras's fit with step, epoch and phase."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

AddMark = Callable[[int | None, dict[str, object]], None]
"""`(step, labels)`: labels the following events."""


class FitLabels:
    """Labels the batches, epochs and phases that Keras reports to a callback.

    `step` counts the training batches of all epochs, from 0. If `steps_per_execution` is above 1, Keras reports several
    batches at once, and they share the label of the first.

    Args:
        mark: Labels the events.
    """

    def __init__(self, mark: AddMark) -> None:
        self._mark = mark
        self._step = 0
        self._first_batch: int | None = None
        self._is_in_fit = False

    def train_begins(self) -> None:
        """Notes that fit has begun."""
        self._is_in_fit = True

    def train_ends(self) -> None:
        """Notes that fit has ended; a batch that raised an error counts as one step."""
        self._is_in_fit = False
        if self._first_batch is not None:
            self._step += 1
            self._first_batch = None

    def epoch_begins(self, epoch: int) -> None:
        """Labels the epoch."""
        self._mark(None, {"epoch": epoch, "phase": "train"})

    def batch_begins(self, batch: int) -> None:
        """Labels the training step."""
        self._first_batch = batch
        self._mark(self._step, {})

    def batch_ends(self, batch: int, params: Mapping[str, Any] | None) -> None:
        """Counts the steps of the call, from its first batch to this one, but not beyond the last of the epoch."""
        num_batches = (params or {}).get("steps")
        last = batch if num_batches is None else min(batch, num_batches - 1)
        first, self._first_batch = self._first_batch, None
        self._step += max(last - (last if first is None else first), 0) + 1

    def phase_begins(self, phase: str) -> None:
        """Labels evaluation or prediction."""
        self._mark(None, {"phase": phase})

    def test_ends(self) -> None:
        """Labels the return to training if fit is running."""
        if self._is_in_fit:
            self._mark(None, {"phase": "train"})


class FitMarks:
    """Labels every fit of a recording that no MarkCallback labels; the step count continues from one fit to the next.

    A fit that begins while another fit runs, in the same or another thread, counts as part of the first.

    Args:
        mark: Labels the events.
    """

    def __init__(self, mark: AddMark) -> None:
        self._labels = FitLabels(mark)
        self._lock = threading.Lock()
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
        self._labels.train_ends()
        with self._lock:
            self._thread = self._callbacks = None

    def labels_for(self, callbacks: object) -> FitLabels | None:
        """Returns the labels for a list of callbacks; None if the list belongs to a fit that is not labeled."""
        if self._thread != threading.get_ident():
            return None
        if self._callbacks is None:
            self._callbacks = callbacks
        return self._labels if self._callbacks is callbacks else None
