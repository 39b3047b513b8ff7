"""The labels of a training by Keras's fit: step, epoch and phase."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

AddMark = Callable[[int | None, dict[str, object]], None]
"""`(step, labels)`: labels the events from here on."""


class FitLabels:
    """Labels the batches, epochs and phases that a callback is told of.

    `step` counts the training batches of all epochs, from 0. With `steps_per_execution` above 1 Keras tells once of
    several batches: they share the label of the first.

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
        """Notes that fit has ended, be it by an exception: then the batch that failed counts as one."""
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
        """Counts the steps of the call: from the batch that began it to this one, or to the epoch's last."""
        num_batches = (params or {}).get("steps")
        last = batch if num_batches is None else min(batch, num_batches - 1)
        first, self._first_batch = self._first_batch, None
        self._step += max(last - (last if first is None else first), 0) + 1

    def phase_begins(self, phase: str) -> None:
        """Labels evaluation or prediction."""
        self._mark(None, {"phase": phase})

    def test_ends(self) -> None:
        """Labels, within fit, the return to training."""
        if self._is_in_fit:
            self._mark(None, {"phase": "train"})


class FitMarks:
    """Labels every fit of a recording that no callback of ours labels; steps are counted on from fit to fit.

    A fit within a fit, and one that runs while another thread's does, are parts of the one that began first.

    Args:
        mark: Labels the events.
    """

    def __init__(self, mark: AddMark) -> None:
        self._labels = FitLabels(mark)
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._callbacks: object = None

    def begin(self) -> bool:
        """A fit begins; returns whether it is labelled. Then end() has to be called."""
        with self._lock:
            if self._thread is not None:
                return False
            self._thread = threading.get_ident()
            return True

    def end(self) -> None:
        """The fit has ended."""
        self._labels.train_ends()
        with self._lock:
            self._thread = self._callbacks = None

    def labels_for(self, callbacks: object) -> FitLabels | None:
        """Returns what a list of callbacks is to tell of the fit that is labelled; None for a list of another fit."""
        if self._thread != threading.get_ident():
            return None
        if self._callbacks is None:
            self._callbacks = callbacks
        return self._labels if self._callbacks is callbacks else None
