"""Test answers about small programs in which a bad value passes through variables, stacks, loops, branches or calls."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tfdbg_arrow
from tests.spec_reader.test_random_programs import compare
from tests.spec_reader.test_spec_reader import REPOSITORY

READ_IN_A_LOOP_AFTER_A_WRITE_AROUND_IT = """
def branch():
    v.assign(tf.math.log(x))
    return tf.while_loop(lambda i, y: i < 1, lambda i, y: (i + 1, v.read_value() * 2.0), [0, x])[1]

return tf.cond(x[0] < 0.0, branch, lambda: x)
"""
WRITTEN_IN_A_PREVIOUS_ITERATION = """
bad = tf.math.log(x)

def body(i, y):
    def branch():
        z = tf.while_loop(lambda j, z: j < 1, lambda j, z: (j + 1, v.read_value() * 2.0), [0, y])[1]
        v.assign(bad)
        return z

    return i + 1, tf.cond(i < 5, branch, lambda: y)

return tf.while_loop(lambda i, y: i < 3, body, [0, x])[1]
"""
WRITTEN_IN_A_LOOP = """
root = tf.sqrt(x)
bad = tf.math.log(x)

def body(i, y):
    v.assign(bad)
    return i + 1, y * 2.0

tf.while_loop(lambda i, y: i < 2, body, [0, x])
return root
"""
WRITTEN_FROM_ITERATION_TO_ITERATION = """
root = tf.sqrt(x)

def body(i, y):
    v.assign(y)
    return i + 1, tf.math.log(y)

y = tf.while_loop(lambda i, y: i < 2, body, [0, x])[1]
return tf.where(tf.math.is_finite(y), y, root)
"""
WRITTEN_IN_A_BRANCH_THAT_DID_NOT_RUN = """
bad = tf.math.log(x)

def branch():
    v.assign(bad)
    return tf.exp(x)

return tf.cond(x[0] > 0.0, branch, lambda: tf.cos(x)) + tf.where(tf.math.is_finite(bad), bad, x)
"""
FUNCTION_THAT_IS_CALLED_TWICE = """
@tf.function(autograph=False)
def logarithm(y):
    return tf.math.log(y) + v.read_value() * 0.0

bad = logarithm(x)
v.assign(logarithm(x * x))
return tf.where(tf.math.is_finite(bad), bad, x)
"""
TAKEN_FROM_A_STACK = """
stack = tf.raw_ops.StackV2(max_size=-1, elem_type=tf.float32)
with tf.control_dependencies([tf.raw_ops.StackPushV2(handle=stack, elem=tf.math.log(x))]):
    y = tf.raw_ops.StackPopV2(handle=stack, elem_type=tf.float32)

def body(i, z):
    z = tf.while_loop(lambda j, z: j < 2, lambda j, z: (j + 1, v.read_value()), [0, z])[1]
    return i + 1, z

z = tf.while_loop(lambda i, z: i < 2, body, [0, tf.ensure_shape(y, [2])])[1]
return z
"""
READ_FROM_A_STACK_AND_HANDED_ON = """
stack = tf.raw_ops.StackV2(max_size=-1, elem_type=tf.float32)
with tf.control_dependencies([tf.raw_ops.StackPushV2(handle=stack, elem=tf.math.log(x))]):
    y = tf.raw_ops.StackPopV2(handle=stack, elem_type=tf.float32)
z = tf.while_loop(lambda i, z: i < 2, lambda i, z: (i + 1, z), [0, tf.ensure_shape(y, [2])])[1]
return tf.where(tf.math.is_finite(z), z, x)
"""
FUNCTION_OF_ITS_OWN_GRADIENT = """
@tf.function(autograph=False)
def root(y):
    return tf.sqrt(y)

def value_and_gradient(y):
    with tf.GradientTape() as tape:
        tape.watch(y)
        z = root(y)
    return z, tape.gradient(z, y)

_, gradient = value_and_gradient(tf.maximum(x, 0.0))
y, _ = value_and_gradient(gradient)
v.assign(y)
return x
"""
FUNCTION_WITH_TWO_EXECUTED_GRAPHS = """
def branch():
    return tf.cond(x[0] < 0.0, lambda: tf.math.log(x), lambda: tf.cos(x)) * 2.0

return tf.cond(x[1] > 0.0, branch, lambda: tf.exp(x))
"""
LOOP_IN_A_FUNCTION_IN_A_LOOP = """
@tf.function(autograph=False)
def function(y):
    return tf.while_loop(lambda j, z: j < 1, lambda j, z: (j + 1, tf.math.log(z)), [0, y])[1]

return tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, function(y)), [0, x])[1]
"""
ARGUMENT_AFTER_ANOTHER_CONDITIONAL = """
made = tf.cond(x[1] > 0.0, lambda: tf.math.log(x), lambda: x)
other = tf.math.rsqrt(x * 0.0)
return tf.exp(tf.cond(x[1] < 0.0, lambda: made, lambda: other))
"""
WRITTEN_IN_A_BRANCH_WITHOUT_ROWS = """
bad = tf.math.log(x)

def branch():
    v.assign(bad)
    return 0

tf.cond(x[1] > 0.0, branch, lambda: 1)
return v.read_value() * 2.0
"""
CONDITIONAL_IN_A_LOOP_WITH_A_GRADIENT = """
def body(i, y):
    z = tf.cond(y[1] > 9.0, lambda: tf.identity(x), lambda: tf.abs(y) * 0.0)
    return i + 1, tf.math.reciprocal(z)

with tf.GradientTape() as tape:
    tape.watch(x)
    y = tf.while_loop(lambda i, y: i < 1, body, [0, x])[1]
return tape.gradient(y, x)
"""
UPDATE_THAT_WAITS_FOR_A_GUARD = """
bad = tf.math.log(x)
with tf.control_dependencies([tf.debugging.check_numerics(bad, "bad")]):
    v.assign(bad)
return tf.exp(v.read_value())
"""
GUARD_AFTER_AN_UPDATE = """
old = v.read_value() * 0.0
with tf.control_dependencies([v.assign(tf.math.log(x))]):
    return tf.debugging.check_numerics(tf.math.log(x), "bad") + old
"""
_CAUGHT = """
for y in (x, x + 2.0):
    try:
        program(y)
    except tf.errors.InvalidArgumentError:
        pass
"""
CALLS = {
    "UPDATE_THAT_WAITS_FOR_A_GUARD": _CAUGHT,
    "GUARD_AFTER_AN_UPDATE": _CAUGHT,
    "FUNCTION_WITH_TWO_EXECUTED_GRAPHS": """
program(tf.constant([1.0, 0.5]))
with tf.GradientTape() as tape:
    tape.watch(x)
    program(x)
""",
}
"""The code that calls a program, if this code is not `program(x)`."""
ANSWERS = {
    "READ_IN_A_LOOP_AFTER_A_WRITE_AROUND_IT": ({"Log"}, "Log", "variable"),
    "WRITTEN_IN_A_PREVIOUS_ITERATION": ({"Log"}, "Log", "variable"),
    "WRITTEN_IN_A_LOOP": ({"Sqrt", "Log"}, "Log", "variable"),
    "WRITTEN_FROM_ITERATION_TO_ITERATION": ({"Sqrt", "Log"}, "Log", "variable"),
    "WRITTEN_IN_A_BRANCH_THAT_DID_NOT_RUN": ({"Log"}, "Log", "absorbed"),
    "FUNCTION_THAT_IS_CALLED_TWICE": ({"Log"}, "Log", "absorbed"),
    "TAKEN_FROM_A_STACK": ({"Log"}, "Log", "absorbed"),
    "READ_FROM_A_STACK_AND_HANDED_ON": ({"Log"}, "Log", "absorbed"),
    "FUNCTION_OF_ITS_OWN_GRADIENT": ({"SqrtGrad"}, "SqrtGrad", "variable"),
    "LOOP_IN_A_FUNCTION_IN_A_LOOP": ({"Log"}, "Log", "result"),
    "FUNCTION_WITH_TWO_EXECUTED_GRAPHS": ({"Log"}, "Log", "result"),
    "ARGUMENT_AFTER_ANOTHER_CONDITIONAL": ({"Log", "Rsqrt"}, "Rsqrt", "result"),
    "WRITTEN_IN_A_BRANCH_WITHOUT_ROWS": ({"Log"}, "Log", "variable"),
    "UPDATE_THAT_WAITS_FOR_A_GUARD": ({"Log"}, "Log", "absorbed"),
    "GUARD_AFTER_AN_UPDATE": ({"Log"}, "Log", "variable"),
    "CONDITIONAL_IN_A_LOOP_WITH_A_GRADIENT": ({"Reciprocal", "Mul"}, "Reciprocal", "result"),
}
"""For each program: the types of the ops of the proven origins, the type of the first op, and its effect."""

_RECORD = """
import sys, tensorflow as tf, tfdbg_arrow
for path in sys.argv[1:]:
    known = {"tf": tf, "x": tf.constant([-1.0, 0.5])}
    exec(compile(open(path + "/program.py").read(), path + "/program.py", "exec"), known)
    with tfdbg_arrow.capture(path + "/logdir"):
        exec(open(path + "/calls.py").read(), known)
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("programs")
    for name in ANSWERS:
        lines = [f"    {line}" if line else "" for line in globals()[name].splitlines()]
        head = ["v = tf.Variable([1.0, 1.0])", "", "@tf.function(autograph=False)", "def program(x):"]
        (directory / name).mkdir()
        (directory / name / "program.py").write_text("\n".join([*head, *lines, ""]))
        (directory / name / "calls.py").write_text(CALLS.get(name, "program(x)"))
    command = [sys.executable, "-c", _RECORD, *(str(directory / name) for name in ANSWERS)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    subprocess.run(command, cwd=REPOSITORY, env=environment, check=True, capture_output=True)
    return directory


@pytest.mark.parametrize("name", ANSWERS)
def test_the_origins_and_the_first_op_are_right(recorded: Path, name: str) -> None:
    bad = tfdbg_arrow.nonfinite(recorded / name / "logdir", limit=None)
    first = tfdbg_arrow.first_nonfinite(recorded / name / "logdir")
    assert first is not None
    origins = {each.op_type for each in bad if each.is_origin}
    assert (origins, first.op_type, first.effect) == ANSWERS[name]


@pytest.mark.parametrize("name", ANSWERS)
def test_the_reader_of_the_specification_gives_the_same_answers(recorded: Path, name: str) -> None:
    assert compare(recorded / name / "logdir") == []
