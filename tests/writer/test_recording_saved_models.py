"""SavedModels and GraphDefs contain nothing from the recorder. A loaded SavedModel is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

import tfdbg_arrow
from tests.sampling import mostly_slow

from .lifecycle import X
from .subprocesses import run_python
from .tables import rows

pytestmark = pytest.mark.usefixtures("not_recording")


class TestSavedModels:
    @pytest.mark.slow
    def test_hold_no_record_ops_and_load_without_tfdbg_arrow(self, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("graphs", ["executed", "traced"])
@pytest.mark.parametrize("flow", ["cond", "while", "call"])
def test_graphs_of_sessions_become_functions_without_changes(flow: str, graphs: str, tmp_path: Path) -> None:
    tf1 = tf.compat.v1

    def build() -> Any:
        x = tf1.placeholder(tf.float32, [2], name="x")
        if flow == "cond":
            y = tf.cond(tf.reduce_sum(x) > 1.0, lambda: tf.exp(x), lambda: x)
        elif flow == "while":
            y = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.exp(y)), [0, x])[1]
        else:
            y = tf.function(lambda x: tf.exp(x))(x)
        return x, tf.identity(y, name="y")

    def save_and_load(directory: Path) -> list[bytes]:
        with tf.Graph().as_default() as graph, tf1.Session() as session:
            x, y = build()
            tf1.saved_model.simple_save(session, str(directory), {"x": x}, {"y": y})
        loaded = tf.saved_model.load(directory).signatures["serving_default"](x=tf.constant([1.0, 0.5]))["y"]
        graph_def = graph.as_graph_def()
        wrapped = tf1.wrap_function(lambda: tf1.import_graph_def(graph_def, name=""), [])
        imported = wrapped.prune("x:0", "y:0")(tf.constant([1.0, 0.5]))
        return [tensor.numpy().tobytes() for tensor in (loaded, imported)]

    tf1.enable_control_flow_v2()
    wanted = save_and_load(tmp_path / "bare")
    with tfdbg_arrow.capture(tmp_path / "logdir", graphs=graphs):
        assert save_and_load(tmp_path / "recorded") == wanted
    exps = [row for row in rows(tmp_path / "logdir") if row["scope"] == "graph" and row["op_type"] == "Exp"]
    assert len(exps) >= 2 * (3 if flow == "while" else 1)


@pytest.mark.slow
@pytest.mark.parametrize("health_backend", mostly_slow(["native", "tensorflow"], fast=["native"]))
def test_a_graph_def_of_a_recorded_function_loads_without_tfdbg_arrow(health_backend: str, tmp_path: Path) -> None:
    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.softmax(x)

    @tf.function
    def run(x: tf.Tensor) -> tf.Tensor:
        total = tf.reduce_sum(inner(x) * [1.0, 2.0])
        for i in tf.range(3):
            total += tf.cast(i, tf.float32)
        return total

    x = tf.constant(X)
    with tfdbg_arrow.capture(tmp_path / "logdir", health_backend=health_backend):
        expected = run(x).numpy().tolist()
        concrete = run.get_concrete_function(x)
        (tmp_path / "graph.pb").write_bytes(concrete.graph.as_graph_def().SerializeToString())
        tf.io.write_graph(concrete.graph, str(tmp_path), "graph.pbtxt")
        frozen = convert_variables_to_constants_v2(concrete)
    assert np.asarray(frozen(x)).tolist() == [expected]
    text = """
        import sys, tensorflow as tf
        from google.protobuf import text_format
        graph_def, from_text = tf.compat.v1.GraphDef(), tf.compat.v1.GraphDef()
        graph_def.ParseFromString(open(f"{sys.argv[1]}/graph.pb", "rb").read())
        text_format.Parse(open(f"{sys.argv[1]}/graph.pbtxt").read(), from_text)
        for each in (graph_def, from_text):
            with tf.Graph().as_default() as graph:
                tf.import_graph_def(each, name="")
                with tf.compat.v1.Session() as session:
                    print(session.run(sys.argv[2], {"x:0": [1.0, -1.0]}))
    """
    printed = run_python(tmp_path / "load.py", text, tmp_path, concrete.graph.outputs[0].name)
    assert [float(line) for line in printed.splitlines()] == [pytest.approx(expected)] * 2
    assert rows(tmp_path / "logdir", "tensor_health")
