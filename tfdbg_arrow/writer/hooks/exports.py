"""Keeps our ops out of files and other processes, which may have no kernels for them.

| hook | purpose |
|---|---|
| `Graph._as_graph_def` | strips every GraphDef and its functions; permanent |
| `save._build_meta_graph_impl` | strips every SavedModel; permanent |
| `Context.add_function_def` | replaces a stripped definition by the recorded one; permanent |
| `Context.call_function` | calls functions without our ops on devices of other processes; permanent |
| `Closure.__init__`, `ClusterCoordinator.create_per_worker_dataset` | marks functions that other processes will run |
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.eager import context as eager_context
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.saved_model import save as saved_model_save
from tensorflow.python.util.compat import as_str

from tfdbg_arrow.writer.graphs.node_defs import OWN_OP_PREFIX, function_values
from tfdbg_arrow.writer.graphs.stripping import delete_from, strip_function, strip_own_nodes
from tfdbg_arrow.writer.hooks.observation import Observation
from tfdbg_arrow.writer.hooks.patches import Patches
from tfdbg_arrow.writer.hooks.unobserved import follow_connections, is_remote, traced_for
from tfdbg_arrow.writer.own_frames import own_frames_left_out


@functools.cache
def keep_exports_clean() -> None:
    """Removes our ops from every GraphDef and SavedModel that this process exports, also after the recording."""
    original_as_graph_def = framework_ops.Graph._as_graph_def
    original_add = eager_context.Context.add_function_def
    original_build = saved_model_save._build_meta_graph_impl

    def as_graph_def(graph: Any, *args: Any, **kwargs: Any) -> Any:
        with own_frames_left_out:
            graph_def, version = original_as_graph_def(graph, *args, **kwargs)
        strip_graph(graph_def)
        return graph_def, version

    def build_meta_graph(*args: Any, **kwargs: Any) -> Any:
        with own_frames_left_out:
            result = original_build(*args, **kwargs)
        strip_meta_graph(result[0])
        return result

    def add_function_def(context: Any, function_def: Any) -> None:
        with own_frames_left_out:
            original_add(context, _as_registered(context, function_def))

    framework_ops.Graph._as_graph_def = as_graph_def
    eager_context.Context.add_function_def = add_function_def
    saved_model_save._build_meta_graph_impl = build_meta_graph


def _as_registered(context: Any, function_def: Any) -> Any:
    """Returns the recorded definition of a function that was stripped of our ops; for other functions, the given one.

    If a function is defined a second time, TensorFlow refuses a different definition. When a program wraps a graph as a
    function, TensorFlow adds the called functions of the graph once more, and takes them from the stripped GraphDef.
    """
    name = function_def.signature.name
    if not context.has_function(name):
        return function_def
    registered = context.get_function_def(name)
    copies = []
    for definition in (registered, function_def):
        copy = type(registered)()
        copy.ParseFromString(definition.SerializeToString())
        strip_function(copy)
        copies.append(copy)
    return registered if copies[0] == copies[1] else function_def


def strip_graph(graph_def: Any) -> None:
    """Removes our ops, and all references to them, from a GraphDef and its functions."""
    strip_own_nodes(graph_def.node)
    for function in graph_def.library.function:
        strip_function(function)


def strip_meta_graph(meta_graph_def: Any) -> None:
    """Removes our ops, and all references to them, from a MetaGraphDef."""
    stripped = meta_graph_def.meta_info_def.stripped_op_list.op
    delete_from(stripped, lambda op: op.name.startswith(OWN_OP_PREFIX))
    strip_graph(meta_graph_def.graph_def)


def hook_work_for_others(observation: Observation, patches: Patches) -> None:
    """Installs the hooks that exclude functions that a coordinator traces for its workers."""

    def make_remote_entry(original: Any) -> Any:
        def run_for_others(*args: Any, **kwargs: Any) -> Any:
            with own_frames_left_out, traced_for("remote" if observation.is_active else None):
                return original(*args, **kwargs)

        return run_for_others

    patches.put(cluster_coordinator.Closure, "__init__", make_remote_entry)
    patches.put(cluster_coordinator.ClusterCoordinator, "create_per_worker_dataset", make_remote_entry)


@functools.cache
def keep_remote_calls_clean() -> None:
    """Makes sure that no function with our ops runs in another process, which has no kernels for them."""
    original = eager_context.Context.call_function

    def call_function(ctx: Any, name: Any, tensor_inputs: Sequence[Any], num_outputs: int) -> Any:
        if is_remote(ctx.device_name or ""):
            name = clean_copy(ctx, as_str(name)).encode()
        with own_frames_left_out:
            return original(ctx, name, tensor_inputs, num_outputs)

    eager_context.Context.call_function = call_function
    follow_connections()


_clean_copies: dict[str, str] = {}


def clean_copy(context: Any, name: str) -> str:
    """Returns the name of a copy of a function without our ops; the function's own name if it has no ops of ours."""
    copied_name = _clean_copies.get(name)
    if copied_name is not None:
        return copied_name
    original = context.get_function_def(name)
    copy = type(original)()
    copy.CopyFrom(original)
    is_changed = strip_function(copy)
    for node in copy.node_def:
        for _, _, function in function_values(node):
            clean = clean_copy(context, function.name) if context.has_function(function.name) else function.name
            if clean != function.name:
                is_changed = True
                function.name = clean
    if is_changed:
        copy.signature.name = f"{name}_unrecorded"
        context.add_function_def(copy)
    _clean_copies[name] = copy.signature.name
    return str(copy.signature.name)
