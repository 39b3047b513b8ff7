"""Graph convolutions and attention of Spektral on a random graph, in a custom training loop."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import healthy
import numpy as np
import tensorflow as tf
import tf_keras
from spektral.layers import GATConv, GCNConv, GlobalAttentionPool
from spektral.utils import gcn_filter

data = healthy.start()
edges = np.triu(data.uniform(size=(16, 16)) < 0.2, 1).astype("float32")
adjacency = edges + edges.T
features = tf.constant(data.normal(size=(16, 5)), tf.float32)
labels = tf.constant(data.integers(0, 3, 16))
filtered = tf.constant(gcn_filter(adjacency), tf.float32)
first = GCNConv(8, activation="relu")
second = GATConv(3, attn_heads=2, concat_heads=False, dropout_rate=0.0)
pool = GlobalAttentionPool(3)
optimizer = tf_keras.optimizers.Adam(0.01)


@tf.function
def train() -> tf.Tensor:
    with tf.GradientTape() as tape:
        hidden = first([features, filtered])
        logits = second([hidden, tf.constant(adjacency)])
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        loss = tf.reduce_mean(losses) + 0.01 * tf.reduce_sum(pool(logits) ** 2)
    variables = first.trainable_variables + second.trainable_variables + pool.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    return loss


losses = [float(train()) for _ in range(5)]
healthy.report(loss=losses)
