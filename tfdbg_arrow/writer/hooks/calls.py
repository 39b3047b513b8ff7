"""Calls of functions from eager code.

| hook | why |
|---|---|
| `Context.call_function` | a function call begins: noted before anything in it runs |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as eager_context

from tfdbg_arrow.writer.graphs.plain_functions import SUFFIX as PLAIN_SUFFIX
from tfdbg_arrow.writer.hooks.cluster import is_remote
from tfdbg_arrow.writer.hooks.distribution import clean_copy
from tfdbg_arrow.writer.hooks.observation import Observation
from tfdbg_arrow.writer.hooks.patches import Patches
from tfdbg_arrow.writer.hooks.stop_errors import stop_error
from tfdbg_arrow.writer.hooks.unobserved import this_thread


def hook_calls(observation: Observation, patches: Patches) -> None:
    """From here on calls are recorded."""
    observer = observation.observer

    def make_call_function(original: Any) -> Any:
        def call_function(ctx: Any, name: bytes, tensor_inputs: Sequence[Any], num_outputs: int) -> Any:
            if not observation.is_active or this_thread.is_unobserved:
                return original(ctx, name, tensor_inputs, num_outputs)
            observation.observe_thread()
            if is_remote(ctx.device_name or ""):
                text = clean_copy(ctx, name.decode() if isinstance(name, bytes) else name)
                observer.note_remote(text, ctx.device_name)
                name = text.encode()
            to_run = observer.function_to_run(name)
            if to_run != name:
                with _named_as_called():
                    return original(ctx, to_run, tensor_inputs, num_outputs)
            execution_index = observer.begin_call(name, tensor_inputs, num_outputs)
            outputs, error_type = None, None
            try:
                outputs = original(ctx, name, tensor_inputs, num_outputs)
                return outputs
            except BaseException as failure:
                message = failure.message if isinstance(failure, tf.errors.OpError) else None
                error = None if message is None else stop_error(observation, message)
                error_type = type(failure if error is None else error).__name__
                if error is None:
                    raise
                raise error from None
            finally:
                observer.end_call(execution_index, outputs, error_type)

        return call_function

    patches.put(eager_context.Context, "call_function", make_call_function)


@contextmanager
def _named_as_called() -> Iterator[None]:
    """Names in TensorFlow's errors the functions that the program called, by which it finds the user's lines."""
    try:
        yield
    except tf.errors.OpError as error:
        error._message = error._message.replace(PLAIN_SUFFIX, "")
        raise
