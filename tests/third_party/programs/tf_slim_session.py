"""A network of TF-Slim, trained in a TensorFlow 1 session."""

import healthy
import tensorflow as tf
import tf_slim as slim

data = healthy.start()
tf1 = tf.compat.v1
images = data.normal(size=(16, 8, 8, 1)).astype("float32")
labels = data.integers(0, 3, 16)
with tf.Graph().as_default():
    tf1.set_random_seed(1)
    image = tf1.placeholder(tf.float32, (None, 8, 8, 1))
    label = tf1.placeholder(tf.int64, (None,))
    with slim.arg_scope([slim.conv2d], normalizer_fn=slim.batch_norm, weights_regularizer=slim.l2_regularizer(1e-3)):
        hidden = slim.conv2d(image, 4, 3)
    logits = slim.fully_connected(slim.dropout(slim.flatten(hidden), 0.8), 3, activation_fn=None)
    tf1.losses.sparse_softmax_cross_entropy(label, logits)
    loss = tf1.losses.get_total_loss()
    train = slim.learning.create_train_op(loss, tf1.train.AdamOptimizer(0.01), clip_gradient_norm=1.0)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        losses = [session.run(train, {image: images, label: labels}) for _ in range(4)]
healthy.report(loss=losses)
