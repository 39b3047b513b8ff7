"""Functions that XLA compiles: it has no kernels for our ops.

| hook | why |
|---|---|
| `ConcreteFunction._call_flat` | the gradients of a function that stays compiled are known as such |
| `atomic_function.from_func_graph` | no function that calls one of ours is compiled; stays for good |
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import (
    atomic_function,
    concrete_function,
)
from tensorflow.python.ops import control_flow_util

from tfdbg_arrow.writer.graphs.node_defs import functions_of
from tfdbg_arrow.writer.graphs.own_ops import is_own
from tfdbg_arrow.writer.hooks.exports import with_own_ops
from tfdbg_arrow.writer.hooks.observation import Observation
from tfdbg_arrow.writer.hooks.patches import Patches
from tfdbg_arrow.writer.hooks.unobserved import INSIDE, reason_unobserved, traced_for, unobserved_graphs
from tfdbg_arrow.writer.warning import warn

_XLA_MUST_COMPILE = "_XlaMustCompile"
_CONTROL_FLOW = frozenset({"Case", "If", "While"})
_LOWER = "_lower_using_switch_merge"
NO_INLINE = "_noinline"
"""The attribute of a function that TensorFlow runs as a call of its own, under a step id of its own."""


def must_compile(attributes: Mapping[str, Any] | None) -> bool:
    """Returns whether the attributes of a function, as values or AttrValues, ask for XLA."""
    attribute = (attributes or {}).get(_XLA_MUST_COMPILE)
    return bool(getattr(attribute, "b", attribute))


def without_xla(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes of a function without those that `jit_compile=True` gave it.

    A function that is not inlined has a step id of its own, and its arguments cannot be traced to the caller.
    """
    return {key: value for key, value in attrs.items() if key not in (_XLA_MUST_COMPILE, NO_INLINE)}


def inline_control_flow(graph: Any) -> None:
    """Makes TensorFlow put what loops and branches call into a graph that was traced for XLA and runs without it.

    TensorFlow marks the ops of other graphs when it creates them. A loop that is not marked runs its body as a call,
    under step ids of its own.
    """
    for op in graph.get_operations():
        if op.type.removeprefix("Stateless") not in _CONTROL_FLOW or _LOWER in op.node_def.attr:
            continue
        is_for_xla = control_flow_util.GetContainingXLAContext(op._get_control_flow_context()) is not None
        if is_for_xla or control_flow_util.GraphOrParentsInXlaContext(graph):
            op._set_attr(_LOWER, tf.compat.v1.AttrValue(b=True))


def reaches_own_op(graph: Any) -> bool:
    """Returns whether a graph, or a function that it calls, holds an op that only we have."""
    graph_def = with_own_ops(graph)
    library = {function.signature.name: function.node_def for function in graph_def.library.function}
    waiting, seen = [graph_def.node], set()
    while waiting:
        for node in waiting.pop():
            if is_own(node.op, node.name):
                return True
            for _, _, name in functions_of(node):
                if name not in seen and name in library:
                    seen.add(name)
                    waiting.append(library[name])
    return False


def hook_compiled_calls(observation: Observation, patches: Patches) -> None:
    """From here on nothing is recorded of the gradients of functions that stay compiled.

    Where a tape is on, a call makes gradient functions, in a graph that does not know what it will be for.
    """

    def make_call_flat(original: Any) -> Any:
        is_compiled: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()

        def call_flat(function: Any, *args: Any, **kwargs: Any) -> Any:
            known = is_compiled.get(function)
            if known is None:
                attributes = function.function_def.attr
                known = _XLA_MUST_COMPILE in attributes and attributes[_XLA_MUST_COMPILE].b
                is_compiled[function] = known
            choice = observation.observer.xla_choice()
            is_remote = reason_unobserved(function.graph) == "remote"
            if not known or not observation.is_active or choice == "observe" or is_remote:
                return original(function, *args, **kwargs)
            reason = INSIDE if choice == "inside" else "xla"
            unobserved_graphs[function.graph] = reason
            with traced_for(reason):
                return original(function, *args, **kwargs)

        return call_flat

    patches.put(concrete_function.ConcreteFunction, "_call_flat", make_call_flat)


_functions_are_kept_compilable = False


def keep_functions_compilable() -> None:
    """From now on no function that XLA compiles calls one that records, also after recording has ended."""
    global _functions_are_kept_compilable
    if _functions_are_kept_compilable:
        return
    _functions_are_kept_compilable = True
    original = atomic_function.from_func_graph

    def from_func_graph(name: Any, graph: Any, attrs: Any, *args: Any, **kwargs: Any) -> Any:
        if attrs and must_compile(attrs) and reaches_own_op(graph):
            attrs = without_xla(attrs)
            warn(
                f"{graph.name} runs without XLA: it calls a concrete function that was traced while "
                "recording; trace that one anew to have it compiled"
            )
        return original(name, graph, attrs, *args, **kwargs)

    atomic_function.from_func_graph = from_func_graph
