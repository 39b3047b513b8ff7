"""A Keras callback that labels recorded events with the step, epoch and phase of the training."""

from __future__ import annotations

from typing import Any

import keras

from tfdbg_arrow.writer.active_recording import end_step, mark
from tfdbg_arrow.writer.recording.marks import FitLabels


class MarkCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Calls mark() before each batch and epoch of fit, evaluate and predict.

    A recording labels fit even without this callback. Use it if you want steps to count from 0 in each fit, or if you
    want to label evaluation and prediction outside fit.

    `step` counts the training batches of all epochs, from 0. With `steps_per_execution` above 1, Keras calls the
    callback once for several batches, which share the mark of the first batch.
    """

    def __init__(self) -> None:
        super().__init__()
        self._labels = FitLabels(lambda step, labels: mark(step=step, **labels), end_step)

    def on_train_begin(self, logs: Any = None) -> None:
        """Stores that fit has begun."""
        self._labels.train_begins()

    def on_train_end(self, logs: Any = None) -> None:
        """Stores that fit has ended."""
        self._labels.train_ends()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Labels the epoch."""
        self._labels.epoch_begins(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Labels the training step."""
        self._labels.batch_begins(batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Labels the metrics, and adds the steps of the call to the count."""
        self._labels.batch_ends(batch, self.params, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Labels the metrics of the epoch."""
        self._labels.epoch_ends(logs)

    def on_test_begin(self, logs: Any = None) -> None:
        """Labels evaluation."""
        self._labels.phase_begins("test")

    def on_test_end(self, logs: Any = None) -> None:
        """Labels the return to training, if evaluation ran within fit."""
        self._labels.test_ends()

    def on_predict_begin(self, logs: Any = None) -> None:
        """Labels prediction."""
        self._labels.phase_begins("predict")
