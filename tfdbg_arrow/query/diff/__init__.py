"""diff: aligns two runs of a program and finds where they first diverge.

The modules, in order of use: `workspace` holds the data of both runs. `sequences`, `stack_keys`, `ops`, `calls` and
`sites` align the programs, and `pairing` aligns the tensors. `elements` and `comparing` measure how far the tensors are
apart, by `tolerance`. `candidates` and `roots` find the first divergence, which `describing` and `divergence` describe.
`summary` and `environment` provide the rest of the `answer`, and `comparison` puts it together.
"""

from __future__ import annotations

from tfdbg_arrow.query.diff.answer import (
    Diff,
    DiffInput,
    DiffTensor,
    Divergence,
    DtypeChange,
    Setting,
    Unaligned,
    UnalignedOp,
    WorstElement,
)
from tfdbg_arrow.query.diff.comparison import diff

__all__ = [
    "Diff",
    "DiffInput",
    "DiffTensor",
    "Divergence",
    "DtypeChange",
    "Setting",
    "Unaligned",
    "UnalignedOp",
    "WorstElement",
    "diff",
]
