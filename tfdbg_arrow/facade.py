"""Lets a package import its public names on first use."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` for a package whose public names are imported when they are first used.

    The package declares each public name once, in the form in which type checkers expect it: `if TYPE_CHECKING:` and
    `from module import name as name`. `__getattr__` reads these lines, and imports the module of a name. A public name
    must not be the name of a module in the package, because importing that module would replace the name.

    Args:
        package: The name of the package.
    """

    @functools.cache
    def module_of_name() -> dict[str, str]:
        # These imports are here, because an import of the package must not wait for them.
        import ast
        from pathlib import Path

        # The loader need not have get_source(): pytest loads a package that has a plugin with a loader of its own.
        source = Path(sys.modules[package].__file__ or "").read_text(encoding="utf-8")
        imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
        return {
            alias.name: node.module or package for node in imports for alias in node.names if alias.name == alias.asname
        }

    def get(name: str) -> Any:
        if name == "__all__":
            return names()
        module = module_of_name().get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(module), name)

    def names() -> list[str]:
        return sorted(module_of_name())

    return get, names
