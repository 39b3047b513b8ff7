"""export_tensorboard: writes the curves, layers and distributions of recordings as event files of TensorBoard."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdbg_arrow.errors import ExportError
from tfdbg_arrow.query.asked_runs import find_run
from tfdbg_arrow.query.exports.event_files import is_run_directory
from tfdbg_arrow.query.exports.run_events import Progress, RunEvents, RunExport
from tfdbg_arrow.query.exports.targets import check_target, size_of
from tfdbg_arrow.query.following import recording_runs, wait_after_look
from tfdbg_arrow.query.info import read_runs
from tfdbg_arrow.query.logdir.open_logdir import OpenLogdir
from tfdbg_arrow.storage.disk import written_whole


@dataclass(frozen=True, kw_only=True)
class TensorBoardExport:
    """The result of export_tensorboard.

    Attributes:
        path: The directory, for `tensorboard --logdir`.
        runs: The exported data of each run, oldest run first.
        size_bytes: The size of the export in bytes.
    """

    path: Path
    runs: tuple[RunEvents, ...]
    size_bytes: int


def export_tensorboard(
    logdir: OpenLogdir | str | Path,
    target: str | Path,
    *,
    run_id: str | None = None,
    overwrite: bool = False,
    follow: bool = False,
    interval_s: float = 2.0,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress = lambda run_id, axis, position: None,
) -> TensorBoardExport:
    """Writes curves and distributions as event files, which TensorBoard and other experiment trackers read.

    Each run is a directory with one event file. The steps in the file are the marked training steps, or the executions
    if the run has no steps. The time of a step is the time of its last tensor or mark. The target gets its name when it
    is complete. With `follow`, the target gets its name as soon as it holds the runs that have ended.

    Args:
        logdir: A logdir, or its path or URL. A run in it may still be recording.
        target: The directory to create.
        run_id: Only this run, given by its ID or its name; None means all runs.
        overwrite: Whether to replace an existing export.
        follow: Whether to append the steps of recordings in progress, until all have ended or until a
            KeyboardInterrupt. A step is written once the previous reading of the logdir found a later step. Data that a
            program adds to a step afterwards is not written. A run without steps is written when it has ended.
        interval_s: With `follow`, the minimum wait between two readings of the logdir, in seconds.
        storage_options: Options passed to fsspec for a URL.
        progress: Called for each window of positions.

    Raises:
        LogdirError: The path is not a readable logdir.
        QueryError: There is no such run.
        BrokenPartError: A part cannot be read.
        ExportError: The target cannot be written.
        MissingDependencyError: The package `tensorboard` is not installed.
    """
    path = check_target(target, content="event files", holds=is_run_directory, overwrite=overwrite)
    with contextlib.ExitStack() as stack:
        if not isinstance(logdir, OpenLogdir):
            logdir = stack.enter_context(OpenLogdir(logdir, storage_options=storage_options))
        wanted = None if run_id is None else find_run(logdir, run_id)
        export = _Export(logdir, wanted, follow=follow, progress=progress)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with written_whole(path) as temporary:
                temporary.mkdir()
                started_s = time.monotonic()
                goes_on = export.look(temporary)
            with contextlib.suppress(KeyboardInterrupt):
                while goes_on:
                    wait_after_look(started_s, interval_s=interval_s)
                    started_s = time.monotonic()
                    goes_on = export.look(path)
            return TensorBoardExport(path=path, runs=export.runs(), size_bytes=size_of(path))
        except OSError as error:
            what_is_left = "what was written before is left there" if export.has_looked else "nothing was left there"
            raise ExportError(f"{path} cannot be written ({error}); {what_is_left}.") from error


class _Export:
    """The runs of an export. With `follow`, each call of look() adds to the runs."""

    def __init__(self, logdir: OpenLogdir, run_id: str | None, *, follow: bool, progress: Progress) -> None:
        self._logdir, self._run_id, self._follow, self._progress = logdir, run_id, follow, progress
        self._exports: dict[str, RunExport] = {}
        self.has_looked = False

    def look(self, root: Path) -> bool:
        """Writes the data that was recorded since the last call. Returns whether a recording is still in progress.

        Args:
            root: The directory of the export.
        """
        # Read this before the rows: a recording that ends in the meantime still counts as running, so that its rows are
        # read once more.
        recording = recording_runs(self._logdir) if self._follow else frozenset[str]()
        if self._follow:
            self._logdir.refresh()
        runs = read_runs(self._logdir)
        if recording is None:
            recording = frozenset(run.run_id for run in runs if run.end_wall_time_ns is None)
        for run in runs:
            if self._run_id in (None, run.run_id):
                export = self._exports.setdefault(run.run_id, RunExport(run.run_id))
                export.write(self._logdir, root, run, is_ended=run.run_id not in recording, progress=self._progress)
        self.has_looked = True
        return bool(recording) if self._run_id is None else self._run_id in recording

    def runs(self) -> tuple[RunEvents, ...]:
        """Returns the content of the export, by run."""
        return tuple(export.told(self._logdir) for export in self._exports.values())
