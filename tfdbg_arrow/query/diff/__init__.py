"""diff: two runs of a program aligned, and where they first diverge.

In the order in which they are used: `workspace` holds what is needed of both runs; `sequences`, `stack_keys`, `ops`,
`calls` and `sites` align what the programs are, `pairing` the tensors; `elements` and `comparing` measure how far these
are apart, by `tolerance`; `candidates` and `roots` find the first divergence, which `describing` and `divergence`
describe; `summary` and `environment` tell the rest of the `answer`, and `comparison` puts it together.
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
