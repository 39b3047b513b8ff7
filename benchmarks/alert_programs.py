"""The programs whose recordings are used to benchmark the alert rules and `first_nonfinite`.

`keras_training` is a Keras model under `fit` with about 1,950 tensors a step. The hand-written cross-entropy of this
model takes the logarithm of a probability that is 0 from a chosen step on. `nested_loops` is a loop within another
loop. The last outer iteration takes the logarithm of a negative number.

    python benchmarks/alert_programs.py LOGDIR keras [--steps 550] [--bad-from 300]
    python benchmarks/alert_programs.py LOGDIR spread --from OTHER_LOGDIR --parts 2
    python benchmarks/alert_programs.py LOGDIR loops [--outer 200] [--inner 5]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tfdbg_arrow
from tfdbg_arrow.schema import TABLES, arrow_schema
from tfdbg_arrow.storage.layout import MARKER_NAME
from tfdbg_arrow.storage.manifest import read_live_parts, run_ids
from tfdbg_arrow.storage.marker import marker_text
from tfdbg_arrow.writer.sink.parts import PartWriter

BATCH, LENGTH, FEATURES, CLASSES = 32, 32, 8, 4
"""The gradient of batch normalization divides by BATCH * LENGTH, which exceeds exploding_gradient.limit's default."""
NUM_BLOCKS = 6


def keras_training(logdir: Path, *, num_steps: int, bad_from: int | None) -> None:
    """Trains a model of residual blocks with batch normalization. Every step from `bad_from` on is bad."""
    import keras
    import tensorflow as tf

    def cross_entropy(labels: tf.Tensor, probabilities: tf.Tensor) -> tf.Tensor:
        return -tf.reduce_mean(tf.reduce_sum(labels * tf.math.log(probabilities), axis=-1))

    keras.utils.set_random_seed(0)
    inputs = x = keras.Input((LENGTH, FEATURES))
    for _ in range(NUM_BLOCKS):
        y = keras.layers.Conv1D(FEATURES, 3, padding="same")(x)
        y = keras.layers.BatchNormalization()(y)
        y = keras.layers.Activation("relu")(y)
        x = keras.layers.Add()([x, keras.layers.Dense(FEATURES)(y)])
    for _ in range(2):
        x = keras.layers.Dense(FEATURES, activation="gelu")(x)
    sharpness = keras.Input((1,))
    logits = keras.layers.Dense(CLASSES)(keras.layers.GlobalAveragePooling1D()(x))
    outputs = keras.layers.Softmax()(keras.layers.Multiply()([logits, sharpness]))
    model = keras.Model([inputs, sharpness], outputs)
    model.compile(keras.optimizers.Adam(1e-4), loss=cross_entropy, jit_compile=False)
    rng = np.random.default_rng(0)
    examples = rng.normal(size=(num_steps * BATCH, LENGTH, FEATURES)).astype("float32")
    labels = np.eye(CLASSES, dtype="float32")[rng.integers(CLASSES, size=num_steps * BATCH)]
    factors = np.ones((num_steps * BATCH, 1), "float32")
    if bad_from is not None:
        factors[bad_from * BATCH :] = 1e4
    with tfdbg_arrow.capture(logdir, tensor_debug_mode="FULL_NUMERICS"):
        model.fit(
            [examples, factors],
            labels,
            batch_size=BATCH,
            shuffle=False,
            verbose=0,
            callbacks=[tfdbg_arrow.MarkCallback()],
        )


def nested_loops(logdir: Path, *, num_outer: int, num_inner: int) -> None:
    """Runs one loop within another loop. The last outer iteration takes the logarithm of a negative number."""
    import tensorflow as tf

    @tf.function  # type: ignore[untyped-decorator]
    def sample(start: tf.Tensor) -> tf.Tensor:
        state = start
        for outer in tf.range(num_outer):
            position = state * 0.5
            for _ in tf.range(num_inner):
                position = tf.sin(position) * 0.9 + 0.1
            state = tf.math.log(tf.reduce_max(position) + tf.cast(num_outer - 1 - outer, tf.float32) - 1.0) + position
        return state

    with tfdbg_arrow.capture(logdir):
        sample(tf.ones([4]))


def spread(logdir: Path, copy: Path, *, num_parts: int) -> None:
    """Copies a logdir, with the rows of tensor_health split into `num_parts` parts."""
    copy.mkdir(parents=True)
    (copy / MARKER_NAME).write_text(marker_text())
    for run_id in run_ids(logdir):
        parts: dict[str, list[pa.Table]] = {table.name: [arrow_schema(table.name).empty_table()] for table in TABLES}
        for entry in read_live_parts(logdir, run_id=run_id):
            parts[entry.table].append(pq.ParquetFile(logdir / entry.path).read())
        writer = PartWriter(copy, run_id)
        writer.start()
        for name, tables in parts.items():
            rows = pa.concat_tables(tables)
            length = -(-rows.num_rows // num_parts) if name == "tensor_health" else max(rows.num_rows, 1)
            for start in range(0, max(rows.num_rows, 1), length):
                writer.write(name, rows.slice(start, length))


def main() -> None:
    """Records the program that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("logdir", type=Path)
    parser.add_argument("program", choices=("keras", "loops", "spread"))
    parser.add_argument("--steps", type=int, default=550)
    parser.add_argument("--bad-from", type=int)
    parser.add_argument("--from", dest="source", type=Path)
    parser.add_argument("--parts", type=int, default=2)
    parser.add_argument("--outer", type=int, default=200)
    parser.add_argument("--inner", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.program == "loops":
        nested_loops(arguments.logdir, num_outer=arguments.outer, num_inner=arguments.inner)
    elif arguments.program == "spread":
        spread(arguments.source, arguments.logdir, num_parts=arguments.parts)
    else:
        keras_training(arguments.logdir, num_steps=arguments.steps, bad_from=arguments.bad_from)


if __name__ == "__main__":
    main()
