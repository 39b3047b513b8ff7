"""The TensorFlow backend itself: what measures, and the spool that it fills."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.errors import RecordingError
from tfdbg_arrow.schema.logdir_layout import SpoolPaths
from tfdbg_arrow.spool.journal import Journal
from tfdbg_arrow.spool.records import NO_STEP, NO_VALUE, Flag, Kind, Records
from tfdbg_arrow.writer.backend import Handlers, OnNonFinite
from tfdbg_arrow.writer.events import EventWriter
from tfdbg_arrow.writer.graphs.executed import GraphOptimizer
from tfdbg_arrow.writer.graphs.own_ops import RecordOps, SingleRecordOps
from tfdbg_arrow.writer.hooks import cluster, runtime, session_ops
from tfdbg_arrow.writer.hooks.unobserved import unobserved
from tfdbg_arrow.writer.native_backend import NativeSpool
from tfdbg_arrow.writer.python_eager import (
    EagerRecorder,
    add_deep_shapes,
    blank_records,
    keep_values,
)
from tfdbg_arrow.writer.python_spool import PythonSpool
from tfdbg_arrow.writer.recorder import Recorder
from tfdbg_arrow.writer.settings import Settings, TensorDebugMode
from tfdbg_arrow.writer.stacks import StackTable
from tfdbg_arrow.writer.tensorflow_backend import summary
from tfdbg_arrow.writer.tensorflow_backend.device_graphs import device_graphs
from tfdbg_arrow.writer.tensorflow_backend.devices import Devices
from tfdbg_arrow.writer.tensorflow_backend.python_ops import Gate, Pack, PythonSessionRecordOps, PythonSummaryOps
from tfdbg_arrow.writer.tensorflow_backend.summary_ops import NativeSummaryOps


class _Spool(Recorder, EventWriter, Protocol):
    """Where events go, and where the sink finds them; its methods are those of Backend."""

    stack_table: StackTable

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def abandon(self) -> None: ...
    def close(self) -> None: ...
    def remove_files(self) -> None: ...
    def num_events(self) -> int: ...
    def set_on_nonfinite(self, reaction: OnNonFinite, run_id: str) -> None: ...
    def take_nonfinite_notes(self) -> list[int]: ...
    def set_step(self, step: int) -> None: ...
    def set_paused(self, paused: bool) -> None: ...


class _NativeEvents(NativeSpool):
    """The native spool, which takes records from Python too; arguments and errors are those of NativeSpool."""

    def start(self) -> None:
        """From here on records are taken, also from the native ops."""
        self.open()


class TensorFlowBackend:
    """Measures with TensorFlow's own ops.

    Args:
        settings: What to record.
        core: The compiled core; None if it was not built.
        paths: Where the spool is made.
        journal: Takes the strings that records refer to.
        generation: Number of the recording in this process.

    Raises:
        OSError: The spool cannot be made.
    """

    name = "tensorflow"

    def __init__(self, settings: Settings, *, core: Any, paths: SpoolPaths, journal: Journal, generation: int) -> None:
        self._step = NO_STEP
        self._gate = Gate()
        devices = Devices()
        self._spool: _Spool
        self.record_ops: RecordOps
        self.session_record_ops: SingleRecordOps
        native = _make_native_events(settings, core, paths, journal, generation)
        self.has_native_ops = native is not None
        if native is not None:
            self._spool = native
            self.record_ops = NativeSummaryOps(settings.mode, generation=generation, devices=devices)
            self.session_record_ops = session_ops.NativeSessionRecordOps(generation=generation)
        else:
            capacity = settings.memory.spool_records
            self._spool = PythonSpool(paths, journal=journal, capacity=capacity, waits=settings.when_full == "wait")
            self.record_ops = PythonSummaryOps(settings.mode, gate=self._gate, devices=devices)
            self.session_record_ops = PythonSessionRecordOps(settings.mode, gate=self._gate, devices=devices)
        self.events: EventWriter = self._spool
        self._eager = EagerRecorder(
            settings, events=self._spool, measure=_EagerMeasure(settings.mode, devices=devices), step=lambda: self._step
        )
        self._mode = settings.mode
        self._dtype_mask = settings.dtype_mask
        self.op_callback: Callable[..., Any] = self._eager.op_callback
        self.set_scope = self._eager.set_scope
        self.enter_gradient = self._eager.enter_gradient
        self.current_scope = self._eager.current_scope
        self.restore_scope = self._eager.restore_scope
        self.forget_forward = self._eager.forget_forward
        self.execution_of = self._eager.execution_of
        self.begin_call = self._eager.begin_call
        self.end_call = self._eager.end_call
        self.record_failed_op = self._eager.record_failed_op

    @property
    def stack_table(self) -> StackTable:
        """Takes the stacks that events refer to; set before start()."""
        return self._spool.stack_table

    @stack_table.setter
    def stack_table(self, table: StackTable) -> None:
        self._spool.stack_table = table

    def record_executed_graphs(self, *, records_others: bool) -> GraphOptimizer:
        """Makes TensorFlow call the core's optimizer, which counts tensors on their devices.

        Where there is an accelerator, tensors on the host are counted by the core itself.

        Args:
            records_others: Whether nodes are recorded that stand for no op of the program.

        Returns:
            What tells the optimizer of graphs.

        Raises:
            RecordingError: There is no native core, this version of TensorFlow does not take the optimizer, or the
                accelerator is no GPU.
        """
        if not isinstance(self._spool, NativeSpool):
            raise RecordingError("recording what TensorFlow runs needs the native core; use graphs='traced'")
        accelerators = runtime.accelerator_types()
        if accelerators - {"GPU"}:
            raise RecordingError(f"recording what TensorFlow runs knows no {accelerators}; use graphs='traced'")
        optimizer = self._spool.record_executed_graphs(
            records_others=records_others, device_types=["CPU", *sorted(accelerators)]
        )
        counting = sorted(accelerators) or ["CPU"]
        graphs = device_graphs(self._mode, dtype_mask=self._dtype_mask, device_types=counting)
        optimizer.set_summary_graphs(counting, graphs)
        return optimizer

    def start(self, handlers: Handlers) -> None:
        """From here on events are recorded."""
        self._spool.start()
        self._gate.record = lambda pack, arrays: self._record_summaries(pack, arrays, handlers)
        self._eager.start(handlers)

    def stop(self) -> None:
        """No event is recorded after it returns; what is in the spool can still be drained."""
        self._gate.record = None
        self._eager.stop()
        self._spool.stop()

    def abandon(self) -> None:
        """Lets go of everything without touching it: the process is a fork's child."""
        self._gate.record = None
        self._eager.stop()
        self._spool.abandon()

    def close(self) -> None:
        """Writes nothing from here on; the spool's files stay."""
        self._spool.close()

    def remove_files(self) -> None:
        """Removes the spool's files: all of it is in the logdir."""
        self._spool.remove_files()

    def set_local_task(self, task: str) -> None:
        """Eager tensors of other processes than this one are not fetched."""
        self._eager.is_remote = cluster.is_remote

    def intern_stack(self) -> int:
        """Returns the id of the calling thread's Python stack, -1 for none."""
        return self._spool.intern_stack()

    def num_events(self) -> int:
        """Returns the next event index."""
        return self._spool.num_events()

    def set_step(self, step: int) -> None:
        """Labels the events from here on."""
        self._step = step
        self._spool.set_step(step)

    def set_paused(self, paused: bool) -> None:
        """Leaves out everything that runs from here on, or records it again; in graphs, summaries are made as ever."""
        self._eager.is_paused = paused
        self._spool.set_paused(paused)

    def set_on_nonfinite(self, reaction: OnNonFinite, run_id: str) -> None:
        """Says what a bad tensor of a graph does; before start()."""
        self._spool.set_on_nonfinite(reaction, run_id)

    def set_watching(self, is_watching: bool) -> None:
        """Says whether every eager op is told of, not only those with a bad tensor."""
        self._eager.is_watching = is_watching

    def take_nonfinite_notes(self) -> list[int]:
        """Returns the event indexes of bad tensors of graphs that were noted since the last call."""
        return self._spool.take_nonfinite_notes()

    def drain(self, max_records: int) -> Records:
        """Returns up to `max_records` committed records, in order; their slots stay theirs until they are released."""
        return self._spool.drain(max_records)

    def release(self, upto: int, rows_upto: int) -> None:
        """Frees the slots of drained records before an event index, and notes what of the rows is in sealed parts."""
        self._spool.release(upto, rows_upto)

    def num_free(self) -> int:
        """Returns how many slots are free."""
        return self._spool.num_free()

    def capacity(self) -> int:
        """Returns how many slots there are."""
        return self._spool.capacity()

    def write_names(self) -> int:
        """Writes to the journal the strings that it refused before; returns how many it still lacks."""
        return self._spool.write_names()

    def wait(self, timeout_s: float, pending: int) -> bool:
        """Blocks until a bad value came (True), `pending` records wait, or the time is out."""
        return self._spool.wait(timeout_s, pending)

    def strings(self, start: int) -> list[str]:
        """Returns the interned strings from id `start` on."""
        return self._spool.strings(start)

    def read_value(self, offset: int, size: int) -> bytes:
        """Returns kept elements."""
        return self._spool.read_value(offset, size)

    def release_values(self, upto: int) -> None:
        """Gives back the disk space of values before an offset."""
        self._spool.release_values(upto)

    def num_dropped(self) -> int:
        """Returns how many records found no room."""
        return self._spool.num_dropped()

    def num_unkept_values(self) -> int:
        """Returns of how many tensors the elements could not be written."""
        return self._spool.num_unkept_values()

    def _record_summaries(self, pack: Pack, arrays: Sequence[npt.NDArray[Any]], handlers: Handlers) -> None:
        """Records the tensors of a graph."""
        if self._eager.is_paused:
            return
        try:
            rows, values, shapes = pack.unpack(arrays, mode=self._mode)
            records = blank_records(len(rows), Kind.GRAPH_TENSOR, step=self._step)
            records["node"] = pack.nodes
            records["dtype"] = pack.dtypes
            records["device"] = self._spool.intern_string(pack.device_name)
            summary.fill_records(records, rows, mode=self._mode)
            keep_values(records, values, self._spool)
            records = add_deep_shapes(records, shapes)
            # What belongs together stays together, and any number of tensors finds room.
            heads = np.flatnonzero(records["kind"] != Kind.DIMS)
            bounds = [*heads[::_TENSORS_AT_ONCE].tolist(), len(records)]
            bad: list[tuple[int, int]] = []
            decides = set(pack.nodes[pack.decides].tolist())
            for start, end in itertools.pairwise(bounds):
                self._spool.append(records[start:end])
                bad += _bad_tensors(records[start:end], self._spool.last_event_index(), decides)
        except Exception as error:
            handlers.on_error("recording the tensors of a graph", error)
            return
        if bad:
            handlers.on_bad_graph_tensors(bad)


_TENSORS_AT_ONCE = 256


def _bad_tensors(records: Records, first_event_index: int, decides: set[int]) -> list[tuple[int, int]]:
    """Returns key and event index (-1: not known) of the bad tensors among records that stop the program."""
    rows = np.flatnonzero((records["flags"] & Flag.BAD != 0) & (records["kind"] == Kind.GRAPH_TENSOR)).tolist()
    base = NO_VALUE if first_event_index == NO_VALUE else first_event_index
    return [
        (int(records["node"][row]), base if base == NO_VALUE else base + row)
        for row in rows
        if int(records["node"][row]) in decides
    ]


def _make_native_events(
    settings: Settings, core: Any, paths: SpoolPaths, journal: Journal, generation: int
) -> _NativeEvents | None:
    """Returns the native spool; None where there is no core, or none that fits this TensorFlow."""
    if core is None:
        return None
    try:
        return _NativeEvents(settings, core=core, paths=paths, journal=journal, generation=generation)
    except RecordingError:
        return None


class _EagerMeasure:
    """Measures eager tensors where they are."""

    def __init__(self, mode: TensorDebugMode, *, devices: Devices) -> None:
        self._mode = mode
        self._devices = devices

    def tensor_id(self, tensor: Any) -> int:
        return runtime.eager_tensor_id(tensor)

    def rows(self, tensors: Sequence[Any]) -> tuple[npt.NDArray[np.float64], Exception | None]:
        try:
            with unobserved():
                rows = [
                    summary.measure_row(tensor, mode=self._mode, device=self._devices.measuring(tensor.device))
                    for tensor in tensors
                ]
            return np.stack(rows), None
        except Exception as error:
            return np.stack([summary.shape_row(tuple(tensor.shape)) for tensor in tensors]), error

    def fill(self, records: Records, rows: npt.NDArray[np.float64], *, mode: TensorDebugMode) -> None:
        summary.fill_records(records, rows, mode=mode)
