"""Which parts of a logdir hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.schema.logdir_check import check_logdir
from tfdbg_arrow.schema.logdir_layout import (
    MANIFEST_DIRECTORY,
    check_run_id,
    read_live_parts,
    resolve_part,
    run_ids,
)


def list_parts(path: Path) -> dict[str, tuple[str, ...]]:
    """Returns the parts that hold now, as paths to open, by table.

    The manifests say which. A logdir without any manifest is taken to hold every part that lies in it.

    Raises:
        LogdirError: A manifest is damaged, or a part leads out of the logdir.
    """
    check_logdir(path)
    parts: dict[str, list[str]] = {}
    if (path / MANIFEST_DIRECTORY).is_dir():
        for run_id in run_ids(path):
            for entry in read_live_parts(path, run_id=run_id):
                resolve_part(path, entry)
                parts.setdefault(entry.table, []).append(str(path / entry.path))
    if not parts:
        parts = _found_parts(path)
    return {table: tuple(paths) for table, paths in parts.items()}


def parts_by_run(parts: Mapping[str, tuple[str, ...]]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Returns the parts of each run, by table, out of those of all."""
    found: dict[str, dict[str, list[str]]] = {}
    for table, paths in parts.items():
        for path in paths:
            run_id = path.rsplit("/", 2)[-2].removeprefix("run_id=")
            found.setdefault(run_id, {}).setdefault(table, []).append(path)
    return {run: {table: tuple(paths) for table, paths in tables.items()} for run, tables in found.items()}


def _found_parts(path: Path) -> dict[str, list[str]]:
    root = path.resolve()
    found: dict[str, list[str]] = {}
    for table in TABLES:
        for part in sorted((path / table.name).glob("run_id=*/part-*.parquet")):
            check_run_id(part.parent.name.removeprefix("run_id="), where=str(part))
            if not part.resolve().is_relative_to(root):
                raise LogdirError(f"{part} leads by a symbolic link out of the logdir, expected a file inside {root}.")
            found.setdefault(table.name, []).append(str(part))
    return found
