"""Test that `on_nonfinite="keep"` keeps the inputs of a step with a bad value, and that answers show the bad sample."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

import tfdbg_arrow
from tests.cli.commands import run_cli
from tests.sampling import mostly_slow
from tfdbg_arrow.errors import ReproError
from tfdbg_arrow.query import BadSamples, NonFinite, SampleInput
from tfdbg_arrow.query.wording import sample_texts, slices_text

from .subprocesses import run_python
from .test_executed_graphs import rows

NUM_RECORDS = 64
BAD_RECORD = 37
"""The record whose features are all 0, so that their logarithm is infinite."""
Array = npt.NDArray[Any]


def features() -> Array:
    x = np.random.default_rng(0).random((NUM_RECORDS, 3), np.float32)
    x[BAD_RECORD] = 0
    return x


def labels() -> Array:
    return np.arange(NUM_RECORDS)


def names() -> Array:
    return np.array([f"user{number}" for number in range(NUM_RECORDS)])


def loss_of(x: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.math.log(tf.reduce_sum(x * weights, axis=1)))


def first_of(logdir: Path, program: Callable[[], object]) -> NonFinite:
    """Records a program, and returns its first bad value."""
    with tfdbg_arrow.capture(str(logdir), on_nonfinite="keep"):
        program()
    with tfdbg_arrow.open_logdir(logdir) as opened:
        assert opened.rows("SELECT * FROM capture_stat WHERE stat IN ('failed', 'unkept')") == []
        first = opened.first_nonfinite()
    assert first is not None
    return first


def samples_of(logdir: Path, program: Callable[[], object]) -> BadSamples:
    """Records a program, and returns the bad samples of its first bad value."""
    samples = first_of(logdir, program).samples
    assert samples is not None
    return samples


def record(logdir: Path, program: Callable[[], object]) -> tuple[SampleInput, ...]:
    """Records a program, and returns the bad sample of its first bad value."""
    first = first_of(logdir, program)
    return () if first.samples is None else first.samples.first_sample


def shown(sample: tuple[SampleInput, ...]) -> dict[str, tuple[object, ...] | None]:
    return {input_.name: input_.elements for input_ in sample}


def batches(*, shuffled: bool = True) -> tf.data.Dataset:
    data = tf.data.Dataset.from_tensor_slices((features(), labels(), names()))
    return (data.shuffle(NUM_RECORDS, seed=1) if shuffled else data).batch(8)


EXPECTED = {"component 0": (0.0, 0.0, 0.0), "component 1": (BAD_RECORD,), "component 2": (f"user{BAD_RECORD}",)}


def test_a_function_that_takes_a_part_of_a_shuffled_element(tmp_path: Path) -> None:
    weights = tf.Variable(tf.ones([3]))

    @tf.function
    def step(x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(x, weights)
        weights.assign_sub(0.01 * tape.gradient(loss, weights))

    def program() -> None:
        for x, _, _ in batches():
            step(x)

    expected = {"x": (0.0, 0.0, 0.0), "component 1": (BAD_RECORD,), "component 2": (f"user{BAD_RECORD}",)}
    assert shown(record(tmp_path, program)) == expected


def test_a_function_that_takes_the_element_itself(tmp_path: Path) -> None:
    weights = tf.Variable(tf.ones([3]))

    @tf.function
    def train(data: tf.data.Iterator) -> None:
        for _ in tf.range(NUM_RECORDS // 8):  # one call takes all batches
            x, _, _ = next(data)
            with tf.GradientTape() as tape:
                loss = loss_of(x, weights)
            weights.assign_sub(0.01 * tape.gradient(loss, weights))

    sample = record(tmp_path, lambda: train(iter(batches())))
    assert shown(sample) == EXPECTED


def test_eager_code(tmp_path: Path) -> None:
    weights = tf.Variable(tf.ones([3]))

    def program() -> None:
        for x, _, _ in batches():
            with tf.GradientTape() as tape:
                loss = loss_of(x, weights)
            weights.assign_sub(0.01 * tape.gradient(loss, weights))

    assert shown(record(tmp_path, program)) == EXPECTED


def test_arguments(tmp_path: Path) -> None:
    weights = tf.Variable(tf.ones([3]))

    @tf.function
    def step(x: tf.Tensor, who: tf.Tensor, scale: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = scale * loss_of(x, weights) + tf.cast(tf.strings.length(who[0]), tf.float32)
        weights.assign_sub(0.01 * tape.gradient(loss, weights))

    def program() -> None:
        for start in range(0, NUM_RECORDS, 8):
            part = slice(start, start + 8)
            step(tf.constant(features()[part]), tf.constant(names()[part]), tf.constant(1.0))

    sample = record(tmp_path, program)
    assert shown(sample) == {"x": (0.0, 0.0, 0.0), "who": (f"user{BAD_RECORD}",)}


def test_a_session(tmp_path: Path) -> None:
    def program() -> None:
        v1 = tf.compat.v1
        with v1.Graph().as_default(), v1.Session() as session:
            x = v1.placeholder(tf.float32, [None, 3], name="features")
            who = v1.placeholder(tf.string, [None], name="who")
            loss = loss_of(x, tf.ones([3])) + tf.cast(tf.strings.length(who)[0], tf.float32)
            for start in range(0, NUM_RECORDS, 8):
                part = slice(start, start + 8)
                session.run(loss, {x: features()[part], who: list(names()[part])})

    assert shown(record(tmp_path, program)) == {"features": (0.0, 0.0, 0.0), "who": (f"user{BAD_RECORD}",)}


def test_fit_shuffled_with_tokens(tmp_path: Path) -> None:
    import keras

    class Embedded(keras.layers.Layer):  # type: ignore[misc, unused-ignore]  # Keras has no types
        def build(self, _: object) -> None:
            self.table = self.add_weight(shape=(NUM_RECORDS + 1, 4), initializer="ones")

        def call(self, tokens: tf.Tensor) -> tf.Tensor:
            is_word = tf.cast(tf.not_equal(tokens, 0), tf.float32)
            total = tf.reduce_sum(tf.gather(self.table, tokens) * is_word[..., None], axis=1)
            return total / tf.reduce_sum(is_word, axis=1, keepdims=True)  # a text without words: 0 / 0

    def program() -> None:
        tokens = np.random.default_rng(0).integers(1, NUM_RECORDS, (NUM_RECORDS, 5))
        tokens[BAD_RECORD] = 0
        model = keras.Sequential([keras.Input((5,), dtype="int32"), Embedded(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(tokens, labels().astype(np.float32), batch_size=16, epochs=1, verbose=0)

    sample = record(tmp_path / "log", program)
    assert shown(sample) == {"x": (0, 0, 0, 0, 0), "y": (float(BAD_RECORD),)}
    repro = tfdbg_arrow.write_repro(tmp_path / "log", tmp_path / "repro.py")
    assert repro.sample_path == str(tmp_path / "repro_sample.npz")
    with np.load(repro.sample_path, allow_pickle=False) as arrays:
        assert {name: arrays[name].tolist() for name in arrays} == {"x": [[0] * 5], "y": [BAD_RECORD]}


def stepped(weights: tf.Variable, x: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
        loss = loss_of(x, weights)
    weights.assign_sub(0.01 * tape.gradient(loss, weights))


def mean_of_ragged(words: tf.RaggedTensor, table: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.gather(table, tf.strings.to_hash_bucket_fast(words, 8)), axis=1)


def mean_of_dense(words: tf.RaggedTensor, table: tf.Tensor) -> tf.Tensor:
    padded = words.to_tensor()
    is_word = tf.cast(tf.not_equal(padded, ""), tf.float32)
    vectors = tf.gather(table, tf.strings.to_hash_bucket_fast(padded, 8)) * is_word[..., None]
    return tf.reduce_sum(vectors, axis=1) / tf.reduce_sum(is_word, axis=1, keepdims=True)


def mean_in_another_order(words: tf.RaggedTensor, table: tf.Tensor) -> tf.Tensor:
    vectors = tf.gather(table, tf.strings.to_hash_bucket_fast(words.values, 8))
    rows = words.nrows() - 1 - words.value_rowids()
    return tf.math.unsorted_segment_sum(vectors, rows, words.nrows()) / tf.math.unsorted_segment_sum(
        tf.ones_like(vectors), rows, words.nrows()
    )


@pytest.mark.parametrize(
    ("mean", "labels_dtype"),
    [
        (mean_of_ragged, np.int64),
        (mean_of_dense, np.float32),
        pytest.param(mean_of_ragged, np.float32, marks=pytest.mark.slow),
        pytest.param(mean_of_dense, np.int64, marks=pytest.mark.slow),
        pytest.param(mean_in_another_order, np.int64, marks=pytest.mark.slow),
    ],
)
def test_words_of_split_texts(mean: Callable[..., tf.Tensor], labels_dtype: type, tmp_path: Path) -> None:
    """A text without words: 0 / 0. Labels with a floating-point dtype have rows."""
    table = tf.Variable(tf.ones([8, 4]))
    texts = np.array([f"user {number}" for number in range(NUM_RECORDS)])
    texts[BAD_RECORD] = ""

    @tf.function
    def step(text: tf.Tensor, label: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            means = mean(tf.strings.split(tf.strings.lower(text)), tf.convert_to_tensor(table))
            loss = tf.reduce_mean(means) - tf.reduce_mean(tf.cast(label, tf.float32))
        table.assign_sub(0.01 * tf.convert_to_tensor(tape.gradient(loss, table)))

    def program() -> None:
        data = tf.data.Dataset.from_tensor_slices((texts, labels().astype(labels_dtype)))
        for batch in data.shuffle(NUM_RECORDS, seed=1).batch(8):
            step(*batch)

    is_known = mean is not mean_in_another_order
    expected = {"text": ("",), "label": (BAD_RECORD,)} if is_known else {}
    assert shown(record(tmp_path, program)) == expected


@pytest.mark.parametrize("is_reversed", mostly_slow([False, True], fast=[False]))
def test_a_ragged_batch(is_reversed: bool, tmp_path: Path) -> None:
    """Two values of a sample are bad; in the near miss, the values are in another order than the samples."""
    weight = tf.Variable(1.0)
    lists = [[1.0] * (1 + number % 5) for number in range(NUM_RECORDS)]
    lists[BAD_RECORD] = [2.0, 0.0, 0.0]

    @tf.function
    def step(values: tf.RaggedTensor, label: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            flat = values.flat_values[::-1] if is_reversed else values.flat_values
            logarithms = tf.math.log(flat * weight)
            loss = tf.reduce_sum(logarithms) - tf.reduce_mean(tf.cast(label, tf.float32))
        # In all batches together, the weight stays above 0, so that only the bad record makes bad values.
        weight.assign_sub(1e-4 * tape.gradient(loss, weight))

    def program() -> None:
        data = tf.data.Dataset.from_tensor_slices((tf.ragged.constant(lists), labels()))
        for batch in data.shuffle(NUM_RECORDS, seed=1).batch(8):
            step(*batch)

    if is_reversed:
        assert record(tmp_path / "log", program) == ()
        return
    samples = samples_of(tmp_path / "log", program)
    assert shown(samples.first_sample) == {"values": (2.0, 0.0, 0.0), "label": (BAD_RECORD,)}
    assert (samples.num_bad, samples.num_samples, samples.whole) == (1, 8, "the batch")
    tfdbg_arrow.write_repro(tmp_path / "log", tmp_path / "repro.py")
    with np.load(tmp_path / "repro_sample.npz") as arrays:
        assert arrays["values"].tolist() == [2.0, 0.0, 0.0]
        assert arrays["label"].tolist() == [BAD_RECORD]


@pytest.mark.slow
@pytest.mark.parametrize(("is_reversed", "is_sliced"), [(False, False), (True, False), (False, True)])
def test_the_mean_of_an_empty_row_of_a_ragged_batch(is_reversed: bool, is_sliced: bool, tmp_path: Path) -> None:
    """In the near misses, the means are in another order than the samples, or some samples have no mean."""
    weight = tf.Variable(1.0)
    lists = [[1.0] * (1 + number % 5) for number in range(NUM_RECORDS)]
    lists[BAD_RECORD] = []

    @tf.function
    def step(values: tf.RaggedTensor, label: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            mean = tf.reduce_mean(values[2:] if is_sliced else values, axis=1)
            label = label[2:] if is_sliced else label
            error = tf.exp((mean[::-1] if is_reversed else mean) * weight) - tf.cast(label, tf.float32)
        weight.assign_sub(0.01 * tape.gradient(error, weight))

    def program() -> None:
        data = tf.data.Dataset.from_tensor_slices((tf.ragged.constant(lists), labels()))
        # The order of a shuffle depends on seeds that other tests set. The slice must have the bad record.
        for batch in (data if is_sliced else data.shuffle(NUM_RECORDS, seed=1)).batch(8):
            step(*batch)

    sample = record(tmp_path / "kept", program)
    assert shown(sample) == ({} if is_sliced else {"values": (), "label": (BAD_RECORD,)})
    kept, plain = (tfdbg_arrow.open_logdir(tmp_path / "kept"), tmp_path / "plain")
    with tfdbg_arrow.capture(plain):
        program()
    with kept, tfdbg_arrow.open_logdir(plain) as opened:
        for logdir in (kept, opened):
            places = {bad.op_type: bad.samples for bad in logdir.nonfinite(limit=None)}
            in_mean, in_error = places["RealDiv"], places["Exp"]
            assert (in_mean is None) == is_sliced
            assert (in_error is None) == (is_reversed or is_sliced)
            if in_mean is not None:
                assert (in_mean.num_bad, in_mean.num_samples, in_mean.whole) == (1, 8, "the batch")


def test_sparse_batches(tmp_path: Path) -> None:
    """A row of zeros. The batches are square, so that columns have the size of the batch."""
    reductions: list[tuple[Callable[[Any, Any], Any], bool]] = [
        (lambda x, table: tf.sparse.reduce_sum(x, axis=1), True),
        (lambda x, table: tf.sparse.reduce_sum(x, axis=-1, keepdims=True)[:, 0], True),
        (lambda x, table: tf.sparse.sparse_dense_matmul(x, table)[:, 0], True),
        (lambda x, table: tf.sparse.reduce_sum(x, axis=0), False),
        (lambda x, table: tf.sparse.sparse_dense_matmul(x, table, adjoint_a=True)[:, 0], False),
    ]
    dense = np.random.default_rng(0).uniform(1, 2, (8, 8)).astype("float32")
    dense[:, 3] = dense[5] = 0

    def train(reduce: Callable[[Any, Any], Any]) -> None:
        weight = tf.Variable(1.0)

        @tf.function
        def step(clicks: tf.SparseTensor, label: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                total = reduce(clicks, tf.ones([8, 1]))
                loss = tf.reduce_mean(weight / total) + tf.reduce_mean(tf.cast(label, tf.float32))
            weight.assign_sub(0.01 * tape.gradient(loss, weight))

        for batch in tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(dense), np.arange(8))).batch(8):
            step(*batch)

    with tfdbg_arrow.capture(str(tmp_path), on_nonfinite="keep"):
        for reduce, _ in reductions:
            train(reduce)
    with tfdbg_arrow.open_logdir(tmp_path) as opened:
        bad = [bad for bad in opened.nonfinite(limit=None) if (bad.op_type, bad.role) == ("RealDiv", "forward")]
    assert [shown(found.samples.first_sample) if found.samples else {} for found in bad] == [
        {"clicks": (), "label": (5,)} if is_known else {} for _, is_known in reductions
    ]


def answer_of_several(logdir: Path, op: Callable[[tf.Tensor], tf.Tensor], bad_rows: list[int]) -> NonFinite:
    x = features() + 1
    x[bad_rows, 1] = 0

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(op(x))

    def program() -> None:
        for batch in tf.data.Dataset.from_tensor_slices(x).batch(16):
            step(batch)

    return first_of(logdir, program)


@pytest.mark.parametrize(
    ("bad_rows", "numbers"),
    [([17, 19], "samples 1 and 3"), ([*range(17, 26), 30], "samples 1, 2, 3, 4, 5 and 5 more")],
)
def test_several_bad_samples(bad_rows: list[int], numbers: str, tmp_path: Path) -> None:
    first = answer_of_several(tmp_path, tf.math.log, bad_rows)
    assert first.samples is not None
    assert first.samples.numbers == tuple(row - 16 for row in bad_rows)
    assert first.headline.endswith(f": {len(bad_rows)} of the 16 samples of the batch, {numbers}.")
    assert slices_text(first, first.samples) == (
        f"{len(bad_rows)} of the 16 samples of the batch are bad, with one bad element each: {numbers}"
    )
    assert [input_.index for input_ in first.samples.first_sample] == [1]


def test_of_several_bad_samples_only_the_first_is_known_if_the_op_cannot_be_computed_again(tmp_path: Path) -> None:
    first = answer_of_several(tmp_path, tf.math.lgamma, [17, 19])
    assert first.samples is not None
    assert first.samples.numbers == ()
    assert first.headline.endswith(": sample 1 and 1 more of the 16 samples of the batch.")


def test_several_bad_samples_of_the_batch_itself(tmp_path: Path) -> None:
    x = features()
    x[[33, 36, 39]] = np.nan
    samples = samples_of(tmp_path, lambda: tf.function(lambda x: tf.reduce_sum(x))(tf.constant(x[32:40])))
    assert (samples.unit, samples.numbers) == ("row", (1, 4, 7))


@pytest.mark.parametrize("is_bad_before", [False, True])
def test_slices_of_an_array_in_eager_code(is_bad_before: bool, tmp_path: Path) -> None:
    """Nothing shows that the slice is a batch. So the answer shows the row of the slice, but no row of the labels."""
    weights = tf.Variable(tf.ones([3]))

    def program() -> None:
        for start in range(0, NUM_RECORDS, 8):
            x = np.log(features()[start : start + 8]) if is_bad_before else features()[start : start + 8]
            with tf.GradientTape() as tape:
                y = tf.constant(labels()[start : start + 8], tf.float32)
                if is_bad_before:
                    loss = tf.reduce_mean(tf.reduce_sum(x * weights, axis=1) - y)
                else:
                    loss = tf.reduce_mean(tf.math.log(tf.reduce_sum(x * weights, axis=1)) - y)
            weights.assign_sub(0.01 * tape.gradient(loss, weights))

    with np.errstate(divide="ignore"):
        samples = samples_of(tmp_path, program)
    assert shown(samples.first_sample) == {"tensor": (-np.inf,) * 3 if is_bad_before else (0.0, 0.0, 0.0)}
    assert samples.first_sample[0].index == BAD_RECORD % 8
    assert (samples.whole, samples.unit) == ("a tensor from outside", "row")


@pytest.mark.parametrize(("is_eager", "num_features"), [(False, 0), (True, 3)])
def test_a_reversed_batch_has_no_known_samples(is_eager: bool, num_features: int, tmp_path: Path) -> None:
    weights = tf.Variable(tf.ones([3] if num_features else []))

    def step(x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.math.log(x[::-1] * weights))
        weights.assign_sub(0.01 * tape.gradient(loss, weights))

    def program() -> None:
        x = features() if num_features else features()[:, 0]
        for batch in tf.data.Dataset.from_tensor_slices(x).batch(8):
            (step if is_eager else tf.function(step))(batch)

    assert record(tmp_path, program) == ()


def test_rows_that_eager_code_mixes_are_not_shown(tmp_path: Path) -> None:
    order = tf.constant([5, 4, 3, 2, 1, 0, 7, 6])

    def program() -> None:
        tf.math.log(tf.gather(tf.constant(features()[32:40]), order))

    assert record(tmp_path, program) == ()


def test_a_loop_over_a_data_set_with_a_break(tmp_path: Path) -> None:
    """The loop has a state with the shape of the labels. The state is not part of the element."""
    weights = tf.Variable(tf.ones([3]))

    @tf.function
    def train(data: tf.data.Dataset) -> tf.Tensor:
        total = tf.zeros([8], tf.int64)
        for x, number, _ in data:
            stepped(weights, x)
            total += number
            if total[0] < 0:
                break
        return total

    assert shown(record(tmp_path, lambda: train(batches()))) == EXPECTED
    assert rows(tmp_path, "SELECT DISTINCT role FROM graph_op WHERE op_type IN ('Log', 'AssignSubVariableOp')") == [
        ("forward",)
    ]


@pytest.mark.parametrize(
    ("change", "row"),
    [
        (lambda data: data.map(lambda x, y: (x * 2.0, y)).batch(8).prefetch(2), BAD_RECORD),
        pytest.param(lambda data: data.shuffle(NUM_RECORDS, seed=1).batch(8), None, marks=pytest.mark.slow),
        pytest.param(lambda data: data.filter(lambda x, y: True).batch(8), None, marks=pytest.mark.slow),
    ],
    ids=["map", "shuffle", "filter"],
)
def test_the_row_in_a_loop_over_a_data_set(change: Any, row: int | None, tmp_path: Path) -> None:
    """The second epoch of the second call has the bad record."""
    weights = tf.Variable(tf.ones([3]))

    @tf.function
    def train(data: tf.data.Dataset) -> None:
        for x, _ in data:
            stepped(weights, x)

    def program() -> None:
        train(change(tf.data.Dataset.from_tensor_slices((features() + 1, labels()))))
        data = change(tf.data.Dataset.from_tensor_slices((features(), labels())))
        train(data.take(1))
        train(data)

    samples = samples_of(tmp_path, program)
    assert shown(samples.first_sample)["component 1"] == (BAD_RECORD,)
    assert (samples.row, samples.is_row_of_arrays) == (row, row is not None)


def test_a_loop_over_a_data_set_of_tokens_with_names(tmp_path: Path) -> None:
    """The tokens have no rows; the data set is made in the function with the loop."""
    tokens = np.random.default_rng(0).integers(1, 9, (NUM_RECORDS, 5))
    tokens[BAD_RECORD] = 0
    weights = tf.Variable(1.0)

    @tf.function
    def train(data: tf.data.Dataset) -> None:
        for batch in data.batch(8):
            is_word = tf.cast(tf.not_equal(batch["tokens"], 0), tf.float32)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(weights / tf.reduce_sum(is_word, axis=1))
            weights.assign_sub(0.01 * tape.gradient(loss, weights))

    data = tf.data.Dataset.from_tensor_slices({"tokens": tokens, "who": names()})
    sample = record(tmp_path, lambda: train(data.shuffle(NUM_RECORDS, seed=1)))
    assert [input_.elements for input_ in sample] == [(0, 0, 0, 0, 0), (f"user{BAD_RECORD}",)]


def test_a_loop_over_records_has_no_samples(tmp_path: Path) -> None:
    weights = tf.Variable(tf.ones([3]))

    @tf.function
    def train(data: tf.data.Dataset) -> None:
        for x in data:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.math.log(x * weights))
            weights.assign_sub(0.01 * tape.gradient(loss, weights))

    x = features() + 1
    x[BAD_RECORD, 1] = 0
    assert record(tmp_path, lambda: train(tf.data.Dataset.from_tensor_slices(x))) == ()


def test_a_bad_record_that_a_loop_takes(tmp_path: Path) -> None:
    """The data set's function is still the origin, and its ops still belong to the input."""
    weights = tf.Variable(tf.ones([3]))

    @tf.function
    def train(data: tf.data.Dataset) -> tf.Tensor:
        total = 0.0
        for x in data:
            total += tf.reduce_sum(x * weights)
        return total

    def program() -> None:
        train(tf.data.Dataset.from_tensor_slices(features()).map(tf.math.log).batch(8))

    first = first_of(tmp_path, program)
    assert (first.op_type, first.role) == ("Log", "input")


@pytest.mark.parametrize("is_shown", [True, False])
def test_train_on_batch(is_shown: bool, tmp_path: Path) -> None:
    import keras

    def program() -> None:
        model = keras.Sequential([keras.Input((3,)), keras.layers.Lambda(tf.math.log), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        batch = features()[32:40], labels()[32:40].astype(np.float32)
        if is_shown:
            model.train_on_batch(batch[0], batch[1], sample_weight=np.ones(8, np.float32))
        else:
            model.train_on_batch(*batch)

    sample = shown(record(tmp_path, program))
    if is_shown:
        assert sample == {"x": (0.0, 0.0, 0.0), "y": (float(BAD_RECORD),), "sample_weight": (1.0,)}
    else:
        assert sample == {"data": (0.0, 0.0, 0.0), "data_1": (float(BAD_RECORD),)}


def test_train_on_batch_with_a_variable_that_is_none(tmp_path: Path) -> None:
    """The text shows three arguments, and the batch has three tensors, but the argument x consists of two tensors."""
    import keras

    weights = None

    def program() -> None:
        inputs = [keras.Input((3,)), keras.Input((3,))]
        logarithm = keras.layers.Lambda(tf.math.log)(inputs[0])
        model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Add()([logarithm, inputs[1]])))
        model.compile("sgd", "mse")
        both = [features()[32:40], features()[32:40]]
        model.train_on_batch(both, labels()[32:40].astype(np.float32), sample_weight=weights)

    assert list(shown(record(tmp_path, program))) == ["data", "data_1", "data_2"]


def test_a_bad_label_of_train_on_batch(tmp_path: Path) -> None:
    import keras

    def program() -> None:
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        y = labels().astype(np.float32)
        y[BAD_RECORD] = np.nan
        model.train_on_batch(features(), y)

    samples = samples_of(tmp_path, program)
    assert samples.name == "y of the batch"
    assert [input_.name for input_ in samples.inputs] == ["x of the batch"]


def test_a_bad_record_of_the_data(tmp_path: Path) -> None:
    weights = tf.Variable(tf.ones([3]))

    def elements() -> Iterator[tuple[Array, np.str_]]:
        for number, (x, name) in enumerate(zip(features(), names(), strict=True)):
            yield np.full(3, np.nan, np.float32) if number == BAD_RECORD else x + 1, name

    def program() -> None:
        signature = tf.TensorSpec([3], tf.float32), tf.TensorSpec([], tf.string)
        data = tf.data.Dataset.from_generator(elements, output_signature=signature).batch(8)
        for x, _ in data:
            with tf.GradientTape() as tape:
                loss = loss_of(x, weights)
            weights.assign_sub(0.01 * tape.gradient(loss, weights))

    with tfdbg_arrow.capture(str(tmp_path), on_nonfinite="keep"):
        program()
    with tfdbg_arrow.open_logdir(tmp_path) as opened:
        tensor = next(bad for bad in opened.nonfinite() if bad.op_type == "IteratorGetNext")
    assert tensor.samples is not None
    sample = shown(tensor.samples.first_sample)
    assert sample["component 1"] == (f"user{BAD_RECORD}",)
    assert np.isnan(np.array(sample["component 0"], float)).all()


@pytest.mark.parametrize("is_shuffled", mostly_slow([True, False], fast=[True]))
def test_a_bad_row_of_an_array(is_shuffled: bool, tmp_path: Path) -> None:
    import keras

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = features() + 1
    x[BAD_RECORD, 2] = np.nan
    sample = record(tmp_path / "log", lambda: model.fit(x, labels(), batch_size=8, shuffle=is_shuffled, verbose=0))
    np.testing.assert_array_equal(shown(sample)["x"], x[BAD_RECORD])
    assert shown(sample)["y"] == (BAD_RECORD,)
    assert is_shuffled or {input_.index for input_ in sample} == {BAD_RECORD % 8}
    with pytest.raises(ReproError, match=r"came from outside.*The bad sample of the batch was written to"):
        tfdbg_arrow.write_repro(tmp_path / "log", tmp_path / "repro.py")
    with np.load(tmp_path / "repro_sample.npz") as arrays:
        np.testing.assert_array_equal(arrays["x"], x[[BAD_RECORD]])


def test_one_of_several_bad_rows_is_not_taken_for_the_first(tmp_path: Path) -> None:
    x = features() + 1
    x[[5, BAD_RECORD]] = np.nan

    def program() -> None:
        for batch in tf.data.Dataset.from_tensor_slices(x).shuffle(NUM_RECORDS, seed=1).batch(8):
            tf.function(tf.reduce_sum)(batch)

    assert record(tmp_path, program) == ()


@pytest.mark.parametrize("on_nonfinite", ["record", "keep"])
def test_nothing_is_kept_without_need(on_nonfinite: str, tmp_path: Path) -> None:
    with tfdbg_arrow.capture(str(tmp_path), on_nonfinite=on_nonfinite):
        for x, _, _ in batches():
            tf.math.log(x + 1 if on_nonfinite == "keep" else x)
    assert rows(tmp_path, "SELECT count(*) FROM step_input") == [(0,)]


def test_each_tensor_is_kept_once_and_large_ones_are_left_out(tmp_path: Path) -> None:
    @tf.function
    def f(x: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
        return tf.math.log(x) + tf.reduce_sum(table)

    with tfdbg_arrow.capture(str(tmp_path), on_nonfinite="keep"):
        x, table = tf.zeros([8]), tf.zeros([17 << 20])  # 68 MiB
        for _ in range(3):
            f(x, table)
    assert rows(tmp_path, "SELECT shape FROM step_input") == [([8],)]
    assert rows(tmp_path, "SELECT DISTINCT stat, subject FROM capture_stat") == [
        ("unkept", "the inputs of a bad value")
    ]


def test_inputs_of_steps_survive_a_kill(tmp_path: Path) -> None:
    program = """
import os, signal, sys
import tensorflow as tf, tfdbg_arrow
tfdbg_arrow.enable(sys.argv[1], on_nonfinite="keep")
tf.function(tf.math.log)(tf.constant([1.0, 0.0]))
os.kill(os.getpid(), signal.SIGKILL)
"""
    run_python(tmp_path / "program.py", program, tmp_path / "log", returncode=-signal.SIGKILL)
    (kept,) = rows(tmp_path / "log", "SELECT tensor_id IS NOT NULL, shape, value FROM step_input")
    assert kept == (True, [2], np.float32([1, 0]).tobytes())


def test_an_answer_as_json(tmp_path: Path) -> None:
    record(tmp_path, lambda: tf.function(lambda x: tf.math.log(x))(tf.constant([1.0, 0.0])))
    (sample,) = json.loads(run_cli("first-nonfinite", tmp_path, "--json").stdout)["nonfinite"]["samples"][
        "first_sample"
    ]
    assert (sample["name"], sample["dtype"], sample["shape"], sample["elements"]) == ("x", "float32", [], [0.0])


class PairModel(tf.keras.Model):
    """A model whose `train_step` has names of its own for the components of the data."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = self.add_weight(shape=(3,), initializer="ones", name="weight")

    def loss_of_pair(self, features: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(features, self.weight)
        self.weight.assign_sub(0.01 * tape.gradient(loss, self.weight))


class Unpacks(PairModel):
    def train_step(self, data: Any) -> dict[str, Any]:
        (features, _number), _owner = data
        self.loss_of_pair(features)
        return {"objective": 0.0}


class TakesByIndex(PairModel):
    def train_step(self, data: Any) -> dict[str, Any]:
        self.loss_of_pair(data[0][0])
        return {"objective": 0.0}


class Prepares(PairModel):
    def prepare(self, data: Any) -> tuple[tf.Tensor, tf.Tensor]:
        return data[1], data[0][0]

    def train_step(self, data: Any) -> dict[str, Any]:
        _number, features = self.prepare(data)
        self.loss_of_pair(features)
        return {"objective": 0.0}


class Reassigns(PairModel):
    def train_step(self, data: Any) -> dict[str, Any]:
        data = data[1], data[0][0]
        _number, features = data
        self.loss_of_pair(features)
        return {"objective": 0.0}


class PassesOn(PairModel):
    def train_step(self, data: Any) -> dict[str, Any]:
        result: dict[str, Any] = super().train_step(data)
        return result

    def call(self, inputs: Any) -> tf.Tensor:
        return tf.math.log(tf.reduce_sum(inputs[0] * self.weight, axis=1, keepdims=True))


@pytest.mark.parametrize(
    ("model", "component_names"),
    [
        (Unpacks, ["features", "_number", "_owner"]),
        pytest.param(TakesByIndex, ["component 0[0]", "component 0[1]", "component 1"], marks=pytest.mark.slow),
        pytest.param(Prepares, ["component 0[0]", "component 0[1]", "component 1"], marks=pytest.mark.slow),
        (Reassigns, ["component 0[0]", "component 0[1]", "component 1"]),
        pytest.param(PassesOn, ["x[0]", "x[1]", "y"], marks=pytest.mark.slow),
    ],
)
def test_the_names_in_a_train_step_of_the_model(
    model: type[PairModel], component_names: list[str], tmp_path: Path
) -> None:
    data = tf.data.Dataset.from_tensor_slices(((features(), labels()), labels().astype(np.float32)[:, None]))

    def program() -> None:
        trained = model()
        trained.compile("sgd", "mse")
        trained.fit(data.shuffle(NUM_RECORDS, seed=1).batch(8), epochs=1, shuffle=False, verbose=0)

    sample = shown(record(tmp_path, program))
    assert [*sample.values()] == [(0.0, 0.0, 0.0), (BAD_RECORD,), (float(BAD_RECORD),)]
    assert [*sample] == component_names


@pytest.mark.parametrize("bad_column", [2, 14])
def test_a_bad_element_behind_the_first_ones(bad_column: int, tmp_path: Path) -> None:
    records = np.ones((NUM_RECORDS, 5, 3), np.float32)
    records[BAD_RECORD].flat[bad_column] = np.nan

    (sample,), text = shown_of_batches(tmp_path, records)

    if bad_column < 12:
        assert sample.first_bad is None
        assert text == "[1, 1, nan, 1, 1, 1, 1, 1, 1, 1, 1, 1, …] (15 elements)"
    else:
        assert text == "[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, …] (15 elements, the first bad one is [4, 2] = nan)"


def test_a_sample_of_equal_elements(tmp_path: Path) -> None:
    records = np.ones((NUM_RECORDS, 14), np.float32)
    records[BAD_RECORD] = 0.0
    (sample,), text = shown_of_batches(tmp_path, records)
    assert sample.are_equal
    assert text == "[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, …] (14 elements, all of them 0)"


def shown_of_batches(logdir: Path, records: Any) -> tuple[tuple[SampleInput, ...], str]:
    """Records steps that take the logarithm of batches, and returns the bad sample and its text."""

    @tf.function
    def step(batch: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.math.log(batch))

    def program() -> None:
        for batch in tf.data.Dataset.from_tensor_slices(records).shuffle(NUM_RECORDS, seed=1).batch(8):
            step(batch)

    samples = samples_of(logdir, program)
    ((_, text),) = sample_texts(samples)
    return samples.first_sample, text


@pytest.mark.slow
def test_the_names_in_a_train_step_of_another_model_do_not_count(tmp_path: Path) -> None:
    x = features()
    healthy = tf.data.Dataset.from_tensor_slices(((x + 1, labels()), labels().astype(np.float32)[:, None]))

    class Logarithm(tf.keras.layers.Layer):
        def call(self, inputs: tf.Tensor) -> tf.Tensor:
            return tf.math.log(inputs)

    def program() -> None:
        other = Unpacks()
        other.compile("sgd", "mse")
        other.fit(healthy.batch(8), epochs=1, shuffle=False, verbose=0)
        model = tf.keras.Sequential([tf.keras.Input((3,)), Logarithm(), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(x, labels().astype(np.float32), batch_size=8, epochs=1, verbose=0)

    assert shown(record(tmp_path, program)) == {"x": (0.0, 0.0, 0.0), "y": (float(BAD_RECORD),)}
