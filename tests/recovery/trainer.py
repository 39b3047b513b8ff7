"""A TensorFlow training that crashes or is killed.

When run as a program, this module reads lines of `LOGDIR COUNTER RECORDER NUM_STEPS HOW`. For each line, this process
forks a child that trains. This process prints the child's process ID, another line once the child has trained a step,
and the exit status once the child is dead. The child counts its trained steps in a file that it shares with the killer.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import numpy as np

FOR_EVER = 1_000_000
BAD_STEP = 5
LAST_STEP_OF_SUICIDES = 8
RECORDERS = ("tfdbg_arrow", "debugger_v2", "debugger_v2_circular")


class Trainer:
    """Controls the program of this module from another process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.recovery.trainer"],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(
        self, directory: Path, *, recorder: str = "tfdbg_arrow", num_steps: int = FOR_EVER, how: str = "-"
    ) -> int:
        """Starts a training and waits until it has trained one step.

        Args:
            directory: Directory for the logdir and the counter of the training.
            recorder: One of RECORDERS. The recorder records the training in full.
            num_steps: Number of steps to train.
            how: How the training crashes after a few steps: `segv`, `exit` or `abort`. `-` means that the training does
                not crash.

        Returns:
            The process ID of the training.
        """
        self._counter = directory / "counter"
        self._counter.write_bytes(bytes(8))
        assert self._process.stdin is not None
        line = f"{directory / 'logdir'} {self._counter} {recorder} {num_steps} {how}\n"
        self._process.stdin.write(line)
        self._process.stdin.flush()
        pid = int(self._line())
        assert self._line() == "trained"
        return pid

    def end(self) -> tuple[int, int]:
        """Waits until the training is dead. Returns its exit status and the number of steps that it trained."""
        status = int(self._line())
        return status, int(np.frombuffer(self._counter.read_bytes(), np.int64)[0])

    def close(self) -> None:
        self._process.communicate(timeout=60)

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def train(logdir: str, counter: str, recorder: str, num_steps: str, how: str) -> None:
    """Trains for `num_steps` steps, or until the process crashes or is killed."""
    import tensorflow as tf

    import tfdbg_arrow

    with open(counter, "r+b") as file:
        done = np.frombuffer(mmap.mmap(file.fileno(), 8), np.int64)
    if recorder == "tfdbg_arrow":
        tfdbg_arrow.enable(logdir, "FULL_TENSOR")
    else:
        options = {} if recorder == "debugger_v2_circular" else {"circular_buffer_size": -1}
        tf.debugging.experimental.enable_dump_debug_info(logdir, tensor_debug_mode="FULL_HEALTH", **options)
    weight = tf.Variable(tf.ones([2, 2]))

    @tf.function
    def train_step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.math.log(x @ weight))
        weight.assign_sub(0.01 * tape.gradient(loss, weight))
        return loss

    for step in range(int(num_steps)):
        if recorder == "tfdbg_arrow":
            tfdbg_arrow.mark(step=step)
        train_step(tf.ones([1, 2]) * (4.5 - step))
        done[0] = step + 1
        if step == 0:
            print("trained", flush=True)
        if step == LAST_STEP_OF_SUICIDES:
            end_by(how)
    if recorder == "tfdbg_arrow":
        tfdbg_arrow.disable()
    else:
        tf.debugging.experimental.disable_dump_debug_info()


def end_by(how: str) -> None:
    if how == "segv":
        ctypes.string_at(0)
    elif how == "exit":
        os._exit(7)
    elif how == "abort":
        os.abort()


def train_and_leave(*arguments: str) -> NoReturn:
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 2)
    train(*arguments)
    os._exit(0)


def main() -> None:
    import tensorflow as tf  # noqa: F401  # imported once here instead of in each child

    import tfdbg_arrow  # noqa: F401

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            train_and_leave(*line.split())
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
