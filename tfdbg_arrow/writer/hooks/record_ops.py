"""The ops that we add to the graphs of functions."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfdbg_arrow.writer.graphs.own_ops import OWN_NAME_PREFIX, OWN_OP_PREFIX, TensorBatch, is_own
from tfdbg_arrow.writer.hooks.runtime import allows_soft_placement
from tfdbg_arrow.writer.hooks.unobserved import unobserved

_AttrValue = tf.compat.v1.AttrValue

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
    is_stateless: bool,
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
        is_stateless: Whether TensorFlow treats the op as stateless.
    """
    attrs = {
        "nodes": _AttrValue(list=_AttrValue.ListValue(i=nodes)),
        "dtypes": _AttrValue(list=_AttrValue.ListValue(i=dtypes)),
        "decides": _AttrValue(list=_AttrValue.ListValue(i=[int(decide) for decide in decides])),
        "generation": _AttrValue(i=generation),
    }
    with graph.as_default():
        op_type = _op_type("TfdbgArrowRecordSummary", is_stateless=is_stateless)
        return create_record_op(graph, op_type, [rows], attrs=attrs, device=device)


def _op_type(op_type: str, *, is_stateless: bool) -> str:
    return f"{op_type}Stateless" if is_stateless else op_type


@contextmanager
def own_scope(graph: Any, what: str = "summary") -> Iterator[None]:
    """Within it, ops that TensorFlow's API makes are added at the top of a graph, under a name of ours, unobserved."""
    with (
        graph.as_default(),
        unobserved(),
        tf.control_dependencies(None),
        tf.device(None),
        graph.name_scope(own_name(what) + "/"),
    ):
        yield


class NativeRecordOps:
    """Records with the native op: one for each op that makes covered tensors.

    Args:
        generation: Tells the recordings of one process apart.
        is_gate: Whether no op takes a tensor that can stop the program before that tensor is recorded.
    """

    def __init__(self, *, generation: int, is_gate: bool = False) -> None:
        self._generation = generation
        self._max_ops = 1 if is_gate else _MAX_OPS_IN_GROUP
        self._is_gate = is_gate

    def add(self, graph: Any, batches: Sequence[TensorBatch], *, is_stateless: bool = False) -> list[Any]:
        """Adds the record ops; returns them."""
        op_type = _op_type("TfdbgArrowRecord", is_stateless=is_stateless)
        added = []
        with graph.as_default():
            places = {id(tensor): index for index, tensor in enumerate(graph.inputs)}
            for device, group in _groups(batches, places, max_ops=self._max_ops):
                tensors = [tensor for batch in group for tensor in batch.tensors]
                types = [tensor.dtype.base_dtype.as_datatype_enum for tensor in tensors]
                nodes = [node for batch in group for node in batch.nodes]
                decides = [int(decide) for batch in group for decide in batch.decides]
                arguments = [places[id(tensor)] for tensor in tensors if id(tensor) in places]
                is_chosen = [batch.is_chosen for batch in group for _ in batch.tensors]
                keeps = [place for place, is_kept in enumerate(is_chosen) if is_kept]
                attrs = {
                    "T": _AttrValue(list=_AttrValue.ListValue(type=types)),
                    "nodes": _AttrValue(list=_AttrValue.ListValue(i=nodes)),
                    "decides": _AttrValue(list=_AttrValue.ListValue(i=[int(decide) for decide in decides])),
                    "generation": _AttrValue(i=self._generation),
                    "arguments": _AttrValue(list=_AttrValue.ListValue(i=arguments)),
                    "keeps": _AttrValue(list=_AttrValue.ListValue(i=keeps)),
                }
                added.append(create_record_op(graph, op_type, tensors, attrs=attrs, device=device))
                if self._is_gate:
                    _hold_users(added[-1], [tensor for tensor, decide in zip(tensors, decides, strict=True) if decide])
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


def hold_for_record_ops(op: Any, tensors: Sequence[Any], *, calls: Sequence[Any]) -> None:
    """Makes an op wait until none of our ops holds tensors, which are made before it.

    Args:
        op: The op.
        tensors: Symbolic tensors of its graph.
        calls: Ops whose functions gave some of them: it waits for our ops in there too.
    """
    waits = {each.name: each for tensor in tensors for each in _last_readers(tensor)}
    known = {each.name for each in op.control_inputs}
    new = [each for name, each in waits.items() if name not in known]
    if calls and not any(name.startswith(OWN_NAME_PREFIX + _CALLS_RETURNED) for name in known):
        with own_scope(op.graph, _CALLS_RETURNED), tf.control_dependencies(calls):
            new.append(tf.no_op())
    if new:
        op._add_control_inputs(new)


_CALLS_RETURNED = "calls_returned"


def _last_readers(tensor: Any) -> list[Any]:
    """Our ops that read a tensor or what ours make of it alone: those that none of these takes anything from."""
    reached: dict[str, Any] = {}
    alone: set[str] = set()
    waiting = list(tensor.consumers())
    while waiting:
        reader = waiting.pop()
        if reader.name not in reached and is_own(reader.type, reader.name) and _is_of(reader, tensor.op, alone):
            reached[reader.name] = reader
            waiting += [user for output in reader.outputs for user in output.consumers()]
    return [
        reader
        for reader in reached.values()
        if not any(user.name in reached for output in reader.outputs for user in output.consumers())
    ]


def _is_of(own_op: Any, op: Any, known: set[str]) -> bool:
    """Whether one of our ops depends on no op of the program but one; `known` keeps the names of ours that do not."""
    waiting, seen = [own_op], {own_op.name}
    while waiting:
        for tensor in waiting.pop().inputs:
            source = tensor.op
            if source is op or source.name in known or source.name in seen:
                continue
            if not is_own(source.type, source.name):
                return False
            seen.add(source.name)
            waiting.append(source)
    known |= seen
    return True


# Each record op costs a turn of TensorFlow's scheduler, as much as counting a small tensor; but an op that takes
# many tensors keeps the first alive until the last is there, and an error in between loses them all.
_MAX_OPS_IN_GROUP = 4


def _groups(
    batches: Sequence[TensorBatch], places: Mapping[int, int], *, max_ops: int
) -> list[tuple[str, list[TensorBatch]]]:
    """Batches that one record op takes: neighbours in order of creation, on the same device, all arguments or none.

    What a sum waits for is alone: with others beside it, these might wait for the sum.
    """
    groups: list[tuple[str, list[TensorBatch]]] = []
    filling: dict[tuple[str, bool], list[TensorBatch]] = {}
    for batch in batches:
        device = batch.op.device
        if batch.is_alone:
            groups.append((device, [batch]))
            continue
        key = (device, id(batch.tensors[0]) in places)
        if key not in filling or len(filling[key]) >= max_ops:
            filling[key] = []
            groups.append((device, filling[key]))
        filling[key].append(batch)
    return groups
