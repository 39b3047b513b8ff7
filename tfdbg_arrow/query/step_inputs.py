"""StepInputs: reads the inputs that were kept for training steps with bad values, and the elements of one sample."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.recorded import GraphTensor
from tfdbg_arrow.schema.dtypes import itemsize_of

_NUM_ELEMENTS = 12
"""Maximum number of elements of a sample in an answer."""
_MAX_EXAMINED = 2**22
"""Maximum number of elements of a sample that are searched for a bad element."""
_MAX_OFFSET = 2**40
"""Limits the number of bytes that are read if a shape was forged. The limit is larger than any kept tensor."""


@dataclass(frozen=True, kw_only=True)
class SampleInput:
    """One input of a training step for one sample of the batch.

    Attributes:
        name: The name of the argument, the feed or the component, such as `x`, `age` or `component 0`.
        event_index: The event_index of the input's row in `step_input`, which has the elements of all samples.
        index: Index of the sample in the batch, from 0. For a ragged tensor, the index of the sample's first value.
        dtype: TensorFlow's name of the dtype.
        shape: Dimensions of the sample.
        elements: The first elements of the sample, at most 12; None if the package cannot decode the dtype.
        num_values: Number of values of the sample in a ragged tensor; None for other tensors.
        first_bad: The index and the value of the sample's first NaN or infinity. None if the sample has no such
            element, or if it is one of `elements`.
        are_equal: Whether all elements of the sample are known to be the same number.
    """

    name: str
    event_index: int
    index: int
    dtype: str
    shape: tuple[int, ...]
    elements: tuple[object, ...] | None
    num_values: int | None = None
    first_bad: tuple[tuple[int, ...], object] | None = None
    are_equal: bool = False


@dataclass(frozen=True)
class KeptInput:
    """An input whose elements were kept. The first axis may be the axis of the batch or another axis."""

    event_index: int
    dtype: str
    shape: tuple[int, ...]


class StepInputs:
    """Reads the kept inputs of the training steps of one run."""

    def __init__(self, logdir: Engine, *, run_id: str) -> None:
        self._logdir = logdir
        self._run_id = run_id

    def of_element(self, component: GraphTensor) -> dict[int, KeptInput]:
        """Returns the kept components of an element that a graph took from a data set, by output slot.

        Args:
            component: Any component of the element.
        """
        context = component.context
        return self._read(
            "output_slot",
            "graph_id = ? AND op_name = ? AND step_id = ? AND iteration = ?",
            [component.graph_id, component.op_name, context.step_id, context.iteration],
        )

    def of_arguments(self, argument: GraphTensor, components: Mapping[str, int]) -> dict[int, KeptInput]:
        """Returns, by number, the kept components of an element that one iteration of a loop over a data set took.

        Args:
            argument: Any argument of the loop's body in this iteration.
            components: For each argument that is a component, its name and its number.
        """
        input_by_name = self._read(
            "op_name", "graph_id = ? AND step_id = ?", [argument.graph_id, argument.context.step_id]
        )
        return {components[name]: input_ for name, input_ in input_by_name.items() if name in components}

    def of_tensors(self, tensor_ids: Iterable[int]) -> dict[int, KeptInput]:
        """Returns those of the given eager tensors that were kept, by tensor ID."""
        ids = sorted(tensor_ids)
        return self._read("tensor_id", f"tensor_id IN ({', '.join('?' * len(ids))})", ids) if ids else {}

    def _read(self, key: str, condition: str, parameters: Sequence[object]) -> dict[Any, KeptInput]:
        rows = self._logdir.rows(
            f"SELECT {key}, event_index, dtype, shape FROM step_input WHERE run_id = ? AND {condition} "
            "ORDER BY event_index DESC",
            [self._run_id, *parameters],
        )
        return {number: KeptInput(event_index, dtype, tuple(shape)) for number, event_index, dtype, shape in rows}

    def integers(self, kept: KeptInput) -> tuple[int, ...]:
        """Returns the elements of a tensor of integers in row-major order; empty for tensors of other dtypes."""
        import numpy as np

        from tfdbg_arrow.query.values import decode

        if kept.dtype not in ("int32", "int64"):
            return ()
        array = decode(np.frombuffer(self._prefix(kept, _MAX_OFFSET), np.uint8), kept.dtype)
        return () if array is None else tuple(array.tolist())

    def sample(self, kept: KeptInput, number: int, *, name: str, num_values: int | None = None) -> SampleInput:
        """Returns the elements of an input for one sample.

        Args:
            kept: The input.
            number: The index of the sample. For a ragged tensor, the index of the sample's first value.
            name: The name of the input.
            num_values: Number of values of the sample in a ragged tensor; None for other tensors.

        Raises:
            BrokenPartError: The row does not have the strings of the input.
        """
        # NumPy is imported here because few answers need it.
        import numpy as np

        from tfdbg_arrow.query.values import decode, texts

        shape = kept.shape[1:] if num_values is None else (num_values, *kept.shape[1:])
        first, size = number * math.prod(kept.shape[1:]), math.prod(shape)
        num_shown = min(size, _NUM_ELEMENTS)
        elements: list[object] | None = None
        first_bad, are_equal = None, False
        if kept.dtype == "string":
            value = self._prefix(kept, _MAX_OFFSET)
            elements = list(texts(value, size=math.prod(kept.shape))[first : first + num_shown])
        elif (itemsize := itemsize_of(kept.dtype)) is not None:
            value = self._prefix(kept, (first + min(size, _MAX_EXAMINED)) * itemsize)[first * itemsize :]
            array = decode(np.frombuffer(value, np.uint8), kept.dtype)
            if array is not None:
                elements = array[:num_shown].tolist()
                are_equal = 0 < len(array) == size and bool((array == array[0]).all())
                bad = np.flatnonzero(~np.isfinite(array)).tolist() if array.dtype.kind in "fc" else []
                if bad and bad[0] >= num_shown:
                    first_bad = tuple(map(int, np.unravel_index(bad[0], shape))), array[bad[0]].item()
        return SampleInput(
            name=name,
            event_index=kept.event_index,
            index=number,
            dtype=kept.dtype,
            shape=shape,
            elements=None if elements is None else tuple(elements),
            num_values=num_values,
            first_bad=first_bad,
            are_equal=are_equal,
        )

    def _prefix(self, kept: KeptInput, num_bytes: int) -> bytes:
        ((value,),) = self._logdir.rows(
            "SELECT blob_prefix(value, ?) FROM step_input WHERE run_id = ? AND event_index = ?",
            [min(num_bytes, _MAX_OFFSET), self._run_id, kept.event_index],
        )
        return bytes(value)
