"""The programs that whole_runs.py measures from start to end: healthy trainings of common kinds.

python benchmarks/whole_programs.py NAME
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import keras
import numpy as np
import phases
import programs
import tensorflow as tf
from programs import SEED, STEP_HOOKS, StepClock, StepTimes

Array = np.ndarray


def _normal(*shape: int) -> Array:
    return np.random.default_rng(SEED).normal(size=shape).astype(np.float32)


def _dense(*units: int, inputs: int) -> keras.Sequential:
    hidden = [keras.layers.Dense(width, activation="relu") for width in units[:-1]]
    return keras.Sequential([keras.Input((inputs,)), *hidden, keras.layers.Dense(units[-1])])


def one_op() -> None:
    """Runs one op. A recording adds only its start and its end."""
    tf.add(1.0, 1.0)


def keras_small() -> None:
    """Fits a small classifier of tabular data with Keras for three epochs, with validation."""
    features = _normal(2000, 20)
    labels = features[:, :4].argmax(axis=1)
    model = _dense(64, 32, 4, inputs=20)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    model.fit(
        features,
        labels,
        batch_size=32,
        epochs=3,
        validation_split=0.2,
        shuffle=False,
        verbose=0,
        callbacks=[StepTimes()],
    )
    model.predict(features, verbose=0)


def keras_transformer() -> None:
    """Fits a Transformer of two blocks with Keras."""
    programs.transformer(100)


def seq2seq() -> None:
    """Trains a GRU encoder, and a decoder with a tf.while_loop over the tokens."""
    vocabulary, width, length = 40, 48, 12
    embed = keras.layers.Embedding(vocabulary, width)
    encoder, cell = keras.layers.GRU(width), keras.layers.GRUCell(width)
    head = keras.layers.Dense(vocabulary)
    optimizer = keras.optimizers.Adam(1e-3)
    tokens = np.random.default_rng(SEED).integers(vocabulary, size=(32, length))

    @tf.function
    def train(source: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            state = encoder(embed(source))
            previous, loss = tf.zeros_like(target[:, 0]), tf.constant(0.0)
            for position in tf.range(length):
                _, (state,) = cell(embed(previous), [state])
                previous = target[:, position]
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(previous, head(state))
                loss += tf.reduce_mean(losses)
        variables = [part for layer in (embed, encoder, cell, head) for part in layer.trainable_variables]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    cell.build((None, width))
    head.build((None, width))
    clock = StepClock()
    for _ in range(100):
        train(tf.constant(tokens), tf.constant(tokens[:, ::-1].copy())).numpy()
        clock.tick()


def contrastive() -> None:
    """Trains two towers. The embeddings of a pair should be closer than those of different pairs in a batch."""
    towers = [_dense(128, 64, inputs=100), _dense(128, 64, inputs=60)]
    optimizer = keras.optimizers.AdamW(1e-3)
    variables = [variable for tower in towers for variable in tower.trainable_variables]
    left, right = _normal(4096, 100), _normal(4096, 60)

    @tf.function
    def train(*pair: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            first, second = (
                tf.math.l2_normalize(tower(side, training=True), axis=1)
                for tower, side in zip(towers, pair, strict=True)
            )
            logits = tf.matmul(first, second, transpose_b=True) / 0.1
            labels = tf.range(tf.shape(logits)[0])
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    clock = StepClock()
    for pair in tf.data.Dataset.from_tensor_slices((left, right)).repeat(10).batch(128):
        train(*pair).numpy()
        clock.tick()


def graph_convolution() -> None:
    """Trains a network of three graph convolutions, which gather messages and sum them by segments."""
    num_nodes, width, num_classes = 1000, 32, 5
    rng = np.random.default_rng(SEED)
    edges = tf.constant(rng.integers(num_nodes, size=(2, 8000)), tf.int32)
    features, labels = tf.constant(_normal(num_nodes, width)), tf.constant(rng.integers(num_classes, size=num_nodes))
    layers = [keras.layers.Dense(width, activation="relu") for _ in range(3)]
    head = keras.layers.Dense(num_classes)
    optimizer = keras.optimizers.Adam(0.01)

    @tf.function
    def train() -> tf.Tensor:
        with tf.GradientTape() as tape:
            hidden = features
            degree = tf.math.unsorted_segment_sum(tf.ones([8000, 1]), edges[1], num_nodes) + 1.0
            for layer in layers:
                messages = tf.gather(hidden, edges[0])
                hidden = layer((hidden + tf.math.unsorted_segment_sum(messages, edges[1], num_nodes)) / degree)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, head(hidden)))
        variables = [part for layer in (*layers, head) for part in layer.trainable_variables]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    clock = StepClock()
    for _ in range(300):
        train().numpy()
        clock.tick()


def gan() -> None:
    """Trains a generator and a discriminator of images, each with its own optimizer."""
    layers = keras.layers
    generator = keras.Sequential(
        [
            keras.Input((16,)),
            layers.Dense(7 * 7 * 16, use_bias=False),
            layers.BatchNormalization(),
            layers.LeakyReLU(),
            layers.Reshape((7, 7, 16)),
            layers.Conv2DTranspose(8, 5, strides=2, padding="same", activation="relu"),
            layers.Conv2DTranspose(1, 5, strides=2, padding="same", activation="tanh"),
        ]
    )
    discriminator = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(8, 5, strides=2, padding="same"),
            layers.LeakyReLU(),
            layers.Dropout(0.3),
            layers.Conv2D(16, 5, strides=2, padding="same"),
            layers.LeakyReLU(),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )
    players = (generator, discriminator)
    optimizers = [keras.optimizers.Adam(1e-4) for _ in players]
    cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)

    @tf.function
    def train(images: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape(persistent=True) as tape:
            real = discriminator(images, training=True)
            fake = discriminator(generator(noise, training=True), training=True)
            losses = (
                cross_entropy(tf.ones_like(fake), fake),
                cross_entropy(tf.ones_like(real), real) + cross_entropy(tf.zeros_like(fake), fake),
            )
        for player, optimizer, loss in zip(players, optimizers, losses, strict=True):
            variables = player.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return losses[0]

    clock = StepClock()
    for images in tf.data.Dataset.from_tensor_slices(_normal(1920, 28, 28, 1)).batch(32).repeat(2):
        train(images, tf.random.normal((32, 16), seed=SEED)).numpy()
        clock.tick()


def policy_gradient() -> None:
    """Trains a policy with eager ops only. Each action is a small forward pass, and each episode has one gradient."""
    policy = _dense(32, 2, inputs=4)
    optimizer = keras.optimizers.Adam(0.01)
    rng = np.random.default_rng(SEED)
    clock = StepClock()
    for _ in range(40):
        with tf.GradientTape() as tape:
            state, losses = rng.normal(size=4).astype(np.float32), []
            for _ in range(30):
                log_probabilities = tf.nn.log_softmax(policy(state[None]))
                action = int(rng.random() < float(tf.exp(log_probabilities)[0, 1]))
                reward = 1.0 - abs(float(state[0]))
                state = (0.9 * state + 0.1 * (2 * action - 1)).astype(np.float32)
                losses.append(-log_probabilities[0, action] * reward)
            loss = tf.add_n(losses) / len(losses)
        variables = policy.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        clock.tick()


def session() -> None:
    """Trains a classifier with a graph, placeholders and a session of TensorFlow 1."""
    v1 = tf.compat.v1
    num_steps, batch_size = 1000, 64
    features = _normal(num_steps * batch_size, 50)
    targets = features[:, :5].argmax(axis=1)
    with tf.Graph().as_default(), v1.Session() as running:
        v1.set_random_seed(SEED)
        inputs, labels = v1.placeholder(tf.float32, [None, 50]), v1.placeholder(tf.int64, [None])
        outputs = inputs
        for layer, (rows, columns) in enumerate([(50, 128), (128, 64), (64, 5)]):
            kernel = v1.get_variable(f"kernel_{layer}", [rows, columns])
            bias = v1.get_variable(f"bias_{layer}", [columns], initializer=v1.zeros_initializer())
            outputs = tf.matmul(outputs if layer == 0 else tf.nn.relu(outputs), kernel) + bias
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs))
        train = v1.train.AdamOptimizer(1e-3).minimize(loss)
        running.run(v1.global_variables_initializer())
        clock = StepClock()
        for step in range(num_steps):
            batch = slice(step * batch_size, (step + 1) * batch_size)
            running.run([train, loss], {inputs: features[batch], labels: targets[batch]})
            clock.tick()


def data_pipeline() -> None:
    """Fits a small convolutional model on images that a tf.data pipeline decodes, augments and batches."""
    pixels = np.random.default_rng(SEED).integers(255, size=(64, 40, 40, 3), dtype=np.uint8)
    encoded = [tf.io.encode_png(image).numpy() for image in pixels]

    def decode(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        values = tf.image.convert_image_dtype(tf.io.decode_png(image, 3), tf.float32)
        values = tf.image.random_flip_left_right(tf.image.random_crop(values, (32, 32, 3), seed=SEED), seed=SEED)
        values = tf.image.random_brightness(values, 0.2, seed=SEED)
        return tf.image.per_image_standardization(values), label

    dataset = tf.data.Dataset.from_tensor_slices((encoded, np.arange(64) % 4)).repeat(30)
    dataset = dataset.shuffle(64, seed=SEED).map(decode, num_parallel_calls=2).batch(32).prefetch(1)
    layers = keras.layers
    model = keras.Sequential([layers.Conv2D(8, 3, activation="relu"), layers.GlobalAveragePooling2D(), layers.Dense(4)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(dataset, verbose=0, callbacks=[StepTimes()])


PROGRAMS: dict[str, Callable[[], None]] = {
    program.__name__: program
    for program in (
        one_op,
        keras_small,
        keras_transformer,
        seq2seq,
        contrastive,
        graph_convolution,
        gan,
        policy_gradient,
        session,
        data_pipeline,
    )
}
"""The programs by name, in the order of the report."""


if __name__ == "__main__":
    phases.begin("tracing")
    keras.utils.set_random_seed(SEED)
    STEP_HOOKS.append(phases.at_step)
    PROGRAMS[sys.argv[1]]()
    phases.begin("exit")
