"""Records eager ops in Python as `native/eager.cc` does, for what the core cannot measure.

These are the eager tensors of the TensorFlow backend, and in both backends the feeds and fetches of sessions.

An eager op or a function call becomes an EXECUTION record. Its outputs become EXECUTION_TENSOR records. Inputs that no
recorded op made become EXTERNAL_TENSOR records, once each. Errors go to the handlers and never to the program.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.schema.dtypes import encode_strings
from tfdbg_arrow.spool.records import (
    BUCKETS_SHIFT,
    NO_STEP,
    NO_VALUE,
    NUM_INLINE_DIMS,
    PAYLOAD_BYTES,
    PAYLOAD_DTYPE,
    PAYLOAD_LENGTH,
    RECORD_DTYPE,
    RECORD_SIZE,
    Flag,
    Kind,
    Records,
    histogram_width,
    is_follower,
)
from tfdbg_arrow.writer.backend import Backend, Handlers
from tfdbg_arrow.writer.native import reference
from tfdbg_arrow.writer.scopes import FORWARD, GRADIENT
from tfdbg_arrow.writer.settings import KEEPABLE_MASK, Settings, TensorDebugMode
from tfdbg_arrow.writer.tensorflow_backend.summary import fill_records, shape_row

_RAW = np.dtype(f"V{RECORD_SIZE}")
_MAX_YOUNG_IDS = 1 << 20
_MAX_PRODUCERS = 4096


def blank_records(count: int, kind: Kind, *, step: int) -> Records:
    """Returns records that hold only the kind, the time and the training step."""
    records: Records = np.frombuffer(bytearray(_BLANK * count), RECORD_DTYPE)
    records["kind"] = kind
    records["wall_time_ns"] = time.time_ns()
    records["step"] = step
    return records


def _blank() -> bytes:
    record = np.zeros(1, RECORD_DTYPE)
    for name in ("step_id", "frame_id", "iteration", "execution_index", "tensor_id", "value_offset"):
        record[name] = NO_VALUE
    return record.tobytes()


_BLANK = _blank()


def add_followers(
    records: Records,
    shapes: Sequence[Sequence[int]],
    histograms: Sequence[reference.HistogramSummary | None] | None,
) -> Records:
    """Adds what does not fit in the records of tensors: the dimensions above NUM_INLINE_DIMS, and histograms.

    Args:
        records: One record for each tensor.
        shapes: The tensors' shapes; an empty one if the record already holds the shape.
        histograms: The tensors' histograms. None stands for no histogram, or none of any tensor.

    Returns:
        The records. DIMS and HISTOGRAM records follow their tensor.
    """
    if histograms is None and all(len(shape) <= NUM_INLINE_DIMS for shape in shapes):
        return records
    pieces: list[npt.NDArray[np.void]] = []
    for index, shape in enumerate(shapes):
        record = records[index : index + 1]
        if len(shape) > NUM_INLINE_DIMS:
            record["flags"] |= Flag.SHAPE
            record["rank"] = len(shape)
            record["dims"] = shape[:NUM_INLINE_DIMS]
        pieces.append(record.view(_RAW))
        for start in range(NUM_INLINE_DIMS, len(shape), PAYLOAD_LENGTH):
            more = np.zeros(1, RECORD_DTYPE)
            more["kind"] = Kind.DIMS
            dims = shape[start : start + PAYLOAD_LENGTH]
            more.view(PAYLOAD_DTYPE)["payload"][0, : len(dims)] = dims
            pieces.append(more.view(_RAW))
        if histograms is not None and (histogram := histograms[index]) is not None:
            pieces += _histogram_records(record, histogram)
    joined: Records = np.concatenate(pieces).view(RECORD_DTYPE)
    return joined


def _histogram_records(record: Records, histogram: reference.HistogramSummary) -> list[npt.NDArray[np.void]]:
    """Notes a histogram in the record of its tensor, and returns the HISTOGRAM records."""
    record["flags"] |= Flag.HISTOGRAM | len(histogram.negative) << BUCKETS_SHIFT
    width = int(histogram_width(record["size"])[0])
    counts = np.array([histogram.negative, histogram.positive]).T.astype(f"<u{width}").tobytes()
    pieces = []
    for start in range(0, len(counts), PAYLOAD_BYTES):
        more = np.zeros(1, RECORD_DTYPE)
        more["kind"] = Kind.HISTOGRAM
        more["slot"] = histogram.exponent
        piece = counts[start : start + PAYLOAD_BYTES].ljust(PAYLOAD_BYTES, b"\0")
        more.view(PAYLOAD_DTYPE)["payload"][0] = np.frombuffer(piece, "<i8")
        pieces.append(more.view(_RAW))
    return pieces


class _SeenTensors:
    """The IDs of recorded eager tensors; IDs that were not looked up for a long time may be forgotten."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._young: set[int] = set()
        self._old: set[int] = set()

    def test_and_set(self, tensor_id: int) -> bool:
        """Marks the ID; returns True if it was marked before."""
        with self._lock:
            if tensor_id in self._young:
                return True
            if len(self._young) >= _MAX_YOUNG_IDS:
                self._old, self._young = self._young, set()
            self._young.add(tensor_id)
            return tensor_id in self._old


class _Forward(NamedTuple):
    """An execution whose attributes a gradient tape got."""

    op_type: str
    layer: int
    execution_index: int


class _Forwards:
    """Finds the execution that passed attributes to a gradient tape, and the execution that made a recent tensor.

    TensorFlow gives the gradient function the same attributes object as the op callback, and the tape keeps the object
    alive. So the last execution with its `id()` is the right one.
    """

    def __init__(self) -> None:
        self._by_attrs: dict[int, _Forward] = {}
        self._producers: dict[int, int] = {}

    def add(self, attrs: object, forward: _Forward) -> None:
        """Notes an execution."""
        if not attrs:
            return  # all ops share one empty tuple
        if len(self._by_attrs) >= _MAX_YOUNG_IDS:
            self._by_attrs.clear()
        self._by_attrs[id(attrs)] = forward

    def forget(self, attrs: object) -> None:
        """Notes that an execution with these attributes is not recorded."""
        self._by_attrs.pop(id(attrs), None)

    def find(self, attrs: object, op_type: str) -> tuple[int, int]:
        """Returns the execution (NO_VALUE for none) and its interned layer."""
        found = self._by_attrs.get(id(attrs)) if attrs else None
        return (NO_VALUE, 0) if found is None or found.op_type != op_type else (found.execution_index, found.layer)

    def add_output(self, tensor_id: int, execution_index: int) -> None:
        """Notes which execution made a tensor."""
        if len(self._producers) >= _MAX_PRODUCERS:
            self._producers.clear()
        self._producers[tensor_id] = execution_index

    def producer(self, tensor_id: int) -> int:
        """Returns the execution that made a tensor; NO_VALUE if it was forgotten."""
        return self._producers.get(tensor_id, NO_VALUE)


@dataclass
class _Call:
    """A function call in flight."""

    op_type: str
    runs_as: str
    """The function that TensorFlow runs: the called function or a copy of it."""
    execution_index: int
    has_outputs: bool = False

    def is_run_as(self, op_type: str) -> bool:
        """Returns True if an op of this type is this call."""
        return op_type in (self.op_type, self.runs_as)


class _Scope(NamedTuple):
    """The scope of ops: interned layer and role, and the execution whose gradient is computed."""

    layer: int = 0
    role: int = 0
    forward_execution: int = NO_VALUE
    is_gradient: bool = False
    """Whether enter_gradient() made this scope."""


@dataclass
class _Thread(threading.local):
    scope: _Scope = field(default_factory=_Scope)
    stack: list[_Call] = field(default_factory=list)
    bad: list[tuple[int, int, int]] = field(default_factory=list)
    """Bad tensors that were not passed to on_nonfinite yet."""


class EagerRecorder:
    """Records eager ops and function calls.

    Attributes:
        is_remote: Returns True if the device with this name belongs to another process, whose tensors are not
            fetched; None means that no device does.

    Args:
        settings: The settings of the recording.
        backend: Takes the records.
        tensor_id: Returns the ID of an eager tensor; -1 for anything else.
        measure: Returns the summary rows of tensors (see `tensorflow_backend/summary.py`); it may raise an error, and
            then only the shapes are recorded.
        step: Returns the training step of the events.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        backend: Backend,
        tensor_id: Callable[[Any], int],
        measure: Callable[[Sequence[Any]], npt.NDArray[np.float64]],
        step: Callable[[], int] = lambda: NO_STEP,
    ) -> None:
        self._mode = settings.mode
        self._counts_histograms = settings.histograms
        self._dtype_mask = settings.dtype_mask
        self._backend = backend
        self._tensor_id = tensor_id
        self._measure = measure
        self._step = step
        self._seen = _SeenTensors()
        self._levels: dict[str, int] = {}
        self._thread = _Thread()
        self._forwards = _Forwards()
        self._handlers: Handlers | None = None
        self.is_remote: Callable[[str], bool] | None = None
        self.is_paused = False
        """True while ops are not recorded."""
        self.is_watching = False

    def start(self, handlers: Handlers) -> None:
        """Starts to record events."""
        self._handlers = handlers

    def stop(self) -> None:
        """Stops recording; ops and calls that begin later are not recorded."""
        self._handlers = None

    def op_callback(
        self,
        op_type: str | bytes,
        inputs: Sequence[Any],
        attrs: Sequence[Any],
        outputs: Sequence[Any],
        op_name: str | None = None,
        graph: Any = None,
    ) -> Sequence[Any]:
        """Records an op that TensorFlow's op callback reports; returns `outputs`, as TensorFlow requires."""
        handlers = self._handlers
        if handlers is None:
            return outputs
        try:
            text = _text(op_type)
            stack = self._thread.stack
            if stack and stack[-1].is_run_as(text):
                op_type = stack[-1].op_type
            if graph is None and self.is_paused:
                # The op uses up an index, so that a gap in the recorded indexes shows that something ran.
                self._backend.next_execution_index()
                self._forwards.forget(attrs)
            elif graph is None:
                self._record_op(text, inputs, attrs, outputs, handlers)
        except Exception as error:
            handlers.on_error("recording an op", error)
        # An op that is not recorded never stops the program, even if its inputs were recorded.
        if handlers.on_nonfinite is not None and not self.is_paused and (self._thread.bad or self.is_watching):
            bad, self._thread.bad = self._thread.bad, []
            handlers.on_nonfinite(op_type, inputs, bad)
        return outputs

    def begin_call(
        self, function_name: str | bytes, inputs: Sequence[Any], num_outputs: int, runs_as: str | bytes
    ) -> int:
        """Records that a call of a function begins; Backend documents the arguments and the result."""
        handlers = self._handlers
        if handlers is None or self.is_paused:
            return NO_VALUE
        execution_index = NO_VALUE
        try:
            name = _text(function_name)
            execution_index = self._backend.next_execution_index()
            self._thread.stack.append(_Call(op_type=name, runs_as=_text(runs_as), execution_index=execution_index))
            self._record_external(inputs, execution_index, handlers)
            self._record_execution(name, inputs, num_outputs, execution_index)
        except Exception as error:
            handlers.on_error("recording a call", error)
        return execution_index

    def end_call(self, execution_index: int, outputs: Sequence[Any] | None, error_type: str | None) -> None:
        """Records that the call returned its outputs, or raised an error of the class with this name."""
        if execution_index == NO_VALUE:
            return
        handlers = self._handlers
        stack = self._thread.stack
        try:
            # The innermost call ends first, unless recording started or stopped in between.
            while stack and stack[-1].execution_index >= execution_index:
                call = stack.pop()
                if handlers and call.execution_index == execution_index and not call.has_outputs:
                    self._record_outputs(call.op_type, outputs or (), execution_index, handlers)
            if handlers:
                if error_type is not None:
                    self._record_error(execution_index, error_type)
                end = blank_records(1, Kind.EXECUTION_END, step=self._step())
                end["execution_index"] = execution_index
                self._backend.append(end)
        except Exception as error:
            if handlers:
                handlers.on_error("recording the end of a call", error)

    def set_scope(self, layer: int, role: int, forward_execution: int) -> None:
        """Sets the layer, role and forward execution of the calling thread's following ops."""
        self._thread.scope = _Scope(layer, role, forward_execution)

    def enter_gradient(self, op_type: str, attrs: object) -> bool:
        """Enters the gradient function of an execution in the calling thread; returns False if it is unknown."""
        execution_index, layer = self._forwards.find(attrs, op_type)
        if execution_index == NO_VALUE:
            return False
        self._thread.scope = _Scope(layer, self._backend.intern_string(GRADIENT), execution_index, True)
        return True

    def current_scope(self) -> _Scope:
        """Returns the scope of the calling thread's ops."""
        return self._thread.scope

    def restore_scope(self, scope: _Scope) -> None:
        """Restores a scope that current_scope() returned."""
        self._thread.scope = scope

    def forget_forward(self, attrs: object) -> None:
        """Forgets the execution with these attributes: they now belong to an op of a graph."""
        self._forwards.forget(attrs)

    def execution_of(self, tensor: Any) -> int:
        """Returns the execution that has just made an eager tensor; -1 if it is unknown."""
        return self._forwards.producer(self._tensor_id(tensor))

    def record_failed_op(self, op_type: str | bytes, inputs: Sequence[Any], error_type: str) -> None:
        """Records that an eager op raised an error of the class with this name."""
        handlers = self._handlers
        name = _text(op_type)
        stack = self._thread.stack
        if handlers is None or (stack and stack[-1].is_run_as(name)):  # end_call() records it
            return
        try:
            execution_index = self._backend.next_execution_index()
            if not self.is_paused:
                self._record_external(inputs, execution_index, handlers)
                self._record_execution(name, inputs, 0, execution_index)
                self._record_error(execution_index, error_type)
        except Exception as error:
            handlers.on_error("recording an op that failed", error)

    def _record_error(self, execution_index: int, error_type: str) -> None:
        record = blank_records(1, Kind.EXECUTION_ERROR, step=self._step())
        record["node"] = self._backend.intern_string(error_type)
        record["execution_index"] = execution_index
        self._backend.append(record)

    def _record_op(
        self, op_type: str, inputs: Sequence[Any], attrs: object, outputs: Sequence[Any], handlers: Handlers
    ) -> None:
        stack = self._thread.stack
        if stack and stack[-1].is_run_as(op_type):
            op_type = stack[-1].op_type
            execution_index = stack[-1].execution_index  # begin_call() has recorded the call itself
            stack[-1].has_outputs = True
        else:
            execution_index = self._backend.next_execution_index()
            self._record_external(inputs, execution_index, handlers)
            self._record_execution(op_type, inputs, len(outputs), execution_index)
            self._forwards.add(attrs, _Forward(op_type, self._thread.scope.layer, execution_index))
        self._record_outputs(op_type, outputs, execution_index, handlers)

    def _record_execution(self, op_type: str, inputs: Sequence[Any], num_outputs: int, execution_index: int) -> None:
        ids = [self._tensor_id(tensor) for tensor in inputs]
        records = blank_records(1 + max(0, len(ids) - 1) // PAYLOAD_LENGTH, Kind.EXECUTION, step=self._step())
        records["node"] = self._backend.intern_string(op_type)
        records["slot"] = np.arange(len(records)) * PAYLOAD_LENGTH
        records["slot"][0] = num_outputs
        records["kind"][1:] = Kind.INPUTS
        records["size"] = len(ids)
        records["execution_index"] = execution_index
        records["tensor_id"] = self._backend.intern_stack()
        records["step_id"] = threading.get_ident()
        scope = self._thread.scope
        records["frame_id"] = scope.forward_execution
        records["call_site"] = scope.layer
        records["device"] = scope.role or self._backend.intern_string(FORWARD)
        payload = records.view(PAYLOAD_DTYPE)["payload"]
        for index, start in enumerate(range(0, len(ids), PAYLOAD_LENGTH)):
            piece = ids[start : start + PAYLOAD_LENGTH]
            payload[index, : len(piece)] = piece
        self._backend.append(records)

    def _record_external(self, inputs: Sequence[Any], execution_index: int, handlers: Handlers) -> None:
        """Records the inputs that no recorded op made, once each."""
        tensors: list[Any] = []
        for tensor in inputs:
            tensor_id = self._tensor_id(tensor)
            if tensor_id >= 0 and not self._seen.test_and_set(tensor_id) and self._covers_dtype(tensor):
                tensors.append(tensor)
        if tensors:
            records = blank_records(len(tensors), Kind.EXTERNAL_TENSOR, step=self._step())
            records["execution_index"] = execution_index
            self._append_tensors(records, tensors, [True] * len(tensors), handlers, keeps=False)

    def _record_outputs(self, op_type: str, outputs: Sequence[Any], execution_index: int, handlers: Handlers) -> None:
        slots = [slot for slot, tensor in enumerate(outputs) if self._tensor_id(tensor) >= 0]
        if not slots:
            return
        tensors = [outputs[slot] for slot in slots]
        for tensor in tensors:
            tensor_id = self._tensor_id(tensor)
            self._seen.test_and_set(tensor_id)
            self._forwards.add_output(tensor_id, execution_index)
        level = self._level_of_op(op_type, handlers)
        keeps = level == _ELEMENTS
        covered = [level > 0 and self._covers_dtype(tensor, is_chosen=keeps) for tensor in tensors]
        records = blank_records(len(tensors), Kind.EXECUTION_TENSOR, step=self._step())
        records["node"] = self._backend.intern_string(op_type)
        records["slot"] = slots
        records["execution_index"] = execution_index
        self._append_tensors(records, tensors, covered, handlers, keeps=keeps)

    def _append_tensors(
        self, records: Records, tensors: Sequence[Any], covered: Sequence[bool], handlers: Handlers, *, keeps: bool
    ) -> None:
        records["tensor_id"] = [self._tensor_id(tensor) for tensor in tensors]
        records["dtype"] = [tensor.dtype.as_datatype_enum for tensor in tensors]
        places = [place for place, is_covered in enumerate(covered) if is_covered]
        shapes: list[tuple[int, ...]] = [()] * len(tensors)
        histograms: list[reference.HistogramSummary | None] | None = None
        if places:
            are_all = len(places) == len(tensors)
            measured = tensors if are_all else [tensors[place] for place in places]
            mode, error = self._mode, None
            try:
                rows = self._measure(measured)
                if self._counts_histograms:
                    found = dict(zip(places, map(_histogram, measured), strict=True))
                    histograms = [found.get(place) for place in range(len(tensors))]
            except Exception as failure:
                rows = np.stack([shape_row(tuple(tensor.shape)) for tensor in measured])
                mode, error, histograms = TensorDebugMode.SHAPE, failure, None
            facts = records if are_all else records[places]
            fill_records(facts, rows, mode=mode)
            facts["device"] = [self._backend.intern_string(tensor.device) for tensor in measured]
            if (keeps or self._mode is TensorDebugMode.FULL_TENSOR) and error is None:
                keep_values(facts, {place: _elements(tensor) for place, tensor in enumerate(measured)}, self._backend)
            if not are_all:
                records[places] = facts
            for place, tensor in zip(places, measured, strict=True):
                shapes[place] = tuple(tensor.shape)
            if error is not None:
                handlers.on_error("measuring an eager tensor", error)
        joined = add_followers(records, shapes, histograms)
        self._backend.append(joined)
        if handlers.on_nonfinite is not None and np.any(joined["flags"] & Flag.BAD):
            self._thread.bad += _bad_tensors(joined, self._backend.last_event_index())

    def _level_of_op(self, op_type: str, handlers: Handlers) -> int:
        if handlers.covers_op is None:
            return 1
        known = self._levels.get(op_type)
        if known is None:
            known = self._levels[op_type] = handlers.covers_op(op_type)
        return known

    def _covers_dtype(self, tensor: Any, *, is_chosen: bool = False) -> bool:
        if self.is_remote is not None and self.is_remote(tensor.device):
            return False
        number = tensor.dtype.as_datatype_enum
        mask = KEEPABLE_MASK if is_chosen else self._dtype_mask
        return bool(0 <= number < 64 and (mask >> number) & 1)


_ELEMENTS = 2
"""The handler `covers_op` returns this if elements are kept."""


def _bad_tensors(records: Records, first_event_index: int) -> list[tuple[int, int, int]]:
    bad: list[tuple[int, int, int]] = []
    for row in np.flatnonzero(records["flags"] & Flag.BAD).tolist():
        record = records[row]
        if is_follower(record["kind"]):
            continue
        slot = NO_VALUE if record["kind"] == Kind.EXTERNAL_TENSOR else int(record["slot"])
        event_index = NO_VALUE if first_event_index == NO_VALUE else first_event_index + row
        bad.append((int(record["tensor_id"]), slot, event_index))
    return bad


def _histogram(tensor: Any) -> reference.HistogramSummary | None:
    has_histogram = tensor.dtype.name in reference.HISTOGRAM_DTYPES
    return reference.count_histogram(np.asarray(tensor.numpy())) if has_histogram else None


def _elements(tensor: Any) -> npt.NDArray[Any]:
    elements = tensor.numpy()
    # NumPy would cut off zero bytes at the end of a string.
    return np.array(elements, np.object_) if isinstance(elements, bytes) else np.asarray(elements)


def keep_values(records: Records, arrays: Mapping[int, npt.NDArray[Any]], backend: Backend) -> None:
    """Writes the elements of tensors, keyed by position, and stores their offsets in the records."""
    for index, array in arrays.items():
        data = encode_strings(array.ravel()) if array.dtype == np.object_ else array.tobytes()
        offset = backend.append_value(data)
        if offset != NO_VALUE:
            records["value_bytes"][index] = len(data)
            records["value_offset"][index] = offset
            records["flags"][index] |= Flag.VALUE


def _text(name: str | bytes) -> str:
    return name.decode("utf-8", errors="backslashreplace") if isinstance(name, bytes) else name
