"""Splits the records of the two large files of a dump, `execution` and `graph_execution_traces`.

Nearly all records repeat one of a few messages. They differ only in their time, their tensor ids and their
measurements, which are the *holes* of a record. The remaining message is interned, so that it is interpreted once and
not for each record. This is the readable twin of `native/debug_event_scan.cc`, which does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from tfdbg_arrow.writer.debugger_v2.protos.debug_event_pb2 import DebugEvent, TensorDebugMode
from tfdbg_arrow.writer.debugger_v2.records import NUM_KEPT
from tfdbg_arrow.writer.debugger_v2.tfrecord import Damage, RecordReader

Ints = npt.NDArray[np.int64]

MAX_RECORDS = 65536
"""Maximum number of records of one Scan."""
MAX_BYTES = 8 * 2**20
"""Number of bytes of records after which a Scan ends."""
UNREADABLE = -1
"""The template of a record that could not be parsed."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Scan:
    """Consecutive records of a file; all arrays except `wall_time_s` are int64.

    Attributes:
        wall_time_s: DebugEvent.wall_time of each record.
        template: The result of `intern` for each record's message without holes; UNREADABLE if it cannot be parsed.
        num_inputs: Number of input tensor ids of each record.
        inputs: The input tensor ids of all records.
        num_outputs: Number of output tensor ids of each record.
        outputs: The output tensor ids of all records.
        num_contents: Number of TensorProtos of each record.
        content_start: For each TensorProto, the offset in `buffer` of the bytes removed from its tensor_content.
        content_length: The number of those bytes.
        record_start: The offset in `buffer` of each record.
        record_length: The size of each record in bytes.
        buffer: The records.
    """

    wall_time_s: npt.NDArray[np.float64]
    template: Ints
    num_inputs: Ints
    inputs: Ints
    num_outputs: Ints
    outputs: Ints
    num_contents: Ints
    content_start: Ints
    content_length: Ints
    record_start: Ints
    record_length: Ints
    buffer: bytes

    def __len__(self) -> int:
        return len(self.template)

    def record(self, index: int) -> bytes:
        """Returns a record's bytes."""
        start = int(self.record_start[index])
        return self.buffer[start : start + int(self.record_length[index])]


Intern = Callable[[DebugEvent], int]
"""A function that returns the id of a message without holes; it is called at least once for each message."""


class EventScanner(Protocol):
    """Reads a file of events; iterating yields its Scans."""

    @property
    def offset(self) -> int:
        """Number of bytes read."""

    @property
    def damage(self) -> Damage | None:
        """The reason why reading stopped before the end of the file, or None."""

    def __iter__(self) -> Iterator[Scan]: ...


class PythonScanner:
    """The scanner that does not need the native core.

    Args:
        file: The file, open for reading bytes.
        intern: Called with each new message.
        max_templates: After this number of distinct messages they are forgotten, so that memory is bounded.
    """

    def __init__(self, file: BinaryIO, *, intern: Intern, max_templates: int = 100_000) -> None:
        self._reader = RecordReader(file)
        self._intern = intern
        self._max_templates = max_templates
        self._templates: dict[bytes, int] = {}

    @property
    def offset(self) -> int:
        """Number of bytes read."""
        return self._reader.offset

    @property
    def damage(self) -> Damage | None:
        """The reason why reading stopped before the end of the file, or None."""
        return self._reader.damage

    def __iter__(self) -> Iterator[Scan]:
        """Yields the file's records until its end or the first damage.

        Raises:
            OSError: The file cannot be read.
        """
        records: list[bytes] = []
        size = 0
        for record in self._reader:
            records.append(record)
            size += len(record)
            if len(records) >= MAX_RECORDS or size >= MAX_BYTES:
                yield self.scan(records)
                records, size = [], 0
        if records:
            yield self.scan(records)

    def scan(self, records: Sequence[bytes]) -> Scan:
        """Returns the Scan of some records."""
        parts = _Parts()
        for record in records:
            self._scan_record(record, parts)
        return parts.to_scan(records)

    def _scan_record(self, record: bytes, parts: _Parts) -> None:
        try:
            event = DebugEvent.FromString(record)
        except DecodeError:
            parts.add(UNREADABLE, Holes())
            return
        holes = take_holes(event)
        key = event.SerializeToString(deterministic=True)
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= self._max_templates:
                self._templates.clear()
            template = self._templates[key] = self._intern(event)
        parts.add(template, holes)


@dataclass(frozen=True, kw_only=True)
class Holes:
    """The data removed from one record; the attributes are those of a Scan."""

    wall_time_s: float = 0.0
    inputs: Sequence[int] = ()
    outputs: Sequence[int] = ()
    contents: Sequence[bytes] = ()


def take_holes(event: DebugEvent) -> Holes:
    """Removes the data that differs between records of the same message, and returns it."""
    wall_time_s = event.wall_time
    event.ClearField("wall_time")
    inputs: Sequence[int] = ()
    outputs: Sequence[int] = ()
    tensors: Sequence[Any] = ()
    mode = 0
    if event.HasField("execution"):
        execution = event.execution
        inputs, outputs = list(execution.input_tensor_ids), list(execution.output_tensor_ids)
        execution.ClearField("input_tensor_ids")
        execution.ClearField("output_tensor_ids")
        tensors, mode = execution.tensor_protos, execution.tensor_debug_mode
    elif event.HasField("graph_execution_trace"):
        trace = event.graph_execution_trace
        tensors = (trace.tensor_proto,) if trace.HasField("tensor_proto") else ()
        mode = trace.tensor_debug_mode
    contents = [_take_content(tensor, mode) for tensor in tensors]
    return Holes(wall_time_s=wall_time_s, inputs=inputs, outputs=outputs, contents=contents)


def _take_content(tensor: Any, mode: int) -> bytes:
    """Removes the measurements from a TensorProto and returns them."""
    if mode in NUM_KEPT:
        kept = 8 * NUM_KEPT[mode]
    elif mode == TensorDebugMode.FULL_TENSOR:
        kept = 0
    else:
        return b""
    content: bytes = tensor.tensor_content
    if len(content) <= kept:
        return b""
    tensor.tensor_content = content[:kept]
    return content[kept:]


class _Parts:
    """The data of the records so far."""

    def __init__(self) -> None:
        self.wall_time_s: list[float] = []
        self.template: list[int] = []
        self.num_inputs: list[int] = []
        self.inputs: list[int] = []
        self.num_outputs: list[int] = []
        self.outputs: list[int] = []
        self.num_contents: list[int] = []
        self.contents: list[bytes] = []

    def add(self, template: int, holes: Holes) -> None:
        self.wall_time_s.append(holes.wall_time_s)
        self.template.append(template)
        self.num_inputs.append(len(holes.inputs))
        self.inputs.extend(holes.inputs)
        self.num_outputs.append(len(holes.outputs))
        self.outputs.extend(holes.outputs)
        self.num_contents.append(len(holes.contents))
        self.contents.extend(holes.contents)

    def to_scan(self, records: Sequence[bytes]) -> Scan:
        record_length = np.array([len(record) for record in records], dtype=np.int64)
        content_length = np.array([len(content) for content in self.contents], dtype=np.int64)
        record_bytes = int(record_length.sum())
        return Scan(
            wall_time_s=np.array(self.wall_time_s, dtype=np.float64),
            template=np.array(self.template, dtype=np.int64),
            num_inputs=np.array(self.num_inputs, dtype=np.int64),
            inputs=np.array(self.inputs, dtype=np.int64),
            num_outputs=np.array(self.num_outputs, dtype=np.int64),
            outputs=np.array(self.outputs, dtype=np.int64),
            num_contents=np.array(self.num_contents, dtype=np.int64),
            content_start=record_bytes + np.cumsum(content_length) - content_length,
            content_length=content_length,
            record_start=np.cumsum(record_length) - record_length,
            record_length=record_length,
            buffer=b"".join((*records, *self.contents)),
        )
