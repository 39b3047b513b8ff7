"""Makes XLA compile programs that do not request compilation."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import keras
import tensorflow as tf


@contextlib.contextmanager
def compiled() -> Iterator[list[object]]:
    """Makes XLA compile every Keras model, and every tf.function that Keras does not define.

    Yields:
        A list of the models and functions that have requested XLA so far.
    """
    asked: list[object] = []
    function, compile_model = tf.function, keras.Model.compile

    def compiled_function(*args: Any, **kwargs: Any) -> Any:
        if sys._getframe(1).f_globals["__name__"].startswith("keras."):
            return function(*args, **kwargs)
        asked.append(args)
        return function(*args, **{"jit_compile": True, **kwargs})

    def compile_with_xla(model: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(model)
        if not kwargs.get("run_eagerly"):
            kwargs["jit_compile"] = True
        return compile_model(model, *args, **kwargs)

    with (
        mock.patch.object(tf, "function", compiled_function),
        mock.patch.object(keras.Model, "compile", compile_with_xla),
    ):
        yield asked
