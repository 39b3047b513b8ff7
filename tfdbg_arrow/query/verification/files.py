"""LogdirFiles: the files of a logdir in the places for parts and manifests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tfdbg_arrow.query.verification.findings import Deviations
from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.schema.logdir_layout import MANIFEST_DIRECTORY, SPOOL_DIRECTORY, is_part_name, is_run_id

_TABLES = frozenset(table.name for table in TABLES)
_RUN = "run_id="
_MANIFEST = ".jsonl"


@dataclass
class LogdirFiles:
    """The files of a logdir, as paths relative to it. Directories that are not part of the format are ignored."""

    _parts: dict[str, list[str]] = field(default_factory=dict)
    _manifests: set[str] = field(default_factory=set)
    _strays: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, logdir: Path) -> LogdirFiles:
        """Lists the files of a logdir.

        Raises:
            OSError: A directory cannot be read.
        """
        files = cls()
        for table in _entries(logdir):
            if table.name == MANIFEST_DIRECTORY:
                for entry in _entries(logdir / MANIFEST_DIRECTORY):
                    files._add_manifest(entry.name)
            elif table.name != SPOOL_DIRECTORY and table.is_dir(follow_symlinks=False):
                runs = _entries(logdir / table.name)
                if table.name in _TABLES or any(run.name.startswith(_RUN) for run in runs):
                    for run in runs:
                        files._add_run(logdir, table.name, run)
        return files

    def of_run(self, run_id: str) -> Sequence[str]:
        """Returns the parts in the directories of a run."""
        return self._parts.get(run_id, ())

    def run_ids(self) -> tuple[str, ...]:
        """Returns the runs that have a manifest or parts, oldest first."""
        return tuple(sorted({*self._manifests, *self._parts}))

    def tell_strays(self, deviations: Deviations) -> None:
        """Adds a deviation for each file that is neither a part nor a manifest."""
        for path in self._strays:
            what = "a manifest" if path.startswith(f"{MANIFEST_DIRECTORY}/") else "a part of a run"
            deviations.add("extra", path, f"is not {what}, and no other file may be there")

    def _add_manifest(self, name: str) -> None:
        run_id = name.removesuffix(_MANIFEST)
        if name.endswith(_MANIFEST) and is_run_id(run_id):
            self._manifests.add(run_id)
        else:
            self._strays.append(f"{MANIFEST_DIRECTORY}/{name}")

    def _add_run(self, logdir: Path, table: str, run: os.DirEntry[str]) -> None:
        run_id = run.name.removeprefix(_RUN)
        if not (run.name.startswith(_RUN) and is_run_id(run_id) and run.is_dir(follow_symlinks=False)):
            self._strays.append(f"{table}/{run.name}")
            return
        for part in _entries(logdir / table / run.name):
            path = f"{table}/{run.name}/{part.name}"
            if is_part_name(part.name) and not part.is_dir(follow_symlinks=False):
                self._parts.setdefault(run_id, []).append(path)
            else:
                self._strays.append(path)


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    with os.scandir(directory) as entries:
        return sorted(entries, key=lambda entry: entry.name)
