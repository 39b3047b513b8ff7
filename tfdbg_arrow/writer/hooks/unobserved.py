"""Marks code that is not recorded: our own ops, and graphs that XLA or another process will run.

| hook | purpose |
|---|---|
| `Context.set_server_def` | notes the connection to other processes, which have no kernels for our ops; permanent |
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import record as tape_record
from tensorflow.python.framework import function as framework_function

INSIDE = "inside"
"""The value that replaces a reason for graphs that XLA compiles and whose tensors are recorded inside XLA."""


_local_task = ""
"""Address of this process in its cluster, such as `/job:chief/replica:0/task:0`; empty if it is not connected."""


def is_connected() -> bool:
    """Returns True if this process is connected to other processes, whose devices it can use."""
    return bool(_local_task)


def is_remote(device: str) -> bool:
    """Returns True if the device with this name belongs to another process of the cluster."""
    return bool(_local_task) and _is_elsewhere(device, _local_task)


@functools.lru_cache(maxsize=4096)
def _is_elsewhere(device: str, local_task: str) -> bool:
    spec, local = tf.DeviceSpec.from_string(device), tf.DeviceSpec.from_string(local_task)
    if spec.job in (None, "localhost"):
        return False
    return spec.job != local.job or spec.task not in (None, local.task)


def local_task() -> str:
    """Returns the address of this process in the cluster that it is connected to; empty if there is no cluster."""
    return _local_task


def is_defun(graph: Any, function_name: str) -> bool:
    """Returns True if a function that a graph calls was made with Defun. Such functions are not recorded.

    A hook could describe such a function, but recording its ops would change numbers. TensorFlow does not lower a While
    op that calls such functions. The kernel of that op runs the functions without Grappler and without a frame. So our
    optimizer would not be called, and a record would have no iteration. If the op were marked to be lowered, Grappler
    would rewrite the ops in the loop, for example log(1 + x) as log1p(x). Otherwise, Grappler does not rewrite these
    ops.
    """
    return isinstance(graph._functions.get(function_name), framework_function._DefinedFunction)


_on_connected: list[Callable[[], None]] = []


def tell_when_connected(tell: Callable[[], None]) -> None:
    """Adds a callback for the connection to other processes; calls it at once if there is a connection already."""
    _on_connected.append(tell)
    if _local_task:
        tell()


def tell_no_more(tell: Callable[[], None]) -> None:
    """Removes a callback of tell_when_connected()."""
    if tell in _on_connected:
        _on_connected.remove(tell)


@functools.cache
def follow_connections() -> None:
    """Installs the hook that notices when this process is connected to other processes."""
    original = eager_context.Context.set_server_def

    def set_server_def(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(ctx, *args, **kwargs)
        _find_local_task()
        for tell in _on_connected:
            tell()
        return result

    eager_context.Context.set_server_def = set_server_def
    _find_local_task()


def _find_local_task() -> None:
    global _local_task
    context = eager_context.context()
    if getattr(context, "_server_def", None) is not None:
        _local_task = context.host_address_space()


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
    """Hides ops and functions that we run or create in the `with` block from op callbacks and gradient tapes."""
    thread_data = eager_context.context()._thread_local_data
    callbacks = thread_data.op_callbacks
    was_unobserved = this_thread.is_unobserved
    try:
        this_thread.is_unobserved = True
        # Do not change the list itself: remove() may remove our callback from it meanwhile.
        thread_data.op_callbacks = []
        with tape_record.stop_recording():
            yield
    finally:
        thread_data.op_callbacks = callbacks
        this_thread.is_unobserved = was_unobserved


@contextmanager
def traced_for(reason: str | None) -> Iterator[None]:
    """Excludes all graphs in the `with` block from recording; `reason` is a `not_recorded_reason`, or None."""
    was = this_thread.reason_unobserved
    try:
        this_thread.reason_unobserved = reason
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
