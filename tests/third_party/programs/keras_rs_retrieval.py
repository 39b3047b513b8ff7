"""Layers of Keras Recommenders: feature crosses, a brute-force retrieval, and ranking losses in fit."""

import healthy
import keras
import keras_rs

data = healthy.start()
inputs = keras.Input((6,))
crossed = keras_rs.layers.FeatureCross(projection_dim=3)(inputs, keras_rs.layers.FeatureCross(projection_dim=3)(inputs))
model = keras.Model(inputs, keras.layers.Dense(5)(crossed))
model.compile("adam", keras_rs.losses.ListMLELoss(), metrics=[keras_rs.metrics.NDCG(k=3)])
features = data.normal(size=(32, 6)).astype("float32")
relevance = data.integers(0, 3, (32, 5)).astype("float32")
history = model.fit(features, relevance, batch_size=8, epochs=2, verbose=0)
candidates = data.normal(size=(20, 6)).astype("float32")
scores, _ = keras_rs.layers.BruteForceRetrieval(candidates, k=3)(features[:4])
healthy.report(loss=history.history["loss"], scores=scores)
