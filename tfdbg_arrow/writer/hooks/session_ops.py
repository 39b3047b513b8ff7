"""Adds our ops to the graphs of sessions, and attaches our state to these graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as framework_ops

from tfdbg_arrow.writer.graphs.own_ops import FEEDS, MARK, NEEDS, own_name

_AttrValue = tf.compat.v1.AttrValue

STRING = tf.string

new_tensor_id: Callable[[], int] = framework_ops.uid
"""Returns an ID that no eager tensor of the process has or will get."""

_ATTRIBUTE = "_tfdbg_arrow_attached"
_CONTROL_FLOW = frozenset({"Case", "Enter", "If", "RefEnter", "RefSwitch", "Switch", "While"})


def attach(owner: Any, generation: int, value: object) -> None:
    """Attaches a value of a recording to a graph or a session."""
    setattr(owner, _ATTRIBUTE, (generation, value))


def attached(owner: Any, generation: int) -> Any:
    """Returns the value that a recording attached to a graph or a session; None if there is none."""
    known = getattr(owner, _ATTRIBUTE, None)
    return known[1] if known is not None and known[0] == generation else None


def extend_session(session: Any) -> None:
    """Adds the new ops of a session's graph to the session's runtime."""
    session._extend_graph()


def has_loops_or_branches(graph: Any) -> bool:
    """Returns True if a graph has a loop or a branch, of either kind of control flow."""
    return any(op.type.removeprefix("Stateless") in _CONTROL_FLOW for op in graph.get_operations())


def is_reference(tensor: Any) -> bool:
    """Returns True if a tensor of a graph is a reference to a variable's memory, not a value."""
    return bool(tensor.dtype._is_ref_dtype)


def add_token(graph: Any, node: int, *, generation: int) -> tuple[Any, Any]:
    """Adds a Placeholder for the index of an execution, and the op that assigns the step to this execution.

    Args:
        graph: The graph; it may be finalized.
        node: The key of the token.
        generation: The number of the recording in this process.

    Returns:
        The tensor of the Placeholder, and the op.
    """
    token = _create_token(graph)
    attrs = {"node": _AttrValue(i=node), "generation": _AttrValue(i=generation)}
    return token, _create_op(graph, "TfdbgArrowCallToken", own_name(), [token], attrs, device="")


def _create_token(graph: Any) -> Any:
    """Adds a Placeholder for the index of an execution, and returns its tensor."""
    attrs = {
        "dtype": _AttrValue(type=tf.int64.as_datatype_enum),
        "shape": _AttrValue(shape=tf.TensorShape([]).as_proto()),
    }
    return _create_op(graph, "Placeholder", own_name("call"), [], attrs, device="").outputs[0]


def create_run_op(graph: Any, mark: int, *, needs: Sequence[str], feeds: Sequence[str], min_nodes: int) -> Any:
    """Adds the op that stands for a run; our optimizer makes it wait for record ops that no other op needs.

    Args:
        graph: The graph; it may be finalized.
        mark: The value of our attribute for the graph.
        needs: The fetches and targets of the run.
        feeds: The fed tensors.
        min_nodes: A graph with fewer ops gets NoOps, because TensorFlow would not optimize it.
    """
    for _ in range(min_nodes - len(graph.get_operations())):
        _create_op(graph, "NoOp", own_name("padding"), [], {}, device="")
    attrs = {
        MARK: _AttrValue(i=mark),
        NEEDS: _AttrValue(s="\n".join(needs).encode()),
        FEEDS: _AttrValue(s="\n".join(feeds).encode()),
    }
    return _create_op(graph, "NoOp", own_name("run"), [], attrs, device="")


def _create_op(graph: Any, op_type: str, name: str, inputs: list[Any], attrs: Mapping[str, Any], *, device: str) -> Any:
    """Adds an op outside of all scopes and loops of the graph, without op callbacks, even if the graph is finalized.

    An op whose inputs are in a loop or a branch runs there, regardless of its control flow context in Python.
    """
    node_def = tf.compat.v1.NodeDef(op=op_type, name=name, device=device)
    for key, value in attrs.items():
        node_def.attr[key].CopyFrom(value)
    with graph._mutation_lock():
        c_op = framework_ops._create_c_op(graph, node_def, inputs, [])
        op = framework_ops.Operation._from_c_op(c_op, graph)
        op._set_control_flow_context(None)
    return op
