"""A small BERT classifier of keras-hub, with padding masks, trained by fit under mixed precision."""

import healthy
import keras
import keras_hub
import numpy as np

data = healthy.start()
keras.mixed_precision.set_global_policy("mixed_bfloat16")
backbone = keras_hub.models.BertBackbone(
    vocabulary_size=60, num_layers=2, num_heads=2, hidden_dim=16, intermediate_dim=32, max_sequence_length=10
)
model = keras_hub.models.BertTextClassifier(backbone, num_classes=3, preprocessor=None)
inputs = {
    "token_ids": data.integers(1, 60, (16, 10)),
    "segment_ids": np.zeros((16, 10), "int32"),
    "padding_mask": (np.arange(10)[None, :] < data.integers(1, 11, 16)[:, None]).astype("int32"),
}
model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = model.fit(inputs, data.integers(0, 3, 16), batch_size=8, epochs=2, verbose=0)
healthy.report(loss=history.history["loss"])
