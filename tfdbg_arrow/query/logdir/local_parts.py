"""Lists the live parts of a local logdir.

The rows that dead processes left in the spool are recovered as parts in a private directory. The logdir is not changed.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.query.integrity.broken_parts import BrokenParts
from tfdbg_arrow.query.integrity.parts import file_identity
from tfdbg_arrow.schema import ROW_GROUP_ROWS, arrow_schema, parquet_options
from tfdbg_arrow.spool.journal import held_if_dead
from tfdbg_arrow.storage.layout import (
    MANIFEST_DIRECTORY,
    OwnFiles,
    SpoolPaths,
    manifest_path,
    part_files,
    part_path,
    run_of_part,
    spool_paths,
    spooled_run_ids,
)
from tfdbg_arrow.storage.manifest import ManifestEntry, live_parts, read_live_parts, run_ids, spool_progress
from tfdbg_arrow.storage.marker import check_logdir

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_ATTEMPTS = 20
"""Maximum number of times that the parts are listed again because a run was recovered in the meantime."""
_PART_NUMBER = 10**12
"""A number that no recording gives to a part."""


class LocalSource:
    """Lists parts.

    Args:
        path: The logdir.
        broken: Leaves out and records broken files; None lists all parts.

    Attributes:
        num_rows: The number of rows of each part that a manifest names, by path.
    """

    def __init__(self, path: Path, *, broken: BrokenParts | None = None) -> None:
        self._path, self._broken = path, broken
        self._recovered = _RecoveredParts(path, broken=broken)
        self.num_rows: dict[str, int] = {}

    def refresh(self) -> dict[str, tuple[str, ...]]:
        """Reads the manifests again.

        Returns:
            Paths by table.

        Raises:
            LogdirError: The path is no longer a logdir or cannot be read, or a manifest is damaged.
        """
        for _ in range(_MAX_ATTEMPTS):
            if self._broken is not None:
                self._broken.begin()
            self._recovered.refresh()
            try:
                entries = _live_entries(self._path, broken=self._broken)
                recovered = self._recovered.parts()
            except OSError as error:
                raise LogdirError(
                    f"{error.filename or self._path} cannot be read ({error.strerror or error}); check the "
                    "permissions and the disk."
                ) from error
            if recovered is not None:
                self.num_rows = {_path_of(self._path, entry): entry.rows for entry in entries}
                parts = _by_table(self._path, entries)
                return {table: (*parts.get(table, ()), *recovered.get(table, ())) for table in {*parts, *recovered}}
        raise LogdirError(f"{self._path} is being recovered repeatedly; open it again when that has ended.")


def no_check(paths: Iterable[str | Path]) -> None:
    """Does nothing: the parts of a URL are copies in our own directory, which need no check."""


def list_parts(path: Path) -> dict[str, tuple[str, ...]]:
    """Returns the paths of the live parts, by table.

    The manifests name the live parts.

    Args:
        path: The logdir.

    Raises:
        LogdirError: A manifest is damaged, all manifests are missing, or a part is not a file of the logdir.
    """
    parts = _by_table(path, _live_entries(path, broken=None))
    own = OwnFiles(path)
    for paths in parts.values():
        own.check(paths)
    return parts


def _live_entries(path: Path, *, broken: BrokenParts | None) -> list[ManifestEntry]:
    """Returns the live parts of all runs. The caller must check each part before it opens the part.

    Args:
        path: The logdir.
        broken: Leaves out and records broken files; None lists all parts.

    Raises:
        LogdirError: A manifest is damaged, or all manifests are missing.
    """
    check_logdir(path)
    runs = run_ids(path)
    if not runs and part_files(path):
        raise LogdirError(
            f"{path} has parts, but no manifests, which name the live parts: the logdir was copied only in part. Copy "
            f"the directory {MANIFEST_DIRECTORY} from the original logdir."
        )
    entries_of_runs = (
        read_live_parts(path, run_id=run_id) if broken is None else broken.sound_parts(run_id) for run_id in runs
    )
    return [entry for entries in entries_of_runs for entry in entries]


def _by_table(logdir: Path, entries: Iterable[ManifestEntry]) -> dict[str, tuple[str, ...]]:
    paths_of_table: dict[str, list[str]] = {}
    for entry in entries:
        paths_of_table.setdefault(entry.table, []).append(_path_of(logdir, entry))
    return {table: tuple(paths) for table, paths in paths_of_table.items()}


def _path_of(logdir: Path, entry: ManifestEntry) -> str:
    return f"{logdir}/{entry.path}"


def parts_by_run(parts: Mapping[str, tuple[str, ...]]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Groups the parts of all runs by run, then by table."""
    paths_of_run: dict[str, dict[str, list[str]]] = {}
    for table, paths in parts.items():
        for path in paths:
            paths_of_run.setdefault(run_of_part(path), {}).setdefault(table, []).append(path)
    return {run: {table: tuple(paths) for table, paths in tables.items()} for run, tables in paths_of_run.items()}


@dataclass(frozen=True)
class _Shown:
    """The recovered parts of a run.

    Attributes:
        key: Identifies the content of the source files. If the key changes, the parts are made again.
        manifest: The run's manifest when the parts were made.
        parts: The paths of the parts, by table.
    """

    key: object
    manifest: bytes
    parts: Mapping[str, str]


class _RecoveredParts:
    """Makes parts from the spools of dead processes, and makes them again if a spool changed.

    Args:
        logdir: The logdir, which is only read.
        broken: Records runs whose manifest is damaged. These runs are left out. None makes such a run an error.
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
                shown_run = self._look(run_id)
            except LogdirError as error:
                if self._broken is None:
                    raise
                self._broken.tell_manifest(run_id, str(self._logdir / manifest_path(run_id)), error)
                continue
            if shown_run is not None:
                shown[run_id] = shown_run
        self._shown = shown

    def parts(self) -> dict[str, tuple[str, ...]] | None:
        """Returns the paths by table.

        Returns None if a manifest changed since, because its parts may hold the same rows.
        """
        paths_of_table: dict[str, tuple[str, ...]] = {}
        for run_id, shown in self._shown.items():
            if _read_manifest(self._logdir, run_id) != shown.manifest:
                return None
            for table, path in shown.parts.items():
                paths_of_table[table] = (*paths_of_table.get(table, ()), path)
        return paths_of_table

    def _look(self, run_id: str) -> _Shown | None:
        paths = spool_paths(self._logdir, run_id=run_id)
        OwnFiles(self._logdir).check([*paths.all(), self._logdir / manifest_path(run_id)])
        try:
            with held_if_dead(paths.journal, to_change=False) as is_dead:
                if not is_dead or not paths.spool.exists():
                    return None
                manifest = _read_manifest(self._logdir, run_id)
                key = (manifest, *(file_identity(path) for path in paths.all()))
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
        from tfdbg_arrow.spool.recovery import SealedRows, recovered

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
    import pyarrow.parquet as pq  # imported here, because few logdirs have spools of dead processes

    path = directory / part_path(table, run_id=run_id, number=_PART_NUMBER)
    path.parent.mkdir(parents=True)
    with pq.ParquetWriter(path, arrow_schema(table), **parquet_options(table)) as writer:
        for piece in pieces:
            writer.write_table(piece, row_group_size=ROW_GROUP_ROWS)
    return str(path)


def _failure(paths: SpoolPaths, run_id: str, reason: str) -> pa.Table:
    """Returns a capture_stat row which says that nothing could be recovered."""
    from tfdbg_arrow.spool.convert import metadata_table

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
