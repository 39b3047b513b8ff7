"""Hooks into the tracing of functions, when a graph becomes a runtime function.

| hook | purpose |
|---|---|
| `atomic_function.from_func_graph` | describes a graph that becomes a function, and prepares it for recording |
| `function_context.make_function_context` | traces functions again if they were traced without recording |
| `tracing_compilation._create_concrete_function` | marks graphs that are traced for XLA; drops old traces |
| `ConcreteFunction._call_flat` | marks the gradient functions of a function that stays compiled |
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.core.function.polymorphism import function_cache
from tensorflow.python.eager.polymorphic_function import (
    atomic_function,
    concrete_function,
    function_context,
    tracing_compilation,
)
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.ops import control_flow_util
from tensorflow.python.util import tf_stack

from tfdbg_arrow.schema.op_traits import Trait, types_with
from tfdbg_arrow.writer.graphs.function_edit import MUST_COMPILE, NO_INLINE
from tfdbg_arrow.writer.hooks.observation import Observation
from tfdbg_arrow.writer.hooks.patches import Patches
from tfdbg_arrow.writer.hooks.unobserved import INSIDE, reason_unobserved, this_thread, traced_for, unobserved_graphs
from tfdbg_arrow.writer.own_frames import own_frames_left_out

_CONTROL_FLOW = types_with(Trait.BRANCHES | Trait.LOOPS)
_LOWER = "_lower_using_switch_merge"


def hook_tracing(observation: Observation, patches: Patches) -> None:
    """Installs the hooks that trace functions again, so that the functions are recorded."""
    patches.put(atomic_function, "from_func_graph", partial(_make_from_func_graph, observation))
    patches.put(function_context, "make_function_context", partial(_make_make_function_context, observation))
    patches.put(tracing_compilation, "_create_concrete_function", partial(_make_create_concrete_function, observation))


def _make_from_func_graph(observation: Observation, original: Any) -> Any:
    observer = observation.observer

    def from_func_graph(name: Any, graph: Any, attrs: Any, *args: Any, **kwargs: Any) -> Any:
        if not observation.is_active or this_thread.is_unobserved:
            return original(name, graph, attrs, *args, **kwargs)
        text = name.decode() if isinstance(name, bytes) else name
        is_traced_for_xla = must_compile(attrs) or control_flow_util.GraphOrParentsInXlaContext(graph)
        if must_compile(attrs) and reason_unobserved(graph) != "remote":
            choice = observer.xla_choice()
            if choice == "keep":
                unobserved_graphs[graph] = "xla"
                observer.note_kept_xla(text)
            elif choice == "inside":
                unobserved_graphs[graph] = INSIDE
                observer.note_compiled(text)
            else:
                attrs = without_xla(attrs)
                unobserved_graphs.pop(graph, None)
                observer.note_without_xla(text)
        reason = reason_unobserved(graph)
        if reason == "remote":
            observer.note_remote(text, None)
        if is_traced_for_xla and reason is None:
            inline_control_flow(graph)
        is_inside = reason == INSIDE
        observer.before_function(text, graph, None if is_inside else reason, is_compiled=is_inside)
        with own_frames_left_out:
            function = original(name, graph, attrs, *args, **kwargs)
        observer.after_function(text, graph, lambda: function.cached_definition)
        return function

    return from_func_graph


def _make_make_function_context(observation: Observation, original: Any) -> Any:
    def make_function_context(scope_type: Any = None) -> Any:
        context = original(scope_type)
        if not observation.is_active or this_thread.is_unobserved:
            return context
        observation.observe_thread()
        reason = reason_unobserved(framework_ops.get_default_graph())
        # A function that is also called where it cannot be observed needs a separate trace for those calls.
        observer = observation.observer
        key = _TraceKey(context.context, reason, observer.generation, observer.xla_choice())
        return function_cache.FunctionContext(key, context.scope_type)

    return make_function_context


def _make_create_concrete_function(observation: Observation, original: Any) -> Any:
    def create_concrete_function(function_type: Any, type_context: Any, func_graph: Any, options: Any) -> Any:
        if observation.is_active and not this_thread.is_unobserved:
            reason = reason_unobserved(framework_ops.get_default_graph())
            if must_compile(options.attributes) and reason != "remote":
                reason = {"keep": "xla", "inside": INSIDE}.get(observation.observer.xla_choice(), reason)
            if reason is not None:
                unobserved_graphs[func_graph] = reason
        with own_frames_left_out, _HooksLeftOut():
            function = _with_room(original, function_type, type_context, func_graph, options)
        if observation.is_active and options.function_cache is not None:
            try:
                context = function_context.make_function_context(options.scope_type)
                _drop_older_traces(options.function_cache, function.function_type, context)
            except Exception as error:  # the program works with older traces too
                observation.observer.note_failure("dropping the traces of earlier recordings", error)
        return function

    return create_concrete_function


class _HooksLeftOut(tf_stack.StackTraceFilter):  # type: ignore[misc]
    """Keeps the frames of hooks out of the stacks of ops, which TensorFlow's errors show."""

    def get_filtered_filenames(self) -> frozenset[str]:
        return _HOOKS | self.parent.get_filtered_filenames()  # type: ignore[no-any-return]


_HOOKS = frozenset(map(str, Path(__file__).parent.glob("*.py")))


class _Thread(threading.local):
    has_room = False


_thread = _Thread()


def _with_room(function: Any, *args: Any) -> Any:
    """Calls a function, with stack space for the frames of all nested calls.

    CPython keeps the frames of a thread in chunks of 16 KiB. A call at the end of a chunk maps another chunk, and
    unmaps it when the call returns. Tracing is so deep that this happens for most ops, and each such call costs more
    than creating an op. A frame that is larger than a chunk gets a chunk of twice the frame's size, and the rest of
    this chunk is for the frames of nested calls.
    """
    if _thread.has_room:
        return function(*args)
    _thread.has_room = True
    try:
        return _call_in_large_frame(function, args)
    finally:
        _thread.has_room = False


def _call(function: Any, args: Any) -> Any:
    return function(*args)


_LARGE_FRAME_SLOTS = 1 << 14
"""Size of the large frame in pointers: 128 KiB. The rest of its chunk is enough for some 500 frames."""
_call_in_large_frame = FunctionType(_call.__code__.replace(co_stacksize=_LARGE_FRAME_SLOTS), globals())


class _TraceKey(NamedTuple):
    """Distinguishes the traces of a function in its cache.

    Attributes:
        context: TensorFlow's own key.
        reason: Why the trace is not recorded; None if the trace is recorded.
        generation: The number of the recording in this process.
        xla: How functions with jit_compile=True are treated.
    """

    context: Any
    reason: str | None
    generation: int
    xla: str


def _drop_older_traces(cache: Any, function_type: Any, context: Any) -> None:
    """Drops traces of earlier recordings from the cache of a function, if a new trace replaces them.

    No call can find these traces any more, and each trace keeps its graph. The newest trace stays for exports after the
    recording.

    Args:
        cache: The FunctionCache, locked by the caller.
        function_type: The FunctionType of the new trace.
        context: The FunctionContext of the new trace.
    """
    parameters, new = dict(function_type.parameters), context.context
    for older, other in list(cache._primary):
        key = older.context
        if not isinstance(key, _TraceKey) or not isinstance(new, _TraceKey) or key.generation == new.generation:
            continue
        is_replaced = key[:2] == new[:2] and older.scope_type == context.scope_type
        if is_replaced and dict(other.parameters) == parameters:
            cache.delete(other, older)
            if not any(cached == older for cached, _ in cache._primary):
                cache._dispatch_dict.pop(older, None)


def must_compile(attributes: Mapping[str, Any] | None) -> bool:
    """Returns True if the attributes of a function, given as values or AttrValues, ask for XLA."""
    attribute = (attributes or {}).get(MUST_COMPILE)
    return bool(getattr(attribute, "b", attribute))


def without_xla(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes of a function without those that `jit_compile=True` added.

    A function that is not inlined has its own step ID, and its arguments cannot be traced to the caller.
    """
    return {key: value for key, value in attrs.items() if key not in (MUST_COMPILE, NO_INLINE)}


def inline_control_flow(graph: Any) -> None:
    """Makes TensorFlow inline loops and branches in a graph that was traced for XLA but runs without it.

    In other graphs, TensorFlow marks these ops when it creates them. A loop that is not marked runs its body as a call
    with its own step IDs.
    """
    for op in graph.get_operations():
        if op.type not in _CONTROL_FLOW or _LOWER in op.node_def.attr:
            continue
        is_for_xla = control_flow_util.GetContainingXLAContext(op._get_control_flow_context()) is not None
        if is_for_xla or control_flow_util.GraphOrParentsInXlaContext(graph):
            op._set_attr(_LOWER, tf.compat.v1.AttrValue(b=True))


def hook_compiled_calls(observation: Observation, patches: Patches) -> None:
    """Installs the hook that marks the gradient functions of functions that stay compiled.

    If a tape is active, a call creates gradient functions in a graph that has no sign of XLA.
    """

    def make_call_flat(original: Any) -> Any:
        is_compiled: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()

        def call_flat(function: Any, *args: Any, **kwargs: Any) -> Any:
            stays_compiled = is_compiled.get(function)
            if stays_compiled is None:
                stays_compiled = is_compiled[function] = must_compile(function.function_def.attr)
            choice = observation.observer.xla_choice()
            is_remote = reason_unobserved(function.graph) == "remote"
            with own_frames_left_out:
                if not stays_compiled or not observation.is_active or choice == "observe" or is_remote:
                    return original(function, *args, **kwargs)
                reason = INSIDE if choice == "inside" else "xla"
                unobserved_graphs[function.graph] = reason
                with traced_for(reason):
                    return original(function, *args, **kwargs)

        return call_flat

    patches.put(concrete_function.ConcreteFunction, "_call_flat", make_call_flat)
