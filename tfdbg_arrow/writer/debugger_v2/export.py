"""Export of a logdir as dumps that TensorFlow's Debugger V2 reads: its DebugDataReader, monitors and TensorBoard.

One run is one dump, as its reader takes one in a directory. A run that we recorded is mapped (`export_recorded`); one
that was imported from a dump gives back what was imported (`export_imported`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from tfdbg_arrow.errors import LogdirError, SettingError
from tfdbg_arrow.schema.logdir_check import check_logdir
from tfdbg_arrow.schema.logdir_layout import run_ids
from tfdbg_arrow.writer.debugger_v2.export_files import DumpFiles, check_dump, file_prefix
from tfdbg_arrow.writer.debugger_v2.export_recorded import PROGRESS_TABLES, LeftOut, RecordedRun, RunRow
from tfdbg_arrow.writer.debugger_v2.export_summaries import EXPORTABLE, MODES
from tfdbg_arrow.writer.debugger_v2.export_tables import PartGoneError, RunTables

_ATTEMPTS = 5
"""How often an export begins anew where the run is still recording and its parts are replaced meanwhile."""

Progress = Callable[[int, int], None]
"""Told how much is done, and of how much."""


@dataclass(frozen=True, kw_only=True)
class ExportedRun:
    """One run as it was written.

    Attributes:
        run_id: The run.
        dump: The directory that holds its dump.
        tensor_debug_mode: The dump's; None for an imported one without events.
        is_imported: Whether the dump is that which was imported, given back.
        num_records: By file, how many records it has.
        size_bytes: Of all its files.
        left_out: What the dump has no place for.
        notes: What else its user should know, as sentences.
    """

    run_id: str
    dump: Path
    tensor_debug_mode: str | None
    is_imported: bool
    num_records: dict[str, int]
    size_bytes: int
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]
