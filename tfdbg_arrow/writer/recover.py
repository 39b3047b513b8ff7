"""Converts the spool that dead processes left in a logdir into parts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tfdbg_arrow.errors import LogdirError, TfdbgArrowError
from tfdbg_arrow.schema import TABLES, arrow_schema
from tfdbg_arrow.schema.location import parse_location
from tfdbg_arrow.schema.logdir_check import check_logdir
from tfdbg_arrow.schema.logdir_layout import SpoolPaths, manifest_path, spool_paths, spooled_run_ids
from tfdbg_arrow.schema.manifest import spool_progress
from tfdbg_arrow.schema.own_files import OwnFiles
from tfdbg_arrow.spool.recovery import SealedRows, recovered
from tfdbg_arrow.spool.run_files import held_if_dead
from tfdbg_arrow.writer.sink.parts import PartWriter


@dataclass(frozen=True, kw_only=True)
class RecoveredRun:
    """The result for one run with spool files.

    Attributes:
        run_id: The id of the run.
        state: `recovered`: its spool is now in parts. `recording`: its process is or may be alive, or another process
            recovers it. `failed`: its files cannot be read, and are left unchanged.
        num_events: Number of recovered executions and tensors.
        reason: The reason for `failed`; None otherwise.
    """

    run_id: str
    state: str
    num_events: int = 0
    reason: str | None = None


def recover(logdir: str | Path, *, other_machines: bool = False) -> tuple[RecoveredRun, ...]:
    """Converts the spool that dead processes left in a logdir into parts, and removes it.

    You can call this while other processes record into the logdir, and repeat it at any time.

    Args:
        logdir: The directory that a recording wrote.
        other_machines: Whether to treat processes of other machines as dead even if they were active in the last ten
            minutes.

    Returns:
        The runs that had files in the spool, oldest first.

    Raises:
        LogdirError: The path is a URL or not a logdir, or cannot be listed.
        FormatVersionError: The logdir has a MAJOR version that this package does not write.
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
    found = recovered(paths, run_id=run_id, progress=progress, sealed=sealed)
    missing = [table.name for table in TABLES if not parts.parts(table.name) and table.name not in found.tables]
    empty = {name: [arrow_schema(name).empty_table()] for name in missing}
    parts.replace([], {**empty, **found.tables}, is_recovery=True)
    return found.num_events
