"""A small GPT-2 of keras-hub: causal and padding masks, trained by fit, then text generation with top-p sampling."""

import healthy
import keras
import keras_hub
import numpy as np

data = healthy.start()
backbone = keras_hub.models.GPT2Backbone(
    vocabulary_size=50, num_layers=2, num_heads=2, hidden_dim=16, intermediate_dim=32, max_sequence_length=12
)
model = keras_hub.models.GPT2CausalLM(backbone, preprocessor=None)
tokens = data.integers(1, 50, (16, 13))
mask = np.arange(12)[None, :] < data.integers(4, 13, 16)[:, None]
model.compile(
    optimizer=keras.optimizers.AdamW(1e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    sampler=keras_hub.samplers.TopPSampler(p=0.8, k=10, seed=3),
)
history = model.fit(
    {"token_ids": tokens[:, :12], "padding_mask": mask.astype("int32")},
    tokens[:, 1:],
    sample_weight=mask.astype("float32"),
    batch_size=8,
    epochs=2,
    verbose=0,
)
prompt = {"token_ids": tokens[:2, :12], "padding_mask": (np.arange(12)[None, :] < 5).repeat(2, 0).astype("int32")}
generated = model.generate(prompt, stop_token_ids=None)
healthy.report(loss=history.history["loss"], tokens=generated["token_ids"])
