"""Finds the forward op of each gradient op.

| hook | purpose |
|---|---|
| `backprop._gradient_function`, by TFE_Py_RegisterGradientFunction | notes that a tape runs an op's gradient function |
| `execute.record_gradient` | notes that a tape keeps an op of a graph, which the attributes object later identifies |
| `record.record_operation` | wraps the gradient of a function call or custom gradient that a tape keeps |
| `gradients_util._MaybeCompile`, `_AggregatedGrads` | the same in graphs: backward functions, loops, `tf.gradients` |
| `imperative_grad.imperative_grad`, `gradients_util._GradientsHelper`, jacobians | other ops of a gradient |
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import backprop, execute, imperative_grad, record
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager.polymorphic_function import concrete_function
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.ops import gradients_util

from tfdbg_arrow.writer.hooks.observation import Observation
from tfdbg_arrow.writer.hooks.patches import Patches
from tfdbg_arrow.writer.hooks.scoping import put, run_in, scoped
from tfdbg_arrow.writer.scopes import GRADIENT, Scope

_WHOLE_GRADIENTS = (
    (imperative_grad, "", "imperative_grad"),
    (gradients_util, "", "_GradientsHelper"),
    (backprop, "GradientTape", "jacobian"),
    (backprop, "GradientTape", "batch_jacobian"),
    (concrete_function, "_DelayedRewriteGradientFunctions", "_construct_forward_backward"),
    (concrete_function, "_TapeGradientFunctions", "_build_functions_for_outputs"),
)
"""Functions that compute gradients or make functions that do: module, class, name."""


def hook_gradients(observation: Observation, patches: Patches) -> None:
    """Installs the hooks that give the ops of gradients their forward op."""
    scopes = observation.observer.scopes
    whole = scoped(observation, lambda *args, **kwargs: scopes.in_role(GRADIENT))
    of_op = scoped(observation, lambda first, op, *rest, **kwargs: scopes.of_graph_op(op))
    for module, class_name, name in _WHOLE_GRADIENTS:
        put(observation, patches, getattr(module, class_name, module), name, whole)
    for name in ("_MaybeCompile", "_AggregatedGrads"):
        put(observation, patches, gradients_util, name, of_op)
    put(observation, patches, execute, "record_gradient", functools.partial(_make_record_gradient, observation))
    for name in ("record_operation", "record_operation_backprop_only"):
        put(observation, patches, record, name, functools.partial(_make_record_operation, observation))
    put(observation, patches, backprop, "_gradient_function", functools.partial(_make_gradient_function, observation))
    patches.when_removed(lambda: pywrap_tfe.TFE_Py_RegisterGradientFunction(backprop._gradient_function))


def _make_gradient_function(observation: Observation, original: Any) -> Any:
    scopes = observation.observer.scopes

    def find(op_name: str, attrs: object, *rest: Any) -> Scope:
        return scopes.of_taped_op(
            attrs, None if eager_context.executing_eagerly() else framework_ops.get_default_graph()
        )

    of_graph_op = scoped(observation, find)(original)

    @functools.wraps(original)
    def gradient_function(op_name: str, attrs: object, *rest: Any) -> Any:
        outer = scopes.enter_gradient(op_name, attrs) if observation.is_active else None
        if outer is None:
            return of_graph_op(op_name, attrs, *rest)
        try:
            return original(op_name, attrs, *rest)
        finally:
            scopes.leave(outer)

    pywrap_tfe.TFE_Py_RegisterGradientFunction(gradient_function)
    return gradient_function


def _make_record_gradient(observation: Observation, original: Any) -> Any:
    observer = observation.observer

    @functools.wraps(original)
    def record_gradient(op_name: str, inputs: Any, attrs: Any, outputs: Any) -> Any:
        if observation.is_active and not eager_context.executing_eagerly():
            observer.note_taped(attrs, outputs)
        return original(op_name, inputs, attrs, outputs)

    return record_gradient


def _make_record_operation(observation: Observation, original: Any) -> Any:
    @functools.wraps(original)
    def record_operation(
        op_type: Any, output_tensors: Any, input_tensors: Any, backward_function: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if observation.is_active:
            backward_function = _in_gradient_of(observation, output_tensors, backward_function)
        return original(op_type, output_tensors, input_tensors, backward_function, *args, **kwargs)

    return record_operation


def _in_gradient_of(observation: Observation, outputs: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function that computes the gradient of the op that made `outputs`, so that it runs in the op's scope."""
    observer = observation.observer
    try:
        scope = observer.scopes.of_results(outputs)
    except Exception as error:
        observer.note_failure("finding the forward op of a gradient", error)
        return function

    @functools.wraps(function)
    def compute_gradient(*args: Any, **kwargs: Any) -> Any:
        if not observation.is_active:
            return function(*args, **kwargs)
        return run_in(observation, scope, function, *args, **kwargs)

    return compute_gradient
