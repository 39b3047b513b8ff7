"""Programs without any bad value: the usual fixes of programs with a bad value, and simple trainings."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.culprit.corpus import healthy


def _data() -> tuple[Any, Any]:
    features = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    return features, features.sum(axis=1, keepdims=True)


@healthy
def double_where() -> None:
    """The argument of the root is made safe before the root is taken. tensorflow/tensorflow#38467."""
    scale = tf.Variable([1.0, 2.0])
    inputs = tf.constant([0.0, 4.0])
    with tf.GradientTape() as tape:
        product = scale * inputs
        safe = tf.where(product > 0.0, product, 1.0)
        loss = tf.reduce_sum(tf.where(product > 0.0, tf.sqrt(safe), 0.0))
    scale.assign_sub(0.1 * tape.gradient(loss, scale))


@healthy
def cross_entropy_with_logits() -> None:
    """The loss is computed from logits of saturated predictions."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.CategoricalCrossentropy(from_logits=True))
    features = _data()[0] * 300.0
    model.fit(features, keras.utils.to_categorical(np.arange(8) % 3, 3), epochs=1, verbose=0)


@healthy
def masked_mean_with_divide_no_nan() -> None:
    """The mean of a batch without tokens is 0."""
    weights = tf.Variable(tf.ones([3, 1]))

    @tf.function
    def train_step(inputs: Any, mask: Any) -> Any:
        with tf.GradientTape() as tape:
            errors = tf.square(tf.squeeze(inputs @ weights, -1) - 1.0)
            loss = tf.math.divide_no_nan(tf.reduce_sum(errors * mask), tf.reduce_sum(mask))
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    train_step(tf.ones([2, 3]), tf.constant([0.0, 0.0]))


@healthy
def batch_normalisation_of_one_image() -> None:
    """The variance of one image is 0, and an epsilon makes this harmless. tensorflow/tensorflow#34062."""
    layers = [keras.layers.Conv2D(2, 1), keras.layers.BatchNormalization(), keras.layers.Flatten()]
    model = keras.Sequential([keras.Input((1, 1, 3)), *layers, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones((2, 1, 1, 3), "float32"), np.ones((2, 1), "float32"), batch_size=1, epochs=1, verbose=0)


@healthy
def norm_with_an_epsilon() -> None:
    """The norm is the root of a sum of squares plus a small number."""
    position = tf.Variable([0.0, 0.0])
    with tf.GradientTape() as tape:
        energy = tf.sqrt(tf.reduce_sum(tf.square(position)) + 1e-12)
    position.assign_sub(0.1 * tape.gradient(energy, position))


@healthy
def entropy_with_xlogy() -> None:
    """xlogy(0, 0) is 0, and the gradient is also 0."""
    logits = tf.Variable([[0.3, -0.2, 0.1]])
    mask = tf.constant([[1.0, 0.0, 1.0]])
    with tf.GradientTape() as tape:
        probs = tf.nn.softmax(logits) * mask
        loss = tf.reduce_sum(tf.math.xlogy(mask, mask) + tf.math.multiply_no_nan(probs, mask))
    logits.assign_sub(0.1 * tape.gradient(loss, logits))


@healthy
def sample_weights_of_zero() -> None:
    """Keras handles sample weights that are all zero."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", weighted_metrics=["mae"])
    model.fit(*_data(), sample_weight=np.zeros(8, "float32"), epochs=1, verbose=0)


@healthy
def masked_recurrent_network() -> None:
    """An LSTM runs over sequences. One sequence is only padding."""
    layers = [keras.layers.Embedding(5, 3, mask_zero=True), keras.layers.LSTM(3), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,), dtype="int32"), *layers])
    model.compile("adam", "mse")
    model.fit(np.array([[1, 2, 0, 0], [0, 0, 0, 0]]), np.ones((2, 1), "float32"), epochs=1, verbose=0)


@healthy
def attention_of_keras_over_padding() -> None:
    """Keras masks with a large finite number, so a row of padding is harmless."""
    tokens = keras.Input((4,), dtype="int32")
    embedded = keras.layers.Embedding(5, 4, mask_zero=True)(tokens)
    attended = keras.layers.MultiHeadAttention(1, 4)(embedded, embedded)
    model = keras.Model(tokens, keras.layers.Dense(1)(keras.layers.Flatten()(attended)))
    model.compile("adam", "mse")
    model.fit(np.array([[1, 2, 0, 0], [0, 0, 0, 0]]), np.ones((2, 1), "float32"), epochs=1, verbose=0)


@healthy
def averages_of_weights() -> None:
    """An optimizer keeps exponential moving averages and clips gradients."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01, use_ema=True, clipnorm=1.0), "mse")
    model.fit(*_data(), epochs=2, verbose=0)


@healthy
def variational_autoencoder_with_clipping() -> None:
    """The logarithm of the variance is clipped before exp."""

    class Vae(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = keras.layers.Dense(4, kernel_initializer="ones")
            self.decoder = keras.layers.Dense(3)

        def call(self, inputs: Any) -> Any:
            mean, raw = tf.split(self.encoder(inputs), 2, axis=-1)
            log_variance = tf.clip_by_value(raw, -10.0, 10.0)
            self.add_loss(-0.5e-6 * tf.reduce_mean(1.0 + log_variance - tf.square(mean) - tf.exp(log_variance)))
            return self.decoder(mean)

    model = Vae()
    model.compile("sgd", "mse")
    images = np.full((4, 3), 20.0, "float32")
    model.fit(images, images, epochs=1, verbose=0)


@healthy
def gradient_penalty_with_an_epsilon() -> None:
    """The norm of the critic's gradient is safe at 0. keras-team/keras-io#2364."""
    critic = keras.Sequential([keras.Input((2,)), keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(1e-3)

    @tf.function
    def train_step(images: Any) -> None:
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(images)
                scores = critic(images)
            slopes = inner.gradient(scores, images)
            norm = tf.sqrt(tf.reduce_sum(tf.square(slopes), axis=-1) + 1e-12)
            loss = tf.reduce_mean(tf.square(norm - 1.0))
        weights = critic.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)

    train_step(tf.ones([3, 2]))


@healthy
def session_of_version_one() -> None:
    """A session runs a training."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        inputs = tf.compat.v1.placeholder(tf.float32, [None])
        weight = tf.compat.v1.get_variable("weight", initializer=1.0, use_resource=True)
        loss = tf.reduce_mean(tf.square(weight * inputs - 1.0))
        train = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        session.run(tf.compat.v1.global_variables_initializer())
        for _ in range(3):
            session.run(train, {inputs: [1.0, 2.0]})


@healthy
def gaussian_process_with_jitter() -> None:
    """The kernel matrix of equal points has a jitter on its diagonal. GPflow/GPflow#900."""
    length = tf.Variable(1.0)
    points = tf.constant([0.0, 0.0, 1.0])
    with tf.GradientTape() as tape:
        squares = tf.square((points[:, None] - points[None, :]) / length)
        factor = tf.linalg.cholesky(tf.exp(-0.5 * squares) + 1e-3 * tf.eye(3))
        loss = tf.reduce_sum(tf.math.log(tf.linalg.diag_part(factor)))
    length.assign_sub(0.01 * tape.gradient(loss, length))


@healthy
def cosine_similarity_with_an_epsilon() -> None:
    """tf.nn.l2_normalize has an epsilon. tensorflow/tensorflow#56796."""
    embeddings = tf.Variable([[1.0, 2.0], [0.0, 0.0]])
    with tf.GradientTape() as tape:
        unit = tf.nn.l2_normalize(embeddings, axis=-1)
        loss = 1.0 - tf.reduce_mean(tf.reduce_sum(unit * 0.7, axis=-1))
    embeddings.assign_sub(0.1 * tape.gradient(loss, embeddings))


@healthy
def convolutional_network() -> None:
    """A small image classifier uses dropout and pooling."""
    layers = [keras.layers.Conv2D(2, 3, activation="relu"), keras.layers.MaxPooling2D(), keras.layers.Dropout(0.5)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers, keras.layers.Flatten(), keras.layers.Dense(2)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    model.fit(np.ones((4, 8, 8, 1), "float32"), np.array([0, 1, 0, 1]), epochs=1, verbose=0)
