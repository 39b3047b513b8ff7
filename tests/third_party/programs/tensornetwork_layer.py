"""A layer whose weights are a tensor network, contracted by TensorNetwork inside a tf.function and trained."""

import healthy
import tensorflow as tf
import tensornetwork as tn

data = healthy.start()
tn.set_default_backend("tensorflow")
left = tf.Variable(data.normal(0, 0.3, (4, 4, 2)).astype("float32"))
right = tf.Variable(data.normal(0, 0.3, (4, 4, 2)).astype("float32"))
features = tf.constant(data.normal(size=(12, 4, 4)), tf.float32)
targets = tf.reduce_sum(features, [1, 2])[:, tf.newaxis, tf.newaxis] * tf.ones((1, 4, 4))


def contract(sample: tf.Tensor) -> tf.Tensor:
    a, b, x = tn.Node(left), tn.Node(right), tn.Node(sample)
    a[1] ^ x[0]
    b[1] ^ x[1]
    a[2] ^ b[2]
    return tn.contractors.greedy([a, b, x], output_edge_order=[a[0], b[0]]).tensor


@tf.function
def train() -> tf.Tensor:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.vectorized_map(contract, features) - targets) ** 2)
    for variable, gradient in zip((left, right), tape.gradient(loss, [left, right]), strict=True):
        variable.assign_sub(0.01 * gradient)
    return loss


losses = [float(train()) for _ in range(5)]
healthy.report(loss=losses)
