"""Reinforcement learning: policies, advantages, returns, temperatures."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.culprit.corpus import bug


@bug(op_type="RealDiv", effect="variable")
def advantages_divided_by_their_deviation() -> None:
    """All rewards of an episode are equal, so the deviation of the advantages is 0."""
    policy = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    optimizer = keras.optimizers.Adam(0.01)

    @tf.function
    def update(states: Any, actions: Any, rewards: Any) -> Any:
        advantages = rewards - tf.reduce_mean(rewards)
        advantages = advantages / tf.math.reduce_std(rewards)  # culprit
        with tf.GradientTape() as tape:
            log_probs = tf.nn.log_softmax(policy(states))
            chosen = tf.gather(log_probs, actions, batch_dims=1)
            loss = -tf.reduce_mean(chosen * advantages)
        weights = policy.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    actions = tf.constant([0, 1, 0, 1])
    update(tf.ones([4, 3]), actions, tf.constant([1.0, 0.0, 2.0, 1.0]))
    update(tf.ones([4, 3]), actions, tf.ones([4]))


@bug(op_type="RealDiv", effect="variable")
def advantages_of_a_single_step() -> None:
    """The deviation with Bessel's correction, n / (n - 1), is 0/0 for an episode of one step."""
    value = tf.Variable(0.0)
    rewards = np.array([1.5], "float32")
    with tf.GradientTape() as tape:
        error = tf.constant(rewards) - value
        centred = tf.square(error - tf.reduce_mean(error))
        variance = tf.reduce_sum(centred) / (tf.cast(tf.size(error), tf.float32) - 1.0)  # culprit
        loss = tf.reduce_mean(error) / (tf.stop_gradient(variance) + 1.0)
    value.assign_sub(0.1 * tape.gradient(loss, value))


@bug(op_type="Log", effect="variable")
def policy_gradient_of_a_certain_policy() -> None:
    """The loss takes the logarithm of an action's probability, which is 0. awjuliani/DeepRL-Agents#34."""

    class Agent(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.policy = keras.layers.Dense(2, activation="softmax", kernel_initializer="identity")

        def train_step(self, data: Any) -> Any:
            states, actions = data
            with tf.GradientTape() as tape:
                probs = self.policy(states)
                chosen = tf.reduce_sum(probs * tf.one_hot(tf.squeeze(actions, -1), 2), axis=-1)
                loss = -tf.reduce_mean(tf.math.log(chosen))  # culprit
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"loss": loss}

    agent = Agent()
    agent.compile("sgd")
    states = np.array([[1.0, 0.0], [200.0, -200.0]], "float32")
    agent.fit(states, np.array([[0], [1]]), epochs=1, verbose=0)


@bug(op_type="Log", effect="variable")
def squashed_gaussian_log_probability() -> None:
    """The loss takes log(1 - a * a) of a saturated tanh action. philtabor/Actor-Critic-Methods-Paper-To-Code#7."""
    mean = tf.Variable([0.5, 12.0])
    with tf.GradientTape() as tape:
        action = tf.tanh(mean)
        correction = tf.math.log(1.0 - action * action)  # culprit
        loss = tf.reduce_sum(-0.5 * tf.square(mean) - correction)
    mean.assign_sub(0.1 * tape.gradient(loss, mean))


@bug(op_type="Atanh", effect="variable")
def log_probability_of_a_bounded_action() -> None:
    """The program takes the inverse hyperbolic tangent of an action at its bound. ray-project/ray#14878."""
    mean = tf.Variable([0.0, 0.0])

    @tf.function
    def log_prob(actions: Any) -> Any:
        raw = tf.atanh(actions)  # culprit
        return -0.5 * tf.reduce_sum(tf.square(raw - mean), axis=-1)

    for actions in ([[0.2, 0.1]], [[1.0, 0.3]]):
        with tf.GradientTape() as tape:
            loss = -tf.reduce_mean(log_prob(tf.constant(actions)))
        mean.assign_sub(0.1 * tape.gradient(loss, mean))


@bug(op_type="Exp", effect="variable")
def importance_ratio_of_a_stale_policy() -> None:
    """The ratio is the exponential of the difference of two log-probabilities that are far apart."""
    logits = tf.Variable([90.0, -90.0])
    old = tf.constant(-120.0)
    with tf.GradientTape() as tape:
        new = tf.nn.log_softmax(logits)[0]
        ratio = tf.exp(new - old)  # culprit
        clipped = tf.clip_by_value(ratio, 0.8, 1.2)
        loss = -tf.maximum(ratio * 0.5, clipped * 0.5)
    logits.assign_sub(0.1 * tape.gradient(loss, logits))


@bug(op_type="Exp", effect="variable")
def entropy_temperature_grows() -> None:
    """The learned logarithm of the temperature grows with each step until exp overflows."""
    log_alpha = tf.Variable(0.0)
    optimizer = keras.optimizers.SGD(30.0)

    @tf.function
    def update() -> Any:
        with tf.GradientTape() as tape:
            alpha = tf.exp(log_alpha)  # culprit
            loss = -tf.math.log1p(alpha) * 2.0
        optimizer.apply_gradients([(tape.gradient(loss, log_alpha), log_alpha)])
        return loss

    for _ in range(6):
        update()


@bug(op_type="Mul", effect="result")
def returns_that_are_not_discounted() -> Any:
    """A scan computes the return of a long episode with a discount above 1."""

    @tf.function
    def discounted(rewards: Any) -> Any:
        def step(total: Any, reward: Any) -> Any:
            return reward + 1e9 * total  # culprit

        return tf.scan(step, rewards, initializer=0.0)

    return discounted(tf.ones([8]))


@bug(op_type="Sub", effect="variable")
def value_of_a_state_without_actions() -> None:
    """Illegal actions have the value -Inf. In a state without a legal action, the advantage is -Inf - -Inf."""
    values = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    legal = tf.constant([[True, False], [False, False]])
    with tf.GradientTape() as tape:
        masked = tf.where(legal, values, float("-inf"))
        best = tf.reduce_max(masked, axis=-1, keepdims=True)
        advantage = masked - best  # culprit
        loss = tf.reduce_mean(tf.exp(advantage) * values)
    values.assign_sub(0.1 * tape.gradient(loss, values))


@bug(op_type="RealDiv", effect="result")
def upper_confidence_bound_of_an_untried_arm() -> Any:
    """log(t) / n is infinite for an arm that was never pulled. Infinity minus infinity is then NaN."""
    counts = tf.constant([4.0, 0.0, 0.0])
    bonus = tf.math.log(4.0) / counts  # culprit
    score = tf.sqrt(bonus) + tf.constant([0.5, 0.0, 0.0])
    return score - tf.reduce_max(score)


@bug(op_type="RealDiv", effect="variable")
def prioritised_replay_of_zero_priorities() -> None:
    """Importance weights are reciprocals of probabilities. A perfectly learned transition has the probability 0."""
    weights = tf.Variable([1.0, 2.0, 3.0])
    priorities = tf.constant([0.5, 0.0, 0.25])
    with tf.GradientTape() as tape:
        probs = priorities / tf.reduce_sum(priorities)
        importance = 1.0 / (3.0 * probs)  # culprit
        importance = importance / tf.reduce_max(importance)
        loss = tf.reduce_mean(importance * tf.square(weights))
    weights.assign_sub(0.1 * tape.gradient(loss, weights))


@bug(op_type="Mul", effect="variable")
def entropy_of_masked_actions() -> None:
    """The forward pass computes 0 * -Inf.

    The gradient of the softmax computes a second NaN, and this NaN reaches the variable.
    """
    weights = tf.Variable(tf.ones([2, 3]))

    @tf.function
    def update(observations: Any, legal: Any, actions: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = tf.where(legal, observations @ weights, -np.inf)
            log_probabilities = tf.nn.log_softmax(logits)
            probabilities = tf.nn.softmax(logits)
            entropy = -tf.reduce_sum(probabilities * log_probabilities, axis=1)  # culprit
            chosen = tf.gather(log_probabilities, actions, batch_dims=1)
            loss = -tf.reduce_mean(chosen) - 0.01 * tf.reduce_mean(entropy)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    update(tf.ones([2, 2]), tf.constant([[True, True, False], [True, True, True]]), tf.constant([0, 2]))


@bug(op_type="Mul", effect="variable")
def entropy_of_masked_actions_in_eager_code() -> None:
    """In eager code, the entropy multiplies the probability 0 of a masked action by its logarithm, which is -Inf."""
    policy = tf.Variable([[0.3, -0.2, 0.5]])
    legal = tf.constant([[True, False, True]])
    with tf.GradientTape() as tape:
        logits = tf.where(legal, tf.constant([[1.0]]) @ policy, -np.inf)
        log_probs = tf.nn.log_softmax(logits)
        entropy = -tf.reduce_sum(tf.exp(log_probs) * log_probs)  # culprit
        loss = -0.01 * entropy - tf.reduce_sum(log_probs[:, 0])
    policy.assign_sub(0.1 * tape.gradient(loss, policy))
