"""The elements of recorded tensors, as bytes of a recording and as arrays of an .npz file."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.errors import BrokenPartError
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.values import NUMPY_DTYPES
from tfdbg_arrow.safe_text import printable
from tfdbg_arrow.schema.dtypes import decode_strings, encode_strings, itemsize_of

if TYPE_CHECKING:
    from tfdbg_arrow.query.bad_samples import BadSamples

Array = npt.NDArray[Any]
_NO_WORD = re.compile(r"\W+")


@dataclass(frozen=True)
class Elements:
    """The elements of one tensor.

    Attributes:
        dtype: TensorFlow's name of the dtype.
        shape: Dimensions.
        value: The elements, as in `tensor_value.value`.
    """

    dtype: str
    shape: tuple[int, ...]
    value: bytes

    def slice(self, number: int, *, count: int = 1) -> Elements:
        """Returns consecutive slices along the first axis. The result keeps this axis.

        Args:
            number: The first slice. It must exist.
            count: Number of the slices.
        """
        shape = (count, *self.shape[1:])
        size = math.prod(shape[1:])
        if self.dtype == "string":
            texts = decode_strings(self.value, math.prod(self.shape))[number * size : (number + count) * size]
            value = encode_strings(texts)
        else:
            num_bytes = size * (itemsize_of(self.dtype) or 1)
            value = self.value[number * num_bytes : (number + count) * num_bytes]
        return Elements(self.dtype, shape, value)

    @property
    def plain_array(self) -> Array:
        """The elements as a program would write them, if NumPy has such an array; otherwise the same as `array`."""
        if self.dtype != "string":
            return self.array
        texts = decode_strings(self.value, math.prod(self.shape))
        if not texts or any(text.endswith(b"\0") for text in texts):  # NumPy would cut off zero bytes at the end
            return self.array
        return np.array(texts).reshape(self.shape)

    @property
    def array(self) -> Array:
        """The elements in the form that a script loads.

        A tensor of a dtype that NumPy does not have becomes an array of bytes. The array has one more dimension, for
        the bytes of an element. A tensor of strings becomes a vector of bytes, which contains the encoding in
        `tensor_value.value`.
        """
        raw = np.frombuffer(self.value, np.uint8)
        if self.dtype == "string":
            return raw
        if self.dtype in NUMPY_DTYPES:
            return raw.view(np.dtype(self.dtype).newbyteorder("<")).reshape(self.shape)
        return raw.reshape(*self.shape, itemsize_of(self.dtype) or 1)


class ElementReader:
    """Reads the elements of tensors of one run."""

    def __init__(self, logdir: Engine, *, run_id: str) -> None:
        self._logdir = logdir
        self._run_id = run_id

    def first_of(self, event_indexes: Iterable[int]) -> Elements | None:
        """Returns the elements of the first tensor whose elements were recorded; None if there is no such tensor.

        Raises:
            BrokenPartError: The row does not hold a valid tensor.
        """
        wanted = list(dict.fromkeys(event_indexes))
        if not wanted:
            return None
        rows = self._logdir.rows(
            "SELECT dtype, shape, value FROM tensor_value WHERE run_id = ? "
            f"AND event_index IN ({', '.join('?' * len(wanted))}) ORDER BY event_index LIMIT 1",
            [self._run_id, *wanted],
        )
        return _elements(*rows[0], table="tensor_value") if rows else None

    def sample(self, samples: BadSamples) -> dict[str, Elements]:
        """Returns the first bad sample: for each kept input of its step, by name, a batch with only this sample.

        Raises:
            BrokenPartError: A row does not hold a valid tensor.
        """
        made: dict[str, Elements] = {}
        for input_ in samples.first_sample:
            ((dtype, shape, value),) = self._logdir.rows(
                "SELECT dtype, shape, value FROM step_input WHERE run_id = ? AND event_index = ?",
                [self._run_id, input_.event_index],
            )
            name = _NO_WORD.sub("_", input_.name).strip("_")
            made[name if name not in made else f"{name}_{len(made)}"] = _elements(
                dtype, shape, value, table="step_input"
            ).slice(input_.index, count=1 if input_.num_values is None else input_.num_values)
        return made

    def inputs_of(self, event_index: int) -> dict[int, Elements]:
        """Returns the kept inputs of the op that made a bad tensor, by index; empty if no inputs were kept.

        Raises:
            BrokenPartError: A row does not hold a valid tensor.
        """
        rows = self._logdir.rows(
            "SELECT input_index, dtype, shape, value FROM input_value WHERE run_id = ? AND event_index = ? "
            "ORDER BY input_index",
            [self._run_id, event_index],
        )
        return {index: _elements(dtype, shape, value, table="input_value") for index, dtype, shape, value in rows}


def _elements(dtype: str, shape: Sequence[int], value: bytes, *, table: str) -> Elements:
    elements = Elements(dtype, tuple(shape), bytes(value))
    size = math.prod(elements.shape)
    itemsize = itemsize_of(dtype)
    is_right = all(dimension >= 0 for dimension in elements.shape)
    if is_right and dtype == "string":
        try:
            decode_strings(elements.value, size)
        except ValueError:
            is_right = False
    elif itemsize is None or size * itemsize != len(elements.value):
        is_right = False
    if not is_right:
        raise BrokenPartError(
            f"a row of {table} has {len(elements.value):,} bytes for a tensor of dtype {printable(dtype)[:40]} and "
            f"shape {list(elements.shape)[:8]}; record again."
        )
    return elements
