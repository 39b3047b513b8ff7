"""Reads the elements of recorded tensors one block at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.elements import Array, decode
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.history import texts
from tfdbg_arrow.schema.dtypes import DTYPES

WRAP = 10
"""Number of columns for a tensor with one dimension. Its elements continue in the next row."""
NUM_ROWS, NUM_COLUMNS = 20, 10
MAX_BYTES = 64 * 2**20
"""Maximum number of bytes of a tensor's elements that are read at once."""
_ITEMSIZES = {dtype.name: dtype.itemsize for dtype in DTYPES}


@dataclass(frozen=True, kw_only=True)
class ValueRow:
    """Consecutive elements of a tensor.

    Attributes:
        index: The index of the first of them, one number per dimension.
        elements: The elements.
    """

    index: tuple[int, ...]
    elements: tuple[object, ...]


@dataclass(frozen=True, kw_only=True)
class TensorValues:
    """A block of a tensor's elements, as rows and columns.

    The last dimension runs along the columns, all others along the rows. For a tensor with one dimension, a row has
    WRAP elements.

    Attributes:
        dtype: TensorFlow's name of the dtype.
        shape: The dimensions of the tensor.
        num_elements: Number of elements of the tensor.
        num_rows: Number of rows of the tensor.
        num_columns: Number of columns of the tensor.
        first_row: The first row of the block.
        first_column: The first column of the block.
        rows: The block; None if the elements are neither text nor of DECODED_DTYPES.
    """

    dtype: str
    shape: tuple[int, ...]
    num_elements: int
    num_rows: int
    num_columns: int
    first_row: int
    first_column: int
    rows: tuple[ValueRow, ...] | None

    @property
    def columns(self) -> range:
        """The columns of the block."""
        return range(self.first_column, self.first_column + (len(self.rows[0].elements) if self.rows else 0))

    def index_at(self, row: int, column: int) -> tuple[int, ...]:
        """Returns the index of an element, one number per dimension."""
        return _index(self.shape, row, column)


def read_values(
    logdir: Engine,
    event_index: int,
    *,
    run_id: str,
    at: Sequence[int] = (),
    num_rows: int = NUM_ROWS,
    num_columns: int = NUM_COLUMNS,
) -> TensorValues | None:
    """Returns a block of a recorded tensor's elements, or None if its values were not kept.

    Args:
        logdir: The logdir.
        event_index: Its row in tensor_health.
        run_id: The run.
        at: The index of the first element of the block, one number per dimension. Omitted last numbers are 0.
        num_rows: Maximum number of rows.
        num_columns: Maximum number of columns.

    Raises:
        QueryError: There is no such element, or a number is below 0.
        BrokenPartError: A part cannot be read.
    """
    if num_rows < 0 or num_columns < 0:
        raise QueryError(f"num_rows is {num_rows} and num_columns is {num_columns}; expected 0 or more.")
    kept = _kept(logdir, event_index, run_id=run_id)
    if kept is None:
        return None
    dtype, shape, num_bytes = kept
    whole = math.prod(shape)
    width = (shape[-1] if len(shape) > 1 else min(WRAP, whole)) if shape else 1
    height = -(-whole // width) if width else 0
    row, column = _place(shape, at, width)
    itemsize = _ITEMSIZES.get(dtype)
    rows: tuple[ValueRow, ...] | None = None
    if itemsize is not None or dtype == "string":
        # Read fewer rows if they are very long, so that a block stays small.
        end = min(row + max(1, min(num_rows, MAX_BYTES // max(1, width * (itemsize or 1)))), height)
        num_wanted = num_bytes if itemsize is None else min(end * width * itemsize, num_bytes)
        found = _elements(_prefix(logdir, event_index, num_wanted, run_id=run_id), dtype, first=row * width, size=whole)
        if found is not None:
            cut = slice(column, min(column + num_columns, width))
            lines = [found[start : start + width][cut] for start in range(0, (end - row) * width, width or 1)]
            rows = tuple(
                ValueRow(index=_index(shape, row + number, column), elements=tuple(line))
                for number, line in enumerate(lines)
                if line
            )
    return TensorValues(
        dtype=dtype,
        shape=shape,
        num_elements=whole,
        num_rows=height,
        num_columns=width,
        first_row=row,
        first_column=column,
        rows=rows,
    )


def read_array(
    logdir: Engine, event_index: int, *, run_id: str, max_bytes: int = MAX_BYTES
) -> tuple[Array, int] | None:
    """Returns the first elements of a recorded tensor in row-major order, and its total number of elements.

    Args:
        logdir: The logdir.
        event_index: Its row in tensor_health.
        run_id: The run.
        max_bytes: Maximum number of bytes of these elements.

    Returns:
        The elements and the total number, or None if the values were not kept or are not of DECODED_DTYPES.
    """
    kept = _kept(logdir, event_index, run_id=run_id)
    if kept is None or _ITEMSIZES.get(kept[0]) is None:
        return None
    dtype, shape, num_bytes = kept
    found = _array(_prefix(logdir, event_index, min(num_bytes, max_bytes), run_id=run_id), dtype)
    return None if found is None else (found, math.prod(shape))


def _kept(logdir: Engine, event_index: int, *, run_id: str) -> tuple[str, tuple[int, ...], int] | None:
    rows = logdir.rows(
        "SELECT dtype, shape, octet_length(value) FROM tensor_value WHERE run_id = ? AND event_index = ?",
        [run_id, event_index],
    )
    return (rows[0][0], tuple(rows[0][1]), rows[0][2]) if rows else None


def _prefix(logdir: Engine, event_index: int, num_bytes: int, *, run_id: str) -> bytes:
    ((value,),) = logdir.rows(
        "SELECT blob_prefix(value, ?) FROM tensor_value WHERE run_id = ? AND event_index = ?",
        [num_bytes, run_id, event_index],
    )
    return bytes(value)


def _place(shape: tuple[int, ...], at: Sequence[int], width: int) -> tuple[int, int]:
    """Returns the row and the column of an element."""
    given = (*at, *[0] * (len(shape) - len(at)))
    is_inside = all(0 <= place < max(1, size) for place, size in zip(given, shape, strict=False))
    if len(given) != len(shape) or not is_inside:
        asked = ", ".join(map(str, at))
        raise QueryError(f"there is no element [{asked}] in a tensor of the shape [{', '.join(map(str, shape))}].")
    if len(shape) < 2:
        return (given[0] // width if given and width else 0), 0
    row = 0
    for place, size in zip(given[:-1], shape[:-1], strict=True):
        row = row * size + place
    return row, given[-1]


def _index(shape: tuple[int, ...], row: int, column: int) -> tuple[int, ...]:
    if len(shape) < 2:
        return (row * WRAP + column,) if shape else ()
    index = [column]
    for size in reversed(shape[:-1]):
        row, place = divmod(row, size)
        index.append(place)
    return tuple(reversed(index))


def _elements(value: bytes, dtype: str, *, first: int, size: int) -> list[object] | None:
    """Returns the elements in a prefix of a tensor's bytes, starting at the element `first`."""
    if dtype == "string":
        return list(texts(value, size=size)[first:])
    found = _array(value[first * (_ITEMSIZES[dtype] or 1) :], dtype)
    return None if found is None else found.tolist()


def _array(value: bytes, dtype: str) -> Array | None:
    return decode(np.frombuffer(value, np.uint8), dtype)
