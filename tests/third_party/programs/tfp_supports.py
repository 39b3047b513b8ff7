"""log_prob at the edge of a support: impossible components of a mixture (-Inf) beside a possible component."""

import healthy
import tensorflow as tf
import tensorflow_probability as tfp

data = healthy.start()
tfd = tfp.distributions
points = tf.constant(data.uniform(0.05, 2.9, 64), tf.float32)
logits = tf.Variable(tf.zeros(3))
width = tf.Variable(0.5)
optimizer = tf.keras.optimizers.Adam(0.05)


@tf.function
def train() -> tf.Tensor:
    with tf.GradientTape() as tape:
        mixture = tfd.Mixture(
            tfd.Categorical(logits=logits),
            [tfd.Uniform(0.0, 1.0), tfd.Uniform(0.0, 3.0), tfd.Gamma(2.0, 1.0 / tf.nn.softplus(width))],
        )
        loss = -tf.reduce_mean(mixture.log_prob(points))
    gradients = tape.gradient(loss, [logits, width])
    optimizer.apply_gradients(zip(gradients, [logits, width], strict=True))
    return loss


losses = [float(train()) for _ in range(10)]
truncated = tfd.TruncatedNormal(0.0, 1.0, -1.0, 2.0)
healthy.report(
    loss=losses,
    logits=logits.numpy(),
    truncated=truncated.log_prob(points[:4] - 0.9),
    beta=tfd.Beta(2.0, 3.0).log_prob(points[:4] / 3.0),
    poisson=tfd.Poisson(2.0).log_prob([0.0, 1.0, 4.0]),
    sampled=tfd.LogNormal(0.0, 1.0).sample(5, seed=(1, 2)),
)
