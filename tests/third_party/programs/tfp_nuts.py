"""TensorFlow Probability's No-U-Turn sampler on a Gaussian, with dual averaging: loops inside loops."""

import healthy
import tensorflow as tf
import tensorflow_probability as tfp

healthy.start()
tfd = tfp.distributions
target = tfd.MultivariateNormalTriL([1.0, -1.0], [[1.0, 0.0], [0.6, 0.8]])


@tf.function
def sample() -> tuple[tf.Tensor, tf.Tensor]:
    kernel = tfp.mcmc.NoUTurnSampler(target.log_prob, step_size=0.3, max_tree_depth=4)
    kernel = tfp.mcmc.DualAveragingStepSizeAdaptation(
        kernel,
        num_adaptation_steps=8,
        step_size_setter_fn=lambda results, size: results._replace(step_size=size),
        step_size_getter_fn=lambda results: results.step_size,
        log_accept_prob_getter_fn=lambda results: results.log_accept_ratio,
    )
    return tfp.mcmc.sample_chain(
        num_results=8,
        num_burnin_steps=8,
        current_state=tf.zeros((2, 2)),
        kernel=kernel,
        trace_fn=lambda _, results: results.inner_results.leapfrogs_taken,
        seed=(3, 4),
    )


states, leapfrogs = sample()
healthy.report(states=states, leapfrogs=tf.cast(leapfrogs, tf.float32))
