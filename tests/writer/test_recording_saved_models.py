"""SavedModels: they hold nothing of ours, and are recorded when they are loaded."""

from __future__ import annotations

from pathlib import Path

import keras
import pytest
import tensorflow as tf

import tfdbg_arrow

from .lifecycle import X
from .subprocesses import run_python
from .tables import rows

pytestmark = pytest.mark.usefixtures("not_recording")


class TestSavedModels:
    def test_hold_no_op_of_ours_and_load_where_we_are_not(self, tmp_path: Path) -> None:
        class Model(tf.Module):
            def __init__(self) -> None:
                self.w = tf.Variable([2.0, 3.0])

            @tf.function(input_signature=[tf.TensorSpec([2])])
            def run(self, x: tf.Tensor) -> tf.Tensor:
                for i in tf.range(3):
                    if tf.reduce_sum(x) > 0.0:  # noqa: SIM108
                        x = self.inner(x) - tf.cast(i, tf.float32)
                    else:
                        x = self.inner(x * x)
                return x

            @tf.function
            def inner(self, x: tf.Tensor) -> tf.Tensor:
                return tf.nn.relu(x) * self.w

            @tf.function(input_signature=[tf.TensorSpec([2])])
            def gradient(self, x: tf.Tensor) -> tf.Tensor:
                with tf.GradientTape() as tape:
                    y = self.run(x)
                return tape.gradient(y, self.w)

        def save(path: Path) -> None:
            tf.saved_model.save(module, path, signatures={"run": module.run, "gradient": module.gradient})

        keras.utils.set_random_seed(1)
        network = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, "relu"), keras.layers.Dense(1)])
        network.compile("sgd", "mse")
        module = Model()
        x = tf.constant(X)
        expected = [module.run(x), module.gradient(x), network(x[None])]
        with tfdbg_arrow.capture(tmp_path / "logdir"):
            module.run(x)
            module.gradient(x)
            save(tmp_path / "during")
            network.export(tmp_path / "exported", verbose=False)
            loaded = tf.saved_model.load(tmp_path / "during")
            reloaded = loaded.run(x)
        save(tmp_path / "after")

        assert reloaded.numpy().tolist() == expected[0].numpy().tolist()
        for name in ("during", "after", "exported"):
            protobuf = (tmp_path / name / "saved_model.pb").read_bytes()
            assert b"Tfdbg" not in protobuf
            assert b"tfdbg" not in protobuf
        text = """
            import sys, numpy as np, tensorflow as tf
            x = tf.constant([1.0, -1.0])
            for name in ("during", "after"):
                loaded = tf.saved_model.load(f"{sys.argv[1]}/{name}")
                print(loaded.run(x).numpy().tolist(), loaded.signatures["gradient"](x)["output_0"].numpy().tolist())
            exported = tf.saved_model.load(f"{sys.argv[1]}/exported")
            print(exported.serve(x[None]).numpy().tolist())
            assert not [name for name in sys.modules if name.startswith("tfdbg_arrow")]
        """
        run, gradient, prediction = (value.numpy().tolist() for value in expected)
        lines = run_python(tmp_path / "load.py", text, tmp_path).splitlines()
        assert lines == [f"{run} {gradient}"] * 2 + [str(prediction)]

    def test_a_loaded_model_is_recorded(self, tmp_path: Path) -> None:
        module = tf.Module()
        module.f = tf.function(lambda x: tf.exp(x) + 1.0, input_signature=[tf.TensorSpec([2])])
        tf.saved_model.save(module, tmp_path / "model")
        with tfdbg_arrow.capture(tmp_path / "logdir"):
            tf.saved_model.load(tmp_path / "model").f(X)
        assert [row["op_type"] for row in rows(tmp_path / "logdir") if row["scope"] == "graph"].count("Exp") == 1
