"""A sparse variational Gaussian process classifier of GPflow: Adam and natural gradients on minibatches."""

import gpflow
import healthy
import tensorflow as tf

data = healthy.start()
inputs = data.uniform(-1, 1, (60, 2))
labels = (inputs[:, :1] * inputs[:, 1:] > 0).astype(float)
model = gpflow.models.SVGP(
    gpflow.kernels.SquaredExponential(),
    gpflow.likelihoods.Bernoulli(),
    inducing_variable=inputs[:10].copy(),
    num_data=60,
)
gpflow.set_trainable(model.q_mu, False)
gpflow.set_trainable(model.q_sqrt, False)
batches = iter(tf.data.Dataset.from_tensor_slices((inputs, labels)).repeat().batch(20))
loss = model.training_loss_closure(batches, compile=True)
adam = tf.keras.optimizers.Adam(0.01)
natural = gpflow.optimizers.NaturalGradient(gamma=0.1)
for _ in range(5):
    with tf.GradientTape() as tape:
        value = loss()
    gradients = tape.gradient(value, model.trainable_variables)
    adam.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    natural.minimize(loss, [(model.q_mu, model.q_sqrt)])
healthy.report(elbo=model.elbo((inputs, labels)), mean=model.predict_y(inputs[:4])[0])
