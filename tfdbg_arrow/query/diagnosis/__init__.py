"""doctor: finds problems of a logdir, with evidence and advice."""

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
    """The findings about a logdir.

    Attributes:
        path: The path or URL.
        findings: The findings, ordered by severity, then by run.
    """

    path: str
    findings: tuple[Finding, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong. Findings of severity `info` are facts, not problems."""
        return all(finding.severity == "info" for finding in self.findings)


def doctor(
    logdir: str | Path,
    *,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Diagnosis:
    """Finds out what is wrong with a logdir, or with a path that is not a logdir.

    It compares every part of a local logdir with the SHA-256 in the manifest. For a URL, it compares the parts that it
    fetches.

    Args:
        logdir: The path or URL. The path may be anything that exists.
        storage_options: Options passed to fsspec for a URL.
        progress: Called with the number of bytes of the parts that were read so far, and the total.

    Raises:
        LogdirError: The path does not exist, or the path or URL cannot be read.
        MissingDependencyError: A package that is needed to open the URL is not installed.
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
        findings.append(_unreadable(error, "Restore the named file from a copy of the logdir, or record again."))
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
        sentence="A table cannot be read, so the rest was not examined.",
        evidence=str(error),
        advice=advice,
    )


def _diagnosis(location: Path | RemoteLocation, findings: list[Finding]) -> Diagnosis:
    ordered = sorted(findings, key=lambda finding: _SEVERITIES.index(finding.severity))
    return Diagnosis(path=str(location), findings=tuple(ordered))


def _what_it_is(path: Path) -> Finding | None:
    """Returns a finding that describes a path which is not a logdir; None for a logdir.

    Raises:
        LogdirError: The path does not exist or cannot be read.
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
            f"{MARKER_NAME}, which marks this directory as a logdir, is damaged.",
            f"Copy {MARKER_NAME} from another logdir of the same version of tfdbg_arrow.",
        )
    above = next((parent for parent in path.parents if (parent / MARKER_NAME).is_file()), None)
    if above is not None:
        return finding("inside_a_logdir", "This is inside a logdir, not the logdir itself.", f"Pass {above}.")
    if path.is_file():
        return finding(
            "not_a_logdir", "This is a file.", "Pass the directory that was given to enable(), capture() or --logdir."
        )
    entries = sorted(path.iterdir())
    if not entries:
        return finding(
            "empty_directory",
            "The directory is empty: no recording ever started in it. A recording creates its files when it starts.",
            "Call enable() with this path before the program computes. Check that TFDBG_ARROW is not 0 in its "
            "environment, and that the program does not end before the call.",
        )
    if any(entry.name.startswith("tfdbg_events.") for entry in entries):
        return finding(
            "debugger_v2_dump",
            "This is a dump of TensorFlow's Debugger V2, not a logdir.",
            f"Convert it to a logdir: tfdbg-arrow import {path} LOGDIR.",
        )
    if any((path / table.name).is_dir() for table in TABLES):
        return finding(
            "missing_marker",
            f"The directory has tables, but {MARKER_NAME} is missing: the logdir was copied only in part.",
            f"Copy {MARKER_NAME} and the directory manifest from the original logdir.",
        )
    below = [entry for entry in entries if (entry / MARKER_NAME).is_file()]
    if below:
        names = ", ".join(str(entry) for entry in below[:3]) + (" and others" if len(below) > 3 else "")
        return finding(
            "above_logdirs", f"This is not a logdir. Logdirs in it: {len(below)}.", f"Pass one of them: {names}."
        )
    return finding(
        "not_a_logdir",
        "This directory has none of the files of a recording.",
        "Pass the directory that was given to enable(), capture() or --logdir.",
    )
