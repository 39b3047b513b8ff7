"""The graphs that a program exports hold no op of ours, so that they load in a process without tfdbg_arrow.

| hook | why |
|---|---|
| `Graph._as_graph_def` | strips every GraphDef, and the functions in it; stays for good |
| `save._build_meta_graph_impl` | strips every SavedModel; stays for good |
| `Context.add_function_def` | puts the recorded definition in the place of a stripped one; stays for good |
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
    """From now on no GraphDef and no SavedModel of this process holds an op of ours, also after recording has ended."""
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


def with_own_ops(graph: Any) -> Any:
    """Returns the GraphDef of a graph as TensorFlow runs it, with the ops that we have added."""
    return _original_as_graph_def(graph)[0]


def _as_registered(context: Any, function_def: Any) -> Any:
    """Returns the recorded definition of a function that was stripped of our ops, or the given one if there is none.

    TensorFlow refuses a second definition of a function that differs from the first. When a program wraps a graph as a
    function, TensorFlow adds the functions that the graph calls once more. It takes them from the stripped GraphDef.
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
    """Removes every op of ours, and every mention of one, from a GraphDef and its functions."""
    strip_own_nodes(graph_def.node)
    for function in graph_def.library.function:
        strip_function(function)


def strip_meta_graph(meta_graph_def: Any) -> None:
    """Removes every op of ours, and every mention of one, from a MetaGraphDef."""
    stripped = meta_graph_def.meta_info_def.stripped_op_list.op
    delete_from(stripped, lambda op: op.name.startswith(OWN_OP_PREFIX))
    strip_graph(meta_graph_def.graph_def)
