"""The encoding of string tensors in `tensor_value.value`.

The value starts with the end offset of each element as little-endian int64: the number of bytes of all elements up to
and including it. The bytes of all elements follow without gaps. Element i lies between the end offsets i - 1 and i.

Source: spec/README.md, "Modes".
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

_END = np.dtype("<i8")


def encode_strings(elements: Iterable[bytes]) -> bytes:
    """Returns the encoding of strings, given in row-major order, for a row of tensor_value."""
    items = list(elements)
    ends = np.cumsum([len(item) for item in items], dtype=_END)
    return b"".join((ends.tobytes(), *items))


def decode_strings(value: bytes, size: int) -> tuple[bytes, ...]:
    """Returns the elements of a tensor of strings.

    Args:
        value: The complete `tensor_value.value`.
        size: Number of elements.

    Raises:
        ValueError: The end offsets do not match the bytes.
    """
    ends = np.frombuffer(value[: size * _END.itemsize], _END) if size * _END.itemsize <= len(value) else None
    items = value[size * _END.itemsize :]
    starts = None if ends is None else np.concatenate((np.zeros(1, _END), ends))
    if starts is None or bool(np.any(np.diff(starts) < 0)) or int(starts[-1]) != len(items):
        raise ValueError(f"{len(value)} bytes are not an encoding of {size} strings")
    places = starts.tolist()
    return tuple(items[start:end] for start, end in pairwise(places))
