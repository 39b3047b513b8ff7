"""tf.data pipelines: a recording does not change their batches, and records their functions."""

from __future__ import annotations

from pathlib import Path

import pytest

import tfdbg_arrow
from tests.sampling import mostly_slow

from .subprocesses import run_python

PROGRAM = """
    import sys
    import keras, tensorflow as tf
    import tfdbg_arrow

    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(1)

    def scaled(x):
        return tf.sqrt(tf.cast(x, tf.float32) * 2.0)

    def numbers(**settings):
        return tf.data.Dataset.range(8).shuffle(8, seed=1).map(scaled, **settings)

    pipelines = {
        "map": numbers().batch(4).cache(),
        "parallel map": numbers(num_parallel_calls=2).batch(4).prefetch(2),
        "filter": numbers().filter(lambda x: x > 1.5).batch(3),
        "flat_map": numbers().flat_map(lambda x: tf.data.Dataset.from_tensors(x).map(tf.exp)).batch(4).cache(),
        "interleave": tf.data.Dataset.range(4).interleave(lambda i: numbers().take(2), cycle_length=2).batch(4),
        "function": tf.data.Dataset.range(8).shuffle(8, seed=2).map(tf.function(scaled)).batch(4),
        "random": numbers().map(lambda x: x + tf.random.uniform([], seed=3)).batch(4),
    }

    class Model(keras.Model):
        def train_step(self, x):
            tf.print(x, output_stream=sys.stdout, summarize=-1)
            return {"loss": tf.reduce_sum(x)}

    for name, pipeline in pipelines.items():
        print(name)
        model = Model()
        model.compile("sgd", jit_compile=False)
        model.fit(pipeline, epochs=3, verbose=0)
"""


@pytest.fixture(scope="module")
def unrecorded(tmp_path_factory: pytest.TempPathFactory) -> str:
    return run_python(tmp_path_factory.mktemp("unrecorded") / "program.py", PROGRAM)


@pytest.mark.slow
@pytest.mark.parametrize("backend", mostly_slow(["native", "tensorflow"], fast=["native"]))
def test_a_recorded_pipeline_gives_the_same_batches(backend: str, unrecorded: str, tmp_path: Path) -> None:
    head, _, rest = PROGRAM.partition("    tf.config")
    enable = f"""
    tfdbg_arrow.enable(sys.argv[1], health_backend="{backend}")
"""
    assert (
        run_python(tmp_path / "program.py", head + enable + "\n    tf.config" + rest, tmp_path / "logdir") == unrecorded
    )
    with tfdbg_arrow.open_logdir(tmp_path / "logdir") as logdir:
        ((num_roots,),) = logdir.rows("SELECT count(*) FROM tensor_health WHERE op_type = 'Sqrt'")
        assert logdir.rows("SELECT * FROM capture_stat WHERE stat IN ('dropped', 'failed')") == []
    assert num_roots >= 7 * 8
