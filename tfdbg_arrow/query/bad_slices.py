"""BadSlices: finds all bad slices of a tensor along its first axis, if the recording kept enough elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.recorded import TensorEvent
from tfdbg_arrow.schema.dtypes import itemsize_of

if TYPE_CHECKING:
    import numpy.typing as npt

_MAX_BYTES = 64 * 2**20
"""Larger tensors are neither read nor computed again."""


class BadSlices:
    """Finds the bad slices of one run's tensors.

    A row of `tensor_health` has the first bad slice and the number of bad slices. The kept elements of the tensor show
    the other bad slices. If only the inputs of an elementwise op were kept, the op is computed again.
    """

    def __init__(self, logdir: Engine, *, run_id: str) -> None:
        self._logdir = logdir
        self._run_id = run_id

    def of(self, event: TensorEvent, kept_as: int | None) -> tuple[int, ...]:
        """Returns the indexes of the bad slices of a tensor; empty if the indexes are not certain.

        The indexes are certain if their number and the first index agree with the recorded row of the tensor.

        Args:
            event: The tensor.
            kept_as: The `event_index` of the tensor's row in `step_input`; None if there is no such row.
        """
        shape, first_bad, num_bad = event.shape, event.first_bad_place, event.num_bad_slices
        if not shape or not first_bad or not num_bad or math.prod(shape) * 16 > _MAX_BYTES:
            return ()
        array = self._elements(event, shape, kept_as)
        if array is None or array.shape != shape or array.dtype.kind not in "fc":
            return ()
        import numpy as np

        is_bad = ~np.isfinite(array.reshape(shape[0], -1)).all(axis=1)
        slices = tuple(int(index) for index in np.flatnonzero(is_bad))
        return slices if len(slices) == num_bad and slices[0] == first_bad[0] else ()

    def _elements(self, event: TensorEvent, shape: tuple[int, ...], kept_as: int | None) -> npt.NDArray[Any] | None:
        """Returns the elements of a tensor: the kept elements, or elements that are computed from the kept inputs."""
        own = self._read("tensor_value", event.event_index) if kept_as is None else self._read("step_input", kept_as)
        if own:
            return own[0]
        inputs = self._read("input_value", event.event_index)
        return _computed(event.op_type or "", inputs, shape) if inputs else None

    def _read(self, table: str, event_index: int) -> list[npt.NDArray[Any]]:
        """Returns the arrays that a table has for an event, in order; empty if an array cannot be decoded."""
        order = "input_index" if table == "input_value" else "event_index"
        rows = self._logdir.rows(
            f"SELECT dtype, shape, value FROM {table} WHERE run_id = ? AND event_index = ? "
            f"AND octet_length(value) <= {_MAX_BYTES} ORDER BY {order}",
            [self._run_id, event_index],
        )
        if not rows:
            return []
        # NumPy is imported here because few answers need it.
        import numpy as np

        from tfdbg_arrow.query.values import decode

        arrays: list[npt.NDArray[Any]] = []
        for dtype, dimensions, value in rows:
            is_whole = len(value) == math.prod(dimensions) * (itemsize_of(dtype) or 0)
            array = decode(np.frombuffer(value, np.uint8), dtype) if is_whole and dtype != "string" else None
            if array is None or min(dimensions, default=0) < 0:
                return []
            arrays.append(array.reshape(dimensions))
        return arrays


def _computed(op_type: str, inputs: Sequence[npt.NDArray[Any]], shape: tuple[int, ...]) -> npt.NDArray[Any] | None:
    """Returns the output of an elementwise op; None for an op that is not in the table."""
    import numpy as np

    num_inputs, compute = _functions().get(op_type, (0, None))
    if compute is None or len(inputs) != num_inputs:
        return None
    try:
        if np.broadcast_shapes(*(array.shape for array in inputs)) != shape:
            return None
        with np.errstate(all="ignore"):
            return np.asarray(compute(*inputs))
    except (TypeError, ValueError):  # a logdir from an untrusted source may have shapes that do not fit together
        return None


def _functions() -> Mapping[str, tuple[int, Callable[..., Any]]]:
    """Returns the number of inputs and the NumPy function of each elementwise op that makes bad values."""
    import numpy as np

    return {
        "Acos": (1, np.arccos),
        "AddV2": (2, np.add),
        "Asin": (1, np.arcsin),
        "Atanh": (1, np.arctanh),
        "Div": (2, np.divide),
        "Exp": (1, np.exp),
        "Expm1": (1, np.expm1),
        "Inv": (1, np.reciprocal),
        "Log": (1, np.log),
        "Log1p": (1, np.log1p),
        "Mul": (2, np.multiply),
        "Pow": (2, np.power),
        "RealDiv": (2, np.divide),
        "Reciprocal": (1, np.reciprocal),
        "Rsqrt": (1, lambda x: 1 / np.sqrt(x)),
        "Sqrt": (1, np.sqrt),
        "SqrtGrad": (2, lambda root, gradient: gradient / root),
        "Square": (1, np.square),
        "Sub": (2, np.subtract),
        "Xdivy": (2, lambda x, y: np.where(x == 0, 0, x / y)),
        "Xlogy": (2, lambda x, y: np.where(x == 0, 0, x * np.log(y))),
    }
