"""Programs with intended or discarded infinities or NaN. No value of these programs may be reported as bad."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.culprit.corpus import harmless

INF = float("inf")


def _data() -> tuple[Any, Any]:
    features = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    return features, features.sum(axis=1, keepdims=True)


@harmless
def causal_attention_mask() -> None:
    """Scores of future positions are -Inf before the softmax."""

    class Causal(keras.layers.Layer):
        def call(self, values: Any) -> Any:
            length = tf.shape(values)[1]
            keep = tf.linalg.band_part(tf.ones([length, length]), -1, 0) > 0.0
            scores = tf.matmul(values, values, transpose_b=True)
            return tf.nn.softmax(tf.where(keep, scores, -INF)) @ values

    model = keras.Sequential([keras.Input((5, 3)), keras.layers.Dense(3), Causal(), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(np.ones((4, 5, 3), "float32"), np.zeros((4, 5, 1), "float32"), epochs=2, verbose=0)


@harmless
def additive_mask_of_a_constant() -> None:
    """A constant of zeros and -Inf is added to the scores."""
    mask = tf.constant([[0.0, -INF, -INF], [0.0, 0.0, -INF], [0.0, 0.0, 0.0]])
    weights = tf.Variable(tf.eye(2))

    @tf.function
    def train_step(values: Any) -> Any:
        with tf.GradientTape() as tape:
            attended = tf.nn.softmax(values @ weights @ tf.transpose(values) + mask) @ values
            loss = tf.reduce_mean(tf.square(attended - 1.0))
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    train_step(tf.constant([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]))


@harmless
def two_masks_of_the_lowest_number() -> None:
    """The sum of a causal mask and a mask of the padding is -Inf where both masks hold the lowest number."""
    causal = 1.0 - tf.linalg.band_part(tf.ones([3, 3]), -1, 0)
    weights = tf.Variable(tf.eye(2))

    @tf.function
    def train_step(values: Any, keep: Any) -> Any:
        with tf.GradientTape() as tape:
            scores = tf.matmul(values @ weights, values, transpose_b=True)
            scores += causal * scores.dtype.min + (1.0 - keep)[:, None, :] * scores.dtype.min
            loss = tf.reduce_mean(tf.square(tf.nn.softmax(scores) @ values - 1.0))
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    train_step(tf.random.normal([2, 3, 2]), tf.constant([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]))


@harmless
def contrastive_loss_with_a_masked_diagonal() -> None:
    """The temperature makes -Inf of the lowest number, with which each view is masked for itself."""
    weights = tf.Variable(tf.ones([2, 3]))

    @tf.function
    def train_step(views: Any) -> Any:
        with tf.GradientTape() as tape:
            vectors = tf.math.l2_normalize(views @ weights, 1)
            size = tf.shape(vectors)[0]
            scores = tf.matmul(vectors, vectors, transpose_b=True) + tf.eye(size) * vectors.dtype.min
            labels = (tf.range(size) + size // 2) % size
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores / 0.1))
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    train_step(tf.random.normal([4, 2]))


@harmless
def best_so_far_in_a_variable() -> None:
    """The best loss begins at infinity."""
    best = tf.Variable(INF, trainable=False)
    weight = tf.Variable(3.0)

    @tf.function
    def train_step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.square(weight - 1.0)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        if loss < best:
            best.assign(loss)
        return best

    for _ in range(3):
        train_step()


@harmless
def range_tracker() -> None:
    """The variables for the smallest and the largest value begin at infinity and minus infinity."""
    low, high = tf.Variable(INF), tf.Variable(-INF)
    for batch in np.random.default_rng(0).normal(size=(3, 4)).astype("float32"):
        values = tf.constant(batch)
        low.assign(tf.minimum(low, tf.reduce_min(values)))
        high.assign(tf.maximum(high, tf.reduce_max(values)))


def _train_with_log(log: tf.Variable, note: Any) -> None:
    """Trains a linear model, and calls `note(step, loss)` in each step."""
    features, labels = _data()
    weights = tf.Variable(tf.zeros((4, 1)))

    @tf.function
    def train_step(step: Any, features: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(features @ weights - labels))
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        note(step, loss)

    for step in range(3):
        train_step(tf.constant(step), tf.constant(features), tf.constant(labels))
    np.nanmean(log.numpy())


@harmless
def log_filled_with_nan() -> None:
    """A variable is filled with NaN, and each step stores a loss in it."""
    log = tf.Variable(tf.fill([5], float("nan")), trainable=False)
    _train_with_log(log, lambda step, loss: log.scatter_nd_update([[step]], [loss]))


@harmless
def log_filled_with_nan_in_numpy() -> None:
    """The NaN values come from an array, and the program reads them back one by one."""
    log = tf.Variable(np.full(5, np.nan, "float32"), trainable=False)
    _train_with_log(log, lambda step, loss: log[step].assign(loss))
    [float(log[step]) for step in range(5)]


@harmless
def log_filtered_by_is_nan() -> None:
    """Only the slots of the log that are not NaN are averaged."""
    log = tf.Variable(tf.fill([5], float("nan")), trainable=False)
    _train_with_log(log, lambda step, loss: log.scatter_nd_update([[step]], [loss]))
    tf.reduce_mean(tf.boolean_mask(log, tf.logical_not(tf.math.is_nan(log))))


@harmless
def maximum_over_a_loop() -> Any:
    """A loop variable begins at -Inf, and every iteration takes the maximum."""

    @tf.function
    def largest(values: Any) -> Any:
        best = tf.constant(-INF)
        for index in tf.range(tf.size(values)):
            best = tf.maximum(best, values[index])
        return best

    return largest(tf.constant([1.0, 3.0, 2.0]))


@harmless
def ctc_loss_of_a_batch() -> None:
    """tf.nn.ctc_loss computes log(0) for labels that cannot be reached."""
    logits = tf.Variable(tf.random.normal([6, 2, 4]))
    labels = tf.constant([[1, 2], [3, 1]])
    with tf.GradientTape() as tape:
        losses = tf.nn.ctc_loss(labels, logits, tf.constant([2, 2]), tf.constant([6, 6]), blank_index=0)
        loss = tf.reduce_mean(losses)
    logits.assign_sub(0.1 * tape.gradient(loss, logits))


@harmless
def ctc_loss_of_keras() -> None:
    """The loop in the loss is not recorded, so the log(0) there cannot be followed.

    The loss and all weights stay finite.
    """
    generator = np.random.default_rng(4)
    model = keras.Sequential([keras.Input((20, 8)), keras.layers.LSTM(6, return_sequences=True), keras.layers.Dense(8)])
    model.compile("adam", keras.losses.CTC())
    sound = generator.normal(size=(8, 20, 8)).astype("float32")
    model.fit(sound, generator.integers(1, 7, (8, 5)).astype("int32"), batch_size=4, epochs=1, verbose=0)


@harmless
def clip_bounds_that_are_infinite() -> None:
    """clip_by_value with infinite bounds clips nothing."""
    weight = tf.Variable([1.0, 2.0])

    @tf.function
    def train_step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(weight))
        gradient = tf.clip_by_value(tape.gradient(loss, weight), -INF, INF)
        weight.assign_sub(0.1 * gradient)

    train_step()


@harmless
def missing_values_that_are_replaced() -> None:
    """tf.where replaces each NaN of the input with a default."""
    features, targets = _data()
    features[2, 1] = np.nan

    class Impute(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            return tf.where(tf.math.is_nan(inputs), 0.0, inputs)

    model = keras.Sequential([keras.Input((4,)), Impute(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(features, targets, epochs=2, verbose=0)


@harmless
def missing_rows_that_are_filtered() -> None:
    """A filter of tf.data removes the rows that contain a NaN."""
    features, targets = _data()
    features[2, 1] = np.nan
    rows = tf.data.Dataset.from_tensor_slices((features, targets))
    rows = rows.filter(lambda row, _: tf.reduce_all(tf.math.is_finite(row))).batch(4)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(rows, epochs=1, verbose=0)


@harmless
def missing_rows_that_are_masked_away() -> Any:
    """tf.boolean_mask keeps the finite elements."""
    values = tf.constant([1.0, float("nan"), 3.0])
    return tf.reduce_mean(tf.boolean_mask(values, tf.math.is_finite(values)))


@harmless
def warmup_schedule() -> None:
    """rsqrt(step) is infinite at step 0. The minimum selects the other operand."""

    class Warmup(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> Any:
            step = tf.cast(step, tf.float32)
            return 0.1 * tf.minimum(tf.math.rsqrt(step), step * 0.01)

        def get_config(self) -> dict[str, Any]:
            return {}

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(Warmup()), "mse")
    model.fit(*_data(), epochs=2, verbose=0)


@harmless
def dynamic_loss_scaling() -> None:
    """The first loss scales make gradients overflow, and these steps are skipped."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=2.0**127), "mse")
    features, targets = _data()
    model.fit(features * 30.0, targets, epochs=4, verbose=0)


@harmless
def dynamic_loss_scaling_that_returns_the_norm() -> None:
    """The first loss scales make gradients overflow.

    These steps are skipped, but return the norm of their gradients.
    """
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1, dtype="float32")])
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), initial_scale=2.0**24)
    optimizer.build(model.trainable_variables)

    @tf.function
    def train_step(features: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(features, training=True) - targets))
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss, tf.linalg.global_norm(gradients)

    features, targets = _data()
    for _ in range(16):
        train_step(features, targets)


@harmless
def dynamic_loss_scaling_by_hand() -> None:
    """The program checks float16 gradients eagerly, skips the update while these overflow, and lowers the scale."""
    features, targets = (tf.cast(data, tf.float16) for data in _data())
    weights, scale = tf.Variable(tf.ones([4, 1])), tf.Variable(2.0**20)

    @tf.function
    def gradient_of(features: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            error = tf.matmul(features, tf.cast(weights, tf.float16)) - targets
            loss = scale * tf.reduce_mean(tf.cast(tf.square(error), tf.float32))
        return tape.gradient(loss, weights) / scale

    for _ in range(24):
        gradient = gradient_of(features, targets)
        if tf.reduce_all(tf.math.is_finite(gradient)):
            weights.assign_sub(0.01 * gradient)
        else:
            scale.assign(scale / 2.0)


@harmless
def dynamic_loss_scaling_by_the_norm_of_the_gradients() -> None:
    """The program skips the update while the norm of all gradients overflows, and lowers the scale."""
    features, targets = (tf.cast(data, tf.float16) for data in _data())
    weights, bias, scale = tf.Variable(tf.ones([4, 1])), tf.Variable(tf.zeros([1])), tf.Variable(2.0**20)

    @tf.function
    def gradients_of(features: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            error = tf.matmul(features, tf.cast(weights, tf.float16)) + tf.cast(bias, tf.float16) - targets
            loss = scale * tf.reduce_mean(tf.cast(tf.square(error), tf.float32))
        return [gradient / scale for gradient in tape.gradient(loss, [weights, bias])]

    for _ in range(24):
        gradients = gradients_of(features, targets)
        if tf.math.is_finite(tf.linalg.global_norm(gradients)):
            for variable, gradient in zip((weights, bias), gradients, strict=True):
                variable.assign_sub(0.01 * gradient)
        else:
            scale.assign(scale / 2.0)


@harmless
def mixed_precision_policy() -> None:
    """The policy mixed_float16 scales the loss. With large targets, the initial scale makes the loss overflow."""
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), keras.layers.Dense(1, dtype="float32")])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    features, targets = _data()
    model.fit(features * 20.0, targets * 20.0, epochs=4, verbose=0)


@harmless
def matrix_exponential() -> Any:
    """tf.linalg.expm computes branches that it does not select."""
    matrix = tf.constant([[0.0, 1.0], [-1.0, 0.0]])
    return tf.reduce_sum(tf.linalg.expm(matrix))


@harmless
def matrix_exponential_in_a_training() -> None:
    """The gradient of tf.linalg.expm is finite, too."""
    matrix = tf.Variable([[0.1, 0.2], [0.3, 0.4]])

    @tf.function
    def train_step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.linalg.expm(matrix))
        matrix.assign_sub(0.1 * tape.gradient(loss, matrix))

    train_step()


@harmless
def recomputed_gradients() -> None:
    """tf.recompute_grad inserts a value that is never used before the recomputation."""
    weights = tf.Variable(tf.eye(2))

    @tf.recompute_grad
    def block(values: Any) -> Any:
        return tf.nn.relu(values @ weights)

    @tf.function
    def train_step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(block(tf.ones([2, 2])) - 0.5))
        weights.assign_sub(0.1 * tape.gradient(loss, weights))

    train_step()


@harmless
def top_k_of_masked_logits() -> Any:
    """Words that may not be chosen have the logit -Inf."""
    logits = tf.constant([0.3, 0.9, 0.1, 0.7])
    allowed = tf.constant([True, False, True, True])

    @tf.function
    def sample(values: Any) -> Any:
        masked = tf.where(allowed, values, -INF)
        best, indices = tf.math.top_k(masked, 2)
        return tf.nn.softmax(best), indices

    return sample(logits)


@harmless
def nucleus_sampling() -> Any:
    """Logits outside the nucleus are -Inf, and tf.random.categorical draws from the rest."""
    logits = tf.math.log(tf.constant([[0.5, 0.3, 0.1, 0.1]]))
    kept = tf.where(tf.cumsum(tf.nn.softmax(logits), axis=-1, exclusive=True) < 0.7, logits, -INF)
    return tf.random.categorical(kept, 5)


@harmless
def beam_search_scores() -> Any:
    """All beams except the first begin at -Inf."""

    @tf.function
    def search(step_scores: Any) -> Any:
        scores = tf.constant([0.0, -INF, -INF])
        for step in tf.range(3):
            total = tf.reshape(scores[:, None] + step_scores[step][None, :], [-1])
            scores, _ = tf.math.top_k(total, 3)
        return scores

    return search(tf.nn.log_softmax(tf.random.normal([3, 4])))


@harmless
def padding_that_is_sliced_away() -> None:
    """A table is padded with infinity. The program cuts the padding off before it uses the table."""
    table = tf.Variable([[1.0, 2.0], [INF, INF]], trainable=False)
    weights = tf.Variable([0.5, 0.5])

    @tf.function
    def train_step() -> None:
        used = table[:1]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(used * weights))
        weights.assign_sub(0.1 * tape.gradient(loss, weights))

    train_step()


@harmless
def update_that_is_skipped() -> None:
    """The program checks the gradient, and skips a step if the gradient is not finite."""
    weight = tf.Variable(1.0)

    @tf.function
    def train_step(value: Any) -> None:
        with tf.GradientTape() as tape:
            loss = weight * tf.math.log(value)
        gradient = tape.gradient(loss, weight)
        if tf.reduce_all(tf.math.is_finite(gradient)):
            weight.assign_sub(0.1 * gradient)

    for value in (1.0, 0.0, 2.0):
        train_step(tf.constant(value))


@harmless
def gradients_that_are_cleaned() -> None:
    """Each bad element of a gradient is set to zero before it is applied."""
    weights = tf.Variable([1.0, 0.0])

    @tf.function
    def train_step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sqrt(weights))
        gradient = tape.gradient(loss, weights)
        weights.assign_sub(0.1 * tf.where(tf.math.is_finite(gradient), gradient, tf.zeros_like(gradient)))

    train_step()


@harmless
def quotient_that_where_leaves_out() -> Any:
    """tf.where discards the operand with 0/0, and the program takes no gradient."""

    @tf.function
    def precision(true_positives: Any, predicted: Any) -> Any:
        return tf.where(predicted > 0.0, true_positives / predicted, tf.zeros_like(predicted))

    return precision(tf.constant([1.0, 0.0]), tf.constant([2.0, 0.0]))


@harmless
def clipped_logarithm() -> Any:
    """log(0) is clipped from below before it is used."""
    counts = tf.constant([0.0, 1.0, 10.0])
    levels = tf.maximum(tf.math.log(counts), -10.0)
    return tf.reduce_mean(levels)


@harmless
def decibels_with_a_floor() -> Any:
    """A spectrogram in decibels has a floor of 80 below its peak."""

    @tf.function
    def decibels(power: Any) -> Any:
        levels = 10.0 * tf.math.log(power) / tf.math.log(10.0)
        return tf.maximum(levels, tf.reduce_max(levels) - 80.0)

    return decibels(tf.constant([0.0, 1e-3, 1.0]))


@harmless
def exponential_of_minus_infinity() -> Any:
    """Probabilities are stored as logarithms. The logarithm of 0 is -Inf, and its exponential is 0 again."""

    @tf.function
    def mix(weights: Any, log_probs: Any) -> Any:
        return tf.reduce_sum(tf.exp(tf.math.log(weights) + log_probs))

    return mix(tf.constant([0.0, 1.0]), tf.constant([-1.0, -2.0]))


@harmless
def log_sum_exp_with_an_empty_state() -> Any:
    """The forward algorithm of a hidden Markov model begins with log(0) for all states except one."""

    @tf.function
    def forward(observations: Any) -> Any:
        state = tf.math.log(tf.constant([1.0, 0.0]))
        moves = tf.math.log(tf.constant([[0.7, 0.3], [0.4, 0.6]]))
        for step in tf.range(tf.shape(observations)[0]):
            state = tf.reduce_logsumexp(state[:, None] + moves, axis=0) + observations[step]
        return tf.reduce_logsumexp(state)

    return forward(tf.constant([[-0.5, -1.0], [-1.0, -0.2]]))


@harmless
def division_in_a_saturating_function() -> Any:
    """The program divides by 0, but atan and tanh of the infinite quotients are finite."""

    @tf.function
    def angle(y: Any, x: Any) -> Any:
        return tf.atan(y / x) + tf.tanh(1.0 / x)

    return angle(tf.constant([1.0, 1.0]), tf.constant([0.0, 1.0]))


@harmless
def reciprocal_of_an_infinite_distance() -> Any:
    """For resistances in parallel, the reciprocal of an infinite reciprocal is 0."""
    resistances = tf.constant([1.0, 0.0])
    return 1.0 / tf.reduce_sum(1.0 / resistances)


@harmless
def nearest_neighbour_without_itself() -> Any:
    """The diagonal of a matrix of distances is set to infinity before the minimum."""

    @tf.function
    def nearest(points: Any) -> Any:
        squares = tf.reduce_sum(tf.square(points[:, None] - points[None, :]), axis=-1)
        distances = tf.linalg.set_diag(squares, tf.fill([tf.shape(points)[0]], INF))
        return tf.reduce_min(distances, axis=-1)

    return nearest(tf.constant([[0.0, 0.0], [1.0, 1.0], [3.0, 0.0]]))


@harmless
def early_stopping_callback() -> None:
    """EarlyStopping and ModelCheckpoint begin with numpy's infinity."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    stopping = keras.callbacks.EarlyStopping(monitor="loss", patience=1, restore_best_weights=True)
    model.fit(*_data(), epochs=2, verbose=0, callbacks=[stopping])


@harmless
def unbounded_constraint() -> None:
    """The program clips updated weights to the range from 0 to infinity."""
    weight = tf.Variable([1.0, -2.0])

    @tf.function
    def train_step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(weight - 3.0))
        updated = weight - 0.1 * tape.gradient(loss, weight)
        weight.assign(tf.clip_by_value(updated, 0.0, INF))

    train_step()


@harmless
def multihead_attention_of_keras() -> None:
    """Keras's own attention uses a mask in mixed precision."""
    keras.config.set_dtype_policy("mixed_float16")
    inputs = keras.Input((4, 8))
    attended = keras.layers.MultiHeadAttention(2, 4)(inputs, inputs, use_causal_mask=True)
    model = keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(attended))
    model.compile(keras.optimizers.SGD(0.01), "mse")
    model.fit(np.ones((2, 4, 8), "float32"), np.zeros((2, 4, 1), "float32"), epochs=1, verbose=0)


@harmless
def truncated_distribution_support() -> Any:
    """The log-probability outside a support is -Inf, and the mixture takes log-sum-exp."""

    @tf.function
    def log_prob(x: Any) -> Any:
        uniform = tf.where((x >= 0.0) & (x <= 1.0), 0.0, -INF)
        normal = -0.5 * tf.square(x) - 0.919
        return tf.reduce_logsumexp(tf.stack([uniform, normal]) + tf.math.log(0.5), axis=0)

    return log_prob(tf.constant([0.5, 2.0]))


@harmless
def labels_that_are_missing_on_distributed_batches() -> None:
    """NaN stands for a missing label, and is replaced before any computation."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        weights = tf.Variable([[0.1], [0.2]])

    def replica_step(features: Any, labels: Any) -> None:
        is_known = tf.math.logical_not(tf.math.is_nan(labels))
        labels = tf.where(is_known, labels, 0.0)
        with tf.GradientTape() as tape:
            errors = tf.where(is_known, tf.square(features @ weights - labels), 0.0)
            loss = tf.reduce_mean(errors)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))

    @tf.function
    def train_step(features: Any, labels: Any) -> None:
        strategy.run(replica_step, args=(features, labels))

    features = np.ones((8, 2), "float32")
    labels = np.array([[1.0], [np.nan]] * 4, "float32")
    batches = tf.data.Dataset.from_tensor_slices((features, labels)).batch(4)
    for features, labels in strategy.experimental_distribute_dataset(batches):
        train_step(features, labels)


def _chosen_costs(labels: Any, costs: Any) -> Any:
    """Returns NaN for labels outside the classes, as TensorFlow's sparse cross-entropy does with deterministic ops."""
    return tf.where((labels >= 0) & (labels < 2), costs, tf.constant(float("nan")))


@harmless
def constant_nan_that_is_never_chosen() -> None:
    """A function trains with a loss that contains a constant NaN, and eager code evaluates this loss."""
    weights = tf.Variable([[1.0, 0.5], [0.5, 1.0]])

    def loss(features: Any, labels: Any) -> Any:
        costs = -tf.gather(tf.nn.log_softmax(features @ weights), labels, batch_dims=1)
        return tf.reduce_mean(_chosen_costs(labels, costs))

    @tf.function
    def train_step(features: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            value = loss(features, labels)
        weights.assign_sub(0.1 * tape.gradient(value, weights))

    for _ in range(3):
        train_step(tf.ones([3, 2]), tf.constant([0, 1, 0]))
        loss(tf.ones([3, 2]), tf.constant([0, 1, 0]))


@harmless
def distances_that_begin_with_infinity() -> None:
    """The distance to a node is infinite until a path to the node was found."""
    distances = tf.Variable(np.inf * tf.ones([5]))
    distances[0].assign(0.0)
    edges, lengths = tf.constant([[0, 1], [1, 2], [3, 4]]), tf.constant([1.0, 2.0, 1.0])

    @tf.function
    def relax() -> None:
        for _ in tf.range(3):
            distances.scatter_nd_min(edges[:, 1:], tf.gather(distances, edges[:, 0]) + lengths)

    relax()
    assert distances.numpy().tolist() == [0.0, 1.0, 3.0, np.inf, np.inf]


@harmless
def labels_of_some_tasks_that_a_metric_compares() -> None:
    """Tasks without a measurement have the label NaN. The metric multiplies its comparisons by a mask."""

    def masked_loss(y: Any, prediction: Any) -> Any:
        is_known = tf.logical_not(tf.math.is_nan(y))
        errors = tf.where(is_known, tf.square(tf.where(is_known, y, 0.0) - prediction), 0.0)
        return tf.math.divide_no_nan(tf.reduce_sum(errors, -1), tf.reduce_sum(tf.cast(is_known, tf.float32), -1))

    def masked_accuracy(y: Any, prediction: Any) -> Any:
        is_known = tf.cast(tf.math.is_finite(y), tf.float32)
        is_right = tf.cast(tf.equal(y > 0.5, prediction > 0.0), tf.float32)
        return tf.reduce_sum(is_right * is_known) / tf.maximum(tf.reduce_sum(is_known), 1.0)

    labels = np.ones((12, 3), "float32")
    labels[[2, 5, 7], [0, 1, 2]] = np.nan
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile("sgd", masked_loss, metrics=[masked_accuracy])
    model.fit(np.ones((12, 4), "float32"), labels, batch_size=4, epochs=1, verbose=0)
    model.evaluate(np.ones((12, 4), "float32"), labels, verbose=0)


@harmless
def mean_of_nothing_replaced_in_a_branch() -> None:
    """`tf.cond` returns 0 in place of the mean of an empty batch."""

    @tf.function
    def safe_mean(values: Any) -> Any:
        mean = tf.reduce_mean(values)
        return tf.cond(tf.math.is_nan(mean), lambda: tf.constant(0.0), lambda: mean)

    for length in (4, 0, 3):
        float(safe_mean(tf.ones([length])))


@harmless
def update_by_the_mean_of_nothing_skipped() -> None:
    """TensorFlow traces the function again for another shape, so the branch for an empty batch never runs."""
    average = tf.Variable(0.0)

    @tf.function(reduce_retracing=False)
    def update(values: Any) -> None:
        mean = tf.reduce_mean(values)
        average.assign(tf.cond(tf.math.is_nan(mean), average.read_value, lambda: 0.9 * average + 0.1 * mean))

    for length in (4, 0):
        update(tf.ones([length]))


@harmless
def line_search_that_rejects_infinite_objectives() -> None:
    """The first steps are far too large. Only finite objectives are compared with the best objective."""
    weights = tf.Variable([0.5, -0.5])
    slope = tf.constant([1.0, -1.0])

    @tf.function
    def objective(values: Any) -> Any:
        return tf.reduce_sum(tf.exp(values) + tf.exp(-values))

    for _ in range(2):
        best, step = objective(weights), 1e3
        while True:
            trial = objective(weights - step * slope)
            if np.isfinite(float(trial)) and trial <= best:
                break
            step *= 0.1
        weights.assign_sub(step * slope)


@harmless
def sampler_that_rejects_nan() -> Any:
    """Random-walk Metropolis: a proposal below 0 has no density, and a comparison with NaN rejects the proposal."""

    def log_density(position: Any) -> Any:
        return 2.0 * tf.math.log(position) - 1.5 * position

    @tf.function
    def sample(steps: Any) -> Any:
        position = tf.ones([16])
        for step in tf.range(steps):
            proposal = position + tf.random.stateless_normal([16], seed=[1, step], stddev=1.2)
            log_ratio = log_density(proposal) - log_density(position)
            accept = tf.math.log(tf.random.stateless_uniform([16], seed=[2, step], minval=1e-6)) < log_ratio
            position = tf.where(accept, proposal, position)
        return position

    return sample(tf.constant(20))


@harmless
def sampler_that_tests_for_nan() -> Any:
    """The sampler tests whether the ratio of the densities is finite, and then chooses."""

    @tf.function
    def sample(steps: Any) -> Any:
        position, best = tf.ones([16]), tf.ones([16])
        for step in tf.range(steps):
            other = tf.random.stateless_normal([16], seed=[1, step])
            ratio = tf.math.log(other) - tf.math.log(position)
            is_better = tf.logical_and(tf.math.is_finite(ratio), ratio > 0.0)
            best = tf.where(is_better, best + 1.0, best)
        return best

    return sample(tf.constant(5))


@harmless
def batch_that_numpy_finds_bad() -> None:
    """A loop without functions tests each loss with NumPy, and skips the update if the loss is not finite."""
    features, labels = _data()
    weights = tf.Variable(tf.zeros((4, 1)))
    for step in range(5):
        batch = features.copy()
        if step == 2:
            batch[3, 1] = np.inf
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(batch, weights + 0.1) - labels))
        if not np.isfinite(loss.numpy()):
            continue
        weights.assign_sub(0.1 * tape.gradient(loss, weights))


@harmless
def line_search_with_numbers_of_python() -> None:
    """A test of Python floats rejects steps that leave the domain of the logarithm."""
    position = tf.Variable([0.2, 0.3])

    @tf.function
    def barrier(point: Any) -> Any:
        return tf.reduce_sum(4.0 * point) - 0.2 * tf.reduce_sum(tf.math.log(point))

    for _ in range(3):
        with tf.GradientTape() as tape:
            value = barrier(position)
        gradient, rate = tape.gradient(value, position), 4.0
        while rate > 1e-6:
            trial = barrier(position - rate * gradient)
            if math.isfinite(float(trial)) and float(trial) < float(value):
                break
            rate *= 0.5
        position.assign_sub(rate * gradient)


@harmless
def number_beyond_the_dtype_in_a_where() -> Any:
    """A number that float16 cannot hold marks the elements that a softmax must ignore."""

    @tf.function
    def pool(values: Any, keep: Any) -> Any:
        return tf.nn.softmax(tf.where(keep, values, tf.cast(-1e9, values.dtype)))

    return pool(tf.ones([2, 4], tf.float16), tf.constant([[True, True, False, False], [True, True, True, False]]))


@harmless
def line_search_without_functions() -> None:
    """A line search runs eagerly, in a function that returns the first step with a finite and smaller objective."""
    start = tf.constant([0.2, 0.3])

    def barrier(point: Any) -> Any:
        return tf.reduce_sum(4.0 * point) - 0.2 * tf.reduce_sum(tf.math.log(point))

    def step_along(point: Any, gradient: Any, before: float) -> Any:
        rate = 4.0
        while rate > 1e-6:
            trial = point - rate * gradient
            objective = barrier(trial).numpy()
            if np.isfinite(objective) and objective < before:
                return trial
            rate *= 0.5
        return point

    position = start
    for _ in range(3):
        with tf.GradientTape() as tape:
            tape.watch(position)
            value = barrier(position)
        position = step_along(position, tape.gradient(value, position), float(value))


@harmless
def widths_of_open_intervals() -> None:
    """Bounds without a limit are infinite. The program only counts the infinite widths."""
    upper = np.array([1.0, np.inf, 3.0], np.float32)
    lower = np.array([0.0, 1.0, -np.inf], np.float32)
    width = tf.constant(upper) - tf.constant(lower)
    is_open = tf.math.is_inf(width)
    tf.reduce_sum(tf.where(is_open, 0.0, tf.where(tf.math.is_inf(upper), 0.0, upper)))


@harmless
def infinite_objective_outside_of_the_domain() -> float:
    """A search in Python rejects points outside of the domain, because the objective replaces NaN by an infinity."""

    @tf.function
    def objective(point: Any) -> Any:
        value = tf.square(point - 2.0) - tf.math.log(point)
        return tf.where(tf.math.is_nan(value), tf.constant(np.inf, tf.float32), value)

    return min(float(objective(tf.constant(point))) for point in (1.0, -1.0, 3.0))


@harmless
def gradient_of_the_data_that_the_tape_drops() -> None:
    """The tape is outside of the function, whose gradient also returns that of the data: infinite for equal points."""
    points = tf.constant([[0.0, 1.0], [2.0, 3.0], [4.0, 6.0]])
    scale = tf.Variable(1.0)

    @tf.function
    def mean_kernel(values: Any) -> Any:
        distances = tf.norm(values[:, None] - values[None], axis=-1)
        return tf.reduce_mean(tf.exp(-distances / scale))

    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = mean_kernel(points)
        scale.assign_sub(0.1 * tape.gradient(loss, scale))


@harmless
def gradient_of_a_frozen_variable_that_the_tape_drops() -> None:
    """Only one of two variables is trained, and the gradient of the other one is infinite."""
    frozen, trained = tf.Variable(0.0), tf.Variable(1.0)

    @tf.function
    def predict() -> Any:
        return trained * tf.sqrt(frozen) + trained

    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = tf.square(predict() - 2.0)
        trained.assign_sub(0.1 * tape.gradient(loss, trained))


@harmless
def zeros_that_build_a_model() -> None:
    """The program calls the model with zeros to create the weights, and assigns the result to `_`."""

    class Direction(keras.layers.Layer):
        def call(self, vectors: Any) -> Any:
            return vectors / tf.norm(vectors, axis=-1, keepdims=True)

    model = keras.Sequential([Direction(), keras.layers.Dense(1)])
    _ = model(tf.zeros([1, 4]))
    model.compile("sgd", "mse")
    model.fit(np.ones((8, 4), "float32"), np.ones((8, 1), "float32"), epochs=1, verbose=0)
