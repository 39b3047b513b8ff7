"""A Keras callback that labels what is recorded with the training's own step, epoch and phase."""

from __future__ import annotations

from typing import Any

import keras

from tfdbg_arrow.writer.session import mark


class MarkCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Calls mark() before each batch and epoch of fit, evaluate and predict.

    `step` counts the training batches of all epochs, from 0. With `steps_per_execution` above 1 Keras
    calls once for several batches: they share the mark of the first.
    """

    def __init__(self) -> None:
        super().__init__()
        self._step = 0
        self._first_batch = 0
        self._is_in_fit = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Notes that fit has begun."""
        self._is_in_fit = True

    def on_train_end(self, logs: Any = None) -> None:
        """Notes that fit has ended."""
        self._is_in_fit = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Labels the epoch."""
        mark(epoch=epoch, phase="train")

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Labels the training step."""
        self._first_batch = batch
        mark(step=self._step)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts the steps of the call: from the batch that began it to this one, or to the epoch's last."""
        num_batches = (self.params or {}).get("steps")
        last = batch if num_batches is None else min(batch, num_batches - 1)
        self._step += max(last - self._first_batch, 0) + 1

    def on_test_begin(self, logs: Any = None) -> None:
        """Labels evaluation."""
        mark(phase="test")

    def on_test_end(self, logs: Any = None) -> None:
        """Labels, within fit, the return to training."""
        if self._is_in_fit:
            mark(phase="train")

    def on_predict_begin(self, logs: Any = None) -> None:
        """Labels prediction."""
        mark(phase="predict")
