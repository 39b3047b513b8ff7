"""Test the report: a self-contained file of limited size that lists the data that it leaves out."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest

from tfdbg_arrow.errors import LogdirError, QueryError
from tfdbg_arrow.query import open_logdir
from tfdbg_arrow.safe_text import to_json
from tfdbg_arrow.viewer.report import read_report, render_report, write_report

from ..query.builder import NAN, RunBuilder
from . import logdirs


@pytest.mark.slow
def test_it_loads_nothing_and_its_policy_allows_only_its_own_style_and_script(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    write_report(path, file)
    text = file.read_text(encoding="utf-8")
    assert re.search(r"""(src|href|action)=["'](?!#)""", text) is None
    assert "url(" not in text
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    for name in ("style", "script"):
        (content,) = re.findall(rf"<{name}>(.*?)</{name}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{name}-src &#39;sha256-{digest}&#39;" in policy[1] or f"{name}-src 'sha256-{digest}'" in policy[1]
    assert policy[1].startswith(("default-src 'none'", "default-src &#39;none&#39;"))


@pytest.mark.slow
def test_it_contains_the_pages_and_their_data(path: Path) -> None:
    with open_logdir(path) as logdir:
        report = read_report(logdir)
    text, left_out = render_report(report)
    assert "`log_probs = tf.math.log(probs)` at train.py:7 made -Inf in step 1." in text
    assert [section.page.tensor.op_name for section in report.tensors] == ["Log", "probs", "Sqrt", "Neg"]
    assert [section.page.file_path for section in report.sources] == [logdirs.TRAIN]
    assert left_out == (
        "2 of 6 recorded tensors: all but those on the path to the origin and the first of each finding",
    )
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert json.loads(data)["overview"] == to_json(report.overview)


@pytest.mark.slow
def test_every_link_has_a_target(path: Path) -> None:
    with open_logdir(path) as logdir:
        text, _ = render_report(read_report(logdir))
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    targets = set(re.findall(r'href="#([^"]+)"', text))
    assert {"overview", "alerts", "tensor-0", "source-0-L7"} <= targets
    assert targets - set(ids) == set()


@pytest.mark.slow
def test_parts_that_do_not_fit_are_left_out_and_named(path: Path) -> None:
    with open_logdir(path) as logdir:
        report = read_report(logdir)
    whole = len(render_report(report)[0].encode())
    text, left_out = render_report(report, max_bytes=whole - 1000)
    assert len(text.encode()) <= whole - 1000
    assert left_out[-1] == "the data of the pages as JSON: it did not fit"
    assert left_out[-1] in text
    least, left_out = render_report(report, max_bytes=1)
    assert "made -Inf" in least
    assert [text.rpartition(":")[2] for text in left_out[1:]] == [" it did not fit"] * 1 + [" they did not fit"] * 3 + [
        " it did not fit"
    ]


@pytest.mark.slow
def test_findings_beyond_the_limit_are_left_out(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f")
    for number in range(30):
        graph.op(f"op{number}", "Mul", layer=f"layer_{number}")
        run.tensor(graph, f"op{number}", NAN)
    with open_logdir(run.write(tmp_path)) as logdir:
        report = read_report(logdir)
    assert report.left_out[0] == "20 of 60 findings: only the first 20 per rule are shown"


def test_alert_rules_that_did_not_run_are_named(tmp_path: Path) -> None:
    with open_logdir(logdirs.healthy(tmp_path)) as logdir:
        text, _ = render_report(read_report(logdir, budget_s=0.0))
        assert "No rule found anything" not in text
        assert text.count("Not finished</b> for lack of time or memory") == 2
        assert "nonfinite_origin" in text
        assert "No rule found anything" in render_report(read_report(logdir))[0]


@pytest.mark.slow
def test_alerts_of_the_same_line_are_one_finding(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f")
    for number in range(30):
        graph.op(f"op{number}", "Mul")
        run.tensor(graph, f"op{number}", NAN)
    with open_logdir(run.write(tmp_path)) as logdir:
        report = read_report(logdir)
    assert [(group.num_found, group.num_findings, len(group.alerts)) for group in report.alerts.groups] == [
        (30, 1, 20),
        (30, 1, 20),
    ]
    assert [(rule.num_found, len(rule.findings)) for rule in report.overview.rules] == [(30, 1), (30, 1)]


@pytest.mark.slow
def test_only_an_earlier_report_is_replaced(path: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    report.touch()  # a command such as mktemp made it
    write_report(path, report)
    text = report.read_text(encoding="utf-8")
    write_report(path, report)
    assert report.read_text(encoding="utf-8") == text

    program = tmp_path / "train.py"
    program.write_text("print(1)")
    with pytest.raises(LogdirError, match=r"train\.py exists and is not a report of tfdbg_arrow; name another file"):
        write_report(path, program)
    with pytest.raises(LogdirError, match=r"is a directory; name a file with -o, such as .*/report\.html\."):
        write_report(path, tmp_path)
    with pytest.raises(LogdirError, match="is a directory"):
        write_report(path, ".")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["report.html", "train.py"]
    assert program.read_text() == "print(1)"


def test_errors_for_an_invalid_path_and_an_unknown_run(path: Path, tmp_path: Path) -> None:
    with pytest.raises(LogdirError, match="the report cannot be written to"):
        write_report(path, tmp_path / "no" / "such" / "report.html")
    with pytest.raises(QueryError, match="run 'evil' is not in"):
        write_report(path, tmp_path / "report.html", run_id="evil")
    assert list(tmp_path.iterdir()) == []
