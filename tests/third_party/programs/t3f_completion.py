"""Riemannian gradient descent of t3f: a tensor in the tensor-train format fitted to random samples."""

import healthy
import t3f
import tensorflow as tf

healthy.start()
truth = t3f.cast(t3f.random_tensor((3, 4, 5), tt_rank=2), tf.float64)
estimate = t3f.get_variable("estimate", initializer=t3f.cast(t3f.random_tensor((3, 4, 5), tt_rank=2), tf.float64))


@tf.function
def step() -> tf.Tensor:
    gradient = t3f.riemannian.project(estimate - truth, estimate)
    t3f.assign(estimate, t3f.round(estimate - 0.5 * gradient, max_tt_rank=2))
    return t3f.frobenius_norm(estimate - truth, epsilon=1e-12)


norms = [float(step()) for _ in range(5)]
healthy.report(norm=norms)
