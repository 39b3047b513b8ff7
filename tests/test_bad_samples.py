"""Answers name the bad samples of a batch, and only where the recording shows that the first axis is the batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.query import BadSamples, NonFinite
from tfdbg_arrow.query.bad_samples import SampleFinder
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.wording import facts_text, place_facts

NUM_ROWS, BAD_ROW, BATCH = 100, 53, 20
ORDERED = f"sample 13 is row {BAD_ROW} of the arrays that the batches come from"
NUMBERED = f"sample 13 is record {BAD_ROW} of the data set that the batches come from"
CLEAN = "the batch itself has no NaN and no infinity"
ONE_BAD = ("where", f"sample 13 of the batch, the only bad one of {BATCH}")


def arrays() -> tuple[Any, Any]:
    """Returns features, of which one is 0, and labels."""
    features = np.random.default_rng(0).uniform(1, 2, (NUM_ROWS, 6)).astype("float32")
    features[BAD_ROW, 2] = 0
    return features, features.sum(axis=1, keepdims=True)


def first(logdir: Path, program: Callable[[], object], **settings: Any) -> NonFinite:
    with tfdbg_arrow.capture(logdir, **settings):
        program()
    with tfdbg_arrow.open_logdir(logdir) as opened:
        tensor = opened.first_nonfinite()
    assert tensor is not None
    return tensor


def facts_of(tensor: NonFinite) -> list[tuple[str, str]]:
    return list(place_facts(tensor, tensor.samples))


def texts(logdir: Path, program: Callable[[], object], **settings: Any) -> list[tuple[str, str]]:
    return facts_of(first(logdir, program, **settings))


class Log(keras.layers.Layer):  # type: ignore[misc]
    def call(self, x: Any) -> Any:
        return tf.math.log(x)


def fit(data: Any, *, units: int = 4, **options: Any) -> None:
    model = keras.Sequential([Log(), keras.layers.Dense(units, "relu"), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(*data, verbose=0, **options)


def train_on(data: Any, forward: Callable[[Any], Any] = tf.math.log) -> None:
    """Trains in a loop over a data set, in less time than `fit` takes."""
    scale = tf.Variable(1.0)

    @tf.function
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((scale * forward(x) - y) ** 2)
        scale.assign_sub(0.01 * tape.gradient(loss, scale))

    for x, y in data:
        step(x, y)


def batches(x: Any) -> Any:
    """Returns a data set of batches of the rows of an array, with labels."""
    return tf.data.Dataset.from_tensor_slices((x, np.ones((NUM_ROWS, 1), "float32"))).batch(BATCH)


def all_bad(logdir: Path, program: Callable[[], object]) -> list[NonFinite]:
    """Returns every bad tensor of a program, so that one recording answers for several functions."""
    with tfdbg_arrow.capture(logdir):
        program()
    with tfdbg_arrow.open_logdir(logdir) as opened:
        return opened.nonfinite(limit=None)


def test_in_fit_the_row_of_the_arrays_is_named_if_they_are_not_shuffled(tmp_path: Path) -> None:
    """No axis has a size of its own."""
    found = texts(tmp_path, lambda: fit(arrays(), units=BATCH, batch_size=BATCH, shuffle=False, epochs=2))
    assert found == [ONE_BAD, ("data", f"{ORDERED}; {CLEAN}")]


@pytest.mark.slow
@pytest.mark.parametrize("is_bad_before", [False, True])
def test_the_validation_has_data_of_its_own(tmp_path: Path, *, is_bad_before: bool) -> None:
    features, labels = arrays()
    validation = features[50:].copy()
    features[BAD_ROW, 2] = 1.5
    if is_bad_before:
        validation[3, 2] = np.nan
    options = {"validation_data": (validation, labels[50:]), "validation_batch_size": 10}
    tensor = first(tmp_path, lambda: fit((features, labels), batch_size=BATCH, **options))
    expected = (
        "sample 3 of the validation data, the only bad one of 50"
        if is_bad_before
        else "sample 3 of the batch of the validation, the only bad one of 10"
    )
    assert facts_of(tensor)[0] == ("where", expected)
    when = (
        ", after step 4: sample 3 of the validation data."
        if is_bad_before
        else " in the validation after step 4: sample 3 of the batch."
    )
    assert tensor.headline.endswith(when)


def test_in_fit_with_shuffled_batches_only_the_sample_is_named(tmp_path: Path) -> None:
    tensor = first(tmp_path, lambda: fit(arrays(), batch_size=BATCH, shuffle="batch"))
    assert tensor.samples is not None
    assert (tensor.samples.whole, tensor.samples.num_samples, tensor.samples.row) == ("the batch", BATCH, None)


def test_a_data_set_of_numbers_of_rows_has_records(tmp_path: Path) -> None:
    def program() -> None:
        features, labels = arrays()
        numbers = np.arange(NUM_ROWS)[::-1].copy()
        records = tf.data.Dataset.from_tensor_slices(numbers)
        records = records.map(lambda number: (tf.gather(features, number), tf.gather(labels, number)))
        train_on(records.batch(BATCH))

    tensor = first(tmp_path, program)
    assert tensor.samples is not None
    assert (tensor.samples.row, tensor.samples.is_row_of_arrays) == (NUM_ROWS - 1 - BAD_ROW, False)


def with_option(data: Any) -> Any:
    options = tf.data.Options()
    options.deterministic = False
    return data.with_options(options)


def doubled(x: Any, y: Any) -> Any:
    return 2.0 * x, y


IN_ORDER = {
    "in parallel": lambda data: data.map(doubled, num_parallel_calls=tf.data.AUTOTUNE).cache().batch(BATCH),
    "repeated": lambda data: data.repeat(2).batch(BATCH),
    "batches repeated": lambda data: data.batch(BATCH).repeat(2),
    "repeated and ended": lambda data: data.batch(BATCH).repeat().take(NUM_ROWS // BATCH + 2),
    "padded": lambda data: data.take(NUM_ROWS - 1).padded_batch(BATCH),
}
IN_ANOTHER_ORDER = {
    "shuffled": lambda data: data.shuffle(NUM_ROWS, seed=1).batch(BATCH),
    "batches changed": lambda data: data.batch(BATCH).map(lambda x, y: (x[::-1], y[::-1])),
    "mapped and skipped": lambda data: data.map(doubled).skip(1).batch(BATCH),
    "part repeated": lambda data: data.take(BAD_ROW - 1).repeat(3).batch(BATCH),
    "not deterministic": lambda data: data.map(doubled, num_parallel_calls=2, deterministic=False).batch(BATCH),
    "an option": lambda data: with_option(data.map(doubled, num_parallel_calls=2).batch(BATCH)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*IN_ORDER, *IN_ANOTHER_ORDER])
def test_rows_are_named_if_the_records_keep_their_order(tmp_path: Path, name: str) -> None:
    def program() -> None:
        features, labels = arrays()
        if name == "part repeated":
            features[7] = features[BAD_ROW]
        change = {**IN_ORDER, **IN_ANOTHER_ORDER}[name]
        train_on(change(tf.data.Dataset.from_tensor_slices((features, labels))))

    tensor = first(tmp_path, program)
    assert tensor.samples is not None
    assert (tensor.samples.num_bad, tensor.samples.row) == (1, BAD_ROW if name in IN_ORDER else None)


@pytest.mark.slow
def test_records_after_skipped_ones_have_numbers(tmp_path: Path) -> None:
    def program() -> None:
        records = tf.data.Dataset.from_tensor_slices(arrays()).skip(2).map(doubled)
        train_on(records.batch(BATCH))

    tensor = first(tmp_path, program)
    assert tensor.samples is not None
    row = BAD_ROW - 2
    assert (tensor.samples.row, tensor.samples.is_row_of_arrays, tensor.samples.follows_skipped) == (row, False, True)
    skipped = (
        f"sample {row % BATCH} is record {row} of the data set that the batches come from, counted after the skipped"
    )
    assert f"{skipped} ones; {CLEAN}" in dict(facts_of(tensor))["data"]


def records_of_files(directory: Path) -> Any:
    """Returns a data set of the arrays' rows in two files."""
    paths = [str(directory / name) for name in ("first", "second")]
    for path, rows in zip(paths, np.split(arrays()[0], [NUM_ROWS // 3]), strict=True):
        with tf.io.TFRecordWriter(path) as file:
            for row in rows:
                file.write(row.tobytes())
    return tf.data.TFRecordDataset(paths).map(lambda record: tf.ensure_shape(tf.io.decode_raw(record, tf.float32), [6]))


def records_of_a_generator(directory: Path) -> Any:
    return tf.data.Dataset.from_generator(lambda: iter(arrays()[0]), output_signature=tf.TensorSpec([6], tf.float32))


def test_records_of_shuffled_files_have_no_numbers(tmp_path: Path) -> None:
    def program() -> None:
        records_of_files(tmp_path)
        data = tf.data.Dataset.list_files(str(tmp_path / "*[td]"), seed=1).flat_map(tf.data.TFRecordDataset)
        data = data.map(lambda record: (tf.ensure_shape(tf.io.decode_raw(record, tf.float32), [6]), tf.ones([1])))
        train_on(data.batch(BATCH))

    tensor = first(tmp_path / "logdir", program)
    assert tensor.samples is not None
    assert (tensor.samples.num_bad, tensor.samples.row) == (1, None)


@pytest.mark.parametrize("records_of", [records_of_files, records_of_a_generator])
def test_records_of_files_and_generators_have_numbers(tmp_path: Path, records_of: Callable[[Path], Any]) -> None:
    def program() -> None:
        data = records_of(tmp_path).map(lambda x: (x, tf.ones([1])))
        train_on(data.batch(BATCH))

    assert texts(tmp_path / "logdir", program) == [ONE_BAD, ("data", f"{NUMBERED}; {CLEAN}")]


@pytest.mark.parametrize("is_function", [True, False])
def test_a_loop_over_a_data_set(tmp_path: Path, is_function: bool) -> None:
    weight = tf.Variable(tf.ones([6, 1]))

    def step(features: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.math.log(features) @ weight - labels) ** 2)
        weight.assign_sub(0.01 * tape.gradient(loss, weight))

    run = tf.function(step) if is_function else step

    def program() -> None:
        for features, labels in tf.data.Dataset.from_tensor_slices(arrays()).batch(BATCH):
            run(features, labels)

    assert texts(tmp_path, program) == [ONE_BAD, ("data", f"{ORDERED}; {CLEAN}")]


def test_a_data_set_without_batches_has_no_samples(tmp_path: Path) -> None:
    """Although Keras takes batches in the same run."""

    def program() -> None:
        for row in tf.data.Dataset.from_tensor_slices(arrays()[0]):
            tf.math.log(row)
        fit((np.ones((BATCH, 6)), np.ones((BATCH, 1))))

    assert texts(tmp_path, program) == [("where", "element 2, the only bad one of 6")]


class Attention(keras.layers.Layer):  # type: ignore[misc]
    """Masks the tokens that are 0. The softmax of a row without other tokens is NaN."""

    def __init__(self, *, is_einsum: bool) -> None:
        super().__init__()
        self.is_einsum = is_einsum
        self.query, self.key = keras.layers.Dense(8), keras.layers.Dense(8)

    def call(self, x: Any, mask: Any) -> Any:
        query, key = self.query(x), self.key(x)
        products = tf.einsum("bid,bjd->bij", query, key) if self.is_einsum else tf.matmul(query, key, transpose_b=True)
        return tf.nn.softmax(tf.where(mask[:, tf.newaxis, :], products, -np.inf))


@pytest.mark.parametrize("is_einsum", [True, False])
def test_in_a_transformer_the_row_of_the_tokens_is_named(tmp_path: Path, *, is_einsum: bool) -> None:
    """Tokens are integers, which have no row of their own. No axis has a size of its own."""
    tokens = np.random.default_rng(0).integers(1, 30, (NUM_ROWS, BATCH))
    tokens[BAD_ROW] = 0

    inputs = keras.Input((BATCH,), dtype="int32")
    embedded = keras.layers.Embedding(30, 8)(inputs)
    scores = Attention(is_einsum=is_einsum)(embedded, keras.ops.not_equal(inputs, 0))
    model = keras.Model(inputs, keras.layers.Flatten()(scores))
    tensor = first(tmp_path, lambda: train_on(batches(tokens), model))
    assert (tensor.op_type, tensor.shape) == ("Softmax", (BATCH, BATCH, BATCH))
    assert facts_of(tensor) == [ONE_BAD, ("data", f"{ORDERED}; {CLEAN}")]


class MaskedMean(keras.layers.Layer):  # type: ignore[misc]
    """Averages over the tokens that are not 0. The mean of a row without such tokens is NaN."""

    def call(self, x: Any, mask: Any) -> Any:
        is_token = tf.expand_dims(tf.cast(mask, tf.float32), -1)
        return tf.cumsum(x * is_token, axis=1)[:, -1] / tf.reduce_sum(is_token, axis=1)


def test_the_sample_of_a_mask_is_known_though_tensorflow_moved_the_cast_of_the_mask(tmp_path: Path) -> None:
    """TensorFlow casts after it adds an axis, by nodes of its own."""
    tokens = np.random.default_rng(0).integers(1, 30, (NUM_ROWS, 12))
    tokens[BAD_ROW] = 0

    inputs = keras.Input((12,), dtype="int32")
    embedded = keras.layers.Embedding(30, BATCH)(inputs)
    means = MaskedMean()(keras.ops.flip(embedded, 1), keras.ops.not_equal(inputs, 0))
    model = keras.Model(inputs, keras.layers.Dense(1)(means))
    tensor = first(tmp_path, lambda: train_on(batches(tokens), model))
    assert (tensor.op_type, tensor.shape) == ("RealDiv", (BATCH, BATCH))
    assert facts_of(tensor) == [ONE_BAD, ("data", f"{ORDERED}; {CLEAN}")]


def log_of_count(x: Any, axis: int) -> Any:
    """Takes the logarithm of the number of steps of a series that are not padding."""
    is_used = tf.reduce_any(tf.not_equal(x, 0.0), axis=-1)
    used = tf.reduce_any(is_used, axis=axis, keepdims=True) if axis == 0 else is_used
    return x[:, 0] * tf.math.log(tf.reduce_sum(tf.cast(used, tf.float32), axis=1, keepdims=True))


@pytest.mark.parametrize(
    ("num_steps", "num_features", "axis", "is_known"),
    [(12, 3, 1, True), (12, 3, 0, False), (BATCH, 3, 1, True), (BATCH, 3, 0, False), (12, BATCH, 1, True)],
)
def test_the_sample_of_a_mask_that_is_computed_from_the_data_is_known(
    tmp_path: Path, num_steps: int, num_features: int, axis: int, is_known: bool
) -> None:
    """The mask holds booleans, which have no rows. In the near misses, the program reduces the axis of the batch."""
    series = np.random.default_rng(0).uniform(1, 2, (NUM_ROWS, num_steps, num_features)).astype("float32")
    series[BAD_ROW if axis else slice(None)] = 0
    tensor = first(tmp_path, lambda: train_on(batches(series), lambda x: log_of_count(x, axis)))
    assert tensor.op_type == "Log"
    assert (facts_of(tensor)[:1] == [ONE_BAD]) is is_known
    assert any(ORDERED in fact for _, fact in facts_of(tensor)) is is_known


@pytest.mark.slow
def test_with_several_steps_in_one_execution_the_inputs_are_those_of_the_same_step(tmp_path: Path) -> None:
    def program() -> None:
        features, labels = arrays()
        labels[BAD_ROW + BATCH] = np.nan
        model = keras.Sequential([Log(), keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=5)
        model.fit(features, labels, batch_size=BATCH, shuffle=False, verbose=0)

    with tfdbg_arrow.capture(tmp_path):
        program()
    with tfdbg_arrow.open_logdir(tmp_path) as opened:
        (found,) = (each for each in opened.nonfinite(limit=None) if each.op_type == "Log" and each.num_neg_inf == 1)
    assert facts_of(found) == [ONE_BAD, ("data", f"{ORDERED}; {CLEAN}")]
    assert (found.step, found.step_in_call) == (0, 2)
    assert "in step 2 (batch 2 of the call at step 0): sample 13 of the batch." in found.headline


def train_steps(step: Callable[..., Any], *more: Any) -> None:
    features, labels = arrays()
    for start in range(0, NUM_ROWS, BATCH):
        step(features[start : start + BATCH], labels[start : start + BATCH], *more)


def train_step(forward: Callable[[Any, Any], Any], weight: Any, **options: Any) -> Any:
    @tf.function(**options)
    def step(x: Any, y: Any, *more: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((forward(x, *more) - y) ** 2)
        weight.assign_sub(0.01 * tape.gradient(loss, weight))
        return loss

    return step


def test_the_arguments_of_a_training_step_are_its_batch(tmp_path: Path) -> None:
    weight = tf.Variable(tf.ones([6, 1]))
    step = train_step(lambda x: tf.math.log(x) @ weight, weight)
    tensor = first(tmp_path, lambda: train_steps(step))
    assert facts_of(tensor) == [ONE_BAD, ("data", CLEAN)]
    assert facts_text(tensor) == ("float32 [20, 6]: 1 -Inf, 119 positive of 120 elements, the first -Inf at [13, 2]")


@pytest.mark.parametrize("which", ["x", "y"])
def test_a_bad_argument_is_named(tmp_path: Path, which: str) -> None:
    weight = tf.Variable(tf.ones([6, 1]))
    step = train_step(lambda x: x @ weight, weight)

    def program() -> None:
        features, labels = arrays()
        (features if which == "x" else labels)[[BAD_ROW, BAD_ROW + 2], 0] = np.nan
        for start in range(0, NUM_ROWS, BATCH):
            step(tf.constant(features[start : start + BATCH]), tf.constant(labels[start : start + BATCH]))

    each = ", with one bad element each" if which == "x" else ""  # a label is a sample's only element
    assert texts(tmp_path, program) == [
        ("where", f"2 of the {BATCH} samples of the batch are bad{each}, the first is sample 13"),
        ("data", f"this is the argument `{which}` of `step`"),
    ]


def test_a_bad_record_of_the_data_is_named(tmp_path: Path) -> None:
    def program() -> None:
        features, labels = arrays()
        features[:] = 1
        labels[BAD_ROW, 0] = np.nan
        fit((features, labels), batch_size=BATCH)

    assert texts(tmp_path, program) == [
        ("where", f"sample {BAD_ROW} of the data, the only bad one of {NUM_ROWS}"),
        ("data", "this is y of the data"),
    ]


def test_a_component_of_the_data_has_the_name_that_the_program_gave_it(tmp_path: Path) -> None:
    features, labels = arrays()
    bad = features.copy()
    bad[BAD_ROW, 0] = np.nan

    def in_fit() -> None:
        age, wage = keras.Input((6,), name="age"), keras.Input((6,), name="wage")
        output = keras.layers.Dense(1)(keras.layers.Concatenate()([age, wage]))
        model = keras.Model({"age": age, "wage": wage}, output)
        model.compile("sgd", "mse")
        model.fit({"wage": bad, "age": features}, labels, batch_size=BATCH, shuffle=False, verbose=0)

    def in_loops() -> None:
        nested = ({"name": features, "income": (features, bad)}, labels)
        pairs = ((features, bad), labels)
        for elements in (nested, pairs, (labels, bad)):
            for _ in tf.data.Dataset.from_tensor_slices(elements).batch(BATCH):
                pass

    came = "NaN came into the program in"
    assert first(tmp_path / "fit", in_fit).headline.startswith(f"{came} the component wage of the data, read at")
    headlines = [bad.headline.partition(", read at")[0] for bad in all_bad(tmp_path / "loops", in_loops)]
    assert {headline for headline in headlines if headline.startswith(came)} == {
        f"{came} the component {name} of the data" for name in ("income", "[0][1]")
    } | {f"{came} the second component of the data"}


def test_components_of_composite_tensors_and_of_data_sets_in_graphs(tmp_path: Path) -> None:
    ragged = tf.ragged.constant([[1.0, 2.0], [], [3.0]])

    @tf.function
    def total() -> Any:
        return tf.data.Dataset.from_tensor_slices({"a": tf.ones([3]), "b": tf.ones([3])}).reduce(
            0.0, lambda so_far, element: so_far + element["a"]
        )

    with tfdbg_arrow.capture(tmp_path):
        for _ in range(2):
            for _ in tf.data.Dataset.from_tensor_slices({"lengths": ragged, "label": tf.ones([3])}):
                pass
        total()
    with tfdbg_arrow.open_logdir(tmp_path) as opened:
        paths = opened.rows("SELECT component_paths FROM data_set ORDER BY tensor_id")
        failures = opened.rows("SELECT subject, reason FROM capture_stat WHERE stat = 'failed'")
    assert failures == []
    assert paths == [('[["label"], ["lengths"]]',)] * 2, "an iterator takes the data set of tensors itself"


def test_a_tensor_computed_from_a_bad_argument_says_so(tmp_path: Path) -> None:
    weight = tf.Variable(tf.ones([6, 1]))
    step = train_step(lambda x: x @ weight, weight)

    def program() -> None:
        features, labels = arrays()
        features[BAD_ROW, 0] = np.nan
        step(tf.constant(features[40:60]), tf.constant(labels[40:60]))

    with tfdbg_arrow.capture(tmp_path):
        program()
    with tfdbg_arrow.open_logdir(tmp_path) as opened:
        (product,) = (found for found in opened.nonfinite() if found.op_type == "MatMul" and found.shape == (20, 1))
    assert facts_of(product) == [ONE_BAD, ("data", "the argument `x` of `step` already has NaN in sample 13")]


def scaled_by_table(table: Any) -> Callable[[Any], Any]:
    return lambda x: tf.reduce_sum(tf.linalg.matmul(tf.math.log(table), x, transpose_b=True), axis=0)[:, None]


@pytest.mark.slow
def test_the_first_axis_of_other_tensors_is_not_called_the_batch(tmp_path: Path) -> None:
    """A weight, its gradient, a table of as many rows as a batch has, and a product with it."""
    table = np.ones((BATCH, 6), "float32")
    table[3, 1] = 0
    programs: dict[str, tuple[Callable[[Any], Any], Any]] = {
        "weight": (lambda x: x @ tf.math.log(weight), weight := tf.Variable(np.tile([[1.0, 0.0]], (6, 1)).astype("f"))),
        "table": (scaled_by_table(tf.constant(table)), tf.Variable(1.0)),
    }
    for name, (forward, variable) in programs.items():
        variable_of = variable

        @tf.function
        def step(x: Any, y: Any, forward: Any = forward, variable: Any = variable_of) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((forward(x) - y) ** 2) * tf.reduce_sum(variable)
            variable.assign_sub(0.01 * tape.gradient(loss, variable))

        tensor = first(tmp_path / name, lambda step=step: train_steps(step))
        assert (tensor.op_type, tensor.samples) == ("Log", None), name
        with tfdbg_arrow.open_logdir(tmp_path / name) as opened:
            products = [each for each in opened.nonfinite(limit=None) if each.shape == (6, 2)]
            assert [each.samples for each in products] == [None] * len(products)


REORDERINGS: dict[str, Callable[[Any], Any]] = {
    "shuffle": lambda x: tf.random.shuffle(x, seed=1),
    "reverse": lambda x: tf.reverse(x, [0]),
    "roll": lambda x: tf.roll(x, 1, 0),
    "gather": lambda x: tf.gather(x, tf.range(BATCH)[::-1]),
    "scatter": lambda x: tf.tensor_scatter_nd_update(x, tf.range(BATCH)[::-1, None], x),
    "sequence": lambda x: tf.reverse_sequence(x, [BATCH] * 6, 0, 1),
    "numpy": lambda x: tf.numpy_function(lambda a: a[::-1], [x], tf.float32),
    "slice": lambda x: x[::-1],
    "concat": lambda x: tf.concat([x[1:], x[:1]], 0),
    "product": lambda x: tf.one_hot(tf.range(BATCH)[::-1], BATCH) @ x,
}
TRANSPOSITIONS: dict[str, Callable[[Any], Any]] = {
    "transpose": lambda x: tf.transpose(tf.tile(x[:, 2:3], [1, BATCH])),
    "einsum": lambda x: tf.einsum("ij,jk->ki", x, tf.eye(6, BATCH)),
}
WITHIN_SAMPLES: dict[str, Callable[[Any], Any]] = {
    "roll": lambda x: tf.roll(x, 1, 1),
    "reverse": lambda x: tf.reverse(x, [1]),
    "gather": lambda x: tf.gather(x, tf.range(6)[::-1], axis=1),
    "sort": lambda x: tf.sort(x, axis=1, direction="DESCENDING"),
}


def origins_in_steps(
    logdir: Path, op_type: str, functions: dict[str, Callable[[Any], Any]]
) -> dict[str | None, NonFinite]:
    """Returns the bad values that ops of a type made in training steps, each of which calls one function."""
    features, labels = (array[40:60] for array in arrays())

    def program() -> None:
        for function in functions.values():
            weight = tf.Variable(tf.ones([6, 1]))
            forward = lambda x, function=function, weight=weight: function(x)[:, :6] @ weight  # noqa: E731
            train_step(forward, weight)(features, labels)

    origins = [bad for bad in all_bad(logdir, program) if bad.op_type == op_type and bad.role == "forward"]
    assert len(origins) == len(functions)
    return dict(zip(functions, origins, strict=True))


def test_samples_in_another_order_are_not_called_samples(tmp_path: Path) -> None:
    reorderings = {**TRANSPOSITIONS, **{name: REORDERINGS[name] for name in ("shuffle", "reverse", "gather")}}
    functions = {
        name: lambda x, reorder=reorder: tf.math.log(reorder(x - 1.0) + 1.0) for name, reorder in reorderings.items()
    }
    origins = origins_in_steps(tmp_path, "Log", functions)
    assert {name: origin.samples for name, origin in origins.items()} == dict.fromkeys(reorderings)
    assert not any("sample" in text for origin in origins.values() for _, text in facts_of(origin))


@pytest.mark.parametrize("reorderings", [REORDERINGS, WITHIN_SAMPLES], ids=["samples", "within samples"])
def test_a_tensor_of_samples_and_reordered_samples_has_no_samples(
    tmp_path: Path, reorderings: dict[str, Callable[[Any], Any]]
) -> None:
    functions = {name: lambda x, reorder=reorder: x / reorder(x) for name, reorder in reorderings.items()}
    for name, origin in origins_in_steps(tmp_path, "RealDiv", functions).items():
        assert (origin.samples is not None) == (reorderings is WITHIN_SAMPLES), name
        assert any("sample" in text for _, text in facts_of(origin)) == (reorderings is WITHIN_SAMPLES), name


def test_samples_of_an_earlier_batch_are_not_those_of_this_one(tmp_path: Path) -> None:
    weight, memory = tf.Variable(tf.ones([6, 1])), tf.Variable(tf.ones([BATCH, 6]))

    def divided_by_the_batch_before(x: Any) -> Any:
        before = memory.read_value()
        memory.assign(x)
        return (x / before) @ weight

    tensor = first(tmp_path, lambda: train_steps(train_step(divided_by_the_batch_before, weight)))
    assert (tensor.op_type, tensor.samples) == ("RealDiv", None)


def test_rows_of_the_only_argument_are_no_samples(tmp_path: Path) -> None:
    function = tf.function(tf.math.log)
    matrix = np.ones((8, 3), "float32")
    matrix[5, 1] = matrix[7, 0] = 0
    assert texts(tmp_path, lambda: function(tf.constant(matrix))) == [
        ("where", "2 of the 8 rows of the argument `x` of `log` lead to bad elements, the first is row 5"),
        ("data", "the argument `x` of `log` itself has no NaN and no infinity"),
    ]


@pytest.mark.parametrize("use", ["condition", "factor"])
def test_rows_of_an_argument_are_not_named_beside_a_mask_of_booleans(use: str, tmp_path: Path) -> None:
    """Booleans have no rows in a recording. The mask may be the reason, and not the argument of floats."""

    @tf.function
    def pool(scores: Any, mask: Any) -> Any:
        kept = tf.where(mask, scores, 0.0) if use == "condition" else scores * tf.cast(mask, tf.float32)
        return tf.math.log(kept)

    mask = np.ones((8, 3), bool)
    mask[5] = False
    assert first(tmp_path, lambda: pool(tf.ones([8, 3]), tf.constant(mask))).samples is None


def test_rows_of_an_argument_are_not_named_if_all_are_bad(tmp_path: Path) -> None:
    function = tf.function(lambda images, scale: images / scale)
    assert first(tmp_path, lambda: function(tf.ones([8, 3]), tf.constant(0.0))).samples is None


def test_rows_are_followed_through_calls_eager_ops_and_split_tensors(tmp_path: Path) -> None:
    weight = tf.Variable(tf.ones([6, 4]))

    @tf.function
    def model(images: Any) -> Any:
        return tf.nn.relu(images @ weight)

    @tf.function
    def loss(probs: Any) -> Any:
        one, _ = tf.split(probs, 2, axis=1)
        return tf.reduce_mean(tf.math.log(one))

    def program() -> None:
        features = arrays()[0][40:60]
        features[13] = 0
        loss(0.5 * model(tf.constant(features) * 2.0))

    tensor = first(tmp_path, program)
    assert facts_of(tensor) == [
        ("where", f"row 13 of the argument `images` of `model`, the only one of {BATCH} that leads to bad elements"),
        ("data", "the argument `images` of `model` itself has no NaN and no infinity"),
    ]
    assert tensor.headline.endswith(" in call 1 of loss: from row 13 of the argument `images` of `model`.")


def test_the_rows_of_an_argument_do_not_depend_on_earlier_questions(tmp_path: Path) -> None:
    function = tf.function(lambda y: tf.exp(y) + 1.0)
    matrix = np.ones((8, 3), "float32")
    matrix[5, 1] = np.inf
    with tfdbg_arrow.capture(tmp_path):
        function(tf.constant(matrix) * 0.0)  # the product is bad, and a call takes it

    def samples(*, is_reversed: bool) -> dict[str | None, BadSamples | None]:
        with tfdbg_arrow.open_logdir(tmp_path) as logdir:
            (run,) = logdir.runs()
            flow = DataFlow(logdir, run_id=run.run_id)
            finder = SampleFinder(logdir, flow, run_id=run.run_id)
            bad = flow.events.bad_events(("nan",), limit=10)
            return {row.op_type: finder.of(row) for row in (reversed(bad) if is_reversed else bad)}

    found = samples(is_reversed=False)
    assert found == samples(is_reversed=True)
    assert found["Mul"] is None
    in_call = found["Exp"]
    assert in_call is not None
    assert (in_call.whole, in_call.unit, in_call.first) == ("the argument `y` of `<lambda>`", "row", 5)


def test_other_axes_and_several_arguments_are_no_rows_of_an_argument(tmp_path: Path) -> None:
    functions: list[Callable[[Any, Any], Any]] = [
        lambda x, _: tf.reduce_min(x, axis=0),
        lambda x, _: tf.matmul(x, x, transpose_a=True) * 0.0,
        lambda x, y: x * y,  # rows of two arguments
        lambda x, _: tf.concat([x[1:], x[:1]], axis=0),
        lambda x, _: tf.sort(x, axis=0),
    ]
    x, y = np.full((2, 8, 6), 2, "float32")
    x[5, 3] = 0

    def program() -> None:
        for function in functions:
            tf.function(lambda x, y, function=function: tf.math.log(function(x, y)))(tf.constant(x), tf.constant(y))

    origins = [bad for bad in all_bad(tmp_path, program) if bad.op_type == "Log"]
    assert [origin.samples for origin in origins] == [None] * len(functions)


def test_a_vector_has_elements_in_place_of_slices(tmp_path: Path) -> None:
    facts_by_values: list[tuple[Any, str | None]] = [
        ([1.0, 0.0], "element 1, the only bad one of 2"),
        ([1.0, 0.0, 0.0, 2.0], "2 of 4 elements are bad, the first is element 1"),
        ([0.0, 0.0, 1.0], None),
        (0.0, None),
    ]
    bad = all_bad(tmp_path, lambda: [tf.math.log(tf.constant(values)) for values, _ in facts_by_values])
    assert [facts_of(found) for found in bad] == [[("where", fact)] if fact else [] for _, fact in facts_by_values]


def test_a_filtered_recording_claims_no_batch(tmp_path: Path) -> None:
    weight = tf.Variable(tf.ones([6, 1]))
    step = train_step(lambda x: tf.math.log(x) @ weight, weight)
    tensor = first(tmp_path, lambda: train_steps(step), op_regex="Log")
    assert (tensor.op_type, tensor.samples) == ("Log", None)
    assert facts_of(tensor) == [("where", f"row 13 of the tensor, the only bad one of {BATCH}")]


@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_evaluate_and_predict_take_the_rows_in_order(tmp_path: Path, method: str) -> None:
    """A `fit` before them shuffles its own data."""

    def program() -> None:
        features, labels = arrays()
        model = keras.Sequential([keras.Input((6,)), Log(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(features[:40], labels[:40], batch_size=BATCH, verbose=0)
        data = (features, labels) if method == "evaluate" else (features,)
        getattr(model, method)(*data, batch_size=BATCH, verbose=0)

    tensor = first(tmp_path, program)
    assert facts_of(tensor) == [ONE_BAD, ("data", f"{ORDERED}; {CLEAN}")]
    if method == "predict":
        assert (tensor.call is not None, tensor.headline.split(" in call ")[1][:21]) == (True, "3 of predict_function")


def mean_of_words(words: Any, axis: int) -> Any:
    """Divides the sum of vectors along one axis by the root of the number of words along the same axis."""
    is_word = tf.cast(tf.not_equal(words, 0), tf.float32)
    total = tf.reduce_sum(is_word[..., None] * tf.ones([BATCH]), axis=axis)
    return total / tf.sqrt(tf.reduce_sum(is_word, axis=axis)[:, None])


@pytest.mark.parametrize(("axis", "is_known"), [(1, True), (0, False)])
def test_a_reduction_along_another_axis_of_the_same_size_keeps_the_samples(
    tmp_path: Path, axis: int, *, is_known: bool
) -> None:
    """Texts have as many words as the batch has texts, and the vectors as many elements."""
    words = np.random.default_rng(0).integers(1, 9, (NUM_ROWS, BATCH))
    words[BAD_ROW] = 0
    if axis == 0:
        words[:, 13] = 0

    tensor = first(tmp_path, lambda: train_on(batches(words), lambda batch: mean_of_words(batch, axis)))
    assert (tensor.op_type, tensor.shape) == ("RealDiv", (BATCH, BATCH))
    assert (facts_of(tensor)[0] == ONE_BAD) is is_known


def test_the_frames_of_sounds_keep_the_samples(tmp_path: Path) -> None:
    sounds = np.random.default_rng(0).uniform(1, 2, (NUM_ROWS, 64)).astype("float32")
    sounds[BAD_ROW] = 0

    def spectrum(sound: Any) -> Any:
        power = tf.square(tf.abs(tf.signal.stft(sound, 16, 8)))
        return tf.reshape(tf.math.log(tf.matmul(power, tf.ones([9, 4]))), [BATCH, -1])

    assert texts(tmp_path, lambda: train_on(batches(sounds), spectrum)) == [ONE_BAD, ("data", f"{ORDERED}; {CLEAN}")]


def test_arguments_that_eager_code_made_are_the_batch_of_a_training_step(tmp_path: Path) -> None:
    weights = tf.Variable(tf.ones([6, 1]))

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.math.log(x) @ weights - y))
        weights.assign_sub(0.01 * tape.gradient(loss, weights))

    def program() -> None:
        features, labels = arrays()
        x, y = tf.stack([tf.constant(features[:, k]) for k in range(6)], axis=1), tf.constant(labels)
        step(2.0 * x[40:60], 2.0 * y[40:60])

    assert texts(tmp_path, program) == [ONE_BAD, ("data", CLEAN)]


def test_weights_of_classes_are_not_called_weights_of_samples(tmp_path: Path) -> None:
    def program() -> None:
        features, _ = arrays()
        model = keras.Sequential([keras.layers.Dense(3, "softmax")])
        model.compile("sgd", "sparse_categorical_crossentropy")
        model.fit(
            features,
            np.arange(NUM_ROWS) % 3,
            class_weight={0: 1.0, 1: float("inf"), 2: 1.0},
            batch_size=BATCH,
            verbose=0,
        )

    tensor = first(tmp_path, program)
    assert tensor.headline.startswith("+Inf came into the program in class_weight of the data")


def test_the_arrays_of_train_on_batch_are_a_batch(tmp_path: Path) -> None:
    """Its labels are integers, which have no rows."""

    def program() -> None:
        features, _ = arrays()
        model = keras.Sequential([keras.Input((6,)), Log(), keras.layers.Dense(3, "softmax")])
        model.compile("sgd", "sparse_categorical_crossentropy")
        model.train_on_batch(features[40:60], np.arange(BATCH) % 3)

    assert texts(tmp_path, program) == [ONE_BAD, ("data", CLEAN)]


@pytest.mark.parametrize("has_classes", [True, False])
def test_an_argument_of_integers_shows_that_the_first_axis_is_the_batch(tmp_path: Path, has_classes: bool) -> None:
    weight = tf.Variable(1.0)
    classes = tf.constant(np.arange(40) % 5)  # too many elements for a row of their own
    scales = np.ones(40, np.float32)
    scales[7] = 0.0

    @tf.function
    def step(scale: tf.Tensor, classes: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * tf.math.log(scale) * tf.cast(classes, tf.float32))
        weight.assign_sub(tape.gradient(loss, weight))

    tensor = first(tmp_path, lambda: step(tf.constant(scales), classes if has_classes else classes[:1]))
    assert tensor.samples is not None
    whole = "the batch" if has_classes else "the argument `scale` of `step`"
    assert (tensor.samples.first, tensor.samples.whole) == (7, whole)
