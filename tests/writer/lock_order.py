"""Runs threads and finalizers under a recording, and prints which locks were taken while others were held.

The argument is the logdir. The output is a JSON object: for each lock, the locks that a thread took while it held this
one. A lock is named by the place that created it.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

PACKAGE = f"{Path(__file__).parents[2] / 'tfdbg_arrow'}/"
"""The locks that files of this directory create are observed."""
MAX_FINALIZERS = 30
"""Maximum number of finalizers that run while a thread holds the same locks."""

taken_while_held: defaultdict[str, set[str]] = defaultdict(set)


class Thread(threading.local):
    """The locks that this thread holds, and whether it runs a finalizer."""

    def __init__(self) -> None:
        self.held: list[str] = []
        self.is_finalizing = False


this_thread = Thread()


class ObservedLock:
    """A lock that notes the locks that its thread holds already."""

    def __init__(self, lock: Any, name: str) -> None:
        self._lock = lock
        self._name = name

    def acquire(self, *args: Any, **kwargs: Any) -> bool:
        for name in this_thread.held:
            if name != self._name:
                taken_while_held[name].add(self._name)
        if not self._lock.acquire(*args, **kwargs):
            return False
        this_thread.held.append(self._name)
        return True

    def release(self) -> None:
        this_thread.held.remove(self._name)
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def observed(create: Any) -> Any:
    """Returns a function that creates a lock, which is observed if the package creates it."""

    def create_observed() -> Any:
        caller = sys._getframe(1)
        path = caller.f_code.co_filename
        if not path.startswith(PACKAGE):
            return create()
        return ObservedLock(create(), f"{path.removeprefix(PACKAGE)}:{caller.f_lineno}")

    return create_observed


def main(logdir: str) -> None:
    """Records a program with two threads, whose finalizers run ops and functions."""
    threading.Lock, threading.RLock = observed(threading.Lock), observed(threading.RLock)
    import tensorflow as tf

    import tfdbg_arrow

    num_run: Counter[tuple[str, ...]] = Counter()

    def finalize(phase: str, _: object) -> None:
        held = tuple(this_thread.held)
        if phase != "stop" or this_thread.is_finalizing or num_run[held] >= MAX_FINALIZERS:
            return
        this_thread.is_finalizing = True
        num_run[held] += 1
        with tf.init_scope():
            tf.abs(1.0)
            if num_run[held] <= 2:
                tf.function(lambda x: tf.math.log(x) * 2)(tf.constant([1.0, -2.0]))
        this_thread.is_finalizing = False

    def run() -> None:
        @tf.function  # type: ignore[untyped-decorator]
        def repeat(x: tf.Tensor) -> tf.Tensor:
            for _ in tf.range(3):
                x = tf.sin(x) / x
            return tf.reduce_sum(x)

        compiled = tf.function(tf.exp, jit_compile=True)
        for size in range(3, 13):
            compiled(repeat(tf.range(float(size))))
        for number in tf.data.Dataset.range(20).map(lambda x: tf.cast(x, tf.float32) / 3, num_parallel_calls=2):
            tf.abs(number)

    gc.freeze()
    gc.set_threshold(100)  # many collections
    with tfdbg_arrow.capture(logdir):
        gc.callbacks.append(finalize)
        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gc.callbacks.remove(finalize)
    print(json.dumps({name: sorted(names) for name, names in taken_while_held.items()}))


if __name__ == "__main__":
    main(sys.argv[1])
