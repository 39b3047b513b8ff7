"""verify: checks that every byte of data in a logdir is unchanged since it was written."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdbg_arrow.errors import FormatVersionError, LogdirError
from tfdbg_arrow.query.displayed import Displayed
from tfdbg_arrow.query.integrity.parts import MISSING, LogdirFiles, examined_parts
from tfdbg_arrow.safe_text import number_of
from tfdbg_arrow.spool.journal import MAGIC, broken_entries, held_if_dead
from tfdbg_arrow.spool.recovery import SealedRows
from tfdbg_arrow.spool.spool_file import read_header
from tfdbg_arrow.storage.layout import (
    MANIFEST_DIRECTORY,
    MARKER_NAME,
    SPOOL_DIRECTORY,
    TEMPORARY_SUFFIX,
    OwnFiles,
    SpoolPaths,
    is_run_id,
    manifest_path,
    spool_paths,
    spooled_run_ids,
)
from tfdbg_arrow.storage.location import parse_location
from tfdbg_arrow.storage.manifest import (
    ManifestEntry,
    is_cut_off,
    is_intact,
    live_parts,
    manifest_changes,
)
from tfdbg_arrow.storage.marker import check_logdir, parse_marker

_MAX_KEPT = 1000
"""Maximum number of deviations of each kind that are kept. Further deviations are only counted."""
_DAMAGE = ("changed", "missing", "extra")
_KINDS = (*_DAMAGE, "leftover", "unchecked")
_JOURNAL = ".journal"
_OTHERS = (".spool", ".values", ".rows")


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """One file, or part of a file, that differs from what was written or that cannot be checked.

    Attributes:
        kind: `changed`, `missing` and `extra` are damage. `leftover` is data that a killed process left. `unchecked` is
            data for which the logdir holds no checksum.
        path: The file, relative to the logdir.
        run_id: The run that the file belongs to; None if it belongs to no run.
        what: The problem, as the end of a sentence that begins with the path.
    """

    kind: str
    path: str
    run_id: str | None
    what: str

    @property
    def is_damage(self) -> bool:
        """Whether data is changed, missing or extra."""
        return self.kind in _DAMAGE


@dataclass(frozen=True, kw_only=True, repr=False)
class Verification(Displayed):
    """The result of comparing a logdir with its manifests.

    Attributes:
        path: The logdir.
        num_runs: Number of runs.
        num_parts: Number of live parts.
        num_rows: Number of rows of the live parts, according to the manifests.
        num_bytes: Number of bytes of the live parts, according to the manifests.
        num_damaged: Number of deviations that are damage.
        num_found: Number of deviations of each kind.
        deviations: The deviations, damage first, with at most the first 1,000 of each kind.
    """

    path: str
    num_runs: int
    num_parts: int
    num_rows: int
    num_bytes: int
    num_damaged: int
    num_found: dict[str, int]
    deviations: tuple[Deviation, ...]

    @property
    def is_intact(self) -> bool:
        """Whether no data is changed, missing or extra."""
        return self.num_damaged == 0


def verify(logdir: str | Path, *, progress: Callable[[int, int], None] = lambda done, total: None) -> Verification:
    """Finds every changed, missing and extra byte of data in a local logdir, without changing the logdir.

    The check reads every live part, and compares the size, SHA-256, rows, event indexes and columns of the part with
    the manifest and the format. The check compares the manifests, the marker and the journals that wait for recovery
    with their checksums. The check also compares the existing files with the files that the manifests name. Files that
    a killed process left are not damage.

    The check cannot find deliberate changes that also adapt the manifest and the checksums. If a run was killed and is
    not yet recovered, the check cannot find lost lines at the end of the manifest. In the spool of such a run, the
    check cannot find changes of events and elements, because events and elements have no checksums.

    Args:
        logdir: The directory that a recording wrote. It may be in use.
        progress: Called with the number of bytes of the parts that were read so far, and the total.

    Raises:
        LogdirError: The path does not exist, cannot be read, is a URL, or is not a logdir.
        FormatVersionError: The logdir has a MAJOR format version that this package does not read.
    """
    path = parse_location(logdir)
    if not isinstance(path, Path):
        raise LogdirError(
            f"{path} is a URL, expected a directory: copy the logdir to this machine to verify it. Readers compare "
            "each part that they fetch from a URL with the SHA-256 in the manifest."
        )
    deviations = _Deviations()
    _check_marker(path, deviations)
    try:
        files = LogdirFiles.of(path)
        checks = [_RunCheck(path, run_id, files.of_run(run_id)) for run_id in files.run_ids()]
        for stray in files.strays:
            what = "a manifest" if stray.startswith(f"{MANIFEST_DIRECTORY}/") else "a part of a run"
            deviations.add("extra", stray, f"is not {what}, and no other file may be there")
        _check_strays(path, deviations)
        total = sum(entry.bytes for check in checks for entry in check.live)
        done = 0

        def advance(num_bytes: int) -> None:
            nonlocal done
            done += num_bytes
            progress(done, total)

        for check in checks:
            check.run(deviations, advance)
    except OSError as error:
        raise LogdirError(f"{error.filename or path} cannot be read ({error.strerror or error}).") from error
    progress(total, total)
    return Verification(
        path=str(path),
        num_runs=len(checks),
        num_parts=sum(len(check.live) for check in checks),
        num_rows=sum(entry.rows for check in checks for entry in check.live),
        num_bytes=total,
        num_damaged=sum(deviations.num_found[kind] for kind in _DAMAGE),
        num_found=dict(deviations.num_found),
        deviations=deviations.all(),
    )


def _check_marker(path: Path, deviations: _Deviations) -> None:
    """Checks the marker file. Raises the same as `verify`."""
    marker = path / MARKER_NAME
    if not os.path.lexists(marker) and (path / MANIFEST_DIRECTORY).is_dir():
        deviations.add("missing", MARKER_NAME, "is missing")
        return
    try:
        check_logdir(path)
        text = marker.read_bytes().decode("utf-8", errors="replace")
        parse_marker(text, path=marker)
    except OSError as error:
        raise LogdirError(f"{marker} cannot be read ({error.strerror}); check its permissions.") from error
    except FormatVersionError:
        if is_intact(marker.read_text("utf-8", errors="replace").removesuffix("\n")):
            raise
        deviations.add("changed", MARKER_NAME, "does not match its checksum")
        return
    except LogdirError as error:
        if not marker.is_file():
            raise
        deviations.add("changed", MARKER_NAME, f"is damaged: {error}")
        return
    if not text.endswith("\n"):
        deviations.add("missing", MARKER_NAME, "has no newline at its end")


class _Deviations:
    """Collects deviations in bounded memory.

    Attributes:
        num_found: Number of deviations of each kind.
    """

    def __init__(self) -> None:
        self.num_found = Counter[str]()
        self._listed: dict[str, list[Deviation]] = {kind: [] for kind in _KINDS}

    def add(self, kind: str, path: str, what: str, *, run_id: str | None = None) -> None:
        """Adds a deviation. The arguments are the attributes of Deviation."""
        deviation = Deviation(kind=kind, path=path, run_id=run_id, what=what)
        self.num_found[kind] += 1
        if len(self._listed[kind]) < _MAX_KEPT:
            self._listed[kind].append(deviation)

    def all(self) -> tuple[Deviation, ...]:
        """Returns the deviations that were kept, damage first."""
        return tuple(deviation for kind in _KINDS for deviation in self._listed[kind])


class _RunCheck:
    """Checks a run.

    Args:
        logdir: The logdir.
        run_id: The run.
        there: The parts in the run's directories. The parts are listed before the manifest is read, so that the list
            has no parts that a recording seals in the meantime.

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
        self._is_recovered = False
        self.live: tuple[ManifestEntry, ...] = ()
        with contextlib.suppress(FileNotFoundError):
            try:
                OwnFiles(logdir).check([logdir / self._manifest])
            except LogdirError as error:
                self._text, self._damage = "", f"is refused: {error}"
            else:
                self._read((logdir / self._manifest).read_bytes().decode("utf-8", errors="replace"))

    def run(self, deviations: _Deviations, advance: Callable[[int], None]) -> None:
        """Adds a deviation for each difference from what was written.

        Args:
            deviations: Collects the deviations.
            advance: Called with the number of bytes of each part after it was read.

        Raises:
            OSError: A file of the spool cannot be read.
        """
        paths = spool_paths(self._logdir, run_id=self._run_id)
        is_waiting = self._is_waiting(paths, deviations)
        with contextlib.ExitStack() as stack:
            is_recording = is_waiting and not stack.enter_context(
                # A journal with a damaged head does not name its machine. The texts about leftovers fit any machine.
                held_if_dead(paths.journal, to_change=False, other_machines=True)
            )
            if self._text is None or self._damage is not None:
                self._tell_of_manifest(deviations)
                return
            broken = self._check_parts(deviations, advance)
            if is_recording:
                what = "is in use: rows of the run that are not in parts yet were not checked"
                deviations.add("unchecked", f"spool/{paths.journal.name}", what, run_id=self._run_id)
                return
            has_ended = "run" in broken or self._has_ended()
            self._check_last_line(deviations, is_over=has_ended and not is_waiting)
            self._check_extra(deviations, is_over=has_ended and not is_waiting)
            if is_waiting:
                _check_spool(paths, deviations, run_id=self._run_id, is_needed=not has_ended)

    def _is_waiting(self, paths: SpoolPaths, deviations: _Deviations) -> bool:
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
        self._is_recovered = any(change.is_recovery for change in changes)

    def _tell_of_manifest(self, deviations: _Deviations) -> None:
        number = number_of(len(self._there), "part")
        if self._text is None:
            what = f"is missing, and {number} of the run could not be compared with it"
            deviations.add("missing", self._manifest, what, run_id=self._run_id)
        else:
            what = f"{self._damage} Its parts were not compared with it."
            deviations.add("changed", self._manifest, what, run_id=self._run_id)

    def _check_parts(self, deviations: _Deviations, advance: Callable[[int], None]) -> frozenset[str]:
        """Compares the live parts with the manifest. Returns the tables that have a broken part."""
        broken = set()
        for entry, what in examined_parts(self._logdir, self.live, advance=advance):
            if what is not None:
                kind = "missing" if what == MISSING else "changed"
                deviations.add(kind, entry.path, what, run_id=self._run_id)
                broken.add(entry.table)
        return frozenset(broken)

    def _has_ended(self) -> bool:
        """Returns True if no rows can be left in the spool: the run ended cleanly or was recovered."""
        by_table: dict[str, list[ManifestEntry]] = {}
        for entry in self.live:
            by_table.setdefault(entry.table, []).append(entry)
        try:
            return self._is_recovered or SealedRows(self._logdir, by_table).has_ended()
        except LogdirError:
            return True

    def _check_last_line(self, deviations: _Deviations, *, is_over: bool) -> None:
        """Adds a deviation for an incomplete last line."""
        assert self._text is not None
        last = self._text[self._text.removesuffix("\n").rfind("\n") + 1 :]
        if last and is_cut_off(last):
            # A line that ends in a newline was written as a whole. If its content is incomplete, the power failed or
            # the line was changed later.
            kind = "changed" if is_over or last.endswith("\n") else "leftover"
            deviations.add(kind, self._manifest, "ends in an incomplete line", run_id=self._run_id)
        elif last and not last.endswith("\n"):
            kind = "missing" if is_over else "leftover"
            deviations.add(kind, self._manifest, "has no newline at its end", run_id=self._run_id)

    def _check_extra(self, deviations: _Deviations, *, is_over: bool) -> None:
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


def _check_spool(paths: SpoolPaths, deviations: _Deviations, *, run_id: str, is_needed: bool) -> None:
    """Checks the spool files that a killed process left.

    Args:
        paths: The files.
        deviations: Collects the deviations.
        run_id: The run of the process.
        is_needed: Whether the spool may hold rows that are not yet in a part.

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
        for broken in broken_entries(path, start=start if _has_hole(path) else 0):
            if broken.is_cut:
                what = "the process was killed or the disk was full while it was written"
                tell("leftover", path, f"has an incomplete entry at byte {broken.offset:,}: {what}")
            else:
                tell("changed", path, f"has an entry at byte {broken.offset:,} that does not match its checksum")


def _check_strays(logdir: Path, deviations: _Deviations) -> None:
    """Adds deviations for temporary files, spool files that cannot be recovered, and other files in the spool.

    Raises:
        OSError: The directory cannot be read.
    """
    for path in sorted(logdir.glob(f".{MARKER_NAME}.*")):
        deviations.add("leftover", path.name, "was being written when its process was killed: it can be removed")
    directory = logdir / SPOOL_DIRECTORY
    if not directory.is_dir():
        return
    spooled = spooled_run_ids(logdir)
    for path in sorted(directory.iterdir()):
        name = f"{SPOOL_DIRECTORY}/{path.name}"
        owner = next((run_id for run_id in spooled if path.name.startswith(f"{run_id}.")), None)
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
