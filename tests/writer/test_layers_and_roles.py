"""Each op is recorded with its role and with the user's name of its layer."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow
from tests.sampling import mostly_slow

from .tables import rows

pytestmark = pytest.mark.usefixtures("not_recording")

EVERY_BACKEND = pytest.mark.parametrize("backend", mostly_slow(["native", "tensorflow"], fast=["native"]))


def graph_ops(logdir: Path, *types: str) -> set[tuple[str, str | None, str | None]]:
    """Returns the type, layer and role of the graph ops of some types."""
    return {(r["op_type"], r["layer"], r["role"]) for r in rows(logdir, "graph_op") if r["op_type"] in types}


def executions(logdir: Path, *types: str) -> list[tuple[str, str | None, str | None]]:
    """Returns the type, layer and role of the executions of some types, in order."""
    found = sorted(rows(logdir, "execution"), key=lambda row: row["execution_index"])
    return [(r["op_type"], r["layer"], r["role"]) for r in found if r["op_type"] in types]


class Block(keras.layers.Layer):  # type: ignore[misc]
    """A layer that contains another layer."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.inner = keras.layers.Dense(3, name="inner")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return tf.exp(self.inner(x))


def model() -> keras.Model:
    inputs = keras.Input((3,))
    encoder = keras.Sequential(
        [keras.Input((3,)), Block(name="block"), keras.layers.Dense(3, name="dense_1")], name="encoder"
    )
    shared = encoder(encoder(inputs))
    net = keras.Model(inputs, keras.layers.Dense(1, name="head")(shared), name="net")
    net.compile(keras.optimizers.SGD(1e-3), "mse", metrics=["mae"])
    return net


@pytest.mark.slow
@EVERY_BACKEND
def test_a_model_with_nested_layers_and_a_layer_that_is_called_twice(tmp_path: Path, backend: str) -> None:
    net = model()
    with tfdbg_arrow.capture(tmp_path, health_backend=backend):
        net.fit(np.ones((4, 3)), np.ones((4, 1)), batch_size=2, verbose=0)
    assert graph_ops(tmp_path, "Exp", "BiasAdd", "BiasAddGrad", "ResourceApplyGradientDescent") == {
        ("BiasAdd", "net/encoder/block/inner", "forward"),
        ("BiasAddGrad", "net/encoder/block/inner", "gradient"),
        ("Exp", "net/encoder/block", "forward"),
        ("BiasAdd", "net/encoder/dense_1", "forward"),
        ("BiasAddGrad", "net/encoder/dense_1", "gradient"),
    }
    roles = {(row["op_type"], row["layer"], row["role"]) for row in rows(tmp_path, "graph_op")}
    assert ("Square", None, "loss") in roles
    assert ("Abs", None, "metric") in roles
    assert ("AssignSubVariableOp", None, "optimizer") in roles
    assert {role for kind, _, role in roles if kind == "AssignAddVariableOp"} <= {"loss", "metric", "optimizer"}
    assert {role for _, _, role in roles} >= {"forward", "gradient", "loss", "metric", "optimizer", "input"}


@EVERY_BACKEND
def test_eager_layers_losses_metrics_and_optimizers(tmp_path: Path, backend: str) -> None:
    layer = keras.layers.Dense(1, name="mine", use_bias=False)
    layer.build((2, 3))
    loss, metric = keras.losses.MeanSquaredError(), keras.metrics.MeanAbsoluteError()
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(layer.trainable_variables)
    with tfdbg_arrow.capture(tmp_path, health_backend=backend):
        with tf.GradientTape() as tape:
            y = layer(tf.ones((2, 3)))
            value = loss(tf.zeros((2, 1)), y)
        gradients = tape.gradient(value, layer.trainable_variables)
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
        metric.update_state(tf.zeros((2, 1)), y)
        tf.exp(1.0)
    assert executions(tmp_path, "MatMul", "Square", "AssignSubVariableOp", "Abs", "Exp") == [
        ("MatMul", "mine", "forward"),
        ("Square", None, "loss"),
        ("MatMul", "mine", "gradient"),
        ("AssignSubVariableOp", None, "optimizer"),
        ("Abs", None, "metric"),
        ("Exp", None, "forward"),
    ]


class Linear(tf.Module):
    """A module in which some methods use its name scope."""

    @tf.Module.with_name_scope
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return self.scaled(x)

    @tf.Module.with_name_scope
    def scaled(self, x: tf.Tensor) -> tf.Tensor:
        return tf.exp(x)

    def outside(self, x: tf.Tensor) -> tf.Tensor:
        return tf.sqrt(x)


class Mlp(tf.Module):
    """A module that contains two modules."""

    def __init__(self) -> None:
        super().__init__("mlp")
        self.layers = [Linear("linear_0"), Linear("linear_1")]

    @tf.Module.with_name_scope
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        for layer in self.layers:
            x = layer(layer.outside(x))
        return x


@EVERY_BACKEND
def test_modules_by_their_names(tmp_path: Path, backend: str) -> None:
    mlp = Mlp()
    with tfdbg_arrow.capture(tmp_path, health_backend=backend):
        mlp(tf.constant(1.0))
        tf.function(lambda x: mlp(mlp(x)))(tf.constant(1.0))
        tf.exp(1.0)
    assert executions(tmp_path, "Exp", "Sqrt") == [
        ("Sqrt", "mlp", "forward"),
        ("Exp", "mlp/linear_0", "forward"),
        ("Sqrt", "mlp", "forward"),
        ("Exp", "mlp/linear_1", "forward"),
        ("Exp", None, "forward"),
    ]
    assert graph_ops(tmp_path, "Exp", "Sqrt") == {
        ("Exp", "mlp/linear_0", "forward"),
        ("Exp", "mlp/linear_1", "forward"),
        ("Sqrt", "mlp", "forward"),
    }


def test_ops_after_a_layer_that_raised_do_not_belong_to_it(tmp_path: Path) -> None:
    class Broken(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: tf.Tensor) -> tf.Tensor:
            raise ValueError("broken")

    layer = Broken(name="broken")
    with tfdbg_arrow.capture(tmp_path):
        with pytest.raises(ValueError, match="broken"):
            layer(tf.constant(1.0))
        tf.exp(1.0)
    assert executions(tmp_path, "Exp") == [("Exp", None, "forward")]


def test_a_recording_that_ends_within_a_layer_does_not_affect_the_next_one(tmp_path: Path) -> None:
    class Ending(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: tf.Tensor) -> tf.Tensor:
            tfdbg_arrow.disable()
            tfdbg_arrow.enable(tmp_path / "second")
            return tf.exp(x)

    layer = Ending(name="ending")
    tfdbg_arrow.enable(tmp_path / "first")
    layer(tf.constant(1.0))
    tf.exp(1.0)
    tfdbg_arrow.disable()
    assert executions(tmp_path / "second", "Exp")[-1] == ("Exp", None, "forward")


def test_ops_of_pipelines_have_the_role_input(tmp_path: Path) -> None:
    def half(x: np.ndarray) -> Any:
        return tf.exp(x).numpy()

    with tfdbg_arrow.capture(tmp_path):
        data = tf.data.Dataset.range(2).map(lambda x: tf.numpy_function(half, [tf.cast(x, tf.float32)], tf.float32))
        list(data)
    assert graph_ops(tmp_path, "Cast") == {("Cast", None, "input")}
    assert executions(tmp_path, "Exp") == [("Exp", None, "input")] * 2


def test_threads_have_separate_layers(tmp_path: Path) -> None:
    import threading

    class Starting(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: tf.Tensor) -> tf.Tensor:
            thread = threading.Thread(target=lambda: tf.exp(1.0))
            thread.start()
            thread.join()
            return tf.sqrt(x)

    layer = Starting(name="starting")
    with tfdbg_arrow.capture(tmp_path):
        layer(tf.constant(1.0))
    assert executions(tmp_path, "Exp", "Sqrt") == [("Exp", None, "forward"), ("Sqrt", "starting", "forward")]


def test_optimizers_of_graph_mode(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path), tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("v", initializer=4.0, use_resource=True)
        train = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(tf.sqrt(variable))
        session.run(variable.initializer)
        session.run(train)
    assert graph_ops(tmp_path, "Sqrt", "SqrtGrad", "ResourceApplyGradientDescent") == {
        ("Sqrt", None, "forward"),
        ("SqrtGrad", None, "gradient"),
        ("ResourceApplyGradientDescent", None, "optimizer"),
    }


@pytest.mark.slow
def test_keras_imported_while_recording(tmp_path: Path) -> None:
    program = """
        import sys
        import tfdbg_arrow
        tfdbg_arrow.enable(sys.argv[1])
        assert "tf_keras" not in sys.modules
        import numpy as np, tf_keras as keras, tensorflow as tf
        net = keras.Sequential([keras.layers.Dense(1, name="mine")], name="net")
        net.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
        net.fit(np.ones((4, 3)), np.ones((4, 1)), batch_size=2, verbose=0)
        tfdbg_arrow.disable()
        assert not any(type(finder).__module__.startswith("tfdbg_arrow.") for finder in sys.meta_path)
        assert keras.layers.Layer.__call__.__code__.co_filename.count("tf_keras")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), tmp_path], check=True, timeout=300)
    assert {("MatMul", "net/mine", "forward"), ("MatMul", "net/mine", "gradient")} <= graph_ops(tmp_path, "MatMul")
    roles = {row["role"] for row in rows(tmp_path, "graph_op")}
    assert roles >= {"forward", "gradient", "loss", "metric", "optimizer", "input"}
    steps = [row["step"] for row in rows(tmp_path, "mark") if row["label"] == "step"]
    assert sorted(steps) == [0, 1]
    assert [row for row in rows(tmp_path, "capture_stat") if row["stat"] == "failed"] == []


@pytest.mark.slow
def test_optimizers_of_a_mirrored_strategy(tmp_path: Path) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        net = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, name="mine")], name="net")
        net.compile(keras.optimizers.SGD(0.1), "mse")
    with tfdbg_arrow.capture(tmp_path):
        net.fit(np.ones((2, 1)), np.ones((2, 1)), verbose=0)
    ops = graph_ops(tmp_path, "AssignSubVariableOp", "MatMul")
    assert ops == {
        ("AssignSubVariableOp", None, "optimizer"),
        ("MatMul", "net/mine", "forward"),
        ("MatMul", "net/mine", "gradient"),
    }
