"""Makes functions of TensorFlow and Keras run in a scope during a recording."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tfdbg_arrow.writer.hooks.observation import Observation
from tfdbg_arrow.writer.hooks.patches import Patches
from tfdbg_arrow.writer.scopes import Scope

Find = Callable[..., Scope]
"""Takes the arguments of a function, and returns the scope to run it in."""


def scoped(observation: Observation, find: Find) -> Callable[[Any], Any]:
    """Returns a decorator that makes a function run in the scope that `find` returns for its arguments."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def run_in_scope(*args: Any, **kwargs: Any) -> Any:
            scope = found(observation, find, *args, **kwargs)
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
    outer = scopes.enter(scope)
    try:
        return function(*args, **kwargs)
    finally:
        scopes.leave(outer)


def found(observation: Observation, find: Find, /, *args: Any, **kwargs: Any) -> Scope | None:
    """Returns the scope that `find` returns for arguments; None after the recording, or if `find` raised an error."""
    if not observation.is_active:
        return None
    try:
        return find(*args, **kwargs)
    except Exception as error:
        observation.observer.note_failure("finding the layer, role or forward op of an op", error)
        return None
