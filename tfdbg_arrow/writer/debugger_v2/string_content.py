"""Converts `TensorProto.tensor_content` of string tensors: the lengths of all elements as varints, then their bytes.

Source: TensorFlow's EncodeStringList (tensorflow/core/platform/coding.h, xla/tsl/platform/tensor_coding.h).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, pairwise


def pack_strings(elements: Iterable[bytes]) -> bytes:
    """Returns the content for elements in row-major order."""
    items = list(elements)
    return b"".join((*(_varint(len(item)) for item in items), *items))


def unpack_strings(content: bytes, size: int) -> tuple[bytes, ...] | None:
    """Returns the elements of a content; None if TensorFlow would not write it like this for `size` elements."""
    if size > len(content):
        return None
    lengths: list[int] = []
    length = shift = place = 0
    while len(lengths) < size and place < len(content):
        byte = content[place]
        place += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            lengths.append(length)
            length = shift = 0
    ends = list(accumulate(lengths, initial=place))
    if len(lengths) < size or ends[-1] != len(content):
        return None
    elements = tuple(content[start:end] for start, end in pairwise(ends))
    return elements if pack_strings(elements) == content else None


def _varint(number: int) -> bytes:
    made = bytearray()
    while number >= 0x80:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)
