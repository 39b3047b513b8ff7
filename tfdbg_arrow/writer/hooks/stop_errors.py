"""Replaces TensorFlow's error for a step that we stopped by our error.

| hook | purpose |
|---|---|
| `core._status_to_exception` | errors of eager ops and calls |
| `BaseSession._do_call` | errors of session runs |
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.client import session as client_session
from tensorflow.python.eager import core as eager_core

from tfdbg_arrow.writer.hooks.observation import Observation
from tfdbg_arrow.writer.hooks.patches import Patches


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
            except tf.errors.OpError as failure:
                error = stop_error(observation, failure.message)
                if error is None:
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
