"""Records calls of functions from eager code, and failures of calls, eager ops and runs of sessions.

| hook | purpose |
|---|---|
| `Context.call_function` | notes that a function call begins, before anything in it runs |
| `execute.execute_with_callbacks` | notes the failure of an op that Python executes; no op callback is called for it |
| `ops.raise_from_not_ok_status` | notes the failure of an op that TensorFlow's core executes for `gen_*_ops` |
| `core._status_to_exception`, `BaseSession._do_call` | replace TensorFlow's error by ours for a step that we stopped |
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import tensorflow as tf
from tensorflow.python.client import session as client_session
from tensorflow.python.eager import cancellation, execute
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import core as eager_core
from tensorflow.python.framework import ops as framework_ops

from tfdbg_arrow.writer.graphs.compiled import SUFFIX as INSIDE_SUFFIX
from tfdbg_arrow.writer.graphs.compiled import is_around_compiled
from tfdbg_arrow.writer.graphs.function_edit import SUFFIX as PLAIN_SUFFIX
from tfdbg_arrow.writer.graphs.node_defs import OWN_NAME_PREFIX
from tfdbg_arrow.writer.hooks.exports import clean_copy
from tfdbg_arrow.writer.hooks.observation import Observation
from tfdbg_arrow.writer.hooks.patches import Patches
from tfdbg_arrow.writer.hooks.unobserved import is_remote, this_thread
from tfdbg_arrow.writer.own_frames import leave_out_own_frames, own_frames_left_out

_SUFFIXES = re.compile(f"{PLAIN_SUFFIX}|{INSIDE_SUFFIX}(_around|_rows|_[0-9]+)?")
_REFUSALS = (tf.errors.InternalError, tf.errors.InvalidArgumentError, tf.errors.UnimplementedError)
"""The errors that TensorFlow raises for a function that XLA cannot compile."""
_OP_TYPE = re.compile(r"\[Op:(\w+)\]")
"""The op in the error messages of TensorFlow's core."""


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
                with own_frames_left_out, _named_as_called():
                    return original(ctx, to_run, tensor_inputs, num_outputs)
            copy = observer.copy_to_record(name)
            execution_index = observer.begin_call(name, copy, tensor_inputs, num_outputs)
            outputs, error_type = None, None
            try:
                if copy == name and observer.is_untried(name) and not ctx.is_async():
                    outputs = _try_to_optimize(observation, original, ctx, name, tensor_inputs, num_outputs)
                if outputs is None:
                    with _call_options(observation, ctx, name):
                        outputs = _call_recorded(observation, original, ctx, (name, copy), tensor_inputs, num_outputs)
                return outputs
            except BaseException as failure:
                message = failure.message if isinstance(failure, tf.errors.OpError) else None
                error = None if message is None else stop_error(observation, message)
                error_type = type(failure if error is None else error).__name__
                if error is None:
                    leave_out_own_frames(failure)
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
    """Calls the copy of a function, which records the part that XLA compiles; `names` are the function and the copy."""
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


def _try_to_optimize(
    observation: Observation, original: Any, ctx: Any, name: bytes, tensor_inputs: Sequence[Any], num_outputs: int
) -> Any:
    """Makes TensorFlow optimize a function without running it, to find out whether TensorFlow breaks the function.

    The call is cancelled before it begins. So TensorFlow optimizes the function and does not start it.

    Returns:
        The outputs of the function if TensorFlow ran it despite the cancellation, because it must not run a second
        time. Otherwise None.
    """
    cancellation_manager = cancellation.CancellationManager()
    cancellation_manager.start_cancel()
    cancelled = cancellation.CancellationManagerContext(cancellation_manager)
    # An error other than the cancellation occurs again when the function is called.
    with (
        observation.observer.trying(name),
        suppress(tf.errors.OpError),
        _call_options(observation, ctx, name),
        cancelled,
    ):
        return original(ctx, name, tensor_inputs, num_outputs)
    return None


@contextmanager
def _call_options(observation: Observation, ctx: Any, name: bytes) -> Iterator[None]:
    """Makes TensorFlow call our graph optimizer for a function, even if the program switched optimizers off."""
    options = ctx.function_call_options
    wanted = observation.observer.call_options(name, options)
    if wanted is None:
        yield
        return
    try:
        ctx.function_call_options = wanted
        yield
    finally:
        ctx.function_call_options = options


@contextmanager
def _named_as_called() -> Iterator[None]:
    """Replaces the names of copies in TensorFlow's errors, because TensorFlow finds the user's lines by these names."""
    try:
        yield
    except tf.errors.OpError as error:
        error._message = _SUFFIXES.sub("", error._message)
        raise


def hook_failed_ops(observation: Observation, patches: Patches) -> None:
    """Installs the hooks that record eager ops that raise an error."""
    observer = observation.observer

    def is_observed(callbacks: list[Any]) -> bool:
        return observation.is_active and observer.op_callback in callbacks

    def make_execute_with_callbacks(original: Any) -> Any:
        def execute_with_callbacks(
            op_name: Any, num_outputs: int, inputs: Any, attrs: Any, ctx: Any, name: Any = None
        ) -> Any:
            callbacks = ctx.op_callbacks
            if not is_observed(callbacks):
                return original(op_name, num_outputs, inputs, attrs, ctx, name)
            try:
                tensors = execute.quick_execute(op_name, num_outputs, inputs, attrs, ctx, name)
            except BaseException as error:
                observer.note_failed_op(op_name, inputs, type(error).__name__)
                leave_out_own_frames(error)
                raise
            with own_frames_left_out:
                for callback in callbacks:
                    callback(op_name, tuple(inputs), attrs, tensors, name)
            return tensors

        return execute_with_callbacks

    def make_raise_from_not_ok_status(original: Any) -> Any:
        def raise_from_not_ok_status(status: Any, name: Any) -> None:
            op_type = _OP_TYPE.search(status.message)
            try:
                original(status, name)
            except BaseException as error:
                if op_type is not None and is_observed(eager_context.context().op_callbacks):
                    observer.note_failed_op(op_type[1], _arguments(sys._getframe(1)), type(error).__name__)
                leave_out_own_frames(error)
                raise

        return raise_from_not_ok_status

    patches.put(execute, "execute_with_callbacks", make_execute_with_callbacks)
    patches.put(framework_ops, "raise_from_not_ok_status", make_raise_from_not_ok_status)


def _arguments(frame: FrameType) -> list[Any]:
    """Returns the eager tensors among the arguments of a running function, in order."""
    tensors: list[Any] = []
    for name in frame.f_code.co_varnames[: frame.f_code.co_argcount]:
        value = frame.f_locals.get(name)
        values = value if isinstance(value, (list, tuple)) else [value]
        tensors += [element for element in values if type(element) is framework_ops.EagerTensor]
    return tensors


def stop_error(observation: Observation, text: str) -> Exception | None:
    """Returns our error for the message of a TensorFlow error; None if the error is not ours."""
    stop = observation.observer.stop
    return stop.error_in(text) if observation.is_active and stop is not None else None


def hook_errors(observation: Observation, patches: Patches) -> None:
    """Installs the hooks that raise our error for a step that we stopped."""

    def make_status_to_exception(original: Any) -> Any:
        def status_to_exception(status: Any) -> Any:
            error = stop_error(observation, status.message)
            return original(status) if error is None else error

        return status_to_exception

    def make_do_call(original: Any) -> Any:
        def do_call(session: Any, function: Any, *args: Any) -> Any:
            try:
                return original(session, function, *args)
            except BaseException as failure:
                error = stop_error(observation, failure.message) if isinstance(failure, tf.errors.OpError) else None
                if error is None:
                    leave_out_own_frames(failure)
                    raise
                raise error from None

        return do_call

    patches.put(eager_core, "_status_to_exception", make_status_to_exception)
    patches.put(client_session.BaseSession, "_do_call", make_do_call)


def let_pass(error: Exception) -> Exception:
    """Marks an error so that autograph and Keras pass it on unchanged, and returns it."""
    error.ag_pass_through = True  # type: ignore[attr-defined]
    error._keras_call_info_injected = True  # type: ignore[attr-defined]
    return error
