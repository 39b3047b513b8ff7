"""Where the tensors of a graph are, and where they are measured."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import tensorflow as tf

from tfdbg_arrow.writer.graphs.own_ops import TensorBatch
from tfdbg_arrow.writer.hooks import runtime


class Devices:
    """Where to measure what."""

    def __init__(self) -> None:
        self._has_accelerator = runtime.has_accelerator()

    def measuring(self, device: str) -> str:
        """Returns where to measure the tensors of a device; empty for where TensorFlow will."""
        if not self._has_accelerator:
            return ""
        if runtime.is_op_determinism_enabled():
            # The summary op refuses to run on a GPU then.
            return str(_host().make_merged_spec(_spec(device).replace(device_type="CPU", device_index=0)).to_string())
        # An op without a kernel on that very device would else fail the user's function.
        return device if runtime.allows_soft_placement() else ""

    def full_name(self, device: str) -> str:
        """Returns the full name of the device of an op, given the one asked for; empty if it is not known."""
        spec = _spec(device)
        if self._has_accelerator and spec.device_type is None:
            return ""
        return str(_host().make_merged_spec(spec).to_string())


def _host() -> Any:
    return _spec(runtime.host_device_name())


@functools.lru_cache(maxsize=1024)
def _spec(device: str) -> Any:
    return tf.DeviceSpec.from_string(device)


class Grouped(NamedTuple):
    """A tensor of a graph, its key, whether its elements are kept by choice, whether it stops the program if bad."""

    tensor: Any
    node: int
    is_chosen: bool
    decides: bool


def by_device(batches: Sequence[TensorBatch]) -> dict[str, list[Grouped]]:
    """The tensors, in order of creation, by the device that their op asks for."""
    groups: dict[str, list[Grouped]] = {}
    for batch in batches:
        groups.setdefault(batch.op.device, []).extend(
            Grouped(tensor, node, batch.is_chosen, decides)
            for tensor, node, decides in zip(batch.tensors, batch.nodes, batch.all_decides, strict=True)
        )
    return groups


def placed(device: str) -> AbstractContextManager[Any]:
    """Returns the scope in which ops are made for a device; empty for where TensorFlow will."""
    scope: AbstractContextManager[Any] = tf.device(device) if device else nullcontext()
    return scope


def dtype_number(tensor: Any) -> int:
    """Returns a tensor's dtype as a number of TensorFlow's enum DataType, that of a reference as what it refers to."""
    return int(tensor.dtype.base_dtype.as_datatype_enum)
