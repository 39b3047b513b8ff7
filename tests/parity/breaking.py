"""Programs that TensorFlow's Debugger V2 does not record, or that crash it. Each can run under either recorder.

`python -m parity.breaking RECORDER PROGRAM DIRECTORY` runs one program and prints its result as JSON.
"""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

import tfdbg_arrow

HANGS_AFTER_SECONDS = 150
DEADLOCKED_AFTER_SECONDS = 20
NUM_LIVE_STEPS = 400


class Recorder(Protocol):
    """Common interface of the two recorders."""

    def enable(self, logdir: Path, mode: str) -> None:
        """Starts the recording."""

    def disable(self) -> None:
        """Ends the recording."""

    def flush(self) -> None:
        """Writes what was recorded."""

    def read(self, logdir: Path) -> Any:
        """Reads the whole logdir and returns some facts about it."""


PROGRAMS: dict[str, Callable[[Recorder, Path], Any]] = {}


def program(run: Callable[[Recorder, Path], Any]) -> Callable[[Recorder, Path], Any]:
    PROGRAMS[run.__name__] = run
    return run


@program
def float8(recorder: Recorder, logdir: Path) -> Any:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.cast(x, tf.dtypes.experimental.float8_e4m3fn), tf.float32)

    recorder.enable(logdir, "FULL_HEALTH")
    x = tf.constant([1.5, -2.25, 0.0, np.inf])
    small = tf.cast(x, tf.dtypes.experimental.float8_e5m2)
    results = [tf.cast(small, tf.float32).numpy().tolist(), f(x[:3]).numpy().tolist()]
    recorder.disable()
    return results


@program
def call_after_disable(recorder: Recorder, logdir: Path) -> Any:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.exp(x) * 2.0

    recorder.enable(logdir, "FULL_HEALTH")
    results = [float(f(tf.constant(0.0)))]
    held = f.get_concrete_function(tf.constant(0.0))
    recorder.disable()
    return [*results, float(held(tf.constant(0.0))), float(f(tf.constant(0.0)))]


@program
def enable_twice(recorder: Recorder, logdir: Path) -> Any:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.exp(x) * 2.0

    results = []
    for _ in range(2):
        recorder.enable(logdir, "FULL_HEALTH")
        results.append(float(f(tf.constant(0.0))))
        recorder.disable()
    return results


@program
def jit_compile(recorder: Recorder, logdir: Path) -> Any:
    @tf.function(jit_compile=True)
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.maximum(tf.math.log(x), 0.0) * 2.0

    recorder.enable(logdir, "FULL_HEALTH")
    result = f(tf.constant([1.0, 0.0])).numpy().tolist()
    recorder.disable()
    return result


@program
def full_tensor_with_alerts(recorder: Recorder, logdir: Path) -> Any:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.math.log(x)

    recorder.enable(logdir, "FULL_TENSOR")
    f(tf.constant([1.0, 0.0]))
    tf.math.log(tf.constant([0.0]))
    recorder.disable()
    return recorder.read(logdir)


@program
def arguments_and_outside_gradients(recorder: Recorder, logdir: Path) -> Any:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.sqrt(x) * 2.0

    recorder.enable(logdir, "FULL_HEALTH")
    x = tf.constant([0.0, 4.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    gradient = tape.gradient(y, x).numpy().tolist()
    recorder.disable()
    assert gradient == [float("inf"), 0.5]
    return recorder.read(logdir)


@program
def other_threads(recorder: Recorder, logdir: Path) -> Any:
    def work() -> None:
        @tf.function
        def in_thread(x: tf.Tensor) -> tf.Tensor:
            return tf.math.log(x)

        tf.sinh(in_thread(tf.constant(0.0)))

    recorder.enable(logdir, "FULL_HEALTH")
    tf.cosh(tf.constant(1.0))
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    recorder.disable()
    return recorder.read(logdir)


def _calls_until_killed(recorder: Recorder, logdir: Path, *, is_flushed: bool) -> None:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.math.log(x)

    recorder.enable(logdir, "FULL_HEALTH")
    f(tf.constant(0.0))
    if is_flushed:
        recorder.flush()
    for _ in range(100):
        f(tf.constant(0.0))
    os.kill(os.getpid(), 9)


@program
def killed(recorder: Recorder, logdir: Path) -> Any:
    _calls_until_killed(recorder, logdir, is_flushed=False)


@program
def killed_after_flush(recorder: Recorder, logdir: Path) -> Any:
    _calls_until_killed(recorder, logdir, is_flushed=True)


@program
def live_read(recorder: Recorder, logdir: Path) -> Any:
    """Returns the number of graph tensors that each reading found while functions were traced and called."""
    seen: list[Any] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            seen.append(recorder.read(logdir))

    recorder.enable(logdir, "FULL_HEALTH")
    thread = threading.Thread(target=look)
    errors: list[str] = []
    threading.excepthook = lambda args: errors.append(repr(args.exc_value))
    thread.start()
    for i in range(NUM_LIVE_STEPS // 10):
        f = tf.function(lambda x: tf.sin(x) * 2.0)
        for _ in range(10):
            f(tf.constant(1.0))
        recorder.flush()
        num_seen = len(seen)
        # Wait for the reader from time to time, so that the reader sees intermediate states.
        while i % 10 == 0 and len(seen) == num_seen and not errors:
            time.sleep(0.01)
    is_over.set()
    thread.join()
    threading.excepthook = threading.__excepthook__
    recorder.disable()
    if errors:
        raise RuntimeError(f"{len(errors)} readings failed, the first with {errors[0]}")
    return [*seen, recorder.read(logdir)]


class DebuggerV2:
    """TensorFlow's Debugger V2."""

    def enable(self, logdir: Path, mode: str) -> None:
        self._writer = tf.debugging.experimental.enable_dump_debug_info(str(logdir), mode, circular_buffer_size=-1)

    def disable(self) -> None:
        tf.debugging.experimental.disable_dump_debug_info()

    def flush(self) -> None:
        """Flushes with two methods of the writer, because Debugger V2 has no method that flushes everything."""
        self._writer.FlushNonExecutionFiles()
        self._writer.FlushExecutionFiles()

    def read(self, logdir: Path) -> Any:
        from tensorflow.python.debug.lib import debug_events_monitors, debug_events_reader

        with debug_events_reader.DebugDataReader(str(logdir)) as reader:
            monitor = debug_events_monitors.InfNanMonitor(reader)
            reader.update()
            traces, executions = reader.graph_execution_traces(), reader.executions()
            return {
                "graph_tensors": [(trace.op_type, trace.output_slot) for trace in traces],
                "executions": [execution.op_type for execution in executions],
                "calls_with_graph": sum(bool(execution.graph_id) for execution in executions),
                "alerts": len(monitor.alerts()),
            }


class TfdbgArrow:
    """tfdbg_arrow."""

    def enable(self, logdir: Path, mode: str) -> None:
        tfdbg_arrow.enable(logdir, mode)

    def disable(self) -> None:
        tfdbg_arrow.disable()

    def flush(self) -> None:
        tfdbg_arrow.flush()

    def read(self, logdir: Path) -> Any:
        with tfdbg_arrow.open_logdir(logdir) as opened:
            tensors = opened.rows(
                "SELECT op_type, output_slot, num_nan + num_neg_inf + num_pos_inf > 0, scope FROM tensor_health "
                "ORDER BY event_index"
            )
            executions = opened.rows("SELECT op_type, graph_id FROM execution ORDER BY execution_index")
            return {
                "graph_tensors": [row[:2] for row in tensors if row[3] == "graph"],
                "executions": [op_type for op_type, _ in executions],
                "calls_with_graph": sum(graph_id is not None for _, graph_id in executions),
                "alerts": sum(row[2] for row in tensors),
            }


RECORDERS: dict[str, Callable[[], Recorder]] = {"debugger_v2": DebuggerV2, "tfdbg_arrow": TfdbgArrow}


def read_two_workers(directory: Path) -> Any:
    """Copies the dumps of two processes into one directory, as if both had written there, and reads the directory."""
    for name in ("worker_0", "worker_1"):
        for path in (directory / name).iterdir():
            _, _, host, kind = path.name.split(".", 3)
            shutil.copy(path, directory / f"tfdbg_events.{name[-1]}.{host}.{kind}")
    return DebuggerV2().read(directory)


def main(recorder: str, name: str, logdir: Path) -> None:
    # A program that hangs ends with an error. The program that is known to hang gets less time.
    is_known_to_hang = name == "full_tensor_with_alerts"
    faulthandler.dump_traceback_later(DEADLOCKED_AFTER_SECONDS if is_known_to_hang else HANGS_AFTER_SECONDS, exit=True)
    if name == "read":
        result = RECORDERS[recorder]().read(logdir)
    elif name == "read_two_workers":
        result = read_two_workers(logdir)
    else:
        result = PROGRAMS[name](RECORDERS[recorder](), logdir)
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
