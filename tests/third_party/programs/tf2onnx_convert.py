"""A trained function that tf2onnx converts to ONNX during the recording, and that runs again afterwards."""

import healthy
import tensorflow as tf
import tf2onnx

data = healthy.start()
weights = tf.Variable(data.normal(size=(4, 3)).astype("float32"))
features = tf.constant(data.normal(size=(8, 4)), tf.float32)


@tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32)])
def predict(features: tf.Tensor) -> tf.Tensor:
    return tf.nn.softmax(tf.nn.relu(features @ weights))


for _ in range(3):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits([0, 1, 2, 0, 1, 2, 0, 1], features @ weights)
        )
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
converted, _ = tf2onnx.convert.from_function(predict, input_signature=predict.input_signature, opset=17)
healthy.report(loss=loss, predicted=predict(features), nodes=len(converted.graph.node))
