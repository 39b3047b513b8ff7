"""Healthy programs of the kinds that people publish: no answer may report anything about them.

Each trains a small model for a few dozen steps and converges. `PROGRAMS` holds them by name.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

PROGRAMS: dict[str, Callable[[], object]] = {}
_STEPS = 24


def _program(function: Callable[[], object]) -> Callable[[], object]:
    PROGRAMS[function.__name__] = function
    return function


def _random() -> np.random.Generator:
    return np.random.default_rng(0)


def _table(rows: int = 96, columns: int = 8) -> tuple[Any, Any]:
    features = _random().normal(size=(rows, columns)).astype("float32")
    return features, (features[:, :3].argmax(axis=1)).astype("int32")


def _images() -> tuple[Any, Any]:
    images = _random().random(size=(96, 12, 12, 1)).astype("float32")
    return images, (images.mean(axis=(1, 2, 3)) > 0.5).astype("int32")


def _tokens() -> tuple[Any, Any]:
    tokens = _random().integers(1, 20, size=(96, 10)).astype("int32")
    tokens[:, 7:] = 0  # padding
    return tokens, (tokens[:, 0] > 10).astype("int32")


def _fit(model: Any, features: Any, targets: Any, loss: Any, optimizer: Any = "adam", **options: Any) -> Any:
    model.compile(optimizer, loss, **options)
    model.fit(features, targets, batch_size=8, epochs=2, verbose=0)
    model.evaluate(features, targets, verbose=0)
    model.predict(features, verbose=0)
    return model


def _dense(*units: int, activation: str = "relu", inputs: int = 8) -> Any:
    hidden = [keras.layers.Dense(number, activation=activation) for number in units[:-1]]
    return keras.Sequential([keras.Input((inputs,)), *hidden, keras.layers.Dense(units[-1])])


def _sparse() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@_program
def multilayer_perceptron() -> None:
    _fit(_dense(16, 8, 3), *_table(), _sparse(), metrics=["accuracy"])


@_program
def sparse_relu_network() -> None:
    _fit(_dense(64, 64, 3), *_table(), _sparse(), optimizer=keras.optimizers.SGD(0.05, momentum=0.9))


@_program
def one_hot_labels() -> None:
    features, labels = _table()
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, activation="softmax")])
    _fit(model, features, np.eye(3, dtype="float32")[labels], "categorical_crossentropy")


@_program
def convolutional_network() -> None:
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            layers.Conv2D(4, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(8, 3, activation="relu"),
            layers.Dropout(0.3),
            layers.Flatten(),
            layers.Dense(2),
        ]
    )
    _fit(model, *_images(), _sparse())


@_program
def batch_normalization() -> None:
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            layers.Conv2D(4, 3, use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(2),
        ]
    )
    _fit(model, *_images(), _sparse())


@_program
def residual_network_with_weight_decay() -> None:
    layers = keras.layers
    inputs = keras.Input((12, 12, 1))
    values = layers.SeparableConv2D(4, 3, padding="same")(inputs)
    values = layers.Add()([values, layers.Conv2D(4, 3, padding="same", activation="relu")(values)])
    outputs = layers.Dense(2)(layers.GlobalMaxPooling2D()(values))
    _fit(
        keras.Model(inputs, outputs), *_images(), _sparse(), optimizer=keras.optimizers.AdamW(0.01, weight_decay=0.004)
    )


@_program
def lstm_on_a_time_series() -> None:
    series = np.sin(np.arange(110, dtype="float32") / 5.0)
    windows = np.stack([series[i : i + 12] for i in range(96)])[..., None]
    model = keras.Sequential([keras.Input((12, 1)), keras.layers.LSTM(8), keras.layers.Dense(1)])
    _fit(model, windows, series[12:108, None], "mse")


@_program
def bidirectional_gru_on_text() -> None:
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((10,)),
            layers.Embedding(200, 8, mask_zero=True),
            layers.Bidirectional(layers.GRU(6)),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    _fit(model, *_tokens(), "binary_crossentropy", metrics=["accuracy"])


@_program
def text_classification() -> None:
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((10,)),
            layers.Embedding(5000, 8),
            layers.GlobalAveragePooling1D(),
            layers.Dense(8, activation="relu"),
            layers.Dense(2),
        ]
    )
    _fit(model, *_tokens(), _sparse())


class _Encoder(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.attention = keras.layers.MultiHeadAttention(2, 4)
        self.norms = [keras.layers.LayerNormalization(), keras.layers.LayerNormalization()]
        self.dense = keras.Sequential([keras.layers.Dense(16, activation="gelu"), keras.layers.Dense(8)])
        self.supports_masking = True

    def call(self, values: Any, mask: Any = None) -> Any:
        pairs = None if mask is None else mask[:, None, :]
        values = self.norms[0](values + self.attention(values, values, attention_mask=pairs, use_causal_mask=True))
        return self.norms[1](values + self.dense(values))


@_program
def transformer_with_masks() -> None:
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((10,)),
            layers.Embedding(20, 8, mask_zero=True),
            _Encoder(),
            layers.GlobalAveragePooling1D(),
            layers.Dense(2),
        ]
    )
    _fit(model, *_tokens(), _sparse())


@_program
def hand_written_attention_with_a_large_mask() -> None:
    tokens, labels = _tokens()
    embedding = tf.Variable(_random().normal(size=(20, 8)).astype("float32") * 0.3)
    head = tf.Variable(_random().normal(size=(8, 2)).astype("float32") * 0.3)
    optimizer = keras.optimizers.Adam(0.01)

    @tf.function
    def step(batch: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            values = tf.gather(embedding, batch)
            mask = tf.cast(batch == 0, tf.float32)[:, None, :] * tf.float32.min
            weights = tf.nn.softmax(tf.matmul(values, values, transpose_b=True) + mask)
            logits = tf.reduce_mean(weights @ values, axis=1) @ head
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits))
        optimizer.apply_gradients(zip(tape.gradient(loss, [embedding, head]), [embedding, head], strict=True))
        return loss

    for i in range(_STEPS):
        step(tokens[4 * i : 4 * i + 4], labels[4 * i : 4 * i + 4])


@_program
def sequence_to_sequence() -> None:
    layers = keras.layers
    source, target = keras.Input((10,)), keras.Input((10,))
    _, state = layers.GRU(8, return_state=True)(layers.Embedding(20, 8)(source))
    decoded = layers.GRU(8, return_sequences=True)(layers.Embedding(20, 8)(target), initial_state=state)
    tokens, _ = _tokens()
    _fit(keras.Model([source, target], layers.Dense(20)(decoded)), [tokens, tokens], tokens[:, ::-1], _sparse())


@_program
def autoencoder() -> None:
    images, _ = _images()
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            layers.Conv2D(4, 3, strides=2, padding="same", activation="relu"),
            layers.Conv2DTranspose(4, 3, strides=2, padding="same", activation="relu"),
            layers.Conv2D(1, 3, padding="same", activation="sigmoid"),
        ]
    )
    _fit(model, images, images, "mse")


@_program
def variational_autoencoder() -> None:
    features, _ = _table()
    encoder, decoder = _dense(16, 4), _dense(16, 8, inputs=2)
    variables = encoder.trainable_variables + decoder.trainable_variables
    optimizer = keras.optimizers.Adam(0.005)

    @tf.function
    def step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            mean, log_variance = tf.split(encoder(batch), 2, axis=1)
            code = mean + tf.exp(0.5 * log_variance) * tf.random.normal(tf.shape(mean), seed=1)
            divergence = -0.5 * tf.reduce_mean(1.0 + log_variance - mean**2 - tf.exp(log_variance))
            loss = tf.reduce_mean(tf.square(decoder(code) - batch)) + 0.1 * divergence
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    for i in range(_STEPS):
        step(features[4 * i : 4 * i + 4])


@_program
def adversarial_network() -> None:
    features, _ = _table()
    generator, critic = _dense(16, 8, inputs=4), _dense(16, 1, activation="leaky_relu")
    optimizers = keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-3)
    cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)

    @tf.function
    def step(real: Any) -> Any:
        with tf.GradientTape() as tape, tf.GradientTape() as critic_tape:
            fake = generator(tf.random.normal([4, 4], seed=1), training=True)
            on_real, on_fake = critic(real, training=True), critic(fake, training=True)
            loss = cross_entropy(tf.ones_like(on_fake), on_fake)
            zeros = tf.zeros_like(on_fake)
            critic_loss = cross_entropy(tf.ones_like(on_real), on_real) + cross_entropy(zeros, on_fake)
        pairs = ((tape, loss, generator), (critic_tape, critic_loss, critic))
        for optimizer, (one_tape, one_loss, model) in zip(optimizers, pairs, strict=True):
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(one_tape.gradient(one_loss, variables), variables, strict=True))
        return loss

    for i in range(_STEPS):
        step(features[4 * i : 4 * i + 4])


@_program
def graph_network_with_segment_sums() -> None:
    random = _random()
    nodes = random.normal(size=(30, 8)).astype("float32")
    edges = random.integers(0, 25, size=(2, 60)).astype("int32")  # five nodes have no edge
    labels = (nodes[:, 0] > 0).astype("int32")
    message, head = _dense(8, 8), _dense(2)
    variables = message.trainable_variables + head.trainable_variables
    optimizer = keras.optimizers.Adam(0.01)

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            sums = tf.math.unsorted_segment_sum(message(tf.gather(nodes, edges[0])), edges[1], 30)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, head(nodes + sums)))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    for _ in range(_STEPS):
        step()


@_program
def contrastive_learning() -> None:
    features, _ = _table()
    encoder = _dense(16, 4)
    optimizer = keras.optimizers.Adam(0.005)

    @tf.function
    def step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            views = [batch + tf.random.normal(tf.shape(batch), stddev=0.1, seed=seed) for seed in (1, 2)]
            first, second = (tf.math.l2_normalize(encoder(view), axis=1) for view in views)
            codes = tf.concat([first, second], axis=0)
            scores = tf.matmul(codes, codes, transpose_b=True) / 0.1 - 1e9 * tf.eye(16)
            targets = tf.concat([tf.range(8, 16), tf.range(8)], axis=0)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, scores))
        variables = encoder.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    for i in range(_STEPS):
        step(features[2 * i : 2 * i + 8])


@_program
def triplet_loss() -> None:
    features, _ = _table()
    encoder = _dense(16, 4)
    optimizer = keras.optimizers.SGD(0.05)

    @tf.function
    def step(anchor: Any, positive: Any, negative: Any) -> Any:
        with tf.GradientTape() as tape:
            codes = [encoder(each) for each in (anchor, positive, negative)]
            near, far = (tf.reduce_sum(tf.square(codes[0] - other), axis=1) for other in codes[1:])
            loss = tf.reduce_mean(tf.maximum(near - far + 0.2, 0.0))
        variables = encoder.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    for i in range(_STEPS):
        anchor = features[2 * i : 2 * i + 4]
        step(anchor, anchor + np.float32(0.01), features[40 + 2 * i : 44 + 2 * i])


@_program
def policy_gradient_with_eager_ops() -> None:
    random = _random()
    policy = _dense(8, 2, inputs=4)
    optimizer = keras.optimizers.Adam(0.01)
    for _ in range(10):
        state = tf.constant(random.normal(size=(6, 4)).astype("float32"))
        with tf.GradientTape() as tape:
            logits = policy(state)
            actions = tf.cast(random.integers(0, 2, size=6), tf.int32)
            rewards = tf.constant((random.random(6) > 0.5).astype("float32"))
            chosen = tf.gather(tf.nn.log_softmax(logits), actions, batch_dims=1)
            loss = -tf.reduce_mean(chosen * (rewards - tf.reduce_mean(rewards)))
        variables = policy.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


@_program
def mixed_precision() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = keras.Sequential(
            [
                keras.Input((8,)),
                keras.layers.Dense(16, activation="relu"),
                keras.layers.Dense(3, dtype="float32"),
            ]
        )
        _fit(model, *_table(), _sparse())
    finally:
        keras.config.set_dtype_policy("float32")


@_program
def session_of_version_one() -> None:
    tf1 = tf.compat.v1
    features, labels = _table()
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(1)
        x = tf1.placeholder(tf.float32, [None, 8])
        y = tf1.placeholder(tf.int32, [None])
        weights = tf1.get_variable("weights", [8, 3], use_resource=False)
        bias = tf1.get_variable("bias", [3], initializer=tf1.zeros_initializer(), use_resource=False)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ weights + bias))
        train = tf1.train.AdamOptimizer(0.01).minimize(loss)
        session.run(tf1.global_variables_initializer())
        for i in range(_STEPS):
            session.run([train, loss], {x: features[4 * i : 4 * i + 4], y: labels[4 * i : 4 * i + 4]})


@_program
def several_datasets() -> None:
    features, labels = _table()
    model = _dense(8, 3)
    model.compile("adam", _sparse())
    for i in range(8):
        rows = slice(12 * i, 12 * i + 12)
        data = tf.data.Dataset.from_tensor_slices((features[rows], labels[rows]))
        data = data.map(lambda x, y: (x * 2.0, y)).shuffle(12, seed=1).batch(4).prefetch(1)
        model.fit(data, epochs=1, verbose=0)


@_program
def generator_of_batches() -> None:
    features, labels = _table()

    def batches() -> Iterator[tuple[Any, Any]]:
        for i in range(_STEPS):
            yield features[4 * i : 4 * i + 4], labels[4 * i : 4 * i + 4]

    shapes = (tf.TensorSpec([None, 8]), tf.TensorSpec([None], tf.int32))
    model = _dense(8, 3)
    model.compile("sgd", _sparse())
    model.fit(tf.data.Dataset.from_generator(batches, output_signature=shapes), verbose=0)


@_program
def several_functions_of_one_name() -> None:
    features, _ = _table()

    def make(scale: float) -> Any:
        weights = tf.Variable(tf.fill([8, 1], 0.1))

        @tf.function
        def step(batch: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(batch @ weights * scale - 1.0))
            weights.assign_sub(0.01 * tape.gradient(loss, weights))
            return loss

        return step

    for step in [make(1.0 + i) for i in range(8)]:
        for i in range(4):
            step(features[4 * i : 4 * i + 4])


@_program
def gradient_clipping_and_a_schedule() -> None:
    schedule = keras.optimizers.schedules.CosineDecay(0.05, 24)
    _fit(_dense(16, 3), *_table(), _sparse(), optimizer=keras.optimizers.Adam(schedule, clipnorm=1.0))


@_program
def global_norm_in_a_custom_loop() -> None:
    features, labels = _table()
    model = _dense(16, 3)
    optimizer = keras.optimizers.RMSprop(0.003)

    @tf.function
    def step(batch: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, model(batch)))
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, model.trainable_variables), 1.0)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for i in range(_STEPS):
        step(features[4 * i : 4 * i + 4], labels[4 * i : 4 * i + 4])


@_program
def knowledge_distillation() -> None:
    features, _ = _table()
    teacher, student = _dense(16, 3), _dense(4, 3)
    optimizer = keras.optimizers.Adam(0.01)

    @tf.function
    def step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            soft = tf.nn.softmax(teacher(batch, training=False) / 3.0)
            divergence = keras.losses.KLDivergence()(soft, tf.nn.softmax(student(batch, training=True) / 3.0))
        variables = student.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(divergence, variables), variables, strict=True))
        return divergence

    for i in range(_STEPS):
        step(features[4 * i : 4 * i + 4])


@_program
def transfer_learning_with_frozen_layers() -> None:
    model = _dense(16, 8, 3)
    model.layers[0].trainable = False
    _fit(model, *_table(), _sparse())


@_program
def metrics_of_a_rare_class() -> None:
    features, labels = _table()
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1, activation="sigmoid")])
    metrics = [keras.metrics.AUC(), keras.metrics.Precision(), keras.metrics.Recall()]
    _fit(model, features, (labels == 2).astype("float32"), "binary_crossentropy", metrics=metrics)


@_program
def checkpoints() -> None:
    features, labels = _table()
    model = _dense(8, 3)
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/model.weights.h5"
        model.compile("adam", _sparse())
        saves = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
        model.fit(features, labels, batch_size=8, epochs=2, verbose=0, callbacks=[saves])
        model.load_weights(path)
        tf.train.Checkpoint(model=model).save(f"{directory}/checkpoint")
        model.fit(features, labels, batch_size=8, verbose=0)


@_program
def regression_with_huber_loss() -> None:
    features, _ = _table()
    _fit(_dense(16, 1), features, features[:, :1] * 2.0 + 1.0, "huber", metrics=["mae"])


def make_deterministic() -> None:
    """Makes TensorFlow use deterministic ops only."""
    keras.utils.set_random_seed(1)
    tf.config.experimental.enable_op_determinism()


if __name__ == "__main__":
    *options, name = sys.argv[1:]
    keras.utils.set_random_seed(1)
    if options:
        make_deterministic()
    PROGRAMS[name]()
