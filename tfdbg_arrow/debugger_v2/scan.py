"""Splits the records of the two large files of a dump, `execution` and `graph_execution_traces`.

Nearly all records repeat one of a few messages. Records with the same message differ only in their time, their tensor
ids and their measurements. These data are the *holes* of a record. The rest of the message is interned, so that it is
interpreted only once and not for each record. `NativeScanner` uses the core's `debug_event_scan.cc`. `PythonScanner` is
the readable twin of `NativeScanner`, and replaces it if there is no core.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from tfdbg_arrow.debugger_v2.file_sets import Damage, RecordReader
from tfdbg_arrow.debugger_v2.protos.debug_event_pb2 import DebugEvent, TensorDebugMode
from tfdbg_arrow.debugger_v2.summaries import NUM_KEPT

Ints = npt.NDArray[np.int64]
MAX_RECORDS = 65536
"""Maximum number of records of one Scan."""
MAX_BYTES = 8 * 2**20
"""A Scan ends after this number of bytes of records."""
UNREADABLE = -1
"""The template of a record that could not be parsed."""
Intern = Callable[[DebugEvent], int]
"""A function that returns the id of a message without holes. The function is called at least once for each message."""
_WHOLE = 0
"""The status of a scan that found no damage (`ScanStatus::kWhole` in the native core)."""
_MAX_TEMPLATES = 100_000
"""When there are this many distinct messages, all are forgotten, so that memory is bounded."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Scan:
    """Consecutive records of a file; all arrays except `wall_time_s` are int64.

    Attributes:
        wall_time_s: DebugEvent.wall_time of each record.
        template: The result of `intern` for each record's message without holes; UNREADABLE if the record cannot be
            parsed.
        num_inputs: Number of input tensor ids of each record.
        inputs: The input tensor ids of all records.
        num_outputs: Number of output tensor ids of each record.
        outputs: The output tensor ids of all records.
        num_contents: Number of TensorProtos of each record.
        content_start: For each TensorProto, the offset in `buffer` of the bytes removed from its tensor_content.
        content_length: For each TensorProto, the number of removed bytes.
        buffer: Bytes that contain the removed bytes.
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
    buffer: bytes

    def __len__(self) -> int:
        return len(self.template)


class PythonScanner:
    """The scanner that does not need the native core.

    Args:
        file: The file, open for reading bytes.
        intern: Called with each new message.
    """

    def __init__(self, file: BinaryIO, *, intern: Intern) -> None:
        self._reader = RecordReader(file)
        self._intern = intern
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
        templates, all_holes = zip(*map(self._scan_record, records), strict=True)
        contents = [content for holes in all_holes for content in holes.contents]
        content_length = _ints(map(len, contents))
        return Scan(
            wall_time_s=np.array([holes.wall_time_s for holes in all_holes], dtype=np.float64),
            template=_ints(templates),
            num_inputs=_ints(len(holes.inputs) for holes in all_holes),
            inputs=_ints(tensor_id for holes in all_holes for tensor_id in holes.inputs),
            num_outputs=_ints(len(holes.outputs) for holes in all_holes),
            outputs=_ints(tensor_id for holes in all_holes for tensor_id in holes.outputs),
            num_contents=_ints(len(holes.contents) for holes in all_holes),
            content_start=np.cumsum(content_length) - content_length,
            content_length=content_length,
            buffer=b"".join(contents),
        )

    def _scan_record(self, record: bytes) -> tuple[int, Holes]:
        """Returns the template and the holes of a record."""
        try:
            event = DebugEvent.FromString(record)
        except DecodeError:
            return UNREADABLE, Holes()
        holes = take_holes(event)
        key = event.SerializeToString(deterministic=True)
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= _MAX_TEMPLATES:
                self._templates.clear()
            template = self._templates[key] = self._intern(event)
        return template, holes


@dataclass(frozen=True, kw_only=True)
class Holes:
    """The data removed from one record; the attributes have the same meaning as in Scan."""

    wall_time_s: float = 0.0
    inputs: Sequence[int] = ()
    outputs: Sequence[int] = ()
    contents: Sequence[bytes] = ()


def take_holes(event: DebugEvent) -> Holes:
    """Removes the data that differs between records of the same message, and returns the removed data."""
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
        num_kept = 8 * NUM_KEPT[mode]
    elif mode == TensorDebugMode.FULL_TENSOR:
        num_kept = 0
    else:
        return b""
    content: bytes = tensor.tensor_content
    if len(content) <= num_kept:
        return b""
    tensor.tensor_content = content[:num_kept]
    return content[num_kept:]


def _ints(numbers: Iterable[int]) -> Ints:
    return np.fromiter(numbers, dtype=np.int64)


class NativeScanner:
    """Reads a file of events with the native core.

    Args:
        core: The native core.
        file: The file, open for reading bytes, at its start.
        intern: Called with each new message.
        max_bytes: Number of bytes that are scanned at a time.

    Attributes:
        offset: Number of bytes read.
        damage: The reason why reading stopped before the end of the file, or None.
    """

    def __init__(self, core: Any, file: BinaryIO, *, intern: Intern, max_bytes: int = MAX_BYTES) -> None:
        self._file, self._intern = file, intern
        self._scanner = core.DebugEventScanner()
        self._max_bytes = max_bytes
        self._template_of_slot: list[int] = []
        self._twin = PythonScanner(file, intern=intern)
        self.offset = 0
        self.damage: Damage | None = None

    def __iter__(self) -> Iterator[Scan]:
        """Yields the file's records until its end or the first damage.

        Raises:
            OSError: The file cannot be read.
        """
        held = b""
        is_end = False
        while True:
            if not is_end:
                # The number of held bytes doubles each time, so that a record whose header claims gigabytes takes few
                # scans.
                piece = self._file.read(max(self._max_bytes, len(held)))
                is_end = not piece
                held = held + piece if held else piece
            consumed = 0
            # Yields all complete records in the buffer, a bounded number at a time.
            while True:
                data = held[consumed:] if consumed else held
                scan, used, status = self._scan(data)
                if scan is not None:
                    yield scan
                consumed += used
                self.offset += used
                if status != _WHOLE or scan is None or len(scan) < MAX_RECORDS:
                    break
            held = held[consumed:]
            if status != _WHOLE or (is_end and held):
                self._find_damage(held)
                return
            if is_end:
                return

    def _scan(self, data: bytes) -> tuple[Scan | None, int, int]:
        """Returns the records at the start of some bytes (or None), their size, and the reason why the scan ended."""
        *columns, first_of_slot, used, status = self._scanner.scan(data, MAX_RECORDS)
        wall_time_s = np.frombuffer(columns[0], dtype="<f8")
        if not len(wall_time_s):
            return None, used, status
        slot, num_inputs, inputs, num_outputs, outputs, num_contents, start, length, record_start, record_length = (
            np.frombuffer(column, dtype="<i8") for column in columns[1:]
        )
        scan = Scan(
            wall_time_s=wall_time_s,
            template=slot,
            num_inputs=num_inputs,
            inputs=inputs,
            num_outputs=num_outputs,
            outputs=outputs,
            num_contents=num_contents,
            content_start=start,
            content_length=length,
            buffer=data,
        )

        def record(index: int) -> bytes:
            start = int(record_start[index])
            return data[start : start + int(record_length[index])]

        for index in np.frombuffer(first_of_slot, dtype="<i8").tolist():
            self._template_of_slot.append(self._interned(record(index)))
        template = np.array(self._template_of_slot or [UNREADABLE], dtype=np.int64)[np.maximum(slot, 0)]
        if np.any(slot < 0) or np.any(template == UNREADABLE):
            # Records of another form are rare. The Python twin then reads all records, which keeps the order.
            scan = self._twin.scan([record(index) for index in range(len(scan))])
        else:
            scan = replace(scan, template=template)
        if self._scanner.num_slots >= _MAX_TEMPLATES:
            self._scanner.clear()
            self._template_of_slot.clear()
        return scan, used, status

    def _interned(self, record: bytes) -> int:
        try:
            event = DebugEvent.FromString(record)
        except DecodeError:
            return UNREADABLE
        take_holes(event)
        return self._intern(event)

    def _find_damage(self, held: bytes) -> None:
        """Determines the damage with the reader of frames, so that both scanners use the same wording."""
        reader = RecordReader(io.BytesIO(held), offset=self.offset)
        next(reader, None)
        self.damage = reader.damage


EventScanner = NativeScanner | PythonScanner
"""Reads a file of events; iterating yields its Scans."""


def event_scanner(file: BinaryIO, *, intern: Intern) -> EventScanner:
    """Returns the fastest available scanner.

    Args:
        file: The file, open for reading bytes.
        intern: Called with each new message.
    """
    try:
        core = importlib.import_module("tfdbg_arrow.writer.native._core")
    except ImportError:
        return PythonScanner(file, intern=intern)
    return NativeScanner(core, file, intern=intern)
