"""A Keras callback that labels what is recorded with the training's own step, epoch and phase."""

from __future__ import annotations

from typing import Any

import keras

from tfdbg_arrow.writer.recording.fit_marks import FitLabels
from tfdbg_arrow.writer.session import mark


class MarkCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Calls mark() before each batch and epoch of fit, evaluate and predict.

    A recording labels fit without it. Use it to have steps counted from 0 in a fit, and evaluation and prediction
    labelled outside fit too.

    `step` counts the training batches of all epochs, from 0. With `steps_per_execution` above 1 Keras
    calls once for several batches: they share the mark of the first.
    """

    def __init__(self) -> None:
        super().__init__()
        self._labels = FitLabels(lambda step, labels: mark(step=step, **labels))

    def on_train_begin(self, logs: Any = None) -> None:
        """Notes that fit has begun."""
        self._labels.train_begins()

    def on_train_end(self, logs: Any = None) -> None:
        """Notes that fit has ended."""
        self._labels.train_ends()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Labels the epoch."""
        self._labels.epoch_begins(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Labels the training step."""
        self._labels.batch_begins(batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts the steps of the call."""
        self._labels.batch_ends(batch, self.params)

    def on_test_begin(self, logs: Any = None) -> None:
        """Labels evaluation."""
        self._labels.phase_begins("test")

    def on_test_end(self, logs: Any = None) -> None:
        """Labels, within fit, the return to training."""
        self._labels.test_ends()

    def on_predict_begin(self, logs: Any = None) -> None:
        """Labels prediction."""
        self._labels.phase_begins("predict")
