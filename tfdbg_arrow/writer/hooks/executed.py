"""Loads our optimizer into TensorFlow, and marks the ops that it must recognize in optimized graphs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.framework import config as framework_config
from tensorflow.python.framework.func_graph import FuncGraph

from tfdbg_arrow.errors import RecordingError
from tfdbg_arrow.writer.graphs.own_ops import MARK

MIN_GRAPH_NODES = 4
"""TensorFlow does not optimize smaller graphs; `min_graph_nodes` of its rewriter_config.proto."""
_loaded_for: list[str] = []


def load_optimizer(path: str, device_types: Sequence[str]) -> None:
    """Makes TensorFlow call the optimizer of a library, for the life of the process.

    TensorFlow calls it for each graph that has a node on a device of one of some types. Every time it loads the
    library, the library names the next type: first `CPU`, then `GPU`.

    Args:
        path: The native core.
        device_types: The types: `CPU`, or `CPU` and `GPU`.

    Raises:
        RecordingError: This version of TensorFlow does not take it.
    """
    for device_type in device_types:
        if device_type in _loaded_for:
            continue
        # TensorFlow loads no path twice; another name of the file is another path.
        folder, name = os.path.split(path)
        try:
            pywrap_tf_session.TF_LoadPluggableDeviceLibrary(os.path.join(folder, *["."] * len(_loaded_for), name))
        except (AttributeError, tf.errors.OpError) as error:
            raise RecordingError(
                f"TensorFlow {tf.__version__} does not take the optimizer of {path}: {error}; use graphs='traced'"
            ) from error
        _loaded_for.append(device_type)


def is_optimized(graph: Any) -> bool:
    """Returns whether TensorFlow calls our optimizer as expected for a function of a graph.

    A program can turn the optimizers off, and change how small a graph is that is not optimized.

    Args:
        graph: The FuncGraph.
    """
    outer = graph.outer_graph
    # A graph that a session runs holds ops; the graph that TensorFlow loads functions into is empty.
    is_of_session = not tf.compat.v1.executing_eagerly_outside_functions() and bool(outer.get_operations())
    is_inner = isinstance(outer, FuncGraph) or is_of_session
    if not is_inner and len(graph.get_operations()) + len(graph.outputs) < MIN_GRAPH_NODES:
        return False
    options = framework_config.get_optimizer_experimental_options()
    return (
        not options.get("disable_meta_optimizer", False)
        and options.get("use_plugin_optimizers", True)
        and "min_graph_nodes" not in options
    )


def is_run_optimized(session: Any) -> bool:
    """Returns whether TensorFlow calls our optimizer as expected for the runs of a session.

    A program can turn the optimizers off for a session. A graph that is placed after it was pruned is not optimized.
    Nor is a graph of fewer than MIN_GRAPH_NODES ops, but session_ops.create_run_op() adds some.

    Args:
        session: The session.
    """
    options = session._config.graph_options if session._config is not None else tf.compat.v1.GraphOptions()
    rewrites = options.rewrite_options
    return (
        not options.place_pruned_graph
        and not rewrites.disable_meta_optimizer
        and rewrites.use_plugin_optimizers != rewrites.OFF
        and rewrites.min_graph_nodes == 0
    )


def mark_ops(graph: Any, mark: int) -> None:
    """Sets our attribute on all ops of a FuncGraph. TensorFlow keeps it, and no op reads it."""
    value = tf.compat.v1.AttrValue(i=mark).SerializeToString()
    buffer = pywrap_tf_session.TF_NewBufferFromString(value)
    try:
        with graph._c_graph.get() as c_graph:
            for op in graph.get_operations():
                pywrap_tf_session.SetAttr(c_graph, op._c_op, MARK, buffer)
    finally:
        pywrap_tf_session.TF_DeleteBuffer(buffer)
