"""Imports dumps of TensorFlow's Debugger V2 into a logdir, without TensorFlow.

Each file set becomes a run. The run's id depends only on the dump, so that a dump is never imported twice. The
`settings` of the run's row describe its source under `debugger_v2`:

* `prefix`: the common prefix of the file names;
* `files`: the size in bytes of each existing file, by suffix;
* `num_events`: the number of records of all files;
* `file_version`, `tfdbg_run_id`: the values in the metadata;
* `is_finished`: whether the import was completed. A run whose import was not completed is imported again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from google.protobuf.message import DecodeError

from tfdbg_arrow._version import __version__
from tfdbg_arrow.debugger_v2.definitions import Definitions, wall_time_ns
from tfdbg_arrow.debugger_v2.events import EventImporter
from tfdbg_arrow.debugger_v2.file_sets import FILES, Damage, FileSet, RecordReader, find_file_sets
from tfdbg_arrow.debugger_v2.health import mode_name
from tfdbg_arrow.debugger_v2.import_tables import RowBuffer
from tfdbg_arrow.debugger_v2.protos.debug_event_pb2 import DebugEvent
from tfdbg_arrow.debugger_v2.scan import EventScanner, event_scanner
from tfdbg_arrow.errors import DumpError, LogdirError, TfdbgArrowError
from tfdbg_arrow.schema import FORMAT_VERSION, TABLES
from tfdbg_arrow.spool.convert import metadata_table
from tfdbg_arrow.spool.failures import Failures
from tfdbg_arrow.storage.disk import lock_file
from tfdbg_arrow.storage.layout import MANIFEST_DIRECTORY, make_run_id, manifest_path, part_directory
from tfdbg_arrow.storage.manifest import read_live_parts, resolve_part
from tfdbg_arrow.storage.marker import mark_logdir
from tfdbg_arrow.writer.rows import to_json
from tfdbg_arrow.writer.sink.parts import PartWriter

_DEFINITIONS = FILES[:4]

Progress = Callable[[int, int], None]
"""A callback that receives (bytes read, bytes of all files)."""


@dataclass(frozen=True, kw_only=True)
class ImportedRun:
    """The result of importing one file set.

    Attributes:
        run_id: The run.
        prefix: The common prefix of the file names.
        is_new: Whether the file set was imported now; False if the logdir already contained it.
        num_events: Number of records of all files.
        rows: Number of the run's rows by table, even if the run already existed.
        dropped: Rows of capture_stat that state which data could not be imported, and why.
    """

    run_id: str
    prefix: str
    is_new: bool
    num_events: int
    rows: dict[str, int]
    dropped: tuple[dict[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class Imported:
    """The result of an import.

    Attributes:
        dump: The directory of the dump.
        logdir: The logdir.
        runs: The runs, ordered by the prefixes of their files.
        seconds: Duration of the import.
    """

    dump: str
    logdir: str
    runs: tuple[ImportedRun, ...]
    seconds: float

    @property
    def num_events(self) -> int:
        """Number of records that were imported now."""
        return sum(run.num_events for run in self.runs if run.is_new)


def import_dump(
    dump: str | os.PathLike[str], logdir: str | os.PathLike[str], *, progress: Progress | None = None
) -> Imported:
    """Imports every file set of a dump as a run; file sets that the logdir already has are skipped.

    After an interruption, the import of the unfinished run starts again from the beginning; readers never see rows
    twice.

    Args:
        dump: The directory that Debugger V2 wrote to.
        logdir: The logdir; it is created if missing, and may hold other runs.
        progress: Called regularly with the progress.

    Raises:
        DumpError: The dump cannot be read.
        LogdirError: The logdir cannot be written or has another format version, or another process is importing the
            same dump into the logdir.
    """
    begin = time.monotonic()
    target = Path(logdir)
    file_sets = find_file_sets(dump)
    if target.exists() and not target.is_dir():
        raise LogdirError(f"the logdir {target} is a file; give a directory, which is created if missing")
    total = sum(file_set.num_bytes for file_set in file_sets)
    runs: list[ImportedRun] = []
    done = 0
    for file_set in file_sets:
        before = done

        def report(num_bytes: int, before: int = before) -> None:
            if progress is not None:
                progress(before + num_bytes, total)

        with _written(target):
            run = _import_file_set(file_set, target, report=report)
        runs.append(run)
        done += file_set.num_bytes
        report(file_set.num_bytes)
    return Imported(dump=os.fspath(dump), logdir=str(target), runs=tuple(runs), seconds=time.monotonic() - begin)


@contextmanager
def _written(logdir: Path) -> Iterator[None]:
    try:
        yield
    except TfdbgArrowError:
        raise
    except OSError as error:
        raise LogdirError(
            f"the logdir {logdir} cannot be written: {error}; free space, fix its permissions or choose another path; "
            "the same command then starts over with the unfinished run"
        ) from error


def run_id_of(file_set: FileSet) -> str:
    """Returns the run ID for a file set. The ID depends only on the file names and the first record."""
    metadata = _first_metadata(file_set)
    start_ns = file_set.seconds * 1_000_000_000
    run_id = b""
    if metadata is not None:
        start_ns = wall_time_ns(metadata.wall_time) or start_ns
        run_id = metadata.debug_metadata.tfdbg_run_id.encode()
    digest = hashlib.sha256(run_id + b"\0" + os.fsencode(file_set.prefix)).hexdigest()
    base = make_run_id(max(0, min(start_ns, 2**62)), host_name=file_set.host_name or "dump", pid=0)
    return f"{base.removesuffix('-0')}-dump-{digest[:12]}"


def _first_metadata(file_set: FileSet) -> Any:
    path = file_set.paths.get("metadata")
    if path is None:
        return None
    with _open(path) as file:
        for record in RecordReader(file):
            try:
                event = DebugEvent.FromString(record)
            except DecodeError:
                continue
            if event.HasField("debug_metadata"):
                return event
    return None


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    try:
        file = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        raise DumpError(f"{path} cannot be read ({error.strerror or error}); check its permissions") from error
    with file:
        yield file


def _import_file_set(file_set: FileSet, logdir: Path, *, report: Callable[[int], None]) -> ImportedRun:
    run_id = run_id_of(file_set)
    mark_logdir(logdir)
    with _locked(logdir, run_id):
        present = _finished(logdir, run_id, file_set)
        if present is not None:
            return present
        _remove(logdir, run_id)
        return _Import(file_set, logdir, run_id, report=report).run()


@contextmanager
def _locked(logdir: Path, run_id: str) -> Iterator[None]:
    """Prevents other imports of the same dump; the lock is released when the process ends for any reason."""
    path = logdir / MANIFEST_DIRECTORY / f"{run_id}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        try:
            lock_file(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LogdirError(
                f"another import is writing the run {run_id} to the logdir {logdir}; wait until it has ended"
            ) from None
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _finished(logdir: Path, run_id: str, file_set: FileSet) -> ImportedRun | None:
    """Returns the result of an earlier import of the same files; None if there is no finished import."""
    try:
        parts = read_live_parts(logdir, run_id=run_id)
        rows = dict.fromkeys((table.name for table in TABLES), 0)
        stats: list[dict[str, Any]] = []
        settings: dict[str, Any] = {}
        for part in parts:
            rows[part.table] = rows.get(part.table, 0) + part.rows
            path = resolve_part(logdir, part)
            if not path.exists():
                return None
            if part.table == "run" and part.rows:
                settings = json.loads(pq.read_table(path, partitioning=None)["settings"][0].as_py())["debugger_v2"]
            elif part.table == "capture_stat" and part.rows:
                stats.extend(pq.read_table(path, partitioning=None).to_pylist())
    except (LogdirError, ValueError, LookupError, TypeError, RecursionError, OSError, pa.ArrowException):
        return None  # the run is damaged, so it is imported again
    if (
        not isinstance(settings, dict)
        or not settings.get("is_finished")
        or settings.get("files") != dict(file_set.sizes)
        or not isinstance(settings.get("num_events"), int)
    ):
        return None
    return ImportedRun(
        run_id=run_id,
        prefix=file_set.prefix,
        is_new=False,
        num_events=settings["num_events"],
        rows=rows,
        dropped=tuple(_shown(stat) for stat in stats),
    )


def _remove(logdir: Path, run_id: str) -> None:
    """Removes the files of an interrupted import: first the files that readers use to find the run, then the rest."""
    (logdir / manifest_path(run_id)).unlink(missing_ok=True)
    for table in TABLES:
        directory = logdir / part_directory(table.name, run_id=run_id)
        if directory.is_dir():
            shutil.rmtree(directory)


def _shown(stat: dict[str, Any]) -> dict[str, Any]:
    return {name: stat[name] for name in ("stat", "subject", "reason", "num_events")}


class _Import:
    """The import of one file set."""

    def __init__(self, file_set: FileSet, logdir: Path, run_id: str, *, report: Callable[[int], None]) -> None:
        self._file_set, self._run_id, self._report = file_set, run_id, report
        self._parts = PartWriter(logdir, run_id)
        self._rows = RowBuffer(self._parts, run_id)
        self._problems = Failures(lambda sentence: None)
        self._definitions = Definitions(self._rows, self._problems)
        self._events = EventImporter(self._definitions, rows=self._rows, problems=self._problems)
        self._num_definitions = 0
        self._done = 0

    def run(self) -> ImportedRun:
        """Imports all files."""
        self._parts.start()
        self._parts.replace([], {table.name: None for table in TABLES})
        self._parts.write("run", self._run_table(is_finished=False))
        for file in FILES:
            if file not in self._file_set.paths:
                self._problems.note("dropped", f"file {file}", "is missing in the dump", None)
        for file in _DEFINITIONS:
            self._read_definitions(file)
        self._definitions.finish()
        self._read_events()
        end_ns = self._events.last_wall_time_ns or self._definitions.wall_time_ns or 0
        stats = self._problems.take_notes()
        end = {"event_index": self._rows.num_rows["tensor_health"], "wall_time_ns": end_ns}
        for stat in stats:
            self._rows.add_row("capture_stat", end | stat)
        self._rows.flush()
        old = [entry.path for entry in self._parts.parts("run")]
        is_whole = all(stat["stat"] != "dropped" for stat in stats)
        self._parts.replace(old, {"run": [self._run_table(is_finished=True, is_whole=is_whole)]})
        return ImportedRun(
            run_id=self._run_id,
            prefix=self._file_set.prefix,
            is_new=True,
            num_events=self._num_definitions + self._events.num_events,
            rows={**self._rows.num_rows, "run": 1},
            dropped=tuple(map(_shown, stats)),
        )

    def _read_definitions(self, file: str) -> None:
        path = self._file_set.paths.get(file)
        if path is None:
            return
        with _open(path) as opened:
            reader = RecordReader(opened)

            def records() -> Iterator[bytes]:
                for record in reader:
                    self._num_definitions += 1
                    yield record
                    self._report(self._done + reader.offset)

            self._definitions.read(file, records())
            self._note_damage(file, reader.damage)
        self._done += self._file_set.sizes[file]

    def _read_events(self) -> None:
        paths = self._file_set.paths
        with ExitStack() as stack:
            scanners: dict[str, EventScanner] = {}
            for file in FILES[len(_DEFINITIONS) :]:
                if file in paths:
                    opened = stack.enter_context(_open(paths[file]))
                    scanners[file] = event_scanner(opened, intern=self._events.templates.intern)

            def report() -> None:
                self._report(self._done + sum(scanner.offset for scanner in scanners.values()))

            executions, traces = (scanners.get(file) for file in FILES[len(_DEFINITIONS) :])
            self._events.read(executions, traces, report=report)
            for file, scanner in scanners.items():
                self._note_damage(file, scanner.damage)

    def _note_damage(self, file: str, damage: Damage | None) -> None:
        if damage is None:
            return
        size = self._file_set.sizes[file]
        reason = f"{damage.reason} at byte {damage.offset}; unread bytes: {max(0, size - damage.offset)}"
        self._problems.note("dropped", f"file {file}", reason, None)

    def _run_table(self, *, is_finished: bool, is_whole: bool = False) -> Any:
        metadata = self._definitions.metadata
        file_set = self._file_set
        mode = self._events.templates.first_mode
        start_ns = self._definitions.wall_time_ns or file_set.seconds * 1_000_000_000
        dump = {
            "prefix": os.fsencode(file_set.prefix).decode("utf-8", errors="backslashreplace"),
            "files": dict(file_set.sizes),
            "num_events": self._num_definitions + self._events.num_events,
            "file_version": metadata.file_version if metadata is not None else None,
            "tfdbg_run_id": metadata.tfdbg_run_id if metadata is not None else None,
            "is_finished": is_finished,
        }
        row = {
            "wall_time_ns": start_ns,
            "end_wall_time_ns": self._events.last_wall_time_ns or start_ns if is_finished else None,
            "is_clean_end": is_whole,
            "format_version": FORMAT_VERSION,
            "tfdbg_arrow_version": __version__,
            "tensorflow_version": metadata.tensorflow_version if metadata is not None else None,
            "host_name": file_set.host_name,
            "tensor_debug_mode": None if mode is None else mode_name(mode),
            "health_backend": "debugger_v2",
            "settings": to_json({"debugger_v2": dump}),
        }
        return metadata_table("run", [row], run_id=self._run_id)
