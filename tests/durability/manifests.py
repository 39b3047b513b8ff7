"""Manifest entries for tests."""

from __future__ import annotations

from tfdbg_arrow.storage.manifest import ManifestEntry

RUN = "run1"
DAMAGED = "; the manifest is damaged: restore it, or remove this run from the logdir."


def part(number: int, *, table: str = "mark") -> ManifestEntry:
    path = f"{table}/run={RUN}/part-{number:06d}.parquet"
    return ManifestEntry(
        table=table, path=path, rows=2, bytes=10, sha256="0a" * 32, min_event_index=1, max_event_index=5
    )
