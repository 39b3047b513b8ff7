"""Each op that a gradient function makes is recorded with the forward op whose gradient it computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

import tfdbg_arrow
from tests.sampling import mostly_slow

from .tables import rows

pytestmark = pytest.mark.usefixtures("not_recording")

EVERY_BACKEND = pytest.mark.parametrize("backend", mostly_slow(["native", "tensorflow"], fast=["native"]))


def gradients(logdir: Path) -> set[tuple[str, str, str | None, str | None]]:
    """Returns the graph name and type of each gradient op in a graph, and of its forward op."""
    graphs = {row["graph_id"]: row["graph_name"] for row in rows(logdir, "graph")}
    ops = rows(logdir, "graph_op")
    types = {(row["graph_id"], row["op_name"]): row["op_type"] for row in ops}
    found = set()
    for row in ops:
        if row["role"] == "gradient":
            forward_graph = row["forward_graph_id"]
            forward = None if forward_graph is None else types[forward_graph, row["forward_op_name"]]
            found.add((graphs[row["graph_id"]], row["op_type"], graphs.get(forward_graph), forward))
        else:
            assert (row["forward_graph_id"], row["forward_op_name"]) == (None, None)
    return found


def executions(logdir: Path) -> list[tuple[str, str, str | None]]:
    """Returns the type, role, and type of the forward execution of each execution, in order."""
    found = sorted(rows(logdir, "execution"), key=lambda row: row["execution_index"])
    types = {row["execution_index"]: row["op_type"] for row in found}
    return [(row["op_type"], row["role"], types.get(row["forward_execution_index"])) for row in found]


def gradient_of(function: object, x: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)  # type: ignore[operator]
    return tape.gradient(y, x)


@EVERY_BACKEND
def test_a_tape_of_eager_ops(tmp_path: Path, backend: str) -> None:
    x = tf.constant([4.0, 9.0])
    with tfdbg_arrow.capture(tmp_path, health_backend=backend):
        # The gradient of Neg needs neither the input nor the output of Neg.
        gradient_of(lambda x: -tf.sqrt(x), x)
    # The tape may reuse the tensor of ones from an earlier gradient.
    assert [row for row in executions(tmp_path) if row[0] != "Fill"] == [
        ("Sqrt", "forward", None),
        ("Neg", "forward", None),
        ("Neg", "gradient", "Neg"),
        ("SqrtGrad", "gradient", "Sqrt"),
    ]


@EVERY_BACKEND
def test_two_ops_of_a_type_are_distinguished(tmp_path: Path, backend: str) -> None:
    x = tf.constant(4.0)
    with tfdbg_arrow.capture(tmp_path, health_backend=backend):
        gradient_of(lambda x: tf.sqrt(tf.sqrt(x)), x)
    found = sorted(rows(tmp_path, "execution"), key=lambda row: row["execution_index"])
    forward = [row["execution_index"] for row in found if row["op_type"] == "Sqrt"]
    backward = [row["forward_execution_index"] for row in found if row["op_type"] == "SqrtGrad"]
    assert len(forward) == 2
    assert backward == forward[::-1]


@EVERY_BACKEND
def test_a_second_order_gradient_of_eager_ops(tmp_path: Path, backend: str) -> None:
    x = tf.constant(4.0)
    with tfdbg_arrow.capture(tmp_path, health_backend=backend):
        gradient_of(lambda x: gradient_of(tf.sqrt, x), x)
    found = executions(tmp_path)
    assert ("SqrtGrad", "gradient", "Sqrt") in found
    assert {forward for _, role, forward in found if role == "gradient"} >= {"Sqrt", "SqrtGrad"}


@EVERY_BACKEND
def test_a_tape_in_a_function(tmp_path: Path, backend: str) -> None:
    @tf.function
    def g(x: tf.Tensor) -> tf.Tensor:
        return gradient_of(lambda x: -tf.sqrt(x), x)

    with tfdbg_arrow.capture(tmp_path, health_backend=backend):
        g(tf.constant(4.0))
    found = gradients(tmp_path)
    assert {row for row in found if row[3] is not None} == {
        ("g", "Neg", "g", "Neg"),
        ("g", "SqrtGrad", "g", "Sqrt"),
    }


@EVERY_BACKEND
def test_a_tape_around_a_function(tmp_path: Path, backend: str) -> None:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return -tf.sqrt(x)

    with tfdbg_arrow.capture(tmp_path, health_backend=backend):
        gradient_of(f, tf.constant(4.0))
    found = gradients(tmp_path)
    assert {(kind, *forward) for _, kind, *forward in found if forward[0] is not None} >= {
        ("Neg", "f", "Neg"),
        ("SqrtGrad", "f", "Sqrt"),
    }
    assert {graph for graph, *_ in found if graph != "f"} != {"f"}
    call, backward = [row for row in executions(tmp_path) if "f_" in row[0]]
    assert call[1:] == ("forward", None)
    assert backward[1:] == ("gradient", call[0])


def test_functions_in_functions(tmp_path: Path) -> None:
    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        return tf.sqrt(x)

    @tf.function
    def outer(x: tf.Tensor) -> tf.Tensor:
        return gradient_of(lambda x: inner(x) + 0.0 * tf.exp(x), x)

    with tfdbg_arrow.capture(tmp_path):
        outer(tf.constant(4.0))
    found = gradients(tmp_path)
    assert {row[2:] for row in found if row[1] == "SqrtGrad"} == {("inner", "Sqrt")}
    call = "PartitionedCall"
    assert {row[2:] for row in found if row[1] == call} == {("outer", call)}


def test_a_custom_gradient(tmp_path: Path) -> None:
    @tf.custom_gradient
    def double(x: tf.Tensor) -> tuple[tf.Tensor, object]:
        return tf.multiply(x, 2.0), lambda dy: tf.exp(dy)

    with tfdbg_arrow.capture(tmp_path / "eager"):
        gradient_of(double, tf.constant(4.0))
    assert ("Exp", "gradient", "Identity") in executions(tmp_path / "eager")
    with tfdbg_arrow.capture(tmp_path / "function"):
        tf.function(lambda x: gradient_of(double, x))(tf.constant(4.0))
    assert {row[3] for row in gradients(tmp_path / "function") if row[1] == "Exp"} == {"IdentityN"}


def test_a_loop_and_a_branch(tmp_path: Path) -> None:
    @tf.function
    def looped(x: tf.Tensor) -> tf.Tensor:
        def total(x: tf.Tensor) -> tf.Tensor:
            _, y = tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, tf.sqrt(y)), (tf.constant(0), x))
            return tf.cond(y > 0.0, lambda: tf.math.log(y), lambda: y)

        return gradient_of(total, x)

    with tfdbg_arrow.capture(tmp_path):
        looped(tf.constant(4.0))
    found = gradients(tmp_path)
    assert {forward for _, kind, _, forward in found if kind == "SqrtGrad"} == {"Sqrt"}
    assert {forward for _, kind, _, forward in found if kind == "Reciprocal"} == {"Log"}
    assert {forward for _, kind, _, forward in found if "While" in kind} == {"StatelessWhile"}
    assert {forward for _, kind, _, forward in found if kind.endswith("If")} == {"StatelessIf"}


def test_gradients_of_graph_mode(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path), tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.constant(4.0)
        session.run(tf.compat.v1.gradients(-tf.sqrt(x), x))
    assert {row[1:] for row in gradients(tmp_path) if row[3] is not None} == {
        ("Neg", "tf.Graph", "Neg"),
        ("SqrtGrad", "tf.Graph", "Sqrt"),
    }


def test_a_function_of_a_saved_model(tmp_path: Path) -> None:
    module = tf.Module()
    module.f = tf.function(lambda x: -tf.sqrt(x), input_signature=[tf.TensorSpec(None)])
    tf.saved_model.save(module, tmp_path / "model")
    with tfdbg_arrow.capture(tmp_path / "logdir"):
        restored = tf.saved_model.load(tmp_path / "model")
        gradient_of(restored.f, tf.constant(4.0))
    assert {row[3] for row in gradients(tmp_path / "logdir") if row[1] == "SqrtGrad"} == {"Sqrt"}


def test_everything_is_restored_after_the_recording(tmp_path: Path) -> None:
    from tensorflow.python.eager import backprop, execute, imperative_grad, record
    from tensorflow.python.ops import gradients_util

    def attributes() -> list[object]:
        return [
            backprop._gradient_function,
            execute.record_gradient,
            imperative_grad.imperative_grad,
            record.record_operation,
            gradients_util._MaybeCompile,
            vars(tf.Module)["name_scope"],
        ]

    before = attributes()
    x = tf.constant(4.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        with tfdbg_arrow.capture(tmp_path):
            y = tf.sqrt(x)
            assert all(now is not then for now, then in zip(attributes(), before, strict=True))
    assert attributes() == before
    assert tape.gradient(y, x).numpy() == 0.25
