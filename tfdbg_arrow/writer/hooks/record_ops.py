"""The ops that we add to the graphs of functions."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfdbg_arrow.writer.graphs.own_ops import OWN_NAME_PREFIX, OWN_OP_PREFIX, TensorBatch
from tfdbg_arrow.writer.hooks.record_groups import groups, single_groups
from tfdbg_arrow.writer.hooks.runtime import allows_soft_placement
from tfdbg_arrow.writer.hooks.unobserved import unobserved

_AttrValue = tf.compat.v1.AttrValue

_NO_ARGUMENT = -1
"""In the attribute `arguments`: a tensor that is none of the function's arguments."""

_own_names = 0

_own_names_lock = threading.Lock()


def own_name(what: str = "record") -> str:
    """Returns a name for an op or a scope of ours that is no prefix or suffix of another in this process."""
    global _own_names
    with _own_names_lock:
        _own_names += 1
        return f"{OWN_NAME_PREFIX}{what}_{_own_names}_"


def create_record_op(graph: Any, op_type: str, inputs: Sequence[Any], *, attrs: dict[str, Any], device: str) -> Any:
    """Creates a record op in a graph, at its top, outside all scopes, and returns it.

    Args:
        graph: The FuncGraph.
        op_type: One of the native ops.
        inputs: Symbolic tensors of that graph.
        attrs: The op's attributes but `own_name`, as AttrValue.
        device: Where to run it, as the producer of its inputs; empty for anywhere.
    """
    name = own_name()
    attrs = {**attrs, "own_name": _AttrValue(s=name.encode())}
    # A name that ends in a slash is taken as it is.
    op = graph._create_op_internal(op_type, list(inputs), [], None, name + "/", attrs, None, False)
    # An op without a kernel on that very device would else fail the user's function.
    if device and allows_soft_placement():
        op._set_device(device)
    return op


def create_summary_op(
    graph: Any,
    rows: Any,
    *,
    nodes: Sequence[int],
    dtypes: Sequence[int],
    decides: Sequence[bool],
    generation: int,
    device: str,
) -> Any:
    """Creates the op that records summary rows, and returns it.

    Args:
        graph: The FuncGraph.
        rows: Its symbolic float64 tensor of shape [len(nodes), NUM_COLUMNS] of `summary.py`.
        nodes: The keys of the tensors.
        dtypes: The tensors' own dtypes, as numbers.
        decides: For each whether it stops the program if it is bad.
        generation: Tells the recordings of one process apart.
        device: Where the tensors are; the rows are taken from host memory.
    """
    attrs = {
        "nodes": _AttrValue(list=_AttrValue.ListValue(i=nodes)),
        "dtypes": _AttrValue(list=_AttrValue.ListValue(i=dtypes)),
        "decides": _AttrValue(list=_AttrValue.ListValue(i=[int(decide) for decide in decides])),
        "generation": _AttrValue(i=generation),
    }
    with graph.as_default():
        return create_record_op(graph, "TfdbgArrowRecordSummary", [rows], attrs=attrs, device=device)


@contextmanager
def own_scope(graph: Any) -> Iterator[None]:
    """Within it, ops that TensorFlow's API makes are added at the top of a graph, under a name of ours, unobserved."""
    with (
        graph.as_default(),
        unobserved(),
        tf.control_dependencies(None),
        tf.device(None),
        graph.name_scope(own_name("summary") + "/"),
    ):
        yield


class NativeRecordOps:
    """Records with the native op: one for each group of tensors.

    Args:
        generation: Tells the recordings of one process apart.
        is_gate: Whether no op takes a tensor that can stop the program before that tensor is recorded.
    """

    def __init__(self, *, generation: int, is_gate: bool = False) -> None:
        self._generation = generation
        self._is_gate = is_gate

    def add(self, graph: Any, batches: Sequence[TensorBatch]) -> list[Any]:
        """Adds the record ops; returns them."""
        added = []
        places = {id(tensor): index for index, tensor in enumerate(graph.inputs)}
        found = single_groups(batches) if self._is_gate else groups(batches, arguments=frozenset(places))
        with graph.as_default():
            for group in found:
                tensors = [recorded.tensor for recorded in group.tensors]
                arguments = [places.get(id(tensor), _NO_ARGUMENT) for tensor in tensors]
                has_argument = any(place != _NO_ARGUMENT for place in arguments)
                lists = {
                    "nodes": [recorded.node for recorded in group.tensors],
                    "decides": [int(recorded.decides) for recorded in group.tensors],
                    "arguments": arguments if has_argument else [],
                    "keeps": [place for place, recorded in enumerate(group.tensors) if recorded.keep],
                }
                types = [tensor.dtype.base_dtype.as_datatype_enum for tensor in tensors]
                attrs = {
                    "T": _AttrValue(list=_AttrValue.ListValue(type=types)),
                    "generation": _AttrValue(i=self._generation),
                    **{name: _AttrValue(list=_AttrValue.ListValue(i=numbers)) for name, numbers in lists.items()},
                }
                added.append(create_record_op(graph, "TfdbgArrowRecord", tensors, attrs=attrs, device=group.device))
                if self._is_gate:
                    _hold_users(added[-1], [recorded.tensor for recorded in group.tensors if recorded.decides])
        return added


def _hold_users(record_op: Any, tensors: Sequence[Any]) -> None:
    """Makes the ops that take the tensors wait for their record op.

    Not those of constants: TensorFlow folds these into the ops that take them, which changes numbers in the last bits.
    """
    tensors = [tensor for tensor in tensors if tensor.op.type != "Const"]
    users = {
        id(user): user for tensor in tensors for user in tensor.consumers() if not user.type.startswith(OWN_OP_PREFIX)
    }
    for user in users.values():
        user._add_control_inputs([record_op])
