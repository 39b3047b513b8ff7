"""What a logdir holds, and whether it is damaged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING

from tfdbg_arrow.query.present.blocks import SEVERITY_STYLES, Block, Heading, Line, Span, Style, Table, items
from tfdbg_arrow.safe_text import number_of, time_text

if TYPE_CHECKING:
    from tfdbg_arrow.query.info import LogdirInfo, Run
    from tfdbg_arrow.query.integrity.diagnosis import Diagnosis
    from tfdbg_arrow.query.integrity.run_findings import Finding
    from tfdbg_arrow.query.integrity.verification import Verification

_DEVIATIONS: Mapping[str, Style] = {
    "changed": "bad",
    "missing": "bad",
    "extra": "bad",
    "leftover": "warning",
    "unchecked": "quiet",
}
_MAX_SHOWN = 20
"""Number of deviations of each kind that are named; the attributes and `--json` name up to 1,000."""


def info(found: LogdirInfo) -> Iterator[Block]:
    """Yields the runs and tables of a logdir."""
    yield Heading(found.path)
    bad: Span = f"{found.num_nonfinite:,} of them bad", "bad" if found.num_nonfinite else ""
    yield Line(f"{found.bytes:,} bytes, {number_of(found.num_tensors, 'tensor')}, ", bad, indent=2)
    if found.unobserved is not None:
        yield Line(f"not looked at: {found.unobserved}", ("; see coverage", "option"), indent=2)
    if found.first_wall_time_ns is not None and found.last_wall_time_ns is not None:
        yield Line(f"{time_text(found.first_wall_time_ns)} to {time_text(found.last_wall_time_ns)} UTC", indent=2)
    for run in found.runs:
        yield Heading(("run ", "quiet"), run.run_id, ("" if run.run_name is None else f" {run.run_name}", ""))
        yield items(*((Line(*line, indent=2),) for line in _facts_of_run(run)))
    yield Line()
    rows = [(table.name, f"{table.rows:,}", f"{table.parts:,}", f"{table.bytes:,}") for table in found.tables]
    yield Table(("table", "rows", "parts", "bytes"), rows, num_numbers=3)


def info_text(found: LogdirInfo) -> str:
    """Returns the size of a logdir in one line."""
    runs, tensors = number_of(len(found.runs), "run"), number_of(found.num_tensors, "tensor")
    return f"of {found.path}: {runs}, {tensors}, {found.num_nonfinite:,} of them bad"


def diagnosis(found: Diagnosis) -> Iterator[Block]:
    """Yields what is wrong with a logdir, the evidence, and what to do."""
    if found.is_healthy:
        yield Line((found.path, "bold"), ": nothing is wrong.")
    yield items(
        *(
            (
                Line(_severity(finding), f": {finding.sentence}"),
                Line(("evidence ", "quiet"), finding.evidence, indent=4),
                Line(("advice   ", "quiet"), finding.advice, indent=4),
            )
            for finding in found.findings
        )
    )


def diagnosis_text(found: Diagnosis) -> str:
    """Returns what is wrong with a logdir in one line."""
    state = "nothing is wrong" if found.is_healthy else "; ".join(finding.sentence for finding in found.findings)
    return f"of {found.path}: {state}"


def verification(found: Verification) -> Iterator[Block]:
    """Yields the files of a logdir that are not as they were written, then how much was checked."""
    lines: list[Line] = []
    for kind, group in groupby(found.deviations, key=lambda deviation: deviation.kind):
        deviations = list(group)
        name: Span = kind, _DEVIATIONS[kind]
        lines += [Line(name, f": {each.path} {each.what}") for each in deviations[:_MAX_SHOWN]]
        if len(deviations) > _MAX_SHOWN:
            lines.append(Line(name, f": and {len(deviations) - _MAX_SHOWN:,} more", ("; see --json", "option")))
    yield items(*((line,) for line in lines))
    yield verification_line(found)


def verification_line(found: Verification) -> Line:
    """Returns whether a logdir is intact, and what was checked."""
    size = f"runs: {found.num_runs:,}, parts: {found.num_parts:,}, rows: {found.num_rows:,}, bytes: {found.num_bytes:,}"
    damage = number_of(found.num_damaged, "place")
    state: Span = "nothing is damaged" if found.is_intact else (f"damage in {damage}", "bad")
    return Line((found.path, "bold"), ": ", state, f" ({size})")


def _facts_of_run(run: Run) -> Iterator[tuple[Span, ...]]:
    if run.tags:
        yield (f"tags: {', '.join(run.tags)}",)
    if run.notes:
        yield (f"notes: {run.notes}",)
    yield (f"{run.tensor_debug_mode or 'no events'}, measured by {run.health_backend}, {_ending(run)}",)
    if run.worker is not None:
        yield (f"worker {run.worker}",)
    pid = "" if run.pid is None else f"pid {run.pid} on "
    version = run.tensorflow_version or ("not imported" if run.health_backend != "debugger_v2" else "unknown")
    yield (f"{pid}{run.host_name or 'an unknown host'}, TensorFlow {version}",)
    if run.command_line is not None:
        yield (run.command_line,)
    for text in run.left_out:
        yield (("the recording is incomplete: ", "bold"), text)


def _ending(run: Run) -> str:
    if run.health_backend == "debugger_v2":
        return f"from {time_text(run.wall_time_ns)} UTC, imported" + ("" if run.is_clean_end else ", incomplete")
    if run.end_wall_time_ns is None:
        return f"started {time_text(run.wall_time_ns)} UTC, still recording or ended without closing"
    return f"{time_text(run.wall_time_ns)} to {time_text(run.end_wall_time_ns)} UTC" + (
        "" if run.is_clean_end else ", not closed cleanly"
    )


def _severity(finding: Finding) -> Span:
    where = "" if finding.run_id is None else f" in run {finding.run_id}"
    return f"{finding.severity}{where}", SEVERITY_STYLES[finding.severity]
