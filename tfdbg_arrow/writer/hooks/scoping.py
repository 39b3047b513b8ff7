"""Functions of TensorFlow and Keras that run in a scope while a recording lasts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tfdbg_arrow.writer.hooks.observation import Observation
from tfdbg_arrow.writer.hooks.patches import Patches
from tfdbg_arrow.writer.scopes import Scope

Find = Callable[..., Scope]
"""Takes a function's arguments; returns the scope in which it is to run."""


def scoped(observation: Observation, find: Find) -> Callable[[Any], Any]:
    """Returns what makes of a function one that runs in the scope that `find` returns for its arguments."""

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
        missing = f"{owner.__name__} has no {name}; what depends on it has no layer, role or forward op"
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
    """Returns the scope that `find` returns for arguments; None after the recording, and where finding it failed."""
    if not observation.is_active:
        return None
    try:
        return find(*args, **kwargs)
    except Exception as error:
        observation.observer.note_failure("finding the layer, role or forward op of what runs", error)
        return None
