"""The TensorFlow backend: TensorFlow's own summary op measures, on the device where the tensor lives.

It serves programs with an accelerator visible, and installs without the native core. All tensors of a graph on one
device become one matrix of summaries (`summary.py`), which crosses to the host once a call and iteration:

* with the native core, into its op `TfdbgArrowRecordSummary`, which knows step, frame, iteration and call site;
* without it, into a Python function, which knows none of them (Flag.CONTEXT is unset).

Two sorts of tensors go to the host themselves: all of them in mode FULL_TENSOR, which keeps their elements, and
those of dtypes that TensorFlow cannot compute with.

What differs from the native backend: the tensors of a graph are recorded together, when the last of them is
there, so a call that raises leaves no rows of the graph that raised. `execution_index` is NULL while two calls that
could have made a tensor run at once: the memory of arguments is not looked at. With the native core a tensor of a
graph whose rank is not known beforehand and above 6 has its counts, but no shape and no size. Without the core
`step_id`, `frame_id`, `iteration` and `call_site` are NULL.

Tested on CPUs only. That it works on GPUs is by construction: every op it places there has a kernel there, by
TensorFlow's own sources; where not, soft placement runs it on the host.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfdbg_arrow.errors import RecordingError
from tfdbg_arrow.schema.logdir_layout import SpoolPaths
from tfdbg_arrow.spool.journal import Journal
from tfdbg_arrow.spool.records import NO_STEP, NO_VALUE, NUM_INLINE_DIMS, RECORD_SIZE, Flag, Kind, Records
from tfdbg_arrow.writer import summary
from tfdbg_arrow.writer.backend import Handlers, OnNonFinite, SessionRecordOps
from tfdbg_arrow.writer.events import EventWriter
from tfdbg_arrow.writer.graphs.own_ops import RecordOps, TensorBatch
from tfdbg_arrow.writer.hooks import cluster, record_ops, runtime, session_ops
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
        self._gate = _Gate()
        devices = _Devices()
        self._spool: _Spool
        self.record_ops: RecordOps
        self.session_record_ops: SessionRecordOps
        native = _make_native_events(settings, core, paths, journal, generation)
        if native is not None:
            self._spool = native
            self.record_ops = _NativeSummaryOps(settings.mode, generation=generation, devices=devices)
            self.session_record_ops = session_ops.NativeSessionRecordOps(generation=generation)
        else:
            capacity = settings.spool_size_bytes // RECORD_SIZE
            self._spool = PythonSpool(paths, journal=journal, capacity=capacity)
            self.record_ops = _PythonSummaryOps(settings.mode, gate=self._gate, devices=devices)
            self.session_record_ops = _PythonSessionRecordOps(settings.mode, gate=self._gate, devices=devices)
        self.events: EventWriter = self._spool
        self._eager = EagerRecorder(
            settings, events=self._spool, measure=_EagerMeasure(settings.mode, devices=devices), step=lambda: self._step
        )
        self._mode = settings.mode
        self.op_callback: Callable[..., None] = self._eager.op_callback
        self.begin_call = self._eager.begin_call
        self.end_call = self._eager.end_call

    @property
    def stack_table(self) -> StackTable:
        """Takes the stacks that events refer to; set before start()."""
        return self._spool.stack_table

    @stack_table.setter
    def stack_table(self, table: StackTable) -> None:
        self._spool.stack_table = table

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

    def num_unwritten_names(self) -> int:
        """Returns how many strings could not be written to the journal."""
        return self._spool.num_unwritten_names()

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

    def _record_summaries(self, pack: _Pack, arrays: Sequence[npt.NDArray[Any]], handlers: Handlers) -> None:
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


class _Devices:
    """Where to measure what."""

    def __init__(self) -> None:
        self._host = tf.DeviceSpec.from_string(runtime.host_device_name())
        self._has_accelerator = runtime.has_accelerator()

    def measuring(self, device: str) -> str:
        """Returns where to measure the tensors of a device; empty for where TensorFlow will."""
        if not self._has_accelerator:
            return ""
        if runtime.is_op_determinism_enabled():
            # The summary op refuses to run on a GPU then.
            return str(
                self._host.make_merged_spec(_spec(device).replace(device_type="CPU", device_index=0)).to_string()
            )
        # An op without a kernel on that very device would else fail the user's function.
        return device if runtime.allows_soft_placement() else ""

    def full_name(self, device: str) -> str:
        """Returns the full name of the device of an op, given the one asked for; empty if it is not known."""
        spec = _spec(device)
        if self._has_accelerator and spec.device_type is None:
            return ""
        return str(self._host.make_merged_spec(spec).to_string())


def _spec(device: str) -> Any:
    return tf.DeviceSpec.from_string(device)


class _EagerMeasure:
    """Measures eager tensors where they are."""

    def __init__(self, mode: TensorDebugMode, *, devices: _Devices) -> None:
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


class _Grouped(NamedTuple):
    """A tensor of a graph, its key, whether its elements are kept by choice, whether it stops the program if bad."""

    tensor: Any
    node: int
    is_chosen: bool
    decides: bool


def _by_device(batches: Sequence[TensorBatch]) -> dict[str, list[_Grouped]]:
    """The tensors, in order of creation, by the device that their op asks for."""
    groups: dict[str, list[_Grouped]] = {}
    for batch in batches:
        groups.setdefault(batch.op.device, []).extend(
            _Grouped(tensor, node, batch.is_chosen, decides)
            for tensor, node, decides in zip(batch.tensors, batch.nodes, batch.all_decides, strict=True)
        )
    return groups


def _placed(device: str) -> AbstractContextManager[Any]:
    scope: AbstractContextManager[Any] = tf.device(device) if device else nullcontext()
    return scope


def _number(tensor: Any) -> int:
    return int(tensor.dtype.base_dtype.as_datatype_enum)


class _NativeSummaryOps:
    """Records with the native ops: summaries, and on the host what TensorFlow cannot summarize."""

    def __init__(self, mode: TensorDebugMode, *, generation: int, devices: _Devices) -> None:
        self._mode = mode
        self._generation = generation
        self._devices = devices
        self._on_host = record_ops.NativeRecordOps(generation=generation)

    def add(self, graph: Any, batches: Sequence[TensorBatch]) -> list[Any]:
        """Adds the ops; returns those that must run."""
        # What the user chose goes there whole, and so does what a summary has no room for.
        whole = [batch for batch in batches if batch.is_chosen]
        others = [batch for batch in batches if not batch.is_chosen]
        added = self._on_host.add(graph, [*whole, *_select(others, self._belongs_on_host)])
        summarized = _select(others, lambda tensor: not self._belongs_on_host(tensor))
        for device, group in _by_device(summarized).items():
            tensors = [each.tensor for each in group]
            with record_ops.own_scope(graph), _placed(self._devices.measuring(device)):
                rows = summary.pack(tensors, mode=self._mode)
            added.append(
                record_ops.create_summary_op(
                    graph,
                    rows,
                    nodes=[each.node for each in group],
                    dtypes=[_number(tensor) for tensor in tensors],
                    decides=[each.decides for each in group],
                    generation=self._generation,
                    device=device,
                )
            )
        return added

    def _belongs_on_host(self, tensor: Any) -> bool:
        return (
            self._mode is TensorDebugMode.FULL_TENSOR
            or not summary.can_measure(tensor.dtype)
            or (tensor.shape.rank or 0) > NUM_INLINE_DIMS  # a summary has no room for its shape
        )


def _select(batches: Sequence[TensorBatch], is_wanted: Callable[[Any], bool]) -> list[TensorBatch]:
    selected: list[TensorBatch] = []
    for batch in batches:
        pairs = [each for each in zip(batch.tensors, batch.nodes, batch.all_decides, strict=True) if is_wanted(each[0])]
        if pairs:
            tensors, nodes, decides = zip(*pairs, strict=True)
            selected.append(replace(batch, tensors=tensors, nodes=nodes, decides=decides))
    return selected


@dataclass(frozen=True, kw_only=True)
class _Pack:
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


class _Gate:
    """Leads the Python functions in graphs to the recording in force.

    TensorFlow keeps such a function for as long as the process lives, so it must not hold a recording.
    """

    record: Callable[[_Pack, Sequence[npt.NDArray[Any]]], None] | None = None


class _PythonSummaryOps:
    """Records with a Python function on the host."""

    def __init__(self, mode: TensorDebugMode, *, gate: _Gate, devices: _Devices) -> None:
        self._mode = mode
        self._gate = gate
        self._devices = devices

    def add(self, graph: Any, batches: Sequence[TensorBatch]) -> list[Any]:
        """Adds the ops; returns those that must run."""
        return [self._add_function(graph, device, group) for device, group in _by_device(batches).items()]

    def _add_function(self, graph: Any, device: str, group: Sequence[_Grouped]) -> Any:
        tensors = [each.tensor for each in group]
        positions = range(len(tensors))
        in_matrix = [i for i in positions if summary.can_measure(tensors[i].dtype)]
        is_kept = [self._mode is TensorDebugMode.FULL_TENSOR or each.is_chosen for each in group]
        is_whole = [is_kept[i] or i not in in_matrix for i in positions]
        whole = [i for i in positions if is_whole[i]]
        ranks = [tensor.shape.rank for tensor in tensors]
        pack = _Pack(
            nodes=np.array([each.node for each in group], np.int32),
            decides=np.array([each.decides for each in group], np.bool_),
            dtypes=np.array([_number(tensor) for tensor in tensors], np.int16),
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
            with _placed(self._devices.measuring(device)):
                if in_matrix:
                    inputs.append(summary.pack([tensors[i] for i in in_matrix], mode=self._mode))
                inputs += [tensors[i] for i in pack.whole]
                inputs += [tf.shape(tensors[i], out_type=tf.int64) for i in pack.shaped]
            return tf.numpy_function(record_pack, inputs, [], stateful=True)


class _PythonSessionRecordOps:
    """Records tensors of sessions' graphs with a Python function, which is handed each of them."""

    def __init__(self, mode: TensorDebugMode, *, gate: _Gate, devices: _Devices) -> None:
        self._mode = mode
        self._gate = gate
        self._devices = devices

    def add_record(self, graph: Any, tensor: Any, node: int, *, keep: bool, decides: bool) -> Any:
        """Adds the op that records a tensor, and keeps its elements or stops the program at it or not; returns it."""
        pack = _Pack(
            nodes=np.array([node], np.int32),
            decides=np.array([decides], np.bool_),
            dtypes=np.array([_number(tensor)], np.int16),
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
