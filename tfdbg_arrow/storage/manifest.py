"""Manifests. A manifest lists the live parts of a run, and states how much of the run's spool is in the parts.

Each run has one manifest, and each change adds a line to the manifest. The content of a logdir is untrusted, so no
function of this module returns a path outside the logdir.

A line ends in `, "checksum": "<8 hexadecimal digits>"}`. The digits are the CRC-32 of all bytes of the file before this
suffix. The digits reveal changed bytes, lost lines and swapped lines, but do not protect against deliberate changes.

spec/README.md, "Manifest" and "Checksums", defines the format.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath

from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.safe_text import is_stack_used_up, parse_json
from tfdbg_arrow.schema.declaration import MAX_INT64
from tfdbg_arrow.storage.disk import sync, write_whole
from tfdbg_arrow.storage.layout import (
    MANIFEST_DIRECTORY,
    OwnFiles,
    check_run_id,
    is_part_name,
    is_run_id,
    manifest_path,
    part_directory,
    run_of_directory,
    shown,
    stems_in,
)

_TABLE_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_EMPTY_BLOCK = "\0" * 512
CHECKSUM_KEY = "checksum"
_BEGIN = f', "{CHECKSUM_KEY}": "'


@dataclass(frozen=True, kw_only=True)
class ManifestEntry:
    """One sealed part.

    Attributes:
        table: Name of the table. A newer MINOR version may define tables that this version does not know.
        path: `<table>/run=<run id>/part-<number>.parquet`, relative to the logdir.
        rows: Number of rows.
        bytes: Size of the file in bytes.
        sha256: SHA-256 of the file's bytes, in lower-case hexadecimal.
        min_event_index: Smallest event_index in the part; None if the part has no rows or the table has no such column.
        max_event_index: Largest event_index in the part; None if min_event_index is None.
    """

    table: str
    path: str
    rows: int
    bytes: int
    sha256: str
    min_event_index: int | None = None
    max_event_index: int | None = None

    def to_json(self) -> dict[str, object]:
        """Returns the entry as a JSON object. The object does not have the key `op` of a manifest line."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: object, *, run_id: str, where: str) -> ManifestEntry:
        """Reads an entry from a JSON object of a manifest. Unknown keys are ignored.

        Args:
            value: The parsed JSON.
            run_id: The run of the manifest. The path of the part must belong to this run.
            where: The file and the line, for the error message.

        Raises:
            LogdirError: A key is missing or has a value that is not valid in a manifest of this run.
        """
        fields = _object(value, where=where)
        table_name, path = _text(fields, "table", where=where), _text(fields, "path", where=where)
        if _TABLE_NAME.fullmatch(table_name) is None:
            raise _damaged(where, f"has the table {shown(table_name)}, expected the name of a table")
        _check_part_path(path, table_name=table_name, run_id=run_id, where=where)
        sha256 = _text(fields, "sha256", where=where)
        if _SHA256.fullmatch(sha256) is None:
            raise _damaged(where, f"has the sha256 {shown(sha256)}, expected 64 hexadecimal digits")
        first, last = fields.get("min_event_index"), fields.get("max_event_index")
        if (first is None) != (last is None):
            raise _damaged(where, "has only one of min_event_index and max_event_index, expected both or neither")
        entry = cls(
            table=table_name,
            path=path,
            rows=_count(fields, "rows", where=where),
            bytes=_count(fields, "bytes", where=where),
            sha256=sha256,
            min_event_index=None if first is None else _count(fields, "min_event_index", where=where),
            max_event_index=None if last is None else _count(fields, "max_event_index", where=where),
        )
        if (
            entry.min_event_index is not None
            and entry.max_event_index is not None
            and entry.min_event_index > entry.max_event_index
        ):
            raise _damaged(where, f"has event indexes from {first} to {last}, expected the smaller one first")
        return entry


@dataclass(frozen=True, kw_only=True)
class ManifestChange:
    """One line of a manifest.

    Attributes:
        removed: Paths of the parts that are no longer live.
        added: The new live parts.
        where: The file and the line, for messages.
        spool_upto: A position in the spool: all data before it is in parts. None if the line has no such position.
        is_recovery: Whether this line completes the recovery of the spool of a killed process.
        is_add: Whether the line adds one part and replaces no part.
    """

    removed: tuple[str, ...]
    added: tuple[ManifestEntry, ...]
    where: str
    spool_upto: int | None = None
    is_recovery: bool = False
    is_add: bool = False


def checksummed(lines: Iterable[str], *, before: int = 0) -> str:
    """Adds the checksums to lines of a manifest.

    Args:
        lines: The lines, as `add_line` and `replace_line` return them.
        before: The `zlib.crc32` of the manifest's content before these lines.
    """
    sealed = []
    for line in lines:
        sealed.append(with_checksum(line, before=before))
        before = zlib.crc32(sealed[-1].encode(), before)
    return "".join(sealed)


def add_line(entry: ManifestEntry, *, spool_upto: int | None = None) -> str:
    """Returns the manifest line for a sealed part, with the newline but without the checksum.

    Args:
        entry: The part.
        spool_upto: A position in the spool: all data of this table before it is now in parts. None if the part does not
            come from the spool.
    """
    return json.dumps({"op": "add", **entry.to_json(), **_upto(spool_upto)}) + "\n"


def replace_line(
    removed: Iterable[str], *, added: Iterable[ManifestEntry], spool_upto: int | None = None, is_recovery: bool = False
) -> str:
    """Returns the manifest line for parts that replace other parts, with the newline but without the checksum.

    Args:
        removed: The paths of the parts that are no longer live.
        added: The new parts.
        spool_upto: The first event index of the spool that is not yet in the parts of event tables. None means that
            this index does not change.
        is_recovery: Whether all data that a killed process left in its spool is now in parts.
    """
    line = {"op": "replace", "removed": list(removed), "added": [entry.to_json() for entry in added]}
    return json.dumps({**line, **_upto(spool_upto), **({"is_recovery": True} if is_recovery else {})}) + "\n"


def _upto(spool_upto: int | None) -> dict[str, int]:
    return {} if spool_upto is None else {"spool_upto": spool_upto}


@dataclass(frozen=True, kw_only=True)
class SpoolProgress:
    """Says how much of a run's spool is already in parts.

    Attributes:
        by_table: For each table of events, the first event index that is not in parts. For each other table, the first
            offset in the journal of rows that is not in parts.
        events: A first event index that applies to all tables of events. If `by_table` has a larger index for a table,
            the larger index applies to this table.
        is_recovered: Whether the whole spool is in parts, and the process that wrote the spool is dead.
    """

    by_table: Mapping[str, int]
    events: int
    is_recovered: bool


def spool_progress(text: str, *, run_id: str, path: str | PurePath) -> SpoolProgress:
    """Returns the information of a manifest about the spool. The arguments and errors are those of `live_parts`."""
    by_table: dict[str, int] = {}
    events, is_recovered = 0, False
    for change in manifest_changes(text, run_id=run_id, path=path):
        is_recovered = is_recovered or change.is_recovery
        if change.spool_upto is None:
            continue
        if change.is_add:
            table = change.added[0].table
            by_table[table] = max(by_table.get(table, 0), change.spool_upto)
        else:
            events = max(events, change.spool_upto)
    return SpoolProgress(by_table=by_table, events=events, is_recovered=is_recovered)


def live_parts(text: str, *, run_id: str, path: str | PurePath) -> tuple[ManifestEntry, ...]:
    """Returns the live parts of a manifest: the parts that were added and not replaced.

    The last line is ignored if it is incomplete. A process that is killed may leave an incomplete line.

    Args:
        text: The content of the manifest.
        run_id: The run of the manifest.
        path: The manifest file, for the error messages.

    Returns:
        The entries in the order in which they were added.

    Raises:
        LogdirError: A line is not valid in a manifest of this run.
    """
    live: dict[str, ManifestEntry] = {}
    for change in manifest_changes(text, run_id=run_id, path=path):
        for removed in change.removed:
            if live.pop(removed, None) is None:
                raise _damaged(change.where, f"removes {shown(removed)}, expected the path of a part added before")
        for entry in change.added:
            if entry.path in live:
                raise _damaged(change.where, f"adds {entry.path} a second time")
            live[entry.path] = entry
    return tuple(live.values())


def whole_lines(content: bytes) -> bytes:
    """Removes an incomplete last line from a manifest.

    A line that is JSON is complete, even if it has no newline. The process may have been killed before it wrote the
    newline.
    """
    start = content.removesuffix(b"\n").rfind(b"\n") + 1
    return content[:start] if is_cut_off(content[start:].decode("utf-8", errors="replace")) else content


def is_cut_off(line: str) -> bool:
    """Returns whether the last line of a manifest is incomplete. A process that dies may leave such a line.

    Args:
        line: The line. The newline is included if the line has one.
    """
    try:
        json.JSONDecoder().raw_decode(line)
    except (ValueError, RecursionError) as error:
        if isinstance(error, RecursionError) and is_stack_used_up():
            raise
        # A line with a newline was written completely, unless a power failure left empty blocks in the file.
        return not line.endswith("\n") or line.startswith("\0\0") or _EMPTY_BLOCK in line
    return False


def manifest_changes(text: str, *, run_id: str, path: str | PurePath) -> Iterator[ManifestChange]:
    """Yields one change for each line of a manifest, in order. The arguments and errors are those of `live_parts`."""
    crc = 0
    *whole, rest = text.split("\n")
    lines = [f"{line}\n" for line in whole] + ([rest] if rest else [])
    for index, line in enumerate(lines):
        where = f"{path}, line {index + 1},"
        try:
            value = parse_json(line)
        except ValueError as error:
            if index == len(lines) - 1 and is_cut_off(line):
                return
            raise _damaged(where, f"is not JSON ({error})") from None
        if not is_intact(line.removesuffix("\n"), before=crc):
            what = f"does not match its {CHECKSUM_KEY}: this line or an earlier one was changed, removed or added"
            raise _damaged(where, what)
        yield _change(value, run_id=run_id, where=where)
        crc = zlib.crc32(line.encode("utf-8", errors="surrogatepass"), crc)


def read_live_parts(logdir: Path, *, run_id: str) -> tuple[ManifestEntry, ...]:
    """Returns the live parts of a run. Returns an empty tuple if the run has no manifest yet.

    Args:
        logdir: The logdir.
        run_id: The run.

    Raises:
        LogdirError: The run ID or the manifest is not valid, the manifest cannot be read, or the manifest is not a
            regular file inside the logdir.
    """
    path = logdir / manifest_path(check_run_id(run_id, where=str(logdir)))
    OwnFiles(logdir).check([path])
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise LogdirError(f"{path} cannot be read ({error.strerror}); check its permissions.") from error
    return live_parts(content.decode("utf-8", errors="replace"), run_id=run_id, path=path)


def run_ids(logdir: Path) -> tuple[str, ...]:
    """Returns the IDs of the runs that have a manifest, oldest first.

    Files whose names are not run IDs are ignored.

    Raises:
        LogdirError: The directory cannot be listed.
    """
    return tuple(sorted(filter(is_run_id, stems_in(logdir / MANIFEST_DIRECTORY, suffix=".jsonl"))))


def resolve_part(logdir: Path, entry: ManifestEntry) -> Path:
    """Returns the path of a part, in which symbolic links are resolved.

    Raises:
        LogdirError: A symbolic link leads out of the logdir, or the part is a pipe, a device or a directory.
    """
    path = logdir / entry.path
    OwnFiles(logdir).check([path])
    return Path(os.path.realpath(path))


class ManifestFile:
    """Appends lines to the manifest of one run. Only one thread may use an object at a time.

    Args:
        path: The path of the manifest.

    Attributes:
        has_leftover: Whether readers may see a line that was not appended successfully, because the failed append could
            not be undone. The next line overwrites that line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = self._crc = 0
        self._lead = b""
        self.has_leftover = False

    def create(self) -> None:
        """Creates an empty manifest.

        Raises:
            OSError: The file cannot be created, or already exists.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "xb") as file:
            os.fsync(file.fileno())
        sync(self.path.parent)

    def resume(self) -> str:
        """Continues after the last complete line of a dead process. Returns the text up to and including that line.

        The file does not change until the next line is appended, because the caller may find that the text is damaged.

        Raises:
            OSError: The file cannot be read.
        """
        content = whole_lines(self.path.read_bytes())
        self._size, self._crc = len(content), zlib.crc32(content)
        self._lead = b"" if content.endswith(b"\n") or not content else b"\n"
        return content.decode("utf-8", errors="replace")

    def append(self, *lines: str) -> None:
        """Appends lines with their checksums, and syncs the file once.

        Args:
            *lines: The lines, as `add_line` or `replace_line` returns them.

        Raises:
            OSError: The lines cannot be written. Readers do not see them, unless `has_leftover` is True.
        """
        data = self._lead + checksummed(lines, before=zlib.crc32(self._lead, self._crc)).encode()
        # The file is unbuffered, because `close` would write the rest of a buffer even after an error.
        with open(self.path, "r+b", buffering=0) as file:
            try:
                file.truncate(self._size)  # remove the bytes of a failed append
                file.seek(self._size)
                self.has_leftover = True
                write_whole(file, data)
                os.fsync(file.fileno())
            except BaseException:
                with contextlib.suppress(OSError):
                    file.truncate(self._size)
                    self.has_leftover = False
                raise
        self.has_leftover = False
        self._size += len(data)
        self._crc = zlib.crc32(data, self._crc)
        self._lead = b""


def with_checksum(line: str, *, before: int = 0) -> str:
    """Adds a checksum to a line.

    Args:
        line: A JSON object with at least one key, followed by a newline.
        before: The `zlib.crc32` of all bytes of the file before the line.
    """
    begin = line.removesuffix("}\n")
    return begin + _end(begin, before) + "\n"


def is_intact(line: str, *, before: int = 0) -> bool:
    """Returns whether a line ends in the right checksum. The line must not have its newline."""
    begin, separator, rest = line.rpartition(_BEGIN)
    return separator + rest == _end(begin, before)


def _end(begin: str, before: int) -> str:
    return f'{_BEGIN}{zlib.crc32(begin.encode("utf-8", errors="surrogatepass"), before):08x}"}}'


def _change(value: object, *, run_id: str, where: str) -> ManifestChange:
    fields = _object(value, where=where)
    op = fields.get("op")
    removed: list[str] = []
    added: list[object] = []
    if op == "add":
        added = [fields]
    elif op == "replace":
        for path in _list(fields, "removed", where=where):
            if not isinstance(path, str):
                raise _damaged(where, f"removes {shown(path)}, expected the path of a part added before")
            removed.append(path)
        added = _list(fields, "added", where=where)
    else:
        raise _damaged(where, f"has the op {shown(op)}, expected 'add' or 'replace'")
    entries = tuple(ManifestEntry.from_json(entry, run_id=run_id, where=where) for entry in added)
    return ManifestChange(
        removed=tuple(removed),
        added=entries,
        where=where,
        spool_upto=None if fields.get("spool_upto") is None else _count(fields, "spool_upto", where=where),
        is_recovery=fields.get("is_recovery") is True,
        is_add=op == "add",
    )


def _check_part_path(path: str, *, table_name: str, run_id: str, where: str) -> None:
    table, _, rest = path.partition("/")
    directory, _, name = rest.rpartition("/")
    if table != table_name or run_of_directory(directory) != run_id or not is_part_name(name):
        expected = part_directory(table_name, run_id=run_id)
        raise _damaged(where, f"has the path {shown(path)}, expected {expected}/part-<number>.parquet")


def _object(value: object, *, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _damaged(where, f"holds {shown(value)}, expected a JSON object")
    return value


def _text(fields: dict[str, object], key: str, *, where: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str):
        raise _damaged(where, f"has the {key} {shown(value)}, expected a string")
    return value


def _count(fields: dict[str, object], key: str, *, where: str) -> int:
    value = fields.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_INT64:
        raise _damaged(where, f"has {key} = {shown(value)}, expected a whole number from 0 to 2**63 - 1")
    return value


def _list(fields: dict[str, object], key: str, *, where: str) -> list[object]:
    value = fields.get(key)
    if not isinstance(value, list):
        raise _damaged(where, f"has {key} = {shown(value)}, expected a list")
    return value


def _damaged(where: str, what: str) -> LogdirError:
    return LogdirError(f"{where} {what}; the manifest is damaged: restore it, or remove this run from the logdir.")
