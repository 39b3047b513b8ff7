"""Masked LSTM and GRU layers of tf-keras, attention, and a loss with class weights."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import healthy
import numpy as np
import tf_keras

data = healthy.start()
layers = tf_keras.layers
tokens = tf_keras.Input((9,), dtype="int32")
embedded = layers.Embedding(30, 8, mask_zero=True)(tokens)
sequence = layers.Bidirectional(layers.LSTM(6, return_sequences=True))(embedded)
sequence = layers.Attention()([sequence, sequence])
output = layers.Dense(1, activation="sigmoid")(layers.GRU(6)(sequence))
model = tf_keras.Model(tokens, output)
model.compile(
    tf_keras.optimizers.Nadam(0.01, clipnorm=1.0), "binary_crossentropy", metrics=[tf_keras.metrics.AUC(name="auc")]
)
lengths = data.integers(1, 10, 32)
sentences = np.where(np.arange(9)[None, :] < lengths[:, None], data.integers(1, 30, (32, 9)), 0)
labels = (lengths > 4).astype("float32")
history = model.fit(sentences, labels, batch_size=16, epochs=2, verbose=0, class_weight={0: 2.0, 1: 1.0})
healthy.report(loss=history.history["loss"], auc=history.history["auc"])
