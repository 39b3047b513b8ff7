"""A physics-informed network of DeepXDE for Poisson's equation in one dimension: second derivatives in the loss."""

import os

os.environ["DDE_BACKEND"] = "tensorflow"

import deepxde as dde
import healthy
import keras
import numpy as np
import tensorflow as tf

healthy.start()
dde.config.set_random_seed(0)
dde.config.disable_xla_jit()
interval = dde.geometry.Interval(-1, 1)


def equation(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return -dde.grad.hessian(y, x) - np.pi**2 * tf.sin(np.pi * x)


boundary = dde.icbc.DirichletBC(interval, lambda x: np.sin(np.pi * x), lambda _, on_boundary: on_boundary)
problem = dde.data.PDE(interval, equation, boundary, 16, 2, solution=lambda x: np.sin(np.pi * x), num_test=20)
model = dde.Model(problem, dde.nn.FNN([1, 16, 16, 1], "tanh", keras.initializers.GlorotUniform(seed=1)))
model.compile("adam", lr=0.001, metrics=["l2 relative error"])
history, _ = model.train(iterations=6, display_every=2, verbose=0)
healthy.report(loss=history.loss_train[-1], error=history.metrics_test[-1])
