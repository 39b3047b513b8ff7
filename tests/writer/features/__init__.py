"""One small program for each feature of TensorFlow that a recording must not disturb."""

from . import functions, gradients, graph_mode, models, sequences, tensors
from .registry import FEATURES

__all__ = ["FEATURES", "functions", "gradients", "graph_mode", "models", "sequences", "tensors"]
