"""Removes our ops from the graphs that a program exports, so that they load in a process without tfdbg_arrow.

| hook | purpose |
|---|---|
| `Graph._as_graph_def` | strips every GraphDef and its functions; permanent |
| `save._build_meta_graph_impl` | strips every SavedModel; permanent |
| `Context.add_function_def` | replaces a stripped definition by the recorded one; permanent |
"""

from __future__ import annotations

import threading
from typing import Any

from tensorflow.python.eager import context as eager_context
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.saved_model import save as saved_model_save

from tfdbg_arrow.writer.graphs.own_ops import OWN_OP_PREFIX
from tfdbg_arrow.writer.hooks.stripping import delete_from, strip_function, strip_own_nodes

_original_as_graph_def = framework_ops.Graph._as_graph_def

_are_kept_clean = False

_lock = threading.Lock()


def keep_exports_clean() -> None:
    """Removes our ops from every GraphDef and SavedModel that this process exports, also after the recording."""
    global _are_kept_clean
    with _lock:
        if _are_kept_clean:
            return
        _are_kept_clean = True
    original_build = saved_model_save._build_meta_graph_impl

    def as_graph_def(graph: Any, *args: Any, **kwargs: Any) -> Any:
        graph_def, version = _original_as_graph_def(graph, *args, **kwargs)
        strip_graph(graph_def)
        return graph_def, version

    def build_meta_graph(*args: Any, **kwargs: Any) -> Any:
        result = original_build(*args, **kwargs)
        strip_meta_graph(result[0])
        return result

    original_add = eager_context.Context.add_function_def

    def add_function_def(context: Any, function_def: Any) -> None:
        original_add(context, _as_registered(context, function_def))

    framework_ops.Graph._as_graph_def = as_graph_def
    eager_context.Context.add_function_def = add_function_def
    saved_model_save._build_meta_graph_impl = build_meta_graph


def _as_registered(context: Any, function_def: Any) -> Any:
    """Returns the recorded definition of a function that was stripped of our ops, or the given one if there is none.

    TensorFlow refuses a second definition of a function that differs from the first. When a program wraps a graph as a
    function, TensorFlow adds the functions that the graph calls again, and takes them from the stripped GraphDef.
    """
    name = function_def.signature.name
    if not context.has_function(name):
        return function_def
    registered = context.get_function_def(name)
    copies = []
    for each in (registered, function_def):
        copy = type(registered)()
        copy.ParseFromString(each.SerializeToString())
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
