"""A logdir at a URL: the live parts that a query needs are fetched into a cache directory and read from there.

DuckDB's `register_filesystem` is not used. DuckDB would then fetch a part again for each query, in small pieces. DuckDB
would never check the part's SHA-256. A query would fail in the middle if a part is replaced. A fetched part is complete
and matches the manifest, and everything else works as on a local logdir.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tfdbg_arrow.errors import BrokenPartError, LogdirError
from tfdbg_arrow.query.integrity.broken_parts import BrokenParts
from tfdbg_arrow.storage.disk import file_sha256
from tfdbg_arrow.storage.layout import (
    MANIFEST_DIRECTORY,
    MARKER_NAME,
    is_run_id,
)
from tfdbg_arrow.storage.location import RemoteLocation, described
from tfdbg_arrow.storage.manifest import ManifestEntry, live_parts
from tfdbg_arrow.storage.marker import parse_marker

CACHE_VARIABLE = "TFDBG_ARROW_CACHE_DIR"
MAX_CACHE_BYTES = 8 << 30
"""Maximum size of the cache. If the cache is larger, copies of other logdirs are removed, the least recently opened
logdir first."""
_NUM_CONNECTIONS = 8
"""Maximum number of files that are fetched at the same time. A fetch waits for the network most of its time."""
_ATTEMPTS = 10
"""Maximum number of readings if a recording replaces parts meanwhile. After the last one, an error says so."""
_RETRY_S = 0.3
"""Seconds before another attempt, so that the recording can complete the replacement."""
_TEMPORARY_AGE_S = 24 * 3600.0
"""Age in seconds at which a temporary file counts as left behind by a process that ended. A fetch takes less time."""
_T = TypeVar("_T")


class _ReplacedError(Exception):
    """A file was replaced after it was listed."""


class RemoteSource:
    """The parts of a logdir at a URL, as local files.

    Args:
        location: The URL.
        storage_options: Options passed to fsspec for the URL.
        broken: Leaves out and records broken files. None makes them an error.

    Attributes:
        num_rows: The number of rows of each part that was fetched, by local path.
    """

    def __init__(
        self,
        location: RemoteLocation,
        storage_options: Mapping[str, Any] | None,
        *,
        broken: BrokenParts | None = None,
    ) -> None:
        self._broken = broken
        self._left_out: dict[ManifestEntry, str] = {}
        self._gone: set[str] = set()
        self._location = location
        self._directory = location.open(storage_options)
        self._parts: dict[str, tuple[ManifestEntry, ...]] = {}
        self._wanted: set[str] = set()
        self.num_rows: dict[str, int] = {}
        self._cache = _cache_root() / hashlib.sha256(location.url.encode()).hexdigest()[:32]

    @property
    def wanted(self) -> frozenset[str]:
        """The tables that are fetched so far."""
        return frozenset(self._wanted)

    def extent(self, table_name: str) -> tuple[ManifestEntry, ...]:
        """Returns the live parts of a table, fetched or not."""
        return self._parts.get(table_name, ())

    def refresh(self) -> dict[str, tuple[str, ...]]:
        """Reads the manifests again and fetches the new parts of the tables that were fetched so far.

        Returns:
            The local paths by table, for these tables only.

        Raises:
            LogdirError: The URL cannot be read, or it is not a logdir.
            FormatVersionError: The logdir has another MAJOR format version.
            BrokenPartError: A part does not match the manifest.
        """
        self._gone.clear()
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_RETRY_S)
            try:
                if self._broken is not None:
                    self._broken.begin()
                self._check()
                self._parts = self._list()
                fetched = self._fetch(self._wanted)
            except _ReplacedError as error:
                self._note_gone(str(error))
                continue
            self._prune()
            return fetched
        raise LogdirError(
            f"{self._location} changed {_ATTEMPTS} times while it was read; try again when fewer recordings write to "
            "it."
        )

    def want(self, tables: Collection[str]) -> dict[str, tuple[str, ...]]:
        """Fetches more tables, with the parts from the last reading of the manifests.

        Returns and raises the same as `refresh`.
        """
        self._wanted.update(tables)
        try:
            return self._fetch(self._wanted)
        except _ReplacedError:
            return self.refresh()

    def _check(self) -> None:
        """Raises LogdirError or FormatVersionError if the URL is not a logdir that this package can read."""
        try:
            marker = self._read(MARKER_NAME)
        except _ReplacedError:
            with described(f"{self._location} cannot be read"):
                names = self._directory.names()
            if not names:
                raise LogdirError(
                    f"{self._location} does not exist or is empty; give the URL that a recording wrote to."
                ) from None
            raise LogdirError(
                f"{self._location} is not a logdir of tfdbg_arrow: it has no {MARKER_NAME}; give the URL that a "
                "recording wrote to."
            ) from None
        parse_marker(marker.decode("utf-8", errors="replace"), path=f"{self._location}/{MARKER_NAME}")

    def _list(self) -> dict[str, tuple[ManifestEntry, ...]]:
        with described(f"{self._location} cannot be read"):
            names = self._directory.names(MANIFEST_DIRECTORY)
        run_ids = [name.removesuffix(".jsonl") for name in names if name.endswith(".jsonl")]
        paths = {run_id: f"{MANIFEST_DIRECTORY}/{run_id}.jsonl" for run_id in run_ids if is_run_id(run_id)}
        parts: dict[str, list[ManifestEntry]] = {}
        contents = self._each(self._read, list(paths.values()))
        for (run_id, path), content in zip(paths.items(), contents, strict=True):
            for entry in self._live_parts(content.decode("utf-8", errors="replace"), run_id=run_id, path=path):
                parts.setdefault(entry.table, []).append(entry)
        return {table: tuple(table_parts) for table, table_parts in parts.items()}

    def _live_parts(self, text: str, *, run_id: str, path: str) -> tuple[ManifestEntry, ...]:
        where = f"{self._location}/{path}"
        try:
            return live_parts(text, run_id=run_id, path=where)
        except LogdirError as error:
            if self._broken is None:
                raise
            self._broken.tell_manifest(run_id, where, error)
            return ()

    def _fetch(self, tables: Iterable[str]) -> dict[str, tuple[str, ...]]:
        wanted = {
            table: tuple(part for part in self._parts[table] if part not in self._left_out)
            for table in tables
            if table in self._parts
        }
        missing = [part for parts in wanted.values() for part in parts if not self._is_cached(part)]
        if missing:
            with _cache_errors(self._cache):
                for directory in {self._copy_of(part).parent for part in missing}:
                    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._each(self._fetch_part, missing)
        if self._broken is not None:
            for part, reason in self._left_out.items():
                self._broken.tell_part(f"{self._location}/{part.path}", rows=part.rows, reason=reason)
        self.num_rows = {str(self._copy_of(part)): part.rows for parts in wanted.values() for part in parts}
        return {
            table: tuple(str(self._copy_of(part)) for part in parts if part not in self._left_out)
            for table, parts in wanted.items()
        }

    def _copy_of(self, part: ManifestEntry) -> Path:
        """Returns the path of a part's copy in the cache."""
        directory, _, name = part.path.rpartition("/")
        return self._cache / directory / f"{name.removesuffix('.parquet')}-{part.sha256[:32]}.parquet"

    def _is_cached(self, part: ManifestEntry) -> bool:
        with contextlib.suppress(OSError):
            return self._copy_of(part).stat().st_size == part.bytes
        return False

    def _note_gone(self, path: str) -> None:
        """Leaves out a part that was missing twice although the manifest still names it."""
        if self._broken is not None and path in self._gone:
            gone_parts = (part for parts in self._parts.values() for part in parts if part.path == path)
            self._left_out.update((part, "is missing") for part in gone_parts)
        self._gone.add(path)

    def _fetch_part(self, part: ManifestEntry) -> None:
        """Fetches a part. If its SHA-256 is wrong, it is fetched once more."""
        target = self._copy_of(part)
        temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
        try:
            for attempt in (1, 2):
                self._asked(part.path, lambda: self._directory.download(part.path, temporary))
                with _cache_errors(self._cache):
                    sha256 = file_sha256(temporary)
                if sha256 == part.sha256:
                    with _cache_errors(self._cache):
                        os.replace(temporary, target)
                    return
                if attempt == 2 and self._broken is not None:
                    self._left_out[part] = "does not match its SHA-256"
                elif attempt == 2:
                    raise BrokenPartError(
                        f"{self._location}/{part.path} has the SHA-256 {sha256}, expected {part.sha256} from the "
                        "manifest: the file was changed after it was written; restore it."
                    )
        finally:
            temporary.unlink(missing_ok=True)

    def _read(self, name: str) -> bytes:
        return self._asked(name, lambda: self._directory.read_bytes(name))

    def _asked(self, name: str, action: Callable[[], _T]) -> _T:
        """Returns the result of a request to the store.

        Raises:
            _ReplacedError: The file does not exist.
            LogdirError: The request failed.
        """
        with described(f"{self._location} cannot be read"):
            try:
                return action()
            except FileNotFoundError as error:
                if "bucket does not exist" in str(error).lower():
                    raise
        raise _ReplacedError(name)

    def _each(self, action: Callable[[Any], _T], items: Sequence[Any]) -> list[_T]:
        """Returns the result of an action for each item. Runs several at a time if the file system supports it."""
        if not self._directory.is_concurrent or len(items) < 2:
            return [action(item) for item in items]
        return _map_in_threads(action, items, num_threads=min(_NUM_CONNECTIONS, len(items)))

    def _prune(self) -> None:
        """Removes copies of parts that are no longer live, and copies of other logdirs if the cache is too large."""
        with contextlib.suppress(OSError):  # another process may prune as well
            live = {self._copy_of(part) for parts in self._parts.values() for part in parts}
            for path in self._cache.glob("*/run*=*/*"):
                is_old = time.time() - path.stat().st_mtime > _TEMPORARY_AGE_S
                if path not in live and (is_old or path.suffix != ".tmp"):
                    path.unlink(missing_ok=True)
            if self._cache.is_dir():
                os.utime(self._cache)
            _bound_cache(self._cache)


def _map_in_threads(action: Callable[[Any], _T], items: Sequence[Any], *, num_threads: int) -> list[_T]:
    """Returns the result of an action for each item, and raises the first error.

    The function does not use a ThreadPoolExecutor, which cannot start tasks while the interpreter exits. `tfdbg-arrow
    run` reads at that time.
    """
    results: dict[int, _T] = {}
    errors: list[BaseException] = []
    rest = iter(enumerate(items))
    lock = threading.Lock()

    def work() -> None:
        while not errors:
            with lock:
                index, item = next(rest, (-1, None))
            if index < 0:
                return
            try:
                results[index] = action(item)
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=work, name="tfdbg_arrow-fetch", daemon=True) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[index] for index in range(len(items))]


def _cache_root() -> Path:
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "tfdbg_arrow"


@contextlib.contextmanager
def _cache_errors(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LogdirError(
            f"{cache}, the cache for logdirs at URLs, cannot be written ({error.strerror or error}); free space, or "
            f"set the environment variable {CACHE_VARIABLE} to another directory."
        ) from error


def _bound_cache(used: Path) -> None:
    sizes = {
        directory: sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
        for directory in used.parent.iterdir()
        if directory.is_dir()
    }
    excess = sum(sizes.values()) - MAX_CACHE_BYTES
    for directory in sorted(sizes, key=lambda directory: directory.stat().st_mtime):
        if excess <= 0:
            return
        if directory != used:
            shutil.rmtree(directory, ignore_errors=True)
            excess -= sizes[directory]
