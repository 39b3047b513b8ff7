"""The private API of TensorFlow's graph mode: sessions and the graphs that they run. Only `hooks.py` is its like.

| hook | why |
|---|---|
| `BaseSession._call_tf_sessionrun` | a run begins: record ops are added to what it is asked to run |
| `BaseSession._make_callable_from_options` | the same for a run that is prepared once and called often |
| `BaseSession.partial_run_setup` | is noted: a run in pieces is not recorded |
| `WrappedFunction.__init__` | a graph of graph mode becomes a function, of which only what its results need runs |
| `Graph._as_graph_def` | a GraphDef never holds an op of ours; stays for good |

Nothing runs an op of a session's graph but a run that is asked for it, so record ops are handed to the runtime as
further targets of the run. They take tensors and give none: the user's graph keeps its tensors and its edges.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.client import session as tf_session
from tensorflow.python.eager import wrap_function
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.ops import script_ops

from tfdbg_arrow.writer.hooks import Patch, has_low_level_control_flow, is_unobserved, own_name, strip_own_nodes

_AttrValue = tf.compat.v1.AttrValue

STRING = tf.string
new_tensor_id: Callable[[], int] = framework_ops.uid
"""Returns an id that no eager tensor of the process has or gets."""
TensorName = tuple[str, int]
"""Name of an op, and which of its outputs."""


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What a run of a session is asked for.

    Attributes:
        feeds: The tensors whose values are given, in order of name.
        fetches: The tensors whose values are returned.
        targets: Names of the ops that run without a result.
    """

    feeds: tuple[TensorName, ...]
    fetches: tuple[TensorName, ...]
    targets: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """How runs with one request are recorded.

    Attributes:
        function_name: What the runs are called: the op type of their executions.
        request: The request.
        record_ops: The ops to run with it.
        token: The Placeholder that is fed with the execution's index; None: no record op knows it.
        feed_dtypes: Dtypes of the fed tensors.
        fetch_dtypes: Dtypes of the fetched tensors.
    """

    function_name: str
    request: RunRequest
    record_ops: tuple[Any, ...]
    token: Any
    feed_dtypes: tuple[Any, ...]
    fetch_dtypes: tuple[Any, ...]


class SessionObserver(Protocol):
    """What the hooks tell a recording. Nothing of it may raise."""

    def plan_run(self, session: Any, request: RunRequest) -> RunPlan | None:
        """Returns how runs with a request are recorded; None: not at all."""

    def begin_run(self, plan: RunPlan, values: Sequence[Any]) -> int:
        """A run begins; returns its execution index, -1 for none."""

    def end_run(self, plan: RunPlan, execution_index: int, values: Sequence[Any] | None) -> None:
        """The run has returned the values of its fetches, or raised (None)."""

    def note_partial_run(self) -> None:
        """A run in pieces is set up."""


class SessionHooks:
    """The hooks of one recording into sessions.

    Args:
        observer: Is told of runs.
    """

    def __init__(self, observer: SessionObserver) -> None:
        self._observer = observer
        self._active = False
        self._patches: list[Patch] = []

    def install(self) -> None:
        """Puts the hooks in place."""
        _keep_graph_defs_clean()
        self._active = True
        session = tf_session.BaseSession
        self._patch(session, "_call_tf_sessionrun", self._make_run)
        self._patch(session, "_make_callable_from_options", self._make_callable)
        self._patch(session, "partial_run_setup", self._make_partial_run_setup)
        self._patch(wrap_function.WrappedFunction, "__init__", self._make_wrap)

    def remove(self) -> None:
        """Takes the hooks away; sessions run on without recording."""
        self._active = False
        for patch in reversed(self._patches):
            patch.remove()
        self._patches.clear()

    def _patch(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        replacement = make(original)
        setattr(owner, name, replacement)
        self._patches.append(Patch(owner=owner, name=name, original=original, replacement=replacement))

    def _make_run(self, original: Any) -> Any:
        observer = self._observer

        def call_tf_sessionrun(
            session: Any,
            options: Any,
            feed_dict: Mapping[Any, Any],
            fetch_list: Sequence[Any],
            target_list: Sequence[Any],
            run_metadata: Any,
        ) -> Any:
            plain = (options, feed_dict, fetch_list, target_list, run_metadata)
            if not self._active or is_unobserved():
                return original(session, *plain)
            feeds = sorted(((_output_name(feed), value) for feed, value in feed_dict.items()), key=lambda item: item[0])
            request = RunRequest(
                feeds=tuple(name for name, _ in feeds),
                fetches=tuple(map(_output_name, fetch_list)),
                targets=tuple(map(pywrap_tf_session.TF_OperationName, target_list)),
            )
            plan = observer.plan_run(session, request)
            if plan is None:
                return original(session, *plain)
            execution_index = observer.begin_run(plan, [value for _, value in feeds])
            values = None
            try:
                targets = [*target_list, *(op._c_op for op in plan.record_ops)]
                if plan.token is not None:
                    feed_dict = {**feed_dict, plan.token._as_tf_output(): np.array(execution_index, np.int64)}
                values = original(session, options, feed_dict, fetch_list, targets, run_metadata)
                return values
            finally:
                observer.end_run(plan, execution_index, values)

        return call_tf_sessionrun

    def _make_callable(self, original: Any) -> Any:
        def make_callable_from_options(session: Any, callable_options: Any) -> Any:
            plain = original(session, callable_options)
            if not self._active or is_unobserved():
                return plain
            request = RunRequest(
                feeds=tuple(map(_tensor_name, callable_options.feed)),
                fetches=tuple(map(_tensor_name, callable_options.fetch)),
                targets=tuple(callable_options.target),
            )
            plan = self._observer.plan_run(session, request)
            if plan is None:
                return plain
            options = type(callable_options)()
            options.CopyFrom(callable_options)
            options.target.extend(op.name for op in plan.record_ops)
            if plan.token is not None:
                options.feed.append(plan.token.name)
            return _ObservedCallable(self, plan, plain=plain, recorded=original(session, options))

        return make_callable_from_options

    def _make_partial_run_setup(self, original: Any) -> Any:
        def partial_run_setup(session: Any, fetches: Any, feeds: Any = None) -> Any:
            if self._active and not is_unobserved():
                self._observer.note_partial_run()
            return original(session, fetches, feeds)

        return partial_run_setup

    def _make_wrap(self, original: Any) -> Any:
        def initialize(function: Any, fn_graph: Any, *args: Any, **kwargs: Any) -> None:
            _wrapped_graphs.add(fn_graph)
            original(function, fn_graph, *args, **kwargs)

        return initialize


_wrapped_graphs: weakref.WeakSet[Any] = weakref.WeakSet()


def is_pruned(graph: Any) -> bool:
    """Returns whether only those ops of a function's graph run that its results need: it is one of graph mode.

    It was wrapped as a whole, or holds the loops and branches of graph mode.
    """
    return graph in _wrapped_graphs or has_low_level_control_flow(graph)


class _ObservedCallable:
    """A prepared run, as it is recorded while recording lasts and as it was asked for afterwards."""

    def __init__(self, hooks: SessionHooks, plan: RunPlan, *, plain: Any, recorded: Any) -> None:
        self._hooks, self._plan = hooks, plan
        self._plain, self._recorded = plain, recorded

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        hooks, plan = self._hooks, self._plan
        if not hooks._active or is_unobserved() or len(args) != len(plan.request.feeds):
            return self._plain(*args, **kwargs)
        execution_index = hooks._observer.begin_run(plan, args)
        values = None
        try:
            token = () if plan.token is None else (np.array(execution_index, np.int64),)
            values = self._recorded(*args, *token, **kwargs)
            return values
        finally:
            hooks._observer.end_run(plan, execution_index, values)


def _output_name(output: Any) -> TensorName:
    return pywrap_tf_session.TF_OperationName(output.oper), output.index


def _tensor_name(text: str) -> TensorName:
    name, _, slot = text.partition(":")
    return name, int(slot or 0)


_ATTRIBUTE = "_tfdbg_arrow_attached"


def attach(owner: Any, generation: int, value: object) -> None:
    """Keeps something of a recording with a graph or a session, for as long as that lives."""
    setattr(owner, _ATTRIBUTE, (generation, value))


def attached(owner: Any, generation: int) -> Any:
    """Returns what a recording attached to a graph or a session, or None."""
    known = getattr(owner, _ATTRIBUTE, None)
    return known[1] if known is not None and known[0] == generation else None


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


def extend_session(session: Any) -> None:
    """Tells a session's runtime of the ops that its graph has got."""
    session._extend_graph()


def is_reference(tensor: Any) -> bool:
    """Returns whether a tensor of a graph is a reference to a variable's memory and no value."""
    return bool(tensor.dtype._is_ref_dtype)


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
    _graphs_with_own_ops.add(graph)
    return op


_graphs_with_own_ops: weakref.WeakSet[Any] = weakref.WeakSet()
_graph_defs_are_kept_clean = False
_lock = threading.Lock()


def _keep_graph_defs_clean() -> None:
    """From now on no GraphDef of a session's graph holds an op of ours, nor what is made of one: meta graphs, files."""
    global _graph_defs_are_kept_clean
    with _lock:
        if _graph_defs_are_kept_clean:
            return
        _graph_defs_are_kept_clean = True
    original = framework_ops.Graph._as_graph_def

    def as_graph_def(graph: Any, *args: Any, **kwargs: Any) -> Any:
        graph_def, version = original(graph, *args, **kwargs)
        if graph in _graphs_with_own_ops:
            strip_own_nodes(graph_def.node)
        return graph_def, version

    framework_ops.Graph._as_graph_def = as_graph_def
