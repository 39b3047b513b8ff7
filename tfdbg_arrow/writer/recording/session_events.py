"""Records runs of sessions, like `native/eager.cc` for eager ops. The feeds and fetches of a run are arrays.

A run becomes an EXECUTION record. The fetches of the run become EXECUTION_TENSOR records. The feeds become
EXTERNAL_TENSOR records. Errors go to the handlers and never to the program.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.schema.dtypes import encode_strings
from tfdbg_arrow.spool.records import (
    BUCKETS_SHIFT,
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
)
from tfdbg_arrow.writer.backend import Backend, Handlers
from tfdbg_arrow.writer.native import reference
from tfdbg_arrow.writer.scopes import FORWARD
from tfdbg_arrow.writer.settings import KEEPABLE_MASK, Settings, TensorDebugMode
from tfdbg_arrow.writer.tensorflow_backend.summary import fill_records, measure_array, shape_row

_RAW = np.dtype(f"V{RECORD_SIZE}")


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
    """Adds records for dimensions above NUM_INLINE_DIMS and for histograms, which do not fit in the tensors' records.

    Args:
        records: One record for each tensor.
        shapes: The shape of each tensor; empty if the tensor's record already holds the shape.
        histograms: The histogram of each tensor, or None for no histogram. None means that no tensor has a histogram.

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
            follower = np.zeros(1, RECORD_DTYPE)
            follower["kind"] = Kind.DIMS
            dims = shape[start : start + PAYLOAD_LENGTH]
            follower.view(PAYLOAD_DTYPE)["payload"][0, : len(dims)] = dims
            pieces.append(follower.view(_RAW))
        if histograms is not None and (histogram := histograms[index]) is not None:
            pieces += _histogram_records(record, histogram)
    joined: Records = np.concatenate(pieces).view(RECORD_DTYPE)
    return joined


def _histogram_records(record: Records, histogram: reference.HistogramSummary) -> list[npt.NDArray[np.void]]:
    """Notes a histogram in the record of its tensor, and returns the HISTOGRAM records."""
    record["flags"] |= Flag.HISTOGRAM_COUNTED | len(histogram.negative) << BUCKETS_SHIFT
    width = int(histogram_width(record["size"])[0])
    counts = np.array([histogram.negative, histogram.positive]).T.astype(f"<u{width}").tobytes()
    pieces = []
    for start in range(0, len(counts), PAYLOAD_BYTES):
        follower = np.zeros(1, RECORD_DTYPE)
        follower["kind"] = Kind.HISTOGRAM
        follower["slot"] = histogram.exponent
        piece = counts[start : start + PAYLOAD_BYTES].ljust(PAYLOAD_BYTES, b"\0")
        follower.view(PAYLOAD_DTYPE)["payload"][0] = np.frombuffer(piece, "<i8")
        pieces.append(follower.view(_RAW))
    return pieces


@dataclass(frozen=True, eq=False)
class FedArray:
    """A value that is fed to a run or fetched from it.

    Attributes:
        value: The array, or a value that NumPy can convert to an array.
        dtype: The dtype of the feed or fetch.
        tensor_id: The ID of the tensor.
        device: The name of the device whose memory holds the value.
    """

    value: Any
    dtype: Any
    tensor_id: int
    device: str = "/job:localhost/replica:0/task:0/device:CPU:0"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return tuple(np.shape(self.value))

    def numpy(self) -> npt.NDArray[Any]:
        """Returns the array."""
        return np.asarray(self.value)


@dataclass
class _Run:
    """A run that has begun and not ended."""

    name: str
    execution_index: int
    feeds: Sequence[FedArray]
    num_bad_steps: int


@dataclass
class _Thread(threading.local):
    runs: list[_Run] = field(default_factory=list)


class SessionEvents:
    """Records the events of runs of sessions.

    Attributes:
        is_paused: True while runs are not recorded.

    Args:
        settings: The settings of the recording.
        backend: Takes the records.
        step: Returns the training step of the events.
    """

    def __init__(self, settings: Settings, *, backend: Backend, step: Callable[[], int]) -> None:
        self._mode = settings.mode
        self._counts_histograms = settings.histograms
        self._keeps_inputs = settings.keeps_inputs
        self._dtype_mask = settings.dtype_mask
        self._backend = backend
        self._step = step
        self._levels: dict[str, int] = {}
        self._thread = _Thread()
        self._handlers: Handlers | None = None
        self.is_paused = False

    def start(self, handlers: Handlers) -> None:
        """Starts to record events."""
        self._handlers = handlers

    def stop(self) -> None:
        """Stops recording; runs that begin later are not recorded."""
        self._handlers = None

    def begin_run(self, name: str, feeds: Sequence[FedArray], num_fetches: int) -> int:
        """Records that a run begins; returns its execution index, or -1 if it is not recorded."""
        handlers = self._handlers
        if handlers is None or self.is_paused:
            return NO_VALUE
        execution_index = NO_VALUE
        try:
            execution_index = self._backend.next_execution_index()
            self._thread.runs.append(_Run(name, execution_index, feeds, self._backend.num_bad_steps()))
            if self._record_feeds(feeds, execution_index, handlers) and self._keeps_inputs:
                self._backend.keep_step_inputs(name)
            self._record_execution(name, feeds, num_fetches, execution_index)
        except Exception as error:
            handlers.on_error("recording a call", error)
        return execution_index

    def end_run(self, execution_index: int, fetches: Sequence[FedArray] | None, error_type: str | None) -> None:
        """Records that the run returned its fetches, or raised an error of the class with this name."""
        if execution_index == NO_VALUE:
            return
        handlers = self._handlers
        runs = self._thread.runs
        try:
            # The innermost run ends first, unless recording started or stopped in between.
            while runs and runs[-1].execution_index >= execution_index:
                run = runs.pop()
                if handlers and run.execution_index == execution_index:
                    self._record_fetches(run.name, fetches or (), execution_index, handlers)
                    if self._keeps_inputs:
                        self._keep_feeds(run)
            if handlers:
                if error_type is not None:
                    self._record_error(execution_index, error_type)
                end = blank_records(1, Kind.EXECUTION_END, step=self._step())
                end["execution_index"] = execution_index
                self._backend.append(end)
        except Exception as error:
            if handlers:
                handlers.on_error("recording the end of a call", error)

    def _record_error(self, execution_index: int, error_type: str) -> None:
        record = blank_records(1, Kind.EXECUTION_ERROR, step=self._step())
        record["node"] = self._backend.intern_string(error_type)
        record["execution_index"] = execution_index
        self._backend.append(record)

    def _record_execution(self, name: str, feeds: Sequence[FedArray], num_fetches: int, execution_index: int) -> None:
        ids = [feed.tensor_id for feed in feeds]
        records = blank_records(1 + max(0, len(ids) - 1) // PAYLOAD_LENGTH, Kind.EXECUTION, step=self._step())
        records["node"] = self._backend.intern_string(name)
        records["slot"] = np.arange(len(records)) * PAYLOAD_LENGTH
        records["num_outputs"][0] = num_fetches
        records["kind"][1:] = Kind.INPUTS
        records["num_inputs"] = len(ids)
        records["execution_index"] = execution_index
        records["stack"] = self._backend.intern_stack()
        records["thread"] = threading.get_ident()
        records["role"] = self._backend.intern_string(FORWARD)
        payload = records.view(PAYLOAD_DTYPE)["payload"]
        for index, start in enumerate(range(0, len(ids), PAYLOAD_LENGTH)):
            piece = ids[start : start + PAYLOAD_LENGTH]
            payload[index, : len(piece)] = piece
        self._backend.append(records)

    def _record_feeds(self, feeds: Sequence[FedArray], execution_index: int, handlers: Handlers) -> bool:
        """Records the feeds, and returns whether any of them is bad."""
        covered = [feed for feed in feeds if self._covers_dtype(feed)]
        if not covered:
            return False
        records = blank_records(len(covered), Kind.EXTERNAL_TENSOR, step=self._step())
        records["execution_index"] = execution_index
        self._append_tensors(records, covered, [True] * len(covered), handlers, keeps=False)
        return bool(np.any(records["flags"] & Flag.BAD))

    def _keep_feeds(self, run: _Run) -> None:
        """Keeps the elements of the feeds if a bad value came up in the run."""
        if self._backend.num_bad_steps() == run.num_bad_steps:
            return
        for feed in run.feeds:
            elements = _elements(feed) if self._covers_dtype(feed, is_chosen=True) else None
            if elements is None or not self._backend.admit_step_input(run.num_bad_steps, elements.nbytes):
                continue
            record = blank_records(1, Kind.STEP_INPUT, step=self._step())
            record["node"] = NO_VALUE
            record["tensor_id"] = feed.tensor_id
            record["dtype"] = feed.dtype.as_datatype_enum
            fill_records(record, np.stack([shape_row(feed.shape)]), mode=TensorDebugMode.SHAPE)
            keep_values(record, {0: elements}, self._backend)
            self._backend.append(add_followers(record, [feed.shape], None))

    def _record_fetches(self, name: str, fetches: Sequence[FedArray], execution_index: int, handlers: Handlers) -> None:
        if not fetches:
            return
        level = self._level_of(name, handlers)
        keeps = level == _ELEMENTS
        covered = [level > 0 and self._covers_dtype(fetch, is_chosen=keeps) for fetch in fetches]
        records = blank_records(len(fetches), Kind.EXECUTION_TENSOR, step=self._step())
        records["node"] = self._backend.intern_string(name)
        records["slot"] = np.arange(len(fetches))
        records["execution_index"] = execution_index
        self._append_tensors(records, fetches, covered, handlers, keeps=keeps)

    def _append_tensors(
        self, records: Records, tensors: Sequence[FedArray], covered: Sequence[bool], handlers: Handlers, *, keeps: bool
    ) -> None:
        records["tensor_id"] = [tensor.tensor_id for tensor in tensors]
        records["dtype"] = [tensor.dtype.as_datatype_enum for tensor in tensors]
        covered_indexes = [index for index, is_covered in enumerate(covered) if is_covered]
        shapes: list[tuple[int, ...]] = [()] * len(tensors)
        histograms: list[reference.HistogramSummary | None] | None = None
        if covered_indexes:
            are_all = len(covered_indexes) == len(tensors)
            measured = tensors if are_all else [tensors[index] for index in covered_indexes]
            mode, error = self._mode, None
            try:
                rows = np.stack([measure_array(tensor.numpy(), mode=mode) for tensor in measured])
                if self._counts_histograms:
                    histogram_of = dict(zip(covered_indexes, map(_histogram, measured), strict=True))
                    histograms = [histogram_of.get(index) for index in range(len(tensors))]
            except Exception as failure:
                rows = np.stack([shape_row(tuple(tensor.shape)) for tensor in measured])
                mode, error, histograms = TensorDebugMode.SHAPE, failure, None
            facts = records if are_all else records[covered_indexes]
            fill_records(facts, rows, mode=mode)
            _place_bad(facts, measured)
            facts["device"] = [self._backend.intern_string(tensor.device) for tensor in measured]
            if (keeps or self._mode is TensorDebugMode.FULL_TENSOR) and error is None:
                keep_values(facts, {index: _elements(tensor) for index, tensor in enumerate(measured)}, self._backend)
            if not are_all:
                records[covered_indexes] = facts
            for index, tensor in zip(covered_indexes, measured, strict=True):
                shapes[index] = tuple(tensor.shape)
            if error is not None:
                handlers.on_error("measuring an eager tensor", error)
        self._backend.append(add_followers(records, shapes, histograms))

    def _level_of(self, name: str, handlers: Handlers) -> int:
        if handlers.covers_op is None:
            return 1
        if name not in self._levels:
            self._levels[name] = handlers.covers_op(name)
        return self._levels[name]

    def _covers_dtype(self, tensor: FedArray, *, is_chosen: bool = False) -> bool:
        number = tensor.dtype.as_datatype_enum
        mask = KEEPABLE_MASK if is_chosen else self._dtype_mask
        return bool(0 <= number < 64 and (mask >> number) & 1)


_ELEMENTS = 2
"""The handler `covers_op` returns this if elements are kept."""


def _histogram(tensor: Any) -> reference.HistogramSummary | None:
    has_histogram = tensor.dtype.name in reference.HISTOGRAM_DTYPES
    return reference.count_histogram(np.asarray(tensor.numpy())) if has_histogram else None


def _place_bad(records: Records, tensors: Sequence[FedArray]) -> None:
    """For each tensor that has bad elements, stores in the record of the tensor where they are."""
    for index in np.flatnonzero(records["flags"] & Flag.BAD).tolist():
        bad = reference.find_bad(np.asarray(tensors[index].numpy()))
        if bad is not None:
            records["flags"][index] |= Flag.PLACED
            records["first_bad_index"][index] = bad.first_index
            records["num_bad_slices"][index] = NO_VALUE if bad.num_slices is None else bad.num_slices


def _elements(tensor: Any) -> npt.NDArray[Any]:
    elements = tensor.numpy()
    # NumPy would cut off zero bytes at the end of a string.
    array = np.array(elements, np.object_) if isinstance(elements, bytes) else np.asarray(elements)
    if array.dtype.kind not in "OSU":
        return array
    texts = [text.encode() if isinstance(text, str) else text for text in array.ravel().tolist()]
    encoded = np.empty(len(texts), np.object_)
    encoded[:] = texts
    return encoded.reshape(array.shape)


def keep_values(records: Records, arrays: Mapping[int, npt.NDArray[Any]], backend: Backend) -> None:
    """Writes the elements of tensors, keyed by the index of the record, and stores their offsets in the records."""
    for index, array in arrays.items():
        data = encode_strings(array.ravel()) if array.dtype == np.object_ else array.tobytes()
        offset = backend.append_value(data)
        if offset != NO_VALUE:
            records["value_bytes"][index] = len(data)
            records["value_offset"][index] = offset
            records["flags"][index] |= Flag.VALUE
