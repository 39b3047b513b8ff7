"""A deep and cross network of TensorFlow Recommenders with a listwise ranking task."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import healthy
import tensorflow as tf
import tensorflow_recommenders as tfrs
import tf_keras

data = healthy.start()


class Ranker(tfrs.Model):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = tf_keras.layers.Embedding(25, 6)
        self.cross = tfrs.layers.dcn.Cross(projection_dim=3)
        self.head = tf_keras.Sequential([tf_keras.layers.Dense(8, activation="relu"), tf_keras.layers.Dense(1)])
        self.task = tfrs.tasks.Ranking(
            loss=tf_keras.losses.MeanSquaredError(), metrics=[tf_keras.metrics.RootMeanSquaredError()]
        )

    def call(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        embedded = tf.concat([self.embedding(inputs["user"]), self.embedding(inputs["film"])], axis=1)
        return self.head(self.cross(embedded))

    def compute_loss(self, inputs: dict[str, tf.Tensor], training: bool = False) -> tf.Tensor:
        return self.task(labels=inputs["rating"], predictions=self(inputs))


model = Ranker()
model.compile(tf_keras.optimizers.Adam(0.01))
columns = {
    "user": data.integers(0, 25, 64),
    "film": data.integers(0, 25, 64),
    "rating": data.uniform(1, 5, (64, 1)).astype("float32"),
}
history = model.fit(tf.data.Dataset.from_tensor_slices(columns).batch(16), epochs=2, verbose=0)
healthy.report(loss=history.history["loss"], error=history.history["root_mean_squared_error"])
