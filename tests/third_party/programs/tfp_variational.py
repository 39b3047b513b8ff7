"""Variational inference with TensorFlow Probability: a surrogate posterior under constraining bijectors."""

import healthy
import tensorflow as tf
import tensorflow_probability as tfp

data = healthy.start()
tfd = tfp.distributions
tfb = tfp.bijectors
features = tf.constant(data.normal(size=(50, 3)), tf.float32)
targets = tf.linalg.matvec(features, [1.0, -2.0, 0.5]) + 0.1 * data.normal(size=50).astype("float32")
model = tfd.JointDistributionNamed(
    {
        "scale": tfd.Gamma(2.0, 2.0),
        "weights": tfd.Sample(tfd.Normal(0.0, 2.0), 3),
        "targets": lambda scale, weights: tfd.Independent(
            tfd.Normal(tf.linalg.matvec(features, weights), scale[..., tf.newaxis]), 1
        ),
    }
)
posterior = tfp.experimental.vi.build_factored_surrogate_posterior(
    event_shape={"scale": [], "weights": [3]}, bijector={"scale": tfb.Softplus(), "weights": None}, seed=(0, 1)
)
losses = tfp.vi.fit_surrogate_posterior(
    lambda scale, weights: model.log_prob(scale=scale, weights=weights, targets=targets),
    surrogate_posterior=posterior,
    optimizer=tf.keras.optimizers.Adam(0.1),
    num_steps=30,
    sample_size=4,
    seed=(5, 6),
)
healthy.report(loss=losses)
