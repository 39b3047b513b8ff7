"""TensorFlow's element types, with their numbers, names and sizes.

Source: tensorflow/core/framework/types.proto (enum DataType), `tf.dtypes.DType.name` and `.size`.
"""

from __future__ import annotations

from dataclasses import dataclass

_REF_OFFSET = 100
"""A reference to a dtype has the dtype's number plus this."""


@dataclass(frozen=True, kw_only=True)
class Dtype:
    """One element type.

    Attributes:
        number: Value of TensorFlow's enum DataType.
        name: TensorFlow's name, such as `float32`.
        itemsize: Bytes of one element in memory; None if elements are not plain bytes. Elements of the
            2-bit and 4-bit types take one byte each.
    """

    number: int
    name: str
    itemsize: int | None


_ROWS: tuple[tuple[int, str, int | None], ...] = (
    (1, "float32", 4),
    (2, "float64", 8),
    (3, "int32", 4),
    (4, "uint8", 1),
    (5, "int16", 2),
    (6, "int8", 1),
    (7, "string", None),
    (8, "complex64", 8),
    (9, "int64", 8),
    (10, "bool", 1),
    (11, "qint8", 1),
    (12, "quint8", 1),
    (13, "qint32", 4),
    (14, "bfloat16", 2),
    (15, "qint16", 2),
    (16, "quint16", 2),
    (17, "uint16", 2),
    (18, "complex128", 16),
    (19, "float16", 2),
    (20, "resource", None),
    (21, "variant", None),
    (22, "uint32", 4),
    (23, "uint64", 8),
    (24, "float8_e5m2", 1),
    (25, "float8_e4m3fn", 1),
    (26, "float8_e4m3fnuz", 1),
    (27, "float8_e4m3b11fnuz", 1),
    (28, "float8_e5m2fnuz", 1),
    (29, "int4", 1),
    (30, "uint4", 1),
    (31, "int2", 1),
    (32, "uint2", 1),
    (33, "float4_e2m1fn", 1),
)

DTYPES: tuple[Dtype, ...] = tuple(Dtype(number=n, name=name, itemsize=size) for n, name, size in _ROWS)
"""All dtypes, in ascending order of their numbers."""

_BY_NUMBER: dict[int, Dtype] = {dtype.number: dtype for dtype in DTYPES}


def dtype_name(number: int) -> str:
    """Returns the name of a dtype: `float32_ref` for a reference, `unknown_<number>` if it is not listed here."""
    if number in _BY_NUMBER:
        return _BY_NUMBER[number].name
    if number - _REF_OFFSET in _BY_NUMBER:
        return f"{_BY_NUMBER[number - _REF_OFFSET].name}_ref"
    return f"unknown_{number}"


def dtype_itemsize(number: int) -> int | None:
    """Returns the size of one element in bytes; None if elements are not plain bytes or the dtype is not listed."""
    dtype = _BY_NUMBER.get(number) or _BY_NUMBER.get(number - _REF_OFFSET)
    return None if dtype is None else dtype.itemsize
