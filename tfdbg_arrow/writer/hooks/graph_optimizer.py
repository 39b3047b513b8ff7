"""Loads our graph optimizer into TensorFlow, makes TensorFlow call it, and marks the ops that it must recognize."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import rewriter_config_pb2
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.eager import context as eager_context
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops.control_flow_v2_func_graphs import WhileBodyFuncGraph

from tfdbg_arrow._version import SUPPORTED_TENSORFLOW
from tfdbg_arrow.errors import RecordingError
from tfdbg_arrow.writer.graphs.node_defs import MARK

MIN_GRAPH_NODES = 4
"""The smallest number of nodes for which TensorFlow optimizes a graph. Source: `min_graph_nodes` in its
rewriter_config.proto."""
_RewriterConfig = rewriter_config_pb2.RewriterConfig
_INLINING = "function_optimization"
_CHOOSING = ("implementation_selector", "auto_mixed_precision", "auto_mixed_precision_cpu", "auto_mixed_precision_mkl")
"""Passes that the program asks for: they choose kernels and dtypes, and fuse no ops."""
_ACTIVATIONS = ("Elu", "LeakyRelu", "Relu", "Relu6")
_SUMS = ("Add", "AddV2")
_loaded_for: list[str] = []


def load_optimizer(path: str, device_types: Sequence[str]) -> None:
    """Makes TensorFlow call the optimizer of a library until the process ends.

    TensorFlow calls the optimizer for each graph that has a node on a device of one of these types. TensorFlow loads
    the library once for each type. At each load, the library registers for the next type: first `CPU`, then `GPU`.

    Args:
        path: The path of the native core.
        device_types: The types: `CPU`, or `CPU` and `GPU`.

    Raises:
        RecordingError: This version of TensorFlow does not accept the optimizer.
    """
    for device_type in device_types:
        if device_type in _loaded_for:
            continue
        # TensorFlow does not load a path twice, so use another path to the same file.
        folder, name = os.path.split(path)
        try:
            pywrap_tf_session.TF_LoadPluggableDeviceLibrary(os.path.join(folder, *["."] * len(_loaded_for), name))
        except (AttributeError, tf.errors.OpError) as error:
            raise RecordingError(
                f"TensorFlow {tf.__version__} does not accept the graph optimizer of {path}: {error}; recording "
                f"supports TensorFlow {SUPPORTED_TENSORFLOW}"
            ) from error
        _loaded_for.append(device_type)


def is_small(graph: Any) -> bool:
    """Returns True if TensorFlow does not optimize the function of a graph because it has too few nodes."""
    outer = graph.outer_graph
    # A graph that a session runs holds ops; the graph that TensorFlow loads functions into is empty.
    is_of_session = not tf.compat.v1.executing_eagerly_outside_functions() and bool(outer.get_operations())
    is_inner = isinstance(outer, FuncGraph) or is_of_session
    return not is_inner and len(graph.get_operations()) + len(graph.outputs) < MIN_GRAPH_NODES


def may_break(graph: Any) -> bool:
    """Returns True if TensorFlow's optimizer may break the function of a graph.

    With oneDNN, if a program applies an activation to the sum of a dense layer's output and another tensor, the
    optimizer replaces the activation by a node without an op type. TensorFlow then runs the function without any
    optimization. Shapes and devices decide whether this happens.
    """
    return any(op.type in _ACTIVATIONS and op.inputs[0].op.type in _SUMS for op in graph.get_operations())


@functools.lru_cache(maxsize=64)
def call_options(config: bytes, executor_type: str | None, *, keeps_ops: bool) -> Any:
    """Returns the options that make TensorFlow call our optimizer for a function.

    Args:
        config: The program's serialized ConfigProto for calls of functions.
        executor_type: The program's choice of an executor.
        keeps_ops: Whether no pass of TensorFlow may change the ops of the function.

    Returns:
        FunctionCallOptions; None if the program's own options already have this effect.
    """
    changed = optimizing_config(tf.compat.v1.ConfigProto.FromString(config), keeps_ops=keeps_ops)
    return None if changed is None else eager_context.FunctionCallOptions(executor_type, changed)


def optimizing_config(config: Any, *, keeps_ops: bool) -> Any:
    """Returns a ConfigProto that makes TensorFlow call our optimizer.

    Args:
        config: The program's ConfigProto, or None.
        keeps_ops: Whether no pass of TensorFlow may change the ops of graphs.

    Returns:
        A changed copy; None if `config` already has this effect.
    """
    changed = tf.compat.v1.ConfigProto()
    if config is not None:
        changed.CopyFrom(config)
    rewrites = changed.graph_options.rewrite_options
    if not keeps_ops and _calls_optimizer(rewrites):
        return None
    if keeps_ops or rewrites.disable_meta_optimizer:
        _switch_passes_off(rewrites, but=() if rewrites.disable_meta_optimizer else _CHOOSING)
    rewrites.disable_meta_optimizer = False
    rewrites.disable_tfg_optimizer = True  # this optimizer fails on graphs with some float8 dtypes
    rewrites.use_plugin_optimizers = _RewriterConfig.ON
    rewrites.min_graph_nodes = -1  # no graph is too small
    return changed


def is_run_optimized(session: Any) -> bool:
    """Returns True if TensorFlow calls our optimizer for the runs of a session.

    TensorFlow does not optimize a graph that it places after pruning.
    """
    options = session._config.graph_options if session._config is not None else tf.compat.v1.GraphOptions()
    return not options.place_pruned_graph and _calls_optimizer(options.rewrite_options)


def keeps_ops(session: Any) -> bool:
    """Returns True if no pass of TensorFlow changes the ops of the graphs that a session runs."""
    rewrites = session._config.graph_options.rewrite_options if session._config is not None else _RewriterConfig()
    return bool(rewrites.remapping == _RewriterConfig.OFF and rewrites.constant_folding == _RewriterConfig.OFF)


def _calls_optimizer(rewrites: Any) -> bool:
    return (
        not rewrites.disable_meta_optimizer
        and rewrites.use_plugin_optimizers != _RewriterConfig.OFF
        and rewrites.min_graph_nodes <= 0
    )


def _switch_passes_off(rewrites: Any, *, but: Sequence[str]) -> None:
    """Switches off all passes except those in `but` and those that inline functions or remove unused ops.

    Unused ops must still be removed. Otherwise they would run when they are recorded, and could fail.
    """
    for name, field in _RewriterConfig.DESCRIPTOR.fields_by_name.items():
        is_switch = field.enum_type is not None and field.enum_type.name == "Toggle"
        if is_switch and name != _INLINING and name not in but:
            setattr(rewrites, name, _RewriterConfig.OFF)
    rewrites.memory_optimization = _RewriterConfig.NO_MEM_OPT
    del rewrites.optimizers[:]


def mark_ops(graph: Any, mark: int) -> None:
    """Sets our attribute on all ops of a FuncGraph. TensorFlow keeps the attribute, and no op reads it."""
    value = tf.compat.v1.AttrValue(i=mark).SerializeToString()
    buffer = pywrap_tf_session.TF_NewBufferFromString(value)
    try:
        with graph._c_graph.get() as c_graph:
            for op in graph.get_operations():
                pywrap_tf_session.SetAttr(c_graph, op._c_op, MARK, buffer)
    finally:
        pywrap_tf_session.TF_DeleteBuffer(buffer)


def is_used_by_graph(graph: Any) -> bool:
    """Returns True if another graph uses the results of a graph.

    Eager code and the next iteration of a loop do not count.
    """
    return hasattr(graph.outer_graph, "control_outputs") and not isinstance(graph, WhileBodyFuncGraph)
