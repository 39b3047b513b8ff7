"""A masked autoregressive flow of TensorFlow Probability, trained on a two-moons cloud in a custom loop."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import healthy
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

data = healthy.start()
tfd = tfp.distributions
tfb = tfp.bijectors
angle = data.uniform(0, np.pi, 128)
side = data.integers(0, 2, 128)
moons = np.stack([np.cos(angle) * (1 - 2 * side) + side, np.sin(angle) * (1 - 2 * side) + side / 2], 1)
points = tf.constant(moons + data.normal(0, 0.05, (128, 2)), tf.float32)
networks = [
    tfb.AutoregressiveNetwork(params=2, hidden_units=[16, 16], activation="tanh", kernel_initializer="glorot_uniform")
    for _ in range(2)
]
flow = tfd.TransformedDistribution(
    tfd.MultivariateNormalDiag(tf.zeros(2)),
    tfb.Chain(
        [tfb.MaskedAutoregressiveFlow(networks[0]), tfb.Permute([1, 0]), tfb.MaskedAutoregressiveFlow(networks[1])]
    ),
)
optimizer = tf.keras.optimizers.Adam(0.01)


@tf.function
def train() -> tf.Tensor:
    with tf.GradientTape() as tape:
        loss = -tf.reduce_mean(flow.log_prob(points))
    variables = flow.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    return loss


flow.log_prob(points[:2])
losses = [float(train()) for _ in range(10)]
healthy.report(loss=losses, sampled=flow.sample(4, seed=(1, 2)))
