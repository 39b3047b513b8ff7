"""TensorFlow's dtypes: their numbers, names, sizes and precision, and the encoding of string tensors.

Sources: tensorflow/core/framework/types.proto (enum DataType), `tf.dtypes.DType.name` and `.size`. The source for the
encoding of strings is spec/README.md, "Modes".

NumPy is imported inside the functions for strings, because the other functions do not need it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

_REF_OFFSET = 100
"""The number of a reference to a dtype is the number of the dtype plus this offset."""
_END = "<i8"
_END_SIZE = 8
"""Size of an end offset in bytes. NumPy could tell it, but only functions of this module import NumPy."""


@dataclass(frozen=True)
class Dtype:
    """One dtype.

    Attributes:
        number: The value of TensorFlow's enum DataType.
        name: TensorFlow's name, such as `float32`.
        itemsize: Number of bytes of one element in memory; None if elements have no fixed size. Elements of the 2-bit
            and 4-bit dtypes take one byte each.
        kind: `float`, `complex`, `integer` or `bool`; None if elements are not numbers.
        has_health: Whether tensor_health counts the elements.
        eps: The distance from 1 to the next larger number; 0 if numbers are exact.
        floor: A tiny number. Differences of this size are rounding errors, because `eps` does not apply close to 0.
        largest: The largest finite number. None for dtypes that are not floating-point, and for dtypes of one byte.
    """

    number: int
    name: str
    itemsize: int | None
    kind: str | None = None
    has_health: bool = True
    eps: float = 0.0
    floor: float = 0.0
    largest: float | None = None


def _float(number: int, name: str, itemsize: int, eps: float, floor: float, largest: float | None = None) -> Dtype:
    return Dtype(number, name, itemsize, "float", eps=eps, floor=floor, largest=largest)


_FLOAT32 = (2.0**-23, 2.0**-126, 3.4028234663852886e38)
_FLOAT64 = (2.0**-52, 2.0**-1022, 1.7976931348623157e308)

DTYPES: tuple[Dtype, ...] = (
    _float(1, "float32", 4, *_FLOAT32),
    _float(2, "float64", 8, *_FLOAT64),
    Dtype(3, "int32", 4, "integer"),
    Dtype(4, "uint8", 1, "integer"),
    Dtype(5, "int16", 2, "integer"),
    Dtype(6, "int8", 1, "integer"),
    Dtype(7, "string", None, has_health=False),
    Dtype(8, "complex64", 8, "complex", True, *_FLOAT32),
    Dtype(9, "int64", 8, "integer"),
    Dtype(10, "bool", 1, "bool"),
    Dtype(11, "qint8", 1, "integer", has_health=False),
    Dtype(12, "quint8", 1, "integer", has_health=False),
    Dtype(13, "qint32", 4, "integer", has_health=False),
    _float(14, "bfloat16", 2, 2.0**-7, 2.0**-126, 3.3895313892515355e38),
    Dtype(15, "qint16", 2, "integer", has_health=False),
    Dtype(16, "quint16", 2, "integer", has_health=False),
    Dtype(17, "uint16", 2, "integer"),
    Dtype(18, "complex128", 16, "complex", True, *_FLOAT64),
    _float(19, "float16", 2, 2.0**-10, 2.0**-24, 65504.0),
    Dtype(20, "resource", None, has_health=False),
    Dtype(21, "variant", None, has_health=False),
    Dtype(22, "uint32", 4, "integer"),
    Dtype(23, "uint64", 8, "integer"),
    _float(24, "float8_e5m2", 1, 2.0**-2, 2.0**-16),
    _float(25, "float8_e4m3fn", 1, 2.0**-3, 2.0**-9),
    _float(26, "float8_e4m3fnuz", 1, 2.0**-3, 2.0**-10),
    _float(27, "float8_e4m3b11fnuz", 1, 2.0**-3, 2.0**-13),
    _float(28, "float8_e5m2fnuz", 1, 2.0**-2, 2.0**-17),
    Dtype(29, "int4", 1, "integer", has_health=False),
    Dtype(30, "uint4", 1, "integer", has_health=False),
    Dtype(31, "int2", 1, "integer", has_health=False),
    Dtype(32, "uint2", 1, "integer", has_health=False),
    Dtype(33, "float4_e2m1fn", 1, "float", has_health=False, eps=2.0**-1, floor=2.0**-1),
)
"""All dtypes, in ascending order of their numbers."""

DTYPES_BY_NAME: dict[str, Dtype] = {dtype.name: dtype for dtype in DTYPES}

_BY_NUMBER: dict[int, Dtype] = {dtype.number: dtype for dtype in DTYPES}


def dtype_name(number: int) -> str:
    """Returns the name of a dtype.

    The name of a reference is like `float32_ref`. The name of a dtype that is not in DTYPES is `unknown_<number>`.
    """
    if number in _BY_NUMBER:
        return _BY_NUMBER[number].name
    if number - _REF_OFFSET in _BY_NUMBER:
        return f"{_BY_NUMBER[number - _REF_OFFSET].name}_ref"
    return f"unknown_{number}"


def dtype_itemsize(number: int) -> int | None:
    """Returns the size of one element in bytes; None if elements have no fixed size, or if the dtype is unknown."""
    dtype = _BY_NUMBER.get(number) or _BY_NUMBER.get(number - _REF_OFFSET)
    return None if dtype is None else dtype.itemsize


def itemsize_of(name: str) -> int | None:
    """Returns the same as `dtype_itemsize` for the name of a dtype."""
    dtype = DTYPES_BY_NAME.get(name)
    return None if dtype is None else dtype.itemsize


def encode_strings(elements: Iterable[bytes]) -> bytes:
    """Returns the encoding of a tensor of strings in `tensor_value.value`.

    The value starts with the end offset of each element, as little-endian int64. The end offset of an element is the
    number of bytes of this element and all elements before it. The bytes of all elements follow without gaps.

    Args:
        elements: The strings, in row-major order.
    """
    import numpy as np

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
    import numpy as np

    ends = np.frombuffer(value[: size * _END_SIZE], _END) if size * _END_SIZE <= len(value) else None
    items = value[size * _END_SIZE :]
    starts = None if ends is None else np.concatenate((np.zeros(1, _END), ends))
    if starts is None or bool(np.any(np.diff(starts) < 0)) or int(starts[-1]) != len(items):
        raise ValueError(f"{len(value)} bytes are not an encoding of {size} strings")
    places = starts.tolist()
    return tuple(items[start:end] for start, end in pairwise(places))
