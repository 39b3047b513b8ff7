"""Finds the layer, the role and the forward op of ops that TensorFlow's own parts create.

| hook | purpose |
|---|---|
| `Module.name_scope` | `with_name_scope` and Sonnet's modules enter it for each method |
| `_MirroredReplicaContext._merge_call` | the main thread runs a function for the thread of a replica |
| `StructuredFunctionWrapper.__init__`, `_PerDeviceGenerator.__init__` | the functions of tf.data pipelines and loops |
| `FuncRegistry.insert`, `__call__` | a Python function that an op calls has the scope of the op |
| `Optimizer.__init__`, `apply_gradients` of `tf.compat.v1.train` | the optimizer, and the stack that made it |
| `backprop._gradient_function`, by TFE_Py_RegisterGradientFunction | notes that a tape runs an op's gradient function |
| `execute.record_gradient` | notes that a tape keeps an op of a graph; the attributes object later identifies the op |
| `record.record_operation` | wraps the gradient function of a call or `tf.custom_gradient` that a tape keeps |
| `gradients_util._MaybeCompile`, `_AggregatedGrads` | the same in graphs: backward functions, loops, `tf.gradients` |
| `imperative_grad.imperative_grad`, `gradients_util._GradientsHelper`, jacobians | other ops of a gradient |
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.data.ops import dataset_autograph, multi_device_iterator_ops, structured_function
from tensorflow.python.distribute import mirrored_run
from tensorflow.python.eager import backprop, execute, imperative_grad, record
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager.polymorphic_function import concrete_function
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.ops import gradients_util, script_ops

from tfdbg_arrow.writer.hooks.observation import Observation
from tfdbg_arrow.writer.hooks.part_stacks import PartStacks, noting_constructor
from tfdbg_arrow.writer.hooks.patches import Patches
from tfdbg_arrow.writer.own_frames import own_frames_left_out
from tfdbg_arrow.writer.scopes import GRADIENT, INPUT, OPTIMIZER, Entered, Scope

Find = Callable[..., Scope]
"""Takes the arguments of a function, and returns the scope to run it in."""


def scoped(observation: Observation, find: Find) -> Callable[[Any], Any]:
    """Returns a decorator that makes a function run in the scope that `find` returns for its arguments."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def run_in_scope(*args: Any, **kwargs: Any) -> Any:
            scope = scope_of(observation, find, *args, **kwargs)
            with own_frames_left_out:
                if scope is None:
                    return original(*args, **kwargs)
                return run_in(observation, scope, original, *args, **kwargs)

        return run_in_scope

    return make


def put(observation: Observation, patches: Patches, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replaces an attribute, or notes that this version of TensorFlow or Keras does not have it."""
    if hasattr(owner, name):
        patches.put(owner, name, make)
    else:
        missing = f"{owner.__name__} has no {name}, so some ops will have no layer, role or forward op"
        observation.observer.note_failure("following layers and gradients", missing)


def run_in(observation: Observation, scope: Scope, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Runs a function in a scope."""
    scopes = observation.observer.scopes
    outer = scopes.here()
    try:
        with own_frames_left_out:
            scopes.enter(scope)  # inside the try block, so that an interruption leaves no scope behind
            return function(*args, **kwargs)
    finally:
        scopes.leave(outer)


def scope_of(observation: Observation, find: Find, /, *args: Any, **kwargs: Any) -> Scope | None:
    """Returns the scope that `find` returns for arguments; None after the recording, or if `find` raised an error."""
    if not observation.is_active:
        return None
    try:
        return find(*args, **kwargs)
    except Exception as error:
        observation.observer.note_failure("finding the layer, role or forward op of an op", error)
        return None


def hook_layers(observation: Observation, patches: Patches) -> None:
    """Installs the hooks that find the tf.Module of ops, and their role in TensorFlow's own parts."""
    scopes = observation.observer.scopes
    pipeline = scoped(observation, lambda *args, **kwargs: Scope(role=INPUT, is_of_pipeline=True))
    function = scoped(observation, functools.partial(_of_data_set_function, observation))
    stacks = PartStacks(scopes.intern_stack)
    optimizer = scoped(observation, lambda self, *args, **kwargs: stacks.in_part(scopes.in_role(OPTIMIZER), self))
    put(observation, patches, tf.Module, "name_scope", functools.partial(_make_name_scope, observation))
    put(observation, patches, structured_function.StructuredFunctionWrapper, "__init__", function)
    put(observation, patches, multi_device_iterator_ops._PerDeviceGenerator, "__init__", pipeline)
    put(observation, patches, tf.compat.v1.train.Optimizer, "apply_gradients", optimizer)
    constructor = functools.partial(noting_constructor, observation, stacks)
    put(observation, patches, tf.compat.v1.train.Optimizer, "__init__", constructor)
    replica = mirrored_run._MirroredReplicaContext
    put(observation, patches, replica, "_merge_call", functools.partial(_make_merge_call, observation))
    _hook_python_functions(observation, patches)


def _of_data_set_function(
    observation: Observation, wrapper: object, function: object = None, *args: object, **kwargs: object
) -> Scope:
    """Returns the scope of a function that a data set calls.

    The body of a loop `for batch in dataset` in a tf.function is such a function, too, but it trains the model.
    """
    is_loop = getattr(function, "__module__", None) == dataset_autograph.__name__
    if not is_loop:
        return Scope(role=INPUT, is_of_pipeline=True)
    return observation.observer.scopes.current()._replace(is_of_pipeline=True)


class _ModuleScope(framework_ops.name_scope_v2):  # type: ignore[misc]
    """A module's name scope. Entering it also enters the module as a layer."""

    __slots__ = ("_module", "_observation", "_outer")

    def __init__(self, name: str, *, module: tf.Module, observation: Observation) -> None:
        super().__init__(name)
        self._module = module
        self._observation = observation
        self._outer: list[Entered | None] = []

    def __enter__(self) -> Any:
        scopes = self._observation.observer.scopes
        entered = super().__enter__()
        outer = scopes.here()
        try:
            scope = scope_of(self._observation, lambda: scopes.in_layer(self._module, self._module.name))
            if scope is not None:
                scopes.enter(scope)
            self._outer.append(None if scope is None else outer)
        except BaseException as error:  # then __exit__() is not called
            scopes.leave(outer)
            super().__exit__(type(error), error, error.__traceback__)
            raise
        return entered

    def __exit__(self, *error: object) -> Any:
        outer = self._outer.pop()
        if outer is not None:
            self._observation.observer.scopes.leave(outer)
        return super().__exit__(*error)


def _make_name_scope(observation: Observation, original: Any) -> Any:
    def name_scope(module: tf.Module) -> Any:
        scope = original.fget(module)
        # The scope has another type in graph mode without TensorFlow 2's behavior, and if a subclass overrides
        # name_scope.
        if not observation.is_active or type(scope) is not framework_ops.name_scope_v2:
            return scope
        return _ModuleScope(scope.name, module=module, observation=observation)

    return property(name_scope, doc=original.__doc__)


def _make_merge_call(observation: Observation, original: Any) -> Any:
    @functools.wraps(original)
    def merge_call(replica: Any, function: Any, args: Any, kwargs: Any) -> Any:
        if not observation.is_active:
            return original(replica, function, args, kwargs)
        scope = observation.observer.scopes.current()
        with own_frames_left_out:
            return original(replica, functools.partial(run_in, observation, scope, function), args, kwargs)

    return merge_call


def _hook_python_functions(observation: Observation, patches: Patches) -> None:
    scopes = observation.observer.scopes
    made_in: dict[str, Scope] = {}

    def make_insert(original: Any) -> Any:
        @functools.wraps(original)
        def insert(registry: Any, function: Any) -> Any:
            token = original(registry, function)
            if observation.is_active:
                made_in[token] = scopes.current()
            return token

        return insert

    def find(registry: Any, token: Any, *rest: Any) -> Scope:
        return made_in.get(token) or scopes.current()

    put(observation, patches, script_ops.FuncRegistry, "insert", make_insert)
    put(observation, patches, script_ops.FuncRegistry, "__call__", scoped(observation, find))


_WHOLE_GRADIENTS = (
    (imperative_grad, "", "imperative_grad"),
    (gradients_util, "", "_GradientsHelper"),
    (backprop, "GradientTape", "jacobian"),
    (backprop, "GradientTape", "batch_jacobian"),
    (concrete_function, "_DelayedRewriteGradientFunctions", "_construct_forward_backward"),
    (concrete_function, "_TapeGradientFunctions", "_build_functions_for_outputs"),
)
"""Functions that compute gradients, or that make functions that compute gradients: module, class, name."""


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
        with own_frames_left_out:
            if observation.is_active:
                outer = scopes.here()
                try:
                    if scopes.enter_gradient(op_name, attrs):
                        return original(op_name, attrs, *rest)
                finally:
                    scopes.leave(outer)
            return of_graph_op(op_name, attrs, *rest)

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
    """Wraps the gradient function of the op that made `outputs`, so that the function runs in the scope of that op."""
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
        with own_frames_left_out:
            return run_in(observation, scope, function, *args, **kwargs)

    return compute_gradient
