"""Programs with bad values from outside: files, generators, arrays, constants, preprocessing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.culprit.corpus import bug, harmless


def _regression() -> Any:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


@bug(op_type=None, effect="variable")
def array_with_a_missing_value() -> None:
    """A data frame has an empty cell. keras-team/keras#12371."""
    features = np.ones((8, 2), "float32")
    features[5, 1] = np.nan
    _regression().fit(features, np.ones((8, 1), "float32"), batch_size=4, shuffle=False, epochs=1, verbose=0)  # culprit


@bug(op_type=None, effect="result", raises=tf.errors.InvalidArgumentError)
def missing_token() -> None:
    """A NaN among token numbers is cast to an integer that is no word's number. tensorflow/tensorflow#41312."""
    tokens = np.ones((8, 3), "float32")
    tokens[5, 1] = np.nan
    layers = [keras.layers.Embedding(9, 2), keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile("sgd", "mse")
    model.fit(tokens, np.ones((8, 1), "float32"), batch_size=4, shuffle=False, epochs=1, verbose=0)  # culprit


@bug(op_type="RealDiv", effect="result")
def class_numbers_of_a_constant_feature() -> Any:
    """All scores are NaN, so every example gets the first class. The program only sees the number of the class."""

    @tf.function
    def classify(features: Any, weights: Any) -> Any:
        low, high = tf.reduce_min(features, axis=0), tf.reduce_max(features, axis=0)
        scaled = (features - low) / (high - low)  # culprit
        return tf.argmax(tf.nn.softmax(tf.tanh(scaled @ weights)), axis=1)

    return classify(tf.constant([[1.0, 5.0], [2.0, 5.0], [4.0, 5.0]]), tf.constant([[1.0, -1.0], [0.5, 2.0]]))


@bug(op_type=None, effect="variable")
def targets_with_an_infinity() -> None:
    """A target is a ratio with a zero denominator."""
    targets = np.ones((4, 1), "float32")
    targets[2] = np.inf
    _regression().fit(np.ones((4, 2), "float32"), targets, epochs=1, verbose=0)  # culprit


@bug(op_type="StringToNumber", effect="variable")
def csv_cell_that_says_nan() -> None:
    """A column of a file is parsed, and a cell of the column contains nan."""

    def parse(line: Any) -> Any:
        cells = tf.strings.split(line, ",")
        numbers = tf.strings.to_number(cells)  # culprit
        return numbers[:2], numbers[2:]

    rows = tf.data.Dataset.from_tensor_slices(["1,2,3", "4,nan,6"]).map(parse).batch(2)
    _regression().fit(rows, epochs=1, verbose=0)


@bug(op_type="DecodeCSV", effect="result")
def csv_record_with_an_infinity() -> Any:
    """tf.io.decode_csv reads inf."""
    columns = tf.io.decode_csv(["1.5,2.5", "0.5,inf"], [0.0, 0.0])  # culprit
    return tf.reduce_sum(tf.stack(columns, axis=-1), axis=-1)


@bug(op_type="Const", effect="variable")
def csv_field_that_is_missing() -> None:
    """The default that is given to tf.io.decode_csv is NaN, and a record has an empty field."""

    def parse(line: Any) -> Any:
        columns = tf.io.decode_csv(line, record_defaults=[float("nan")] * 3)  # culprit
        return tf.stack(columns[:2]), columns[2:]

    rows = tf.data.Dataset.from_tensor_slices(["1,2,3", "4,,6"]).map(parse).batch(2)
    _regression().fit(rows, epochs=1, verbose=0)


@bug(op_type="RealDiv", effect="variable")
def standardise_a_constant_column() -> None:
    """A map of tf.data divides a constant column by its standard deviation, which is 0."""
    values = np.ones((8, 2), "float32")
    values[:, 0] = np.arange(8)
    mean, deviation = values.mean(axis=0), values.std(axis=0)

    def standardise(row: Any, target: Any) -> Any:
        return (row - mean) / deviation, target  # culprit

    rows = tf.data.Dataset.from_tensor_slices((values, np.ones((8, 1), "float32"))).map(standardise).batch(4)
    _regression().fit(rows, epochs=1, verbose=0)


@bug(op_type="RealDiv", effect="variable")
def scale_images_by_their_range() -> None:
    """The program divides an image by its range, and the range of a completely black image is 0."""

    @tf.function
    def scale(image: Any) -> Any:
        low, high = tf.reduce_min(image), tf.reduce_max(image)
        return (image - low) / (high - low)  # culprit

    images = np.random.default_rng(0).uniform(size=(3, 4)).astype("float32")
    images[1] = 0.0
    weights = tf.Variable(tf.zeros([4]))
    for image in images:
        scaled = scale(tf.constant(image))
        weights.assign_add(0.1 * scaled)


@bug(op_type="Log", effect="variable")
def log_scale_of_a_count_of_zero() -> None:
    """The pipeline takes the logarithm of counts, and one count is 0."""
    counts = np.array([[1, 2], [0, 5]], "float32")
    rows = tf.data.Dataset.from_tensor_slices((counts, np.ones((2, 1), "float32")))
    rows = rows.map(lambda row, target: (tf.math.log(row), target)).batch(2)  # culprit
    _regression().fit(rows, epochs=1, verbose=0)


@bug(op_type="PyFunc", effect="variable")
def generator_that_yields_nan() -> None:
    """A generator computes its features with NumPy. The result is 0/0."""

    def examples() -> Any:
        for count in (2.0, 1.0, 0.0, 3.0):
            with np.errstate(invalid="ignore"):
                share = np.float32(count) / np.float32(count)
            yield np.array([count, share], "float32"), np.ones(1, "float32")

    signature = (tf.TensorSpec((2,)), tf.TensorSpec((1,)))
    rows = tf.data.Dataset.from_generator(examples, output_signature=signature).batch(2)  # culprit
    _regression().fit(rows, epochs=1, verbose=0)


@bug(op_type="PyFunc", effect="variable")
def dataset_of_keras_with_an_infinite_weight() -> None:
    """A PyDataset returns weights that NumPy computed as 1 / 0."""

    class Customers(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            with np.errstate(divide="ignore"):
                weights = 1.0 / np.array([0.5, 0.25, 0.0, 0.5], "float32")
            return np.ones((1, 2), "float32"), np.zeros((1, 1), "float32"), weights[index : index + 1]

    _regression().fit(Customers(), shuffle=False, epochs=1, verbose=0)  # culprit


@bug(op_type="EagerPyFunc", effect="result")
def feature_of_a_python_function() -> Any:
    """tf.py_function calls numpy, which divides by zero."""

    def ratio(values: Any) -> Any:
        with np.errstate(divide="ignore"):
            return np.float32(1.0) / values.numpy()

    @tf.function
    def features(values: Any) -> Any:
        ratios = tf.py_function(ratio, [values], tf.float32)  # culprit
        return tf.reduce_sum(ratios) * 2.0

    return features(tf.constant([1.0, 0.0]))


@bug(op_type="Log", effect="variable")
def entropy_in_a_python_function() -> None:
    """tf.py_function runs eager ops. In the fourth call, one of these ops makes an infinity."""
    weights = tf.Variable([1.0, 2.0])

    def entropy(shares: Any) -> Any:
        return -tf.reduce_sum(shares * tf.math.log(shares))  # culprit

    @tf.function
    def train_step(values: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.py_function(entropy, [values * weights], tf.float32)
        weights.assign_sub(0.01 * tape.gradient(loss, weights))

    for number in range(5):
        train_step(tf.constant([1.0, 0.5 if number < 3 else 0.0]))


@bug(op_type="Log", effect="variable")
def record_that_a_python_function_makes() -> None:
    """A function of a data set calls a Python function, which takes the logarithm of a negative number."""
    records = np.ones((8, 2), "float32")
    records[5, 1] = -0.5

    def magnitude(flux: Any) -> Any:
        return -2.5 * tf.math.log(flux) / tf.math.log(10.0)  # culprit

    def load(flux: Any) -> Any:
        return tf.ensure_shape(tf.py_function(magnitude, [flux], tf.float32), [2]), tf.ones([1])

    _regression().fit(tf.data.Dataset.from_tensor_slices(records).map(load).batch(2), epochs=1, verbose=0)


@harmless
def quotient_that_a_python_function_replaces() -> Any:
    """The Python function replaces the NaN of 0 / 0 before it returns."""

    def share(values: Any) -> Any:
        shares = values / tf.reduce_sum(values, axis=1, keepdims=True)
        return tf.where(tf.math.is_nan(shares), 0.0, shares)

    @tf.function
    def total(values: Any) -> Any:
        return tf.reduce_sum(tf.py_function(share, [values], tf.float32))

    return total(tf.constant([[1.0, 0.5], [0.0, 0.0]]))


@bug(op_type="PyFunc", effect="result")
def feature_of_a_numpy_function() -> Any:
    """tf.numpy_function takes the logarithm of a negative number."""

    def log(values: Any) -> Any:
        with np.errstate(invalid="ignore"):
            return np.log(values)

    @tf.function
    def features(values: Any) -> Any:
        logs = tf.numpy_function(log, [values], tf.float32)  # culprit
        return tf.reduce_mean(logs)

    return features(tf.constant([1.0, -2.0]))


@bug(op_type=None, effect="variable")
def batch_from_numpy_in_a_loop() -> None:
    """The third batch of a loop contains a NaN. The line to name passes the batch to TensorFlow."""
    batches = np.ones((4, 2), "float32")
    batches[2, 0] = np.nan
    weights = tf.Variable([0.5, 0.5])
    for batch in batches:
        with tf.GradientTape() as tape:
            inputs = tf.constant(batch)
            loss = tf.square(tf.reduce_sum(inputs * weights) - 1.0)  # culprit
        weights.assign_sub(0.1 * tape.gradient(loss, weights))


@bug(op_type=None, effect="variable")
def argument_of_a_function() -> None:
    """An array with a NaN is passed to a tf.function that was traced before."""
    weights = tf.Variable([0.5, 0.5])

    @tf.function
    def train_step(batch: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(batch * weights))
        weights.assign_sub(0.1 * tape.gradient(loss, weights))

    train_step(tf.ones([2]))
    spoilt = tf.convert_to_tensor(np.array([np.nan, 1.0], "float32"))
    train_step(spoilt)  # culprit


@bug(op_type="Const", effect="variable")
def constant_made_by_numpy() -> None:
    """NumPy computes a table that contains log(0). The table is a constant of the graph."""
    with np.errstate(divide="ignore"):
        prior = np.log(np.array([0.5, 0.5, 0.0], "float32"))
    logits = tf.Variable([0.1, 0.2, 0.3])

    @tf.function
    def train_step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.softmax(logits) * prior)  # culprit
        logits.assign_sub(0.1 * tape.gradient(loss, logits))

    train_step()


@bug(op_type="ParseExampleV2", effect="variable")
def example_that_holds_a_nan() -> None:
    """A record file was written with a NaN."""
    bad = tf.train.Feature(float_list=tf.train.FloatList(value=[1.0, float("nan")]))
    good = tf.train.Feature(float_list=tf.train.FloatList(value=[1.0, 2.0]))
    records = [tf.train.Example(features=tf.train.Features(feature={"x": f})).SerializeToString() for f in (good, bad)]
    weights = tf.Variable([0.5, 0.5])

    @tf.function
    def train_step(batch: Any) -> None:
        parsed = tf.io.parse_example(batch, {"x": tf.io.FixedLenFeature([2], tf.float32)})  # culprit
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(parsed["x"] * weights))
        weights.assign_sub(0.1 * tape.gradient(loss, weights))

    train_step(tf.constant(records))


def _write_raw_floats(directory: Path) -> None:
    np.array([1.0, np.inf, 2.0], "float32").tofile(directory / "floats.bin")


@bug(op_type="DecodeRaw", effect="result", prepare=_write_raw_floats)
def raw_file_that_holds_an_infinity(directory: Path) -> Any:
    """Raw bytes are read as floats."""
    content = tf.io.read_file(str(directory / "floats.bin"))
    values = tf.io.decode_raw(content, tf.float32)  # culprit
    return tf.reduce_mean(values)


@bug(op_type="Bitcast", effect="result")
def bytes_read_with_the_wrong_type() -> Any:
    """The bits of integers are read as floats."""
    words = tf.constant([0x3F800000, -1], tf.int32)
    return tf.reduce_sum(tf.bitcast(words, tf.float32))  # culprit


@bug(op_type="Square", effect="variable")
def bytes_read_in_the_wrong_byte_order() -> None:
    """Records of big-endian numbers are read as little-endian numbers, of which some are very large."""
    random = np.random.default_rng(32)
    records = [random.normal(size=3).astype(">f4").tobytes() for _ in range(16)]
    weights = tf.Variable(tf.ones([3, 1]))

    @tf.function
    def train_step(features: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(features @ weights))  # culprit
        weights.assign_sub(0.01 * tape.gradient(loss, weights))
        return loss

    data = tf.data.Dataset.from_tensor_slices(records)
    data = data.map(lambda record: tf.ensure_shape(tf.io.decode_raw(record, tf.float32), [3])).batch(8)
    for features in data:
        train_step(features)


@bug(op_type="RealDiv", effect="variable")
def average_of_a_bag_without_words() -> None:
    """The program takes the mean of the embeddings of a text without any known word."""

    class Bag(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.table = self.add_weight(shape=(5, 3), initializer="uniform")

        def call(self, counts: Any) -> Any:
            return counts @ self.table / tf.reduce_sum(counts, axis=-1, keepdims=True)  # culprit

    model = keras.Sequential([keras.Input((5,)), Bag(), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    counts = np.array([[1, 0, 2, 0, 0], [0, 0, 0, 0, 0]], "float32")
    model.fit(counts, np.ones((2, 1), "float32"), epochs=1, verbose=0)


@bug(op_type="Mean", effect="variable")
def ragged_row_without_elements() -> None:
    """A loop over the rows of a ragged tensor takes the mean of each row. One row is empty."""
    rows = tf.ragged.constant([[1.0, 2.0], [], [3.0]])
    weight = tf.Variable(1.0)
    for index in range(3):
        with tf.GradientTape() as tape:
            loss = weight * tf.reduce_mean(rows[index])  # culprit
        weight.assign_sub(0.1 * tape.gradient(loss, weight))


@bug(op_type="RealDiv", effect="variable")
def sparse_row_normalisation() -> None:
    """The rows of an adjacency matrix are divided by the degrees of the nodes, and one node has no edge."""
    adjacency = tf.constant([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])

    class Convolution(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight(shape=(shape[-1], 2), initializer="ones")

        def call(self, nodes: Any) -> Any:
            normalised = adjacency / tf.reduce_sum(adjacency, axis=-1, keepdims=True)  # culprit
            return normalised @ nodes @ self.kernel

    model = keras.Sequential([keras.Input((2,)), Convolution()])
    model.compile("sgd", "mse")
    model.fit(np.ones((3, 2), "float32"), np.ones((3, 2), "float32"), batch_size=3, epochs=1, verbose=0)


@bug(op_type="Pow", effect="variable")
def symmetric_normalisation_of_an_isolated_node() -> None:
    """The reciprocal root of the degree is infinite for a node without edges. This root is then multiplied by 0."""
    adjacency = tf.constant([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    kernel = tf.Variable(tf.ones([3, 2]))
    with tf.GradientTape() as tape:
        inverse = tf.pow(tf.reduce_sum(adjacency, axis=-1), -0.5)  # culprit
        normalised = inverse[:, None] * adjacency * inverse[None, :]
        loss = tf.reduce_mean(tf.square(normalised @ kernel - 1.0))
    kernel.assign_sub(0.1 * tape.gradient(loss, kernel))


def _fit(records: tf.data.Dataset, num_features: int, loss: Any = "mse") -> None:
    model = keras.Sequential([keras.Input((num_features,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(2)])
    model.compile("sgd", loss)
    model.fit(records.batch(4), epochs=1, verbose=0)


@bug(op_type="RealDiv", effect="variable")
def flat_series_among_series_with_gaps() -> None:
    """A function of the data set fills gaps in series, and then standardises the series.

    Only a flat series does harm.
    """
    series = np.random.default_rng(2).normal(size=(12, 6)).astype("float32")
    series[[1, 4, 9], [3, 0, 5]] = np.nan
    series[6] = 3.0

    def prepared(x: Any, y: Any) -> Any:
        x = tf.where(tf.math.is_nan(x), 0.0, x)
        centred = x - tf.reduce_mean(x)
        return centred / tf.math.reduce_std(x), y  # culprit

    _fit(tf.data.Dataset.from_tensor_slices((series, np.ones((12, 2), "float32"))).map(prepared), 6)


@bug(op_type="RealDiv", effect="variable")
def empty_record_beside_masked_targets() -> None:
    """Missing targets are masked in the loss. A record of zeros is divided by its largest element."""
    features = np.random.default_rng(3).uniform(size=(12, 5)).astype("float32")
    features[7] = 0.0
    targets = np.random.default_rng(4).normal(size=(12, 2)).astype("float32")
    targets[[0, 2, 5], [1, 0, 1]] = np.nan

    def scaled(x: Any, y: Any) -> Any:
        return x / tf.reduce_max(x), y  # culprit

    def error_of_known(y: Any, prediction: Any) -> Any:
        is_known = tf.math.is_finite(y)
        return tf.where(is_known, tf.square(tf.where(is_known, y, 0.0) - prediction), 0.0)

    _fit(tf.data.Dataset.from_tensor_slices((features, targets)).map(scaled), 5, error_of_known)


@bug(op_type="Log", effect="variable")
def price_of_zero_among_complete_records() -> None:
    """Incomplete records are left out. One of the complete records has a price of 0."""
    prices = np.random.default_rng(5).uniform(1, 2, (12, 4)).astype("float32")
    prices[[1, 8]] = np.nan
    prices[10, 2] = 0.0
    weight = tf.Variable(tf.zeros([3, 1]))

    def returns(price: Any) -> Any:
        return tf.math.log(price[1:] / price[0])  # culprit

    records = tf.data.Dataset.from_tensor_slices(prices).filter(lambda x: tf.reduce_all(tf.math.is_finite(x)))

    @tf.function
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ weight - 1.0))
        weight.assign_sub(0.1 * tape.gradient(loss, weight))

    for batch in records.map(returns).batch(4):
        step(batch)


@bug(op_type="RealDiv", effect="variable")
def equalised_image_of_one_colour() -> None:
    """An infinity marks the empty bins of the histogram of each image. One image has a single bin."""
    images = np.random.default_rng(6).integers(0, 8, (12, 16)).astype("int32")
    images[5] = 3

    def equalised(image: Any, y: Any) -> Any:
        counts = tf.cast(tf.cumsum(tf.math.bincount(image, minlength=8, maxlength=8)), tf.float32)
        lowest = tf.reduce_min(tf.where(counts > 0, counts, np.inf))
        levels = (counts - lowest) / (counts[-1] - lowest)  # culprit
        return tf.clip_by_value(tf.gather(levels, image), 0.0, 1.0), y

    records = tf.data.Dataset.from_tensor_slices((images, np.ones((12, 2), "float32"))).map(equalised)
    _fit(records, 16)


@bug(op_type=None, effect="variable")
def infinite_rate_of_an_empty_history() -> None:
    """NumPy divides by the mean of losses that are 0 before the first step. The infinite rate is not a mask."""
    weights = tf.Variable([1.0, 2.0])
    losses = np.zeros(3, "float32")

    @tf.function
    def step(x: Any, rate: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(weights * x))
        weights.assign_sub(rate * tape.gradient(loss, weights))

    with np.errstate(divide="ignore"):
        rate = np.float32(0.1) / losses.mean()
    for _ in range(3):
        step(tf.constant([1.0, 0.5]), tf.constant(rate))  # culprit


@bug(op_type=None, effect="variable")
def missing_pixels_in_a_pool() -> None:
    """Clouds are stored as NaN. If a window has only NaN, its maximum is -3.4e38. tensorflow/tensorflow#2501."""
    images = np.random.default_rng(97).random((12, 8, 8, 1)).astype("float32")
    images[9, 2:6, 2:6] = np.nan
    kernel, head = tf.Variable(tf.fill([3, 3, 1, 2], 0.2)), tf.Variable(tf.fill([8, 1], 0.1))

    @tf.function
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            pooled = tf.nn.max_pool2d(x, 2, 2, "VALID")
            features = tf.reshape(tf.nn.conv2d(pooled, kernel, 1, "VALID"), [-1, 8])
            loss = tf.reduce_mean(tf.square(features @ head - 1.0))
        for variable, gradient in zip([kernel, head], tape.gradient(loss, [kernel, head]), strict=True):
            variable.assign_sub(0.01 * gradient)

    for batch in tf.data.Dataset.from_tensor_slices(images).batch(4):  # culprit
        step(batch)


@bug(op_type="RealDiv", effect="variable")
def eager_features_of_an_unknown_text() -> None:
    """Eager code divides each row by its norm. A function of the data set passes the tensor to `fit`."""
    counts = np.random.default_rng(45).integers(1, 4, (12, 2)).astype("float32")
    counts[8] = 0.0
    counts = tf.constant(counts)
    features = counts / tf.sqrt(tf.reduce_sum(counts * counts, axis=1, keepdims=True))  # culprit
    _regression().fit(features, np.ones((12, 1), "float32"), batch_size=4, epochs=1, verbose=0)


@bug(op_type="Placeholder", effect="variable")
def padding_of_nan_times_0() -> None:
    """Batches are padded with NaN. The product with a mask is to remove the padding, but NaN * 0 is NaN."""
    lengths = [3, 1, 2, 3]
    data = tf.data.Dataset.from_generator(
        lambda: (np.ones(length, "float32") for length in lengths), output_signature=tf.TensorSpec([None])
    )
    data = data.padded_batch(2, padded_shapes=[3], padding_values=np.float32(np.nan))
    data = data.map(lambda x: x * tf.cast(~tf.math.is_nan(x), tf.float32))  # culprit
    weights = tf.Variable(tf.ones([3, 1]))

    @tf.function
    def train_step(features: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(features @ weights))
        weights.assign_sub(0.01 * tape.gradient(loss, weights))
        return loss

    for features in data:
        train_step(features)
