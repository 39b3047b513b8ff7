"""doctor: what is wrong with a logdir, how that is known, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdbg_arrow.errors import BrokenPartError, FormatVersionError, LogdirError, QueryError
from tfdbg_arrow.query.diagnosis.findings import Finding
from tfdbg_arrow.query.diagnosis.parts import examine_parts
from tfdbg_arrow.query.diagnosis.runs import examine_runs
from tfdbg_arrow.query.logdir import Logdir, open_logdir
from tfdbg_arrow.query.strange_rows import strange_rows_told
from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.schema.location import RemoteLocation, parse_location
from tfdbg_arrow.schema.logdir_check import check_logdir
from tfdbg_arrow.schema.logdir_layout import MARKER_NAME

_SEVERITIES = ("error", "warning", "info")


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What was found in a logdir.

    Attributes:
        path: The path or URL.
        findings: By severity, then in the order of the runs.
    """

    path: str
    findings: tuple[Finding, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong: findings of severity `info` are facts worth knowing, and no defects."""
        return all(finding.severity == "info" for finding in self.findings)


def doctor(
    logdir: str | Path,
    *,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Diagnosis:
    """Says what is wrong with a logdir, or with what is taken for one.

    Of a logdir here, every part is compared with the manifest's SHA-256; of one at a URL, those that are fetched.

    Args:
        logdir: The path or URL; anything that exists will do.
        storage_options: fsspec's arguments for a URL.
        progress: Told how many bytes of the parts were read, and of how many.

    Raises:
        LogdirError: The path does not exist or cannot be read, or the URL cannot be.
        MissingDependencyError: What opens the URL is not installed.
    """
    location = parse_location(logdir)
    findings: list[Finding] = []
    if isinstance(location, Path):
        what = _what_it_is(location)
        findings = [what] if what is not None else examine_parts(location, progress=progress)
        if what is not None or any(finding.severity == "error" for finding in findings):
            return _diagnosis(location, findings)
    try:
        with open_logdir(logdir, storage_options=storage_options) as opened:
            findings += _examine_runs(opened)
    except FormatVersionError as error:
        findings.append(_newer_format(error))
    except (BrokenPartError, QueryError) as error:
        findings.append(
            _unreadable(error, "Restore the file that is named from a copy of the logdir, or record again.")
        )
    return _diagnosis(location, findings)


def _examine_runs(logdir: Logdir) -> list[Finding]:
    try:
        with strange_rows_told(logdir.path):
            return list(examine_runs(logdir))
    except (BrokenPartError, QueryError):
        raise
    except LogdirError as error:
        return [_unreadable(error, "Restore the logdir from a copy, or record again.")]


def _unreadable(error: Exception, advice: str) -> Finding:
    return Finding(
        kind="broken_part",
        severity="error",
        run_id=None,
        sentence="The tables cannot be read, and the rest was not examined.",
        evidence=str(error),
        advice=advice,
    )


def _diagnosis(location: Path | RemoteLocation, findings: list[Finding]) -> Diagnosis:
    ordered = sorted(findings, key=lambda finding: _SEVERITIES.index(finding.severity))
    return Diagnosis(path=str(location), findings=tuple(ordered))


def _what_it_is(path: Path) -> Finding | None:
    """Returns what a path is that is no logdir; None for a logdir.

    Raises:
        LogdirError: It does not exist, or cannot be read.
    """
    try:
        check_logdir(path)
    except FormatVersionError as error:
        return _newer_format(error)
    except LogdirError as error:
        if not path.exists():
            raise
        try:
            return _no_logdir(path.absolute(), str(error))
        except OSError:
            raise error from None
    return None


def _newer_format(error: FormatVersionError) -> Finding:
    return Finding(
        kind="newer_format",
        severity="error",
        run_id=None,
        sentence="The logdir was written in a format that this version does not read.",
        evidence=str(error),
        advice="Read it with the version that wrote it, or a newer one: pip install --upgrade tfdbg-arrow.",
    )


def _no_logdir(path: Path, error: str) -> Finding:
    def finding(kind: str, sentence: str, advice: str) -> Finding:
        return Finding(kind=kind, severity="error", run_id=None, sentence=sentence, evidence=error, advice=advice)

    if (path / MARKER_NAME).exists():
        return finding(
            "broken_marker",
            f"{MARKER_NAME}, which says that this is a logdir, is damaged.",
            f"Copy {MARKER_NAME} from another logdir of the same version of tfdbg_arrow.",
        )
    above = next((parent for parent in path.parents if (parent / MARKER_NAME).is_file()), None)
    if above is not None:
        return finding("inside_a_logdir", "This is a piece of a logdir, not the logdir itself.", f"Give {above}.")
    if path.is_file():
        return finding(
            "not_a_logdir", "This is a file.", "Give the directory that was passed to enable(), capture() or --logdir."
        )
    entries = sorted(path.iterdir())
    if not entries:
        return finding(
            "empty_directory",
            "The directory is empty: no recording ever began in it, for a recording makes its files at once.",
            "Call enable() with this path before the program runs; see that TFDBG_ARROW is not 0 in its environment, "
            "and that it did not end before it came there.",
        )
    if any(entry.name.startswith("tfdbg_events.") for entry in entries):
        return finding(
            "debugger_v2_dump",
            "This is a dump of TensorFlow's Debugger V2, not a logdir.",
            f"Make a logdir of it: tfdbg-arrow import {path} LOGDIR.",
        )
    if any((path / table.name).is_dir() for table in TABLES):
        return finding(
            "missing_marker",
            f"Tables lie here, but {MARKER_NAME} is missing: the logdir was copied in part.",
            f"Copy {MARKER_NAME} and the directory manifest from where the recording was made.",
        )
    below = [entry for entry in entries if (entry / MARKER_NAME).is_file()]
    if below:
        names = ", ".join(str(entry) for entry in below[:3]) + (" and others" if len(below) > 3 else "")
        return finding(
            "above_logdirs", f"This is no logdir, but {len(below)} lie in it.", f"Give one of them: {names}."
        )
    return finding(
        "not_a_logdir",
        "This directory holds nothing that a recording writes.",
        "Give the directory that was passed to enable(), capture() or --logdir.",
    )
