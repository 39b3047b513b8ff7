"""Each op of Keras has the line where the program made its layer, loss, metric or optimizer."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import textwrap
import weakref
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow

from .subprocesses import run_python
from .tables import rows

pytestmark = pytest.mark.usefixtures("not_recording")

FIT = """
import sys
import numpy as np
import tensorflow as tf
import {keras} as keras
import tfdbg_arrow

class Scaled(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = keras.layers.Dense(3)  # inner

    def call(self, x):
        return tf.sinh(self.inner(x))

class Descent(keras.optimizers.SGD):
    def __init__(self, rate):
        super().__init__(rate)

before = keras.layers.Dense(3, activation="tanh")
tfdbg_arrow.enable(sys.argv[1])
inputs = keras.Input((3,))
x = before(inputs)
x = Scaled()(x)  # scaled
outputs = keras.layers.Dense(1, activation="softplus")(x)  # head
model = keras.Model(inputs, outputs)
model.compile(
    Descent(0.25),  # descent
    loss=keras.losses.LogCosh(),  # loss
    metrics=["mae"],
)  # compile
model.evaluate(np.ones((4, 3)), np.ones((4, 1)), verbose=0)
model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)
tfdbg_arrow.disable()
"""


def made_at(logdir: Path, table: str = "graph_op") -> dict[tuple[str, str], set[str | None]]:
    """Returns the text of the lines that made the parts, by op type and role. None means no line."""
    frames = {row["stack_frame_id"]: row for row in rows(logdir, "stack_frame")}
    lines: dict[int | None, str] = {}
    for row in sorted(rows(logdir, "stack_trace"), key=lambda row: row["depth"]):
        if frames[row["stack_frame_id"]]["owner"] == "user":
            lines.setdefault(row["stack_trace_id"], frames[row["stack_frame_id"]]["code"])
    found: dict[tuple[str, str], set[str | None]] = {}
    for row in rows(logdir, table):
        line = lines.get(row["part_stack_trace_id"])
        found.setdefault((row["op_type"], row["role"]), set()).add(line)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("package", ["keras", "tf_keras"])
def test_fit(tmp_path: Path, package: str) -> None:
    environment = {"TF_USE_LEGACY_KERAS": "1"} if package == "tf_keras" else {}
    run_python(tmp_path / "train.py", FIT.format(keras=package), tmp_path / "log", **environment)
    found = made_at(tmp_path / "log")
    of = {name: line for line in textwrap.dedent(FIT).splitlines() for name in [line.partition("  # ")[2]] if name}
    lines = {name: line.strip() for name, line in of.items()}
    assert found["Tanh", "forward"] == {None}, "the layer was made before the recording"
    assert found["Sinh", "forward"] == {lines["scaled"]}
    assert found["MatMul", "forward"] == {None, lines["inner"], lines["head"]}
    assert found["Softplus", "forward"] == {lines["head"]}
    assert found["Softplus", "loss"] == {lines["loss"]}
    assert found["Abs", "metric"] <= {"model.compile(", 'metrics=["mae"],', None}
    assert {line for (_, role), made in found.items() if role == "optimizer" for line in made} == {lines["descent"]}
    assert {line for (_, role), made in found.items() if role == "gradient" for line in made} == {None}


def test_eager_parts_and_operations_of_a_functional_model(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path):
        inputs = keras.Input((2,))
        model = keras.Model(inputs, keras.ops.sqrt(inputs) * 2.0)
        loss = keras.losses.MeanSquaredError()
        optimizer = keras.optimizers.SGD(0.5)
        variable = tf.Variable([1.0, 2.0])
        with tf.GradientTape() as tape:
            value = loss(tf.zeros((1, 2)), model(variable[None]))
        optimizer.apply_gradients([(tape.gradient(value, variable), variable)])
        tf.exp(1.0)
    found = made_at(tmp_path, "execution")
    operation = "model = keras.Model(inputs, keras.ops.sqrt(inputs) * 2.0)"
    assert found["Sqrt", "forward"] == {operation}
    assert operation in found["Mul", "forward"]
    assert found["Square", "loss"] == {"loss = keras.losses.MeanSquaredError()"}
    assert found["AssignSubVariableOp", "optimizer"] == {"optimizer = keras.optimizers.SGD(0.5)"}
    assert found["SqrtGrad", "gradient"] == {None}
    assert found["Exp", "forward"] == {None}


def test_an_optimizer_of_tensorflow_1(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path), tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("v", initializer=4.0, use_resource=True)
        descent = tf.compat.v1.train.GradientDescentOptimizer(0.1)
        train = descent.minimize(tf.sqrt(variable))
        session.run(variable.initializer)
        session.run(train)
    lines = made_at(tmp_path)
    assert lines["ResourceApplyGradientDescent", "optimizer"] == {
        "descent = tf.compat.v1.train.GradientDescentOptimizer(0.1)"
    }
    assert lines["SqrtGrad", "gradient"] == {None}


@keras.saving.register_keras_serializable()  # type: ignore[untyped-decorator]
class Doubled(keras.layers.Layer):  # type: ignore[misc]
    """A layer whose class has no constructor."""

    def call(self, x: Any) -> Any:
        return 2.0 * x


def test_keras_works_as_without_a_recording(tmp_path: Path) -> None:
    bases = (keras.Operation, keras.losses.Loss, keras.metrics.Metric, keras.optimizers.Optimizer.__mro__[-2])
    constructors = {base: (base.__init__, inspect.getfullargspec(base.__init__)) for base in bases}
    with tfdbg_arrow.capture(tmp_path):
        for base, (constructor, arguments) in constructors.items():
            assert inspect.getfullargspec(base.__init__) == arguments
            assert inspect.signature(base.__init__) == inspect.signature(constructor)
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, name="dense"), Doubled()])
        x = np.ones((1, 2))
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.copy(model)):
            np.testing.assert_array_equal(other(x), model(x))
        cloned = keras.models.clone_model(model)
        assert cloned.get_config() == model.get_config()
        optimizer = keras.optimizers.get("adam")
        assert type(optimizer).from_config(optimizer.get_config()).get_config() == optimizer.get_config()
        with pytest.raises(ValueError, match="cannot contain character") as raised:
            keras.layers.Dense(1, name="a/b")
        assert not [entry for entry in raised.traceback if "tfdbg_arrow/writer" in str(entry.path)]
        layer = keras.layers.Dense(1)
        reference = weakref.ref(layer)
        del layer
        gc.collect()
        assert reference() is None
    assert {base: base.__init__ for base in bases} == {base: init for base, (init, _) in constructors.items()}
    assert not [row for row in rows(tmp_path, "capture_stat") if row["stat"] == "failed"]
