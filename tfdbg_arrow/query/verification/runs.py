"""RunCheck: compares the files of one run with its manifest, and the manifest with its checksums."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.query.verification.findings import Deviations
from tfdbg_arrow.query.verification.parts import what_is_wrong, written_version
from tfdbg_arrow.query.verification.spools import check_spool
from tfdbg_arrow.schema.checksum import CHECKSUMS_SINCE
from tfdbg_arrow.schema.logdir_layout import SpoolPaths, manifest_path, spool_paths
from tfdbg_arrow.schema.manifest import ManifestEntry, is_cut_off, live_parts, manifest_changes, read_live_parts
from tfdbg_arrow.schema.own_files import OwnFiles
from tfdbg_arrow.spool.recovery import SealedRows
from tfdbg_arrow.spool.run_files import held_if_dead


class RunCheck:
    """Checks a run.

    Args:
        logdir: The logdir.
        run_id: The run.
        there: The parts in the run's directories. They are listed before the manifest is read, so that parts that a
            recording seals in the meantime are not among them.

    Attributes:
        live: The live parts; empty if the manifest is missing or damaged.

    Raises:
        OSError: The manifest cannot be read.
    """

    def __init__(self, logdir: Path, run_id: str, there: Sequence[str]) -> None:
        self._logdir, self._run_id, self._there = logdir, run_id, there
        self._manifest = manifest_path(run_id)
        self._text: str | None = None
        self._damage: str | None = None
        self._named: frozenset[str] = frozenset()
        self._num_lines = self._num_unchecked = 0
        self._is_recovered = False
        self.live: tuple[ManifestEntry, ...] = ()
        with contextlib.suppress(FileNotFoundError):
            try:
                OwnFiles(logdir).check([logdir / self._manifest])
            except LogdirError as error:
                self._text, self._damage = "", f"is refused: {error}"
            else:
                self._read((logdir / self._manifest).read_bytes().decode("utf-8", errors="replace"))

    @property
    def num_bytes(self) -> int:
        """The number of bytes of the live parts, according to the manifest."""
        return sum(entry.bytes for entry in self.live)

    def run(self, deviations: Deviations, progress: Callable[[int], None]) -> None:
        """Adds a deviation for everything that is not as it was written.

        Args:
            deviations: Collects the deviations.
            progress: Called with the number of bytes of the parts that were read so far.

        Raises:
            OSError: A file of the spool cannot be read.
        """
        paths = spool_paths(self._logdir, run_id=self._run_id)
        is_waiting = self._is_waiting(paths, deviations)
        with contextlib.ExitStack() as stack:
            is_recording = is_waiting and not stack.enter_context(
                # A journal with a damaged head does not name its machine; the texts about leftovers fit either way.
                held_if_dead(paths.journal, to_change=False, other_machines=True)
            )
            if self._text is None or self._damage is not None:
                self._tell_of_manifest(deviations)
                return
            broken = self._check_parts(deviations, progress)
            if is_recording:
                what = "is in use: rows of the run that are not in parts yet were not checked"
                deviations.add("unchecked", f"spool/{paths.journal.name}", what, run_id=self._run_id)
                return
            has_ended = "run" in broken or self._has_ended()
            self._check_lines(deviations, is_over=has_ended and not is_waiting)
            self._check_extra(deviations, is_over=has_ended and not is_waiting)
            if is_waiting:
                check_spool(paths, deviations, run_id=self._run_id, is_needed=not has_ended)

    def _is_waiting(self, paths: SpoolPaths, deviations: Deviations) -> bool:
        """Returns True if the run waits for recovery. Adds a deviation if its spool must not be opened."""
        try:
            OwnFiles(self._logdir).check(paths.all())
        except LogdirError as error:
            deviations.add("changed", f"spool/{paths.journal.name}", f"is refused: {error}", run_id=self._run_id)
            return False
        return paths.journal.exists()

    def _read(self, text: str) -> None:
        self._text = text
        path = self._logdir / self._manifest
        try:
            changes = list(manifest_changes(text, run_id=self._run_id, path=path))
            self.live = live_parts(text, run_id=self._run_id, path=path)
        except LogdirError as error:
            self._damage = str(error).removeprefix(f"{path}, ")
            return
        self._named = frozenset(entry.path for change in changes for entry in change.added)
        self._num_lines = len(changes)
        self._num_unchecked = sum(not change.has_checksum for change in changes)
        self._is_recovered = any(change.is_recovery for change in changes)

    def _tell_of_manifest(self, deviations: Deviations) -> None:
        number = f"{len(self._there):,} part{'' if len(self._there) == 1 else 's'}"
        if self._text is None:
            what = f"is missing, and {number} of the run could not be compared with it"
            deviations.add("missing", self._manifest, what, run_id=self._run_id)
        else:
            what = f"{self._damage} Its parts were not compared with it."
            deviations.add("changed", self._manifest, what, run_id=self._run_id)

    def _check_parts(self, deviations: Deviations, progress: Callable[[int], None]) -> frozenset[str]:
        """Compares the live parts with the manifest. Returns the tables that have a broken part."""
        broken = set()
        done = 0
        for entry in self.live:
            kind = "changed"
            what: str | None
            try:
                what = what_is_wrong(self._logdir, entry)
            except FileNotFoundError:
                kind = "missing"
                what = "is missing" if self._still_holds(entry) else None
            if what is not None:
                deviations.add(kind, entry.path, what, run_id=self._run_id)
                broken.add(entry.table)
            done += entry.bytes
            progress(done)
        return frozenset(broken)

    def _still_holds(self, entry: ManifestEntry) -> bool:
        """Returns whether a part is still live: a process may have replaced it in the meantime."""
        try:
            return entry in read_live_parts(self._logdir, run_id=self._run_id)
        except LogdirError:
            return True

    def _has_ended(self) -> bool:
        """Returns True if no rows can be left in the spool: the run ended cleanly or was recovered."""
        by_table: dict[str, list[ManifestEntry]] = {}
        for entry in self.live:
            by_table.setdefault(entry.table, []).append(entry)
        try:
            return self._is_recovered or SealedRows(self._logdir, by_table).has_ended()
        except LogdirError:
            return True

    def _check_lines(self, deviations: Deviations, *, is_over: bool) -> None:
        """Adds deviations for an incomplete last line and for lines without a checksum."""
        assert self._text is not None
        last = self._text[self._text.removesuffix("\n").rfind("\n") + 1 :]
        if last and is_cut_off(last):
            # A line with a newline was written completely: the power failed, or the line was changed since.
            kind = "changed" if is_over or last.endswith("\n") else "leftover"
            deviations.add(kind, self._manifest, "ends in an incomplete line", run_id=self._run_id)
        elif last and not last.endswith("\n"):
            kind = "missing" if is_over else "leftover"
            deviations.add(kind, self._manifest, "has no newline at its end", run_id=self._run_id)
        if self._num_unchecked < self._num_lines or not self.live:  # the first checksum covers all lines before it
            return
        version = written_version(self._logdir, self.live[0])
        if version is not None and version >= CHECKSUMS_SINCE:
            what = f"has no checksums, which format {version[0]}.{version[1]} requires"
            deviations.add("changed", self._manifest, what, run_id=self._run_id)
        else:
            what = f"has no checksums (lines: {self._num_lines:,}), because format 1.0 had none"
            deviations.add("unchecked", self._manifest, what, run_id=self._run_id)

    def _check_extra(self, deviations: Deviations, *, is_over: bool) -> None:
        """Adds a deviation for each existing part that is not live."""
        live = {entry.path for entry in self.live}
        for path in self._there:
            if path in live:
                continue
            if path in self._named:
                kind, what = "leftover", "was replaced, and its rows are in another part: it can be removed"
            elif is_over:
                kind, what = "extra", "is not in the manifest: it was added, or lines of the manifest are missing"
            else:
                kind, what = "leftover", "is not in the manifest: the process was killed before it wrote the line"
            deviations.add(kind, path, what, run_id=self._run_id)
