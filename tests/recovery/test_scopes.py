"""Test that recovery restores the layer, the role and the forward op of ops that a killed process had recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.writer.subprocesses import run_python
from tests.writer.tables import rows
from tfdbg_arrow.writer.recover import recover

PROGRAM = """
    import os, signal, sys
    import tensorflow as tf
    import tfdbg_arrow

    class Scaled(tf.Module):
        @tf.Module.with_name_scope
        def __call__(self, x):
            return tf.sqrt(x)

    tfdbg_arrow.enable(sys.argv[1], health_backend=sys.argv[2])
    scaled = Scaled("scaled")

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = scaled(x)
        return tape.gradient(y, x)

    gradient(tf.constant(4.0))
    tf.function(gradient)(tf.constant(4.0))
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("backend", ["native", "tensorflow"])
def test_layer_role_and_forward_op_are_recovered(tmp_path: Path, backend: str) -> None:
    logdir = tmp_path / "logdir"
    run_python(tmp_path / "program.py", PROGRAM, logdir, backend, returncode=-9)
    assert [run.state for run in recover(logdir)] == ["recovered"]
    executions = {row["op_type"]: row for row in rows(logdir, "execution")}
    columns = ("layer", "role", "forward_execution_index")
    assert [executions["Sqrt"][name] for name in columns] == ["scaled", "forward", None]
    forward = executions["Sqrt"]["execution_index"]
    assert [executions["SqrtGrad"][name] for name in columns] == ["scaled", "gradient", forward]
    ops = {row["op_type"]: row for row in rows(logdir, "graph_op")}
    columns = ("layer", "role", "forward_graph_id", "forward_op_name")
    assert [ops["Sqrt"][name] for name in columns] == ["scaled", "forward", None, None]
    graph_id, op_name = ops["Sqrt"]["graph_id"], ops["Sqrt"]["op_name"]
    assert [ops["SqrtGrad"][name] for name in columns] == ["scaled", "gradient", graph_id, op_name]
