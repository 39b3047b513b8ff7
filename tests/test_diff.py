"""Test diff on real programs, recorded in separate processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfdbg_arrow.query import Diff, diff

from .programs.running import start_python

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
import tensorflow as tf
import tfdbg_arrow

out, variant = sys.argv[1:]
is_b = variant == "b"


def record(name, program, mode="FULL_TENSOR", graphs="auto"):
    tf.random.set_seed(7)
    with tfdbg_arrow.capture(f"{out}/{name}-{variant}", tensor_debug_mode=mode, graphs=graphs):
        program()


if is_b:  # make IDs, numbers in names and step IDs of the runtime differ between the processes
    tf.function(lambda x: x * 2.0)(tf.constant(1.0))


def train(is_half=False, scale=1.0, seed=1, sizes=(4, 4, 2), **options):
    w = tf.Variable(tf.random.stateless_normal([3, 2], seed=[seed, 0]))

    @tf.function
    def layer(x):
        kernel = tf.cast(w, "float16") if is_half else w
        x = tf.cast(x, "float16") if is_half else x
        y = tf.nn.relu(tf.matmul(x, kernel)) * scale
        return tf.cast(tf.square(y), "float32")

    @tf.function(**options)
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(layer(x))
        w.assign_sub(0.01 * tape.gradient(loss, w))
        return loss

    for number, size in enumerate(sizes):
        tfdbg_arrow.mark(step=number)
        step(tf.reshape(tf.range(size * 3, dtype="float32"), [size, 3]) / 10.0)


def loop(bug=0.0):
    at = tf.Variable(3)  # in a variable, so that the graphs are the same
    extra = tf.Variable(bug)

    @tf.function
    def powers(x):
        i = tf.constant(0)
        while i < 5:
            x = tf.sin(x) + tf.where(i == at, extra, 0.0)
            i += 1
        return x

    powers(tf.constant([0.3, 0.4]))


def edited():
    @tf.function
    def inner(x):
        y = tf.exp(x)
        if is_b:
            y = y + 0.25
        return tf.sqrt(y)

    tf.function(lambda x: inner(inner(x) * 2.0))(tf.constant([1.0, 2.0]))


record("same", train)
record("seeds", lambda: train(seed=2 if is_b else 1))
record("retraced", lambda: train(reduce_retracing=True) if is_b else train())
record("rounding", lambda: train(is_half=is_b))
record("overflow", lambda: train(is_half=is_b, scale=1000.0))
record("loop", lambda: loop(1e-3 if is_b else 0.0))
record("edited", edited, graphs="traced")
record("modes", train, mode="FULL_NUMERICS" if is_b else "FULL_TENSOR")
"""


@pytest.fixture(scope="module")
def logdirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("diff")
    program = path / "program.py"
    program.write_text(PROGRAM)
    running = [start_python(program, path, variant) for variant in "ab"]
    assert [each.wait() for each in running] == [0, 0]
    return path


def compare(logdirs: Path, name: str) -> Diff:
    return diff(logdirs / f"{name}-a", logdirs / f"{name}-b")


@pytest.mark.parametrize("name", ["same", "retraced", "modes", "rounding"])
def test_equal_computations_do_not_diverge(logdirs: Path, name: str) -> None:
    found = compare(logdirs, name)
    assert (found.divergence, found.num_differing) == (None, 0)
    assert found.num_compared > 50


def test_the_same_program_is_aligned_completely(logdirs: Path) -> None:
    found = compare(logdirs, "same")
    assert found.only_a == found.only_b
    assert (found.only_a.num_tensors, found.only_a.num_executions, found.only_a.num_ops) == (0, 0, 0)


def test_different_seeds_diverge_at_the_seed(logdirs: Path) -> None:
    found = compare(logdirs, "seeds").divergence
    assert found is not None
    assert (found.kind, found.a.dtype, found.worst is not None and found.worst.b) == ("values", "int32", 2)


def test_half_precision_diverges_where_it_overflows(logdirs: Path) -> None:
    found = compare(logdirs, "overflow").divergence
    assert found is not None
    assert (found.kind, found.a.op_type, found.a.dtype, found.b.dtype) == ("nonfinite", "Square", "float32", "float16")
    assert found.b.num_pos_inf
    assert found.b.source is not None
    assert found.b.source.code == 'return tf.cast(tf.square(y), "float32")'


def test_a_loop_diverges_at_the_first_read_of_a_different_value(logdirs: Path) -> None:
    comparison = compare(logdirs, "loop")
    found = comparison.divergence
    assert found is not None
    assert (found.a.op_type, found.a.iteration or 0) == (found.b.op_type, found.b.iteration or 0)
    assert found.worst is not None
    assert (found.worst.a, found.worst.b) == (0.0, pytest.approx(1e-3))
    assert comparison.num_differing > 1


def test_an_edited_function_is_aligned_around_the_edit(logdirs: Path) -> None:
    found = compare(logdirs, "edited").divergence
    assert found is not None
    assert (found.a.op_type, found.a.graph_name, found.kind) == ("Sqrt", "inner", "values")
    assert found.notes[0].startswith("Among its inputs, only B has add (AddV2), created at ")
