"""Stores the parts of a dump's records that other tables do not hold, and counts problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tfdbg_arrow.writer.debugger_v2.rows import RowBuffer

Ints = npt.NDArray[np.int64]


class Keeper:
    """Writes dump_message and dump_record.

    Args:
        rows: Receives the rows.
    """

    def __init__(self, rows: RowBuffer) -> None:
        self._rows = rows
        self._num_messages = 0
        self.num_records: dict[str, int] = {}
        """Number of records by file."""

    def add_message(self, message: bytes, *, is_whole: bool, stack_trace_id: int | None = None) -> int:
        """Adds a new message and returns its id."""
        message_id = self._num_messages
        self._num_messages += 1
        row = {"message_id": message_id, "is_whole": is_whole, "stack_trace_id": stack_trace_id, "message": message}
        self._rows.add_row("dump_message", row, num_bytes=len(message))
        return message_id

    def add_record(self, file: str, *, message_id: int, wall_time_s: float, row_id: int | None) -> None:
        """Adds the next record of a file."""
        index = self.num_records.get(file, 0)
        self.num_records[file] = index + 1
        row = {"file": file, "record_index": index, "message_id": message_id}
        self._rows.add_row("dump_record", {**row, "wall_time_s": wall_time_s, "row_id": row_id})

    def add_records(self, file: str, *, message_ids: Ints, wall_time_s: npt.NDArray[np.float64], row_ids: Ints) -> None:
        """Adds the next records of a file; a row id of -1 means none."""
        index = self.num_records.get(file, 0)
        count = len(message_ids)
        self.num_records[file] = index + count
        self._rows.add(
            "dump_record",
            {
                "file": pa.repeat(pa.scalar(file, pa.string()), count),
                "record_index": pa.array(np.arange(index, index + count)),
                "message_id": pa.array(message_ids),
                "wall_time_s": pa.array(wall_time_s),
                "row_id": pa.array(row_ids, mask=row_ids < 0),
            },
            num_rows=count,
        )

    def keep_whole(self, file: str, record: bytes) -> None:
        """Adds the next record of a file unchanged, because it could not be parsed."""
        self.add_record(file, message_id=self.add_message(record, is_whole=True), wall_time_s=0.0, row_id=None)


class Problems:
    """Counts what could not be imported, by kind, for rows of capture_stat."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str], int | None] = {}

    def add(self, stat: str, subject: str, reason: str, num_events: int | None = 1) -> None:
        """Counts a problem; problems with the same stat, subject and reason become one row.

        Args:
            stat: A value of capture_stat.stat.
            subject: What it happened to.
            reason: The reason, as a phrase that continues the subject.
            num_events: Number of affected events; None if unknown.
        """
        key = (stat, subject, reason)
        before = self._counts.get(key, 0)
        self._counts[key] = None if before is None or num_events is None else before + num_events

    def __bool__(self) -> bool:
        return bool(self._counts)

    def has(self, stat: str) -> bool:
        """Returns whether there is a problem with this stat."""
        return any(key[0] == stat for key in self._counts)

    def num_events(self) -> int:
        """Returns the known number of affected events."""
        return sum(count or 0 for count in self._counts.values())

    def rows(self, *, event_index: int, wall_time_ns: int) -> Sequence[Mapping[str, Any]]:
        """Returns the rows of capture_stat."""
        return [
            {
                "event_index": event_index,
                "wall_time_ns": wall_time_ns,
                "stat": stat,
                "subject": subject,
                "reason": reason,
                "num_events": count,
            }
            for (stat, subject, reason), count in self._counts.items()
        ]
