"""Lets a package import its public names on first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence


def lazy_names(package: str, names_of: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """Returns a `__getattr__` for a package. The `__getattr__` imports the module that defines a public name.

    A public name must not be the name of a module in the package, because importing that module would replace the name.

    Args:
        package: The name of the package.
        names_of: The public names that each module defines, by the full name of the module.
    """
    module_of = {name: module for module, names in names_of.items() for name in names}

    def get(name: str) -> object:
        module = module_of.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(module), name)

    return get
