"""Gaussian process regression with GPflow, fitted by SciPy's L-BFGS."""

import gpflow
import healthy
import numpy as np

data = healthy.start()
inputs = data.uniform(0, 1, (30, 1))
outputs = np.sin(8 * inputs) + 0.1 * data.normal(size=(30, 1))
model = gpflow.models.GPR((inputs, outputs), kernel=gpflow.kernels.Matern52())
gpflow.optimizers.Scipy().minimize(model.training_loss, model.trainable_variables, options={"maxiter": 10})
mean, variance = model.predict_f(np.linspace(0, 1, 5)[:, None])
healthy.report(likelihood=model.log_marginal_likelihood(), mean=mean, variance=variance)
