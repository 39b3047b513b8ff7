"""The ops that record graphs where there is no native core: Python functions on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfdbg_arrow.spool.records import NUM_INLINE_DIMS
from tfdbg_arrow.writer.graphs.own_ops import TensorBatch
from tfdbg_arrow.writer.hooks import record_ops, session_ops
from tfdbg_arrow.writer.settings import TensorDebugMode
from tfdbg_arrow.writer.tensorflow_backend import summary
from tfdbg_arrow.writer.tensorflow_backend.devices import Devices, Grouped, by_device, dtype_number, placed


@dataclass(frozen=True, kw_only=True)
class Pack:
    """What a Python function in a graph is given.

    Attributes:
        nodes: Keys of the tensors, int32.
        decides: Whether they stop the program if they are bad.
        dtypes: Their dtypes' numbers, int16.
        device_name: Full name of the device they are on; empty if it is not known.
        in_matrix: Positions of the tensors that the first argument holds a row of.
        whole: Positions of those that follow themselves.
        kept: Positions among `whole` of those whose elements are kept.
        shaped: Positions of those whose shapes follow then.
    """

    nodes: npt.NDArray[np.int32]
    decides: npt.NDArray[np.bool_]
    dtypes: npt.NDArray[np.int16]
    device_name: str
    in_matrix: list[int]
    whole: list[int]
    kept: list[int]
    shaped: list[int]

    def unpack(
        self, arrays: Sequence[npt.NDArray[Any]], *, mode: TensorDebugMode
    ) -> tuple[npt.NDArray[np.float64], dict[int, npt.NDArray[Any]], list[tuple[int, ...]]]:
        """Returns the summary rows, the tensors to keep by position, and those shapes that no row has room for."""
        arrays = list(arrays)
        rows = np.zeros((len(self.nodes), summary.NUM_COLUMNS))
        if self.in_matrix:
            rows[self.in_matrix] = arrays.pop(0)
        shapes: list[tuple[int, ...]] = [()] * len(self.nodes)
        values = arrays[: len(self.whole)]
        for position, array in zip(self.whole, values, strict=True):
            shapes[position] = array.shape
        for position in sorted(set(self.whole) - set(self.in_matrix)):
            rows[position] = summary.measure_array(values[self.whole.index(position)], mode=mode)
        for position, shape in zip(self.shaped, arrays[len(self.whole) :], strict=True):
            shapes[position] = tuple(shape.tolist())
        return rows, {self.whole[index]: values[index] for index in self.kept}, shapes


class Gate:
    """Leads the Python functions in graphs to the recording in force.

    TensorFlow keeps such a function for as long as the process lives, so it must not hold a recording.
    """

    record: Callable[[Pack, Sequence[npt.NDArray[Any]]], None] | None = None


class PythonSummaryOps:
    """Records with a Python function on the host."""

    def __init__(self, mode: TensorDebugMode, *, gate: Gate, devices: Devices) -> None:
        self._mode = mode
        self._gate = gate
        self._devices = devices

    def add(self, graph: Any, batches: Sequence[TensorBatch], *, is_stateless: bool = False) -> list[Any]:
        """Adds the ops; returns those that must run."""
        # What is handed over whole and is summed goes alone: the sum waits for it, and others might wait for the sum.
        alone = [batch for batch in batches if batch.is_alone and self._is_kept(batch.is_chosen)]
        rest = [batch for batch in batches if not (batch.is_alone and self._is_kept(batch.is_chosen))]
        return [
            self._add_function(graph, device, group, is_stateless=is_stateless)
            for together in (*([batch] for batch in alone), rest)
            for device, group in by_device(together).items()
        ]

    def _is_kept(self, is_chosen: bool) -> bool:
        return self._mode is TensorDebugMode.FULL_TENSOR or is_chosen

    def _add_function(self, graph: Any, device: str, group: Sequence[Grouped], *, is_stateless: bool) -> Any:
        tensors = [each.tensor for each in group]
        positions = range(len(tensors))
        in_matrix = [i for i in positions if summary.can_measure(tensors[i].dtype)]
        is_kept = [self._is_kept(each.is_chosen) for each in group]
        is_whole = [is_kept[i] or i not in in_matrix for i in positions]
        whole = [i for i in positions if is_whole[i]]
        ranks = [tensor.shape.rank for tensor in tensors]
        pack = Pack(
            nodes=np.array([each.node for each in group], np.int32),
            decides=np.array([each.decides for each in group], np.bool_),
            dtypes=np.array([dtype_number(tensor) for tensor in tensors], np.int16),
            device_name=self._devices.full_name(device),
            in_matrix=in_matrix,
            whole=whole,
            kept=[index for index, i in enumerate(whole) if is_kept[i]],
            shaped=[i for i in positions if not is_whole[i] and (ranks[i] is None or ranks[i] > NUM_INLINE_DIMS)],
        )
        gate = self._gate

        def record_pack(*arrays: npt.NDArray[Any]) -> list[Any]:
            record = gate.record
            if record is not None:
                record(pack, arrays)
            return []

        with record_ops.own_scope(graph):
            inputs: list[Any] = []
            with placed(self._devices.measuring(device)):
                if in_matrix:
                    inputs.append(summary.pack([tensors[i] for i in in_matrix], mode=self._mode))
                inputs += [tensors[i] for i in pack.whole]
                inputs += [tf.shape(tensors[i], out_type=tf.int64) for i in pack.shaped]
            tf.numpy_function(record_pack, inputs, [], stateful=not is_stateless)
            return graph.get_operations()[-1]  # TensorFlow returns no stateless op that has no outputs


class PythonSessionRecordOps:
    """Records tensors of sessions' graphs with a Python function, which is handed each of them."""

    def __init__(self, mode: TensorDebugMode, *, gate: Gate, devices: Devices) -> None:
        self._mode = mode
        self._gate = gate
        self._devices = devices

    def add_record(self, graph: Any, tensor: Any, node: int, *, keep: bool, decides: bool) -> Any:
        """Adds the op that records a tensor, and keeps its elements or stops the program at it or not; returns it."""
        pack = Pack(
            nodes=np.array([node], np.int32),
            decides=np.array([decides], np.bool_),
            dtypes=np.array([dtype_number(tensor)], np.int16),
            device_name=self._devices.full_name(tensor.op.device),
            in_matrix=[],
            whole=[0],
            kept=[0] if keep or self._mode is TensorDebugMode.FULL_TENSOR else [],
            shaped=[],
        )
        gate = self._gate

        def record_tensor(array: npt.NDArray[Any]) -> list[Any]:
            record = gate.record
            if record is not None:
                record(pack, [np.asarray(array)])
            return []

        return session_ops.create_python_record(graph, tensor, record_tensor)

    def add_token(self, graph: Any, node: int) -> None:
        """Returns None: what a Python function records knows no step that could belong to an execution."""
        return
