"""Finds layers, roles and steps of Keras 3 and 2 (`keras`, `tf_keras`), as soon as the program imports Keras.

The parts of Keras are layers, other operations, losses, metrics and optimizers. The stack of their ops often has only
one frame of the program, the frame that calls fit. So this module also notes the line that made the part.

| hook | purpose |
|---|---|
| `Layer.__call__` | the layer that is called |
| `Model.compute_loss`, `_compute_loss`, `compute_metrics`, `get_metrics_result` | losses and metrics of fit |
| `Loss.__call__`, `Metric.__call__`, `update_state`, `result`; `Optimizer.apply`, `apply_gradients` | custom loops |
| `__init__` of `Operation` (Keras 2: `Layer`), `Loss`, `Metric`, `BaseOptimizer` | the stack that made a part |
| `Model.fit`, and the methods of `CallbackList` | steps, epochs and phases of fit |

Only classes of Keras itself are changed. Autograph converts the program's classes, but does not look into Keras.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tfdbg_arrow.writer.hooks.observation import Observation
from tfdbg_arrow.writer.hooks.part_stacks import PartStacks, noting_constructor
from tfdbg_arrow.writer.hooks.patches import KERAS_PACKAGES, AfterImport, Patches
from tfdbg_arrow.writer.hooks.scoping import Find, put, scoped
from tfdbg_arrow.writer.own_frames import own_frames_left_out
from tfdbg_arrow.writer.recording.marks import FitLabels
from tfdbg_arrow.writer.scopes import LOSS, METRIC, OPTIMIZER, Scope, Scopes


def hook_keras(observation: Observation, patches: Patches) -> None:
    """Installs the hooks that find layers, roles and steps, in each Keras that is or will be imported."""
    finder = AfterImport(KERAS_PACKAGES, lambda module: _hook(observation, patches, module))
    patches.when_removed(finder.remove)
    finder.install()
    for package in KERAS_PACKAGES:
        module = sys.modules.get(package)
        if module is not None and hasattr(module, "Model"):
            _hook(observation, patches, module)


def _hook(observation: Observation, patches: Patches, keras: Any) -> None:
    if not observation.is_active:
        return
    try:
        stacks = PartStacks(observation.observer.scopes.intern_stack)
        _hook_constructors(observation, patches, keras, stacks)
        _hook_layers(observation, patches, keras, stacks)
        _hook_roles(observation, patches, keras, stacks)
        _hook_fit(observation, patches, keras)
    except Exception as error:
        observation.observer.note_failure(f"following the layers and steps of {keras.__name__}", error)


def _hook_constructors(observation: Observation, patches: Patches, keras: Any, stacks: PartStacks) -> None:
    bases = (keras.layers.Layer, keras.losses.Loss, keras.metrics.Metric, keras.optimizers.Optimizer)
    for class_ in dict.fromkeys(map(_outermost_with_constructor, bases)):
        patches.put(class_, "__init__", functools.partial(noting_constructor, observation, stacks))


def _outermost_with_constructor(base: type) -> type:
    """Returns the class of Keras whose constructor is called by the constructors of all its subclasses."""
    package = base.__module__.partition(".")[0]
    of_keras = [c for c in base.__mro__ if c.__module__.startswith(f"{package}.") and "__init__" in vars(c)]
    return of_keras[-1]


def _hook_layers(observation: Observation, patches: Patches, keras: Any, stacks: PartStacks) -> None:
    scopes = observation.observer.scopes

    def find(layer: Any, *args: Any, **kwargs: Any) -> Scope:
        # Operations of Keras 3 that are not layers can be called too, and metrics of Keras 2 are layers.
        is_layer = isinstance(layer, keras.layers.Layer) and not isinstance(layer, keras.metrics.Metric)
        return stacks.in_part(scopes.in_layer(layer, layer.name) if is_layer else scopes.current(), layer)

    _put_in_all(observation, patches, keras.layers.Layer, ("__call__",), scoped(observation, find))


def _hook_roles(observation: Observation, patches: Patches, keras: Any, stacks: PartStacks) -> None:
    scopes = observation.observer.scopes

    def always(role: str) -> Find:
        return lambda *args, **kwargs: scopes.in_role(role)

    def loss(loss: Any, *args: Any, **kwargs: Any) -> Scope:
        return stacks.in_part(scopes.current() if scopes.current().role == METRIC else scopes.in_role(LOSS), loss)

    def metric(metric: Any, *args: Any, **kwargs: Any) -> Scope:
        # Keras itself tracks the loss with a metric of this name.
        return stacks.in_part(scopes.in_role(LOSS if metric.name == "loss" else METRIC), metric)

    def optimizer(optimizer: Any, *args: Any, **kwargs: Any) -> Scope:
        return stacks.in_part(scopes.in_role(OPTIMIZER), optimizer)

    roles: list[tuple[type, tuple[str, ...], Find]] = [
        (keras.Model, ("compute_loss", "_compute_loss"), always(LOSS)),
        (keras.Model, ("compute_metrics", "get_metrics_result"), always(METRIC)),
        (keras.losses.Loss, ("__call__",), loss),
        (keras.metrics.Metric, ("__call__", "update_state", "result"), metric),
        (keras.optimizers.Optimizer, ("apply", "apply_gradients"), optimizer),
    ]
    for base, names, find in roles:
        _put_in_all(observation, patches, base, names, scoped(observation, _only_for(base, find, scopes)))


def _only_for(base: type, find: Find, scopes: Scopes) -> Find:
    """Restricts `find` to objects of `base`; objects of other classes keep the current scope."""
    return lambda self, *args, **kwargs: find(self, *args, **kwargs) if isinstance(self, base) else scopes.current()


def _put_in_all(
    observation: Observation, patches: Patches, base: type, names: Sequence[str], make: Callable[[Any], Any]
) -> None:
    """Replaces methods in all places where Keras defines them: in a class, its bases and its subclasses."""
    package = base.__module__.partition(".")[0]
    classes = [c for c in dict.fromkeys([*base.__mro__, *_subclasses(base)]) if c.__module__.startswith(f"{package}.")]
    definitions = [(class_, name) for class_ in classes for name in names if name in vars(class_)]
    if not definitions:
        missing = f"{base.__module__}.{base.__qualname__} has none of {', '.join(names)}"
        observation.observer.note_failure("following layers and roles", missing)
    for class_, name in definitions:
        patches.put(class_, name, make)


def _subclasses(base: type) -> Iterator[type]:
    subclasses: list[type] = base.__subclasses__()
    for subclass in subclasses:
        yield subclass
        yield from _subclasses(subclass)


def _hook_fit(observation: Observation, patches: Patches, keras: Any) -> None:
    _put_in_all(observation, patches, keras.Model, ("fit",), functools.partial(_make_fit, observation))
    for name, tell in _EVENTS.items():
        make = functools.partial(_make_event, observation, tell)
        put(observation, patches, keras.callbacks.CallbackList, name, make)


def _make_fit(observation: Observation, original: Any) -> Any:
    fit_marks = observation.observer.fit_marks

    @functools.wraps(original)
    def fit(*args: Any, **kwargs: Any) -> Any:
        if not observation.is_active or not fit_marks.begin():
            return original(*args, **kwargs)
        try:
            with own_frames_left_out:
                return original(*args, **kwargs)
        finally:
            if observation.is_active:
                try:
                    fit_marks.end()
                except Exception as error:
                    observation.observer.note_failure("labeling the end of fit", error)

    return fit


_EVENTS: dict[str, Callable[[FitLabels, Any, tuple[Any, ...]], None]] = {
    "on_train_begin": lambda labels, callbacks, args: labels.train_begins(),
    "on_epoch_begin": lambda labels, callbacks, args: labels.epoch_begins(args[0]),
    "on_train_batch_begin": lambda labels, callbacks, args: labels.batch_begins(args[0]),
    "on_train_batch_end": lambda labels, callbacks, args: labels.batch_ends(
        args[0], callbacks.params, args[1] if len(args) > 1 else None
    ),
    "on_epoch_end": lambda labels, callbacks, args: labels.epoch_ends(args[1] if len(args) > 1 else None),
    "on_test_begin": lambda labels, callbacks, args: labels.phase_begins("test"),
    "on_test_end": lambda labels, callbacks, args: labels.test_ends(),
}
"""The reaction to each method of a list of callbacks."""


def _make_event(
    observation: Observation, tell: Callable[[FitLabels, Any, tuple[Any, ...]], None], original: Any
) -> Any:
    @functools.wraps(original)
    def event(callbacks: Any, *args: Any, **kwargs: Any) -> Any:
        if observation.is_active:
            try:
                labels = observation.observer.fit_marks.labels_for(callbacks)
                if labels is not None and not _marks_itself(callbacks):
                    tell(labels, callbacks, args)
            except Exception as error:
                observation.observer.note_failure("labeling the steps of fit", error)
        with own_frames_left_out:
            return original(callbacks, *args, **kwargs)

    return event


def _marks_itself(callbacks: Any) -> bool:
    """Returns True if the program passed a MarkCallback to fit."""
    module = sys.modules.get("tfdbg_arrow.writer.keras")
    return module is not None and any(isinstance(callback, module.MarkCallback) for callback in callbacks.callbacks)
