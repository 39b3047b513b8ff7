"""The report: the overview, the alerts, their tensors and their source code as one file, or in a frame of a notebook.

The file loads no other files. The style and the script are inline. The content security policy of the file allows only
these two, by their hashes. The file also contains the data of the pages as JSON, for programs. The JSON is escaped so
that it cannot close its HTML element.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from markupsafe import Markup

from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.query import Frame, Logdir, open_logdir
from tfdbg_arrow.safe_text import number_of
from tfdbg_arrow.storage.disk import written_whole
from tfdbg_arrow.viewer.background import InTurn
from tfdbg_arrow.viewer.links import ReportLinks
from tfdbg_arrow.viewer.page import Shell, make_shell, parameters_of
from tfdbg_arrow.viewer.pages.alerts import AlertsPage, AlertsView, read_alerts
from tfdbg_arrow.viewer.pages.model import ModelPage, read_model
from tfdbg_arrow.viewer.pages.overview import OverviewPage, complete_overview, read_overview
from tfdbg_arrow.viewer.pages.source import SourcePage, read_source
from tfdbg_arrow.viewer.pages.tensor import TensorPage, read_tensor_page
from tfdbg_arrow.viewer.rendering import json_text, render, static_files

DEFAULT_MAX_BYTES = 10_000_000
"""Default maximum size of a report, in bytes. The report lists what it leaves out."""
_TITLE = "<title>Report · ".encode()
"""The beginning of a report's title in the file; see pages/report.html."""
_HEAD_BYTES = 4096
"""A report's title is within this number of bytes."""
_NUM_ALERTS = 20
"""Maximum number of findings, and of alerts, for each rule. The report says how many findings it leaves out."""
_MAX_TENSORS = 40
"""Maximum number of tensors that have a section. The report says how many it leaves out."""
_NUM_ROWS = 8
"""Number of rows of elements in the section of a tensor. They show what the elements are like."""
_MAP_COLUMNS = 100
"""Maximum number of columns of the map. The report contains the numbers of all its cells."""
_BUDGET_S = 240.0
"""Time limit for all rules together, in seconds. It is long, because a report cannot be completed later."""
_GLANCE_ALERTS = 3
"""Maximum number of findings for each rule in a notebook, where an answer takes a part of the screen."""
_NOT_IN_GLANCE = (
    f"findings after the first {_GLANCE_ALERTS} of each rule, the map of the layers, the tensors, and the source "
    "files: logdir.show() shows them"
)
_GLANCE_S = 4.0
"""Time limit for all rules together in a notebook, in seconds. The cell is empty until then."""
_SHOWN_BYTES = 1_000_000
"""Maximum size of a report in a notebook, in bytes. The notebook stores it in its file."""


_Page = TypeVar("_Page", SourcePage, TensorPage)


@dataclass(frozen=True, kw_only=True)
class Section(Generic[_Page]):
    """A source file or a tensor in a report: the ID of its element, and the page."""

    id: str
    page: _Page


@dataclass(frozen=True, kw_only=True)
class Report:
    """The content of a report.

    Attributes:
        shell: The logdir and its runs.
        overview: The first screen.
        model: The map of layers over steps; None if there was no time to read it.
        alerts: The first alerts of each rule.
        tensors: The tensors on the path to the origin, and the first tensor of each finding.
        sources: The source files of the other parts, if the run recorded their text.
        left_out: Omitted content, one text for each item.
    """

    shell: Shell
    overview: OverviewPage
    model: ModelPage | None
    alerts: AlertsPage
    tensors: tuple[Section[TensorPage], ...]
    sources: tuple[Section[SourcePage], ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class WrittenReport:
    """A report on disk: its size in bytes, and texts about omitted content."""

    size: int
    left_out: tuple[str, ...]


def write_report(
    logdir: Logdir | str | Path, path: str | Path, *, run_id: str | None = None, max_bytes: int = DEFAULT_MAX_BYTES
) -> WrittenReport:
    """Writes a report. The file is written atomically.

    Args:
        logdir: A logdir, or its path or URL.
        path: The file. An earlier report is replaced, any other file is not.
        run_id: The run to report, or "all". None means the newest run, with the other processes of its program.
        max_bytes: Maximum size of the file. Content that does not fit is omitted, and the file lists it.

    Raises:
        LogdirError: The logdir cannot be read, or the file cannot be written.
        QueryError: The run is unknown.
    """
    path = Path(path)
    _check_target(path)
    with contextlib.nullcontext(logdir) if isinstance(logdir, Logdir) else open_logdir(logdir) as opened:
        report = read_report(opened, run_id=run_id)
    text, left_out = render_report(report, max_bytes=max_bytes)
    content = text.encode("utf-8")
    try:
        with written_whole(path) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise LogdirError(f"the report cannot be written to {path}: {error}; name another file with -o.") from error
    return WrittenReport(size=len(content), left_out=left_out)


def _check_target(path: Path) -> None:
    """Raises LogdirError for a path that a report must not replace."""
    if path.is_dir():
        raise LogdirError(f"{path} is a directory; name a file with -o, such as {path / 'report.html'}.")
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:  # there is no such file, or writing it says what is wrong
        return
    if head and _TITLE not in head:
        raise LogdirError(f"{path} exists and is not a report of tfdbg_arrow; name another file with -o.")


def read_report(logdir: Logdir, *, run_id: str | None = None, budget_s: float = _BUDGET_S) -> Report:
    """Returns the content of a report, before content is omitted because of its size.

    Args:
        logdir: The logdir.
        run_id: The run to report, or "all". None means the newest run, with the other processes of its program.
        budget_s: Time limit for the alert rules and the curves, in seconds.
    """
    shell = make_shell(logdir, run_id=run_id)
    overview, alerts = _read_screens(logdir, AlertsView(run_id=run_id, limit=_NUM_ALERTS), budget_s=budget_s)
    model = None
    if overview.training is not None and overview.training.is_finished:
        model = read_model(logdir, parameters_of(run=overview.training.run_id, columns=_MAP_COLUMNS))
    left_out = [f"the rule {rule}: it took too long or used too much memory" for rule in alerts.unfinished_rules]
    num_findings = sum(group.num_findings for group in alerts.groups)
    shown = sum(len(group.findings) for group in alerts.groups)
    if shown < num_findings:
        left_out.append(
            f"{num_findings - shown:,} of {num_findings:,} findings: only the first {_NUM_ALERTS} per rule are shown"
        )
    wanted = list(dict.fromkeys(_tensors(overview, alerts)))
    tensors = tuple(
        Section(
            id=f"tensor-{number}",
            page=read_tensor_page(logdir, event_index, run_id=run, num_rows=_NUM_ROWS),
        )
        for number, (run, event_index) in enumerate(wanted[:_MAX_TENSORS])
    )
    num_tensors = sum(summary.num_tensors for summary in overview.runs if summary.run.run_id in overview.about.run_ids)
    if num_tensors > len(tensors):
        left_out.append(
            f"{num_tensors - len(tensors):,} of {num_tensors:,} recorded tensors: all but those on the path to the "
            "origin and the first of each finding"
        )
    sources = []
    for number, (run, file_path) in enumerate(dict.fromkeys(_files(overview, alerts, tensors))):
        page = read_source(logdir, run_id=run, file_path=file_path)
        if page.has_text:
            sources.append(Section(id=f"source-{number}", page=page))
    return Report(
        shell=shell,
        overview=overview,
        model=model,
        alerts=alerts,
        tensors=tensors,
        sources=tuple(sources),
        left_out=tuple(left_out),
    )


def _read_screens(logdir: Logdir, view: AlertsView, *, budget_s: float) -> tuple[OverviewPage, AlertsPage]:
    """Returns the overview and the alerts."""
    start = read_overview(logdir, parameters_of(run=view.run_id))
    answers = InTurn(logdir, budget_s=budget_s)
    return complete_overview(answers, start, view), read_alerts(answers, view)


def render_report(
    report: Report, *, max_bytes: int = DEFAULT_MAX_BYTES, has_data: bool = True
) -> tuple[str, tuple[str, ...]]:
    """Returns a report as HTML, and texts about omitted content.

    Args:
        report: The content.
        max_bytes: Maximum size in bytes. If the report is larger, the JSON is left out first. Then source files
            and tensors are left out, from the ends of their lists. The overview and the alerts are always included.
        has_data: Whether the report includes the JSON.
    """
    tensors, sources = list(report.tensors), list(report.sources)
    left_out = list(report.left_out)
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
            left_out.append(f"the details of {number_of(num_dropped, 'tensor')}: they did not fit")


def _render(
    report: Report,
    tensors: list[Section[TensorPage]],
    sources: list[Section[SourcePage]],
    left_out: tuple[str, ...],
    *,
    has_data: bool,
) -> str:
    links = ReportLinks(
        sources={(section.page.run_id, section.page.file_path or ""): f"{section.id}-" for section in sources},
        tensors={(section.page.tensor.run_id, section.page.tensor.event_index): section.id for section in tensors},
    )
    style, script = (
        "\n".join(static_files()[name][0].decode("utf-8") for name in names)
        for names in (("viewer.css", "chart.css", "colours.css"), ("viewer.js", "chart.js"))
    )
    data: dict[str, Any] = {
        "overview": report.overview,
        "model": report.model,
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
    """Returns the hash that a content security policy needs to allow an inline text."""
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


def _files(
    overview: OverviewPage, alerts: AlertsPage, tensors: tuple[Section[TensorPage], ...]
) -> Iterator[tuple[str, str]]:
    """Yields (run, path) of the user's files that the other parts refer to, most relevant first."""
    frames: list[tuple[str, Frame | None]] = []
    if overview.origin is not None:
        run = overview.origin.run_id
        frames += [(run, overview.origin.source), (run, overview.origin.made_at)]
        frames += [*((run, call.source) for call in overview.origin.called_from)]
        frames += [(run, frame) for frame in overview.callers]
        frames += [(run, hop.source) for hop in overview.path]
    frames += [(finding.run_id, finding.source) for group in alerts.groups for finding in group.findings]
    frames += [(section.page.tensor.run_id, frame) for section in tensors for frame in section.page.stack]
    for run, frame in frames:
        if frame is not None and frame.is_user:
            yield run, frame.file_path


def glance(logdir: Logdir) -> str:
    """Returns the notebook representation of a logdir: the overview and the first alerts of each rule."""
    overview, alerts = _read_screens(logdir, AlertsView(limit=_GLANCE_ALERTS), budget_s=_GLANCE_S)
    report = Report(
        shell=make_shell(logdir, run_id=None),
        overview=overview,
        model=None,
        alerts=alerts,
        tensors=(),
        sources=(),
        left_out=(_NOT_IN_GLANCE,),
    )
    return _frame(render_report(report, has_data=False)[0], height=520)


def frame(logdir: Logdir, *, run_id: str | None, height: int) -> str:
    """Returns a report of up to 1 MB as an HTML element for a notebook.

    Args:
        logdir: The logdir.
        run_id: The run to show, or "all". None means the newest run, with the other processes of its program.
        height: Initial height in pixels. The reader can change it.
    """
    report = _without_libraries(read_report(logdir, run_id=run_id))
    return _frame(render_report(report, max_bytes=_SHOWN_BYTES, has_data=False)[0], height=height)


def _without_libraries(report: Report) -> Report:
    """Returns a report whose stacks have only the program's frames, because other frames take most of the space."""
    num_others = sum(not frame.is_user for section in report.tensors for frame in section.page.stack)
    tensors = tuple(
        replace(
            section, page=replace(section.page, stack=tuple(frame for frame in section.page.stack if frame.is_user))
        )
        for section in report.tensors
    )
    others = f"{number_of(num_others, 'frame')} of the framework and libraries in the stacks of the tensors"
    return replace(report, tensors=tensors, left_out=(*report.left_out, *([others] if num_others else [])))


def _frame(document: str, *, height: int) -> str:
    # Scripts may run in the frame, but it has its own origin, so they cannot reach the notebook's cells or cookies. The
    # attribute is in single quotes, because the document has many double quotes, and each would take six bytes.
    quoted = document.replace("&", "&amp;").replace("'", "&#39;").replace("<", "&lt;")
    return (
        f'<iframe sandbox="allow-scripts" srcdoc=\'{quoted}\' title="tfdbg_arrow report" '
        f'style="width: 100%; height: {int(height)}px; border: 1px solid #c9d0d9; border-radius: 8px; '
        'resize: vertical"></iframe>'
    )
