"""Lists the live parts of a logdir."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from tfdbg_arrow.query.logdir.broken_parts import BrokenParts
from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.schema.logdir_check import check_logdir
from tfdbg_arrow.schema.logdir_layout import MANIFEST_DIRECTORY, check_run_id
from tfdbg_arrow.schema.manifest import read_live_parts, run_ids
from tfdbg_arrow.schema.own_files import OwnFiles


def no_check(paths: Iterable[str | Path]) -> None:
    """Does nothing: the parts of a URL are copies in our own directory, which need no check."""


def list_parts(path: Path, *, is_checked: bool = True, broken: BrokenParts | None = None) -> dict[str, tuple[str, ...]]:
    """Returns the paths of the live parts, by table.

    The manifests name them. In a logdir without any manifest, every part that exists is live.

    Args:
        path: The logdir.
        is_checked: Whether to check every part with OwnFiles. If not, the caller must check a part before it opens it.
        broken: Leaves out and records broken files; None lists all parts.

    Raises:
        LogdirError: A manifest is damaged, or a part is not a file of the logdir.
    """
    check_logdir(path)
    parts: dict[str, list[str]] = {}
    if (path / MANIFEST_DIRECTORY).is_dir():
        for run_id in run_ids(path):
            entries = read_live_parts(path, run_id=run_id) if broken is None else broken.sound_parts(run_id)
            for entry in entries:
                parts.setdefault(entry.table, []).append(f"{path}/{entry.path}")
    if not parts and not (broken is not None and broken.found):
        parts = _found_parts(path)
    if is_checked:
        own = OwnFiles(path)
        for paths in parts.values():
            own.check(paths)
    return {table: tuple(paths) for table, paths in parts.items()}


def parts_by_run(parts: Mapping[str, tuple[str, ...]]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Groups the parts of all runs by run, then by table."""
    found: dict[str, dict[str, list[str]]] = {}
    for table, paths in parts.items():
        for path in paths:
            run_id = path.rsplit("/", 2)[-2].removeprefix("run_id=")
            found.setdefault(run_id, {}).setdefault(table, []).append(path)
    return {run: {table: tuple(paths) for table, paths in tables.items()} for run, tables in found.items()}


def _found_parts(path: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for table in TABLES:
        for part in sorted((path / table.name).glob("run_id=*/part-*.parquet")):
            check_run_id(part.parent.name.removeprefix("run_id="), where=str(part))
            found.setdefault(table.name, []).append(str(part))
    return found
