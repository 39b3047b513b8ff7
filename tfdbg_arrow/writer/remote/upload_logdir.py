"""Sends complete runs of a local logdir to a URL, for example the runs of an interrupted recording."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tfdbg_arrow.errors import BrokenPartError, LogdirError, TfdbgArrowError
from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.storage.disk import locked_directory
from tfdbg_arrow.storage.layout import MARKER_NAME, is_part_name, manifest_path, part_directory, spool_paths
from tfdbg_arrow.storage.location import RemoteDirectory, described, is_final
from tfdbg_arrow.storage.manifest import ManifestEntry, live_parts, manifest_changes, run_ids
from tfdbg_arrow.storage.marker import check_logdir
from tfdbg_arrow.storage.part_files import check_part
from tfdbg_arrow.storage.retries import repeated
from tfdbg_arrow.writer.recover import recover
from tfdbg_arrow.writer.remote.transfer import RemoteRun, Transfer, mark_remote

_T = TypeVar("_T")
_ATTEMPTS = 6
"""How often a request is tried before the store counts as unreachable."""
_BACKOFF_S = 0.3
"""Seconds before the second attempt. Each further pause is twice as long."""
_WHY_NOT = {"recording": "may still be recording", "failed": "cannot be recovered"}


@dataclass(frozen=True, kw_only=True)
class UploadedRun:
    """A run whose remote copy is complete: its id, and the numbers of parts and bytes that this upload sent."""

    run_id: str
    num_parts: int
    size_bytes: int


def upload_logdir(
    local: Path,
    remote: RemoteDirectory,
    *,
    remove: bool = False,
) -> tuple[UploadedRun, ...]:
    """Sends every run of a logdir; parts that are already at the URL are not sent again.

    Args:
        local: The local logdir.
        remote: The remote logdir; it is created if missing, and may hold other runs.
        remove: Whether to remove the local runs once they are at the URL, and also the logdir if nothing else is in it.

    Raises:
        LogdirError: The path is not a logdir, is in use, or the URL cannot be written.
        FormatVersionError: One of the logdirs has another MAJOR version.
        BrokenPartError: A part does not match its manifest, or is missing both locally and at the URL.
    """
    check_logdir(local)
    with locked_directory(local):
        for spooled in recover(local):
            if spooled.state != "recovered":
                raise LogdirError(
                    f"{local} holds the run {spooled.run_id}, which {_WHY_NOT.get(spooled.state, spooled.state)}"
                    f"{'' if spooled.reason is None else f': {spooled.reason}'}; see: tfdbg-arrow recover {local}"
                )
        runs = run_ids(local)
        if not runs:
            raise LogdirError(f"{local} has no run to send; give the directory that a recording wrote.")
        _repeated(remote, lambda: mark_remote(remote))
        sent = tuple(_upload_run(local, remote, run_id=run_id) for run_id in runs)
        if remove:
            for run_id in runs:
                _remove_run(local, run_id=run_id)
            _remove_logdir(local)
        return sent


def remove_run_if_empty(remote: RemoteDirectory, *, run_id: str) -> bool:
    """Removes a run from a URL if only the table `run` has rows; returns whether the run was removed.

    Raises:
        LogdirError: The URL cannot be read or written.
    """
    with described(f"the run {run_id} cannot be removed from {remote}"):
        parts = _remote_parts(remote, run_id=run_id)
        if not parts or any(entry.rows for entry in parts if entry.table != "run"):
            return False
        remote.remove(manifest_path(run_id))
        for entry in parts:
            remote.remove(entry.path)
    return True


def _upload_run(local: Path, remote: RemoteDirectory, *, run_id: str) -> UploadedRun:
    there = _repeated(remote, lambda: _remote_parts(remote, run_id=run_id))
    manifest = local / manifest_path(run_id)
    text = manifest.read_text(encoding="utf-8", errors="replace")
    changes = list(manifest_changes(text, run_id=run_id, path=manifest))
    entry_of_path = {entry.path: entry for change in changes for entry in change.added}
    strange = [entry.path for entry in there if entry_of_path.get(entry.path) != entry]
    if strange:
        raise LogdirError(
            f"{remote} holds another state of the run {run_id}, with {strange[0]}, which is not in {manifest}; "
            "send the run from the place where it was recorded, or to another URL."
        )
    run = RemoteRun(there)
    for change in changes:
        run.change(change.removed, change.added)
    for entry in run.unsent():
        _check_part(local, entry, remote=remote)
    transfer = Transfer(run, run_id=run_id, local=local, remote=remote)
    while _repeated(remote, transfer.step):
        pass
    live = live_parts(text, run_id=run_id, path=manifest)
    _repeated(remote, lambda: _remove_strays(remote, live, run_id=run_id))
    sent = [entry for entry in live if entry not in there]
    return UploadedRun(run_id=run_id, num_parts=len(sent), size_bytes=sum(entry.bytes for entry in sent))


def _remote_parts(remote: RemoteDirectory, *, run_id: str) -> tuple[ManifestEntry, ...]:
    path = manifest_path(run_id)
    try:
        content = remote.read_bytes(path)
    except FileNotFoundError:
        return ()
    return live_parts(content.decode("utf-8", errors="replace"), run_id=run_id, path=f"{remote}/{path}")


def _check_part(local: Path, entry: ManifestEntry, *, remote: RemoteDirectory) -> None:
    """Checks that a part exists and matches the manifest.

    Raises:
        BrokenPartError: The part is missing, cannot be read, or differs from the manifest.
    """
    path = local / entry.path
    try:
        check_part(path, entry)
    except FileNotFoundError:
        raise BrokenPartError(f"{entry.path} is neither in {local} nor at {remote}; restore it in {local}.") from None
    except OSError as error:
        raise BrokenPartError(f"{path} cannot be read ({error.strerror}); restore it.") from error


def _remove_strays(remote: RemoteDirectory, live: tuple[ManifestEntry, ...], *, run_id: str) -> None:
    """Removes parts that an interrupted upload left and that the manifest does not name."""
    live_paths = {entry.path for entry in live}
    for table in {entry.table for entry in live} | {table.name for table in TABLES}:
        directory = part_directory(table, run_id=run_id)
        for name in remote.names(directory):
            path = f"{directory}/{name}"
            if is_part_name(name.removesuffix(".tmp")) and path not in live_paths:
                remote.remove(path)


def _repeated(remote: RemoteDirectory, action: Callable[[], _T]) -> _T:
    """Calls an action and returns its result; repeats it a few times if the store fails."""
    with described(f"{remote} cannot be written"):
        return repeated(
            action,
            attempts=_ATTEMPTS,
            may_pass=lambda error: not isinstance(error, TfdbgArrowError) and not is_final(error),
            first_pause_s=_BACKOFF_S,
        )


def _remove_run(local: Path, *, run_id: str) -> None:
    # The manifest is removed last, so that the files that an interruption leaves can be sent again.
    for table in TABLES:
        shutil.rmtree(local / part_directory(table.name, run_id=run_id), ignore_errors=True)
    for path in (*spool_paths(local, run_id=run_id).all(), local / manifest_path(run_id)):
        path.unlink(missing_ok=True)


def _remove_logdir(local: Path) -> None:
    """Removes the logdir if only its own empty directories and its marker are left."""
    with contextlib.suppress(OSError):  # the directory is not empty
        for directory in [path for path in local.iterdir() if path.is_dir()]:
            directory.rmdir()
        if [path.name for path in local.iterdir()] == [MARKER_NAME]:
            (local / MARKER_NAME).unlink()
            local.rmdir()
