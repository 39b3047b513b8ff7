"""Records calls of functions from eager code.

| hook | purpose |
|---|---|
| `Context.call_function` | notes that a function call begins, before anything in it runs |
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as eager_context

from tfdbg_arrow.writer.graphs.compiled import SUFFIX as INSIDE_SUFFIX
from tfdbg_arrow.writer.graphs.compiled import is_around_compiled
from tfdbg_arrow.writer.graphs.own_ops import OWN_NAME_PREFIX
from tfdbg_arrow.writer.graphs.plain_functions import SUFFIX as PLAIN_SUFFIX
from tfdbg_arrow.writer.hooks.cluster import is_remote
from tfdbg_arrow.writer.hooks.distribution import clean_copy
from tfdbg_arrow.writer.hooks.observation import Observation
from tfdbg_arrow.writer.hooks.patches import Patches
from tfdbg_arrow.writer.hooks.stop_errors import stop_error
from tfdbg_arrow.writer.hooks.unobserved import this_thread

_SUFFIXES = re.compile(f"{PLAIN_SUFFIX}|{INSIDE_SUFFIX}(_around|_rows|_[0-9]+)?")


def hook_calls(observation: Observation, patches: Patches) -> None:
    """Installs the hook that records calls."""
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
            copy = observer.copy_to_record(name)
            execution_index = observer.begin_call(name, copy, tensor_inputs, num_outputs)
            outputs, error_type = None, None
            try:
                with _call_options(observation, ctx, name):
                    outputs = _call_recorded(observation, original, ctx, (name, copy), tensor_inputs, num_outputs)
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


def _call_recorded(
    observation: Observation,
    original: Any,
    ctx: Any,
    names: tuple[bytes, bytes],
    tensor_inputs: Sequence[Any],
    num_outputs: int,
) -> Any:
    """Calls the copy of a function that records the part that XLA compiles; `names` are the function and the copy."""
    name, copy = names
    if copy == name:
        return original(ctx, name, tensor_inputs, num_outputs)
    try:
        with _named_as_called():
            return original(ctx, copy, tensor_inputs, num_outputs)
    except _REFUSALS as failure:
        if not is_around_compiled(copy) or stop_error(observation, failure.message) is not None:
            if OWN_NAME_PREFIX in failure.message:
                observation.observer.note_refused(name, failure)  # later calls run the function itself
            raise
        # XLA compiles the whole function before it runs any part of it, so the function can be called again.
        outputs = original(ctx, name, tensor_inputs, num_outputs)
        observation.observer.note_refused(name, failure)
        return outputs


@contextmanager
def _call_options(observation: Observation, ctx: Any, name: bytes) -> Iterator[None]:
    """Makes TensorFlow call our graph optimizer for a function, even if the program switched optimizers off."""
    options = ctx.function_call_options
    wanted = observation.observer.call_options(name, options)
    if wanted is None:
        yield
        return
    ctx.function_call_options = wanted
    try:
        yield
    finally:
        ctx.function_call_options = options


_REFUSALS = (tf.errors.InternalError, tf.errors.InvalidArgumentError, tf.errors.UnimplementedError)
"""The errors that TensorFlow raises for a function that XLA cannot compile."""


@contextmanager
def _named_as_called() -> Iterator[None]:
    """Replaces the names of copies in TensorFlow's errors, because TensorFlow finds the user's lines by these names."""
    try:
        yield
    except tf.errors.OpError as error:
        error._message = _SUFFIXES.sub("", error._message)
        raise
