"""The elements of recorded tensors, a page at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.history import elements
from tfdbg_arrow.query.logdir import Logdir
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
        elements: The elements; None where the dtype is none that NumPy or bfloat16 can hold.
    """

    dtype: str
    shape: tuple[int, ...]
    num_elements: int
    first: int
    elements: tuple[object, ...] | None


def read_values(
    logdir: Logdir, event_index: int, *, run_id: str, first: int = 0, limit: int = 100
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
        "SELECT dtype, shape, octet_length(value) FROM tensor_value WHERE run_id = $run_id AND event_index = $event",
        {"run_id": run_id, "event": event_index},
    )
    if not facts:
        return None
    dtype, shape, num_bytes = facts[0]
    itemsize = _ITEMSIZES.get(dtype)
    found: tuple[object, ...] | None = None
    if itemsize is not None:
        # Byte positions in SQL count from 1, and both ends belong to the slice.
        ((value,),) = logdir.rows(
            "SELECT value[$low:$high] FROM tensor_value WHERE run_id = $run_id AND event_index = $event",
            {
                "run_id": run_id,
                "event": event_index,
                "low": first * itemsize + 1,
                "high": (first + limit) * itemsize,
            },
        )
        found = _decoded(bytes(value), dtype)
    return TensorValues(
        dtype=dtype,
        shape=tuple(shape),
        num_elements=math.prod(shape) if itemsize is None else num_bytes // itemsize,
        first=first,
        elements=found,
    )


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
