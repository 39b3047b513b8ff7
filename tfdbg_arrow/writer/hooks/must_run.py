"""Makes TensorFlow run ops whose outputs nobody uses, and wait for them where that matters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.control_flow_v2_func_graphs import WhileBodyFuncGraph, WhileCondFuncGraph

_AttrValue = tf.compat.v1.AttrValue

_LOW_LEVEL_CONTROL_FLOW = frozenset({"Enter", "Merge", "RefEnter", "RefMerge", "RefSwitch", "Switch"})


def has_low_level_control_flow(graph: Any) -> bool:
    """Returns whether a graph holds the loops and branches of graph mode."""
    return any(op.type in _LOW_LEVEL_CONTROL_FLOW for op in graph.get_operations())


_HELD = "held_until_recorded"


def make_run(graph: Any, ops: Sequence[Any]) -> None:
    """Makes TensorFlow run ops of a graph, though nobody uses their outputs, whenever the graph runs.

    Control outputs do that, but for a loop's condition, of which the runtime keeps only the result: there
    the result is made to wait for the ops.
    """
    new = _add_control_outputs(graph, ops)
    if isinstance(graph, WhileCondFuncGraph):
        _hold(graph, [0], new)


def make_run_before_next(graph: Any, ops: Sequence[Any]) -> None:
    """As make_run(), and no iteration of a loop begins before the ops of the last one have run."""
    new = _add_control_outputs(graph, ops)
    _hold(graph, [0] if isinstance(graph, WhileCondFuncGraph) else _loop_variables(graph), new)


def hold_loop_variables(graph: Any) -> list[Any]:
    """Returns, for a graph that is a loop's body, the ops that give its floating results, which may be made to wait."""
    return [
        _held(graph, index)
        for index in _loop_variables(graph)
        if graph.outputs[index].dtype.is_floating or graph.outputs[index].dtype.is_complex
    ]


def _add_control_outputs(graph: Any, ops: Sequence[Any]) -> list[Any]:
    """Returns those that are new."""
    known = {op.name for op in graph.control_outputs}
    new = [op for op in ops if op.name not in known]
    graph.control_outputs.extend(new)
    return new


def _loop_variables(graph: Any) -> list[int]:
    """The results of a loop's body that an iteration computes for the next, by index; none of another graph."""
    # What runs within a loop of graph mode cannot be waited for from outside.
    if not isinstance(graph, WhileBodyFuncGraph) or has_low_level_control_flow(graph):
        return []
    arguments = {id(tensor) for tensor in graph.inputs}
    return [
        index
        for index, result in enumerate(graph.outputs)
        if id(result) not in arguments and result.dtype not in (tf.resource, tf.variant)
    ]


def _hold(graph: Any, indices: Sequence[int], ops: Sequence[Any]) -> None:
    """Makes results of a graph wait for ops."""
    for index in indices:
        if ops or _find_held(graph.outputs[index]) is not None:
            held = _held(graph, index)
            if ops:
                held._add_control_inputs(ops)


def _held(graph: Any, index: int) -> Any:
    """Returns the op of ours that gives a result of a graph, and may be made to wait; puts it there."""
    result = graph.outputs[index]
    if _is_held(result.op):
        return result.op
    held = _find_held(result)
    if held is None:
        attrs = {"T": _AttrValue(type=result.dtype.as_datatype_enum)}
        with graph.as_default():
            held = graph._create_op_internal("Identity", [result], [result.dtype], None, _HELD, attrs, None, False)
        held.outputs[0].set_shape(result.shape)
    graph.outputs[index] = held.outputs[0]
    return held


def _find_held(result: Any) -> Any | None:
    return next((user for user in result.consumers() if _is_held(user)), None)


def _is_held(op: Any) -> bool:
    # The name may have a scope before it and a number behind it.
    return bool(op.type == "Identity" and op.name.rpartition("/")[2].startswith(_HELD))


def is_used_by_graph(graph: Any) -> bool:
    """Returns whether another graph uses what a graph returns: not eager code, not a loop's next iteration."""
    return hasattr(graph.outer_graph, "control_outputs") and not isinstance(graph, WhileBodyFuncGraph)
