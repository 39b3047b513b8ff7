"""Writes the parts of a run, adds them to the manifest, and merges them into few large parts.

Source: spec/README.md, "Layout of a logdir" and "Manifest".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.storage.layout import (
    SPOOL_DIRECTORY,
    TEMPORARY_SUFFIX,
    is_part_name,
    manifest_path,
    part_directory,
    part_number,
    part_path,
    temporary_path,
)
from tfdbg_arrow.storage.manifest import (
    ManifestEntry,
    ManifestFile,
    add_line,
    live_parts,
    manifest_changes,
    replace_line,
)
from tfdbg_arrow.storage.part_files import RowGroups, read_rows, seal_parts
from tfdbg_arrow.writer.arrow_allocator import release_unused
from tfdbg_arrow.writer.memory import DEFAULT_SHARES

TARGET_ROWS = 5_000_000
"""Number of rows at which a merged part is closed. Bounds the parts of tables whose rows take few bytes."""

TARGET_BYTES = 128 * 2**20
"""Number of bytes at which a merged part is closed. Larger parts are fewer files, but take longer to write again."""

MERGE_PARTS = 64
"""If a table has more small parts than this, they are merged while the run continues."""

KEPT_PARTS = 16
"""If a table has more small neighbouring parts than this, they are merged at the end. Queries of so few parts take
almost the same time as queries of one part. So a run of a few seconds does not write its rows twice."""

_LARGE = -1
"""The level of a part that is not merged again."""
_LARGE_AS_WRITTEN = 32
"""A new part is not merged if it has at least this many bytes: the target bytes of a merged part, divided by this
number."""


@dataclass(frozen=True, kw_only=True)
class _Part:
    entry: ManifestEntry
    level: int
    """How often its rows were merged; _LARGE means that the part is not merged again."""


class PartWriter:
    """Writes the parts of one run. Not thread-safe; the caller must serialise calls.

    Args:
        logdir: The logdir.
        run_id: The run; it must not have a manifest yet, unless `resume` continues it.
        target_rows: A merged part is closed when it has this many rows.
        target_bytes: A merged part is closed when it has this many bytes.
        merge_parts: `merge_small` merges the small parts of a table if there are more than this.
        kept_parts: `compact` merges neighbouring small parts of a table if there are more than this.
        row_group_bytes: A row group of a merged part is closed early when it has this many Arrow bytes.
        on_change: Called with (removed paths, added parts) for each line of the manifest once the line is on disk.
    """

    def __init__(
        self,
        logdir: Path,
        run_id: str,
        *,
        target_rows: int = TARGET_ROWS,
        target_bytes: int = TARGET_BYTES,
        merge_parts: int = MERGE_PARTS,
        kept_parts: int = KEPT_PARTS,
        row_group_bytes: int = DEFAULT_SHARES.row_group_bytes,
        on_change: Callable[[Sequence[str], Sequence[ManifestEntry]], None] | None = None,
    ) -> None:
        self._logdir, self._run_id = logdir, run_id
        self._target_rows, self._target_bytes = target_rows, target_bytes
        self._merge_parts, self._kept_parts = merge_parts, kept_parts
        self._row_group_bytes = row_group_bytes
        self._on_change = on_change
        self._manifest = ManifestFile(logdir / manifest_path(run_id))
        self._parts: dict[str, list[_Part]] = {}
        self._next_number: dict[str, int] = {}
        self._leftovers: set[str] = set()
        """Files to remove, because the manifest does not name them, or will soon stop naming them."""

    def start(self) -> None:
        """Creates the manifest.

        Raises:
            OSError: The manifest cannot be created, or already exists.
        """
        self._manifest.create()

    def resume(self) -> None:
        """Continues a run whose process died, after the last complete line of its manifest.

        A missing manifest is created. Temporary files are removed. Parts that are not in the manifest are removed,
        too: the process died before it added them.

        Raises:
            OSError: A file cannot be read or removed.
            LogdirError: The manifest is damaged, or is missing although the run has parts.
        """
        if not self._manifest.path.exists():
            if any((self._logdir / part_directory(t.name, run_id=self._run_id)).exists() for t in TABLES):
                raise LogdirError(
                    f"{self._manifest.path} is missing, but the run {self._run_id} has parts: restore it from the "
                    "place where the recording was made"
                )
            self.start()
        text = self._manifest.resume()
        named = {
            entry.path
            for change in manifest_changes(text, run_id=self._run_id, path=self._manifest.path)
            for entry in change.added
        }
        for entry in live_parts(text, run_id=self._run_id, path=self._manifest.path):
            self._parts.setdefault(entry.table, []).append(_Part(entry=entry, level=_LARGE))
        kept = {part.entry.path for parts in self._parts.values() for part in parts}
        for table in TABLES:
            directory = part_directory(table.name, run_id=self._run_id)
            there = {f"{directory}/{name}" for name in _names_in(self._logdir / directory) if is_part_name(name)}
            used = there | {path for path in named if path.startswith(f"{directory}/")}
            self._next_number[table.name] = max(map(part_number, used), default=-1) + 1
            for leftover in there - kept:
                (self._logdir / leftover).unlink()
        for temporary in (self._logdir / SPOOL_DIRECTORY).glob(f"{self._run_id}.*{TEMPORARY_SUFFIX}"):
            temporary.unlink()

    def parts(self, table: str) -> tuple[ManifestEntry, ...]:
        """Returns the live parts of a table, in the order of their rows."""
        return tuple(part.entry for part in self._parts.get(table, ()))

    def write(self, table: str, data: pa.Table, *, spool_upto: int | None = None) -> ManifestEntry:
        """Seals one part with these rows, even if there are no rows. The arguments are those of `write_tables`."""
        (entry,) = self.write_tables({table: data}, spool_upto={table: spool_upto})
        return entry

    def write_tables(
        self, tables: Mapping[str, pa.Table], *, spool_upto: Mapping[str, int | None]
    ) -> list[ManifestEntry]:
        """Seals one part per table, even for a table without rows. The manifest gets one line per part, in order.

        Args:
            tables: The rows by table name.
            spool_upto: For each table, the position in the spool before which all data of the table is then in parts;
                None if the rows do not come from the spool.

        Raises:
            OSError: A part or the manifest lines cannot be written; then none of the parts exists.
        """
        entries = self._seal({table: [data] for table, data in tables.items()})
        self._publish(
            [([], [entry]) for entry in entries],
            [add_line(entry, spool_upto=spool_upto[entry.table]) for entry in entries],
        )
        for entry in entries:
            # Parts that hold tensor elements are not merged, because merging would write each element to disk twice.
            level = _LARGE if entry.bytes >= self._target_bytes // _LARGE_AS_WRITTEN else 0
            self._parts.setdefault(entry.table, []).append(_Part(entry=entry, level=level))
        return entries

    def replace(
        self,
        removed: Sequence[str],
        tables: Mapping[str, Iterable[pa.Table] | None],
        *,
        spool_upto: int | None = None,
        is_recovery: bool = False,
    ) -> tuple[ManifestEntry, ...]:
        """Seals one part per table; one manifest line replaces the removed parts by the new parts.

        Args:
            removed: Paths of live parts.
            tables: The new rows by table name. None means no rows. The rows are read only once.
            spool_upto: The parts then hold the events before this event index; None means that nothing changes.
            is_recovery: Whether this completes the recovery of a killed process's spool.

        Raises:
            OSError: The parts cannot be written; then the removed parts remain live.
        """
        made = [_Part(entry=entry, level=0) for entry in self._seal(tables)]
        self._swap(list(removed), made, spool_upto=spool_upto, is_recovery=is_recovery)
        return tuple(part.entry for part in made)

    def settled(self) -> frozenset[str]:
        """Returns the paths of the parts that are never merged again."""
        return frozenset(part.entry.path for parts in self._parts.values() for part in parts if part.level == _LARGE)

    def release(self, paths: Collection[str]) -> None:
        """Removes the files of parts that are stored elsewhere; the parts remain live and are never merged again."""
        for table, parts in self._parts.items():
            self._parts[table] = [replace(part, level=_LARGE) if part.entry.path in paths else part for part in parts]
        self._remove(paths)

    def sweep(self) -> None:
        """Removes files whose removal failed earlier."""
        if self._manifest.has_leftover:
            return
        paths, self._leftovers = self._leftovers, set()
        self._remove(paths)

    def drop(self, removed: Sequence[str], restored: Sequence[ManifestEntry] = ()) -> None:
        """Drops parts and their rows.

        Args:
            removed: Paths of live parts.
            restored: Parts that the removed parts had replaced and that are stored elsewhere; they become live again.

        Raises:
            OSError: The manifest cannot be written; then the parts remain live.
        """
        self._swap(removed, [_Part(entry=entry, level=_LARGE) for entry in restored])

    def merge_small(self, table: str) -> bool:
        """Merges small parts of a table if there are too many; returns whether it merged any.

        A part is merged only with parts that were merged the same number of times. So no row is rewritten often.

        Raises:
            OSError: The merged part cannot be written; then the small parts remain live.
            BrokenPartError: A part was changed after it was written; then the small parts remain live.
        """
        merged = False
        level = 0
        while True:
            parts = [part for part in self._parts.get(table, ()) if part.level == level]
            if len(parts) <= self._merge_parts:
                return merged
            self._merge(table, parts, level + 1)
            merged, level = True, level + 1

    def merge(self, table: str, paths: Sequence[str]) -> tuple[ManifestEntry, ...]:
        """Merges parts of a table and returns the parts that replace them, rarely more than one part.

        Raises:
            OSError: The merged part cannot be written; then the given parts remain live.
            BrokenPartError: A part was changed after it was written; then the given parts remain live.
        """
        wanted = set(paths)
        parts = [part for part in self._parts[table] if part.entry.path in wanted]
        return tuple(part.entry for part in self._merge(table, parts, 0))

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that have parts."""
        return tuple(self._parts)

    def drop_empty(self) -> None:
        """Drops the parts without rows of all tables that also have parts with rows.

        Raises:
            OSError: The manifest cannot be written; then the parts remain live.
        """
        empty = [
            part.entry.path
            for parts in self._parts.values()
            if any(part.entry.rows for part in parts)
            for part in parts
            if not part.entry.rows
        ]
        if empty:
            self._swap(empty, [])

    def num_rows_to_compact(self, table: str) -> int:
        """Returns the number of rows that compact() would write again."""
        return sum(part.entry.rows for parts in self._compactable(table) for part in parts)

    def compact(self, table: str, *, on_rows: Callable[[int], None] = lambda num_rows: None) -> None:
        """Merges the small parts of a table into large parts, unless they are few.

        Args:
            table: The table.
            on_rows: Called after rows were read for merging, with the number of these rows.

        Raises:
            OSError: Some parts cannot be merged; these remain live.
            BrokenPartError: A part was changed after it was written; it and its neighbours remain live.
        """
        for parts in self._compactable(table):
            self._merge(table, parts, _LARGE, on_rows=on_rows)

    def _compactable(self, table: str) -> list[list[_Part]]:
        """Returns groups of neighbouring small parts to merge.

        Parts without rows are left out, unless no part has rows.
        """
        parts = [part for part in self._parts[table] if part.entry.rows] or self._parts[table]
        runs: list[list[_Part]] = []
        run: list[_Part] = []
        for part in [*parts, None]:
            if part is not None and part.level != _LARGE and not self._is_large(part.entry):
                run.append(part)
                continue
            if len(run) > self._kept_parts:
                runs.append(run)
            run = []
        return runs

    def _is_large(self, *entries: ManifestEntry) -> bool:
        rows, size = sum(entry.rows for entry in entries), sum(entry.bytes for entry in entries)
        return rows >= self._target_rows // 2 or size >= self._target_bytes // 16  # size matters for parts of elements

    def _merge(
        self,
        table: str,
        parts: Sequence[_Part],
        level: int,
        *,
        on_rows: Callable[[int], None] = lambda num_rows: None,
    ) -> list[_Part]:
        def counted(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
            for data in tables:
                yield data
                on_rows(data.num_rows)

        read = counted(read_rows(self._logdir, [part.entry for part in parts]))
        rows = RowGroups(read, max_bytes=self._row_group_bytes)
        made: list[_Part] = []
        try:
            while rows.has_more or not made:
                (entry,) = self._seal({table: rows.part(self._target_rows)}, max_bytes=self._target_bytes)
                made.append(_Part(entry=entry, level=_LARGE if self._is_large(entry) else level))
            expected = sum(part.entry.rows for part in parts)
            num_merged = sum(part.entry.rows for part in made)
            if num_merged != expected:
                raise OSError(
                    f"merging parts of {table} gave {num_merged} rows, expected {expected}; the parts are kept"
                )
        except BaseException:
            self._discard(part.entry for part in made)
            raise
        self._swap([part.entry.path for part in parts], made)
        release_unused()  # otherwise pyarrow may keep this memory for hours
        return made

    def _swap(
        self, removed: Sequence[str], made: Sequence[_Part], *, spool_upto: int | None = None, is_recovery: bool = False
    ) -> None:
        """Updates the manifest, then removes files: a kill in between leaves extra files, but no file is missing."""
        entries = [part.entry for part in made]
        line = replace_line(removed, added=entries, spool_upto=spool_upto, is_recovery=is_recovery)
        self._publish([(removed, entries)], [line])
        gone = set(removed)
        for table in dict.fromkeys([*(path.split("/", 1)[0] for path in removed), *(entry.table for entry in entries)]):
            parts = self._parts.get(table, [])
            new = [part for part in made if part.entry.table == table]
            place = next((i for i, part in enumerate(parts) if part.entry.path in gone), len(parts))
            rest = [part for part in parts[place:] if part.entry.path not in gone]
            self._parts[table] = [*parts[:place], *new, *rest]
        self._remove(removed)

    def _seal(
        self, tables: Mapping[str, Iterable[pa.Table] | None], *, max_bytes: int | None = None
    ) -> list[ManifestEntry]:
        """Writes parts with the next numbers of their tables, but does not add them to the manifest."""
        numbers = {table: self._next_number.get(table, 0) for table in tables}
        self._next_number.update({table: number + 1 for table, number in numbers.items()})
        try:
            return seal_parts(self._logdir, tables, run_id=self._run_id, numbers=numbers, max_bytes=max_bytes)
        except BaseException:
            for path in (temporary_path, part_path):
                self._remove(path(table, run_id=self._run_id, number=number) for table, number in numbers.items())
            raise

    def _publish(self, changes: Sequence[tuple[Sequence[str], Sequence[ManifestEntry]]], lines: Sequence[str]) -> None:
        """Appends a line to the manifest for each change, which consists of the removed paths and the added parts."""
        entries = [entry for _, added in changes for entry in added]
        try:
            self._manifest.append(*lines)
        except BaseException:
            if self._manifest.has_leftover:
                self._leftovers.update(
                    entry.path for entry in entries
                )  # a manifest line that names the parts may exist
            else:
                self._discard(entries)
            raise
        self.sweep()
        if self._on_change is not None:
            for removed, added in changes:
                self._on_change(removed, added)

    def _discard(self, entries: Iterable[ManifestEntry]) -> None:
        """Removes parts that the manifest never named, because readers without a manifest would read rows twice."""
        self._remove(entry.path for entry in entries)

    def _remove(self, paths: Iterable[str]) -> None:
        """Removes files if they exist; files that cannot be removed are left for the next sweep."""
        for path in paths:
            try:
                os.unlink(self._logdir / path)
            except FileNotFoundError:
                continue
            except OSError:
                self._leftovers.add(path)


def _names_in(directory: Path) -> list[str]:
    return os.listdir(directory) if directory.is_dir() else []
