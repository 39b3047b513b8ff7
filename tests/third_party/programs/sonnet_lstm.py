"""Sonnet's LSTM over a sequence of varying length, unrolled by TensorFlow's loop, with layer normalisation."""

import healthy
import sonnet as snt
import tensorflow as tf

data = healthy.start()
core = snt.LSTM(8)
head = snt.Sequential([snt.LayerNorm(-1, True, True), snt.Linear(1)])
optimizer = snt.optimizers.RMSProp(0.01)
sequence = tf.constant(data.normal(size=(7, 6, 3)), tf.float32)
lengths = tf.constant(data.integers(2, 8, 6), tf.int32)
target = tf.reduce_sum(sequence[..., :1], axis=0)


@tf.function
def train() -> tf.Tensor:
    with tf.GradientTape() as tape:
        outputs, _ = snt.dynamic_unroll(core, sequence, core.initial_state(6), sequence_length=lengths)
        loss = tf.reduce_mean((head(outputs[-1]) - target) ** 2)
    variables = core.trainable_variables + head.trainable_variables
    gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, variables), 1.0)
    optimizer.apply(gradients, variables)
    return loss


losses = [float(train()) for _ in range(5)]
healthy.report(loss=losses)
