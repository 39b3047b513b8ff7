"""A two-tower retrieval model of TensorFlow Recommenders: in-batch softmax without accidental hits, top-k metrics."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import healthy
import tensorflow as tf
import tensorflow_recommenders as tfrs
import tf_keras

data = healthy.start()
users = data.integers(0, 20, 64)
films = (users * 3 + data.integers(0, 3, 64)) % 30


class TwoTowers(tfrs.Model):
    def __init__(self) -> None:
        super().__init__()
        self.user = tf_keras.layers.Embedding(20, 8)
        self.film = tf_keras.layers.Embedding(30, 8)
        candidates = tf.data.Dataset.range(30).batch(10).map(lambda films: (films, self.film(films)))
        self.task = tfrs.tasks.Retrieval(
            metrics=tfrs.metrics.FactorizedTopK(candidates, ks=(1, 5)), remove_accidental_hits=True
        )

    def compute_loss(self, inputs: dict[str, tf.Tensor], training: bool = False) -> tf.Tensor:
        return self.task(
            self.user(inputs["user"]),
            self.film(inputs["film"]),
            candidate_ids=inputs["film"],
            compute_metrics=not training,
        )


model = TwoTowers()
model.compile(tf_keras.optimizers.Adagrad(0.1))
dataset = tf.data.Dataset.from_tensor_slices({"user": users, "film": films}).batch(16)
history = model.fit(dataset, epochs=2, verbose=0)
measured = model.evaluate(dataset, return_dict=True, verbose=0)
index = tfrs.layers.factorized_top_k.BruteForce(model.user, k=3)
index.index_from_dataset(tf.data.Dataset.range(30).batch(10).map(model.film))
scores, _ = index(tf.constant([1, 2]))
healthy.report(loss=history.history["loss"], total=measured["total_loss"], scores=scores)
