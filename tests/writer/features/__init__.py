"""One small program for each of TensorFlow's features that recording must not disturb."""

from . import functions, gradients, graph_mode, models, sequences, tensors
from .registry import FEATURES

__all__ = ["FEATURES", "functions", "gradients", "graph_mode", "models", "sequences", "tensors"]
