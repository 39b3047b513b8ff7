"""Common to all programs here: fixed seeds before, and every bit of the results printed after.

The graph optimizer's passes that fuse and reorder ops are off, because README.md promises equal bits only without them.
"""

import random

import numpy as np
import rich.style  # noqa: F401 - draws from `random` when it is imported, which some libraries do late
import tensorflow as tf


def start(seed: int = 0) -> np.random.Generator:
    """Make the run repeatable, and return a generator for the data."""
    random.seed(seed)
    np.random.seed(seed)
    tf.random.set_seed(seed)
    tf.config.optimizer.set_experimental_options(
        {
            "remapping": False,
            "layout_optimizer": False,
            "pin_to_host_optimization": False,
            "constant_folding": False,
            "arithmetic_optimization": False,
        }
    )
    return np.random.default_rng(seed)


def report(**numbers: object) -> None:
    """Print each result, an array as its sum, in hexadecimal: two runs agree in every bit or differ here."""
    for name, number in numbers.items():
        values = np.asarray(number, dtype=np.float64)
        assert np.isfinite(values).all(), f"{name} is not finite: {values}"
        print("result", name, float(values.sum()).hex(), f"({values.sum():.6g})")
