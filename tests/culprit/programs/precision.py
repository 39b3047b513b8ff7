"""Numbers that do not fit their dtype: float16, mixed precision, integer overflow, subnormals."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.culprit.corpus import bug


@bug(op_type="Cast", effect="result")
def cast_of_a_large_number_to_float16() -> Any:
    """70000 is infinite in float16."""

    @tf.function
    def compress(values: Any) -> Any:
        half = tf.cast(values, tf.float16)  # culprit
        return half - tf.reduce_mean(half)

    return compress(tf.constant([1.0, 70000.0]))


@bug(op_type="RealDiv", effect="result")
def epsilon_that_is_zero_in_float16() -> Any:
    """1e-8 rounds to 0 in float16. kornia/kornia#4560."""
    values = tf.constant([0.0, 1.0], tf.float16)
    return values / (values + 1e-8)  # culprit


@bug(op_type="Log", effect="variable")
def log_with_an_epsilon_that_is_zero_in_float16() -> None:
    """The loss takes log(p + 1e-8) of float16 probabilities. tensorflow/tensorflow#43172."""
    logits = tf.Variable(tf.constant([40.0, 0.0], tf.float16))
    with tf.GradientTape() as tape:
        probs = tf.nn.softmax(logits)
        loss = -tf.math.log(probs[1] + 1e-8)  # culprit
    logits.assign_sub(tape.gradient(loss, logits))


@bug(op_type="Square", effect="result")
def squares_of_float16_activations() -> Any:
    """The program squares float16 activations without a cast. 300 * 300 is infinite in float16."""

    @tf.function
    def normalise(values: Any) -> Any:
        squares = tf.square(values)  # culprit
        return squares / tf.reduce_sum(squares, axis=-1, keepdims=True)

    return normalise(tf.constant([[300.0, -100.0, 50.0]], tf.float16))


@bug(op_type="Rsqrt", effect="variable")
def normalisation_in_mixed_precision() -> None:
    """A float16 layer normalises by hand with epsilon 1e-12. keras-team/keras#22586."""

    class Normalise(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.gain = self.add_weight(shape=(shape[-1],), initializer="ones")

        def call(self, inputs: Any) -> Any:
            mean = tf.reduce_mean(inputs, axis=-1, keepdims=True)
            variance = tf.reduce_mean(tf.square(inputs - mean), axis=-1, keepdims=True)
            inverse = tf.math.rsqrt(variance + 1e-12)  # culprit
            return (inputs - mean) * inverse * tf.cast(self.gain, inputs.dtype)

    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential([keras.Input((3,)), Normalise(), keras.layers.Dense(1, dtype="float32")])
    model.compile(keras.optimizers.SGD(0.1), "mse", auto_scale_loss=False)
    model.fit(np.ones((4, 3), "float32"), np.ones((4, 1), "float32"), epochs=1, verbose=0)


@bug(op_type="MatMul", effect="variable")
def float16_model_without_loss_scaling() -> None:
    """Features of several thousand overflow in the first product of a float16 model. keras-team/keras#11832."""
    keras.config.set_dtype_policy("float16")
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(2, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(np.full((2, 64), 3000.0, "float16"), np.zeros((2, 2), "float16"), epochs=1, verbose=0)  # culprit


@bug(op_type="Log", effect="result")
def loss_scaling_cannot_help_a_forward_overflow() -> None:
    """A loss that is NaN in the forward pass is NaN at every scale, so dynamic loss scaling does not help."""

    def loss(y_true: Any, y_pred: Any) -> Any:
        return tf.reduce_mean(tf.math.log(y_pred) - y_true, axis=-1)  # culprit

    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.1), loss)
    model.fit(np.full((4, 2), -1.0, "float32"), np.ones((4, 1), "float32"), epochs=1, verbose=0)


@bug(op_type="Sqrt", effect="result")
def integer_that_wrapped() -> Any:
    """The square of a large integer wraps to a negative number. The program takes the root of this number."""
    size = tf.constant([50_000, 3], tf.int32)
    area = size * size
    side = tf.sqrt(tf.cast(area, tf.float32))  # culprit
    return tf.reduce_mean(side)


@bug(op_type="Log", effect="result")
def unsigned_bytes_that_wrapped() -> Any:
    """255 + 1 of unsigned bytes is 0."""

    @tf.function
    def densities(pixels: Any) -> Any:
        shifted = tf.cast(pixels + tf.constant(1, tf.uint8), tf.float32)
        return -tf.math.log(shifted / 256.0)  # culprit

    return densities(tf.constant([0, 128, 255], tf.uint8))


@bug(op_type="RealDiv", effect="result")
def integer_division_to_a_scale_of_zero() -> Any:
    """The program divides by n // 10, which is 0 for a small n."""

    @tf.function
    def rate(count: Any) -> Any:
        warmup = count // 10
        return 1.0 / tf.cast(warmup, tf.float32)  # culprit

    return rate(tf.constant(7))


@bug(op_type="Reciprocal", effect="result")
def reciprocal_of_a_subnormal() -> Any:
    """1 / 1e-40 is infinite in float32."""
    tiny = tf.constant([1e-30, 1e-38])
    return tf.math.reciprocal(tiny * 1e-2)  # culprit


@bug(op_type="Exp", effect="result")
def exponential_of_ninety() -> Any:
    """89 is the smallest integer whose exponential overflows float32."""

    @tf.function
    def intensity(log_rate: Any) -> Any:
        rate = tf.exp(log_rate)  # culprit
        return rate / tf.reduce_sum(rate)

    return intensity(tf.constant([88.0, 89.0, 1.0]))


@bug(op_type="Expm1", effect="result")
def expm1_overflow() -> Any:
    """The argument of expm1, the inverse of log1p, is a prediction that is too large."""
    prediction = tf.constant([[3.0], [120.0]])
    return tf.reduce_mean(tf.math.expm1(prediction))  # culprit


@bug(op_type="Cosh", effect="variable")
def log_cosh_by_hand() -> None:
    """log(cosh(x)) of a large error overflows."""

    def loss(y_true: Any, y_pred: Any) -> Any:
        spread = tf.cosh(y_pred - y_true)  # culprit
        return tf.reduce_mean(tf.math.log(spread), axis=-1)

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", loss)
    model.fit(np.ones((4, 2), "float32"), np.full((4, 1), 500.0, "float32"), epochs=1, verbose=0)


@bug(op_type="Prod", effect="result")
def product_of_many_odds() -> Any:
    """The product of the odds of many independent tests overflows."""
    odds = tf.fill([30], 50.0)
    return tf.reduce_prod(odds) / (1.0 + tf.reduce_prod(odds + 1.0))  # culprit


@bug(op_type="Pow", effect="result")
def compound_growth() -> Any:
    """The program computes (1 + rate) ** periods with a rate in per cent, and overflows."""

    @tf.function
    def value(rate: Any, periods: Any) -> Any:
        growth = (1.0 + rate) ** periods  # culprit
        return growth - growth

    return value(tf.constant(7.5), tf.constant(360.0))


@bug(op_type="RealDiv", effect="result")
def number_of_cells_that_wraps_to_0() -> Any:
    """The product of two integers is 2**32, which is 0 in int32."""

    @tf.function
    def density(hits: Any, width: Any, height: Any) -> Any:
        cells = width * height
        return hits / tf.cast(cells, tf.float32)  # culprit

    density(tf.constant(1e5), tf.constant(1024), tf.constant(1024))
    return density(tf.constant(1e5), tf.constant(65536), tf.constant(65536))


@bug(op_type="AddV2", effect="result")
def sum_of_two_large_numbers() -> Any:
    """The program adds two costs near the largest float32."""
    cost = tf.constant(3e38)
    total = cost + cost  # culprit
    return tf.constant(1.0) / (total - total)


@bug(op_type="Mul", effect="variable", role="gradient", forward="Square")
def loss_scale_beyond_float16() -> None:
    """A scaled gradient overflows in a product. TensorFlow's optimizer combines the other factors into one constant."""
    features = np.random.default_rng(28).normal(size=(8, 4)).astype("float32")
    weights = tf.Variable(0.2 * tf.ones([4, 1]))

    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            error = tf.cast(x, tf.float16) @ tf.cast(weights, tf.float16) - tf.cast(y, tf.float16)
            loss = tf.reduce_mean(tf.cast(tf.square(error), tf.float32))  # culprit
            scaled = loss * 32768.0
        weights.assign_sub(0.01 * tape.gradient(scaled, weights) / 32768.0)
        return loss

    for _ in range(3):
        train_step(tf.constant(features), tf.constant(30.0 * features[:, :1]))


@bug(op_type="Pow", role="gradient", forward="Pow", effect="variable")
def gradient_of_a_fourth_power() -> None:
    """The cube in the gradient of a fourth power overflows. The loss itself is not used."""
    weight = tf.Variable(1e13)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.pow(weight * 9.0 - 1.0, 4)  # culprit
        weight.assign_sub(tape.gradient(loss, weight))

    step()


@bug(op_type="Pow", role="gradient", forward="Pow", effect="variable")
def square_in_the_gradient_of_a_fourth_power() -> None:
    """TensorFlow computes the cube in the gradient with a square, which overflows."""
    weight = tf.Variable(1e19)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.pow(weight * 9.0 - 1.0, 4)  # culprit
        weight.assign_sub(tape.gradient(loss, weight))

    step()


@bug(op_type="Cast", role="gradient", forward="Cast", effect="absorbed")
def gradient_that_overflows_without_a_loss_scale() -> None:
    """The gradient of a large factor overflows float16 in every step, also after the loss scale has become 1."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        outputs = [keras.layers.Dense(1), keras.layers.Rescaling(1e6, dtype="float32")]
        model = keras.Sequential([keras.Input((8,)), *outputs])
        optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(1e-9))
        model.compile(optimizer, lambda y, p: tf.reduce_mean(tf.square(p - y)))
        rng = np.random.default_rng(0)
        features, targets = rng.normal(size=(64, 8)), 1e6 * rng.normal(size=(64, 1))
        model.fit(features.astype("float32"), targets.astype("float32"), batch_size=16, epochs=5, verbose=0)  # culprit
    finally:
        keras.mixed_precision.set_global_policy("float32")


@bug(op_type="Square", effect="variable")
def square_in_a_chain_with_a_root() -> None:
    """The square overflows before the root. A division and a sum take the root, so TensorFlow does not run 1 / sqrt."""
    scale = tf.Variable(1.0)

    @tf.function
    def train_step(values: Any) -> Any:
        with tf.GradientTape() as tape:
            magnitudes = tf.sqrt(tf.square(values))  # culprit
            loss = scale * tf.reduce_mean(values / magnitudes) + scale * tf.reduce_mean(magnitudes)
        scale.assign_sub(0.1 * tape.gradient(loss, scale))
        return loss

    train_step(tf.constant([1.0, 2.0]))
    train_step(tf.constant([1.0, 1e30]))


@bug(op_type="Sqrt", effect="variable")
def root_of_a_negative_number_in_a_divisor() -> None:
    """TensorFlow runs the sign, the root and the reciprocal for the division as one op. The root makes the NaN."""
    scale = tf.Variable(1.0)

    @tf.function
    def train_step(values: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = scale * tf.reduce_mean(values / tf.sqrt(-values))  # culprit
        scale.assign_sub(0.1 * tape.gradient(loss, scale))
        return loss

    train_step(tf.constant([-1.0, -2.0]))
    train_step(tf.constant([-1.0, 2.0]))
