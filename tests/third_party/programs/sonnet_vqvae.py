"""Modules of Sonnet: a convolutional encoder with vector quantisation and batch normalisation, and Sonnet's Adam."""

import healthy
import sonnet as snt
import tensorflow as tf

data = healthy.start()
encoder = snt.Sequential([snt.Conv2D(8, 3, stride=2), tf.nn.relu, snt.Conv2D(4, 1)])
norm = snt.BatchNorm(create_scale=True, create_offset=True)
quantizer = snt.nets.VectorQuantizerEMA(embedding_dim=4, num_embeddings=8, commitment_cost=0.25, decay=0.9)
decoder = snt.Conv2DTranspose(1, 3, stride=2)
optimizer = snt.optimizers.Adam(1e-3)
images = tf.constant(data.uniform(0, 1, (8, 8, 8, 1)), tf.float32)


@tf.function
def train() -> tf.Tensor:
    with tf.GradientTape() as tape:
        quantized = quantizer(norm(encoder(images), is_training=True), is_training=True)
        error = tf.reduce_mean((decoder(quantized["quantize"]) - images) ** 2)
        loss = error + quantized["loss"]
    variables = encoder.trainable_variables + norm.trainable_variables + decoder.trainable_variables
    optimizer.apply(tape.gradient(loss, variables), variables)
    return loss


losses = [float(train()) for _ in range(6)]
healthy.report(loss=losses)
