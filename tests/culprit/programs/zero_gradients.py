"""Functions that are finite at a point where their gradient is not finite: roots, norms, powers, angles."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.culprit.corpus import bug, harmless


@bug(op_type="SqrtGrad", role="gradient", forward="Sqrt", effect="variable")
def root_mean_square_loss() -> None:
    """The root mean square error is 0 for a perfect fit. keras-team/keras#6644."""

    def loss(y_true: Any, y_pred: Any) -> Any:
        return tf.sqrt(tf.reduce_mean(tf.square(y_pred - y_true), axis=-1))  # culprit

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile("sgd", loss)
    values = np.arange(4, dtype="float32")[:, None]
    model.fit(values, values, epochs=1, verbose=0)


@bug(op_type="SqrtGrad", role="gradient", forward="Sqrt", effect="variable")
def siamese_distance_of_equal_inputs() -> None:
    """The loss is the Euclidean distance of two equal inputs. keras-team/keras#9097."""

    class Distance(keras.layers.Layer):
        def call(self, pair: Any) -> Any:
            left, right = pair
            squares = tf.reduce_sum(tf.square(left - right), axis=-1, keepdims=True)
            return tf.sqrt(squares)  # culprit

    encoder = keras.layers.Dense(2)
    left, right = keras.Input((3,)), keras.Input((3,))
    model = keras.Model([left, right], Distance()([encoder(left), encoder(right)]))
    model.compile("sgd", "mse")
    rows = np.ones((4, 3), "float32")
    model.fit([rows, rows], np.ones((4, 1), "float32"), epochs=1, verbose=0)


@bug(op_type="SqrtGrad", role="gradient", forward="Sqrt", effect="variable")
def norm_at_zero() -> None:
    """The program takes the gradient of tf.norm at the origin. tensorflow/tensorflow#12071."""
    position = tf.Variable([0.0, 0.0])
    with tf.GradientTape() as tape:
        energy = tf.norm(position)  # culprit
    position.assign_sub(0.1 * tape.gradient(energy, position))


@bug(op_type="SqrtGrad", role="gradient", forward="Sqrt", effect="variable")
def triplet_loss_of_an_anchor_that_is_its_positive() -> None:
    """The positive equals the anchor, and their distance is 0. tensorflow/tensorflow#30199."""
    projection = tf.Variable(tf.eye(2))
    anchor = tf.constant([[1.0, 0.0]])
    negative = tf.constant([[0.0, 3.0]])

    @tf.function
    def distance(a: Any, b: Any) -> Any:
        return tf.sqrt(tf.reduce_sum(tf.square(a - b), axis=-1))  # culprit

    @tf.function
    def train_step(positive: Any) -> None:
        with tf.GradientTape() as tape:
            near = distance(anchor @ projection, positive @ projection)
            far = distance(anchor @ projection, negative @ projection)
            loss = tf.reduce_mean(tf.maximum(near - far + 5.0, 0.0))
        projection.assign_sub(0.1 * tape.gradient(loss, projection))

    train_step(tf.constant([[0.5, 0.5]]))
    train_step(anchor)


@bug(op_type="SqrtGrad", role="gradient", forward="Sqrt", effect="variable")
def pairwise_distances_with_their_diagonal() -> None:
    """A matrix of distances has zeros on its diagonal. tensorflow/tensorflow#42889."""
    points = tf.Variable([[0.0, 1.0], [2.0, 3.0], [4.0, 0.0]])
    optimizer = keras.optimizers.Adam(0.1)
    with tf.GradientTape() as tape:
        difference = points[:, None, :] - points[None, :, :]
        distances = tf.sqrt(tf.reduce_sum(difference**2, axis=-1))  # culprit
        spread = -tf.reduce_mean(distances)
    optimizer.apply_gradients([(tape.gradient(spread, points), points)])


@harmless
def guarded_root_in_where() -> None:
    """tf.where discards the root of a negative number, but the gradient is NaN. tensorflow/tensorflow#38349."""
    scale = tf.Variable([1.0, 2.0])
    inputs = tf.constant([-1.0, 4.0])
    with tf.GradientTape() as tape:
        product = scale * inputs
        rooted = tf.where(product > 0.0, tf.sqrt(product), 0.0)
        loss = tf.reduce_sum(rooted)
    scale.assign_sub(0.1 * tape.gradient(loss, scale))


@bug(op_type="Log", effect="variable")
def guarded_log_in_where() -> None:
    """tf.where discards the logarithm of 0, but not the gradient of this logarithm."""
    scale = tf.Variable([1.0, 2.0])
    inputs = tf.constant([0.0, 4.0])
    with tf.GradientTape() as tape:
        product = scale * inputs
        logs = tf.math.log(product)  # culprit
        loss = tf.reduce_sum(tf.where(product > 0.0, logs, 0.0))
    scale.assign_sub(0.1 * tape.gradient(loss, scale))


@bug(op_type="RealDiv", effect="variable")
def guarded_division_in_where() -> None:
    """tf.where discards the elements of a quotient with the divisor 0, but not their gradients."""
    weights = tf.Variable([1.0, 2.0, 0.0])

    @tf.function
    def train_step(values: Any) -> Any:
        with tf.GradientTape() as tape:
            quotient = values / weights  # culprit
            safe = tf.where(weights > 0.0, quotient, tf.zeros_like(quotient))
            loss = tf.reduce_sum(safe)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    train_step(tf.constant([1.0, 1.0, 1.0]))


@bug(op_type="RealDiv", effect="variable")
def guarded_division_by_a_distance_in_where() -> None:
    """tf.where discards the distance of a point to itself. The distance is sqrt(0), whose gradient is infinite."""
    points = tf.Variable([[0.0, 1.0], [2.0, 3.0]])

    @tf.function
    def relax() -> Any:
        with tf.GradientTape() as tape:
            squares = tf.reduce_sum(tf.square(points[:, None] - points[None]), axis=-1)
            energies = tf.where(squares > 0.0, 1.0 / tf.sqrt(squares), 0.0)  # culprit
            loss = tf.reduce_sum(energies)
        points.assign_sub(0.1 * tape.gradient(loss, points))
        return loss

    relax()


@bug(op_type="Exp", effect="variable")
def guarded_exponential_in_where() -> None:
    """A hand-written ELU is a piecewise function, and its unused branch overflows."""

    def elu(x: Any) -> Any:
        grown = tf.exp(x) - 1.0  # culprit
        return tf.where(x > 0.0, x, grown)

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, activation=elu, kernel_initializer="ones")])
    model.compile("sgd", "mse")
    model.fit(np.full((4, 2), 100.0, "float32"), np.zeros((4, 3), "float32"), epochs=1, verbose=0)


@bug(op_type="Pow", role="gradient", forward="Pow", effect="variable")
def gamma_correction_at_zero() -> None:
    """The gradient of x ** (1 / 2.4) is infinite at a black pixel. tensorflow/tensorflow#2295."""
    image = tf.Variable([0.0, 0.25, 1.0])
    with tf.GradientTape() as tape:
        clipped = tf.clip_by_value(image, 0.0, 1.0)
        corrected = tf.pow(clipped, 1.0 / 2.4)  # culprit
        loss = tf.reduce_mean(corrected)
    image.assign_sub(0.1 * tape.gradient(loss, image))


@bug(op_type="Pow", effect="variable")
def power_of_a_negative_base() -> None:
    """A negative base with a fractional exponent is NaN in the forward pass."""
    weights = tf.Variable([-1.0, 2.0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.pow(weights, 1.5))  # culprit
    weights.assign_sub(0.1 * tape.gradient(loss, weights))


@bug(op_type="Reciprocal", role="gradient", forward="Acos", effect="variable")
def angle_between_parallel_vectors() -> None:
    """The program takes acos of a cosine that is exactly 1."""
    direction = tf.Variable([1.0, 0.0])
    other = tf.constant([1.0, 0.0])
    with tf.GradientTape() as tape:
        cosine = tf.reduce_sum(direction * other)
        angle = tf.acos(cosine)  # culprit
        loss = tf.square(angle - 0.5)
    direction.assign_sub(0.1 * tape.gradient(loss, direction))


@bug(op_type="Acos", effect="variable")
def arc_margin_of_unnormalised_cosines() -> None:
    """The loss takes acos of a cosine that exceeds 1 because of rounding or a forgotten normalisation."""

    class ArcMargin(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.centers = self.add_weight(shape=(shape[-1], 3), initializer="ones")

        def call(self, inputs: Any) -> Any:
            cosine = inputs @ self.centers
            theta = tf.acos(cosine)  # culprit
            return tf.cos(theta + 0.5)

    model = keras.Sequential([keras.Input((2,)), ArcMargin()])
    model.compile("sgd", "mse")
    model.fit(np.full((4, 2), 0.6, "float32"), np.zeros((4, 3), "float32"), epochs=1, verbose=0)


@bug(op_type="RealDiv", role="gradient", forward="Atan2", effect="variable")
def heading_of_a_resting_robot() -> None:
    """The program takes the gradient of atan2 at the origin."""
    velocity = tf.Variable([0.0, 0.0])

    @tf.function
    def train_step() -> None:
        with tf.GradientTape() as tape:
            heading = tf.atan2(velocity[1], velocity[0])  # culprit
            loss = tf.square(heading - 1.0)
        velocity.assign_sub(0.1 * tape.gradient(loss, velocity))

    train_step()


@bug(op_type="SqrtGrad", role="gradient", forward="Sqrt", effect="variable")
def standard_deviation_of_equal_values() -> None:
    """The program takes the gradient of reduce_std of equal values."""
    features = tf.Variable(tf.ones([4]))
    with tf.GradientTape() as tape:
        spread = tf.math.reduce_std(features)  # culprit
        loss = tf.nn.relu(1.0 - spread)
    features.assign_sub(0.1 * tape.gradient(loss, features))


@bug(op_type="SqrtGrad", role="gradient", forward="Sqrt", effect="variable")
def minibatch_discrimination_of_a_single_image() -> None:
    """The standard deviation is taken over a batch of one image, as in a progressively grown GAN."""

    class BatchDeviation(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            variance = tf.math.reduce_variance(inputs, axis=0)
            deviation = tf.reduce_mean(tf.sqrt(variance))  # culprit
            return tf.concat([inputs, tf.fill([tf.shape(inputs)[0], 1], deviation)], axis=-1)

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), BatchDeviation(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones((3, 3), "float32"), np.ones((3, 1), "float32"), batch_size=1, epochs=1, verbose=0)


@bug(op_type="RsqrtGrad", role="gradient", forward="Rsqrt", effect="variable")
def precision_of_a_collapsed_cluster() -> None:
    """1 / sqrt(variance + 1e-30) is finite, but the gradient needs the cube of this number, which is infinite."""
    points = tf.Variable([[1.0, 2.0], [1.0, 2.0]])
    with tf.GradientTape() as tape:
        variance = tf.reduce_mean(tf.square(points - tf.reduce_mean(points, axis=0)), axis=0)
        precision = tf.math.rsqrt(variance + 1e-30)  # culprit
        loss = tf.reduce_sum(precision)
    points.assign_sub(0.1 * tape.gradient(loss, points))


@harmless
def clipped_infinite_reciprocal_root() -> None:
    """rsqrt(0) is infinite, but a minimum hides it from the result and the gradient. keras-team/keras#23093."""
    vectors = tf.Variable([[0.0, 0.0], [3.0, 4.0]])
    with tf.GradientTape() as tape:
        squares = tf.reduce_sum(tf.square(vectors), axis=-1, keepdims=True)
        inverse = tf.minimum(tf.math.rsqrt(squares), 1e12)
        loss = tf.reduce_sum(vectors * inverse)
    vectors.assign_sub(0.1 * tape.gradient(loss, vectors))


@bug(op_type="RealDiv", effect="variable")
def normalise_an_empty_row() -> None:
    """tf.linalg.normalize gets a row of zeros. tensorflow/tensorflow#35257."""
    rows = tf.Variable([[1.0, 2.0], [0.0, 0.0]])
    with tf.GradientTape() as tape:
        unit, _ = tf.linalg.normalize(rows, ord=1, axis=-1)  # culprit
        loss = tf.reduce_sum(tf.square(unit))
    rows.assign_sub(tape.gradient(loss, rows))


@bug(op_type="RealDiv", role="gradient", forward="EuclideanNorm", effect="variable")
def euclidean_norm_at_zero() -> None:
    """The program takes the gradient of reduce_euclidean_norm at the origin. tensorflow/tensorflow#112634."""
    weights = tf.Variable([0.0, 0.0, 0.0])
    with tf.GradientTape() as tape:
        loss = tf.math.reduce_euclidean_norm(weights)  # culprit
    weights.assign_sub(tape.gradient(loss, weights))


@bug(op_type="Pow", role="gradient", forward="Pow", effect="result")
def high_derivatives_of_a_power() -> Any:
    """The program takes the fifth derivative of x ** y at 0, and y is a tensor. tensorflow/tensorflow#35011."""
    x = tf.Variable([0.0, 1.0])
    exponent = tf.constant([1.0, 1.0])
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            y = tf.reduce_sum(tf.pow(x, exponent))  # culprit
        first = inner.gradient(y, x)
    return outer.gradient(first, x)


@bug(op_type="SqrtGrad", role="gradient", forward="Sqrt", effect="result")
def gradient_of_the_data_that_the_program_asked_for() -> Any:
    """The program only asks for the gradient of the data, and no op takes this gradient."""
    points = tf.constant([[0.0, 1.0], [2.0, 3.0]])
    scale = tf.Variable(1.0)

    @tf.function
    def mean_kernel(values: Any) -> Any:
        squares = tf.reduce_sum(tf.square(values[:, None] - values[None]), axis=-1)
        return tf.reduce_mean(tf.exp(-tf.sqrt(squares) / scale))  # culprit

    with tf.GradientTape() as tape:
        tape.watch(points)
        loss = mean_kernel(points)
    return tape.gradient(loss, points)
