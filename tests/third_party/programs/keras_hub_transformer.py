"""Layers of keras-hub: an encoder and a decoder with padding and causal masks in a custom training loop."""

import healthy
import keras
import keras_hub
import numpy as np
import tensorflow as tf

data = healthy.start()
source = keras.Input((9,), dtype="int32")
target = keras.Input((7,), dtype="int32")
embedding = keras_hub.layers.TokenAndPositionEmbedding(40, 9, 16, mask_zero=True)
encoded = keras_hub.layers.TransformerEncoder(32, 2)(embedding(source))
target_embedding = keras_hub.layers.TokenAndPositionEmbedding(40, 7, 16, mask_zero=True)
decoded = keras_hub.layers.TransformerDecoder(32, 2)(target_embedding(target), encoded)
model = keras.Model([source, target], keras.layers.Dense(40)(decoded))
optimizer = keras.optimizers.Adam(1e-3)
lengths = data.integers(2, 10, 8)
sources = np.where(np.arange(9)[None, :] < lengths[:, None], data.integers(1, 40, (8, 9)), 0)
targets = np.where(np.arange(8)[None, :] < lengths[:, None], data.integers(1, 40, (8, 8)), 0)


@tf.function
def train(sources: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        logits = model([sources, targets[:, :-1]], training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets[:, 1:], logits=logits)
        weights = tf.cast(targets[:, 1:] != 0, losses.dtype)
        loss = tf.reduce_sum(losses * weights) / tf.reduce_sum(weights)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


losses = [float(train(tf.constant(sources), tf.constant(targets))) for _ in range(5)]
healthy.report(loss=losses)
