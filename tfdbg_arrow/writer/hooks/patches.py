"""Replaces attributes of TensorFlow and Keras, restores them, and waits for the import of modules."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

KERAS_PACKAGES = ("keras", "tf_keras")


@dataclass(frozen=True)
class _Patch:
    """One replaced attribute."""

    owner: Any
    name: str
    original: Any
    replacement: Any

    def remove(self) -> None:
        """Restores the original, unless someone else replaced our attribute."""
        if getattr(self.owner, self.name) is self.replacement:
            setattr(self.owner, self.name, self.original)


class Patches:
    """The attributes that one recording has replaced, in order.

    Each original is restored at the end, unless someone else replaced our attribute meanwhile. In that case, our
    attribute stays, and passes every call on.
    """

    def __init__(self) -> None:
        self._patches: list[_Patch] = []
        self._then: list[Callable[[], object]] = []

    def put(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replaces an attribute by the result of `make`, which gets the original."""
        original = getattr(owner, name)
        replacement = make(original)
        # Note the patch first, so that remove() knows it even if an interruption follows.
        self._patches.append(_Patch(owner=owner, name=name, original=original, replacement=replacement))
        setattr(owner, name, replacement)

    def when_removed(self, then: Callable[[], object]) -> None:
        """Adds a function to call when the originals are restored."""
        self._then.append(then)

    def remove(self) -> None:
        """Restores all originals, the last one first."""
        for patch in reversed(self._patches):
            patch.remove()
        self._patches.clear()
        for then in self._then:
            then()
        self._then.clear()


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with each module of one of these names, once the program has imported the module.

    The import may have begun before this finder was installed, if another AfterImport was installed at that time.

    Args:
        names: The names of the modules.
        tell: The function to call. After remove(), it is not called any more.
        around: Returns a context in which the module is executed and the function is called.
    """

    _loaders: ClassVar[weakref.WeakSet[importlib.abc.Loader]] = weakref.WeakSet()
    """The loaders that report when they have executed a module."""

    def __init__(
        self,
        names: Collection[str],
        tell: Callable[[ModuleType], None],
        *,
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._names = names
        self._tell = tell
        self._around = around

    def install(self) -> None:
        """Puts this finder before all others."""
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Removes this finder from sys.meta_path."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns the spec that the other finders find, changed so that its loader reports the executed module."""
        if fullname not in self._names:
            return None
        others = [finder for finder in sys.meta_path if not isinstance(finder, AfterImport)]
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None or spec.loader is None or spec.loader in self._loaders:
            return spec  # other finders may return the same loader several times
        loader = spec.loader
        original = loader.exec_module
        self._loaders.add(loader)

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # the module keeps its loader as it was
            self._loaders.discard(loader)
            with ExitStack() as contexts:
                for finder in self._waiting(fullname):
                    contexts.enter_context(finder._around())
                original(module)
                for finder in self._waiting(fullname):
                    finder._tell(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    @staticmethod
    def _waiting(fullname: str) -> list[AfterImport]:
        """Returns the installed finders that wait for a module."""
        return [finder for finder in sys.meta_path if isinstance(finder, AfterImport) and fullname in finder._names]
