"""A training with disturbances at given steps.

The program prints the loss of each step with all digits, as soon as the step is done.

`python -m tests.chaos.program CASE [LOGDIR]`: CASE is a JSON object, see `tests.chaos.run`. Without LOGDIR, the
training is not recorded. The disturbances are the same without a recording, but disturbances of the recording itself
then do nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ["TF_DETERMINISTIC_OPS"] = "1"

import keras
import numpy as np
import tensorflow as tf

import tfdbg_arrow
from tests.faults.shim import FOR_EVER, SHORT, Shim
from tfdbg_arrow.errors import TfdbgArrowError

_DATA = np.random.default_rng(1).normal(size=(16, 8)).astype(np.float32)


def eager(steps: int) -> Iterator[float]:
    """Trains with eager ops."""
    weights = tf.Variable(tf.random.stateless_normal([8, 4], [1, 2]))
    for _ in range(steps):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.tanh(_DATA @ weights) - 0.5))
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        yield float(loss)


def function(steps: int) -> Iterator[float]:
    """Trains in a tf.function with a loop and a conditional, and makes a NaN in the middle of the training."""
    weights = tf.Variable(tf.random.stateless_normal([8, 4], [3, 4]))

    @tf.function
    def train(step: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            hidden = tf.nn.softmax(_DATA @ weights)
            for _ in tf.range(3):
                hidden = tf.tanh(hidden * 1.5)
            loss = tf.reduce_mean(tf.square(hidden - 0.3))
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        if step == steps // 2:
            loss += 0.0 * tf.reduce_sum(tf.math.log(-tf.abs(weights)))
        return loss

    for step in range(steps):
        yield float(train(tf.constant(step)))


def keras_model(steps: int) -> Iterator[float]:
    """Trains a Keras model with dropout, batch by batch."""
    keras.utils.set_random_seed(5)
    layers = [keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.3), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input([8]), *layers])
    model.compile("adam", "mse")
    for _ in range(steps):
        yield float(model.train_on_batch(_DATA, _DATA[:, :2]))


def pipeline(steps: int) -> Iterator[float]:
    """Trains on batches of a tf.data pipeline."""
    weights = tf.Variable(tf.ones([8, 1]))
    data = tf.data.Dataset.from_tensor_slices(_DATA).repeat().map(lambda x: x * 2.0 + 1.0).batch(4)

    @tf.function
    def train(batch: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(batch @ weights))
        weights.assign_sub(0.001 * tape.gradient(loss, weights))
        return loss

    for batch in data.take(steps):
        yield float(train(batch))


TRAININGS: dict[str, Callable[[int], Iterator[float]]] = {
    "eager": eager,
    "function": function,
    "keras_model": keras_model,
    "pipeline": pipeline,
}


def _print(text: str) -> None:
    print(text, flush=True)


def _fork() -> None:
    """Forks a child that computes without TensorFlow."""
    child = os.fork()
    if child == 0:
        _print(f"child: {float(np.sum(_DATA)).hex()}")
        os._exit(5)
    _print(f"child ended with {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")


def _thread() -> None:
    """Runs eager ops and a function in another thread."""
    results: list[float] = []

    def run() -> None:
        cube = tf.function(lambda x: tf.reduce_sum(x * x * x))
        results.extend(float(cube(tf.constant(_DATA) + float(i))) for i in range(5))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    _print(f"thread: {[result.hex() for result in results]}")


def _timer(on: bool) -> None:
    """Sends the process a signal every few milliseconds. The handler of the signal has no visible effect."""
    signal.signal(signal.SIGALRM, lambda *_: gc.get_count())
    signal.setitimer(signal.ITIMER_REAL, *((0.004, 0.004) if on else (0.0, 0.0)))


def _raise_in_handler() -> None:
    """Sends a signal to this process. The handler raises an error, which the program catches."""

    def raise_error(*_: Any) -> None:
        raise TimeoutError("too slow")

    signal.signal(signal.SIGUSR1, raise_error)
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        for i in range(1000):
            tf.constant(_DATA) * float(i)
    except TimeoutError as error:
        _print(f"caught {error}")


def _interrupt_often(pauses_s: list[float]) -> None:
    """Sends SIGINT to this process, and again after each pause. The last signals come while the process ends."""
    signals = "; ".join(f"sleep {pause}; kill -INT {os.getpid()}" for pause in pauses_s)
    quiet = subprocess.DEVNULL
    subprocess.Popen(["sh", "-c", signals], stdin=quiet, stdout=quiet, stderr=quiet)
    os.kill(os.getpid(), signal.SIGINT)


def _step_clock(seconds: int) -> None:
    """Moves the wall clock."""
    ctypes.CDLL(None).chaos_step_clock(seconds)


def _fail() -> None:
    raise RuntimeError("the training failed")


class _Recorder:
    """The recording of this process, if it has one."""

    def __init__(self, logdir: Path | None, settings: dict[str, Any]) -> None:
        self._logdir = logdir
        self._settings = settings
        self._number = 0

    def enable(self) -> None:
        if self._logdir is not None:
            self._number += 1
            # On a full disk, a recording cannot start.
            with contextlib.suppress(TfdbgArrowError):
                tfdbg_arrow.enable(self._logdir / str(self._number), **self._settings)

    def disable(self) -> None:
        if self._logdir is not None:
            tfdbg_arrow.disable()

    def restart(self) -> None:
        self.disable()
        self.enable()

    def disable_in_handler(self) -> None:
        """Ends the recording in a signal handler, and starts another recording."""
        signal.signal(signal.SIGUSR2, lambda *_: self.disable())
        os.kill(os.getpid(), signal.SIGUSR2)
        self.restart()

    def interrupt_enable(self, cpu_seconds: float) -> None:
        """Ends the recording, and interrupts the start of the next recording after some time.

        Then starts another one.
        """
        if self._logdir is None:
            return

        def interrupt(*_: Any) -> None:
            raise KeyboardInterrupt

        self.disable()
        signal.signal(signal.SIGVTALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, cpu_seconds)
            self.enable()
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        except KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        if not tfdbg_arrow.is_recording():
            self._number -= 1
            self.enable()

    def fill_disk(self, first: int, end: int, error: int) -> None:
        if self._logdir is not None:
            Shim().arm(self._logdir, first=first, end=end, error=error)


def main() -> None:
    """Runs the training that the command line specifies."""
    case = json.loads(sys.argv[1])
    recorder = _Recorder(Path(sys.argv[2]) if len(sys.argv) > 2 else None, case["settings"])
    actions: dict[str, Callable[..., object]] = {
        "fork": _fork,
        "thread": _thread,
        "timer": _timer,
        "raise_in_handler": _raise_in_handler,
        "collect": gc.collect,
        "restart": recorder.restart,
        "disable_in_handler": recorder.disable_in_handler,
        "interrupt_enable": recorder.interrupt_enable,
        "full_disk": lambda first, number: recorder.fill_disk(first, first + number, errno.ENOSPC),
        "disk_that_stays_full": lambda first: recorder.fill_disk(first, FOR_EVER, errno.ENOSPC),
        "short_writes": lambda first: recorder.fill_disk(first, FOR_EVER, SHORT),
        "clock": _step_clock,
        "interrupt": lambda: os.kill(os.getpid(), signal.SIGINT),
        "interrupt_often": _interrupt_often,
        "terminate": lambda: os.kill(os.getpid(), signal.SIGTERM),
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "abort": os.abort,
        "fail": _fail,
        "exit": lambda: sys.exit(3),
        "exit_at_once": lambda: os._exit(4),
    }
    recorder.enable()
    for step, loss in enumerate(TRAININGS[case["training"]](case["steps"])):
        _print(f"{step} {loss.hex()}")
        for name, *arguments in case["disturbances"].get(str(step), ()):
            actions[name](*arguments)
        if len(sys.argv) > 2:
            tfdbg_arrow.mark(step=step + 1)
    _print("the end")


if __name__ == "__main__":
    main()
