"""The elements of recorded tensors: reads them one block at a time, and counts them in a histogram.

NumPy does not have bfloat16 and the float8 dtypes. A bfloat16 is the upper half of a float32. The name of a float8
dtype gives the number of bits of the exponent and the mantissa. `fn` in the name means that the dtype has no
infinities. `uz` means that the dtype has only one zero, and that the bit pattern of -0 is NaN.

Source: OCP 8-bit floating point specification, and arXiv 2206.02915 for `fnuz`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.errors import BrokenPartError, QueryError
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.schema.dtypes import decode_strings, itemsize_of

WRAP = 10
"""Number of columns of the rows into which a tensor with one dimension is split."""
NUM_ROWS, NUM_COLUMNS = 20, 10
MAX_BYTES = 64 * 2**20
"""Maximum number of bytes of elements that are read from one tensor at a time."""
Array = npt.NDArray[np.generic]
NUMPY_DTYPES = frozenset(
    {"bool", "complex128", "complex64", "float16", "float32", "float64"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
_DECODERS: dict[str, Callable[[npt.NDArray[np.uint8]], Array]] = {
    "bfloat16": lambda raw: (raw[: len(raw) // 2 * 2].view("<u2").astype(np.uint32) << 16).view(np.float32),
    "float8_e5m2": lambda raw: (raw.astype(np.uint16) << 8).view(np.float16),
}
NUM_BINS = 40
"""Default maximum number of bins of a histogram, which is drawn in one row of a page."""


@dataclass(frozen=True, kw_only=True)
class ValueRow:
    """Consecutive elements of a tensor.

    Attributes:
        index: The index of the first element, with one number for each dimension.
        elements: The elements.
    """

    index: tuple[int, ...]
    elements: tuple[object, ...]


@dataclass(frozen=True, kw_only=True)
class TensorValues:
    """A block of a tensor's elements, as rows and columns.

    The columns are the last dimension, and the rows are all other dimensions. A tensor with one dimension is split into
    rows of WRAP elements.

    Attributes:
        dtype: TensorFlow's name of the dtype.
        shape: The dimensions of the tensor.
        num_elements: Number of elements of the tensor.
        num_rows: Number of rows of the tensor.
        num_columns: Number of columns of the tensor.
        first_row: The first row of the block.
        first_column: The first column of the block.
        rows: The block; None if the elements are not text and their dtype is not in DECODED_DTYPES.
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
        """Returns the index of an element, with one number for each dimension."""
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
    """Returns a block of a recorded tensor's elements, or None if the elements were not kept.

    Args:
        logdir: The logdir.
        event_index: The event_index of the tensor.
        run_id: The run.
        at: The index of the first element of the block, with one number for each dimension. Missing numbers are 0.
        num_rows: Maximum number of rows.
        num_columns: Maximum number of columns.

    Raises:
        QueryError: There is no such element, or a number is below 0.
        BrokenPartError: A part cannot be read.
    """
    if num_rows < 0 or num_columns < 0:
        raise QueryError(f"num_rows is {num_rows} and num_columns is {num_columns}; expected 0 or more.")
    tensor_facts = _kept(logdir, event_index, run_id=run_id)
    if tensor_facts is None:
        return None
    dtype, shape, num_bytes = tensor_facts
    whole = math.prod(shape)
    width = (shape[-1] if len(shape) > 1 else min(WRAP, whole)) if shape else 1
    height = -(-whole // width) if width else 0
    row, column = _place(shape, at, width)
    itemsize = itemsize_of(dtype)
    rows: tuple[ValueRow, ...] | None = None
    if itemsize is not None or dtype == "string":
        # Read fewer rows if they are very long, so that a block stays small.
        end = min(row + max(1, min(num_rows, MAX_BYTES // max(1, width * (itemsize or 1)))), height)
        num_wanted = num_bytes if itemsize is None else min(end * width * itemsize, num_bytes)
        elements = _elements(
            _prefix(logdir, event_index, num_wanted, run_id=run_id), dtype, first=row * width, size=whole
        )
        if elements is not None:
            cut = slice(column, min(column + num_columns, width))
            lines = [elements[start : start + width][cut] for start in range(0, (end - row) * width, width or 1)]
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
    """Returns the first elements of a recorded tensor in row-major order, and the number of all its elements.

    Args:
        logdir: The logdir.
        event_index: The event_index of the tensor.
        run_id: The run.
        max_bytes: Maximum number of bytes of the returned elements.

    Returns:
        (elements, number of all elements). None if the elements were not kept or their dtype is not in DECODED_DTYPES.
    """
    tensor_facts = _kept(logdir, event_index, run_id=run_id)
    if tensor_facts is None or itemsize_of(tensor_facts[0]) is None:
        return None
    dtype, shape, num_bytes = tensor_facts
    array = _array(_prefix(logdir, event_index, min(num_bytes, max_bytes), run_id=run_id), dtype)
    return None if array is None else (array, math.prod(shape))


@dataclass(frozen=True, kw_only=True)
class HistogramBin:
    """The number of finite elements in the interval [low, high). In the last bin, the interval includes `high`.

    If `low` equals `high`, the bin has the elements that are equal to this number.
    """

    low: float
    high: float
    num_elements: int


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """The distribution of the elements of a tensor.

    Attributes:
        is_modulus: Whether the histogram shows the modulus of complex elements.
        num_elements: Number of elements of the tensor.
        num_counted: Number of elements that were counted, starting with the first element.
        num_nan: Number of NaN among the counted elements.
        num_neg_inf: Number of -infinity among the counted elements.
        num_pos_inf: Number of +infinity among the counted elements. For complex dtypes, the number of elements with an
            infinite part.
        bins: Bins of equal width for the finite elements. If the elements are integers in a small range, there is one
            bin for each integer. Empty if no element is finite.
    """

    is_modulus: bool
    num_elements: int
    num_counted: int
    num_nan: int
    num_neg_inf: int
    num_pos_inf: int
    bins: tuple[HistogramBin, ...]

    @property
    def num_finite(self) -> int:
        """Number of finite elements among the counted elements."""
        return sum(bin_.num_elements for bin_ in self.bins)


def read_histogram(logdir: Engine, event_index: int, *, run_id: str, max_bytes: int = MAX_BYTES) -> Histogram | None:
    """Returns the distribution of a recorded tensor's elements; None if they were not kept or are not numbers.

    Args:
        logdir: The logdir.
        event_index: The event_index of the tensor.
        run_id: The run.
        max_bytes: Maximum number of bytes to read. In a larger tensor, only the first elements are counted.

    Raises:
        BrokenPartError: A part cannot be read.
    """
    array_and_size = read_array(logdir, event_index, run_id=run_id, max_bytes=max_bytes)
    return None if array_and_size is None else count_elements(array_and_size[0], num_elements=array_and_size[1])


def count_elements(array: npt.NDArray[Any], *, num_elements: int | None = None, num_bins: int = NUM_BINS) -> Histogram:
    """Returns the distribution of the elements of an array.

    Args:
        array: The elements, of any shape: booleans, integers, floats or complex numbers.
        num_elements: Number of elements of the whole tensor; None if the array has all elements.
        num_bins: Maximum number of bins.
    """
    is_modulus = array.dtype.kind == "c"
    if is_modulus:
        with np.errstate(over="ignore", invalid="ignore"):
            # A number with an infinite part is infinite, even if the other part is NaN.
            array = np.abs(array)
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array.reshape(-1)
    is_float = array.dtype.kind == "f"
    return Histogram(
        is_modulus=is_modulus,
        num_elements=array.size if num_elements is None else num_elements,
        num_counted=array.size,
        num_nan=int(np.isnan(array).sum()) if is_float else 0,
        num_neg_inf=int(np.isneginf(array).sum()) if is_float else 0,
        num_pos_inf=int(np.isposinf(array).sum()) if is_float else 0,
        bins=_bins(finite, num_bins),
    )


def decode(raw: npt.NDArray[np.uint8], dtype: str) -> Array | None:
    """Decodes the bytes of a tensor.

    Args:
        raw: The bytes, row-major and little-endian. An incomplete element at the end is ignored.
        dtype: TensorFlow's name of the dtype.

    Returns:
        The elements as a one-dimensional array. bfloat16 and most float8 dtypes become float32, float8_e5m2 becomes
        float16, and other dtypes do not change. None for a dtype that is not in DECODED_DTYPES.
    """
    if dtype in NUMPY_DTYPES:
        kind = np.dtype(dtype).newbyteorder("<")
        return raw[: len(raw) // kind.itemsize * kind.itemsize].view(kind)
    if dtype in _FLOAT8:
        return _FLOAT8[dtype][raw]
    decoder = _DECODERS.get(dtype)
    return None if decoder is None else decoder(raw)


def texts(value: bytes, *, size: int) -> tuple[str, ...]:
    """Returns the elements of a tensor of strings as text. Bytes that are not UTF-8 become escapes.

    Args:
        value: The complete `tensor_value.value`.
        size: Number of elements.

    Raises:
        BrokenPartError: The value does not have this number of strings.
    """
    try:
        elements = decode_strings(value, size)
    except ValueError as error:
        raise BrokenPartError(f"a row of tensor_value cannot be read: {error}; record again.") from error
    return tuple(element.decode("utf-8", "backslashreplace") for element in elements)


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
    is_inside = all(0 <= position < max(1, size) for position, size in zip(given, shape, strict=False))
    if len(given) != len(shape) or not is_inside:
        asked = ", ".join(map(str, at))
        raise QueryError(f"there is no element [{asked}] in a tensor of the shape [{', '.join(map(str, shape))}].")
    if len(shape) < 2:
        return (given[0] // width if given and width else 0), 0
    row = 0
    for position, size in zip(given[:-1], shape[:-1], strict=True):
        row = row * size + position
    return row, given[-1]


def _index(shape: tuple[int, ...], row: int, column: int) -> tuple[int, ...]:
    if len(shape) < 2:
        return (row * WRAP + column,) if shape else ()
    index = [column]
    for size in reversed(shape[:-1]):
        row, position = divmod(row, size)
        index.append(position)
    return tuple(reversed(index))


def _elements(value: bytes, dtype: str, *, first: int, size: int) -> list[object] | None:
    """Decodes a prefix of a tensor's bytes, and returns the elements from index `first` to the end of the prefix."""
    if dtype == "string":
        return list(texts(value, size=size)[first:])
    array = _array(value[first * (itemsize_of(dtype) or 1) :], dtype)
    return None if array is None else array.tolist()


def _array(value: bytes, dtype: str) -> Array | None:
    return decode(np.frombuffer(value, np.uint8), dtype)


def _float8(mantissa_bits: int, bias: int, *, has_one_zero: bool) -> npt.NDArray[np.float32]:
    """Returns the values of all 256 bit patterns of a float8 dtype that has no infinities."""
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


DECODED_DTYPES = frozenset({*NUMPY_DTYPES, *_FLOAT8, *_DECODERS})
"""The dtypes that `decode` supports."""


def _bins(finite: npt.NDArray[Any], num_bins: int) -> tuple[HistogramBin, ...]:
    if not finite.size:
        return ()
    low, high = finite.min().item(), finite.max().item()
    if low == high:
        return (HistogramBin(low=float(low), high=float(high), num_elements=finite.size),)
    if finite.dtype.kind != "f" and high - low < num_bins:
        values, counts = np.unique(finite, return_counts=True)
        count_of_value = dict(zip(values.tolist(), counts.tolist(), strict=True))
        return tuple(
            HistogramBin(low=float(value), high=float(value), num_elements=count_of_value.get(value, 0))
            for value in range(int(low), int(high) + 1)
        )
    # The elements are divided by 4, because the difference between the largest float64 values would be infinite.
    counts, edges = np.histogram(finite.astype(np.float64) / 4, bins=num_bins, range=(low / 4, high / 4))
    ends = (edges * 4).tolist()
    return tuple(
        HistogramBin(low=ends[number], high=ends[number + 1], num_elements=count)
        for number, count in enumerate(counts.tolist())
    )
