"""verify: checks that every byte of data in a logdir is as it was written."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tfdbg_arrow.errors import FormatVersionError, LogdirError
from tfdbg_arrow.query.verification.files import LogdirFiles
from tfdbg_arrow.query.verification.findings import Deviation, Deviations
from tfdbg_arrow.query.verification.runs import RunCheck
from tfdbg_arrow.query.verification.spools import check_strays
from tfdbg_arrow.schema.checksum import CHECKSUMS_SINCE, is_intact
from tfdbg_arrow.schema.location import parse_location
from tfdbg_arrow.schema.logdir_check import check_logdir
from tfdbg_arrow.schema.logdir_layout import MANIFEST_DIRECTORY, MARKER_NAME, parse_marker
from tfdbg_arrow.schema.version import parse_format_version


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The result of comparing a logdir with its manifests.

    Attributes:
        path: The logdir.
        num_runs: Number of runs.
        num_parts: Number of live parts.
        num_rows: Number of their rows, according to the manifests.
        num_bytes: Number of their bytes, according to the manifests.
        num_damaged: How many deviations are damage.
        deviations: The deviations, damage first; at most the first 1,000 of each kind.
    """

    path: str
    num_runs: int
    num_parts: int
    num_rows: int
    num_bytes: int
    num_damaged: int
    deviations: tuple[Deviation, ...]

    @property
    def is_intact(self) -> bool:
        """Whether nothing is changed, missing or extra."""
        return self.num_damaged == 0


def verify(logdir: str | Path, *, progress: Callable[[int, int], None] = lambda done, total: None) -> Verification:
    """Finds every changed, missing and extra byte of data in a local logdir, without changing the logdir.

    It reads every live part and compares its size, SHA-256, rows, event indexes and columns with the manifest and the
    format. It compares the manifests, the marker and the journals that wait for recovery with their checksums, and the
    existing files with the files that the manifests name. Files that a killed process left are not damage.

    It cannot find changes that somebody made on purpose, together with the manifest and the checksums. If a run was
    killed and not recovered yet, it cannot find lost lines at the end of the manifest, or changes of the events and
    elements in the spool, which have no checksums.

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
    deviations = Deviations()
    _check_marker(path, deviations)
    try:
        files = LogdirFiles.of(path)
        checks = [RunCheck(path, run_id, files.of_run(run_id)) for run_id in files.run_ids()]
        files.tell_strays(deviations)
        check_strays(path, deviations)
        total = sum(check.num_bytes for check in checks)
        done = 0
        for check in checks:
            check.run(deviations, functools.partial(_report, progress, done, total))
            done += check.num_bytes
    except OSError as error:
        raise LogdirError(f"{error.filename or path} cannot be read ({error.strerror or error}).") from error
    progress(total, total)
    return Verification(
        path=str(path),
        num_runs=len(checks),
        num_parts=sum(len(check.live) for check in checks),
        num_rows=sum(entry.rows for check in checks for entry in check.live),
        num_bytes=total,
        num_damaged=deviations.num_damaged,
        deviations=deviations.all(),
    )


def _report(progress: Callable[[int, int], None], before: int, total: int, done: int) -> None:
    progress(before + done, total)


def _check_marker(path: Path, deviations: Deviations) -> None:
    """Checks the marker file. Raises the same as `verify`."""
    marker = path / MARKER_NAME
    if not os.path.lexists(marker) and (path / MANIFEST_DIRECTORY).is_dir():
        deviations.add("missing", MARKER_NAME, "is missing")
        return
    try:
        check_logdir(path)
        text = marker.read_bytes().decode("utf-8", errors="replace")
        version = parse_marker(text, path=marker)
    except OSError as error:
        raise LogdirError(f"{marker} cannot be read ({error.strerror}); check its permissions.") from error
    except FormatVersionError:
        if is_intact(marker.read_text("utf-8", errors="replace").removesuffix("\n")) is not False:
            raise
        deviations.add("changed", MARKER_NAME, "does not match its checksum")
        return
    except LogdirError as error:
        if not marker.is_file():
            raise
        deviations.add("changed", MARKER_NAME, f"is damaged: {error}")
        return
    if is_intact(text.removesuffix("\n")) is None:
        if parse_format_version(version, path=marker) >= CHECKSUMS_SINCE:
            deviations.add("changed", MARKER_NAME, f"has no checksum, which format {version} requires")
        else:
            deviations.add("unchecked", MARKER_NAME, "has no checksum, because format 1.0 had none")
    elif not text.endswith("\n"):
        deviations.add("missing", MARKER_NAME, "has no newline at its end")
