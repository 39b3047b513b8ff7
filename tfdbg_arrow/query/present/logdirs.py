"""The blocks of answers about a logdir: its contents, and its damage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING

from tfdbg_arrow.query.present.blocks import SEVERITY_STYLES, Blocks, Heading, Line, Span, Style, Table
from tfdbg_arrow.safe_text import number_of, time_text

if TYPE_CHECKING:
    from tfdbg_arrow.query.info import LogdirInfo, Run
    from tfdbg_arrow.query.integrity.diagnosis import Diagnosis
    from tfdbg_arrow.query.integrity.verification import Verification

_DEVIATIONS: Mapping[str, Style] = {
    "changed": "bad",
    "missing": "bad",
    "extra": "bad",
    "leftover": "warning",
    "unchecked": "quiet",
}
_MAX_SHOWN = 20
"""Maximum number of deviations of each kind that are shown."""


def info(answer: LogdirInfo) -> Blocks:
    """Yields the runs and tables of a logdir."""
    yield Heading(answer.path)
    bad: Span = f"{answer.num_nonfinite:,} of them bad", "bad" if answer.num_nonfinite else ""
    yield Line(f"{answer.bytes:,} bytes, {number_of(answer.num_tensors, 'tensor')}, ", bad, indent=2)
    if answer.unobserved is not None:
        yield Line(f"not looked at: {answer.unobserved}", ("; see coverage", "option"), indent=2)
    if answer.first_wall_time_ns is not None and answer.last_wall_time_ns is not None:
        yield Line(f"{time_text(answer.first_wall_time_ns)} to {time_text(answer.last_wall_time_ns)} UTC", indent=2)
    for run in answer.runs:
        yield Heading(("run ", "quiet"), run.run_id, ("" if run.run_name is None else f" {run.run_name}", ""))
        yield from _run(run)
    yield Line()
    rows = [(table.name, f"{table.rows:,}", f"{table.parts:,}", f"{table.bytes:,}") for table in answer.tables]
    yield Table(("table", "rows", "parts", "bytes"), rows, num_numbers=3)


def diagnosis(answer: Diagnosis) -> Iterator[Line]:
    """Yields the problems of a logdir, the evidence, and the advice."""
    if answer.is_healthy:
        yield Line((answer.path, "bold"), ": nothing is wrong.")
    for finding in answer.findings:
        where = "" if finding.run_id is None else f" in run {finding.run_id}"
        yield Line((f"{finding.severity}{where}", SEVERITY_STYLES[finding.severity]), f": {finding.sentence}")
        yield Line(("evidence ", "quiet"), finding.evidence, indent=4)
        yield Line(("advice   ", "quiet"), finding.advice, indent=4)


def verification(answer: Verification) -> Iterator[Line]:
    """Yields the files of a logdir that deviate from the manifests, then how much was checked."""
    for kind, group in groupby(answer.deviations, key=lambda deviation: deviation.kind):
        deviations = list(group)
        name: Span = kind, _DEVIATIONS[kind]
        for deviation in deviations[:_MAX_SHOWN]:
            yield Line(name, f": {deviation.path} {deviation.what}")
        num_found = answer.num_found[kind]
        if num_found > _MAX_SHOWN:
            first = f" for the first {len(deviations):,}" if num_found > len(deviations) else ""
            yield Line(name, f": and {num_found - _MAX_SHOWN:,} more", (f"; see --json{first}", "option"))
    yield verification_line(answer)


def verification_line(answer: Verification) -> Line:
    """Returns whether a logdir is intact, and what was checked."""
    size = (
        f"runs: {answer.num_runs:,}, parts: {answer.num_parts:,}, rows: {answer.num_rows:,}, "
        f"bytes: {answer.num_bytes:,}"
    )
    damage = number_of(answer.num_damaged, "place")
    state: Span = "nothing is damaged" if answer.is_intact else (f"damage in {damage}", "bad")
    return Line((answer.path, "bold"), ": ", state, f" ({size})")


def _run(run: Run) -> Iterator[Line]:
    if run.tags:
        yield Line(f"tags: {', '.join(run.tags)}", indent=2)
    if run.notes:
        yield Line(f"notes: {run.notes}", indent=2)
    mode = run.tensor_debug_mode or "no events"
    yield Line(f"{mode}, measured by {run.health_backend}, {_ending(run)}", indent=2)
    if run.worker is not None:
        yield Line(f"worker {run.worker}", indent=2)
    pid = "" if run.pid is None else f"pid {run.pid} on "
    version = run.tensorflow_version or ("not imported" if run.health_backend != "debugger_v2" else "unknown")
    yield Line(f"{pid}{run.host_name or 'an unknown host'}, TensorFlow {version}", indent=2)
    if run.command_line is not None:
        yield Line(run.command_line, indent=2)
    for text in run.left_out:
        yield Line(("the recording is incomplete: ", "bold"), text, indent=2)


def _ending(run: Run) -> str:
    if run.health_backend == "debugger_v2":
        return f"from {time_text(run.wall_time_ns)} UTC, imported" + ("" if run.is_clean_end else ", incomplete")
    if run.end_wall_time_ns is None:
        return f"started {time_text(run.wall_time_ns)} UTC, still recording or ended without closing"
    return f"{time_text(run.wall_time_ns)} to {time_text(run.end_wall_time_ns)} UTC" + (
        "" if run.is_clean_end else ", not closed cleanly"
    )
