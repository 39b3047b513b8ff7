"""Compares the files of a logdir with its manifests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.query.diagnosis.findings import Finding
from tfdbg_arrow.query.verification.parts import what_is_wrong
from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.schema.logdir_layout import MANIFEST_DIRECTORY, is_part_name
from tfdbg_arrow.schema.manifest import ManifestEntry, read_live_parts, resolve_part, run_ids

_MAX_NAMED = 3


def examine_parts(logdir: Path, *, progress: Callable[[int, int], None]) -> list[Finding]:
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
    read = 0
    for run_id, entries in live.items():
        wrong: list[tuple[str, str]] = []
        for entry in entries:
            progress(read, total)
            reason = _what_is_wrong(logdir, entry, run_id=run_id)
            read += entry.bytes
            if reason is not None:
                wrong.append((entry.path, reason))
        if wrong:
            findings.append(_broken(run_id, wrong))
    progress(total, total)
    return [*findings, *_unlisted(logdir)] if live else findings


def _what_is_wrong(logdir: Path, entry: ManifestEntry, *, run_id: str) -> str | None:
    try:
        return what_is_wrong(logdir, entry)
    except FileNotFoundError:
        # A running recording replaces parts, so only the current manifest counts.
        is_live = entry.path in {each.path for each in read_live_parts(logdir, run_id=run_id)}
        return "is missing" if is_live else None


def _broken(run_id: str, wrong: list[tuple[str, str]]) -> Finding:
    named = ", ".join(f"{path} {reason}" for path, reason in wrong[:_MAX_NAMED])
    return Finding(
        kind="broken_part",
        severity="error",
        run_id=run_id,
        sentence=f"{_number(len(wrong), 'part')} of the run cannot be trusted, so the run was not examined.",
        evidence=f"Compared with the manifest: {named}{_more(wrong)}.",
        advice="Restore these files from the original logdir, or read the rest with --skip-broken.",
    )


def _unlisted(logdir: Path) -> list[Finding]:
    """Returns findings about parts that exist although no manifest names them."""
    there = {
        part.relative_to(logdir).as_posix()
        for table in TABLES
        for part in (logdir / table.name).glob("run_id=*/part-*.parquet")
        if is_part_name(part.name)
    }
    # Manifests are read after the parts are listed, so that they name the parts that a recording seals meanwhile.
    runs = run_ids(logdir)
    listed = {entry.path for run_id in runs for entry in read_live_parts(logdir, run_id=run_id)}
    by_run: dict[str, list[str]] = {}
    for path in sorted(there - listed):
        if (logdir / path).exists():
            by_run.setdefault(path.split("/")[1].removeprefix("run_id="), []).append(path)
    return [_unlisted_parts(run_id, paths, has_manifest=run_id in runs) for run_id, paths in by_run.items()]


def _unlisted_parts(run_id: str, paths: list[str], *, has_manifest: bool) -> Finding:
    evidence = f"No manifest names {', '.join(paths[:_MAX_NAMED])}{_more(paths)}."
    if not has_manifest:
        return Finding(
            kind="missing_manifest",
            severity="warning",
            run_id=run_id,
            sentence="The run cannot be read: its manifest is missing, as when a logdir was copied only in part.",
            evidence=evidence,
            advice=f"Copy {MANIFEST_DIRECTORY}/{run_id}.jsonl from the original logdir.",
        )
    return Finding(
        kind="unlisted_part",
        severity="warning",
        run_id=run_id,
        sentence=f"{_number(len(paths), 'part')} of the run should have been removed: the program was killed while it "
        "replaced them. Tools that read a table by its path find their rows twice.",
        evidence=evidence,
        advice="Remove these files, or read the logdir with tfdbg_arrow, which ignores them.",
    )


def _number(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _more(items: Iterable[object]) -> str:
    left = len(list(items)) - _MAX_NAMED
    return f" and {left:,} more" if left > 0 else ""
