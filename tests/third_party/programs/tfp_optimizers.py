"""L-BFGS and Nelder-Mead of TensorFlow Probability on the Rosenbrock function: line searches with infinite bounds."""

import healthy
import tensorflow as tf
import tensorflow_probability as tfp

healthy.start()


def rosenbrock(x: tf.Tensor) -> tf.Tensor:
    return (1.0 - x[..., 0]) ** 2 + 100.0 * (x[..., 1] - x[..., 0] ** 2) ** 2


@tf.function
def minimize() -> tuple[tf.Tensor, tf.Tensor]:
    start = tf.constant([-1.2, 1.0], tf.float64)
    newton = tfp.optimizer.lbfgs_minimize(
        lambda x: tfp.math.value_and_gradient(rosenbrock, x), initial_position=start, max_iterations=30
    )
    simplex = tfp.optimizer.nelder_mead_minimize(rosenbrock, initial_vertex=start, max_iterations=40)
    return newton.position, simplex.position


newton, simplex = minimize()
healthy.report(newton=newton, simplex=simplex)
