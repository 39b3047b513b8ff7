"""The ways in which TensorFlow runs code: functions, loops, branches, maps, Python calls, saved models, sessions."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.culprit.corpus import bug, harmless

tf1 = tf.compat.v1


@bug(op_type="Log", effect="result")
def function_called_from_many_places() -> Any:
    """A tf.function has three callers. The third caller passes a zero."""

    @tf.function
    def score(values: Any) -> Any:
        return tf.reduce_sum(tf.math.log(values))  # culprit

    first = score(tf.constant([1.0, 2.0]))
    second = score(tf.constant([3.0, 4.0]))
    return first + second + score(tf.constant([0.0, 5.0]))


@bug(op_type="RealDiv", effect="variable", executed=("RealDiv", "RealDiv"), is_removed=True)
def nested_functions() -> None:
    """The training step calls a function. This function calls another function, which makes the bad value."""
    weights = tf.Variable([1.0, 2.0])

    @tf.function
    def ratio(a: Any, b: Any) -> Any:
        return a / b  # culprit

    @tf.function
    def relative_error(target: Any) -> Any:
        return tf.reduce_mean(ratio(weights - target, target))

    @tf.function
    def train_step(target: Any) -> None:
        with tf.GradientTape() as tape:
            loss = relative_error(target) + relative_error(target + 1.0)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))

    train_step(tf.constant([1.0, 1.0]))
    train_step(tf.constant([0.0, 1.0]))


@bug(op_type="RealDiv", effect="result")
def one_of_two_divisions_in_a_statement() -> Any:
    """A statement of several lines has two divisions, and the inner division is bad. AutoGraph joins the lines."""

    @tf.function
    def clip(gradient: Any) -> Any:
        norm = tf.sqrt(tf.reduce_sum(tf.square(gradient)))
        return tf.where(norm > 1.0, gradient, 2.0 * gradient) / tf.where(
            norm > 1.0,
            norm,
            norm / norm,  # culprit
        )

    return clip(tf.constant([3.0, 4.0])) + clip(tf.constant([0.0, 0.0]))


@bug(op_type="RealDiv", effect="variable")
def division_of_sums_over_two_lines() -> None:
    """A division has its operands on different lines of a call that has several lines."""
    weights = tf.Variable([1.0, 2.0])

    def mean_of_liked(liked: Any) -> Any:
        return tf.square(
            tf.reduce_sum(weights * liked)  # the sum
            / tf.reduce_sum(liked)  # culprit
        )

    @tf.function
    def train_step(liked: Any) -> None:
        with tf.GradientTape() as tape:
            loss = mean_of_liked(liked)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))

    train_step(tf.constant([1.0, 1.0]))
    train_step(tf.constant([0.0, 0.0]))


@bug(op_type="Log", effect="result")
def branch_of_a_condition() -> Any:
    """Only one branch of tf.cond takes the logarithm."""

    @tf.function
    def scale(value: Any) -> Any:
        return tf.cond(value > 0.0, lambda: value * 2.0, lambda: tf.math.log(value))  # culprit

    return scale(tf.constant(1.0)) + scale(tf.constant(-1.0))


@bug(op_type="Sqrt", effect="result")
def loop_that_goes_below_zero() -> Any:
    """A while loop subtracts until it takes the root of a negative number."""

    @tf.function
    def settle(value: Any) -> Any:
        for _ in tf.range(6):
            value = value - 1.0
            value = tf.sqrt(value)  # culprit
        return value

    return settle(tf.constant(10.0))


@bug(op_type="RealDiv", effect="variable")
def loop_in_a_training_step() -> None:
    """The gradient passes through a while loop in which one iteration divides by zero."""
    weight = tf.Variable(2.0)

    @tf.function
    def train_step(divisors: Any) -> Any:
        with tf.GradientTape() as tape:
            total = 0.0
            for index in tf.range(tf.size(divisors)):
                total += weight / divisors[index]  # culprit
        weight.assign_sub(0.1 * tape.gradient(total, weight))
        return total

    train_step(tf.constant([1.0, 2.0]))
    train_step(tf.constant([1.0, 0.0]))


@bug(op_type="Log", effect="result")
def element_of_a_map() -> Any:
    """tf.map_fn runs over rows. One of the rows is empty."""

    def entropy(row: Any) -> Any:
        probs = row / 4.0
        return -tf.reduce_sum(probs * tf.math.log(probs))  # culprit

    return tf.map_fn(entropy, tf.constant([[1.0, 3.0], [0.0, 4.0]]))


@bug(op_type="RealDiv", effect="result")
def step_of_a_scan() -> Any:
    """tf.scan computes a running ratio."""

    @tf.function
    def run(values: Any) -> Any:
        return tf.scan(lambda total, value: total / value, values, initializer=1.0)  # culprit

    return run(tf.constant([2.0, 0.0, 3.0]))


@bug(op_type="Log", effect="result")
def vectorised_map() -> Any:
    """tf.vectorized_map converts a loop, and the conversion creates the op."""

    @tf.function
    def run(values: Any) -> Any:
        return tf.vectorized_map(lambda value: tf.math.log(value) * 2.0, values)  # culprit

    return run(tf.constant([1.0, 0.0, 3.0]))


@bug(op_type="Reciprocal", effect="variable")
def custom_gradient_that_divides() -> None:
    """A hand-written gradient divides by the input.

    For TensorFlow, the division is a forward op, so it is the culprit.
    """

    @tf.custom_gradient
    def safe_log(x: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            return upstream * tf.math.reciprocal(x)  # culprit

        return tf.math.log(x + 1e-6), gradient

    weights = tf.Variable([1.0, 0.0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(safe_log(weights))
    weights.assign_sub(0.1 * tape.gradient(loss, weights))


@bug(op_type="RealDiv", effect="variable")
def custom_gradient_in_a_function() -> None:
    """A gradient that the user wrote is not on the same line as its forward op."""

    @tf.custom_gradient
    def scaled(x: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            return upstream * (x / x)  # culprit

        return tf.identity(x), gradient

    weights = tf.Variable([1.0, 0.0])

    @tf.function
    def train_step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(scaled(weights * 1.0))
        weights.assign_sub(0.1 * tape.gradient(loss, weights))

    train_step()


@bug(op_type="SqrtGrad", role="gradient", forward="Sqrt", effect="result")
def jacobian_at_zero() -> Any:
    """tape.jacobian computes gradients, and pfor converts their ops."""
    x = tf.Variable([0.0, 1.0])

    @tf.function
    def jacobian() -> Any:
        with tf.GradientTape() as tape:
            y = tf.sqrt(x)  # culprit
        return tape.jacobian(y, x)

    return jacobian()


@bug(op_type="SqrtGrad", role="gradient", forward="Sqrt", effect="result")
def symbolic_gradients() -> Any:
    """A tf.function calls tf.gradients."""

    @tf.function
    def slope(x: Any) -> Any:
        y = tf.sqrt(x)  # culprit
        return tf.gradients(y, x)[0]

    return slope(tf.constant([0.0, 1.0]))


@bug(op_type="Reciprocal", role="gradient", forward="Asin", effect="variable")
def eager_loop_that_reaches_the_border() -> None:
    """An eager loop of training steps approaches asin(1)."""
    weight = tf.Variable(1.0)
    for angle in (0.5, 0.75, 1.0):
        with tf.GradientTape() as tape:
            loss = -tf.asin(weight * angle)  # culprit
        weight.assign_sub(1e-9 * tape.gradient(loss, weight))


@bug(op_type="Log", effect="result")
def eager_mode_of_functions() -> Any:
    """Functions run eagerly, as they do during debugging."""
    tf.config.run_functions_eagerly(True)

    @tf.function
    def score(values: Any) -> Any:
        return tf.reduce_mean(tf.math.log(values))  # culprit

    return score(tf.constant([0.0, 1.0]))


@bug(op_type="Log", effect="result")
def fit_that_runs_eagerly() -> None:
    """The model is compiled with run_eagerly=True. The loss is NaN, but its gradient is finite."""

    def loss(y_true: Any, y_pred: Any) -> Any:
        return tf.reduce_mean(y_true - tf.math.log(y_pred), axis=-1)  # culprit

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile("sgd", loss, run_eagerly=True)
    model.fit(np.full((4, 2), -1.0, "float32"), np.ones((4, 1), "float32"), epochs=1, verbose=0)


def _save_module(directory: Path) -> None:
    class LogModel(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None])])
        def __call__(self, values: Any) -> Any:
            return tf.reduce_sum(tf.math.log(values))

    tf.saved_model.save(LogModel(), str(directory / "model"))


@bug(op_type="Log", effect="result", prepare=_save_module)
def saved_model_called_with_zero(directory: Path) -> Any:
    """A saved model has no stacks, so the line to name is the call of the model."""
    model = tf.saved_model.load(str(directory / "model"))
    model(tf.constant([1.0, 2.0]))
    return model(tf.constant([0.0, 1.0]))  # culprit


@bug(op_type="Log", effect="variable", prepare=_save_module)
def saved_model_in_a_training_step(directory: Path) -> None:
    """A custom training loop takes the gradient of a restored function."""
    model = tf.saved_model.load(str(directory / "model"))
    scale = tf.Variable(1.0)
    inputs = tf.constant([0.0, 1.0])
    with tf.GradientTape() as tape:
        loss = model(inputs * scale)  # culprit
    scale.assign_sub(tape.gradient(loss, scale))


def _save_trainer(directory: Path) -> None:
    class Trainer(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = tf.Variable(tf.ones([2, 2]))

        @tf.function(input_signature=[tf.TensorSpec([None, 2])])
        def loss(self, values: Any) -> Any:
            return -tf.reduce_mean(tf.math.log(tf.nn.relu(tf.matmul(values, self.weights))))

        @tf.function(input_signature=[tf.TensorSpec([None, 2])])
        def train(self, values: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = self.loss(values)
            self.weights.assign_sub(0.1 * tape.gradient(loss, self.weights))
            return loss

    tf.saved_model.save(Trainer(), str(directory / "trainer"))


@bug(op_type="Log", effect="variable", prepare=_save_trainer)
def training_step_of_a_saved_model(directory: Path) -> None:
    """A saved model trains itself. Its graphs do not say which ops belong to the gradient of the loss."""
    model = tf.saved_model.load(str(directory / "trainer"))
    model.train(tf.constant([[1.0, 2.0]]))
    model.train(tf.constant([[-1.0, -2.0]]))  # culprit


def _save_keras_model(directory: Path) -> None:
    inputs = keras.Input((2,))
    outputs = keras.layers.Dense(1, kernel_initializer="ones")(keras.ops.sqrt(inputs))
    keras.Model(inputs, outputs).save(directory / "model.keras")


@bug(op_type="Sqrt", effect="result", prepare=_save_keras_model)
def reloaded_keras_model_predicts(directory: Path) -> Any:
    """A reloaded functional model predicts from a negative feature."""
    model = keras.models.load_model(directory / "model.keras")
    return model.predict(np.array([[1.0, -4.0]], "float32"), verbose=0)  # culprit


@bug(op_type="Log", effect="variable")
def session_of_version_one() -> None:
    """A training in a session gets a feed that contains a zero. tensorflow/tensorflow#20091."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        inputs = tf.compat.v1.placeholder(tf.float32, [None], name="inputs")
        weight = tf.compat.v1.get_variable("weight", initializer=1.0, use_resource=True)
        loss = tf.reduce_mean(weight * tf.math.log(inputs))  # culprit
        train = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(train, {inputs: [1.0, 2.0]})
        session.run(train, {inputs: [0.0, 2.0]})


@bug(op_type="SqrtGrad", role="gradient", forward="Sqrt", effect="variable")
def session_of_version_one_with_a_root() -> None:
    """A session computes the gradient of a norm. tensorflow/tensorflow#783."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        inputs = tf.compat.v1.placeholder(tf.float32, [2])
        weights = tf.compat.v1.get_variable("weights", initializer=[1.0, 1.0], use_resource=True)
        distance = tf.sqrt(tf.reduce_sum(tf.square(weights * inputs)))  # culprit
        train = tf.compat.v1.train.AdamOptimizer(0.1).minimize(distance)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(train, {inputs: [0.0, 0.0]})


@bug(op_type="ResourceApplyAdam", effect="variable")
def session_with_an_optimizer_without_an_epsilon() -> None:
    """Adam divides 0 by 0 for a weight that never gets a gradient. The op of the optimizer has no output."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        inputs = tf.compat.v1.placeholder(tf.float32, [2])
        weights = tf.compat.v1.get_variable("weights", initializer=[1.0, 1.0], use_resource=True)
        distance = tf.reduce_sum(tf.square(weights * inputs))
        optimizer = tf.compat.v1.train.AdamOptimizer(0.1, epsilon=0.0)
        train = optimizer.minimize(distance)  # culprit
        session.run(tf.compat.v1.global_variables_initializer())
        for _ in range(2):
            session.run(train, {inputs: [1.0, 0.0]})


@bug(op_type="RealDiv", effect="result")
def session_that_only_evaluates() -> Any:
    """A session fetches the accuracy of an empty batch, and does not train."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        correct = tf.compat.v1.placeholder(tf.float32, [None])
        accuracy = tf.reduce_sum(correct) / tf.cast(tf.size(correct), tf.float32)  # culprit
        return session.run(accuracy, {correct: np.zeros(0, "float32")})


@bug(op_type="Log", effect="variable")
def replicas_of_a_strategy() -> None:
    """In a mirrored training, the share of the batch for one replica contains a zero."""
    devices = [device.name for device in tf.config.list_logical_devices("CPU")]
    strategy = tf.distribute.MirroredStrategy(devices)
    with strategy.scope():
        weight = tf.Variable(1.0, aggregation=tf.VariableAggregation.MEAN)

    def replica_step(values: Any) -> None:
        with tf.GradientTape() as tape:
            loss = weight * tf.reduce_mean(tf.math.log(values))  # culprit
        weight.assign_sub(0.1 * tape.gradient(loss, weight))

    rows = tf.data.Dataset.from_tensor_slices(np.array([1.0, 2.0, 3.0, 0.0], "float32")).batch(4)

    @tf.function
    def train_step(batch: Any) -> None:
        strategy.run(replica_step, args=(batch,))

    for batch in strategy.experimental_distribute_dataset(rows):
        train_step(batch)


@bug(op_type="Log", effect="result", raises=tf.errors.InvalidArgumentError)
def assertion_stops_the_program() -> None:
    """An assertion ends the program right after the op that created the bad value."""
    values = tf.constant([0.0, 1.0])

    @tf.function
    def score() -> Any:
        logs = tf.math.log(values)  # culprit
        tf.debugging.assert_all_finite(logs, "The logarithm is not finite.")
        return tf.reduce_sum(logs)

    score()


@bug(op_type="RealDiv", effect="result", raises=FloatingPointError)
def program_that_stops_itself() -> None:
    """A loop checks its loss and raises an exception."""
    for divisor in (2.0, 1.0, 0.0):
        loss = tf.constant(1.0) / tf.constant(divisor)  # culprit
        if not np.isfinite(loss.numpy()):
            raise FloatingPointError("The loss is not finite.")


@bug(op_type="Log", effect="variable", raises=tf.errors.InvalidArgumentError)
def error_after_the_update() -> None:
    """The weights are bad, and a later op fails for another reason."""
    weight = tf.Variable(0.0)

    @tf.function
    def train_step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.math.log(weight)  # culprit
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    train_step()
    tf.reshape(tf.ones([3]), [2, 2])


@bug(op_type="Log", effect="variable")
def compiled_function() -> None:
    """XLA compiles the training step."""
    weight = tf.Variable(1.0)

    @tf.function(jit_compile=True)
    def train_step(values: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * tf.math.log(values))  # culprit
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    train_step(tf.constant([1.0, 2.0]))
    train_step(tf.constant([0.0, 2.0]))


@bug(op_type="RealDiv", effect="variable")
def vectorized_map_over_a_constant_image() -> None:
    """TensorFlow creates the ops of a vectorized map from the ops of its body, without calling the body again."""
    weights = tf.Variable(tf.ones([4]))

    def standardize(image: Any) -> Any:
        centered = image - tf.reduce_mean(image)
        return centered / tf.math.reduce_std(image)  # culprit

    @tf.function
    def train_step(images: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.vectorized_map(standardize, images) * weights)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))

    train_step(tf.constant([[1.0, 2.0, 3.0, 4.0], [4.0, 1.0, 3.0, 2.0]]))
    train_step(tf.constant([[1.0, 2.0, 3.0, 4.0], [5.0, 5.0, 5.0, 5.0]]))


@bug(op_type="Log", effect="result")
def logarithm_of_a_constant() -> Any:
    """TensorFlow's optimizer computes the logarithm in advance, together with its result."""

    @tf.function
    def score(values: Any) -> Any:
        smallest = tf.math.log(tf.constant(0.0))  # culprit
        return values + smallest * 2.0

    return score(tf.constant([1.0, 2.0]))


@bug(op_type="Log", effect="result")
def tensor_array_of_version_one() -> Any:
    """The program uses a TensorArray of TensorFlow 1. The content of the array is not recorded."""
    tf1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default(), tf1.Session() as session:
            values = tf1.placeholder(tf.float32, [3])
            array = tf.TensorArray(tf.float32, 3)
            _, array = tf1.while_loop(
                lambda i, _: i < 3,
                lambda i, array: (i + 1, array.write(i, tf.math.log(values[i]))),  # culprit
                [0, array],
            )
            return session.run(array.stack() * 2.0, {values: [1.0, 0.0, 2.0]})
    finally:
        tf1.enable_control_flow_v2()


@bug(op_type="Log", effect="result")
def threads_that_pass_the_same_tensor() -> None:
    """The threads pass the same tensor, so the recording does not tell which step belongs to which call."""

    @tf.function
    def score(values: Any) -> Any:
        return tf.reduce_sum(tf.math.log(values) * 2.0) + 1.0  # culprit

    values = tf.constant(0.0)
    score(tf.constant(1.0))
    threads = [threading.Thread(target=lambda: [score(values) for _ in range(8)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@bug(op_type="Mul", effect="variable")
def product_of_constants_that_overflows() -> None:
    """TensorFlow's optimizer multiplies the two factors first."""
    total = tf.Variable(1.0)

    @tf.function
    def scale(values: Any) -> None:
        total.assign(tf.reduce_sum(values * 1e30 * 1e30) + 1.0)  # culprit

    scale(tf.ones([3]))


@bug(op_type="Log", effect="variable")
def gradient_with_the_logarithm_of_a_constant() -> None:
    """TensorFlow's optimizer computes the logarithm in advance, as part of the gradient."""
    weights = tf.Variable(tf.ones([3]))

    @tf.function
    def train_step(values: Any) -> None:
        with tf.GradientTape() as tape:
            smallest = -tf.math.log(tf.constant(0.0))  # culprit
            loss = tf.reduce_sum(weights * values * smallest)
        weights.assign_sub(tape.gradient(loss, weights))

    train_step(tf.ones([3]))


@harmless
def masks_of_constants() -> Any:
    """TensorFlow's optimizer computes the masks in advance."""

    @tf.function
    def attend(scores: Any) -> Any:
        is_future = 1.0 - tf.linalg.band_part(tf.ones([3, 3]), -1, 0)
        mask = tf.where(is_future > 0.0, tf.constant(-np.inf), tf.zeros([3, 3]))
        return tf.nn.softmax(scores + mask * 2.0)

    return attend(tf.ones([3, 3]))


@bug(op_type="SqrtGrad", role="gradient", forward="Sqrt", effect="variable")
def record_of_zeros_in_a_loop_over_a_data_set() -> None:
    """A tf.function loops over a data set.

    The gradient of a root is bad in one batch, and the next batches read the bad weights.
    """
    records = np.random.default_rng(0).uniform(1, 3, (32, 4)).astype("float32")
    records[21] = 0.0
    weights = tf.Variable(tf.ones([4, 1]))

    @tf.function
    def train(data: Any) -> None:
        for batch in data:
            with tf.GradientTape() as tape:
                length = tf.sqrt(tf.matmul(batch, weights)[:, 0])  # culprit
                loss = tf.reduce_mean(tf.square(length - 1.0))
            weights.assign_sub(0.01 * tape.gradient(loss, weights))

    for _ in range(2):
        train(tf.data.Dataset.from_tensor_slices(records).batch(8))
