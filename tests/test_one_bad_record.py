"""Answers name the one bad record of a data set: its sample in the batch, and its row in arrays that are not shuffled.

Each program trains on 96 records in batches of 16, of which the record with the number `BAD` makes a bad value: in
features, labels, weights, masks or tokens; in `fit`, in loops, and under a strategy. `tests/test_bad_samples.py` has
other ways to train.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow

NUM, BAD, BATCH = 96, 37, 16
SAMPLE = BAD % BATCH

ON_TWO_DEVICES = ("fit_under_a_strategy", "under_a_strategy")

pytestmark = pytest.mark.slow


class Expected(NamedTuple):
    """What the answer must name.

    Attributes:
        sample: Index of the sample in the batch, or in the whole data if `whole` says so; None if the data is
            shuffled.
        row: The row of the arrays, or the number of the record.
        whole: What they are samples of.
    """

    sample: int | None = SAMPLE
    row: int | None = BAD
    whole: str = "the batch"


SHUFFLED = Expected(sample=None, row=None)
WHOLE_DATA = Expected(sample=BAD, row=None, whole="the data")

PROGRAMS: dict[str, tuple[Callable[[], object], Expected]] = {}


def program(expected: Expected = Expected()) -> Callable[[Callable[[], object]], Callable[[], object]]:  # noqa: B008
    """Declares a program with one bad record."""

    def declare(function: Callable[[], object]) -> Callable[[], object]:
        PROGRAMS[function.__name__] = (function, expected)
        return function

    return declare


def features(bad: float | None = 0.0) -> Any:
    found = np.random.default_rng(3).uniform(0.5, 1.5, (NUM, 5)).astype("float32")
    if bad is not None:
        found[BAD, 2] = bad
    return found


def labels(bad: float | None = None) -> Any:
    found = features(None).sum(axis=1, keepdims=True)
    if bad is not None:
        found[BAD] = bad
    return found


class LogLayer(keras.layers.Layer):  # type: ignore[misc]
    def call(self, x: Any) -> Any:
        return tf.math.log(x)


class UnitLength(keras.layers.Layer):  # type: ignore[misc]
    def call(self, x: Any) -> Any:
        return x / tf.sqrt(tf.reduce_sum(tf.square(x), axis=-1, keepdims=True))


class MaskedMean(keras.layers.Layer):  # type: ignore[misc]
    def call(self, inputs: Any) -> Any:
        x, mask = inputs
        return tf.reduce_sum(x * mask[:, :, None], axis=1) / tf.reduce_sum(mask, axis=1, keepdims=True)


def trained(model: Any, *data: Any, loss: Any = "mse", **options: Any) -> None:
    model.compile("sgd", loss, **options.pop("compile", {}))
    model.fit(*data, **{"batch_size": BATCH, "shuffle": False, "verbose": 0, "epochs": 2, **options})


@program()
def zero_feature_under_a_logarithm() -> None:
    trained(keras.Sequential([LogLayer(), keras.layers.Dense(1)]), features(), labels())


@program(SHUFFLED)
def zero_feature_in_shuffled_arrays() -> None:
    trained(keras.Sequential([LogLayer(), keras.layers.Dense(1)]), features(), labels(), shuffle=True)


@program()
def row_of_zeros_is_given_unit_length() -> None:
    x = features(None)
    x[BAD] = 0
    trained(keras.Sequential([UnitLength(), keras.layers.Dense(1)]), x, labels())


@program(WHOLE_DATA)
def nan_feature() -> None:
    trained(keras.Sequential([keras.layers.Dense(3, "relu"), keras.layers.Dense(1)]), features(np.nan), labels())


@program(WHOLE_DATA)
def infinite_feature_in_shuffled_arrays() -> None:
    model = keras.Sequential([keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
    trained(model, features(np.inf), labels(), shuffle=True)


@program(WHOLE_DATA)
def nan_sample_weight() -> None:
    weights = np.ones(NUM, "float32")
    weights[BAD] = np.nan
    trained(keras.Sequential([keras.layers.Dense(1)]), features(None), labels(), sample_weight=weights)


@program()
def negative_label_under_a_logarithm() -> None:
    def log_error(y: Any, prediction: Any) -> Any:
        return tf.square(tf.math.log(y) - prediction)

    trained(keras.Sequential([keras.layers.Dense(1)]), features(None), labels(-1.0), loss=log_error)


@program()
def label_zero_under_a_relative_error() -> None:
    def relative(y: Any, prediction: Any) -> Any:
        return tf.abs(prediction - y) / y

    trained(keras.Sequential([keras.layers.Dense(1)]), features(None), labels(0.0), loss=relative)


@program()
def mask_without_a_step() -> None:
    x = np.random.default_rng(1).normal(size=(NUM, 7, 5)).astype("float32")
    mask = np.ones((NUM, 7), "float32")
    mask[BAD] = 0
    inputs = [keras.Input((7, 5)), keras.Input((7,))]
    model = keras.Model(inputs, keras.layers.Dense(1)(MaskedMean()(inputs)))
    trained(model, [x, mask], labels())


@program()
def text_without_a_token() -> None:
    tokens = np.random.default_rng(2).integers(1, 50, (NUM, 9))
    tokens[BAD] = 0

    class MeanOfTokens(keras.layers.Layer):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            ids, vectors = inputs
            mask = tf.cast(ids != 0, tf.float32)
            return tf.reduce_sum(vectors * mask[:, :, None], axis=1) / tf.reduce_sum(mask, axis=1, keepdims=True)

    ids = keras.Input((9,), dtype="int32")
    model = keras.Model(ids, keras.layers.Dense(1)(MeanOfTokens()([ids, keras.layers.Embedding(50, 4)(ids)])))
    trained(model, tokens, labels())


@program()
def token_whose_vector_is_zero() -> None:
    tokens = np.random.default_rng(2).integers(1, 50, (NUM, 9))
    tokens[BAD] = 0
    table = np.ones((50, 4), "float32")
    table[0] = 0
    vectors = keras.layers.Embedding(50, 4, embeddings_initializer=keras.initializers.Constant(table))
    layers = [vectors, keras.layers.Flatten(), LogLayer(), keras.layers.Dense(1)]
    trained(keras.Sequential([keras.Input((9,), dtype="int32"), *layers]), tokens, labels())


@program()
def record_that_a_function_of_a_data_set_reads_and_reshapes() -> None:
    def parse(number: Any) -> Any:
        record = tf.io.decode_raw(tf.gather(texts, number), tf.float32)
        return tf.reshape(record, (5, 1)), tf.ones([1])

    texts = tf.constant([row.tobytes() for row in features(np.nan)])
    data = tf.data.Dataset.range(NUM).map(parse).batch(BATCH)
    loop(data, step_of(lambda x: tf.squeeze(x, -1)))


@program()
def data_set_of_texts_with_a_map() -> None:
    def parse(text: Any, label: Any) -> Any:
        return tf.math.log(tf.strings.to_number(text)[None]), label

    texts = [str(value) for value in features()[:, 2]]
    data = tf.data.Dataset.from_tensor_slices((texts, labels())).map(parse).batch(BATCH)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(data, epochs=2, verbose=0, shuffle=False)


@program()
def data_set_with_a_map() -> None:
    data = tf.data.Dataset.from_tensor_slices((features(), labels())).map(lambda x, y: (x, 2.0 * y))
    model = keras.Sequential([LogLayer(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(data.batch(BATCH).prefetch(2), epochs=2, verbose=0, shuffle=False)


@program()
def custom_train_step() -> None:
    class Custom(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.dense(tf.math.log(x))

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
            self.optimizer.apply_gradients(
                zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True)
            )
            return {"loss": loss}

    trained(Custom(), features(), labels())


def loop(batches: Any, step: Callable[[Any, Any], object]) -> None:
    for x, y in batches:
        step(x, y)


def step_of(forward: Callable[[Any], Any]) -> Callable[[Any, Any], object]:
    weight = tf.Variable(tf.ones([5, 1]))

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(forward(x) @ weight - tf.cast(y, tf.float32)))
        weight.assign_sub(0.01 * tape.gradient(loss, weight))

    function: Callable[[Any, Any], object] = tf.function(step)
    return function


def pixels() -> Any:
    """Returns images as bytes, of which one is blank."""
    images = np.random.default_rng(5).integers(1, 256, (NUM, 5, 4), dtype=np.uint8)
    images[BAD] = 0
    return images


class PerImageContrast(keras.layers.Layer):  # type: ignore[misc]
    def call(self, x: Any) -> Any:
        x = tf.cast(x, tf.float32) / 255.0
        return (x - tf.reduce_mean(x, axis=[1, 2], keepdims=True)) / tf.math.reduce_std(x, axis=[1, 2], keepdims=True)


@program()
def blank_image_of_bytes() -> None:
    layers = [keras.Input((5, 4), dtype="uint8"), PerImageContrast(), keras.layers.Flatten(), keras.layers.Dense(3)]
    classes = np.arange(NUM) % 3
    trained(keras.Sequential(layers), pixels(), classes, loss=keras.losses.SparseCategoricalCrossentropy(True))


@program()
def blank_image_of_bytes_in_a_loop() -> None:
    contrast = PerImageContrast()
    data = tf.data.Dataset.from_tensor_slices((pixels(), np.arange(NUM)[:, None] % 3)).batch(BATCH)
    loop(data, step_of(lambda x: contrast(x)[:, :, 0]))


@program()
def zero_in_a_column_of_integers() -> None:
    clicks, age = keras.Input((1,), name="clicks", dtype="int64"), keras.Input((1,), name="age")
    logarithm = LogLayer()(keras.ops.cast(clicks, "float32"))
    both = keras.ops.concatenate([logarithm, age], axis=-1)
    model = keras.Model({"clicks": clicks, "age": age}, keras.layers.Dense(1)(both))
    counts = np.arange(1, NUM + 1)
    counts[BAD] = 0
    trained(model, {"clicks": counts, "age": features()[:, 0]}, labels())


@program(SHUFFLED)
def loop_over_shuffled_data() -> None:
    data = tf.data.Dataset.from_tensor_slices((features(), labels())).shuffle(NUM, seed=1).batch(BATCH)
    loop(data, step_of(tf.math.log))


GENERATED = np.random.default_rng(4).permutation(NUM)
"""The rows of the arrays in the order of the generator."""
NUMBER = int(np.flatnonzero(GENERATED == BAD)[0])


@program(Expected(sample=NUMBER % BATCH, row=NUMBER))
def generator() -> None:
    x, y = features(), labels()

    def records() -> Any:
        for row in GENERATED:
            yield x[row], y[row]

    kinds = (tf.TensorSpec([5], tf.float32), tf.TensorSpec([1], tf.float32))
    loop(tf.data.Dataset.from_generator(records, output_signature=kinds).batch(BATCH), step_of(tf.math.log))


@program(Expected(sample=SAMPLE % (BATCH // 2), row=None, whole="the batch of replica 0"))
def under_a_strategy() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    data = tf.data.Dataset.from_tensor_slices((features(), labels())).batch(BATCH)
    with strategy.scope():
        weight = tf.Variable(tf.ones([5, 1]))

    def replica(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.math.log(x) @ weight - y))
        gradient = tf.distribute.get_replica_context().all_reduce("sum", tape.gradient(loss, weight))
        weight.assign_sub(0.01 * gradient)
        return loss

    @tf.function
    def step(batch: Any) -> None:
        strategy.run(replica, args=batch)

    for batch in strategy.experimental_distribute_dataset(data):
        step(batch)


@program(Expected(sample=2, whole="the batch of replica 1"))
def fit_under_a_strategy() -> None:
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        trained(keras.Sequential([LogLayer(), keras.layers.Dense(1)]), features(), labels(), batch_size=10)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_bad_record_is_named(tmp_path: Path, name: str) -> None:
    run, expected = PROGRAMS[name]
    if name in ON_TWO_DEVICES:
        command = [sys.executable, "-m", "tests.test_one_bad_record", name, str(tmp_path)]
        subprocess.run(command, cwd=Path(__file__).parents[1], check=True, timeout=300)
    else:
        keras.utils.set_random_seed(1)
        with tfdbg_arrow.capture(tmp_path):
            run()
    with tfdbg_arrow.open_logdir(tmp_path) as opened:
        found = opened.first_nonfinite()
    assert found is not None
    assert found.samples is not None, found.headline
    samples = found.samples
    assert (samples.num_bad, samples.whole) == (1, expected.whole)
    assert (expected.sample or samples.first, samples.row) == (samples.first, expected.row)
    assert f"sample {samples.first} of {samples.whole}" in found.headline


@pytest.mark.parametrize("name", ["zero_feature_under_a_logarithm", "row_of_zeros_is_given_unit_length"])
def test_the_repair_names_data_that_no_op_changed(name: str, tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path):
        PROGRAMS[name][0]()
    first = tfdbg_arrow.first_nonfinite(tmp_path)
    assert first is not None
    explanation = tfdbg_arrow.query.read_reasons(tmp_path, first).explanation
    assert explanation is not None
    is_of_data = (explanation.repair or "").endswith(
        "The argument is data that no op changed: if such numbers are not meant to be there, replace them in this "
        "sample, or leave this sample out."
    )
    assert is_of_data == (name == "zero_feature_under_a_logarithm")


def records_that_a_function_spoils(bad: dict[int, tuple[bool, bool]], *, parallel: int | None = None) -> None:
    """Trains on records. In the rows of `bad`, a function spoils the features, the labels or both."""
    x, y = np.ones((NUM, 5), "float32"), np.ones((NUM, 1), "float32")
    for row, (in_features, in_labels) in bad.items():
        x[row], y[row] = 0.0 if in_features else 1.0, 0.0 if in_labels else 1.0

    def normalize(x: Any, y: Any) -> tuple[Any, Any]:
        return x / tf.reduce_sum(x), y / tf.reduce_sum(y)

    data = tf.data.Dataset.from_tensor_slices((x, y)).map(normalize, num_parallel_calls=parallel)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(data.batch(BATCH).prefetch(2), verbose=0, shuffle=False)


BOTH = BATCH + 3, BATCH + 5
"""Rows of the second batch."""


@pytest.mark.parametrize(
    ("bad", "parallel", "expected"),
    [
        (dict.fromkeys(BOTH, (True, False)), None, (3, 2, BOTH[0])),
        (dict.fromkeys((*BOTH, 2 * BATCH), (True, False)), None, (3, 2, BOTH[0])),  # the function runs ahead
        (dict.fromkeys(BOTH, (True, False)), 2, (3, 2, BOTH[0])),
        # One record at a time: TensorFlow calls the function for several records at once otherwise, so that either of
        # the two ops comes first.
        ({BOTH[0]: (True, False), BOTH[1]: (False, True)}, 1, (3, None, BOTH[0])),
        ({BOTH[0]: (False, True), BOTH[1]: (True, False)}, 1, (3, None, BOTH[0])),
        ({BOTH[0]: (True, True)}, None, (3, 1, BOTH[0])),
    ],
    ids=[
        "two in a batch",
        "and one in the next batch",
        "in parallel",
        "in different components",
        "first in the second component",
        "in both components",
    ],
)
def test_several_records_that_a_function_spoils(
    tmp_path: Path,
    bad: dict[int, tuple[bool, bool]],
    parallel: int | None,
    expected: tuple[int, int | None, int | None],
) -> None:
    keras.utils.set_random_seed(1)
    with tfdbg_arrow.capture(tmp_path):
        records_that_a_function_spoils(bad, parallel=parallel)
    with tfdbg_arrow.open_logdir(tmp_path) as opened:
        found = opened.first_nonfinite()
    assert found is not None
    assert found.step == 1
    assert found.samples is not None
    assert (found.samples.first, found.samples.num_bad, found.samples.row) == expected


def main(name: str, logdir: str) -> None:
    """Records one of the programs with two devices, which TensorFlow must get before it starts."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    with tfdbg_arrow.capture(logdir):
        PROGRAMS[name][0]()


if __name__ == "__main__":
    main(*sys.argv[1:])
