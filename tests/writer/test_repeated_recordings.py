"""Memory of a process that records again and again."""

from __future__ import annotations

import gc
import statistics
import weakref
from pathlib import Path

import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.writer import active_recording

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


@pytest.mark.parametrize("settings", [
    {},
    {"health_backend": "tensorflow", "steps": "0:10", "max_bytes": 1 << 22},
    {"on_nonfinite": print, "values": "Mul", "redact": "paths", "circular_buffer_size": 10, "dump_on": "nonfinite"},
])  # fmt: skip
def test_the_end_of_a_recording_frees_it(tmp_path: Path, settings: dict[str, object]) -> None:
    assert is_freed_at_its_end(tmp_path, **settings)


def test_the_end_of_a_recording_to_a_url_frees_it(tmp_path: Path) -> None:
    assert is_freed_at_its_end(f"memory://repeated/{tmp_path.name}")


def test_the_end_in_another_thread_frees_the_recording(tmp_path: Path) -> None:
    assert is_freed_at_its_end(tmp_path, wait=False)


def is_freed_at_its_end(logdir: Path | str, *, wait: bool = True, **settings: object) -> bool:
    """Records a program. Returns whether the end frees the recording and its spool without the garbage collector."""

    @tf.function(jit_compile=True)
    def compiled(x: tf.Tensor) -> tf.Tensor:
        return x * 3.0

    @tf.function
    def double(x: tf.Tensor) -> tf.Tensor:
        return compiled(x) * 2.0

    def num_mapped() -> int:
        return Path("/proc/self/maps").read_text().count(".spool")

    gc.collect()
    before = num_mapped()  # recordings of other tests may still be in memory
    gc.disable()
    try:
        tfdbg_arrow.enable(logdir, **settings)  # type: ignore[arg-type]
        recording = weakref.ref(active_recording._active())
        with tf.GradientTape() as tape:
            tape.watch(x := tf.constant(X))
            y = double(x)
        tape.gradient(y, x)
        tfdbg_arrow.mark(step=1)
        tfdbg_arrow.disable(wait=wait)
        tfdbg_arrow.disable()  # waits for another thread
        return recording() is None and num_mapped() == before
    finally:
        gc.enable()


_REPEATED = """
import ctypes, gc, os, shutil, sys
import tensorflow as tf
import tfdbg_arrow

@tf.function
def f(x):
    return tf.reduce_sum(tf.exp(x) * 2.0)

x = tf.ones([4])

def record():
    tfdbg_arrow.enable(sys.argv[1])
    f(x)
    tfdbg_arrow.disable()
    shutil.rmtree(sys.argv[1])
"""
"""A program that records the same function again and again."""


@pytest.mark.exhaustive
def test_the_resident_memory_stays_flat(tmp_path: Path) -> None:
    text = """
def resident_mib():
    gc.collect()  # TensorFlow leaves cycles for each trace
    malloc_trim(0)  # how many free blocks malloc keeps depends on the threads, and so on the machine's load
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

malloc_trim = ctypes.CDLL(None).malloc_trim
# Python interns the parts of paths. TensorFlow fills half of the table of these strings, which doubles once.
for number in range(200_000):
    sys.intern(f"/{number}")
for number in range(200):
    record()
    if number >= 20 and number % 5 == 0:
        print(resident_mib())
"""
    logdir = tmp_path / "logdir"
    printed = run_python(tmp_path / "program.py", _REPEATED + text, logdir, ARROW_DEFAULT_MEMORY_POOL="system")
    found = [float(each) for each in printed.split()]
    # The kernel sometimes backs memory with pages of 2 MiB, so single measurements differ by some MiB.
    growth = statistics.median(found[-12:]) - statistics.median(found[:12])
    assert growth < 5.0, found  # MiB


@pytest.mark.slow
def test_memory_does_not_grow(tmp_path: Path) -> None:
    text = """
class Mallinfo2(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = Mallinfo2

def allocated_mib():  # the resident memory also has free blocks, whose number depends on the threads
    gc.collect()
    found = mallinfo2()
    return (found.uordblks + found.hblkhd) / 2**20

for number in range(50):
    if number == 15:
        before = allocated_mib()
    record()
print((allocated_mib() - before) / 35)
"""
    environment = {"ARROW_DEFAULT_MEMORY_POOL": "system", "PYTHONMALLOC": "malloc"}
    printed = run_python(tmp_path / "program.py", _REPEATED + text, tmp_path / "logdir", **environment)
    assert float(printed) < 0.025  # MiB for each recording, which is 5 MiB for 200 recordings
