"""Loads our optimizer into TensorFlow, and marks the ops that it must recognize in optimized graphs."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.framework import config as framework_config
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.framework.func_graph import FuncGraph

from tfdbg_arrow.errors import RecordingError
from tfdbg_arrow.writer.graphs.own_ops import MARK

_MIN_GRAPH_NODES = 4
"""TensorFlow does not optimize smaller graphs; `min_graph_nodes` of its rewriter_config.proto."""
_loaded: str | None = None


def load_optimizer(path: str) -> None:
    """Makes TensorFlow call the optimizer of a library, for the life of the process.

    Args:
        path: The native core.

    Raises:
        RecordingError: This version of TensorFlow does not take it.
    """
    global _loaded
    if _loaded is not None:
        return
    try:
        pywrap_tf_session.TF_LoadPluggableDeviceLibrary(path)
    except (AttributeError, tf.errors.OpError) as error:
        raise RecordingError(
            f"TensorFlow {tf.__version__} does not take the optimizer of {path}: {error}; use graphs='traced'"
        ) from error
    _loaded = path


def is_optimized(graph: Any) -> bool:
    """Returns whether TensorFlow calls our optimizer as expected for a function of a graph.

    A program can turn the optimizers off, and change how small a graph is that is not optimized. What a session runs
    is recorded as it is traced.

    Args:
        graph: The FuncGraph.
    """
    if not framework_ops.executing_eagerly_outside_functions():
        return False
    is_inner = isinstance(graph.outer_graph, FuncGraph)
    if not is_inner and len(graph.get_operations()) + len(graph.outputs) < _MIN_GRAPH_NODES:
        return False
    options = framework_config.get_optimizer_experimental_options()
    return (
        not options.get("disable_meta_optimizer", False)
        and options.get("use_plugin_optimizers", True)
        and "min_graph_nodes" not in options
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
