"""Finds which devices of a cluster belong to other processes, where our ops have no kernels.

| hook | purpose |
|---|---|
| `Context.set_server_def` | notes that the process is connected to others; permanent |
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as eager_context

_local_task = ""
"""Address of this process in its cluster, such as `/job:chief/replica:0/task:0`; empty if it is not connected."""


def is_connected() -> bool:
    """Returns True if this process is connected to others, whose devices it can use."""
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
    """Returns the address of this process in the cluster that it is connected to; empty if there is none."""
    return _local_task


_on_connected: list[Callable[[], None]] = []
_is_followed = False


def tell_when_connected(tell: Callable[[], None]) -> None:
    """Adds a callback for when this process is connected to others; calls it at once if the process already is."""
    _on_connected.append(tell)
    if _local_task:
        tell()


def tell_no_more(tell: Callable[[], None]) -> None:
    """Removes a callback of tell_when_connected()."""
    if tell in _on_connected:
        _on_connected.remove(tell)


def follow_connections() -> None:
    """Installs the hook that notices when this process is connected to others."""
    global _is_followed
    if _is_followed:
        return
    _is_followed = True
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
