"""The fast scanner, which uses the native core; `scan.py` documents its results."""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from tfdbg_arrow.writer.debugger_v2.protos.debug_event_pb2 import DebugEvent
from tfdbg_arrow.writer.debugger_v2.scan import (
    MAX_BYTES,
    MAX_RECORDS,
    UNREADABLE,
    EventScanner,
    Intern,
    PythonScanner,
    Scan,
    take_holes,
)
from tfdbg_arrow.writer.debugger_v2.tfrecord import Damage, RecordReader

_WHOLE = 0


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


class NativeScanner:
    """Reads a file of events with the native core.

    Args:
        core: The native core.
        file: The file, open for reading bytes, at its start.
        intern: Called with each new message.
        max_templates: After this number of distinct messages they are forgotten, so that memory is bounded.
        max_bytes: Number of bytes that are scanned at a time.
    """

    def __init__(
        self,
        core: Any,
        file: BinaryIO,
        *,
        intern: Intern,
        max_templates: int = 100_000,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._file, self._intern = file, intern
        self._scanner = core.DebugEventScanner()
        self._max_templates, self._max_bytes = max_templates, max_bytes
        self._template_of_slot: list[int] = []
        self._twin = PythonScanner(file, intern=intern, max_templates=max_templates)
        self._offset = 0
        self._damage: Damage | None = None

    @property
    def offset(self) -> int:
        """Number of bytes read."""
        return self._offset

    @property
    def damage(self) -> Damage | None:
        """The reason why reading stopped before the end of the file, or None."""
        return self._damage

    def __iter__(self) -> Iterator[Scan]:
        """Yields the file's records until its end or the first damage.

        Raises:
            OSError: The file cannot be read.
        """
        held = b""
        is_end = False
        while True:
            if not is_end:
                # Doubles the held bytes, so that a (claimed) record of gigabytes is not scanned in many small steps.
                piece = self._file.read(max(self._max_bytes, len(held)))
                is_end = not piece
                held = held + piece if held else piece
            consumed = 0
            # Yields all complete records in the buffer, in pieces of a bounded number.
            while True:
                data = held[consumed:] if consumed else held
                scan, used, status = self._scan(data)
                if scan is not None:
                    yield scan
                consumed += used
                self._offset += used
                if status != _WHOLE or scan is None or len(scan) < MAX_RECORDS:
                    break
            held = held[consumed:]
            if status != _WHOLE or (is_end and held):
                self._find_damage(held)
                return
            if is_end:
                return

    def _scan(self, data: bytes) -> tuple[Scan | None, int, int]:
        """Returns the records at the start of some bytes (or None), their size, and why there are no more."""
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
            record_start=record_start,
            record_length=record_length,
            buffer=data,
        )
        for index in np.frombuffer(first_of_slot, dtype="<i8").tolist():
            self._template_of_slot.append(self._interned(scan.record(index)))
        template = np.array(self._template_of_slot or [UNREADABLE], dtype=np.int64)[np.maximum(slot, 0)]
        if np.any(slot < 0) or np.any(template == UNREADABLE):
            # Records of another form are rare. The Python twin then reads all records, which keeps the order.
            scan = self._twin.scan([scan.record(index) for index in range(len(scan))])
        else:
            scan = _with_template(scan, template)
        if self._scanner.num_slots >= self._max_templates:
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
        reader = RecordReader(io.BytesIO(held), offset=self._offset)
        next(reader, None)
        self._damage = reader.damage


def _with_template(scan: Scan, template: npt.NDArray[np.int64]) -> Scan:
    return Scan(**{**vars(scan), "template": template})
