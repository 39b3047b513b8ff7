"""Graph-mode programs in separate processes give the same bits with and without a recording."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tfdbg_arrow.query import first_nonfinite

from .subprocesses import run_python
from .tables import rows

pytestmark = pytest.mark.slow

PROGRAM = """
    import contextlib, hashlib, json, sys
    import numpy as np
    import tensorflow.compat.v1 as tf
    import tfdbg_arrow

    way, behaviour, logdir = sys.argv[1:]
    if behaviour == "disable_v2_behavior":
        tf.disable_v2_behavior()
    else:
        tf.disable_eager_execution()

    def start():
        if not way.startswith("bare"):
            backend = "native" if way.startswith("native") else "tensorflow"
            graphs = "executed" if way == "native_optimized" else "traced"
            tfdbg_arrow.enable(logdir, health_backend=backend, graphs=graphs)

    if way != "native_late":
        start()
    tf.set_random_seed(3)
    x = tf.placeholder(tf.float32, [None, 4], name="x")
    with tf.variable_scope("model"):
        kernel = tf.get_variable("kernel", [4, 8])
        hidden = tf.nn.dropout(tf.tanh(tf.matmul(x, kernel)), rate=0.2)
        readout = tf.get_variable("readout", [8, 4])
    _, turned = tf.while_loop(
        lambda i, _: i < 3,
        lambda i, a: (i + 1, tf.cond(i > 0, lambda: tf.matmul(a, readout), lambda: tf.identity(x)) @ kernel),
        [tf.constant(0), hidden],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, 8])],
    )
    loss = tf.reduce_mean(tf.square(turned)) + tf.reduce_mean(tf.random_normal([3]))
    step = tf.train.get_or_create_global_step()
    optimizer = tf.train.AdamOptimizer(0.05)
    gradients = optimizer.compute_gradients(loss)
    train = optimizer.apply_gradients([(tf.clip_by_norm(g, 1.0), v) for g, v in gradients], global_step=step)
    num_ops = len(tf.get_default_graph().get_operations())
    if way == "native_late":
        start()
    options = tf.GraphOptions(optimizer_options=tf.OptimizerOptions(opt_level=tf.OptimizerOptions.L0))
    options.rewrite_options.disable_meta_optimizer = True
    if way.endswith("_optimized"):
        options = None
    config = tf.ConfigProto(graph_options=options, intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    bits = hashlib.sha256()
    with tf.Session(config=config) as session:
        session.run(tf.global_variables_initializer())
        for index in range(6):
            data = np.random.default_rng(index).normal(size=(5, 4)).astype(np.float32)
            for value in session.run([loss, train, hidden, gradients], {x: data})[::2]:
                bits.update(np.asarray(value).tobytes())
        extra = tf.random_uniform([4])  # its seed follows from how many ops were made before
        bits.update(session.run(extra).tobytes())
        for value in session.run(tf.global_variables()):
            bits.update(np.asarray(value).tobytes())
        bad = tf.log(tf.nn.relu(0.0 * readout[0, 0]), name="bad")  # the line of the bad value
        print(json.dumps([bits.hexdigest(), num_ops, repr(session.run(bad))]))
"""


BAD_LINE = 'bad = tf.log(tf.nn.relu(0.0 * readout[0, 0]), name="bad")'
WAYS = {
    "disable_v2_behavior": ("bare", "native_late", "tensorflow"),
    "disable_eager_execution": ("bare", "native", "tensorflow"),
}


def run_ways(directory: Path, behaviour: str, ways: Sequence[str]) -> list[Any]:
    """Runs the program in each way, and returns the output of each run."""

    def run(way: str) -> Any:
        output = run_python(directory / f"program_{way}.py", PROGRAM, way, behaviour, directory / way)
        return json.loads(output.splitlines()[-1])

    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(run, ways))


def assert_bad_is_named(directory: Path, way: str) -> None:
    found = first_nonfinite(directory / way)
    assert found is not None
    assert (found.op_type, found.op_name, found.num_neg_inf) == ("Log", "bad", 1)
    own = [frame for frame in found.stack if frame.file_path == str(directory / f"program_{way}.py")]
    assert [(frame.code or "").partition("  #")[0] for frame in own] == [BAD_LINE]


@pytest.mark.parametrize("behaviour", WAYS)
def test_the_same_bits_with_tensorflows_optimizations(behaviour: str, tmp_path: Path) -> None:
    ways = ("bare_optimized", "native_optimized")
    bare, recorded = run_ways(tmp_path, behaviour, ways)
    assert recorded == bare
    assert rows(tmp_path / ways[1], "capture_stat") == []
    assert len(rows(tmp_path / ways[1], "execution")) == 10
    assert_bad_is_named(tmp_path, ways[1])


@pytest.mark.parametrize("behaviour", WAYS)
def test_the_same_bits_with_and_without_a_recording(behaviour: str, tmp_path: Path) -> None:
    ways = WAYS[behaviour]
    printed = run_ways(tmp_path, behaviour, ways)
    assert printed == printed[:1] * len(ways)

    counts = []
    for way in ways[1:]:
        logdir = tmp_path / way
        assert rows(logdir, "capture_stat") == [], way
        assert len(rows(logdir, "execution")) == 10, way
        graph_rows = [row for row in rows(logdir, "tensor_health") if row["scope"] == "graph"]
        # TensorFlow numbers the ops of functions with a counter that grows with each eager tensor of the process.
        counts.append(Counter((re.sub(r"\d+", "#", row["op_name"]), row["output_slot"]) for row in graph_rows))
        assert_bad_is_named(tmp_path, way)
        (session_graph,) = {row["graph_id"] for row in rows(logdir, "graph_function") if row["session_index"] == 0}
        ops = [row for row in rows(logdir, "graph_op") if row["graph_id"] == session_graph]
        assert None not in [row["stack_trace_id"] for row in ops]
    assert counts[0] == counts[1]
    assert counts[0]["bad", 0] == 1
