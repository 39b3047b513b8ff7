"""Test that pages show hostile recordings as text, without elements, attributes or control characters from them."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pytest

from tfdbg_arrow.query.sql_sandbox import Sandbox
from tfdbg_arrow.viewer.report import write_report

from ..query.builder import INF
from . import logdirs
from .serving import Served, serving

ELEMENTS = frozenset(
    re.findall(
        r"\w+",
        """a b body button circle code datalist dd details dialog div dl dt figcaption figure footer form g h1 h2 h3
        head header html input kbd label li line link main meta metadata nav noscript ol option p path pre rect script
        section select span summary svg table tbody td text textarea th thead title tr ul""",
    )
)
FORBIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


class Reading(HTMLParser):
    """The elements, attributes and link targets of a page, as a browser would read it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[tuple[str, str]] = set()
        self.targets: set[str] = set()
        self.scripts: list[tuple[tuple[str, str | None], ...]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {(tag, name) for name, _ in attrs}
        self.targets |= {value or "" for name, value in attrs if name in ("href", "src", "action")}
        if tag == "script":
            self.scripts.append(tuple(attrs))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return logdirs.hostile(tmp_path_factory.mktemp("logdir"))


@pytest.fixture(scope="module")
def served(path: Path) -> Iterator[Served]:
    with serving(path, sandbox=Sandbox(path)) as server:
        yield server


def check(text: str) -> Reading:
    """Checks that a page contains only the markup of the templates."""
    reading = Reading(text)
    assert reading.elements <= ELEMENTS | {"style"}
    assert {name for _, name in reading.attributes if name.startswith("on") or name == "style"} == set()
    assert FORBIDDEN.search(text) is None
    assert not any(re.match(r"\s*(javascript|data|https?):", target, re.IGNORECASE) for target in reading.targets)
    return reading


SOURCES = [f"/source?file={quote(text)}" for text in logdirs.HOSTILE[:-1]]
GRAPHS = [f"/graph?event={3 * number + 1}" for number in range(len(logdirs.HOSTILE))]
OPS = ["/graph", "/graph?name=%3Cb%3E", *(f"/graph?graph={number}" for number in range(len(logdirs.HOSTILE)))]
EXECUTIONS = ["/executions", *(f"/executions?execution={number}" for number in range(len(logdirs.HOSTILE)))]
EVENTS = [f"/tensor?event={3 * number + 1}" for number in range(len(logdirs.HOSTILE))]
HISTORIES = [f"/history?event={3 * number + 1}" for number in range(len(logdirs.HOSTILE))]
TEXTS = """
SELECT file_path AS text FROM source_file UNION ALL SELECT source_text FROM source_file UNION ALL
SELECT op_name FROM graph_op UNION ALL SELECT op_type FROM execution UNION ALL SELECT label FROM mark UNION ALL
SELECT reason FROM capture_stat UNION ALL SELECT code FROM stack_frame UNION ALL SELECT host_name FROM run
"""
SQL = [f"/sql?query={quote(TEXTS)}", f"/sql?query={quote(f'SELECT 1 AS {chr(34)}{logdirs.SCRIPT}{chr(34)}')}"]


@pytest.mark.parametrize(
    "target",
    [
        *("/", "/?training=1", "/model", "/alerts", "/tensors", "/source", "/provenance?event=1"),
        *(*EVENTS, *SOURCES, "/tensors?name=%3Cb%3E", *GRAPHS, *OPS, *EXECUTIONS),
        *(*HISTORIES, "/history?op_type=%3Cb%3E", "/runs", "/diff", *SQL),
    ],
)
def test_pages_contain_no_markup_from_the_recording(served: Served, target: str) -> None:
    answer = served.ask(target)
    assert answer.status == 200
    reading = check(answer.text)
    assert reading.scripts[0] == (("src", "/static/viewer.js"),)
    assert all(re.fullmatch(r"/static/[\w./-]+\.js", dict(script)["src"] or "") for script in reading.scripts)
    assert len(answer.body) < 3_000_000


@pytest.mark.parametrize(
    "target",
    [
        *("/overview.json", "/alerts.json", "/tensors.json", "/source.json", "/graph.json", "/runs.json"),
        *(EVENTS[0], GRAPHS[0], HISTORIES[0], SQL[0], "/executions.json", "/provenance.json?event=1"),
    ],
)
def test_json_contains_the_texts_of_the_recording_in_plain_ascii(served: Served, target: str) -> None:
    answer = served.ask(re.sub(r"(?<!json)\?", ".json?", target))
    assert answer.status == 200
    assert re.search(rb"[<>&\x00-\x1f\x7f-\xff]", answer.body) is None
    assert logdirs.SCRIPT in str(answer.json)


@pytest.mark.slow
def test_csv_has_all_texts_and_no_formulas(served: Served) -> None:
    answer = served.ask(SQL[0].replace("/sql?", "/sql.csv?"))
    assert (answer.status, answer.headers["content-disposition"]) == (200, "attachment")
    assert answer.headers["content-type"].startswith("text/csv")
    csv.field_size_limit(len(answer.text))
    cells = [cell for row in csv.reader(io.StringIO(answer.text, newline="")) for cell in row]
    assert [cell for cell in cells if cell[:1] in "=+-@\t\r\n"] == []
    assert all(text in cells or f"'{text}" in cells for text in logdirs.HOSTILE)


@pytest.mark.slow
def test_a_page_with_two_hostile_runs(tmp_path: Path) -> None:
    logdirs.hostile(tmp_path)
    logdirs.hostile(tmp_path, run_id="run-b", host=logdirs.HOSTILE[2], bad=INF)
    with serving(tmp_path) as served:
        answers = [served.ask(target) for target in ("/runs", "/diff", "/diff?run=run-a&other=run-b&wait=1")]
        assert [answer.status for answer in answers] == [200, 200, 200]
        twin = served.ask("/diff.json?run=run-a&other=run-b")
        assert re.search(rb"[<>&\x00-\x1f\x7f-\xff]", twin.body) is None
        assert logdirs.SCRIPT in str(twin.json)
        for answer in answers:
            assert all(str(dict(script)["src"]).startswith("/static/") for script in check(answer.text).scripts)
        assert "The first divergence" in answers[-1].text
        assert "onerror=alert(2)" in answers[-1].text
        slow = served.ask(f"/diff?run=run-a&other=run-b&known={quote('(' + logdirs.HOSTILE[0])}")
        assert slow.status == 400
        check(slow.text)


@pytest.mark.parametrize("text", logdirs.HOSTILE[:-1])
def test_errors_contain_no_markup_from_the_address(served: Served, text: str) -> None:
    answer = served.ask(f"/overview?run={quote(text)}")
    assert answer.status == 404
    check(answer.text)


@pytest.mark.slow
def test_a_report_contains_no_markup_from_the_recording(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    written = write_report(path, file)
    text = file.read_text(encoding="utf-8")
    own = text.replace("\n", "")
    assert len(check(text).scripts) == 2
    assert FORBIDDEN.search(own) is None
    assert written.size == file.stat().st_size < 10_000_000
