"""Tolerance: how far two tensors may be apart because of rounding.

Rounding errors of a sum, a product of matrices or a convolution are proportional to the magnitude of the summands, not
of the single resulting element. An element can cancel to nearly nothing and be off by many times itself. So the
tolerance of a tensor is one number, `atol + rtol * scale`, where the scale is the largest magnitude of a finite element
in either run.

The default `rtol` is 16 units in the last place (16 * eps) of the coarsest dtype with a difference so far. Accumulating
n numbers loses about sqrt(n) units in practice, and the scale leaves some extra room. "So far" matters because a
float32 tensor that is computed from a float16 tensor is only as exact as the float16 tensor. The default `atol` is the
spacing at which the coarser dtype loses its relative precision: the least subnormal of float16, or the least normal
number of other dtypes, whose subnormals TensorFlow flushes to zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tfdbg_arrow.errors import QueryError

UNITS = 16
"""Default relative tolerance, in units in the last place."""
MAX_RTOL = 0.5
"""Maximum of the default: 16 units of an eight-bit dtype would exceed the number itself."""
DEFAULT_GROWTH = 10.0
"""Default of the factor by which the relative difference of an op may exceed that of its inputs."""


@dataclass(frozen=True)
class Precision:
    """One dtype: its class, the distance from 1 to the next number (0 if exact), and where that precision ends."""

    name: str
    kind: str
    eps: float
    floor: float


_FLOAT32, _FLOAT64 = (2.0**-23, 2.0**-126), (2.0**-52, 2.0**-1022)
_FLOATS = {
    "float16": (2.0**-10, 2.0**-24),
    "bfloat16": (2.0**-7, 2.0**-126),
    "float32": _FLOAT32,
    "float64": _FLOAT64,
    "float8_e5m2": (2.0**-2, 2.0**-16),
    "float8_e5m2fnuz": (2.0**-2, 2.0**-17),
    "float8_e4m3fn": (2.0**-3, 2.0**-9),
    "float8_e4m3fnuz": (2.0**-3, 2.0**-10),
    "float8_e4m3b11fnuz": (2.0**-3, 2.0**-13),
    "float4_e2m1fn": (2.0**-1, 2.0**-1),
}
_INTEGERS = (
    "int2", "int4", "int8", "int16", "int32", "int64", "uint2", "uint4", "uint8", "uint16", "uint32", "uint64",
    "qint8", "qint16", "qint32", "quint8", "quint16",
)  # fmt: skip

PRECISIONS: dict[str, Precision] = {
    precision.name: precision
    for precision in (
        *(Precision(name, "float", eps, floor) for name, (eps, floor) in _FLOATS.items()),
        Precision("complex64", "complex", *_FLOAT32),
        Precision("complex128", "complex", *_FLOAT64),
        *(Precision(name, "integer", 0.0, 0.0) for name in _INTEGERS),
        Precision("bool", "bool", 0.0, 0.0),
    )
}
"""All dtypes that are compared, by their TensorFlow names."""


def precision_sql(fact: str, column: str) -> str:
    """Returns an SQL expression for a fact (`kind`, `eps`, `floor`) about the dtype in a column; NULL for other dtypes.

    This is an expression and not a table, because a planner might join by dtype, of which there are few, many to many.
    """
    cases = " ".join(f"WHEN '{p.name}' THEN {getattr(p, fact)!r}" for p in PRECISIONS.values())
    return f"CASE {column} {cases} END"


@dataclass(frozen=True)
class Tolerance:
    """The differences that count as rounding.

    Attributes:
        rtol: Relative to a tensor's largest magnitude; None means by dtype.
        atol: Absolute; None means by dtype.
        growth: The factor by which the relative difference of an op may exceed that of its inputs.
    """

    rtol: float | None = None
    atol: float | None = None
    growth: float = DEFAULT_GROWTH

    def __post_init__(self) -> None:
        for name, value in (("rtol", self.rtol), ("atol", self.atol)):
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise QueryError(f"{name} is {value!r}; expected 0 or more, or None for the default of the dtypes.")
        if not (math.isfinite(self.growth) and self.growth >= 1):
            raise QueryError(f"growth is {self.growth!r}; expected a number of 1 or more.")
