"""Programs in which an intended or harmless bad value precedes a real bug. The answer must name the bug."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.culprit.corpus import bug


def _data() -> tuple[Any, Any]:
    features = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    return features, np.abs(features.sum(axis=1, keepdims=True)) + 0.1


@bug(op_type="Log", effect="variable")
def metric_that_was_bad_from_the_start() -> None:
    """A metric is NaN in every batch. In the second epoch, the loss becomes bad, too."""

    def ratio(y_true: Any, y_pred: Any) -> Any:
        return tf.reduce_mean((y_true - y_true) / (y_true - y_true))

    def loss(y_true: Any, y_pred: Any) -> Any:
        return tf.reduce_mean(tf.square(tf.math.log(y_true) - y_pred), axis=-1)  # culprit

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", loss, metrics=[ratio])
    features, targets = _data()
    model.fit(features, targets, epochs=1, verbose=0)
    targets[3] = 0.0
    model.fit(features, targets, epochs=1, verbose=0)


@bug(op_type="RealDiv", effect="variable")
def causal_mask_beside_a_division() -> None:
    """Every step uses an attention mask of -Inf. The last batch has no token, so a division by 0 follows."""
    weights = tf.Variable(tf.eye(2))
    mask = tf.constant([[0.0, -np.inf], [0.0, 0.0]])

    @tf.function
    def train_step(values: Any, keep: Any) -> Any:
        with tf.GradientTape() as tape:
            scores = values @ weights @ tf.transpose(values) + mask
            attended = tf.nn.softmax(scores) @ values
            losses = tf.reduce_sum(tf.square(attended - 1.0), axis=-1)
            loss = tf.reduce_sum(losses * keep) / tf.reduce_sum(keep)  # culprit
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    train_step(tf.ones([2, 2]), tf.constant([1.0, 0.0]))
    train_step(tf.ones([2, 2]), tf.constant([0.0, 0.0]))


@bug(op_type="Log", effect="variable")
def best_loss_tracker_beside_a_logarithm() -> None:
    """The program begins with an infinite best loss, which is intended. Later, the loss takes log(0)."""
    best = tf.Variable(float("inf"), trainable=False)
    weight = tf.Variable(1.0)
    for value in (1.0, 0.5, 0.0):
        with tf.GradientTape() as tape:
            loss = -weight * tf.math.log(value)  # culprit
        best.assign(tf.minimum(best, loss))
        weight.assign_sub(0.1 * tape.gradient(loss, weight))


@bug(op_type="RealDiv", effect="variable")
def cleaned_input_beside_a_division() -> None:
    """Missing values are replaced in every batch. Later, a batch without variation is standardised."""
    weights = tf.Variable(tf.ones([2]))

    @tf.function
    def train_step(raw: Any) -> Any:
        values = tf.where(tf.math.is_nan(raw), tf.zeros_like(raw), raw)
        with tf.GradientTape() as tape:
            scaled = (values - tf.reduce_mean(values)) / tf.math.reduce_std(values)  # culprit
            loss = tf.reduce_mean(tf.square(scaled * weights))
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    train_step(tf.constant([[np.nan, 1.0], [2.0, 3.0]]))
    train_step(tf.constant([[np.nan, 0.0], [0.0, 0.0]]))


@bug(op_type="Exp", effect="variable")
def infinite_clip_bounds_beside_an_exponential() -> None:
    """Infinite bounds turn clipping off, which is intended. The loss overflows."""
    weight = tf.Variable([10.0])
    optimizer = keras.optimizers.SGD(1.0)

    @tf.function
    def train_step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.exp(weight * weight))  # culprit
        gradient = tf.clip_by_value(tape.gradient(loss, weight), tf.constant(float("-inf")), tf.constant(float("inf")))
        optimizer.apply_gradients([(gradient, weight)])
        return loss

    weight.assign([2.0])
    train_step()
    weight.assign([10.0])
    train_step()


@bug(op_type="RealDiv", effect="variable")
def warmup_schedule_beside_a_unit_vector() -> None:
    """The schedule takes the minimum of rsqrt(0) and a number. The loss divides a vector of zeros by its norm."""

    class Warmup(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> Any:
            step = tf.cast(step, tf.float32)
            return 0.1 * tf.minimum(tf.math.rsqrt(step), step * 0.01)

        def get_config(self) -> dict[str, Any]:
            return {}

    def loss(y_true: Any, y_pred: Any) -> Any:
        return tf.reduce_sum(y_pred / tf.norm(y_pred, axis=-1, keepdims=True), axis=-1)  # culprit

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(Warmup()), loss)
    features = _data()[0]
    features[:2] = 0.0
    model.fit(features, np.zeros((8, 2), "float32"), batch_size=2, shuffle=False, epochs=1, verbose=0)


@bug(op_type="Softmax", effect="result")
def mask_that_is_right_in_one_row_only() -> None:
    """A mask of -Inf is right in the first row. In the second row, the mask covers all elements."""
    weights = tf.Variable(tf.eye(3))
    keep = tf.constant([[True, True, False], [False, False, False]])
    with tf.GradientTape() as tape:
        scores = tf.ones([2, 3]) @ weights
        probs = tf.nn.softmax(tf.where(keep, scores, float("-inf")))  # culprit
        loss = tf.reduce_sum(probs)
    weights.assign_sub(0.1 * tape.gradient(loss, weights))


@bug(op_type="Log", effect="variable")
def loss_scaling_beside_a_logarithm() -> None:
    """The first scale is so large that gradients overflow, which is intended. Later, the loss is log(0)."""

    def loss(y_true: Any, y_pred: Any) -> Any:
        return tf.reduce_mean(y_pred * tf.math.log(y_true), axis=-1)  # culprit

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**127), loss)
    features, targets = _data()
    model.fit(features, targets * 50.0, epochs=2, verbose=0)
    model.compile(keras.optimizers.SGD(0.1), loss)
    targets[2] = 0.0
    model.fit(features, targets, epochs=1, verbose=0)


@bug(op_type="Mul", effect="result", role="gradient", forward="Square")
def gradient_penalty_beside_loss_scaling() -> None:
    """The step with the overflowed penalty is skipped, but no loss scale helps.

    The program returns an infinite loss.
    """
    weights = tf.Variable(tf.fill([4, 1], 0.5))
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1e-3), initial_scale=2.0)
    optimizer.build([weights])

    @tf.function
    def train_step(features: Any) -> Any:
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(features)
                score = tf.reduce_sum(tf.square(features @ tf.cast(weights, tf.float16)))  # culprit
            slopes = inner.gradient(score, features)
            loss = tf.reduce_mean(tf.square(tf.cast(slopes, tf.float32)))
            scaled = optimizer.scale_loss(loss)
        optimizer.apply_gradients([(tape.gradient(scaled, weights), weights)])
        return loss

    batches = np.random.default_rng(0).normal(size=(6, 8, 4)).astype("float16")
    batches[2, 3] = 20000.0
    for batch in batches:
        train_step(tf.constant(batch))


@bug(op_type="Log", effect="result")
def division_that_is_guarded_beside_a_logarithm() -> Any:
    """The program uses tf.where to guard the result of a division. The logarithm has no such guard."""

    @tf.function
    def score(hits: Any, total: Any) -> Any:
        rate = tf.where(total > 0.0, hits / total, 0.0)
        return tf.math.log(rate)  # culprit

    return score(tf.constant([1.0, 0.0]), tf.constant([2.0, 0.0]))


@bug(op_type="Sqrt", effect="variable")
def statistics_that_nobody_reads_beside_a_root() -> None:
    """The program computes 0/0 for a summary that is only printed. The update takes the root of a negative number."""
    weight = tf.Variable(2.0)

    @tf.function
    def train_step(value: Any) -> Any:
        share = tf.reduce_sum(tf.zeros([2])) / tf.reduce_sum(tf.zeros([2]))
        shown = tf.where(tf.math.is_nan(share), -1.0, share)
        with tf.GradientTape() as tape:
            loss = weight * tf.sqrt(value)  # culprit
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return shown

    train_step(tf.constant(1.0))
    train_step(tf.constant(-1.0))


@bug(op_type="Log", effect="variable")
def skipped_steps_beside_one_that_is_not() -> None:
    """One update is guarded by is_finite, and the other update is not guarded."""
    first, second = tf.Variable(1.0), tf.Variable(1.0)

    @tf.function
    def train_step(value: Any) -> None:
        with tf.GradientTape(persistent=True) as tape:
            ratio = first / value
            likelihood = second * tf.math.log(value)  # culprit
        gradient = tape.gradient(ratio, first)
        if tf.math.is_finite(gradient):
            first.assign_sub(0.1 * gradient)
        second.assign_sub(0.1 * tape.gradient(likelihood, second))

    train_step(tf.constant(1.0))
    train_step(tf.constant(0.0))


@bug(op_type="Log", effect="result")
def program_that_only_prints_the_check() -> Any:
    """The program checks the value, prints a warning, and continues with it."""

    @tf.function
    def score(values: Any) -> Any:
        logs = tf.math.log(values)  # culprit
        if tf.reduce_any(tf.math.is_inf(logs)):
            tf.print("A score is infinite.")
        return tf.reduce_sum(logs)

    return score(tf.constant([0.0, 1.0]))


@bug(op_type="RealDiv", effect="variable")
def checked_but_applied_all_the_same() -> None:
    """The program counts losses that are NaN, but still applies the updates."""
    weight = tf.Variable(1.0)
    num_bad = tf.Variable(0)
    for divisor in (1.0, 0.0):
        with tf.GradientTape() as tape:
            loss = weight / divisor  # culprit
        num_bad.assign_add(tf.cast(tf.math.is_inf(loss), tf.int32))
        weight.assign_sub(0.1 * tape.gradient(loss, weight))


@bug(op_type="Log", effect="variable")
def constant_nan_beside_a_logarithm() -> None:
    """The loss of an invalid label is a constant NaN, which is never chosen.

    For the last batch, the loss takes log(0).
    """
    weights = tf.Variable([[1.0, 0.5], [0.5, 1.0]])

    @tf.function
    def train_step(features: Any, labels: Any, scale: Any) -> Any:
        with tf.GradientTape() as tape:
            costs = -tf.gather(tf.nn.log_softmax(features @ weights), labels, batch_dims=1)
            costs = tf.where((labels >= 0) & (labels < 2), costs, tf.constant(float("nan")))
            loss = tf.reduce_mean(costs) - tf.math.log(scale * tf.reduce_mean(tf.square(weights)))  # culprit
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    for scale in (1.0, 1.0, 0.0):
        train_step(tf.ones([3, 2]), tf.constant([0, 1, 0]), tf.constant(scale))


@bug(op_type="Mul", effect="result", executed=("Const", None))
def infinite_diagonal_beside_a_harmless_division() -> Any:
    """The program multiplies an infinity by 0, which makes NaN. The NaN of a vector of zeros is replaced."""

    @tf.function
    def nearest(points: Any) -> Any:
        norm = tf.norm(points, axis=1, keepdims=True)
        unit = tf.where(norm > 0.0, points / norm, tf.zeros_like(points))
        similarity = tf.matmul(unit, unit, transpose_b=True)
        return tf.math.top_k(similarity - np.inf * tf.eye(5), 2)  # culprit

    return nearest(tf.concat([tf.zeros([1, 4]), tf.random.stateless_normal([4, 4], seed=[1, 2])], axis=0))


@bug(op_type=None, effect="result")
def infinite_number_in_a_checked_mean() -> Any:
    """The program checks whether the mean is infinite. The mean of data with an infinity is still a bug."""
    features, _ = _data()
    features[3, 1] = np.inf
    return tf.math.is_inf(tf.reduce_mean(features))  # culprit


@bug(op_type="Log", effect="result")
def line_search_that_accepts_nan() -> None:
    """A comparison with NaN is false, so the loop accepts a step that leaves the domain of the logarithm."""
    position, rate = tf.constant([0.2, 0.3]), 4.0

    def barrier(point: Any) -> Any:
        return tf.reduce_sum(4.0 * point) - 0.2 * tf.reduce_sum(tf.math.log(point))  # culprit

    before = barrier(position).numpy()
    for _ in range(3):
        while barrier(position - rate).numpy() > before:
            rate *= 0.5
        position = position - rate


@bug(op_type="Log", effect="result")
def nan_that_is_replaced_beside_an_infinity() -> Any:
    """The program replaces a NaN by an infinity on purpose. The infinity of another element stays."""

    @tf.function
    def objective(points: Any) -> Any:
        values = tf.math.log(points)  # culprit
        return tf.where(tf.math.is_nan(values), tf.constant(np.inf, tf.float32), values)

    return objective(tf.constant([1.0, -1.0, 0.0]))
