"""A small program, and readers of its recording."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from .tables import rows

X = np.array([1.0, -1.0], np.float32)


def stats(logdir: Path) -> list[tuple[str, str]]:
    return [(row["stat"], row["subject"]) for row in rows(logdir, "capture_stat")]


def num_graph_rows(logdir: Path, run_id: str | None = None) -> int:
    return sum(row["scope"] == "graph" and run_id in (None, row["run_id"]) for row in rows(logdir))


def doubling() -> Any:
    """Returns a new function with a loop and a call in it."""

    @tf.function
    def relu(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(x)

    @tf.function
    def double(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(2):
            x = relu(x) * 2.0
        return x

    return double
