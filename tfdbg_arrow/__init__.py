"""tfdbg_arrow: find the op that created the first NaN or infinity, and the line of code that created the op.

The public names are imported on first use. Importing the package imports neither TensorFlow nor DuckDB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfdbg_arrow import errors
from tfdbg_arrow._version import __version__
from tfdbg_arrow.facade import lazy_names

if TYPE_CHECKING:
    from tfdbg_arrow.query import (
        Diff,
        Logdir,
        NonFinite,
        Verification,
        diff,
        distributions,
        first_nan,
        first_nonfinite,
        layer_differences,
        layer_health,
        nonfinite,
        open_logdir,
        training_curves,
        verify,
    )
    from tfdbg_arrow.reproduction import Repro, write_repro
    from tfdbg_arrow.stop import capture, enable
    from tfdbg_arrow.writer.active_recording import disable, flush, is_recording, is_writing, mark
    from tfdbg_arrow.writer.keras import MarkCallback
    from tfdbg_arrow.writer.launch import disable_dump_debug_info, enable_dump_debug_info
    from tfdbg_arrow.writer.recover import recover

_NAMES_OF = {
    "tfdbg_arrow.query.nonfinite_tensor": ["NonFinite"],
    "tfdbg_arrow.query.integrity.verification": ["Verification", "verify"],
    "tfdbg_arrow.query.answers": ["Logdir", "open_logdir"],
    "tfdbg_arrow.query.model_health": ["distributions", "layer_differences", "layer_health", "training_curves"],
    "tfdbg_arrow.query.nonfinite_search": ["first_nan", "first_nonfinite", "nonfinite"],
    "tfdbg_arrow.query.run_diff": ["Diff", "diff"],
    "tfdbg_arrow.reproduction.writing": ["Repro", "write_repro"],
    "tfdbg_arrow.stop": ["capture", "enable"],
    "tfdbg_arrow.writer.active_recording": ["disable", "flush", "is_recording", "is_writing", "mark"],
    "tfdbg_arrow.writer.keras": ["MarkCallback"],
    "tfdbg_arrow.writer.launch": ["disable_dump_debug_info", "enable_dump_debug_info"],
    "tfdbg_arrow.writer.recover": ["recover"],
}

__all__ = [
    "Diff",
    "Logdir",
    "MarkCallback",
    "NonFinite",
    "Repro",
    "Verification",
    "__version__",
    "capture",
    "diff",
    "disable",
    "disable_dump_debug_info",
    "distributions",
    "enable",
    "enable_dump_debug_info",
    "errors",
    "first_nan",
    "first_nonfinite",
    "flush",
    "is_recording",
    "is_writing",
    "layer_differences",
    "layer_health",
    "mark",
    "nonfinite",
    "open_logdir",
    "recover",
    "training_curves",
    "verify",
    "write_repro",
]


__getattr__ = lazy_names(__name__, _NAMES_OF)


def __dir__() -> list[str]:
    return sorted(__all__)
