"""Helpers for all programs here.

The helpers fix the seeds before a run, and print every bit of the results after the run.

The passes of the graph optimizer that fuse and reorder ops are off, so that each op runs as the program contains it.
"""

import random

import numpy as np
import rich.style  # noqa: F401 - draws from `random` on import, which some libraries trigger late
import tensorflow as tf


def start(seed: int = 0) -> np.random.Generator:
    """Makes the run repeatable and returns a generator for the data."""
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
    """Prints each result (an array as its sum) in hexadecimal. Two runs print equal lines only if all bits agree."""
    for name, number in numbers.items():
        values = np.asarray(number, dtype=np.float64)
        assert np.isfinite(values).all(), f"{name} is not finite: {values}"
        print("result", name, float(values.sum()).hex(), f"({values.sum():.6g})")
