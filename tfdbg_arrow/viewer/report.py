"""The report: the first screen, the alerts, their tensors and their source as one file that opens from disk.

It loads nothing: style and script stand in it, and its policy allows just these two by their hashes. What the pages
show stands in it a second time as JSON, for programs, in a form that no HTML parser takes for the end of its element.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.query import Frame, Logdir, open_logdir
from tfdbg_arrow.viewer.links import ReportLinks
from tfdbg_arrow.viewer.page import Shell
from tfdbg_arrow.viewer.pages.alerts import AlertsPage, read_alerts
from tfdbg_arrow.viewer.pages.overview import OverviewPage, read_overview
from tfdbg_arrow.viewer.pages.source import SourcePage, read_source
from tfdbg_arrow.viewer.pages.tensor import TensorPage, read_tensor_page
from tfdbg_arrow.viewer.rendering import json_text, render, static_files

DEFAULT_MAX_BYTES = 10_000_000
_NUM_ALERTS = 20
_MAX_TENSORS = 40
_NUM_ROWS = 8
_RULES_BUDGET_S = 120.0


@dataclass(frozen=True, kw_only=True)
class SourceSection:
    """A source file in a report: the id of its element, and the page."""

    id: str
    page: SourcePage


@dataclass(frozen=True, kw_only=True)
class TensorSection:
    """A tensor in a report: the id of its element, and the page."""

    id: str
    page: TensorPage


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a report holds.

    Attributes:
        shell: The logdir and its runs.
        overview: The first screen.
        alerts: The first alerts of each rule.
        tensors: The tensors on the way to the origin, and those that alerts begin with.
        sources: The files that these name and whose text the run kept.
        left_out: What a reader might look for and is not in it, a sentence each.
    """

    shell: Shell
    overview: OverviewPage
    alerts: AlertsPage
    tensors: tuple[TensorSection, ...]
    sources: tuple[SourceSection, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class WrittenReport:
    """A report on disk: its size in bytes, and what it left out."""

    size: int
    left_out: tuple[str, ...]


def write_report(
    logdir: Logdir | str | Path, path: str | Path, *, run_id: str | None = None, max_bytes: int = DEFAULT_MAX_BYTES
) -> WrittenReport:
    """Writes a report; the file appears whole or not at all.

    Args:
        logdir: A logdir, or its path or URL.
        path: The file.
        run_id: Only this run; None: all.
        max_bytes: How large the file may become; what does not fit is left out, and named in it.

    Raises:
        LogdirError: The logdir cannot be read, or the file not written.
        QueryError: The run is unknown.
    """
    with contextlib.nullcontext(logdir) if isinstance(logdir, Logdir) else open_logdir(logdir) as opened:
        report = read_report(opened, run_id=run_id)
    text, left_out = render_report(report, max_bytes=max_bytes)
    content = text.encode("utf-8")
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise LogdirError(f"the report cannot be written to {path}: {error}; name another file with -o.") from error
    return WrittenReport(size=len(content), left_out=left_out)


def read_report(logdir: Logdir, *, run_id: str | None = None, rules_budget_s: float = _RULES_BUDGET_S) -> Report:
    """Returns what a report holds, before anything is left out for its size.

    Args:
        logdir: The logdir.
        run_id: Only this run; None: all.
        rules_budget_s: Seconds after which no further alert rule is run.
    """
    overview = read_overview(logdir, run_id=run_id, budget_s=rules_budget_s)
    alerts = read_alerts(logdir, run_id=run_id, limit=_NUM_ALERTS, budget_s=rules_budget_s)
    left_out = [f"the rule {rule}: it took too long, or too much memory" for rule in alerts.unfinished_rules]
    num_findings = sum(group.num_findings for group in alerts.groups)
    shown = sum(len(group.findings) for group in alerts.groups)
    if shown < num_findings:
        left_out.append(f"{num_findings - shown:,} of {num_findings:,} findings: the first {_NUM_ALERTS} a rule")
    wanted = list(dict.fromkeys(_tensors(overview, alerts)))
    tensors = tuple(
        TensorSection(
            id=f"tensor-{number}",
            page=read_tensor_page(logdir, event_index, run_id=run, num_rows=_NUM_ROWS),
        )
        for number, (run, event_index) in enumerate(wanted[:_MAX_TENSORS])
    )
    num_tensors = sum(summary.num_tensors for summary in overview.runs if run_id in (None, summary.run.run_id))
    if num_tensors > len(tensors):
        left_out.append(
            f"{num_tensors - len(tensors):,} of {num_tensors:,} recorded tensors: all but those on the way to the "
            "origin and the first of each finding"
        )
    sources = []
    for number, (run, file_path) in enumerate(dict.fromkeys(_files(overview, alerts, tensors))):
        page = read_source(logdir, run_id=run, file_path=file_path)
        if page.has_text:
            sources.append(SourceSection(id=f"source-{number}", page=page))
    shell = Shell(logdir=str(logdir.path), runs=logdir.runs(), run_id=run_id)
    return Report(
        shell=shell,
        overview=overview,
        alerts=alerts,
        tensors=tensors,
        sources=tuple(sources),
        left_out=tuple(left_out),
    )


def render_report(report: Report, *, max_bytes: int = DEFAULT_MAX_BYTES) -> tuple[str, tuple[str, ...]]:
    """Returns a report as HTML of at most so many bytes, and what it leaves out.

    Args:
        report: What it holds.
        max_bytes: How large it may become. What is dropped first: the JSON, the source files from the last on, the
            tensors from the last on. The first screen and the alerts stay.
    """
    tensors, sources = list(report.tensors), list(report.sources)
    left_out = list(report.left_out)
    has_data = True
    while True:
        text = _render(report, tensors, sources, tuple(left_out), has_data=has_data)
        size = len(text.encode("utf-8"))
        if size <= max_bytes or not (has_data or tensors or sources):
            return text, tuple(left_out)
        if has_data:
            has_data = False
            left_out.append("the data of the pages as JSON: it did not fit")
        elif len(sources) > 1 or (sources and not tensors):
            left_out.append(f"the source file {sources.pop().page.file_path}: it did not fit")
        else:
            num_dropped = -(-len(tensors) // 2)
            del tensors[-num_dropped:]
            left_out.append(f"the details of {num_dropped} tensors: they did not fit")


def _render(
    report: Report,
    tensors: list[TensorSection],
    sources: list[SourceSection],
    left_out: tuple[str, ...],
    *,
    has_data: bool,
) -> str:
    links = ReportLinks(
        sources={(section.page.run_id, section.page.file_path or ""): f"{section.id}-" for section in sources},
        tensors={(section.page.tensor.run_id, section.page.tensor.event_index): section.id for section in tensors},
    )
    style, script = (static_files()[name][0].decode("utf-8") for name in ("viewer.css", "viewer.js"))
    data: dict[str, Any] = {
        "overview": report.overview,
        "alerts": report.alerts,
        "tensors": [section.page for section in tensors],
        "left_out": left_out,
    }
    return render(
        "report.html",
        report=report,
        shell=report.shell,
        tensors=tensors,
        sources=sources,
        left_out=left_out,
        links=links,
        data=Markup(json_text(data)) if has_data else None,
        policy=Markup(
            f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'; "
            "form-action 'none'"
        ),
        style=Markup(style),
        script=Markup(script),
    )


def _hash(text: str) -> str:
    """Returns what a content security policy calls a text in an element by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _tensors(overview: OverviewPage, alerts: AlertsPage) -> Iterator[tuple[str, int]]:
    if overview.origin is not None:
        yield overview.origin.run_id, overview.origin.event_index
        for hop in reversed(overview.path):
            yield overview.origin.run_id, hop.event_index
    for group in alerts.groups:
        for finding in group.findings:
            if finding.first_event_index is not None:
                yield finding.run_id, finding.first_event_index


def _files(overview: OverviewPage, alerts: AlertsPage, tensors: tuple[TensorSection, ...]) -> Iterator[tuple[str, str]]:
    """Yields (run, path) of the user's files that the other parts name, the nearest to the answer first."""
    frames: list[tuple[str, Frame | None]] = []
    if overview.origin is not None:
        run = overview.origin.run_id
        frames += [(run, overview.origin.source), *((run, call.source) for call in overview.origin.called_from)]
        frames += [(run, hop.source) for hop in overview.path]
    frames += [(finding.run_id, finding.source) for group in alerts.groups for finding in group.findings]
    frames += [(section.page.tensor.run_id, frame) for section in tensors for frame in section.page.stack]
    for run, frame in frames:
        if frame is not None and frame.is_user:
            yield run, frame.file_path
