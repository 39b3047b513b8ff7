"""Recovers the rows that dead processes left in a logdir's spool as parts in a private directory.

The logdir itself is not changed.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.query.logdir.broken_parts import BrokenParts
from tfdbg_arrow.schema import ROW_GROUP_ROWS, arrow_schema, parquet_options
from tfdbg_arrow.schema.logdir_layout import SpoolPaths, manifest_path, part_path, spool_paths, spooled_run_ids
from tfdbg_arrow.schema.manifest import ManifestEntry, live_parts, spool_progress
from tfdbg_arrow.schema.own_files import OwnFiles
from tfdbg_arrow.spool.metadata_table import metadata_table
from tfdbg_arrow.spool.recovery import SealedRows, recovered
from tfdbg_arrow.spool.run_files import held_if_dead

_PART_NUMBER = 10**12
"""A number that no recording gives to a part. It must be unique because a digest names its part by its number."""


@dataclass(frozen=True)
class _Shown:
    """The recovered parts of a run.

    Attributes:
        key: Identifies the content of the source files. The parts are made again if it changes.
        manifest: The run's manifest when the parts were made.
        parts: The paths of the parts, by table.
    """

    key: object
    manifest: bytes
    parts: Mapping[str, str]


class RecoveredParts:
    """Makes parts from the spools of dead processes, and makes them again if a spool changed.

    Args:
        logdir: The logdir, which is only read.
        broken: Records runs whose manifest is damaged, which are left out. None makes such a run an error.
    """

    def __init__(self, logdir: Path, *, broken: BrokenParts | None = None) -> None:
        self._logdir, self._broken = logdir, broken
        self._directory: Path | None = None
        self._shown: dict[str, _Shown] = {}
        self._numbers = count()

    def refresh(self) -> None:
        """Looks for spools of dead processes again.

        Raises:
            LogdirError: The parts cannot be written, or a manifest is damaged.
        """
        shown: dict[str, _Shown] = {}
        for run_id in spooled_run_ids(self._logdir):
            try:
                found = self._look(run_id)
            except LogdirError as error:
                if self._broken is None:
                    raise
                self._broken.tell_manifest(run_id, str(self._logdir / manifest_path(run_id)), error)
                continue
            if found is not None:
                shown[run_id] = found
        self._shown = shown

    def parts(self) -> dict[str, tuple[str, ...]] | None:
        """Returns the paths by table, or None if a manifest changed since: its parts may now hold the same rows."""
        found: dict[str, tuple[str, ...]] = {}
        for run_id, shown in self._shown.items():
            if _read_manifest(self._logdir, run_id) != shown.manifest:
                return None
            for table, path in shown.parts.items():
                found[table] = (*found.get(table, ()), path)
        return found

    def _look(self, run_id: str) -> _Shown | None:
        paths = spool_paths(self._logdir, run_id=run_id)
        OwnFiles(self._logdir).check([*paths.all(), self._logdir / manifest_path(run_id)])
        try:
            with held_if_dead(paths.journal, to_change=False) as is_dead:
                if not is_dead or not paths.spool.exists():
                    return None
                manifest = _read_manifest(self._logdir, run_id)
                key = (manifest, *(_identity(path) for path in paths.all()))
                before = self._shown.get(run_id)
                if before is not None and before.key == key:
                    return before
                return _Shown(key=key, manifest=manifest, parts=self._make(paths, run_id, manifest))
        except OSError as error:
            raise LogdirError(
                f"{paths.spool}, the spool of the run {run_id}, cannot be recovered ({error.strerror or error}); check "
                f"the permissions, and that {tempfile.gettempdir()} has free space."
            ) from error

    def _make(self, paths: SpoolPaths, run_id: str, manifest: bytes) -> dict[str, str]:
        path = self._logdir / manifest_path(run_id)
        text = manifest.decode("utf-8", errors="replace")
        progress = spool_progress(text, run_id=run_id, path=path)
        by_table: dict[str, list[ManifestEntry]] = {}
        for entry in live_parts(text, run_id=run_id, path=path):
            by_table.setdefault(entry.table, []).append(entry)
        sealed = SealedRows(self._logdir, by_table)
        tables: Mapping[str, Iterable[pa.Table]]
        try:
            if progress.is_recovered or sealed.has_ended():
                return {}
            tables = recovered(paths, run_id=run_id, progress=progress, sealed=sealed).tables
        except LogdirError as error:
            tables = {"capture_stat": [_failure(paths, run_id, str(error))]}
        directory = self._own_directory() / str(next(self._numbers))
        return {table: _write(directory, table, run_id, pieces) for table, pieces in tables.items()}

    def _own_directory(self) -> Path:
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="tfdbg_arrow-recovered-"))
            weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        return self._directory


def _write(directory: Path, table: str, run_id: str, pieces: Iterable[pa.Table]) -> str:
    path = directory / part_path(table, run_id=run_id, number=_PART_NUMBER)
    path.parent.mkdir(parents=True)
    with pq.ParquetWriter(path, arrow_schema(table), **parquet_options(table)) as writer:
        for piece in pieces:
            writer.write_table(piece, row_group_size=ROW_GROUP_ROWS)
    return str(path)


def _failure(paths: SpoolPaths, run_id: str, reason: str) -> pa.Table:
    """Returns a capture_stat row which says that nothing could be recovered."""
    row = {
        "event_index": 0,
        "wall_time_ns": paths.journal.stat().st_mtime_ns,
        "stat": "failed",
        "subject": f"spool/{paths.spool.name}",
        "reason": reason,
        "num_events": None,
    }
    return metadata_table("capture_stat", [row], run_id=run_id)


def _read_manifest(logdir: Path, run_id: str) -> bytes:
    try:
        return (logdir / manifest_path(run_id)).read_bytes()
    except FileNotFoundError:
        return b""


def _identity(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except FileNotFoundError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
