"""Memory of a process that records again and again."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

import tfdbg_arrow

from .lifecycle import X
from .subprocesses import run_python

pytestmark = pytest.mark.usefixtures("not_recording")


def num_traces(function: object) -> int:
    return len(function._list_all_concrete_functions())  # type: ignore[attr-defined]


def test_a_function_keeps_the_trace_of_one_recording(tmp_path: Path) -> None:
    @tf.function
    def double(x: tf.Tensor) -> tf.Tensor:
        return x * 2.0

    double(X)
    for _ in range(3):
        with tfdbg_arrow.capture(tmp_path):
            assert double(X).numpy().tolist() == [2.0, -2.0]
            double(X[:1])  # another signature
            assert num_traces(double) == 3
    double(X)
    assert num_traces(double) == 3


def test_the_last_trace_is_exported(tmp_path: Path) -> None:
    module = tf.Module()
    module.double = tf.function(lambda x: x * 2.0)
    for _ in range(2):
        with tfdbg_arrow.capture(tmp_path / "logdir"):
            module.double(X)
    tf.saved_model.save(module, tmp_path / "model")
    assert tf.saved_model.load(tmp_path / "model").double(X).numpy().tolist() == [2.0, -2.0]


@pytest.mark.slow
def test_memory_does_not_grow(tmp_path: Path) -> None:
    text = """
        import ctypes, gc, shutil, sys
        import tensorflow as tf
        import tfdbg_arrow

        @tf.function
        def f(x):
            return tf.reduce_sum(tf.exp(x) * 2.0)

        class Mallinfo2(ctypes.Structure):
            names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
            _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

        mallinfo2 = ctypes.CDLL(None).mallinfo2
        mallinfo2.restype = Mallinfo2

        def allocated_mib():  # the resident memory also has free blocks, whose number depends on the threads
            gc.collect()
            found = mallinfo2()
            return (found.uordblks + found.hblkhd) / 2**20

        x = tf.ones([4])
        for number in range(80):
            if number == 20:
                before = allocated_mib()
            tfdbg_arrow.enable(sys.argv[1])
            f(x)
            tfdbg_arrow.disable()
            shutil.rmtree(sys.argv[1])
        print((allocated_mib() - before) / 60)
    """
    printed = run_python(
        tmp_path / "program.py", text, tmp_path / "logdir", ARROW_DEFAULT_MEMORY_POOL="system", PYTHONMALLOC="malloc"
    )
    assert float(printed) < 0.025  # MiB for each recording: 5 MiB for 200
