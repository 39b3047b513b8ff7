"""tfdbg_arrow: find the op that created the first NaN or infinity, and the line of code that created the op.

The names below are imported on first use. Importing the package imports neither TensorFlow nor DuckDB.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tfdbg_arrow._version import __version__

if TYPE_CHECKING:
    from tfdbg_arrow import errors
    from tfdbg_arrow.query import (
        Diff,
        Logdir,
        NonFinite,
        Verification,
        diff,
        first_nan,
        first_nonfinite,
        nonfinite,
        open_logdir,
        verify,
    )
    from tfdbg_arrow.stop import capture, enable
    from tfdbg_arrow.writer.dump_api import disable_dump_debug_info, enable_dump_debug_info
    from tfdbg_arrow.writer.keras import MarkCallback
    from tfdbg_arrow.writer.recover import recover
    from tfdbg_arrow.writer.session import disable, flush, is_recording, mark

_MODULE_OF = {
    "capture": "tfdbg_arrow.stop",
    "disable": "tfdbg_arrow.writer.session",
    "disable_dump_debug_info": "tfdbg_arrow.writer.dump_api",
    "enable": "tfdbg_arrow.stop",
    "enable_dump_debug_info": "tfdbg_arrow.writer.dump_api",
    "flush": "tfdbg_arrow.writer.session",
    "is_recording": "tfdbg_arrow.writer.session",
    "mark": "tfdbg_arrow.writer.session",
    "MarkCallback": "tfdbg_arrow.writer.keras",
    "recover": "tfdbg_arrow.writer.recover",
    "Diff": "tfdbg_arrow.query",
    "Logdir": "tfdbg_arrow.query",
    "NonFinite": "tfdbg_arrow.query",
    "diff": "tfdbg_arrow.query",
    "first_nan": "tfdbg_arrow.query",
    "first_nonfinite": "tfdbg_arrow.query",
    "nonfinite": "tfdbg_arrow.query",
    "open_logdir": "tfdbg_arrow.query",
    "Verification": "tfdbg_arrow.query",
    "verify": "tfdbg_arrow.query",
}

__all__ = [
    "Diff",
    "Logdir",
    "MarkCallback",
    "NonFinite",
    "Verification",
    "__version__",
    "capture",
    "diff",
    "disable",
    "disable_dump_debug_info",
    "enable",
    "enable_dump_debug_info",
    "errors",
    "first_nan",
    "first_nonfinite",
    "flush",
    "is_recording",
    "mark",
    "nonfinite",
    "open_logdir",
    "recover",
    "verify",
]


def __getattr__(name: str) -> object:
    if name == "errors":
        return importlib.import_module("tfdbg_arrow.errors")
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'tfdbg_arrow' has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)
