"""The compiled core `_core`, and `reference`, a readable NumPy implementation of its health kernels."""
