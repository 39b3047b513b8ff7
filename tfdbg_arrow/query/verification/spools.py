"""Checks the files in a logdir's spool, and finds files that do not belong there."""

from __future__ import annotations

from pathlib import Path

from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.query.verification.findings import Deviations
from tfdbg_arrow.schema.logdir_layout import (
    MARKER_NAME,
    SPOOL_DIRECTORY,
    TEMPORARY_SUFFIX,
    SpoolPaths,
    is_run_id,
    spool_paths,
    spooled_run_ids,
)
from tfdbg_arrow.spool.journal import MAGIC
from tfdbg_arrow.spool.journal_check import first_broken_entry
from tfdbg_arrow.spool.run_files import held_if_dead
from tfdbg_arrow.spool.spool_file import read_header

_JOURNAL = ".journal"
_OTHERS = (".spool", ".values", ".rows")


def check_spool(paths: SpoolPaths, deviations: Deviations, *, run_id: str, is_needed: bool) -> None:
    """Checks the spool files that a killed process left.

    Args:
        paths: The files.
        deviations: Collects the deviations.
        run_id: The run of the process.
        is_needed: Whether some rows may not be in any part yet.

    Raises:
        OSError: A file cannot be read.
    """

    def tell(kind: str, path: Path, what: str) -> None:
        deviations.add(kind, f"{SPOOL_DIRECTORY}/{path.name}", what, run_id=run_id)

    there = [path for path in paths.all() if path.exists()]
    if not is_needed:
        for path in there:
            tell("leftover", path, "is not needed: all rows are in parts, and `tfdbg-arrow recover` removes it")
        return
    starts = {paths.journal: 0}
    if paths.spool in there:
        try:
            starts[paths.rows] = read_header(paths.spool).rows_tail
        except LogdirError as error:
            tell("changed", paths.spool, f"is damaged: {error}")
        tell("unchecked", paths.spool, "waits for recovery: its events have no checksums")
        if paths.values in there and paths.values.stat().st_size:
            tell("unchecked", paths.values, "waits for recovery: its elements have no checksums")
    for path, start in starts.items():
        if path not in there:
            tell("missing", path, "is missing, and the run waits for recovery")
            continue
        if start > path.stat().st_size:
            tell("changed", path, f"ends before byte {start:,}, where the needed rows begin")
            continue
        # The rows before `start` are in parts, and their disk blocks may have been freed.
        broken = first_broken_entry(path, start=start if _has_hole(path) else 0)
        if broken is not None and broken.is_cut:
            tell("leftover", path, f"ends in an incomplete entry at byte {broken.offset:,}")
        elif broken is not None:
            tell("changed", path, f"has an entry at byte {broken.offset:,} that does not match its checksum")


def check_strays(logdir: Path, deviations: Deviations) -> None:
    """Adds deviations for temporary files, spool files that cannot be recovered, and other files in the spool.

    Raises:
        OSError: The directory cannot be read.
    """
    for path in sorted(logdir.glob(f".{MARKER_NAME}.*")):
        deviations.add("leftover", path.name, "was being written when its process was killed: it can be removed")
    directory = logdir / SPOOL_DIRECTORY
    if not directory.is_dir():
        return
    waiting = spooled_run_ids(logdir)
    for path in sorted(directory.iterdir()):
        name = f"{SPOOL_DIRECTORY}/{path.name}"
        owner = next((run_id for run_id in waiting if path.name.startswith(f"{run_id}.")), None)
        run_id, suffix = path.stem, path.suffix
        if suffix == TEMPORARY_SUFFIX:
            if owner is None or _is_dead(logdir, owner):
                what = "was being written when its process was killed: it can be removed"
                deviations.add("leftover", name, what, run_id=owner)
        elif owner is None and suffix in _OTHERS and is_run_id(run_id):
            what = f"cannot be recovered, because {run_id}{_JOURNAL} is missing"
            deviations.add("missing", name, what, run_id=run_id)
        elif owner is None:
            deviations.add("extra", name, "is not a file of a spool")


def _has_hole(journal: Path) -> bool:
    """Returns True if the first entry of a journal is gone because its disk blocks were freed."""
    with open(journal, "rb") as file:
        return file.read(len(MAGIC)) == bytes(len(MAGIC))


def _is_dead(logdir: Path, run_id: str) -> bool:
    with held_if_dead(spool_paths(logdir, run_id=run_id).journal, to_change=False, other_machines=True) as is_dead:
        return is_dead
