"""Decodes the elements in a tensor's recorded bytes.

Formats that NumPy does not have: bfloat16 is the upper half of a float32. The names of float8 dtypes give the number of
bits of exponent and mantissa. `fn` means that there are no infinities, and `uz` that there is only one zero, with NaN
encoded as -0.
Source: OCP 8-bit floating point specification, and arXiv 2206.02915 for `fnuz`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]

_NUMPY_DTYPES = frozenset(
    {"bool", "complex128", "complex64", "float16", "float32", "float64"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)


def _float8(mantissa_bits: int, bias: int, *, has_one_zero: bool) -> npt.NDArray[np.float32]:
    """Returns the values of all 256 bit patterns of a float8 without infinities."""
    bits = np.arange(256)
    exponent, mantissa = (bits & 127) >> mantissa_bits, bits & (2**mantissa_bits - 1)
    fraction = mantissa * 2.0**-mantissa_bits
    magnitude = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent - bias))
    values: npt.NDArray[np.float32] = np.where(bits & 128, -magnitude, magnitude).astype(np.float32)
    values[[128] if has_one_zero else [127, 255]] = np.nan
    return values


_FLOAT8 = {
    "float8_e4m3fn": _float8(3, 7, has_one_zero=False),
    "float8_e4m3fnuz": _float8(3, 8, has_one_zero=True),
    "float8_e4m3b11fnuz": _float8(3, 11, has_one_zero=True),
    "float8_e5m2fnuz": _float8(2, 16, has_one_zero=True),
}
_DECODERS: dict[str, Callable[[npt.NDArray[np.uint8]], Array]] = {
    "bfloat16": lambda raw: (raw[: len(raw) // 2 * 2].view("<u2").astype(np.uint32) << 16).view(np.float32),
    "float8_e5m2": lambda raw: (raw.astype(np.uint16) << 8).view(np.float16),
}

DECODED_DTYPES = frozenset({*_NUMPY_DTYPES, *_FLOAT8, *_DECODERS})
"""The dtypes that `decode` supports."""


def decode(raw: npt.NDArray[np.uint8], dtype: str) -> Array | None:
    """Returns the elements in a tensor's bytes.

    Args:
        raw: The bytes, row-major and little-endian. An incomplete element at the end is ignored.
        dtype: TensorFlow's name of the dtype.

    Returns:
        The elements as a one-dimensional array: bfloat16 and most float8 dtypes as float32, float8_e5m2 as float16, all
        others in their own dtype. None for a dtype that is not in DECODED_DTYPES.
    """
    if dtype in _NUMPY_DTYPES:
        kind = np.dtype(dtype).newbyteorder("<")
        return raw[: len(raw) // kind.itemsize * kind.itemsize].view(kind)
    if dtype in _FLOAT8:
        return _FLOAT8[dtype][raw]
    decoder = _DECODERS.get(dtype)
    return None if decoder is None else decoder(raw)
