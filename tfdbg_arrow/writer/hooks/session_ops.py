"""The ops that we add to the graphs of sessions, and what we keep with these graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.ops import script_ops

from tfdbg_arrow.writer.graphs.own_ops import FEEDS, MARK, NEEDS
from tfdbg_arrow.writer.hooks.record_ops import own_name

_AttrValue = tf.compat.v1.AttrValue

STRING = tf.string

new_tensor_id: Callable[[], int] = framework_ops.uid
"""Returns an id that no eager tensor of the process has or gets."""

_ATTRIBUTE = "_tfdbg_arrow_attached"


def attach(owner: Any, generation: int, value: object) -> None:
    """Keeps something of a recording with a graph or a session, for as long as that lives."""
    setattr(owner, _ATTRIBUTE, (generation, value))


def attached(owner: Any, generation: int) -> Any:
    """Returns what a recording attached to a graph or a session, or None."""
    known = getattr(owner, _ATTRIBUTE, None)
    return known[1] if known is not None and known[0] == generation else None


def extend_session(session: Any) -> None:
    """Tells a session's runtime of the ops that its graph has got."""
    session._extend_graph()


def is_reference(tensor: Any) -> bool:
    """Returns whether a tensor of a graph is a reference to a variable's memory and no value."""
    return bool(tensor.dtype._is_ref_dtype)


class NativeSessionRecordOps:
    """Records tensors of sessions' graphs with the native op.

    Args:
        generation: Tells the recordings of one process apart.
    """

    def __init__(self, *, generation: int) -> None:
        self._generation = generation

    def add_record(self, graph: Any, tensor: Any, node: int, *, keep: bool, decides: bool) -> Any:
        """Adds the op that records a tensor, and keeps its elements or stops the program at it or not; returns it."""
        return create_native_record(graph, tensor, node=node, generation=self._generation, keep=keep, decides=decides)

    def add_token(self, graph: Any, node: int) -> tuple[Any, Any]:
        """Adds a Placeholder for the index of an execution and the op that takes it."""
        token = create_token(graph)
        return token, create_native_record(graph, token, node=node, generation=self._generation, is_token=True)


def create_native_record(
    graph: Any,
    tensor: Any,
    *,
    node: int,
    generation: int,
    keep: bool = False,
    decides: bool = False,
    is_token: bool = False,
) -> Any:
    """Adds the native op that records one tensor of a session's graph, and returns it.

    Args:
        graph: The graph; it may be finalized.
        tensor: The tensor.
        node: Its key.
        generation: Tells the recordings of one process apart.
        keep: Whether its elements are kept.
        decides: Whether it stops the program if it is bad, under `on_nonfinite`.
        is_token: Whether the tensor is the index of the execution instead of something to record.
    """
    name = own_name()
    attrs = {
        "T": _AttrValue(list=_AttrValue.ListValue(type=[tensor.dtype.base_dtype.as_datatype_enum])),
        "nodes": _AttrValue(list=_AttrValue.ListValue(i=[node])),
        "keeps": _AttrValue(list=_AttrValue.ListValue(i=[0] if keep else [])),
        "decides": _AttrValue(list=_AttrValue.ListValue(i=[int(decides)])),
        "generation": _AttrValue(i=generation),
        "arguments": _AttrValue(list=_AttrValue.ListValue(i=[-1] if is_token else [])),
        "own_name": _AttrValue(s=name.encode()),
    }
    return _create_op(graph, "TfdbgArrowRecord", name, [tensor], attrs, device=_host_of(tensor.op.device))


def create_python_record(graph: Any, tensor: Any, function: Callable[..., Any]) -> Any:
    """Adds an op that hands a tensor to a Python function, which returns an empty list; returns the op."""
    name = own_name()
    token = script_ops._py_funcs.insert(function)
    # TensorFlow holds such a function only as long as the graph does.
    if not hasattr(graph, "_py_funcs_used_in_graph"):
        graph._py_funcs_used_in_graph = []
    graph._py_funcs_used_in_graph.append(function)
    attrs = {
        "Tin": _AttrValue(list=_AttrValue.ListValue(type=[tensor.dtype.base_dtype.as_datatype_enum])),
        "Tout": _AttrValue(list=_AttrValue.ListValue(type=[])),
        "token": _AttrValue(s=token.encode() if isinstance(token, str) else token),
    }
    return _create_op(graph, "PyFunc", name, [tensor], attrs, device=_host_of(tensor.op.device))


def create_token(graph: Any) -> Any:
    """Adds a Placeholder for the index of an execution, and returns its tensor."""
    attrs = {
        "dtype": _AttrValue(type=tf.int64.as_datatype_enum),
        "shape": _AttrValue(shape=tf.TensorShape([]).as_proto()),
    }
    return _create_op(graph, "Placeholder", own_name("call"), [], attrs, device="").outputs[0]


def create_run_op(graph: Any, mark: int, *, needs: Sequence[str], feeds: Sequence[str], min_nodes: int) -> Any:
    """Adds the op that stands for a run: our optimizer makes it wait for record ops that nothing else needs.

    Args:
        graph: The graph; it may be finalized.
        mark: Our attribute's value for the graph.
        needs: The tensors and ops that the run is asked for.
        feeds: The tensors that it is fed.
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


def _host_of(device: str) -> str:
    """The CPU for a tensor's record: that of its device if this is a CPU; empty for where TensorFlow will."""
    return device if tf.DeviceSpec.from_string(device).device_type == "CPU" else ""


def _create_op(graph: Any, op_type: str, name: str, inputs: list[Any], attrs: Mapping[str, Any], *, device: str) -> Any:
    """Adds an op as it is given: outside all scopes and loops of the graph, unobserved, also if it is finalized.

    An op whose inputs are within a loop or a branch runs there, whatever Python thinks of where it was made.
    """
    node_def = tf.compat.v1.NodeDef(op=op_type, name=name, device=device)
    for key, value in attrs.items():
        node_def.attr[key].CopyFrom(value)
    with graph._mutation_lock():
        c_op = framework_ops._create_c_op(graph, node_def, inputs, [])
        op = framework_ops.Operation._from_c_op(c_op, graph)
        op._set_control_flow_context(None)
    return op
