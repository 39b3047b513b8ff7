"""The elements of recorded tensors, a page at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.history import elements, texts
from tfdbg_arrow.schema.dtypes import DTYPES

_ITEMSIZES = {dtype.name: dtype.itemsize for dtype in DTYPES}


@dataclass(frozen=True, kw_only=True)
class TensorValues:
    """Some elements of a tensor.

    Attributes:
        dtype: Its dtype, by TensorFlow's name.
        shape: Its dimensions.
        num_elements: How many elements it has in all.
        first: Place of the first of `elements` in row-major order, from 0.
        elements: The elements; None where they are neither text nor numbers of NumPy's dtypes or
            bfloat16.
    """

    dtype: str
    shape: tuple[int, ...]
    num_elements: int
    first: int
    elements: tuple[object, ...] | None


def read_values(
    logdir: Engine, event_index: int, *, run_id: str, first: int = 0, limit: int = 100
) -> TensorValues | None:
    """Returns elements of a recorded tensor, None where its values were not kept.

    Args:
        logdir: The logdir.
        event_index: Its row in tensor_health.
        run_id: The run.
        first: Place of the first element in row-major order, from 0.
        limit: At most so many elements.

    Raises:
        QueryError: A number is below 0.
        BrokenPartError: A part cannot be read.
    """
    if first < 0 or limit < 0:
        raise QueryError(f"first is {first} and limit {limit}; expected numbers from 0 on.")
    facts = logdir.rows(
        "SELECT dtype, shape, octet_length(value) FROM tensor_value WHERE run_id = ? AND event_index = ?",
        [run_id, event_index],
    )
    if not facts:
        return None
    dtype, shape, num_bytes = facts[0]
    itemsize = _ITEMSIZES.get(dtype)
    found: tuple[object, ...] | None = None
    if dtype == "string":
        value = _prefix(logdir, event_index, num_bytes, run_id=run_id)
        found = texts(value, size=math.prod(shape))[first : first + limit]
    elif itemsize is not None:
        num_wanted = min((first + limit) * itemsize, num_bytes)
        found = _decoded(_prefix(logdir, event_index, num_wanted, run_id=run_id)[first * itemsize :], dtype)
    return TensorValues(
        dtype=dtype,
        shape=tuple(shape),
        num_elements=math.prod(shape) if itemsize is None else num_bytes // itemsize,
        first=first,
        elements=found,
    )


def _prefix(logdir: Engine, event_index: int, num_bytes: int, *, run_id: str) -> bytes:
    ((value,),) = logdir.rows(
        "SELECT blob_prefix(value, ?) FROM tensor_value WHERE run_id = ? AND event_index = ?",
        [num_bytes, run_id, event_index],
    )
    return bytes(value)


def _decoded(value: bytes, dtype: str) -> tuple[object, ...] | None:
    if dtype == "bfloat16":
        # The upper half of a float32.
        halves = np.frombuffer(value[: len(value) // 2 * 2], "<u2").astype("<u4") << 16
        floats: npt.NDArray[np.float32] = halves.view("<f4")
        return tuple(floats.tolist())
    try:
        return elements(value, dtype)
    except TypeError:
        return None
