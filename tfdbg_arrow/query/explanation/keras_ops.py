"""Replaces TensorFlow's functions in fixes by functions of keras.ops, for programs that do not import TensorFlow."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

_FUNCTION = re.compile(r"\btf(?:\.\w+)+")
NAMES = {
    "tf.abs": "abs",
    "tf.clip_by_value": "clip",
    "tf.cumsum": "cumsum",
    "tf.eye": "eye",
    "tf.linalg.eigh": "eigh",
    "tf.linalg.slogdet": "slogdet",
    "tf.math.angle": "angle",
    "tf.math.divide_no_nan": "divide_no_nan",
    "tf.math.is_nan": "isnan",
    "tf.math.log": "log",
    "tf.math.log1p": "log1p",
    "tf.math.log_sigmoid": "log_sigmoid",
    "tf.math.reduce_std": "std",
    "tf.math.reduce_variance": "var",
    "tf.math.unsorted_segment_max": "segment_max",
    "tf.maximum": "maximum",
    "tf.minimum": "minimum",
    "tf.nn.log_softmax": "log_softmax",
    "tf.nn.moments": "moments",
    "tf.nn.relu": "relu",
    "tf.nn.sigmoid": "sigmoid",
    "tf.nn.softmax": "softmax",
    "tf.nn.softplus": "softplus",
    "tf.norm": "norm",
    "tf.reduce_logsumexp": "logsumexp",
    "tf.reduce_sum": "sum",
    "tf.sqrt": "sqrt",
    "tf.square": "square",
    "tf.tanh": "tanh",
    "tf.where": "where",
    "tf.zeros": "zeros",
}
"""TensorFlow's functions, and the functions of keras.ops that take the same arguments in the same order."""


def in_keras_ops(text: str, ops: str) -> str:
    """Returns a text in which functions of keras.ops replace TensorFlow's functions, where keras.ops has them.

    Args:
        text: The text, such as a fix.
        ops: The program's name for keras.ops, such as `ops`.
    """
    return _FUNCTION.sub(lambda match: f"{ops}.{NAMES[match[0]]}" if match[0] in NAMES else match[0], text)


def name_of_keras_ops(module: ast.Module) -> str | None:
    """Returns a source file's name for keras.ops; None if the file does not import Keras, or imports TensorFlow."""
    imports = dict(_imports(module))
    if any(name.split(".")[0] == "tensorflow" for name in imports):
        return None
    keras = imports.get("keras")
    return imports.get("keras.ops") or (None if keras is None else f"{keras}.ops")


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields (imported module or function, name in the file) for each import of a source file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, alias.asname or alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{node.module}.{alias.name}", alias.asname or alias.name) for alias in node.names)
