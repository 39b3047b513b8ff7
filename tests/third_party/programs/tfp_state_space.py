"""Sequence models of TensorFlow Probability: a hidden Markov model and a Kalman filter, fitted by gradients."""

import healthy
import tensorflow as tf
import tensorflow_probability as tfp

data = healthy.start()
tfd = tfp.distributions
series = tf.constant(data.normal(0, 0.3, 20).cumsum(), tf.float32)
stay = tf.Variable(1.0)
noise = tf.Variable(0.0)


@tf.function
def step() -> tuple[tf.Tensor, list[tf.Tensor]]:
    with tf.GradientTape() as tape:
        row = tf.stack([stay, 0.0])
        markov = tfd.HiddenMarkovModel(
            tfd.Categorical(probs=[1.0, 0.0]),
            tfd.Categorical(logits=tf.stack([row, row[::-1]])),
            tfd.Normal([0.0, 1.0], [1.0, 1.0]),
            num_steps=20,
        )
        kalman = tfd.LinearGaussianStateSpaceModel(
            num_timesteps=20,
            transition_matrix=tf.linalg.LinearOperatorIdentity(1),
            transition_noise=tfd.MultivariateNormalDiag(scale_diag=[tf.nn.softplus(noise)]),
            observation_matrix=tf.linalg.LinearOperatorIdentity(1),
            observation_noise=tfd.MultivariateNormalDiag(scale_diag=[0.2]),
            initial_state_prior=tfd.MultivariateNormalDiag(scale_diag=[1.0]),
        )
        loss = -markov.log_prob(series) - kalman.log_prob(series[:, tf.newaxis])
    return loss, tape.gradient(loss, [stay, noise])


losses = []
for _ in range(4):
    loss, gradients = step()
    stay.assign_sub(0.01 * gradients[0])
    noise.assign_sub(0.01 * gradients[1])
    losses.append(float(loss))
healthy.report(loss=losses, stay=stay.numpy(), noise=noise.numpy())
