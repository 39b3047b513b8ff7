"""The only module that touches TensorFlow's private API, with `hooks_session.py` for sessions.

Each hook replaces one attribute of a TensorFlow module while a recording runs and puts the original back
afterwards, unless somebody else replaced it meanwhile: then ours stays and passes every call on.

| hook | why |
|---|---|
| op callback of each thread | every eager op, and the Python stack of every op created in a graph |
| `Context.call_function` | a function call begins: noted before anything in it runs |
| `atomic_function.from_func_graph` | a graph becomes a function: described and made to record |
| `function_context.make_function_context` | what was traced without recording is traced anew |
| `tracing_compilation._create_concrete_function` | what is traced for XLA is known as such from the start |
| `ConcreteFunction._call_flat` | so are the gradients of a function that stays compiled |
| `threading.Thread._bootstrap_inner`, `FuncRegistry.__call__` | threads that start, and TensorFlow's that run Python |
| `core._status_to_exception`, `BaseSession._do_call` | TensorFlow's error of a step that we failed becomes ours |
| `save._build_meta_graph_impl` | a SavedModel never holds an op of ours; stays for good |
| `atomic_function.from_func_graph` once more | XLA never gets an op of ours; stays for good |
| `Context.call_function` once more, `Context.set_server_def` | nor does another process; stay for good |
| `Closure.__init__`, `ClusterCoordinator.create_per_worker_dataset` | what is traced for others is known as such |
"""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf
from tensorflow.core.function.polymorphism import function_cache
from tensorflow.python.autograph.impl import api as autograph_api
from tensorflow.python.client import session as client_session
from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import core as eager_core
from tensorflow.python.eager import execute
from tensorflow.python.eager import record as tape_record
from tensorflow.python.eager.polymorphic_function import (
    atomic_function,
    concrete_function,
    function_context,
    tracing_compilation,
)
from tensorflow.python.framework import config as framework_config
from tensorflow.python.framework import op_def_registry
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.ops import script_ops
from tensorflow.python.ops.control_flow_v2_func_graphs import WhileBodyFuncGraph, WhileCondFuncGraph
from tensorflow.python.saved_model import save as saved_model_save

from tfdbg_arrow.errors import RecordingError
from tfdbg_arrow.writer.instrument import OWN_NAME_PREFIX, OWN_OP_PREFIX, TensorBatch, functions_of
from tfdbg_arrow.writer.plain_functions import SUFFIX as PLAIN_SUFFIX
from tfdbg_arrow.writer.stacks import Location

_XLA_MUST_COMPILE = "_XlaMustCompile"
_NO_INLINE = "_noinline"
_AttrValue = tf.compat.v1.AttrValue


class Stop(Protocol):
    """What turns TensorFlow's error of a step that we failed into ours."""

    def error_in(self, text: str) -> Exception | None:
        """Returns our error for the text of one of TensorFlow's; None for an error that is not about us."""


class Observer(Protocol):
    """What the hooks tell a recording. Nothing of it may raise."""

    op_callback: Callable[..., None]
    generation: int
    keeps_xla: bool

    @property
    def stop(self) -> Stop | None:
        """Set where the recording may stop the program."""

    def begin_call(self, function_name: bytes, inputs: Sequence[Any], num_outputs: int, /) -> int:
        """A call of a function from eager code begins; returns its execution index, -1 for none."""

    def end_call(self, execution_index: int, outputs: Sequence[Any] | None, /) -> None:
        """The call has returned its outputs, or raised (None)."""

    def before_function(self, function_name: str, graph: Any, unobserved_for: str | None, /) -> None:
        """A runtime function is about to be made of a graph, of which nothing may be recorded for a reason, if any."""

    def after_function(self, function_name: str, graph: Any, function_def: Callable[[], Any]) -> None:
        """A runtime function was made of a graph; `function_def` gives its FunctionDef."""

    def note_without_xla(self, function_name: str) -> None:
        """A function that asked for XLA is compiled without it."""

    def note_kept_xla(self, function_name: str) -> None:
        """A function that asked for XLA is compiled with it, and not recorded."""

    def note_connected(self) -> None:
        """The process is connected to others, whose devices it can use."""

    def note_remote(self, function_name: str, device_name: str | None) -> None:
        """A function is made for, or called on, a device of another process."""

    def note_not_inlined(self, function_name: str) -> None:
        """A function with loops or branches of graph mode is kept as a call."""

    def function_to_run(self, function_name: bytes, /) -> bytes:
        """Returns which function is to run where a function is called."""


@dataclass(frozen=True)
class Patch:
    """One replaced attribute."""

    owner: Any
    name: str
    original: Any
    replacement: Any

    def remove(self) -> None:
        """Puts the original back, unless somebody else replaced ours."""
        if getattr(self.owner, self.name) is self.replacement:
            setattr(self.owner, self.name, self.original)


class Hooks:
    """The hooks of one recording.

    Args:
        observer: Is told of calls and functions.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._active = False
        self._patches: list[Patch] = []
        self._callback_lists: list[list[Any]] = []
        self._lock = threading.Lock()

    def install(self) -> None:
        """Puts all hooks in place; the calling thread and every later one is observed."""
        _keep_saved_models_clean()
        _keep_functions_compilable()
        _keep_remote_calls_clean()
        self._active = True
        _on_connected.append(self._observer.note_connected)
        if _local_task:
            self._observer.note_connected()
        self._patch(eager_context.Context, "call_function", self._make_call_function)
        self._patch(atomic_function, "from_func_graph", self._make_from_func_graph)
        self._patch(function_context, "make_function_context", self._make_make_function_context)
        self._patch(tracing_compilation, "_create_concrete_function", self._make_create_concrete_function)
        self._patch(cluster_coordinator.Closure, "__init__", self._make_remote_entry)
        self._patch(cluster_coordinator.ClusterCoordinator, "create_per_worker_dataset", self._make_remote_entry)
        if self._observer.keeps_xla:
            self._patch(concrete_function.ConcreteFunction, "_call_flat", self._make_call_flat)
        self._patch(threading.Thread, "_bootstrap_inner", self._make_observed_entry)
        self._patch(script_ops.FuncRegistry, "__call__", self._make_observed_entry)
        if self._observer.stop is not None:
            self._patch(eager_core, "_status_to_exception", self._make_status_to_exception)
            self._patch(client_session.BaseSession, "_do_call", self._make_do_call)
        self._observe_thread()
        execute.execute = execute.execute_with_callbacks

    def remove(self) -> None:
        """Takes the hooks away; functions made meanwhile run on."""
        self._active = False
        if self._observer.note_connected in _on_connected:
            _on_connected.remove(self._observer.note_connected)
        for patch in reversed(self._patches):
            patch.remove()
        self._patches.clear()
        callback = self._observer.op_callback
        with self._lock:
            for callbacks in self._callback_lists:
                if callback in callbacks:
                    callbacks.remove(callback)
            self._callback_lists.clear()
        if not eager_context.context().op_callbacks:
            execute.execute = execute.quick_execute

    def _patch(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        replacement = make(original)
        setattr(owner, name, replacement)
        self._patches.append(Patch(owner=owner, name=name, original=original, replacement=replacement))

    def _observe_thread(self) -> None:
        """Gives the calling thread our op callback: TensorFlow keeps a list of them for each thread."""
        callbacks = eager_context.context().op_callbacks
        callback = self._observer.op_callback
        if callback not in callbacks:
            with self._lock:
                if self._active:
                    callbacks.append(callback)
                    self._callback_lists.append(callbacks)

    def _make_observed_entry(self, original: Any) -> Any:
        def run_observed(*args: Any, **kwargs: Any) -> Any:
            if self._active:
                self._observe_thread()
            return original(*args, **kwargs)

        return run_observed

    def _make_call_function(self, original: Any) -> Any:
        observer = self._observer

        def call_function(ctx: Any, name: bytes, tensor_inputs: Sequence[Any], num_outputs: int) -> Any:
            if not self._active or _thread.is_unobserved:
                return original(ctx, name, tensor_inputs, num_outputs)
            self._observe_thread()
            if is_remote(ctx.device_name or ""):
                text = _clean_copy(ctx, name.decode() if isinstance(name, bytes) else name)
                observer.note_remote(text, ctx.device_name)
                name = text.encode()
            to_run = observer.function_to_run(name)
            if to_run != name:
                with _named_as_called():
                    return original(ctx, to_run, tensor_inputs, num_outputs)
            execution_index = observer.begin_call(name, tensor_inputs, num_outputs)
            outputs = None
            try:
                outputs = original(ctx, name, tensor_inputs, num_outputs)
                return outputs
            except tf.errors.OpError as failure:
                error = self._stop_error(failure.message)
                if error is None:
                    raise
                raise error from None
            finally:
                observer.end_call(execution_index, outputs)

        return call_function

    def _stop_error(self, text: str) -> Exception | None:
        """Returns our error for the text of one of TensorFlow's; None where the error is not about us."""
        stop = self._observer.stop
        return stop.error_in(text) if self._active and stop is not None else None

    def _make_status_to_exception(self, original: Any) -> Any:
        def status_to_exception(status: Any) -> Any:
            error = self._stop_error(status.message)
            return original(status) if error is None else error

        return status_to_exception

    def _make_do_call(self, original: Any) -> Any:
        def do_call(session: Any, function: Any, *args: Any) -> Any:
            try:
                return original(session, function, *args)
            except tf.errors.OpError as failure:
                error = self._stop_error(failure.message)
                if error is None:
                    raise
                raise error from None

        return do_call

    def _make_from_func_graph(self, original: Any) -> Any:
        observer = self._observer

        def from_func_graph(name: Any, graph: Any, attrs: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._active or _thread.is_unobserved:
                return original(name, graph, attrs, *args, **kwargs)
            text = name.decode() if isinstance(name, bytes) else name
            if attrs and _is_true(attrs.get(_XLA_MUST_COMPILE)):
                if observer.keeps_xla and not _reaches_own_op(graph):
                    _unobserved_graphs[graph] = "xla"
                    observer.note_kept_xla(text)
                else:
                    # XLA has no kernel for a record op: the function would fail to compile.
                    attrs = _without_xla(attrs)
                    _unobserved_graphs.pop(graph, None)
                    observer.note_without_xla(text)
            reason = _reason_unobserved(graph)
            if reason == "remote":
                observer.note_remote(text, None)
            elif reason is None and has_low_level_control_flow(graph):
                # A record op in a loop of graph mode cannot be waited for from outside: not by the caller either.
                attrs = {**(attrs or {}), _NO_INLINE: _AttrValue(b=True)}
                observer.note_not_inlined(text)
            observer.before_function(text, graph, reason)
            function = original(name, graph, attrs, *args, **kwargs)
            observer.after_function(text, graph, lambda: function.cached_definition)
            return function

        return from_func_graph

    def _make_make_function_context(self, original: Any) -> Any:
        observer = self._observer

        def make_function_context(scope_type: Any = None) -> Any:
            context = original(scope_type)
            if not self._active or _thread.is_unobserved:
                return context
            self._observe_thread()
            reason = _reason_unobserved(framework_ops.get_default_graph())
            # A function that is also called where it cannot be observed has one trace for there and one for here.
            key = (context.context, "tfdbg_arrow", observer.generation, reason)
            return function_cache.FunctionContext(key, context.scope_type)

        return make_function_context

    def _make_create_concrete_function(self, original: Any) -> Any:
        def create_concrete_function(function_type: Any, type_context: Any, func_graph: Any, options: Any) -> Any:
            if self._active and not _thread.is_unobserved:
                is_kept = self._observer.keeps_xla and (options.attributes or {}).get(_XLA_MUST_COMPILE)
                reason = "xla" if is_kept else _reason_unobserved(framework_ops.get_default_graph())
                if reason is not None:
                    _unobserved_graphs[func_graph] = reason
            return original(function_type, type_context, func_graph, options)

        return create_concrete_function

    def _make_remote_entry(self, original: Any) -> Any:
        def run_for_others(*args: Any, **kwargs: Any) -> Any:
            was, _thread.reason_unobserved = _thread.reason_unobserved, "remote" if self._active else None
            try:
                return original(*args, **kwargs)
            finally:
                _thread.reason_unobserved = was

        return run_for_others

    def _make_call_flat(self, original: Any) -> Any:
        """Where a tape is on, a call makes gradient functions, in a graph that does not know what it will be for."""
        is_compiled: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()

        def call_flat(function: Any, *args: Any, **kwargs: Any) -> Any:
            known = is_compiled.get(function)
            if known is None:
                attributes = function.function_def.attr
                known = _XLA_MUST_COMPILE in attributes and attributes[_XLA_MUST_COMPILE].b
                is_compiled[function] = known
            if not known or not self._active:
                return original(function, *args, **kwargs)
            _unobserved_graphs[function.graph] = "xla"
            was, _thread.reason_unobserved = _thread.reason_unobserved, "xla"
            try:
                return original(function, *args, **kwargs)
            finally:
                _thread.reason_unobserved = was

        return call_flat


_LOW_LEVEL_CONTROL_FLOW = frozenset({"Enter", "Merge", "RefEnter", "RefMerge", "RefSwitch", "Switch"})


def has_low_level_control_flow(graph: Any) -> bool:
    """Returns whether a graph holds the loops and branches of graph mode."""
    return any(op.type in _LOW_LEVEL_CONTROL_FLOW for op in graph.get_operations())


def _is_true(attribute: Any) -> bool:
    return bool(getattr(attribute, "b", attribute))


def _without_xla(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in attrs.items() if key != _XLA_MUST_COMPILE}


_unobserved_graphs: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""Graphs of which nothing may be recorded, nor of those traced in them: to `not_recorded_reason`."""


def _reason_unobserved(graph: Any) -> str | None:
    """Returns why nothing may be recorded of a graph, None where it may."""
    if _thread.reason_unobserved is not None:
        return _thread.reason_unobserved
    if _local_task and is_remote(eager_context.context().device_name or ""):
        return "remote"
    while graph is not None:
        reason = _unobserved_graphs.get(graph)
        if reason is None and _local_task and is_remote(_device_scope(graph)):
            reason = "remote"
        if reason is not None:
            return reason
        graph = getattr(graph, "outer_graph", None)
    return None


def _device_scope(graph: Any) -> str:
    """Returns the device that the innermost tf.device() with a name asks for while a graph is traced."""
    names = (spec.raw_string for spec in graph._device_function_stack.peek_objs())
    return next((name for name in names if name), "")


def _reaches_own_op(graph: Any) -> bool:
    """Returns whether a graph, or a function that it calls, holds an op that only we have."""
    graph_def = graph.as_graph_def()
    library = {function.signature.name: function.node_def for function in graph_def.library.function}
    waiting, seen = [graph_def.node], set()
    while waiting:
        for node in waiting.pop():
            if _is_own(node):
                return True
            for _, _, name in functions_of(node):
                if name not in seen and name in library:
                    seen.add(name)
                    waiting.append(library[name])
    return False


_local_task = ""
"""Address of this process in a cluster that it is connected to, as `/job:chief/replica:0/task:0`; else empty."""


def is_remote(device: str) -> bool:
    """Returns whether a device, by name, is one of another process that this one is connected to."""
    return bool(_local_task) and _is_elsewhere(device, _local_task)


@functools.lru_cache(maxsize=4096)
def _is_elsewhere(device: str, local_task: str) -> bool:
    spec, local = tf.DeviceSpec.from_string(device), tf.DeviceSpec.from_string(local_task)
    if spec.job in (None, "localhost"):
        return False
    return spec.job != local.job or spec.task not in (None, local.task)


def local_task() -> str:
    """Returns the address of this process in the cluster that it is connected to; empty where there is none."""
    return _local_task


_on_connected: list[Callable[[], None]] = []
_remote_calls_are_kept_clean = False


def _keep_remote_calls_clean() -> None:
    """From now on no function of ours runs in another process, which has no kernels for it."""
    global _remote_calls_are_kept_clean
    if _remote_calls_are_kept_clean:
        return
    _remote_calls_are_kept_clean = True
    call_original = eager_context.Context.call_function
    connect_original = eager_context.Context.set_server_def

    def call_function(ctx: Any, name: Any, tensor_inputs: Sequence[Any], num_outputs: int) -> Any:
        if is_remote(ctx.device_name or ""):
            name = _clean_copy(ctx, name.decode() if isinstance(name, bytes) else name).encode()
        return call_original(ctx, name, tensor_inputs, num_outputs)

    def set_server_def(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        result = connect_original(ctx, *args, **kwargs)
        _find_local_task()
        for tell in _on_connected:
            tell()
        return result

    eager_context.Context.call_function = call_function
    eager_context.Context.set_server_def = set_server_def
    _find_local_task()


def _find_local_task() -> None:
    global _local_task
    context = eager_context.context()
    if getattr(context, "_server_def", None) is not None:
        _local_task = context.host_address_space()


_clean_copies: dict[str, str] = {}


def _clean_copy(context: Any, name: str) -> str:
    """Returns the name of a function that is another one without our ops; its own name where it holds none."""
    known = _clean_copies.get(name)
    if known is not None:
        return known
    original = context.get_function_def(name)
    copy = type(original)()
    copy.CopyFrom(original)
    is_changed = strip_function(copy)
    for node in copy.node_def:
        for attribute, index, callee in functions_of(node):
            clean = _clean_copy(context, callee) if context.has_function(callee) else callee
            if clean != callee:
                is_changed = True
                value = node.attr[attribute]
                (value.func if value.WhichOneof("value") == "func" else value.list.func[index]).name = clean
    if is_changed:
        copy.signature.name = f"{name}_unrecorded"
        context.add_function_def(copy)
    _clean_copies[name] = copy.signature.name
    return str(copy.signature.name)


_functions_are_kept_compilable = False


def _keep_functions_compilable() -> None:
    """From now on no function that XLA compiles calls one that records, also after recording has ended."""
    global _functions_are_kept_compilable
    if _functions_are_kept_compilable:
        return
    _functions_are_kept_compilable = True
    original = atomic_function.from_func_graph

    def from_func_graph(name: Any, graph: Any, attrs: Any, *args: Any, **kwargs: Any) -> Any:
        if attrs and _is_true(attrs.get(_XLA_MUST_COMPILE)) and _reaches_own_op(graph):
            attrs = _without_xla(attrs)
            message = (
                f"tfdbg_arrow: {graph.name} runs without XLA: it calls a concrete function that was traced while "
                "recording; trace that one anew to have it compiled"
            )
            # Never an exception, even where the program turns warnings into errors.
            with contextlib.suppress(RuntimeWarning):
                warnings.warn(message, RuntimeWarning, stacklevel=2)
        return original(name, graph, attrs, *args, **kwargs)

    atomic_function.from_func_graph = from_func_graph


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


_HELD_CONDITION = "condition_once_recorded"
_HELD_VARIABLE = "loop_variable_once_recorded"


def make_run(graph: Any, ops: Sequence[Any]) -> None:
    """Makes TensorFlow run ops of a graph, though nobody uses their outputs, whenever the graph runs.

    Control outputs do that, but for a loop's condition, of which the runtime keeps only the result: there
    the result is made to wait for the ops.
    """
    known = {op.name for op in graph.control_outputs}
    new = [op for op in ops if op.name not in known]
    graph.control_outputs.extend(new)
    if not new or not isinstance(graph, WhileCondFuncGraph):
        return
    result = graph.outputs[0]
    if not _is_held(result):
        attrs = {"T": _AttrValue(type=result.dtype.as_datatype_enum)}
        with graph.as_default():
            held = graph._create_op_internal(
                "Identity", [result], [result.dtype], None, _HELD_CONDITION, attrs, None, False
            )
        held.outputs[0].set_shape(result.shape)
        graph.outputs[0] = held.outputs[0]
    graph.outputs[0].op._add_control_inputs(new)


def make_run_before_next(graph: Any, ops: Sequence[Any]) -> None:
    """As make_run(), and no iteration of a loop begins before the ops of the last one have run."""
    known = {op.name for op in graph.control_outputs}
    new = [op for op in ops if op.name not in known]
    make_run(graph, ops)
    # What runs within a loop of graph mode cannot be waited for from outside.
    if not new or not isinstance(graph, WhileBodyFuncGraph) or has_low_level_control_flow(graph):
        return
    arguments = {id(tensor) for tensor in graph.inputs}
    with graph.as_default():
        for index, result in enumerate(graph.outputs):
            # A gradient tells loop invariants and lists from loop variables by the tensors themselves.
            if id(result) in arguments or result.dtype in (tf.resource, tf.variant):
                continue
            if not _is_held(result):
                attrs = {"T": _AttrValue(type=result.dtype.as_datatype_enum)}
                held = graph._create_op_internal(
                    "Identity", [result], [result.dtype], None, _HELD_VARIABLE, attrs, None, False
                )
                held.outputs[0].set_shape(result.shape)
                graph.outputs[index] = held.outputs[0]
            graph.outputs[index].op._add_control_inputs(new)


def own_result(tensor: Any) -> Any:
    """Returns the user's tensor for a graph's result that make_run() has put in its place."""
    return tensor.op.inputs[0] if _is_held(tensor) else tensor


def _is_held(tensor: Any) -> bool:
    # The name may have a scope before it and a number behind it.
    return str(tensor.op.name).rpartition("/")[2].startswith((_HELD_CONDITION, _HELD_VARIABLE))


def is_used_by_graph(graph: Any) -> bool:
    """Returns whether another graph uses what a graph returns: not eager code, not a loop's next iteration."""
    return hasattr(graph.outer_graph, "control_outputs") and not isinstance(graph, WhileBodyFuncGraph)


def let_pass(error: Exception) -> Exception:
    """Marks an error so that autograph and Keras hand it on as it is, and returns it."""
    error.ag_pass_through = True  # type: ignore[attr-defined]
    error._keras_call_info_injected = True  # type: ignore[attr-defined]
    return error


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
    """Records with the native op: one for each op that makes covered tensors.

    Args:
        generation: Tells the recordings of one process apart.
        is_gate: Whether no op takes a tensor that can stop the program before that tensor is recorded.
    """

    def __init__(self, *, generation: int, is_gate: bool = False) -> None:
        self._generation = generation
        self._max_ops = 1 if is_gate else _MAX_OPS_IN_GROUP
        self._is_gate = is_gate

    def add(self, graph: Any, batches: Sequence[TensorBatch]) -> list[Any]:
        """Adds the record ops; returns them."""
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
                added.append(create_record_op(graph, "TfdbgArrowRecord", tensors, attrs=attrs, device=device))
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


# Each record op costs a turn of TensorFlow's scheduler, as much as counting a small tensor; but an op that takes
# many tensors keeps the first alive until the last is there, and an error in between loses them all.
_MAX_OPS_IN_GROUP = 4


def _groups(
    batches: Sequence[TensorBatch], places: Mapping[int, int], *, max_ops: int
) -> list[tuple[str, list[TensorBatch]]]:
    """Batches that one record op takes: neighbours in order of creation, on the same device, all arguments or none."""
    groups: list[tuple[str, list[TensorBatch]]] = []
    filling: dict[tuple[str, bool], list[TensorBatch]] = {}
    for batch in batches:
        device = batch.op.device
        key = (device, id(batch.tensors[0]) in places)
        if key not in filling or len(filling[key]) >= max_ops:
            filling[key] = []
            groups.append((device, filling[key]))
        filling[key].append(batch)
    return groups


def original_location(file_path: str, lineno: int) -> Location | None:
    """Maps a line of a file that autograph generated to the user's line; None for any other file.

    TensorFlow keeps this map for each thread, and it is missing in some; the cache of converted
    functions has it for all.
    """
    if "__autograph_generated_file" not in file_path:
        return None
    source_map = _autograph_maps.get(file_path)
    if source_map is None:
        source_map = _find_autograph_map(file_path)
        _autograph_maps[file_path] = source_map
    return source_map.get(lineno)


_autograph_maps: dict[str, dict[int, Location]] = {}


def _find_autograph_map(file_path: str) -> dict[int, Location]:
    for by_options in list(autograph_api._TRANSPILER._cache._cache.values()):
        for factory in list(by_options.values()):
            source_map = factory.source_map
            if factory.module is None or getattr(factory.module, "__file__", None) != file_path or not source_map:
                continue
            return {
                line.lineno: (origin.loc.filename, origin.loc.lineno, origin.function_name or "<lambda>")
                for line, origin in source_map.items()
                if line.filename == file_path
            }
    return {}


class _Thread(threading.local):
    is_unobserved = False
    reason_unobserved: str | None = None


_thread = _Thread()


def is_unobserved() -> bool:
    """Returns whether the calling thread is within unobserved()."""
    return _thread.is_unobserved


@contextmanager
def unobserved() -> Iterator[None]:
    """Runs or creates ops and functions of ours: no op callback is told of them, no gradient tape keeps them."""
    thread_data = eager_context.context()._thread_local_data
    callbacks = thread_data.op_callbacks
    was_unobserved, _thread.is_unobserved = _thread.is_unobserved, True
    # The list itself stays as it is: remove() may take our callback out of it meanwhile.
    thread_data.op_callbacks = []
    try:
        with tape_record.stop_recording():
            yield
    finally:
        thread_data.op_callbacks = callbacks
        _thread.is_unobserved = was_unobserved


def eager_tensor_id(tensor: Any) -> int:
    """Returns the id of an eager tensor, -1 for anything else."""
    return tensor._id if type(tensor) is framework_ops.EagerTensor else -1


def allows_soft_placement() -> bool:
    """Returns whether an op that has no kernel on the device it asks for runs elsewhere, as it does by default."""
    # tf.config.get_soft_device_placement() answers otherwise while a graph is the default.
    return eager_context.context()._soft_device_placement is not False


def is_op_determinism_enabled() -> bool:
    """Returns whether the program asked for deterministic ops."""
    return bool(framework_config.is_op_determinism_enabled())


def has_accelerator() -> bool:
    """Returns whether TensorFlow sees a device other than the CPU."""
    return any(device.device_type != "CPU" for device in tf.config.list_physical_devices())


def host_device_name() -> str:
    """Returns the full name of this process's first CPU."""
    # In eager mode, also where the program turned that off: its default graph must not get an op.
    with unobserved(), eager_context.eager_mode(), tf.device("CPU:0"):
        return str(tf.zeros([]).device)


def library_paths() -> tuple[str, str, str]:
    """Returns the paths of TensorFlow's framework, runtime and Python binding libraries.

    Raises:
        RecordingError: They are not where TensorFlow 2.17 to 2.21 have them.
    """
    root = os.path.dirname(tf.__file__)
    found: list[str] = []
    for patterns in (
        ("libtensorflow_framework.so.2", "libtensorflow_framework*.dylib"),
        ("libtensorflow_cc.so.2", "libtensorflow_cc*.dylib"),
        ("python/lib_pywrap_tensorflow_common.*", "python/_pywrap_tensorflow_internal.so"),
    ):
        paths = [path for pattern in patterns for path in sorted(glob.glob(os.path.join(root, pattern)))]
        if not paths:
            raise RecordingError(
                f"TensorFlow {tf.__version__} in {root} has no library {patterns[0]}; the native recorder knows "
                "TensorFlow 2.17 to 2.21: use health_backend='tensorflow'"
            )
        found.append(paths[0])
    return found[0], found[1], found[2]


@contextmanager
def _named_as_called() -> Iterator[None]:
    """Names in TensorFlow's errors the functions that the program called, by which it finds the user's lines."""
    try:
        yield
    except tf.errors.OpError as error:
        error._message = error._message.replace(PLAIN_SUFFIX, "")
        raise


class RuntimeFunctions:
    """TensorFlow's runtime functions, as the eager context holds them."""

    def function_def(self, name: str) -> Any:
        """Returns a copy of a function's FunctionDef."""
        return eager_context.context().get_function_def(name)

    def add_function_def(self, function_def: Any) -> None:
        """Adds a function."""
        eager_context.context().add_function_def(function_def)

    def strip_function(self, function_def: Any) -> bool:
        """Removes every op of ours from a FunctionDef; returns whether there was one."""
        return strip_function(function_def)

    def keeps_state(self, op_type: str) -> bool:
        """Returns whether ops of that type are stateful and take no resource that holds the state."""
        op_def = op_def_registry.get(op_type)
        if op_def is None:
            return True
        return bool(op_def.is_stateful) and not any(
            arg.type == tf.resource.as_datatype_enum for arg in op_def.input_arg
        )


_saved_models_are_kept_clean = False


def _keep_saved_models_clean() -> None:
    """From now on no SavedModel of this process holds an op of ours, also after recording has ended."""
    global _saved_models_are_kept_clean
    if _saved_models_are_kept_clean:
        return
    _saved_models_are_kept_clean = True
    original = saved_model_save._build_meta_graph_impl

    def build_meta_graph(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        strip_record_ops(result[0])
        return result

    saved_model_save._build_meta_graph_impl = build_meta_graph


def strip_record_ops(meta_graph_def: Any) -> None:
    """Removes every op of ours, and every mention of one, from a MetaGraphDef."""
    stripped = meta_graph_def.meta_info_def.stripped_op_list.op
    _delete(stripped, lambda op: op.name.startswith(OWN_OP_PREFIX))
    graph_def = meta_graph_def.graph_def
    strip_own_nodes(graph_def.node)
    for function in graph_def.library.function:
        strip_function(function)


def strip_function(function_def: Any) -> bool:
    """Removes every op of ours, and every mention of one, from a FunctionDef; returns whether it held any."""
    names = strip_own_nodes(function_def.node_def)
    for key in [key for key, node in function_def.control_ret.items() if node in names]:
        del function_def.control_ret[key]
        function_def.signature.control_output.remove(key)
    return bool(names)


def _is_own(node: Any) -> bool:
    return bool(node.op.startswith(OWN_OP_PREFIX) or node.name.startswith(OWN_NAME_PREFIX))


def strip_own_nodes(nodes: Any) -> set[str]:
    """Removes every op of ours, and every mention of one, from a list of NodeDefs; returns their names."""
    names = {node.name for node in nodes if _is_own(node)}
    if names:
        _delete(nodes, lambda node: node.name in names)
        for node in nodes:
            _delete(node.input, lambda text: text.removeprefix("^") in names)
    return names


def _delete(repeated: Any, is_unwanted: Callable[[Any], bool]) -> None:
    for index in range(len(repeated) - 1, -1, -1):
        if is_unwanted(repeated[index]):
            del repeated[index]
