"""BrokenParts: the files that a reader with `skip_broken` leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.query.verification.parts import what_is_wrong
from tfdbg_arrow.schema.logdir_layout import manifest_path
from tfdbg_arrow.schema.manifest import ManifestEntry, read_live_parts

_ATTEMPTS = 20
"""How often to read a manifest again because a part that it named was gone."""
_MISSING = "is missing"


@dataclass(frozen=True, kw_only=True)
class BrokenPart:
    """A file whose rows are left out.

    Attributes:
        path: The path of a part or of a manifest. If a manifest is broken, no part of its run is read.
        run_id: The run.
        table: The table; None for a manifest.
        rows: How many rows are left out; None if unknown.
        reason: What is wrong with the file. It completes a sentence that begins with the path.
    """

    path: str
    run_id: str
    table: str | None
    rows: int | None
    reason: str


class BrokenParts:
    """Compares each part with its manifest entry, by size and SHA-256: once, and again if its file changed.

    Args:
        logdir: The logdir; None if it is at a URL. Parts from a URL are checked when they are fetched.
    """

    def __init__(self, logdir: Path | None) -> None:
        self._logdir = logdir
        self._found: dict[str, BrokenPart] = {}
        self._compared: dict[ManifestEntry, tuple[object, str | None]] = {}
        self._refused: dict[str, tuple[object, str]] = {}

    @property
    def found(self) -> tuple[BrokenPart, ...]:
        """The files that are left out now."""
        return tuple(self._found.values())

    def begin(self) -> None:
        """Forgets the files found so far, because the logdir is listed again."""
        self._found.clear()

    def tell_manifest(self, run_id: str, path: str, error: LogdirError) -> None:
        """Records a run whose manifest is damaged or whose spool cannot be read."""
        reason = str(error).removeprefix(f"{path}, ")
        self._found[path] = BrokenPart(path=path, run_id=run_id, table=None, rows=None, reason=reason)

    def tell_part(self, path: str, *, rows: int | None, reason: str) -> None:
        """Records a broken part."""
        table, run, _ = path.rsplit("/", 3)[-3:]
        run_id = run.removeprefix("run_id=")
        self._found[path] = BrokenPart(path=path, run_id=run_id, table=table, rows=rows, reason=reason)

    def refuse(self, path: str, reason: str) -> None:
        """Leaves out a part that cannot be read, even if it matches its manifest, until its file changes."""
        self._refused[path] = _identity(path), reason

    def sound_parts(self, run_id: str) -> tuple[ManifestEntry, ...]:
        """Returns the live parts of a run that match its manifest, and records the others."""
        assert self._logdir is not None
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                entries = read_live_parts(self._logdir, run_id=run_id)
            except LogdirError as error:
                self.tell_manifest(run_id, f"{self._logdir / manifest_path(run_id)}", error)
                return ()
            reasons = {entry: self._reason(entry) for entry in entries}
            # A part that was replaced in the meantime is gone, not broken.
            if attempt == _ATTEMPTS or _MISSING not in reasons.values() or self._still_hold(run_id, entries):
                break
        for entry, reason in reasons.items():
            if reason is not None:
                self.tell_part(f"{self._logdir}/{entry.path}", rows=entry.rows, reason=reason)
        return tuple(entry for entry, reason in reasons.items() if reason is None)

    def without_refused(self, parts: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        """Returns the parts by table without the refused ones, and records those as broken."""
        found: dict[str, tuple[str, ...]] = {}
        for table, paths in parts.items():
            kept = []
            for path in paths:
                identity, reason = self._refused.get(path, (None, ""))
                if identity is None or identity != _identity(path):
                    kept.append(path)
                else:
                    self.tell_part(path, rows=None, reason=reason)
            found[table] = tuple(kept)
        return found

    def _still_hold(self, run_id: str, entries: tuple[ManifestEntry, ...]) -> bool:
        assert self._logdir is not None
        try:
            return read_live_parts(self._logdir, run_id=run_id) == entries
        except LogdirError:
            return False

    def _reason(self, entry: ManifestEntry) -> str | None:
        assert self._logdir is not None
        try:
            identity = _identity(f"{self._logdir}/{entry.path}")
            compared, reason = self._compared.get(entry, (None, None))
            if identity is None or compared != identity:
                reason = what_is_wrong(self._logdir, entry)
                self._compared[entry] = identity, reason
        except FileNotFoundError:
            return _MISSING
        return reason


def _identity(path: str) -> object:
    """Returns a value that changes when the file changes; None if the file cannot be examined."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
