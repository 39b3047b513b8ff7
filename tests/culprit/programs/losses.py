"""Hand-written losses: logarithms of zero, divisions by zero, exponentials that overflow."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.culprit.corpus import bug


def _classifier(classes: int, activation: str) -> Any:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="relu")])
    model.add(keras.layers.Dense(classes, activation=activation))
    return model


def _features(rows: int = 16, *, scale: float = 1.0) -> Any:
    return (np.random.default_rng(0).normal(size=(rows, 4)) * scale).astype("float32")


@bug(op_type="Log", effect="variable")
def cross_entropy_by_hand() -> None:
    """Confident predictions underflow to 0. keras-team/keras#5733."""

    def loss(y_true: Any, y_pred: Any) -> Any:
        log_probs = tf.math.log(y_pred)  # culprit
        return -tf.reduce_sum(y_true * log_probs, axis=-1)

    model = _classifier(3, "softmax")
    model.compile("sgd", loss)
    labels = keras.utils.to_categorical(np.arange(16) % 3, 3)
    model.fit(_features(scale=300.0), labels, epochs=1, batch_size=8, verbose=0)


@bug(op_type="Log", effect="variable")
def binary_cross_entropy_by_hand() -> None:
    """A saturated sigmoid is exactly 1. keras-team/keras#9038."""

    def loss(y_true: Any, y_pred: Any) -> Any:
        positive = y_true * tf.math.log(y_pred + 1e-7)
        negative = (1.0 - y_true) * tf.math.log(1.0 - y_pred)  # culprit
        return -tf.reduce_mean(positive + negative)

    model = _classifier(1, "sigmoid")
    model.compile("sgd", loss)
    model.fit(np.abs(_features(scale=500.0)), np.ones((16, 1), "float32"), epochs=3, batch_size=16, verbose=0)


@bug(op_type="Log", effect="variable")
def focal_loss() -> None:
    """The focal loss takes the logarithm of a probability without an epsilon. mkocabas/focal-loss-keras#24."""
    weights = tf.Variable([[60.0], [60.0]])
    inputs = tf.constant([[1.0, 1.0], [-1.0, -1.0]])
    labels = tf.constant([[0.0], [1.0]])
    with tf.GradientTape() as tape:
        probs = tf.sigmoid(inputs @ weights)
        p_true = tf.where(labels > 0.5, probs, 1.0 - probs)
        focus = tf.pow(1.0 - p_true, 2.0)
        loss = -tf.reduce_mean(focus * tf.math.log(p_true))  # culprit
    weights.assign_sub(0.1 * tape.gradient(loss, weights))


@bug(op_type="Exp", effect="variable")
def ranking_with_a_sigmoid_by_hand() -> None:
    """The exponential in a hand-written sigmoid overflows for a pair in the wrong order.

    TensorFlow fuses the exponential with Neg.
    """
    weights = tf.Variable([[1.0], [1.0], [1.0], [1.0]])

    @tf.function
    def step(preferred: tf.Tensor, other: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            probability = 1.0 / (1.0 + tf.exp(-(preferred @ weights - other @ weights)))  # culprit
            loss = tf.reduce_mean(tf.square(1.0 - probability))
        weights.assign_sub(0.01 * tape.gradient(loss, weights))

    step(tf.constant(_features()), tf.constant(_features() + 40.0))


@bug(op_type="RealDiv", effect="variable")
def dice_of_empty_masks() -> None:
    """The Dice loss is 0/0 for an image without foreground if the prediction is also empty."""
    logits = tf.Variable(tf.fill([2, 16], -200.0))
    masks = tf.zeros([2, 16])
    optimizer = keras.optimizers.SGD(0.1)
    with tf.GradientTape() as tape:
        probs = tf.sigmoid(logits)
        overlap = 2.0 * tf.reduce_sum(probs * masks, axis=-1)
        total = tf.reduce_sum(probs, axis=-1) + tf.reduce_sum(masks, axis=-1)
        dice = overlap / total  # culprit
        loss = 1.0 - tf.reduce_mean(dice)
    optimizer.apply_gradients([(tape.gradient(loss, logits), logits)])


@bug(op_type="RealDiv", effect="variable", effect_in_xla="result")
def iou_of_empty_boxes() -> None:
    """Padding boxes have no area, so their intersection over union is 0/0."""

    def loss(y_true: Any, y_pred: Any) -> Any:
        overlap = tf.reduce_prod(tf.maximum(tf.minimum(y_true, y_pred), 0.0), axis=-1)
        areas = tf.reduce_prod(y_true, axis=-1) + tf.reduce_prod(y_pred, axis=-1)
        iou = overlap / (areas - overlap)  # culprit
        return 1.0 - iou

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, activation="relu", use_bias=False)])
    model.compile("sgd", loss)
    features = np.ones((8, 4), "float32")
    features[3:] = 0.0
    boxes = np.ones((8, 2), "float32")
    boxes[3:] = 0.0
    model.fit(features, boxes, epochs=1, verbose=0)


@bug(op_type="RealDiv", effect="variable")
def percentage_error_of_zero_targets() -> None:
    """The mean absolute percentage error without an epsilon divides by targets that are 0."""

    def loss(y_true: Any, y_pred: Any) -> Any:
        relative = tf.abs((y_true - y_pred) / y_true)  # culprit
        return 100.0 * tf.reduce_mean(relative, axis=-1)

    model = _classifier(1, "linear")
    model.compile("adam", loss)
    targets = np.arange(16, dtype="float32")[:, None]
    model.fit(_features(), targets, epochs=2, batch_size=16, verbose=0)


@bug(op_type="Log", effect="variable")
def squared_log_error_of_negative_predictions() -> None:
    """The loss takes log(1 + y) of a prediction below -1."""

    def loss(y_true: Any, y_pred: Any) -> Any:
        predicted = tf.math.log(y_pred + 1.0)  # culprit
        return tf.reduce_mean(tf.square(predicted - tf.math.log(y_true + 1.0)), axis=-1)

    model = _classifier(1, "linear")
    model.compile("sgd", loss)
    model.fit(_features(scale=10.0), np.ones((16, 1), "float32"), epochs=1, batch_size=16, verbose=0)


@bug(op_type="Log1p", effect="result")
def log1p_of_minus_one() -> None:
    """The loss takes log1p of a prediction that is clipped to -1."""
    scale = tf.Variable(2.0)
    values = tf.constant([-3.0, 0.5, 1.0])
    with tf.GradientTape() as tape:
        clipped = tf.maximum(values * scale, -1.0)
        loss = tf.reduce_mean(tf.math.log1p(clipped))  # culprit
    scale.assign_sub(0.1 * tape.gradient(loss, scale))


@bug(op_type="Exp", effect="variable")
def softmax_by_hand() -> None:
    """exp(x) / sum(exp(x)) is computed without subtracting the maximum. The code makes an infinity, then inf/inf."""

    @tf.function
    def train_step(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = inputs @ weights
            powers = tf.exp(logits)  # culprit
            probs = powers / tf.reduce_sum(powers, axis=-1, keepdims=True)
            loss = -tf.reduce_mean(labels * tf.math.log(probs + 1e-9))
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    weights = tf.Variable(tf.eye(3) * 40.0)
    for scale in (1.0, 2.0, 3.0):
        train_step(tf.eye(3) * scale, tf.eye(3))


@bug(op_type="Exp", effect="variable")
def softplus_by_hand() -> None:
    """log(1 + exp(x)) overflows for values for which tf.nn.softplus does not overflow."""
    scale = tf.Variable(3.0)
    inputs = tf.constant([1.0, 10.0, 40.0])
    with tf.GradientTape() as tape:
        positive = tf.math.log(1.0 + tf.exp(scale * inputs))  # culprit
        loss = tf.reduce_mean(positive)
    scale.assign_sub(0.1 * tape.gradient(loss, scale))


@bug(op_type="Exp", effect="result")
def log_sum_exp_by_hand() -> Any:
    """log(sum(exp(x))) overflows for values for which tf.reduce_logsumexp does not overflow."""

    @tf.function
    def partition(energies: Any) -> Any:
        return tf.math.log(tf.reduce_sum(tf.exp(energies)))  # culprit

    return partition(tf.constant([10.0, 95.0, 20.0])).numpy()


@bug(op_type="Exp", effect="variable")
def poisson_of_unbounded_rate() -> None:
    """A Poisson loss takes exp(prediction), and the features were never scaled."""

    def loss(y_true: Any, y_pred: Any) -> Any:
        rate = tf.exp(y_pred)  # culprit
        return tf.reduce_mean(rate - y_true * y_pred, axis=-1)

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile("sgd", loss)
    model.fit(np.abs(_features(scale=100.0)), np.ones((16, 1), "float32"), epochs=1, verbose=0)


@bug(op_type="Log", effect="variable")
def kl_divergence_by_hand() -> None:
    """For a histogram with an empty bin, p * log(p / q) is 0 * -Inf."""
    logits = tf.Variable([0.0, 1.0, 2.0])
    target = tf.constant([0.0, 0.25, 0.75])
    with tf.GradientTape() as tape:
        q = tf.nn.softmax(logits)
        ratio = target / q
        loss = tf.reduce_sum(target * tf.math.log(ratio))  # culprit
    logits.assign_sub(tape.gradient(loss, logits))


@bug(op_type="Log", effect="variable")
def entropy_bonus_of_masked_actions() -> None:
    """The bonus is -p * log(p). A mask makes p exactly 0."""
    logits = tf.Variable([[0.3, -0.2, 0.1]])
    mask = tf.constant([[1.0, 0.0, 1.0]])
    with tf.GradientTape() as tape:
        probs = tf.nn.softmax(logits) * mask
        entropy = -tf.reduce_sum(probs * tf.math.log(probs))  # culprit
        loss = -0.01 * entropy
    logits.assign_sub(tape.gradient(loss, logits))


@bug(op_type="RealDiv", effect="variable", executed=("RealDiv", "RealDiv"), is_removed=True)
def cosine_loss_of_zero_vectors() -> None:
    """A cosine similarity divides by the norms of embeddings, and one embedding is all zeros."""
    embeddings = tf.Variable([[1.0, 2.0], [0.0, 0.0]])
    anchors = tf.constant([[1.0, 0.0], [0.0, 1.0]])

    @tf.function
    def train_step() -> None:
        with tf.GradientTape() as tape:
            dots = tf.reduce_sum(embeddings * anchors, axis=-1)
            norms = tf.reduce_sum(tf.abs(embeddings), axis=-1)
            cosine = dots / norms  # culprit
            loss = 1.0 - tf.reduce_mean(cosine)
        embeddings.assign_sub(tape.gradient(loss, embeddings))

    train_step()


@bug(op_type="RealDiv", effect="variable")
def contrastive_loss_at_temperature_zero() -> None:
    """A learned temperature reaches exactly 0. The similarities are divided by the temperature."""
    temperature = tf.Variable(0.5)
    vectors = tf.constant([[1.0, 0.0], [0.0, 1.0]])
    for _ in range(3):
        with tf.GradientTape() as tape:
            logits = vectors @ tf.transpose(vectors) / temperature  # culprit
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits([0, 1], logits))
        tape.gradient(loss, temperature)
        temperature.assign(tf.maximum(temperature - 0.25, 0.0))
    temperature.assign(tf.reduce_mean(logits))


@bug(op_type="Mean", effect="result")
def mean_of_no_hard_examples() -> None:
    """Hard example mining keeps no example, and the mean of no elements is NaN."""
    scale = tf.Variable(0.1)
    errors = tf.constant([0.5, 1.0, 2.0])
    with tf.GradientTape() as tape:
        losses = tf.square(scale * errors)
        hard = tf.boolean_mask(losses, losses > 0.9)
        loss = tf.reduce_mean(hard)  # culprit
    scale.assign_sub(tape.gradient(loss, scale))


@bug(op_type="RealDiv", effect="variable")
def masked_mean_of_a_padded_batch() -> None:
    """The mean divides a sum by a count. The count is 0 for a batch of only padding."""
    weights = tf.Variable(tf.ones([3, 1]))

    @tf.function
    def train_step(inputs: Any, mask: Any) -> Any:
        with tf.GradientTape() as tape:
            errors = tf.square(tf.squeeze(inputs @ weights, -1) - 1.0)
            loss = tf.reduce_sum(errors * mask) / tf.reduce_sum(mask)  # culprit
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    train_step(tf.ones([2, 3]), tf.constant([1.0, 0.0]))
    train_step(tf.ones([2, 3]), tf.constant([0.0, 0.0]))


@bug(op_type="Log", effect="result")
def wasserstein_temperature_in_log() -> None:
    """The loss takes the logarithm of a learned uncertainty. An optimizer step makes the uncertainty negative."""
    sigma = tf.Variable(0.05)
    optimizer = keras.optimizers.SGD(0.01)
    for _ in range(4):
        with tf.GradientTape() as tape:
            loss = 1.0 / tf.square(sigma + 0.1) * 0.001 + 4.0 * tf.math.log(sigma)  # culprit
        optimizer.apply_gradients([(tape.gradient(loss, sigma), sigma)])


@bug(op_type="Log", effect="result")
def perplexity_of_an_unseen_word() -> Any:
    """The loss takes the logarithm of a product of n-gram probabilities. The product underflows to 0."""
    probs = tf.constant([1e-12, 1e-15, 1e-14, 1e-10])
    likelihood = tf.reduce_prod(probs)
    return -tf.math.log(likelihood)  # culprit


@bug(op_type="SparseSoftmaxCrossEntropyWithLogits", effect="result")
def contrastive_label_on_the_masked_diagonal() -> None:
    """Each view is masked for itself with the lowest number, which the temperature makes -Inf. The labels are wrong."""
    weights = tf.Variable(tf.ones([2, 3]))

    @tf.function
    def train_step(views: Any) -> Any:
        with tf.GradientTape() as tape:
            vectors = tf.math.l2_normalize(views @ weights, 1)
            size = tf.shape(vectors)[0]
            scores = tf.matmul(vectors, vectors, transpose_b=True) + tf.eye(size) * vectors.dtype.min
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(size), scores / 0.1)  # culprit
            loss = tf.reduce_mean(losses)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    train_step(tf.random.normal([4, 2]))
