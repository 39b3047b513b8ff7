"""Rewrites a logdir of format 1 in the present format."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.schema import TABLES, arrow_schema
from tfdbg_arrow.schema.version import is_writable_version
from tfdbg_arrow.spool.journal import held_if_dead
from tfdbg_arrow.storage.disk import locked_directory, written_whole
from tfdbg_arrow.storage.layout import (
    MARKER_NAME,
    OwnFiles,
    is_part_name,
    manifest_path,
    old_part_directory,
    part_files,
    spool_paths,
    spooled_run_ids,
)
from tfdbg_arrow.storage.location import parse_location
from tfdbg_arrow.storage.manifest import read_live_parts, run_ids
from tfdbg_arrow.storage.marker import check_logdir, marker_text
from tfdbg_arrow.writer.sink.digest import DIGEST_TABLE
from tfdbg_arrow.writer.sink.parts import PartWriter


@dataclass(frozen=True, kw_only=True)
class UpgradedRun:
    """The result for one run.

    Attributes:
        run_id: The id of the run.
        num_rows: Number of rows in its parts, over all tables except the digests.
    """

    run_id: str
    num_rows: int


def upgrade(logdir: str | Path, *, on_run: Callable[[UpgradedRun], None] | None = None) -> tuple[UpgradedRun, ...]:
    """Rewrites the parts of a logdir of format 1 in the present format; rows keep their values.

    Readers can use the logdir meanwhile. If the process is interrupted, the logdir stays readable, and a second call
    continues. It needs free space for a copy of the largest table of one run.

    Args:
        logdir: The directory that a recording wrote.
        on_run: Called after each run that was rewritten.

    Returns:
        The runs that were rewritten, in order of their ids; none if the logdir already has the present format.

    Raises:
        LogdirError: The path is a URL or not a logdir, a run is being recorded, or a manifest is missing or damaged.
        FormatVersionError: The logdir has a MAJOR version that this package does not read.
        BrokenPartError: A part differs from its manifest. The runs before were rewritten; this one stays readable.
        OSError: A file cannot be written. The logdir stays readable.
    """
    path = parse_location(logdir)
    if not isinstance(path, Path):
        raise LogdirError(
            f"{path} is a URL, expected a directory: download the logdir, upgrade it and upload it again."
        )
    marker = path / MARKER_NAME
    if is_writable_version(check_logdir(path), path=marker):
        return ()
    upgraded = []
    with locked_directory(path), contextlib.ExitStack() as locks:
        for run_id in spooled_run_ids(path):
            journal = spool_paths(path, run_id=run_id).journal
            OwnFiles(path).check([journal])
            if not locks.enter_context(held_if_dead(journal, to_change=True)):
                raise LogdirError(
                    f"the run {run_id} of {path} is being recorded, or was recorded on another machine in the last ten "
                    "minutes; end the program, then upgrade the logdir."
                )
        runs = run_ids(path)
        _check_complete(path, runs)
        for run_id in runs:
            upgraded.append(_upgrade_run(path, run_id=run_id))
            if on_run is not None:
                on_run(upgraded[-1])
        with written_whole(marker) as temporary:
            temporary.write_text(marker_text(), encoding="utf-8")
    return tuple(upgraded)


def _check_complete(logdir: Path, runs: tuple[str, ...]) -> None:
    """Raises an error if a run has parts but no manifest, or if a file is a link that leads out of the logdir."""
    own = OwnFiles(logdir)
    own.check(logdir / manifest_path(run_id) for run_id in runs)
    for run_id in runs:
        own.check(logdir / entry.path for entry in read_live_parts(logdir, run_id=run_id))
    directories = {part.parent for table in TABLES for part in part_files(logdir, table.name)}
    listed = {logdir / old_part_directory(table.name, run_id=run_id) for table in TABLES for run_id in runs}
    unlisted = sorted(path for path in directories - listed if path.name.startswith("run_id="))
    if unlisted:
        raise LogdirError(
            f"{unlisted[0]} has parts, but its run has no manifest in {logdir}; restore the manifest, or remove that "
            "directory."
        )


def _upgrade_run(logdir: Path, *, run_id: str) -> UpgradedRun:
    parts = PartWriter(logdir, run_id)
    parts.resume()
    for table in TABLES:
        # Part 0 is empty, as in a new run. A part of op_digest has the number of the part that it describes.
        parts.write(table.name, arrow_schema(table.name).empty_table())
    old = {table.name: old_part_directory(table.name, run_id=run_id) for table in TABLES}
    for table in TABLES:
        if table.name != DIGEST_TABLE:
            paths = [
                entry.path for entry in parts.parts(table.name) if entry.path.startswith(old[table.name]) and entry.rows
            ]
            if paths:
                parts.merge(table.name, paths)
    for table in TABLES:
        # The old parts that remain have no rows, or are digests of parts that were rewritten.
        left = [entry.path for entry in parts.parts(table.name) if entry.path.startswith(old[table.name])]
        if left:
            parts.drop(left)
        parts.compact(table.name)
    parts.digest()
    for directory in old.values():
        _remove_directory(logdir / directory)
    num_rows = sum(entry.rows for table in TABLES if table.name != DIGEST_TABLE for entry in parts.parts(table.name))
    return UpgradedRun(run_id=run_id, num_rows=num_rows)


def _remove_directory(directory: Path) -> None:
    """Removes the parts in a directory, which no manifest names any more, and the directory if it is then empty."""
    if not directory.is_dir():
        return
    for path in directory.iterdir():
        if is_part_name(path.name):
            path.unlink()
    with contextlib.suppress(OSError):  # it holds other files
        directory.rmdir()
