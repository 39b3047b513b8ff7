"""A Bayesian network with Keras layers of TensorFlow Probability (DenseFlipout), trained by fit of tf-keras."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import healthy
import tensorflow as tf
import tensorflow_probability as tfp
import tf_keras

data = healthy.start()
divergence = lambda posterior, prior, _: tfp.distributions.kl_divergence(posterior, prior) / 32.0  # noqa: E731
model = tf_keras.Sequential(
    [
        tf_keras.layers.InputLayer((4,)),
        tfp.layers.DenseFlipout(8, activation="relu", kernel_divergence_fn=divergence, seed=1),
        tfp.layers.DenseFlipout(2, kernel_divergence_fn=divergence, seed=2),
        tfp.layers.DistributionLambda(
            lambda t: tfp.distributions.Normal(t[..., :1], 1e-3 + tf.math.softplus(0.05 * t[..., 1:]))
        ),
    ]
)
model.compile(tf_keras.optimizers.Adam(0.01), lambda y, predicted: -predicted.log_prob(y))
features = data.normal(size=(32, 4)).astype("float32")
history = model.fit(features, features[:, :1] * 2, batch_size=16, epochs=3, verbose=0)
healthy.report(loss=history.history["loss"])
