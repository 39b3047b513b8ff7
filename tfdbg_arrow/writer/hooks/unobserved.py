"""What is not recorded: our own ops, and graphs that XLA or another process will run."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import record as tape_record

from tfdbg_arrow.writer.hooks.cluster import is_connected, is_remote

INSIDE = "inside"
"""The reason of graphs that XLA compiles and that are recorded inside it; no reason to leave them out."""


class _Thread(threading.local):
    is_unobserved = False
    reason_unobserved: str | None = None


this_thread = _Thread()
"""What holds for the calling thread: whether it is within unobserved(), and why its graphs cannot be recorded."""


def is_unobserved() -> bool:
    """Returns whether the calling thread is within unobserved()."""
    return this_thread.is_unobserved


@contextmanager
def unobserved() -> Iterator[None]:
    """Runs or creates ops and functions of ours: no op callback is told of them, no gradient tape keeps them."""
    thread_data = eager_context.context()._thread_local_data
    callbacks = thread_data.op_callbacks
    was_unobserved, this_thread.is_unobserved = this_thread.is_unobserved, True
    # The list itself stays as it is: remove() may take our callback out of it meanwhile.
    thread_data.op_callbacks = []
    try:
        with tape_record.stop_recording():
            yield
    finally:
        thread_data.op_callbacks = callbacks
        this_thread.is_unobserved = was_unobserved


@contextmanager
def traced_for(reason: str | None) -> Iterator[None]:
    """Within it, nothing may be recorded of any graph, for a reason as a `not_recorded_reason`; None: for no reason."""
    was, this_thread.reason_unobserved = this_thread.reason_unobserved, reason
    try:
        yield
    finally:
        this_thread.reason_unobserved = was


unobserved_graphs: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""Graphs of which nothing may be recorded, nor of those traced in them: to `not_recorded_reason`."""


def reason_unobserved(graph: Any) -> str | None:
    """Returns why nothing may be recorded of a graph, None where it may."""
    if this_thread.reason_unobserved is not None:
        return this_thread.reason_unobserved
    if is_connected() and is_remote(eager_context.context().device_name or ""):
        return "remote"
    while graph is not None:
        reason = unobserved_graphs.get(graph)
        if reason is None and is_connected() and is_remote(_device_scope(graph)):
            reason = "remote"
        if reason is not None:
            return reason
        graph = getattr(graph, "outer_graph", None)
    return None


def _device_scope(graph: Any) -> str:
    """Returns the device that the innermost tf.device() with a name asks for while a graph is traced."""
    names = (spec.raw_string for spec in graph._device_function_stack.peek_objs())
    return next((name for name in names if name), "")
