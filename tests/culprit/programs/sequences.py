"""Sequences: attention, recurrent networks, CTC, language models, masks."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.culprit.corpus import bug


@bug(op_type="Softmax", effect="variable")
def attention_row_without_any_key() -> None:
    """A sequence of only padding gives a softmax a row of only -Inf. keras-team/keras#16108."""

    class Attention(keras.layers.Layer):
        def call(self, values: Any, keep: Any) -> Any:
            scores = tf.matmul(values, values, transpose_b=True)
            masked = tf.where(keep[:, None, :], scores, -np.inf)
            return tf.nn.softmax(masked) @ values  # culprit

    values, keep = keras.Input((3, 2)), keras.Input((3,), dtype="bool")
    hidden = Attention()(keras.layers.Dense(2)(values), keep)
    model = keras.Model([values, keep], keras.layers.Dense(1)(hidden))
    model.compile("sgd", "mse")
    mask = np.array([[True, True, False], [False, False, False]])
    model.fit([np.ones((2, 3, 2), "float32"), mask], np.ones((2, 3, 1), "float32"), epochs=1, verbose=0)


def _trained_attention(keep: Any, masked: Any) -> None:
    """Trains the weights of an attention for two steps. `masked(scores, keep)` masks the scores of three keys."""
    values, weights = tf.constant([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]), tf.Variable(tf.eye(2))

    @tf.function
    def train_step(keep: Any) -> Any:
        with tf.GradientTape() as tape:
            scores = tf.matmul(values @ weights, values, transpose_b=True) + tf.zeros([2, 1, 1])
            loss = tf.reduce_mean(masked(scores, keep[:, None, :]) @ values)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    for _ in range(2):
        train_step(tf.ones([2, 3]))
    train_step(tf.constant(keep))


@bug(op_type="Softmax", effect="result")
def masked_row_beside_a_mask_that_overflows() -> None:
    """A sequence has no key. The sum of two masks of the lowest number does no harm: it is -Inf in masked places."""
    causal = 1.0 - tf.linalg.band_part(tf.ones([3, 3]), -1, 0)

    def attend(scores: Any, keep: Any) -> Any:
        low = scores.dtype.min
        scores += causal * low + (1.0 - keep) * low
        return tf.nn.softmax(tf.where(keep > 0.0, scores, -np.inf))  # culprit

    _trained_attention([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]], attend)


@bug(op_type="Softmax", effect="variable")
def row_that_two_masks_of_the_lowest_number_mask() -> None:
    """Both queries and keys of a padded sequence are masked with the lowest number. The sum of the masks is -Inf."""

    def attend(scores: Any, keep: Any) -> Any:
        low = scores.dtype.min
        padding = (1.0 - keep) * low
        return tf.nn.softmax(scores + padding + tf.transpose(padding, [0, 2, 1]))  # culprit

    _trained_attention([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]], attend)


@bug(op_type="AddV2", effect="variable")
def square_of_scores_with_two_masks_of_the_lowest_number() -> None:
    """The loss has a term with the square of the scores, after both masks made them -Inf."""

    def attend(scores: Any, keep: Any) -> Any:
        padding = (1.0 - keep) * scores.dtype.min
        masked = scores + (padding + tf.transpose(padding, [0, 2, 1]))  # culprit
        return tf.nn.softmax(masked) + tf.square(masked)

    _trained_attention([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]], attend)


@bug(op_type="Softmax", effect="variable")
def softmax_of_the_logarithm_of_a_given_mask() -> None:
    """The logarithm of the mask is -Inf for each masked key. Only the sequence without any key does harm."""

    def attend(scores: Any, keep: Any) -> Any:
        return tf.nn.softmax(scores + tf.math.log(keep))  # culprit

    _trained_attention([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]], attend)


@bug(op_type="Sub", effect="result")
def softmax_by_hand_of_a_masked_row() -> Any:
    """For a row of only -Inf, x - max(x) is -Inf - -Inf."""

    @tf.function
    def attend(scores: Any, mask: Any) -> Any:
        masked = scores + mask
        shifted = masked - tf.reduce_max(masked, axis=-1, keepdims=True)  # culprit
        powers = tf.exp(shifted)
        return powers / tf.reduce_sum(powers, axis=-1, keepdims=True)

    inf = float("inf")
    return attend(tf.ones([2, 3]), tf.constant([[0.0, 0.0, -inf], [-inf, -inf, -inf]]))


@bug(op_type="Log", effect="result")
def log_sum_exp_of_a_masked_row() -> Any:
    """A bag without instances is a row of only -Inf, so its log-sum-exp is -Inf."""

    @tf.function
    def pool(scores: Any, mask: Any) -> Any:
        masked = tf.where(mask, scores, -np.inf)
        return tf.reduce_logsumexp(masked, axis=1)  # culprit

    return pool(tf.ones([2, 3]), tf.constant([[True, True, False], [False, False, False]]))


@bug(op_type="Log", effect="variable")
def pooling_scaled_by_the_logarithm_of_the_length() -> None:
    """A text without tokens has the length 0. The layer takes the logarithm of the length and divides by the length."""

    class Pooling(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            used = tf.cast(tf.reduce_any(tf.not_equal(x, 0.0), axis=-1), x.dtype)
            lengths = tf.reduce_sum(used, axis=1, keepdims=True)
            scale = 1.0 + tf.math.log(lengths)  # culprit
            return tf.reduce_sum(x, axis=1) * scale / lengths

    vectors = np.random.default_rng(0).uniform(1.0, 2.0, (12, 5, 3)).astype("float32")
    vectors[7] = 0.0
    model = keras.Sequential([Pooling(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(vectors, np.ones((12, 1)), batch_size=4, shuffle=False, verbose=0)


@bug(op_type="Mul", effect="result")
def mask_times_infinity() -> Any:
    """A mask is (1 - keep) * -Inf. For a token that is kept, this is 0 * -Inf, which is NaN."""
    keep = tf.constant([1.0, 1.0, 0.0])
    scores = tf.constant([0.3, 0.1, 0.9])
    mask = (1.0 - keep) * float("-inf")  # culprit
    return tf.nn.softmax(scores + mask)


@bug(op_type="RealDiv", effect="variable", effect_in_xla="result")
def token_loss_of_a_batch_of_padding() -> None:
    """The loss per token is computed for a batch of only padding."""

    class LanguageModel(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.embed = keras.layers.Embedding(5, 4)
            self.head = keras.layers.Dense(5)

        def train_step(self, data: Any) -> Any:
            tokens, targets = data
            with tf.GradientTape() as tape:
                logits = self.head(self.embed(tokens))
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
                keep = tf.cast(targets != 0, tf.float32)
                loss = tf.reduce_sum(losses * keep) / tf.reduce_sum(keep)  # culprit
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"loss": loss}

    model = LanguageModel()
    model.compile("sgd")
    tokens = np.array([[1, 2, 3], [2, 1, 0], [0, 0, 0], [0, 0, 0]])
    model.fit(tokens, tokens, batch_size=2, shuffle=False, epochs=1, verbose=0)


@bug(op_type="MatMul", effect="result")
def exploding_recurrence() -> Any:
    """A recurrent state grows until the matrix product overflows. keras-team/keras#2194."""
    weights = tf.eye(3) * 30.0

    @tf.function
    def run(state: Any) -> Any:
        for _ in tf.range(40):
            state = tf.nn.relu(state @ weights)  # culprit
        return state

    return run(tf.ones([2, 3]))


@bug(op_type="Exp", effect="variable")
def recurrent_cell_with_exponential_activation() -> None:
    """A cell with the activation exp overflows after a few steps. tensorflow/tensorflow#53779."""

    class Cell(keras.layers.Layer):
        state_size = 2

        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight(shape=(shape[-1], 2), initializer="ones")
            self.recurrent = self.add_weight(shape=(2, 2), initializer="ones")

        def call(self, inputs: Any, states: Any) -> Any:
            total = inputs @ self.kernel + states[0] @ self.recurrent
            output = tf.exp(total)  # culprit
            return output, [output]

    model = keras.Sequential([keras.Input((6, 2)), keras.layers.RNN(Cell()), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones((2, 6, 2), "float32"), np.ones((2, 1), "float32"), epochs=1, verbose=0)


@bug(op_type="Exp", effect="variable")
def simple_rnn_with_exponential_activation() -> None:
    """Keras's own cell has the activation exp, so the line to name is the call of fit. keras-team/keras#15912."""
    layer = keras.layers.SimpleRNN(2, activation="exponential", kernel_initializer="ones", recurrent_initializer="ones")
    model = keras.Sequential([keras.Input((6, 2)), layer, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones((2, 6, 2), "float32"), np.ones((2, 1), "float32"), epochs=1, verbose=0)  # culprit


@bug(op_type="RealDiv", effect="variable")
def average_of_an_empty_sequence() -> None:
    """The program takes the mean over the steps of a sequence of length 0."""

    class MaskedAverage(keras.layers.Layer):
        def call(self, values: Any, lengths: Any) -> Any:
            keep = tf.sequence_mask(tf.squeeze(lengths, -1), tf.shape(values)[1], dtype=values.dtype)
            total = tf.reduce_sum(values * keep[:, :, None], axis=1)
            return total / tf.cast(lengths, values.dtype)  # culprit

    tokens, lengths = keras.Input((4,), dtype="int32"), keras.Input((1,), dtype="int32")
    average = MaskedAverage()(keras.layers.Embedding(6, 3)(tokens), lengths)
    model = keras.Model([tokens, lengths], keras.layers.Dense(1)(average))
    model.compile("sgd", "mse")
    data = [np.ones((3, 4), "int32"), np.array([[4], [2], [0]], "int32")]
    model.fit(data, np.ones((3, 1), "float32"), epochs=1, verbose=0)


@bug(op_type="RealDiv", effect="variable")
def pooling_of_keras_over_padding() -> None:
    """GlobalAveragePooling1D divides by the number of words that the embedding's mask keeps. This number is 0."""
    embedding = keras.layers.Embedding(6, 3, mask_zero=True)
    model = keras.Sequential([keras.Input((4,), dtype="int32"), embedding, keras.layers.GlobalAveragePooling1D()])
    model.add(keras.layers.Dense(1))
    model.compile("sgd", "mse")
    model.fit(np.array([[1, 2, 0, 0], [0, 0, 0, 0]]), np.ones((2, 1), "float32"), epochs=1, verbose=0)  # culprit


@bug(op_type="Log", effect="variable", executed=("Reciprocal", "Log"))
def pointer_network_distribution() -> None:
    """The loss takes the logarithm of copy probabilities that are 0 for words not in the source."""
    gate = tf.Variable(0.0)
    source = tf.one_hot([1, 1, 2], 4)

    @tf.function
    def train_step(target: Any) -> Any:
        with tf.GradientTape() as tape:
            copied = tf.reduce_mean(source, axis=0) * tf.sigmoid(gate)
            losses = -tf.math.log(tf.gather(copied, target))  # culprit
            loss = tf.reduce_mean(losses)
        gate.assign_sub(0.1 * tape.gradient(loss, gate))
        return loss

    train_step(tf.constant([1, 2]))
    train_step(tf.constant([1, 3]))


@bug(op_type="RealDiv", effect="result")
def length_penalty_of_empty_beams() -> Any:
    """The scores of beams are divided by the lengths of the beams.

    One length is 0, because the beam ended immediately.
    """

    @tf.function
    def best(scores: Any, lengths: Any) -> Any:
        return scores / tf.cast(lengths, tf.float32)  # culprit

    return best(tf.constant([-1.5, 0.0]), tf.constant([3, 0])).numpy()


@bug(op_type="Sub", effect="result")
def beam_search_that_restarts_from_dead_beams() -> Any:
    """Beams begin at -Inf, and the difference of two dead beams is NaN."""
    beams = tf.constant([0.0, -np.inf, -np.inf])
    step = tf.math.log_softmax(tf.constant([0.3, 0.2, 0.5]))
    scores = beams + step
    return scores - scores[1]  # culprit


@bug(op_type="MatMul", effect="result")
def attention_scores_overflow_in_float16() -> Any:
    """Queries that were not scaled overflow in the product of float16. pytorch/pytorch#40497."""
    queries = tf.cast(tf.fill([2, 64], 40.0), tf.float16)

    @tf.function
    def attend(query: Any) -> Any:
        scores = tf.matmul(query, query, transpose_b=True)  # culprit
        return tf.nn.softmax(scores - 1.0)

    return attend(queries)


@bug(op_type="Cast", effect="result")
def attention_mask_of_a_billion_in_float16() -> Any:
    """-1e9 is -Inf in float16, and a fully masked row becomes NaN. google/flax#982."""

    @tf.function
    def attend(scores: Any, keep: Any) -> Any:
        penalty = tf.where(keep, 0.0, -1e9)
        mask = tf.cast(penalty, tf.float16)  # culprit
        return tf.nn.softmax(scores + mask)

    return attend(tf.ones([2, 3], tf.float16), tf.constant([[True, True, False], [False, False, False]]))


@bug(op_type="Exp", effect="variable")
def forget_gate_by_hand() -> None:
    """A recurrence contains a sigmoid written as exp(x) / (1 + exp(x))."""
    weights = tf.Variable(tf.ones([2, 2]))
    inputs = tf.fill([3, 2], 60.0)

    @tf.function
    def train_step() -> Any:
        with tf.GradientTape() as tape:
            state = tf.zeros([2])
            for step in tf.range(3):
                total = tf.linalg.matvec(weights, inputs[step] + state)
                power = tf.exp(total)  # culprit
                state = power / (1.0 + power)
            loss = tf.reduce_sum(state)
        weights.assign_sub(tape.gradient(loss, weights))
        return loss

    train_step()


@bug(op_type="Log", effect="variable")
def ctc_loss_of_probabilities_in_float16() -> None:
    """An epsilon of 1e-8 is 0 in float16. The loop in the loss turns -Inf into NaN, but is not recorded.

    The shapes are the same as in `harmless.ctc_loss_of_keras`. TensorFlow's graph optimizer fails if a process has CTC
    losses of different shapes, because the bodies of their loops have the same name.
    """
    weights = tf.Variable(tf.ones([8]))
    words = tf.constant([[1, 2, 3, 4, 5]] * 4)

    @tf.function
    def train_step(scores: Any) -> None:
        with tf.GradientTape() as tape:
            shares = tf.nn.softmax(tf.cast(scores * weights, tf.float16))
            logarithms = tf.math.log(shares + 1e-8)  # culprit
            lengths, frames = tf.fill([4], 5), tf.fill([4], 20)
            losses = tf.nn.ctc_loss(
                words, tf.cast(logarithms, tf.float32), lengths, frames, logits_time_major=False, blank_index=0
            )
            loss = tf.reduce_mean(losses)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))

    train_step(50.0 * tf.reshape(tf.one_hot(tf.range(80) % 7, 8), [4, 20, 8]))


@bug(op_type="Log", effect="variable")
def ctc_by_hand_over_probabilities() -> None:
    """tf.nn.ctc_loss expects logits, but gets the logarithm of probabilities that underflow."""
    logits = tf.Variable(tf.random.normal([1, 4, 3]) * 120.0)
    with tf.GradientTape() as tape:
        probs = tf.nn.softmax(logits)
        log_probs = tf.math.log(probs)  # culprit
        losses = -tf.reduce_sum(log_probs * tf.one_hot([[0, 1, 2, 0]], 3), axis=[1, 2])
        loss = tf.reduce_mean(losses)
    logits.assign_sub(tape.gradient(loss, logits))


@bug(op_type="CTCLoss", effect="result")
def label_longer_than_its_frames() -> None:
    """Seven equal characters need 13 frames, but there are only 8 frames. The loss is computed in a separate step."""
    random = np.random.default_rng(25)
    frames = random.normal(size=(16, 8, 5)).astype("float32")
    labels = np.zeros((16, 7), "int32")
    labels[:, :2] = random.integers(1, 6, (16, 2))
    labels[5] = 3
    dense = tf.Variable(random.normal(size=(5, 6)).astype("float32"))

    @tf.function
    def evaluate(x: Any, y: Any) -> Any:
        logits = tf.transpose(x @ dense, [1, 0, 2])
        lengths = tf.fill([tf.shape(x)[0]], 8)
        losses = tf.nn.ctc_loss(tf.sparse.from_dense(y), logits, None, lengths, blank_index=0)  # culprit
        return tf.reduce_mean(losses)

    evaluate(frames, labels)
