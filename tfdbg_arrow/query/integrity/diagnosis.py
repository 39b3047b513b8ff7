"""doctor: finds the problems of a logdir, and gives evidence and advice."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdbg_arrow.errors import BrokenPartError, FormatVersionError, LogdirError, QueryError
from tfdbg_arrow.query.displayed import Displayed
from tfdbg_arrow.query.integrity.damage import damage_told
from tfdbg_arrow.query.integrity.parts import examined_parts
from tfdbg_arrow.query.integrity.run_findings import MAX_NAMED, Finding, examine_runs
from tfdbg_arrow.query.logdir.open_logdir import OpenLogdir
from tfdbg_arrow.safe_text import number_of, some_of
from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.storage.layout import MANIFEST_DIRECTORY, MARKER_NAME, part_files, run_of_part
from tfdbg_arrow.storage.location import RemoteLocation, parse_location
from tfdbg_arrow.storage.manifest import ManifestEntry, read_live_parts, resolve_part, run_ids
from tfdbg_arrow.storage.marker import check_logdir

_SEVERITIES = ("error", "warning", "info")


@dataclass(frozen=True, kw_only=True, repr=False)
class Diagnosis(Displayed):
    """The findings about a logdir.

    Attributes:
        path: The path or URL.
        findings: The findings, ordered by severity, then by run.
    """

    path: str
    findings: tuple[Finding, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether there are no problems. Findings of severity `info` are facts, not problems."""
        return all(finding.severity == "info" for finding in self.findings)


def doctor(
    logdir: str | Path,
    *,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Diagnosis:
    """Finds the problems of a logdir, or explains why a path is not a logdir.

    Every part of a local logdir is compared with the SHA-256 in the manifest. For a URL, the fetched parts are
    compared.

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
        findings = [what] if what is not None else _examine_parts(location, progress=progress)
        if what is not None or any(finding.severity == "error" for finding in findings):
            return _diagnosis(location, findings)
    try:
        with OpenLogdir(logdir, storage_options=storage_options) as opened:
            findings += _examine_runs(opened)
    except FormatVersionError as error:
        findings.append(_newer_format(error))
    except (BrokenPartError, QueryError) as error:
        findings.append(_unreadable(error, "Restore the named file from a copy of the logdir, or record again."))
    return _diagnosis(location, findings)


def _examine_runs(logdir: OpenLogdir) -> list[Finding]:
    try:
        with damage_told(logdir):
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
        advice="Read it with the release that wrote it, or a newer one.",
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


def _examine_parts(logdir: Path, *, progress: Callable[[int, int], None]) -> list[Finding]:
    """Returns findings about the manifests and parts of a logdir.

    Args:
        logdir: The path of the logdir.
        progress: Called with the number of bytes read so far, and the total.
    """
    findings = []
    live: dict[str, tuple[ManifestEntry, ...]] = {}
    for run_id in run_ids(logdir):
        try:
            live[run_id] = read_live_parts(logdir, run_id=run_id)
            for entry in live[run_id]:
                resolve_part(logdir, entry)
        except LogdirError as error:
            findings.append(
                Finding(
                    kind="broken_manifest",
                    severity="error",
                    run_id=run_id,
                    sentence="The manifest, which lists the live parts, is damaged.",
                    evidence=str(error),
                    advice=f"Restore {MANIFEST_DIRECTORY}/{run_id}.jsonl, or remove it and the run's directories.",
                )
            )
    if findings:
        return findings
    total = sum(entry.bytes for entries in live.values() for entry in entries)
    done = 0

    def advance(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        progress(done, total)

    advance(0)
    for run_id, entries in live.items():
        examined = examined_parts(logdir, entries, advance=advance)
        wrong = [f"{entry.path} {reason}" for entry, reason in examined if reason is not None]
        if wrong:
            findings.append(_broken(run_id, wrong))
    progress(total, total)
    return [*findings, *_unlisted(logdir)]


def _broken(run_id: str, wrong: list[str]) -> Finding:
    return Finding(
        kind="broken_part",
        severity="error",
        run_id=run_id,
        sentence=f"{number_of(len(wrong), 'part')} of the run cannot be trusted, so the run was not examined.",
        evidence=f"Compared with the manifest: {some_of(wrong, MAX_NAMED)}.",
        advice="Restore these files from the original logdir, or read the rest with --skip-broken.",
    )


def _unlisted(logdir: Path) -> list[Finding]:
    """Returns findings about parts that exist although no manifest names them."""
    there = set(part_files(logdir))
    # Manifests are read after the parts are listed, so that they also name parts that a recording seals in the
    # meantime.
    runs = run_ids(logdir)
    listed = {entry.path for run_id in runs for entry in read_live_parts(logdir, run_id=run_id)}
    by_run: dict[str, list[str]] = {}
    for path in sorted(there - listed):
        if (logdir / path).exists():
            by_run.setdefault(run_of_part(path), []).append(path)
    return [_unlisted_parts(run_id, paths, runs) for run_id, paths in by_run.items()]


def _unlisted_parts(run_id: str, paths: list[str], runs: Collection[str]) -> Finding:
    """Returns the finding about parts of a run; `runs` are the runs that have a manifest."""
    evidence = f"No manifest names {some_of(paths, MAX_NAMED)}."
    if run_id not in runs:
        return Finding(
            kind="missing_manifest",
            severity="warning" if runs else "error",
            run_id=run_id,
            sentence="The run cannot be read: its manifest is missing, as when a logdir was copied only in part.",
            evidence=evidence,
            advice=f"Copy {MANIFEST_DIRECTORY}/{run_id}.jsonl from the original logdir.",
        )
    return Finding(
        kind="unlisted_part",
        severity="warning",
        run_id=run_id,
        sentence=f"{number_of(len(paths), 'part')} of the run should have been removed: the program was killed while "
        "it replaced them. Tools that read a table by its path find their rows twice.",
        evidence=evidence,
        advice="Remove these files, or read the logdir with tfdbg_arrow, which ignores them.",
    )
