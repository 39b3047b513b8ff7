"""Exports a logdir as dumps for TensorFlow's Debugger V2: for DebugDataReader, its monitors, and TensorBoard.

Each run becomes one dump, because the reader accepts one dump per directory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdbg_arrow.debugger_v2.export_rows import RunRows
from tfdbg_arrow.debugger_v2.export_run import EXPORTABLE, MODES, PROGRESS_TABLES, TABLES, LeftOut, RunWriter
from tfdbg_arrow.debugger_v2.file_sets import DumpFiles, check_dump, file_prefix
from tfdbg_arrow.errors import DumpError, LogdirError, SettingError
from tfdbg_arrow.query.info import Run, read_runs
from tfdbg_arrow.query.logdir.open_logdir import OpenLogdir

_FULL_TENSOR_NOTE = (
    "TensorBoard and the InfNanMonitor wait forever on a dump in FULL_TENSOR; DebugDataReader can read it. Export in "
    "FULL_HEALTH for them."
)
_NO_TENSOR_NOTE = "A recording in NO_TENSOR has no rows of graph tensors, so its dump has no graph execution traces."

Progress = Callable[[int, int], None]
"""A callback that receives the work done so far and the total work."""


@dataclass(frozen=True, kw_only=True)
class ExportedRun:
    """One exported run.

    Attributes:
        run_id: The run.
        dump: The directory of its dump.
        tensor_debug_mode: The mode of the dump.
        num_records: Number of records by file.
        size_bytes: Size of all files of the dump.
        left_out: Rows that the dump cannot hold.
        notes: Further notes for the user, as sentences.
    """

    run_id: str
    dump: Path
    tensor_debug_mode: str
    num_records: dict[str, int]
    size_bytes: int
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]


def export_logdir(
    logdir: Path,
    dump: Path,
    *,
    run_id: str | None = None,
    tensor_debug_mode: str | None = None,
    progress: Progress = lambda done, total: None,
) -> tuple[ExportedRun, ...]:
    """Writes runs of a logdir as dumps of Debugger V2.

    Args:
        logdir: The logdir. For a run that is still being recorded, the rows written so far are exported.
        dump: The directory of the dump if there is one run. If there are several runs, each dump goes to
            `<dump>/<run_id>`.
        run_id: The run to export; None means all runs.
        tensor_debug_mode: The mode of the dumps. The mode must be one of MODES, and derivable from the recording's
            mode. None means the recording's own mode, or FULL_HEALTH for a recording in FULL_NUMERICS.
        progress: Called regularly.

    Returns:
        The runs that were written, oldest first.

    Raises:
        LogdirError: The path is not a logdir, or the logdir contains no run, or it does not contain the given run.
        BrokenPartError: A part cannot be read.
        DumpError: A dump cannot be written to the path.
        SettingError: The mode cannot be exported.
    """
    if tensor_debug_mode is not None and tensor_debug_mode not in MODES:
        raise SettingError(f"tensor_debug_mode is {tensor_debug_mode!r}, expected one of {', '.join(MODES)}.")
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(OpenLogdir(logdir))
        all_run_ids = opened.run_ids()
        if run_id is not None and run_id not in all_run_ids:
            raise LogdirError(f"{logdir} has no run {run_id!r}; it has {', '.join(all_run_ids) or 'none'}.")
        chosen = all_run_ids if run_id is None else (run_id,)
        if not chosen:
            raise LogdirError(f"{logdir} holds no run; record a program into it first.")
        targets = [dump if len(chosen) == 1 else dump / name for name in chosen]
        for target in (dump, *targets):
            check_dump(target)
        exports = [
            _Export(
                stack.enter_context(contextlib.closing(opened.of_runs([name]))),
                name,
                target,
                tensor_debug_mode=tensor_debug_mode,
            )
            for name, target in zip(chosen, targets, strict=True)
        ]
        sizes = [export.size() for export in exports]

        def after(before: int) -> Callable[[int], None]:
            return lambda done: progress(before + done, sum(sizes))

        return tuple(export.write(after(sum(sizes[:number]))) for number, export in enumerate(exports))


class _Export:
    """The export of one run.

    Args:
        scope: The logdir, restricted to the run.
        run_id: The run.
        dump: The directory of its dump.
        tensor_debug_mode: The requested mode.

    Raises:
        LogdirError: The run has no row.
        SettingError: The run cannot be exported in that mode.
    """

    def __init__(self, scope: OpenLogdir, run_id: str, dump: Path, *, tensor_debug_mode: str | None) -> None:
        self._scope, self._run_id, self._dump = scope, run_id, dump
        self._run = self._read_run()
        self._mode = self._mode_to_write(tensor_debug_mode)

    def size(self) -> int:
        """Returns the number of rows to export."""
        return sum(int(self._scope.rows(f"SELECT count(*) FROM {table}")[0][0]) for table in PROGRESS_TABLES)

    def write(self, report: Callable[[int], None]) -> ExportedRun:
        """Writes the dump. If a recording replaces parts in the meantime, the dump is written again.

        Args:
            report: Called regularly with the number of rows that were exported.

        Raises:
            BrokenPartError: A part cannot be read.
            DumpError: The dump cannot be written.
        """
        try:
            return self._scope.read_with(
                f"SELECT * FROM {', '.join(TABLES)}", lambda connection: self._write(connection, report)
            )
        except OSError as error:
            raise DumpError(
                f"the dump {self._dump} cannot be written ({error.strerror or error}); its files were removed."
            ) from error

    def _write(self, connection: Any, report: Callable[[int], None]) -> ExportedRun:
        done = 0

        def advance(num_rows: int) -> None:
            nonlocal done
            done += num_rows
            report(done)

        prefix = file_prefix(self._run.wall_time_ns, host_name=self._run.host_name or "localhost")
        with DumpFiles(self._dump, prefix) as files:
            rows = RunRows(connection)
            left_out = RunWriter(rows, self._run, mode=self._mode, files=files, advance=advance).write()
        return ExportedRun(
            run_id=self._run_id,
            dump=self._dump,
            tensor_debug_mode=self._mode,
            num_records=files.num_records,
            size_bytes=files.size_bytes,
            left_out=left_out,
            notes=_notes(self._run, self._mode),
        )

    def _read_run(self) -> Run:
        run = next(iter(read_runs(self._scope)), None)
        if run is None:
            raise LogdirError(
                f"{self._scope.path} has no row for the run {self._run_id}, which ended while it started; give the "
                "--run of another run."
            )
        if _is_imported(run) and run.end_wall_time_ns is None:
            raise LogdirError(
                f"the import of the run {self._run_id} was not finished; run `tfdbg-arrow import` again to finish it."
            )
        return run

    def _mode_to_write(self, asked: str | None) -> str:
        # A mode is unknown if an imported dump has no events, or was written by an internal function of TensorFlow.
        mode = self._run.tensor_debug_mode or ""
        recorded = mode if mode in EXPORTABLE else "NO_TENSOR"
        can_give = EXPORTABLE[recorded]
        if asked is None:
            return recorded if recorded in can_give else "FULL_HEALTH"
        if asked not in can_give:
            raise SettingError(
                f"the run {self._run_id} was recorded in {recorded}, which cannot be exported in {asked}, only in "
                f"{', '.join(can_give)}."
            )
        return asked


def _is_imported(run: Run) -> bool:
    """Returns whether a run was made from a dump."""
    return run.health_backend == "debugger_v2"


def _notes(run: Run, written: str) -> tuple[str, ...]:
    notes = []
    if run.tensor_debug_mode == "FULL_NUMERICS" and written == "FULL_HEALTH":
        notes.append("Debugger V2 has no FULL_NUMERICS: the dump is in FULL_HEALTH, without the magnitudes.")
    if written == "FULL_TENSOR":
        notes.append(_FULL_TENSOR_NOTE)
    if run.tensor_debug_mode == "NO_TENSOR" and not _is_imported(run):
        notes.append(_NO_TENSOR_NOTE)
    return tuple(notes)
