"""Marks code that is not recorded: our own ops, and graphs that XLA or another process will run."""

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
"""Used as the reason of graphs that XLA compiles and that are recorded inside XLA."""


class _Thread(threading.local):
    is_unobserved = False
    reason_unobserved: str | None = None


this_thread = _Thread()
"""The state of the calling thread: whether it is within unobserved(), and why its graphs cannot be recorded."""


def is_unobserved() -> bool:
    """Returns True if the calling thread is within unobserved()."""
    return this_thread.is_unobserved


@contextmanager
def unobserved() -> Iterator[None]:
    """Hides ops and functions that we run or create within it from op callbacks and gradient tapes."""
    thread_data = eager_context.context()._thread_local_data
    callbacks = thread_data.op_callbacks
    was_unobserved, this_thread.is_unobserved = this_thread.is_unobserved, True
    # Do not change the list itself: remove() may remove our callback from it meanwhile.
    thread_data.op_callbacks = []
    try:
        with tape_record.stop_recording():
            yield
    finally:
        thread_data.op_callbacks = callbacks
        this_thread.is_unobserved = was_unobserved


@contextmanager
def traced_for(reason: str | None) -> Iterator[None]:
    """Excludes all graphs from recording within it; `reason` is a `not_recorded_reason`, or None to exclude nothing."""
    was, this_thread.reason_unobserved = this_thread.reason_unobserved, reason
    try:
        yield
    finally:
        this_thread.reason_unobserved = was


unobserved_graphs: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""The `not_recorded_reason` of graphs that must not be recorded; it also applies to graphs traced in them."""


def reason_unobserved(graph: Any) -> str | None:
    """Returns why a graph must not be recorded; None if it may be recorded."""
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
