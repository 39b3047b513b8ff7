"""Keras's fit: optimizers, learning rates, normalisation, weights, callbacks, regularisers, constraints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.culprit.corpus import bug


def _data(rows: int = 8) -> tuple[Any, Any]:
    features = np.random.default_rng(0).normal(size=(rows, 4)).astype("float32")
    return features, features.sum(axis=1, keepdims=True)


@bug(op_type="Square", effect="result")
def learning_rate_far_too_large() -> None:
    """A linear model with a learning rate of 1e12 overflows in the loss of its second or third step."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e12), "mse")
    model.fit(*_data(), batch_size=8, epochs=5, verbose=0)  # culprit


@bug(op_type="Square", effect="result")
def learning_rate_far_too_large_in_a_loop() -> None:
    """In a custom training loop, the loss overflows first. Then the weights overflow in the update."""
    features, targets = _data()
    weights = tf.Variable(tf.ones([4, 1]))

    @tf.function
    def train_step() -> Any:
        with tf.GradientTape() as tape:
            error = features @ weights - targets
            loss = tf.reduce_mean(tf.square(error))  # culprit
        weights.assign_sub(1e12 * tape.gradient(loss, weights))
        return loss

    weights.assign_add(tf.ones([4, 1]))
    for _ in range(5):
        train_step()


@bug(op_type="MatMul", effect="variable")
def deep_linear_network_explodes() -> None:
    """Weights that are too large multiply over the layers until a matrix product overflows."""
    layers = [keras.layers.Dense(8, kernel_initializer=keras.initializers.Constant(1e5)) for _ in range(8)]
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
    model.compile("sgd", "mae")
    model.fit(np.ones((4, 4), "float32"), np.ones((4, 1), "float32"), epochs=1, verbose=0)  # culprit


@bug(op_type="RealDiv", effect="variable")
def optimizer_with_epsilon_zero() -> None:
    """Adam with epsilon 0 divides 0 by 0 for a weight that gets no gradient."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    model.compile(keras.optimizers.Adam(0.1, epsilon=0.0), "mse")
    features = np.array([[1.0, 0.0], [2.0, 0.0]], "float32")
    model.fit(features, np.zeros((2, 1), "float32"), epochs=1, verbose=0)  # culprit


@bug(op_type="RealDiv", effect="variable")
def gradient_divided_by_its_norm() -> None:
    """A hand-written step divides the gradient by its norm. At the minimum, the gradient is 0."""

    class Normalised(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.head = keras.layers.Dense(1, kernel_initializer="ones", use_bias=False)

        def call(self, inputs: Any) -> Any:
            return self.head(inputs)

        def train_step(self, data: Any) -> Any:
            features, targets = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(features) - targets))
            gradients = tape.gradient(loss, self.trainable_variables)
            unit = [gradient / tf.norm(gradient) for gradient in gradients]  # culprit
            self.optimizer.apply_gradients(zip(unit, self.trainable_variables, strict=True))
            return {"loss": loss}

    model = Normalised()
    model.compile(keras.optimizers.SGD(0.1))
    model.fit(np.ones((4, 2), "float32"), np.full((4, 1), 2.0, "float32"), epochs=1, verbose=0)


@bug(op_type="RealDiv", effect="variable")
def class_weights_of_a_missing_class() -> None:
    """Class weights are the reciprocals of the class counts, and one class is missing from the batch."""

    def loss(y_true: Any, y_pred: Any) -> Any:
        counts = tf.reduce_sum(y_true, axis=0)
        class_weights = tf.reduce_mean(counts) / counts  # culprit
        losses = keras.losses.categorical_crossentropy(y_true, y_pred)
        return losses * tf.reduce_sum(y_true * class_weights, axis=-1)

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="softmax")])
    model.compile("sgd", loss)
    labels = keras.utils.to_categorical([0, 1, 0, 1, 0, 1, 0, 1], 3)
    model.fit(_data()[0], labels, epochs=1, batch_size=8, verbose=0)


@bug(op_type="RealDiv", effect="variable")
def sample_weights_that_are_all_zero() -> None:
    """A loss divides by the sum of the sample weights of a batch. keras-team/keras#13113."""

    class Weighted(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.head = keras.layers.Dense(1)

        def train_step(self, data: Any) -> Any:
            features, targets, weights = data
            with tf.GradientTape() as tape:
                losses = tf.squeeze(tf.square(self.head(features) - targets), -1)
                loss = tf.reduce_sum(losses * weights) / tf.reduce_sum(weights)  # culprit
            variables = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return {"loss": loss}

    model = Weighted()
    model.compile("sgd")
    weights = np.array([1, 1, 1, 1, 0, 0, 0, 0], "float32")
    model.fit(*_data(), sample_weight=weights, batch_size=4, shuffle=False, epochs=1, verbose=0)


@bug(op_type="RealDiv", effect="variable")
def standardisation_with_a_constant_column() -> None:
    """A layer divides by standard deviations from NumPy. The standard deviation of a constant column is 0."""
    features, targets = _data()
    features[:, 2] = 1.0
    mean, deviation = features.mean(axis=0), features.std(axis=0)

    class Standardise(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            return (inputs - mean) / deviation  # culprit

    model = keras.Sequential([keras.Input((4,)), Standardise(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(features, targets, epochs=1, verbose=0)


@bug(op_type="RealDiv", effect="variable")
def warmup_of_no_steps() -> None:
    """A schedule divides the step by the number of warm-up steps, and the configuration sets this number to 0."""

    class Warmup(keras.optimizers.schedules.LearningRateSchedule):
        def __init__(self, num_steps: int) -> None:
            self.num_steps = num_steps

        def __call__(self, step: Any) -> Any:
            return 0.1 * tf.minimum(1.0, tf.cast(step, tf.float32) / tf.cast(self.num_steps, tf.float32))  # culprit

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(Warmup(0)), "mse")
    model.fit(*_data(), epochs=1, verbose=0)


@bug(op_type="RealDiv", effect="variable")
def normalisation_layer_without_epsilon() -> None:
    """A hand-written layer normalises a constant row. lsdefine/attention-is-all-you-need-keras#13."""

    class Normalise(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            mean = tf.reduce_mean(inputs, axis=-1, keepdims=True)
            deviation = tf.math.reduce_std(inputs, axis=-1, keepdims=True)
            return (inputs - mean) / deviation  # culprit

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, activation="relu"), Normalise()])
    model.add(keras.layers.Dense(1))
    model.compile("sgd", "mse")
    features = _data()[0]
    features[3] = 0.0
    model.fit(features, np.ones((8, 1), "float32"), epochs=1, verbose=0)


@bug(op_type="Rsqrt", effect="variable")
def batch_normalisation_with_epsilon_zero() -> None:
    """A batch of one image has no variance, and epsilon was set to 0. tensorflow/tensorflow#34062."""
    layer = keras.layers.BatchNormalization(epsilon=0.0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), layer, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(*_data(1), batch_size=1, epochs=1, verbose=0)  # culprit


@bug(op_type="RealDiv", effect="variable")
def schedule_that_divides_by_step_zero() -> None:
    """A learning-rate schedule of 1 / step begins with an infinite rate."""

    class Inverse(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> Any:
            return 0.1 / tf.cast(step, tf.float32)  # culprit

        def get_config(self) -> dict[str, Any]:
            return {}

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(Inverse()), "mse")
    model.fit(*_data(), epochs=1, verbose=0)


@bug(op_type=None, effect="variable")
def learning_rate_set_to_nan_by_a_callback() -> None:
    """A callback computes the learning rate with NumPy. The result is 0/0."""

    class Decay(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            rate = np.float32(0.0) if epoch == 0 else np.divide(np.float32(0.0), np.float32(0.0))
            self.model.optimizer.learning_rate.assign(rate)  # culprit

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(*_data(), epochs=2, verbose=0, callbacks=[Decay()])


@bug(op_type="RealDiv", effect="variable")
def constraint_to_unit_norm_without_epsilon() -> None:
    """A kernel constraint divides a column of zeros by its norm."""

    class Unit(keras.constraints.Constraint):
        def __call__(self, kernel: Any) -> Any:
            return kernel / tf.norm(kernel, axis=0)  # culprit

    layer = keras.layers.Dense(2, kernel_initializer="zeros", kernel_constraint=Unit(), use_bias=False)
    model = keras.Sequential([keras.Input((4,)), layer])
    model.compile("sgd", "mse")
    model.fit(_data()[0], np.zeros((8, 2), "float32"), epochs=1, verbose=0)


@bug(op_type="SqrtGrad", role="gradient", forward="Sqrt", effect="variable")
def group_lasso_of_zero_weights() -> None:
    """A regulariser takes the norm of each row of a kernel that is initialised with zeros."""

    def group_lasso(kernel: Any) -> Any:
        return 0.01 * tf.reduce_sum(tf.sqrt(tf.reduce_sum(tf.square(kernel), axis=1)))  # culprit

    layer = keras.layers.Dense(2, kernel_initializer="zeros", kernel_regularizer=group_lasso)
    model = keras.Sequential([keras.Input((4,)), layer])
    model.compile("sgd", "mse")
    model.fit(_data()[0], np.ones((8, 2), "float32"), epochs=1, verbose=0)


@bug(op_type="Log", effect="metric")
def metric_that_is_nan_while_the_training_is_well() -> None:
    """Only a custom metric takes the logarithm of a negative prediction. The loss is finite."""

    def log_error(y_true: Any, y_pred: Any) -> Any:
        return tf.reduce_mean(tf.abs(tf.math.log(y_pred)))  # culprit

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[log_error])
    model.fit(*_data(), epochs=1, verbose=0)


@bug(op_type="RealDiv", effect="metric")
def metric_object_without_a_positive() -> None:
    """A metric object divides by the number of positives of the batch."""

    class Recall(keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="recall")
            self.total = self.add_weight(name="total", initializer="zeros")

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            found = tf.reduce_sum(y_true * tf.cast(y_pred > 0.5, tf.float32))
            self.total.assign(found / tf.reduce_sum(y_true))  # culprit

        def result(self) -> Any:
            return self.total

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation="sigmoid")])
    model.compile("sgd", "binary_crossentropy", metrics=[Recall()])
    model.fit(_data()[0], np.zeros((8, 1), "float32"), epochs=1, verbose=0)


@bug(op_type="Log", effect="result")
def validation_loss_only() -> None:
    """The training data is fine. The validation data has a target outside the domain of the loss."""

    def loss(y_true: Any, y_pred: Any) -> Any:
        return tf.square(tf.math.log(y_true) - y_pred)  # culprit

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", loss)
    features = _data()[0]
    targets = np.ones((8, 1), "float32")
    model.fit(features, targets, validation_data=(features, 0.0 * targets), epochs=1, verbose=0)


def _write_spoilt_checkpoint(directory: Path) -> None:
    tf.train.Checkpoint(weights=tf.Variable([1.0, float("nan")])).write(str(directory / "weights"))


@bug(op_type="RestoreV2", effect="variable", prepare=_write_spoilt_checkpoint)
def checkpoint_that_holds_a_nan(directory: Path) -> None:
    """Training continues from a checkpoint that was written after the weights had become bad."""
    model = tf.train.Checkpoint(weights=tf.Variable([0.0, 0.0]))
    model.read(str(directory / "weights")).assert_consumed()  # culprit
    model.weights.assign_sub([0.1, 0.1])


@bug(op_type=None, effect="variable")
def pretrained_weights_with_a_nan() -> None:
    """set_weights gets an array that contains a NaN. tensorflow/tensorflow#38416."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    kernel = np.ones((4, 1), "float32")
    kernel[2] = np.nan
    model.set_weights([kernel, np.zeros(1, "float32")])  # culprit
    model.fit(*_data(), epochs=1, verbose=0)


@bug(op_type="Log", effect="variable")
def loss_of_a_functional_lambda_layer() -> None:
    """A Lambda layer of a functional model takes the logarithm."""
    inputs = keras.Input((4,))
    positive = keras.layers.Dense(3, activation="relu", name="positive")(inputs)
    logs = keras.layers.Lambda(lambda x: tf.math.log(x), name="logs")(positive)  # culprit
    model = keras.Model(inputs, keras.layers.Dense(1)(logs))
    model.compile("sgd", "mse")
    model.fit(*_data(), epochs=1, verbose=0)


@bug(op_type="Log", effect="variable")
def loss_of_keras_operations() -> None:
    """A functional model uses keras.ops.

    The only frame of the user's code is the call of fit. keras-team/keras#5733.
    """
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(3, activation="relu")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.ops.log(hidden)))
    model.compile("sgd", "mse")
    model.fit(*_data(), epochs=1, verbose=0)  # culprit


@bug(op_type="Sqrt", effect="variable")
def shared_layer_called_from_two_places() -> None:
    """A layer is called with two inputs. The layer works for one input, and makes a bad value from the other input."""

    class Root(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            return tf.sqrt(inputs)  # culprit

    root = Root()
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(3)(inputs)
    total = root(keras.ops.square(hidden) + 1.0) + root(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1)(total))
    model.compile("sgd", "mse")
    model.fit(*_data(), epochs=1, verbose=0)


@bug(op_type="Log", effect="result")
def prediction_of_an_unseen_input() -> Any:
    """The training is healthy. `predict` gets a negative feature."""

    class LogFeatures(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            return tf.math.log(inputs)  # culprit

    model = keras.Sequential([keras.Input((2,)), LogFeatures(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones((4, 2), "float32"), np.ones((4, 1), "float32"), epochs=1, verbose=0)
    return model.predict(np.array([[1.0, -1.0]], "float32"), verbose=0)


@bug(op_type="Mul", effect="variable")
def clip_norm_that_is_infinite() -> None:
    """clip_by_global_norm with an infinite norm does not switch clipping off: TensorFlow computes Inf * 0."""
    weight = tf.Variable([1.0, 2.0])

    @tf.function
    def train_step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(weight))
        gradients, _ = tf.clip_by_global_norm([tape.gradient(loss, weight)], float("inf"))  # culprit
        weight.assign_sub(0.1 * gradients[0])

    train_step()


@bug(op_type="Exp", effect="variable")
def softplus_by_hand_before_batch_normalization() -> None:
    """log(1 + exp(x)) overflows.

    TensorFlow runs these ops as one op, and sorts the inputs of the squared differences.
    """

    class Softplus(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return tf.math.log(1.0 + tf.exp(x))  # culprit

    features, targets = _data()
    features[5, 2] = 4e5
    model = keras.Sequential([keras.Input((4,)), Softplus(), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(features, targets, batch_size=8, epochs=1, verbose=0)


@bug(op_type="RealDiv", effect="variable")
def cross_entropy_of_rows_of_zeros() -> None:
    """The last layer has the activation relu instead of softmax, and Keras divides a row of zeros by its sum."""
    features, _ = _data()
    targets = np.eye(3, dtype="float32")[np.arange(len(features)) % 3]
    features[5] = -100.0
    head = keras.layers.Dense(3, activation="relu", kernel_initializer="ones")
    model = keras.Sequential([keras.Input((4,)), head])
    model.compile("sgd", "categorical_crossentropy")
    model.fit(features, targets, batch_size=8, epochs=1, verbose=0)  # culprit


@bug(op_type="RealDiv", effect="variable")
def decay_of_the_learning_rate_to_a_division_by_zero() -> None:
    """The divisor of the schedule is 1 - 0.25 * step."""
    schedule = keras.optimizers.schedules.InverseTimeDecay(0.01, decay_steps=1, decay_rate=-0.25)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(schedule), "mse")
    model.fit(*_data(), batch_size=4, epochs=5, verbose=0)  # culprit


@bug(op_type="RealDiv", effect="variable")
def deviation_over_an_axis_of_one_element() -> None:
    """A layer standardises over the axis of time, which has one element. TensorFlow runs 1 / sqrt in a chain."""

    def standardise(values: Any) -> Any:
        centred = values - tf.reduce_mean(values, 1, keepdims=True)
        return centred / tf.math.reduce_std(values, 1, keepdims=True)  # culprit

    features = keras.Input((1, 6))
    standardised = keras.layers.Lambda(standardise)(keras.layers.Dense(4)(features))
    model = keras.Model(features, keras.layers.Dense(1)(standardised))
    model.compile("sgd", "mse")
    model.fit(np.ones((8, 1, 6), "float32"), np.ones((8, 1, 1), "float32"), epochs=1, verbose=0)
