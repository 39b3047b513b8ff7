"""Handles functions that run in other processes, which have no kernels for our ops.

| hook | purpose |
|---|---|
| `Context.call_function` | calls functions without our ops on devices of other processes; permanent |
| `Closure.__init__`, `ClusterCoordinator.create_per_worker_dataset` | marks functions that are traced for others |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.eager import context as eager_context

from tfdbg_arrow.writer.graphs.node_defs import functions_of
from tfdbg_arrow.writer.hooks.cluster import follow_connections, is_remote
from tfdbg_arrow.writer.hooks.observation import Observation
from tfdbg_arrow.writer.hooks.patches import Patches
from tfdbg_arrow.writer.hooks.stripping import strip_function
from tfdbg_arrow.writer.hooks.unobserved import traced_for


def hook_work_for_others(observation: Observation, patches: Patches) -> None:
    """Installs the hooks that exclude functions that a coordinator traces for its workers."""

    def make_remote_entry(original: Any) -> Any:
        def run_for_others(*args: Any, **kwargs: Any) -> Any:
            with traced_for("remote" if observation.is_active else None):
                return original(*args, **kwargs)

        return run_for_others

    patches.put(cluster_coordinator.Closure, "__init__", make_remote_entry)
    patches.put(cluster_coordinator.ClusterCoordinator, "create_per_worker_dataset", make_remote_entry)


_remote_calls_are_kept_clean = False


def keep_remote_calls_clean() -> None:
    """Makes sure that no function with our ops runs in another process, which has no kernels for them."""
    global _remote_calls_are_kept_clean
    if _remote_calls_are_kept_clean:
        return
    _remote_calls_are_kept_clean = True
    original = eager_context.Context.call_function

    def call_function(ctx: Any, name: Any, tensor_inputs: Sequence[Any], num_outputs: int) -> Any:
        if is_remote(ctx.device_name or ""):
            name = clean_copy(ctx, name.decode() if isinstance(name, bytes) else name).encode()
        return original(ctx, name, tensor_inputs, num_outputs)

    eager_context.Context.call_function = call_function
    follow_connections()


_clean_copies: dict[str, str] = {}


def clean_copy(context: Any, name: str) -> str:
    """Returns the name of a copy of a function without our ops; the function's own name if it has none."""
    known = _clean_copies.get(name)
    if known is not None:
        return known
    original = context.get_function_def(name)
    copy = type(original)()
    copy.CopyFrom(original)
    is_changed = strip_function(copy)
    for node in copy.node_def:
        for attribute, index, callee in functions_of(node):
            clean = clean_copy(context, callee) if context.has_function(callee) else callee
            if clean != callee:
                is_changed = True
                value = node.attr[attribute]
                (value.func if value.WhichOneof("value") == "func" else value.list.func[index]).name = clean
    if is_changed:
        copy.signature.name = f"{name}_unrecorded"
        context.add_function_def(copy)
    _clean_copies[name] = copy.signature.name
    return str(copy.signature.name)
