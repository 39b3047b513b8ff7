"""Checks the answers for small programs with a bug: in eager code, functions, XLA, sessions and threads, in each mode.

The line of each bug ends in `# culprit`. All programs take a vector that goes from 0 to 1.
"""

from __future__ import annotations

import contextlib
import tempfile
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

import tfdbg_arrow
from tests.culprit.corpus import marked_line
from tfdbg_arrow.errors import NonFiniteError
from tfdbg_arrow.writer.hooks import runtime
from tools.gpu.results import Result

Function = Callable[[Any], Any]

SMALL, LARGE, LARGE_EAGER = 8, 20_000, 1 << 21
"""Numbers of elements. The host counts SMALL tensors. The GPU counts LARGE tensors of graphs, and all LARGE_EAGER
tensors."""


def logarithm(x: Any) -> Any:
    """Takes the logarithm of zero."""
    y = tf.math.log(x)  # culprit
    return tf.reduce_sum(y * 2.0 + tf.exp(x))


def gradient(x: Any) -> Any:
    """Divides by zero in the gradient of a square root."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.reduce_sum(tf.math.sqrt(x))  # culprit
    return tape.gradient(total, x) * 2.0


def loop(x: Any) -> Any:
    """Takes the square root of a negative number in the fifth iteration."""
    for i in tf.range(6):
        x = tf.math.sqrt(tf.cast(3 - i, tf.float32) + x * 0.5)  # culprit
    return tf.reduce_sum(x)


def branch(x: Any) -> Any:
    """Takes the logarithm of zero in one branch."""
    y = x + 1.0
    if tf.reduce_sum(x) > 0.0:
        y = tf.math.log(x)  # culprit
    return tf.reduce_sum(y * 2.0)


def healthy(x: Any) -> Any:
    """Has no bad value."""
    return tf.reduce_sum(tf.math.log(x + 1.0) * 2.0)


OP_TYPES: dict[Function, str | None] = {
    logarithm: "Log",
    gradient: "SqrtGrad",
    loop: "Sqrt",
    branch: "Log",
    healthy: None,
}
"""The op to name for each program, or None if the program has no bug."""


def eager(function: Function, values: np.ndarray) -> None:
    """Runs a program op by op."""
    function(tf.constant(values))


def graph(function: Function, values: np.ndarray, **settings: bool) -> None:
    """Calls a program as a tf.function, three times."""
    compiled = tf.function(function, **settings)
    for _ in range(3):
        compiled(tf.constant(values))


def xla(function: Function, values: np.ndarray) -> None:
    """Calls a program as a tf.function that XLA compiles."""
    graph(function, values, jit_compile=True)


def session(function: Function, values: np.ndarray) -> None:
    """Runs the graph of a program in a session of TensorFlow 1."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as running:
        x = tf.compat.v1.placeholder(tf.float32, values.shape)
        result = function(x)
        for _ in range(3):
            running.run(result, {x: values})


def thread(function: Function, values: np.ndarray) -> None:
    """Calls a program as a tf.function in a thread."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(graph, function, values).result()


def stopped(function: Function, values: np.ndarray) -> None:
    """Calls a program as a tf.function. The recording must stop the program."""
    try:
        graph(function, values)
    except NonFiniteError:
        return
    raise RuntimeError("The recording did not stop the program, but on_nonfinite is 'raise'.")


@dataclass(frozen=True)
class Program:
    """A program: its function, how it runs, its number of elements, and the arguments of enable()."""

    function: Function
    run: Callable[[Function, np.ndarray], None] = graph
    size: int = SMALL
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the program in the results, with the number of elements."""
        texts = (f"{name}={value!r}" for name, value in self.settings.items())
        return ", ".join([f"{self.function.__name__}, {self.run.__name__}, {self.size:,}", *texts])


PROGRAMS = (
    Program(logarithm, eager),
    Program(logarithm, eager, LARGE_EAGER),
    *(Program(function, graph, size) for function in OP_TYPES for size in (SMALL, LARGE)),
    *(Program(function, xla, settings={"xla": how}) for function in (logarithm, loop) for how in ("auto", "inside")),
    *(Program(logarithm, session, size) for size in (SMALL, LARGE)),
    Program(logarithm, thread),
    *(
        Program(loop, graph, LARGE, {"tensor_debug_mode": mode})
        for mode in ("CURT_HEALTH", "CONCISE_HEALTH", "FULL_NUMERICS", "FULL_TENSOR")
    ),
    Program(logarithm, graph, LARGE, {"graphs": "traced"}),
    Program(logarithm, graph, LARGE, {"histograms": True}),
    Program(logarithm, graph, LARGE, {"exact_subnormals": True}),
    Program(logarithm, graph, LARGE, {"on_nonfinite": "keep"}),
    Program(logarithm, stopped, LARGE, {"on_nonfinite": "raise"}),
)


def record(*, is_cpu: bool) -> Iterator[Result]:
    """Records each program, and compares the answer with its bug."""
    with pretended_accelerator(is_cpu=is_cpu):
        for program in PROGRAMS:
            try:
                yield _result(program, is_cpu=is_cpu)
            except Exception as error:
                # The remaining programs still run.
                traceback.print_exc()
                yield Result(item=program.name, is_right=False, told=f"{type(error).__name__}: {str(error)[:500]}")


def pretended_accelerator(*, is_cpu: bool) -> contextlib.AbstractContextManager[object]:
    """Makes recordings on a CPU use the code for a GPU, as far as possible. On a GPU, does nothing."""
    if not is_cpu:
        return contextlib.nullcontext()
    return mock.patch.object(runtime, "has_accelerator", return_value=True)


def backend(*, is_cpu: bool) -> dict[str, Any]:
    """Returns the argument of enable() that makes TensorFlow's ops count elements, as by default with a GPU."""
    return {"health_backend": "tensorflow"} if is_cpu else {}


def _result(program: Program, *, is_cpu: bool) -> Result:
    """Records a program into a temporary logdir."""
    values = np.linspace(0.0, 1.0, program.size, dtype=np.float32)
    with tempfile.TemporaryDirectory() as logdir:
        with tfdbg_arrow.capture(logdir, **backend(is_cpu=is_cpu), **program.settings):
            program.run(program.function, values)
        first = tfdbg_arrow.first_nonfinite(logdir)
        opened = tfdbg_arrow.open_logdir(logdir)
        ((health_backend,),) = opened.rows("SELECT health_backend FROM run")
        devices = "SELECT device_name, count(*) FROM tensor_health JOIN device USING (run_id, device_id) GROUP BY ALL"
        num_tensors = dict(opened.rows(devices))
        not_recorded = [list(map(str, row)) for row in opened.rows("SELECT stat, subject, reason FROM capture_stat")]
    op_type = OP_TYPES[program.function]
    wanted = answer = "nothing"
    if op_type is not None:
        wanted = f"{op_type}, line {marked_line(program.function)}"
    if first is not None:
        answer = f"{first.op_type}, no line" if first.source is None else f"{first.op_type}, line {first.source.lineno}"
        if first.source is not None and Path(first.source.file_path).resolve() != Path(__file__).resolve():
            answer += f" of {first.source.file_path}"
    is_on_device = any("CPU" in device if is_cpu else "GPU" in device for device in num_tensors)
    counts = ", ".join(f"{count} on {device.rpartition('device:')[2]}" for device, count in num_tensors.items())
    return Result(
        item=program.name,
        is_right=answer == wanted and health_backend == "tensorflow" and is_on_device,
        told=f"{answer}{'' if answer == wanted else f', instead of {wanted}'}; tensors: {counts or 'none'}",
        facts={"health_backend": health_backend, "num_tensors": num_tensors, "not_recorded": not_recorded},
    )
