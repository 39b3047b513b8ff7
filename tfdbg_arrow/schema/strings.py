"""How `tensor_value.value` holds the elements of a tensor of strings.

First the end of each element as int64, little-endian: how many bytes the elements up to it take, itself included;
then the bytes of all elements, one after the other. Element i is what lies between the ends i - 1 and i.
Source: spec/README.md, "Modes".
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

_END = np.dtype("<i8")


def encode_strings(elements: Iterable[bytes]) -> bytes:
    """Returns strings, in row-major order, as a tensor_value row holds them."""
    items = list(elements)
    ends = np.cumsum([len(item) for item in items], dtype=_END)
    return b"".join((ends.tobytes(), *items))


def decode_strings(value: bytes, size: int) -> tuple[bytes, ...]:
    """Returns the elements of a tensor of strings.

    Args:
        value: `tensor_value.value`, whole.
        size: Number of elements.

    Raises:
        ValueError: The ends do not fit the bytes.
    """
    ends = np.frombuffer(value[: size * _END.itemsize], _END) if size * _END.itemsize <= len(value) else None
    items = value[size * _END.itemsize :]
    starts = None if ends is None else np.concatenate((np.zeros(1, _END), ends))
    if starts is None or bool(np.any(np.diff(starts) < 0)) or int(starts[-1]) != len(items):
        raise ValueError(f"{len(value)} bytes are no {size} strings")
    places = starts.tolist()
    return tuple(items[start:end] for start, end in pairwise(places))
