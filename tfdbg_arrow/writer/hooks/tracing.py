"""Hooks into the tracing of functions, when a graph becomes a runtime function.

| hook | purpose |
|---|---|
| `atomic_function.from_func_graph` | describes a graph that becomes a function, and makes it record |
| `function_context.make_function_context` | traces functions again that were traced without recording |
| `tracing_compilation._create_concrete_function` | marks graphs that are traced for XLA from the start |
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tensorflow.core.function.polymorphism import function_cache
from tensorflow.python.eager.polymorphic_function import (
    atomic_function,
    function_context,
    tracing_compilation,
)
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.ops import control_flow_util
from tensorflow.python.util import tf_stack

from tfdbg_arrow.writer.hooks.observation import Observation
from tfdbg_arrow.writer.hooks.patches import Patches
from tfdbg_arrow.writer.hooks.unobserved import INSIDE, reason_unobserved, this_thread, unobserved_graphs
from tfdbg_arrow.writer.hooks.xla import inline_control_flow, must_compile, without_xla


def hook_tracing(observation: Observation, patches: Patches) -> None:
    """Installs the hooks that trace functions again and make them record."""
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
        # A function that is also called where it cannot be observed needs a separate trace for that.
        observer = observation.observer
        key = (context.context, "tfdbg_arrow", observer.generation, reason, observer.xla_choice())
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
        # Keep our frames out of the stacks of ops, which TensorFlow's errors show.
        with tf_stack.CurrentModuleFilter():
            return original(function_type, type_context, func_graph, options)

    return create_concrete_function
