"""TensorFlow Probability's Hamiltonian Monte Carlo with step size adaptation, inside one tf.function."""

import healthy
import tensorflow as tf
import tensorflow_probability as tfp

data = healthy.start()
tfd = tfp.distributions
observed = tf.constant(data.normal(1.5, 0.7, 40), tf.float32)
model = tfd.JointDistributionSequential(
    [
        tfd.Normal(0.0, 3.0),
        tfd.HalfNormal(2.0),
        lambda scale, mean: tfd.Independent(tfd.Normal(mean[..., tf.newaxis] * tf.ones(40), scale[..., tf.newaxis]), 1),
    ]
)


def log_prob(mean: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    return model.log_prob([mean, scale, observed])


@tf.function
def sample() -> tuple[list[tf.Tensor], tf.Tensor]:
    kernel = tfp.mcmc.TransformedTransitionKernel(
        tfp.mcmc.HamiltonianMonteCarlo(log_prob, step_size=0.1, num_leapfrog_steps=3),
        bijector=[tfp.bijectors.Identity(), tfp.bijectors.Exp()],
    )
    kernel = tfp.mcmc.SimpleStepSizeAdaptation(kernel, num_adaptation_steps=20)
    return tfp.mcmc.sample_chain(
        num_results=20,
        num_burnin_steps=20,
        current_state=[tf.zeros(2), tf.ones(2)],
        kernel=kernel,
        trace_fn=lambda _, results: results.inner_results.inner_results.is_accepted,
        seed=(1, 2),
    )


(means, scales), accepted = sample()
healthy.report(means=means, scales=scales, accepted=tf.cast(accepted, tf.float32))
