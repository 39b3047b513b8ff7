"""Generative models: variational autoencoders, adversarial networks, normalising flows, diffusion."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.culprit.corpus import bug


@bug(op_type="Exp", effect="variable")
def vae_divergence_of_a_large_log_variance() -> None:
    """exp(log_variance) overflows in the KL divergence. AppliedDataSciencePartners/WorldModels#9."""

    class Vae(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = keras.layers.Dense(4, kernel_initializer="ones")
            self.decoder = keras.layers.Dense(3)

        def call(self, inputs: Any) -> Any:
            mean, log_variance = tf.split(self.encoder(inputs), 2, axis=-1)
            variance = tf.exp(log_variance)  # culprit
            divergence = -0.5 * tf.reduce_mean(1.0 + log_variance - tf.square(mean) - variance)
            self.add_loss(divergence)
            return self.decoder(mean)

    model = Vae()
    model.compile("sgd", "mse")
    images = np.full((4, 3), 60.0, "float32")
    model.fit(images, images, epochs=1, verbose=0)


@bug(op_type="Log", effect="result")
def vae_with_tanh_decoder() -> None:
    """A decoder ends with tanh, and the loss takes the logarithm of its output. pkmital/tensorflow_tutorials#23."""
    weights = tf.Variable(tf.ones([2, 2]) * -0.7)
    inputs = tf.constant([[1.0, 0.5], [0.2, 1.0]])

    @tf.function
    def train_step() -> Any:
        with tf.GradientTape() as tape:
            decoded = tf.tanh(inputs @ weights)
            likelihood = inputs * tf.math.log(decoded) + (1.0 - inputs) * tf.math.log1p(-decoded)  # culprit
            loss = -tf.reduce_mean(likelihood)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    train_step()


@bug(op_type="Log", effect="variable", effect_in_xla="result")
def vae_collapsed_posterior() -> None:
    """The loss takes the logarithm of a posterior's deviation, which is 0 because of a ReLU."""

    class Posterior(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.scale = self.add_weight(shape=(shape[-1],), initializer=keras.initializers.Constant(-1.0))

        def call(self, inputs: Any) -> Any:
            deviation = tf.nn.relu(self.scale * inputs)
            entropy = tf.reduce_sum(tf.math.log(deviation))  # culprit
            self.add_loss(-0.001 * entropy)
            return inputs * deviation

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, activation="sigmoid"), Posterior()])
    model.compile("adam", "mse")
    model.fit(np.ones((4, 3), "float32"), np.ones((4, 3), "float32"), epochs=1, verbose=0)


@bug(op_type="RealDiv", effect="variable")
def gaussian_likelihood_of_zero_deviation() -> None:
    """The likelihood is (x - mean) / deviation, and both the numerator and the deviation are 0."""
    mean = tf.Variable([1.0, 2.0])
    deviation = tf.constant([0.0, 1.0])
    with tf.GradientTape() as tape:
        scaled = (tf.constant([1.0, 1.0]) - mean) / deviation  # culprit
        loss = tf.reduce_mean(0.5 * tf.square(scaled))
    mean.assign_sub(tape.gradient(loss, mean))


@bug(op_type="SqrtGrad", role="gradient", forward="Sqrt", effect="variable")
def gradient_penalty_of_a_dead_critic() -> None:
    """The norm of the critic's gradient is 0 if all rectifiers of the critic return 0. keras-team/keras-io#910."""
    hidden = keras.layers.Dense(4, activation="relu", bias_initializer=keras.initializers.Constant(-9.0))
    critic = keras.Sequential([keras.Input((2,)), hidden, keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(1e-3)

    @tf.function
    def train_step(images: Any) -> None:
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(images)
                scores = critic(images)
            slopes = inner.gradient(scores, images)
            norm = tf.sqrt(tf.reduce_sum(tf.square(slopes), axis=-1))  # culprit
            loss = tf.reduce_mean(scores) + 10.0 * tf.reduce_mean(tf.square(norm - 1.0))
        weights = critic.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)

    train_step(tf.ones([3, 2]))


@bug(op_type="Log", effect="variable")
def saturated_discriminator() -> None:
    """The loss takes log(1 - D(G(z))), and the discriminator is certain."""

    class Gan(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.generator = keras.layers.Dense(2, kernel_initializer="ones")
            self.critic = keras.layers.Dense(1, activation="sigmoid", kernel_initializer="ones")

        def train_step(self, data: Any) -> Any:
            noise = data
            with tf.GradientTape() as tape:
                fake = self.critic(self.generator(noise))
                loss = tf.reduce_mean(tf.math.log(1.0 - fake))  # culprit
            weights = self.generator.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return {"loss": loss}

    model = Gan()
    model.compile(keras.optimizers.SGD(0.1))
    model.fit(np.full((4, 3), 9.0, "float32"), epochs=1, batch_size=4, verbose=0)


@bug(op_type="Log", effect="result")
def critic_loss_reported_only() -> Any:
    """An eager program computes a bad loss, but only prints the loss."""
    probs = tf.sigmoid(tf.constant([-120.0, 0.0, 1.0]))
    return -tf.reduce_mean(tf.math.log(probs))  # culprit


@bug(op_type="Atanh", effect="variable")
def flow_inverse_of_a_saturated_tanh() -> None:
    """The inverse flow takes atanh of a value that tanh has rounded to 1."""
    scale = tf.Variable(4.0)
    inputs = tf.constant([0.1, 1.0, 5.0])
    with tf.GradientTape() as tape:
        squashed = tf.tanh(scale * inputs)
        latent = tf.atanh(squashed)  # culprit
        loss = 0.5 * tf.reduce_sum(tf.square(latent))
    scale.assign_sub(0.1 * tape.gradient(loss, scale))


@bug(op_type="Log", effect="variable")
def flow_log_determinant_of_a_saturated_tanh() -> None:
    """The flow takes log(1 - tanh(x) ** 2) of a saturated tanh."""

    class Squash(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

        def call(self, inputs: Any) -> Any:
            squashed = tf.tanh(inputs * self.scale)
            jacobian = tf.math.log(1.0 - tf.square(squashed))  # culprit
            self.add_loss(-tf.reduce_mean(jacobian))
            return squashed

    model = keras.Sequential([keras.Input((2,)), Squash()])
    model.compile("sgd", "mse")
    model.fit(np.array([[1.0, 20.0], [0.5, 0.1]], "float32"), np.zeros((2, 2), "float32"), epochs=1, verbose=0)


@bug(op_type="Log", effect="variable")
def flow_logit_of_unpadded_pixels() -> None:
    """The flow takes the logit of pixels that are exactly 0."""
    shift = tf.Variable([0.0, 0.0, 0.0])
    pixels = tf.constant([0.0, 0.5, 1.0])
    with tf.GradientTape() as tape:
        logits = tf.math.log(pixels / (1.0 + 1e-6 - pixels))  # culprit
        loss = tf.reduce_mean(tf.square(logits - shift))
    shift.assign_sub(tape.gradient(loss, shift))


@bug(op_type="RealDiv", effect="result")
def flow_inverse_of_a_zero_scale() -> Any:
    """The program inverts an affine coupling whose scale is 0."""

    class Coupling(tf.Module):
        def __init__(self) -> None:
            self.scale = tf.Variable([1.0, 0.0])
            self.shift = tf.Variable([0.5, 0.5])

        @tf.function
        def inverse(self, outputs: Any) -> Any:
            return (outputs - self.shift) / self.scale  # culprit

    coupling = Coupling()
    return coupling.inverse(tf.constant([[1.0, 1.0]]))


@bug(op_type="RealDiv", effect="variable")
def diffusion_noise_at_step_zero() -> None:
    """The noise schedule is 0 at step 0, and the score is divided by the schedule."""
    denoiser = tf.Variable(tf.eye(2))
    deviations = tf.linspace(0.0, 1.0, 5)

    @tf.function
    def train_step(images: Any, step: Any) -> Any:
        with tf.GradientTape() as tape:
            score = (images @ denoiser - images) / tf.gather(deviations, step)  # culprit
            loss = tf.reduce_mean(tf.square(score))
        denoiser.assign_sub(0.01 * tape.gradient(loss, denoiser))
        return loss

    for step in (3, 2, 0):
        train_step(tf.ones([2, 2]), tf.constant(step))


@bug(op_type="Sqrt", effect="variable")
def diffusion_variance_below_zero() -> None:
    """The program takes the root of a number that is negative because the schedule exceeds 1."""
    alpha_bar = tf.constant([0.5, 0.9, 1.01])
    scale = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        noise_level = tf.sqrt(1.0 - alpha_bar)  # culprit
        loss = tf.reduce_mean(tf.square(scale * noise_level - 0.1))
    scale.assign_sub(tape.gradient(loss, scale))


@bug(op_type="Log", effect="variable")
def gumbel_noise_of_zero() -> None:
    """The Gumbel noise is -log(-log(u)). If u was rounded to 1, the outer logarithm takes 0."""
    logits = tf.Variable([0.1, 0.2, 0.3])
    uniform = tf.constant([0.25, 1.0, 0.5])
    with tf.GradientTape() as tape:
        exponential = -tf.math.log(uniform)
        gumbel = -tf.math.log(exponential)  # culprit
        sample = tf.nn.softmax(logits + gumbel)
        loss = tf.reduce_sum(sample * logits)
    logits.assign_sub(tape.gradient(loss, logits))


@bug(op_type="Exp", effect="variable")
def mixture_density_of_far_components() -> None:
    """The deviation of a mixture component is exp of an unbounded output."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(4, kernel_initializer="ones")])
    optimizer = keras.optimizers.SGD(0.1)
    inputs = tf.fill([3, 2], 50.0)

    @tf.function
    def train_step() -> Any:
        with tf.GradientTape() as tape:
            mean, raw = tf.split(model(inputs), 2, axis=-1)
            deviation = tf.exp(raw)  # culprit
            loss = tf.reduce_mean(tf.square((1.0 - mean) / deviation) + 2.0 * tf.math.log(deviation))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    train_step()


@bug(op_type="Exp", effect="variable")
def mixture_density_that_sums_exponentials_of_infinities() -> None:
    """An infinite deviation makes each component -Inf. tf.reduce_logsumexp turns -Inf into 0 and back into -Inf."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(4, kernel_initializer="ones")])
    optimizer = keras.optimizers.SGD(0.1)
    inputs = tf.fill([3, 2], 50.0)

    @tf.function
    def train_step() -> Any:
        with tf.GradientTape() as tape:
            mean, raw = tf.split(model(inputs), 2, axis=-1)
            deviation = tf.exp(raw)  # culprit
            densities = -0.5 * tf.square((1.0 - mean) / deviation) - tf.math.log(deviation)
            loss = -tf.reduce_mean(tf.reduce_logsumexp(densities, axis=-1))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    train_step()


@bug(op_type="RealDiv", effect="variable")
def density_of_a_posterior_whose_deviation_underflows() -> None:
    """The deviation of a posterior is exp of a variable with a wrong start value. This exponential rounds to 0."""
    mean, log_deviation = tf.Variable(0.0), tf.Variable(-200.0)
    optimizer = keras.optimizers.SGD(0.1)

    @tf.function
    def lower_bound(noise: Any) -> Any:
        deviation = tf.exp(log_deviation)
        sample = mean + deviation * noise
        return tf.reduce_mean(tf.square((sample - mean) / deviation) + tf.square(sample - 1.0))  # culprit

    with tf.GradientTape() as tape:
        loss = lower_bound(tf.constant([-1.0, 0.5]))
    variables = [mean, log_deviation]
    optimizer.apply(tape.gradient(loss, variables), variables)
