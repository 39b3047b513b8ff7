"""Writes parts of the table mark, and reads them from disk as a reader does."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tfdbg_arrow.schema import arrow_schema
from tfdbg_arrow.storage.manifest import read_live_parts


def marks(*events: int) -> pa.Table:
    """Returns rows of mark with these event indexes."""
    schema = arrow_schema("mark")
    columns: dict[str, list[Any]] = {name: [None] * len(events) for name in schema.names}
    columns |= {name: ["r"] * len(events) for name in ("run_id", "label", "value")}
    columns |= {name: list(events) for name in ("event_index", "wall_time_ns", "wall_time")}
    return pa.table(columns, schema=schema)


def events_on_disk(logdir: Path) -> list[int]:
    """Returns the event indexes that a reader finds through the manifest."""
    found: list[int] = []
    for entry in read_live_parts(logdir, run_id="r"):
        content = (logdir / entry.path).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (entry.bytes, entry.sha256)
        table = pq.read_table(logdir / entry.path, partitioning=None, page_checksum_verification=True)
        assert table.schema.equals(arrow_schema(entry.table), check_metadata=True)
        if "event_index" not in table.schema.names:
            continue
        events = table["event_index"].to_pylist()
        assert (entry.rows, entry.min_event_index, entry.max_event_index) == (
            len(events),
            min(events, default=None),
            max(events, default=None),
        )
        found += events
    return found


def files(logdir: Path) -> list[str]:
    """Returns the names of the files in the directory of the parts of mark."""
    return sorted(path.name for path in (logdir / "mark/run=r").iterdir())
