"""Handles functions that XLA compiles, which has no kernels for our ops.

| hook | purpose |
|---|---|
| `ConcreteFunction._call_flat` | marks the gradient functions of a function that stays compiled |
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import (
    concrete_function,
)
from tensorflow.python.ops import control_flow_util

from tfdbg_arrow.writer.hooks.observation import Observation
from tfdbg_arrow.writer.hooks.patches import Patches
from tfdbg_arrow.writer.hooks.unobserved import INSIDE, reason_unobserved, traced_for, unobserved_graphs

_XLA_MUST_COMPILE = "_XlaMustCompile"
_CONTROL_FLOW = frozenset({"Case", "If", "While"})
_LOWER = "_lower_using_switch_merge"
NO_INLINE = "_noinline"
"""The attribute of a function that TensorFlow does not inline, but runs as a separate call with its own step ID."""


def must_compile(attributes: Mapping[str, Any] | None) -> bool:
    """Returns True if the attributes of a function, given as values or AttrValues, ask for XLA."""
    attribute = (attributes or {}).get(_XLA_MUST_COMPILE)
    return bool(getattr(attribute, "b", attribute))


def without_xla(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes of a function without those that `jit_compile=True` added.

    A function that is not inlined has its own step ID, and its arguments cannot be traced to the caller.
    """
    return {key: value for key, value in attrs.items() if key not in (_XLA_MUST_COMPILE, NO_INLINE)}


def inline_control_flow(graph: Any) -> None:
    """Makes TensorFlow inline loops and branches in a graph that was traced for XLA but runs without it.

    In other graphs, TensorFlow marks these ops when it creates them. A loop that is not marked runs its body as a call
    with its own step IDs.
    """
    for op in graph.get_operations():
        if op.type.removeprefix("Stateless") not in _CONTROL_FLOW or _LOWER in op.node_def.attr:
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
