"""Finds the layers and roles of TensorFlow's own parts.

| hook | purpose |
|---|---|
| `Module.name_scope` | `with_name_scope` and Sonnet's modules enter it for each method |
| `atomic_function.partitioned_call_op` | notes the op of a call in a graph, for which no op callback is called |
| `_MirroredReplicaContext._merge_call` | the main thread runs a function for the thread of a replica |
| `StructuredFunctionWrapper.__init__`, `_PerDeviceGenerator.__init__` | the functions of tf.data pipelines |
| `FuncRegistry.insert`, `__call__` | a Python function that an op calls has the scope of the op |
| `Optimizer.apply_gradients` of `tf.compat.v1.train` | the optimizer |
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops, structured_function
from tensorflow.python.distribute import mirrored_run
from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.ops import script_ops

from tfdbg_arrow.writer.hooks.observation import Observation
from tfdbg_arrow.writer.hooks.patches import Patches
from tfdbg_arrow.writer.hooks.scoping import found, put, run_in, scoped
from tfdbg_arrow.writer.scopes import INPUT, OPTIMIZER, Entered, Scope


def hook_layers(observation: Observation, patches: Patches) -> None:
    """Installs the hooks that find the tf.Module of ops, and their role in TensorFlow's own parts."""
    scopes = observation.observer.scopes
    pipeline = scoped(observation, lambda *args, **kwargs: Scope(role=INPUT))
    optimizer = scoped(observation, lambda *args, **kwargs: scopes.in_role(OPTIMIZER))
    put(observation, patches, tf.Module, "name_scope", functools.partial(_make_name_scope, observation))
    put(observation, patches, structured_function.StructuredFunctionWrapper, "__init__", pipeline)
    put(observation, patches, multi_device_iterator_ops._PerDeviceGenerator, "__init__", pipeline)
    put(observation, patches, tf.compat.v1.train.Optimizer, "apply_gradients", optimizer)
    put(observation, patches, atomic_function, "partitioned_call_op", functools.partial(_make_call_op, observation))
    replica = mirrored_run._MirroredReplicaContext
    put(observation, patches, replica, "_merge_call", functools.partial(_make_merge_call, observation))
    _hook_python_functions(observation, patches)


class _ModuleScope(framework_ops.name_scope_v2):  # type: ignore[misc]
    """A module's name scope that also enters the module's scope as a layer."""

    __slots__ = ("_module", "_observation", "_outer")

    def __init__(self, name: str, *, module: tf.Module, observation: Observation) -> None:
        super().__init__(name)
        self._module = module
        self._observation = observation
        self._outer: list[Entered | None] = []

    def __enter__(self) -> Any:
        scopes = self._observation.observer.scopes
        entered = super().__enter__()
        scope = found(self._observation, lambda: scopes.in_layer(self._module, self._module.name))
        self._outer.append(None if scope is None else scopes.enter(scope))
        return entered

    def __exit__(self, *error: object) -> Any:
        outer = self._outer.pop()
        if outer is not None:
            self._observation.observer.scopes.leave(outer)
        return super().__exit__(*error)


def _make_name_scope(observation: Observation, original: Any) -> Any:
    def name_scope(module: tf.Module) -> Any:
        found = original.fget(module)
        # The type differs in graph mode without TensorFlow 2's behavior, and if a subclass overrides name_scope.
        if not observation.is_active or type(found) is not framework_ops.name_scope_v2:
            return found
        return _ModuleScope(found.name, module=module, observation=observation)

    return property(name_scope, doc=original.__doc__)


def _make_call_op(observation: Observation, original: Any) -> Any:
    @functools.wraps(original)
    def partitioned_call_op(*args: Any, **kwargs: Any) -> Any:
        op = original(*args, **kwargs)
        if observation.is_active:
            observation.observer.note_call_op(op)
        return op

    return partitioned_call_op


def _make_merge_call(observation: Observation, original: Any) -> Any:
    @functools.wraps(original)
    def merge_call(replica: Any, function: Any, args: Any, kwargs: Any) -> Any:
        if not observation.is_active:
            return original(replica, function, args, kwargs)
        scope = observation.observer.scopes.current()
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
