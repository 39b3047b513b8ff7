"""Ends a spool: removes its files once all events are in parts, and converts the spool of a dead process."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tfdbg_arrow.errors import LogdirError, TfdbgArrowError
from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.spool.journal import RunFiles, held_if_dead
from tfdbg_arrow.spool.recovery import SealedRows, recovered
from tfdbg_arrow.storage.layout import (
    OwnFiles,
    SpoolPaths,
    manifest_path,
    part_directory,
    spool_paths,
    spooled_run_ids,
)
from tfdbg_arrow.storage.location import parse_location
from tfdbg_arrow.storage.manifest import spool_progress
from tfdbg_arrow.storage.marker import check_logdir
from tfdbg_arrow.storage.retries import repeated
from tfdbg_arrow.writer.sink.parts import PartWriter

if TYPE_CHECKING:
    from tfdbg_arrow.writer.backend import Backend


@dataclass(frozen=True, kw_only=True)
class RecoveredRun:
    """The result for one run with spool files.

    Attributes:
        run_id: The id of the run.
        state: `recovered`: the spool of the run is now in parts. `recording`: the process of the run is or may be
            alive, or another process recovers the run. `failed`: the files of the run cannot be read, and are left
            unchanged.
        num_events: Number of recovered executions and tensors.
        reason: The reason for `failed`; None otherwise.
    """

    run_id: str
    state: str
    num_events: int = 0
    reason: str | None = None


def recover(logdir: str | Path, *, other_machines: bool = False) -> tuple[RecoveredRun, ...]:
    """Converts the spools that dead processes left in a logdir into parts, and removes the spools.

    You can call this while other processes record into the logdir, and repeat it at any time.

    Args:
        logdir: The directory that a recording wrote.
        other_machines: Whether to treat processes of other machines as dead even if they were active in the last ten
            minutes.

    Returns:
        The runs that had spool files, oldest first.

    Raises:
        LogdirError: The path is a URL or not a logdir, or cannot be listed.
        FormatVersionError: The logdir has a MAJOR version that this package does not read.
    """
    path = parse_location(logdir)
    if not isinstance(path, Path):
        raise LogdirError(
            f"{path} is a URL, expected a directory: a recording to a URL leaves its spool on the machine where it ran."
        )
    check_logdir(path)
    return tuple(_recover_run(path, run_id=run_id, other_machines=other_machines) for run_id in spooled_run_ids(path))


def _recover_run(logdir: Path, *, run_id: str, other_machines: bool) -> RecoveredRun:
    paths = spool_paths(logdir, run_id=run_id)
    try:
        OwnFiles(logdir).check([*paths.all(), logdir / manifest_path(run_id)])
        with held_if_dead(paths.journal, to_change=True, other_machines=other_machines) as is_dead:
            if not is_dead:
                return RecoveredRun(run_id=run_id, state="recording")
            num_events = _write(logdir, paths, run_id=run_id)
            for path in paths.all():
                path.unlink(missing_ok=True)
    except (OSError, TfdbgArrowError) as error:
        return RecoveredRun(run_id=run_id, state="failed", reason=str(error))
    return RecoveredRun(run_id=run_id, state="recovered", num_events=num_events)


def _write(logdir: Path, paths: SpoolPaths, *, run_id: str) -> int:
    """Converts the spool into parts with one line of the manifest; returns the number of events."""
    if not paths.spool.exists():  # the process died before it recorded anything, or after everything was in parts
        return 0
    parts = PartWriter(logdir, run_id)
    parts.resume()
    manifest = logdir / manifest_path(run_id)
    progress = spool_progress(manifest.read_text("utf-8", errors="replace"), run_id=run_id, path=manifest)
    sealed = SealedRows(logdir, {table.name: parts.parts(table.name) for table in TABLES})
    if progress.is_recovered or sealed.has_ended():
        return 0
    recovery = recovered(paths, run_id=run_id, progress=progress, sealed=sealed)
    missing = {table.name: None for table in TABLES if not parts.parts(table.name)}
    parts.replace([], {**missing, **recovery.tables}, is_recovery=True)
    return recovery.num_events


def remove_spool_files(events: Backend, files: RunFiles, *, is_all_written: bool) -> str | None:
    """Closes the files of a recording that has ended, and removes them if everything is in parts.

    If files remain for any reason, recover() converts or removes them later.

    Returns:
        The reason why the files could not be removed; None if they were removed or must stay.
    """

    def remove() -> None:
        events.remove_files()
        files.remove()

    reason = None
    if is_all_written:
        try:
            repeated(remove, attempts=2, may_pass=lambda error: isinstance(error, OSError))
        except OSError as error:
            reason = str(error)
        else:
            return None
    events.close()
    files.close()
    return reason


def remove_run(logdir: Path, *, run_id: str) -> None:
    """Removes all files of a run that is empty or that could not begin, as far as possible."""
    for path in (*spool_paths(logdir, run_id=run_id).all(), logdir / manifest_path(run_id)):
        with contextlib.suppress(OSError):
            path.unlink()
    for table in TABLES:
        shutil.rmtree(logdir / part_directory(table.name, run_id=run_id), ignore_errors=True)
