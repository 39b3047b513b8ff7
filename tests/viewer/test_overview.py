"""Test the first page: the origin with its inputs and source line, the alerts, and unobserved outputs."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tfdbg_arrow.query import Logdir, builtin_rules, open_logdir
from tfdbg_arrow.viewer.background import InTurn, SinceRequest
from tfdbg_arrow.viewer.page import Parameters, parameters_of
from tfdbg_arrow.viewer.pages import alerts as alerts_page
from tfdbg_arrow.viewer.pages import overview as overview_page
from tfdbg_arrow.viewer.pages.alerts import AlertsView
from tfdbg_arrow.viewer.pages.overview import OverviewPage, complete_overview, read_overview
from tfdbg_arrow.viewer.reading import Reader
from tfdbg_arrow.viewer.report import read_report, render_report

from ..query.builder import CLEAN, NAN, START_NS, RunBuilder
from . import logdirs
from .browser import chromium, watched_page
from .serving import TOKEN, serving
from .test_alerts import hold_rules


def overview(path: Path, run_id: str | None = None, *, budget_s: float = 1000, **opening: Any) -> OverviewPage:
    with open_logdir(path, **opening) as logdir:
        page = read_overview(logdir, parameters_of(run=run_id))
        return complete_overview(InTurn(logdir, budget_s=budget_s), page, AlertsView(run_id=run_id))


@pytest.mark.slow
def test_the_origin_of_a_bad_run(tmp_path: Path) -> None:
    page = overview(logdirs.log_of_zero(tmp_path))

    assert (page.verdict, page.headline) == (
        "bad",
        "`log_probs = tf.math.log(probs)` at train.py:7 made -Inf in step 1.",
    )
    assert page.why == "Log of 0: 2 of 6 elements are 0, and the logarithm of 0 is -Inf."
    assert [(hop.op_name, hop.role, hop.num_zero) for hop in page.path] == [("probs", "cause", 2), ("Log", "origin", 0)]
    assert page.source is not None
    assert (page.source.frame.file_path, page.source.frame.lineno) == (logdirs.TRAIN, 7)
    assert [line.text for line in page.source.lines if line.lineno == 7] == ["    log_probs = tf.math.log(probs)"]
    assert page.num_unrecorded_inputs == 0


@pytest.mark.slow
def test_a_gradient_has_its_forward_op_its_layer_and_its_calls(tmp_path: Path) -> None:
    page = overview(logdirs.gradient(tmp_path))
    assert page.headline == "The gradient of `scaled = tf.sqrt(offset)` at train.py:8 is +Inf in step 2."
    origin = page.origin
    assert origin is not None
    assert (origin.layer, origin.role, origin.step, origin.effect) == ("model/norm", "gradient", 2, "variable")
    assert page.source is not None
    assert page.source.frame.lineno == 8
    html = render(tmp_path)
    labels = re.search(r'<dl class="labels">(.*?)</dl>', html, re.DOTALL)
    assert labels is not None
    assert words(labels[1]) == (
        "when step 2 effect reached a variable gradient of Sqrt, train.py:8 in loss layer model/norm role gradient "
        "called from train.py:4 in model ← train.py:9 in loss"
    )
    calls = re.search(r'<section class="card calls">(.*?)</section>', html, re.DOTALL)
    assert calls is not None
    assert words(calls[1]) == (
        "Called from innermost first "
        "train.py:4 in model return tf.nn.softmax(dense(images)) calls root "
        "train.py:9 in loss return -log_probs calls step"
    )


def render(path: Path) -> str:
    with open_logdir(path) as logdir:
        return render_report(read_report(logdir), max_bytes=1_000_000)[0]


def words(html: str) -> str:
    """Returns the text of a part of a page, with single spaces."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).replace(" ,", ",").split())


@pytest.mark.slow
def test_alerts_are_listed_with_the_worst_first(tmp_path: Path) -> None:
    page = overview(logdirs.log_of_zero(tmp_path))
    found = [(rule.kind, rule.severity, rule.num_found, rule.findings[0].first.op_name) for rule in page.rules]
    assert found == [("nonfinite_origin", "error", 2, "Log"), ("nonfinite", "warning", 3, "Log")]


def test_values_that_did_no_harm_are_neither_errors_nor_warnings(tmp_path: Path) -> None:
    logdirs.unused_infinity(tmp_path)
    assert overview(tmp_path).verdict == "expected"
    html = render(tmp_path)
    assert set(re.findall(r'class="severity (\w+)"', html)) == {"info"}
    assert "The whole run harmless bad values from step 3 on" in words(html)
    assert "it began here" in words(html)
    assert "it went bad here" not in words(html)


def test_the_answer_does_not_wait_for_alert_rules(tmp_path: Path) -> None:
    page = overview(logdirs.log_of_zero(tmp_path), budget_s=0.0)
    assert (page.verdict, page.rules) == ("bad", ())
    assert page.unfinished_rules[:2] == ("nonfinite_origin", "nonfinite")
    assert len(page.unfinished_rules) == len(builtin_rules())


@pytest.mark.slow
def test_rules_and_curves_fill_in_as_they_finish_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = logdirs.log_of_zero(tmp_path)
    whole = overview(path)
    with open_logdir(path) as logdir:
        start = read_overview(logdir, Parameters())
    assert (start.strip, start.rules, start.unfinished_rules, start.verdict) == (None, (), (), "bad")
    may_end = hold_rules(monkeypatch)
    with contextlib.closing(Reader(path)) as reader:
        while not (page := complete_overview(reader.background, start, AlertsView(), wait_s=0.1)).rules:
            pass
        assert [rule.kind for rule in page.rules] == ["nonfinite_origin"]
        assert (page.strip, page.is_strip_pending) == (whole.strip, False)
        assert set(page.pending_rules) == {rule.kind for rule in builtin_rules()} - {"nonfinite_origin"}
        assert page.training is not None
        assert (page.training.is_pending, page.training.is_finished, page.unfinished_rules) == (True, False, ())
        may_end.set()
        page = complete_overview(reader.background, start, AlertsView(), wait_s=60)
        assert page == whole
        # The alerts page uses the same answers.
        monkeypatch.setattr(alerts_page, "run_rule", pytest.fail)
        alerts = alerts_page.read_alerts(reader.background, AlertsView(), wait_s=0)
        assert (alerts.pending_rules, [group.kind for group in alerts.groups]) == (
            (), [rule.kind for rule in whole.rules]
        )  # fmt: skip


def test_a_request_waits_only_for_the_rest_of_its_time(tmp_path: Path) -> None:
    is_asked = threading.Event()

    def answer(_: Logdir) -> int:
        assert is_asked.wait(60)
        return 1

    with contextlib.closing(Reader(logdirs.log_of_zero(tmp_path))) as reader:
        later = threading.Timer(5, is_asked.set)
        later.start()
        late = SinceRequest(reader.background, began=time.monotonic() - 60)
        assert late.ready({"one": answer}, wait_s=59).pending == ("one",)
        later.cancel()
        is_asked.set()
        early = SinceRequest(reader.background, began=time.monotonic())
        assert early.ready({"one": answer}, wait_s=59).answers == {"one": 1}


def test_curves_that_take_too_long_are_told(tmp_path: Path) -> None:
    path = logdirs.log_of_zero(tmp_path)
    with open_logdir(path) as logdir:
        start = read_overview(logdir, Parameters())
    with contextlib.closing(Reader(path, timeout_s=0.0)) as reader:
        page = complete_overview(reader.background, start, AlertsView(), wait_s=60)
    assert page.training is not None
    assert (page.training.is_pending, page.training.is_finished, page.pending_rules) == (False, False, ())
    assert len(page.unfinished_rules) == len(builtin_rules())


@pytest.mark.slow
def test_the_page_fills_in_in_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview_page, "WAIT_S", 0.0)
    path = logdirs.log_of_zero(tmp_path)
    for has_script in (True, False):
        with (
            serving(path) as served,
            chromium() as browser,
            watched_page(browser, java_script_enabled=has_script) as page,
        ):
            page.goto(f"{served.url}/?token={TOKEN}")
            expect(page.get_by_role("link", name="nonfinite", exact=True).first).to_be_visible(timeout=60_000)
            expect(page.locator("[data-pending]")).to_have_count(0, timeout=60_000)
            expect(page.locator("#training")).to_be_visible()
            assert page.url.endswith("wait=1") != has_script


@pytest.mark.slow
def test_the_strip_shows_when_the_run_went_bad(tmp_path: Path) -> None:
    strip = overview(logdirs.log_of_zero(tmp_path)).strip
    assert strip is not None
    assert (strip.first_bad_event_index, strip.first_bad_step, strip.num_buckets) == (3, 1, 6)
    shown = [(bucket.first_event_index, bucket.num_tensors, bucket.num_bad) for bucket in strip.buckets]
    assert shown == [(1, 1, 0), (2, 1, 0), (3, 1, 1), (4, 1, 0), (5, 1, 1), (6, 1, 1)]


def test_a_healthy_run_names_unobserved_outputs(tmp_path: Path) -> None:
    page = overview(logdirs.healthy(tmp_path))
    assert (page.verdict, page.origin, page.path, page.rules) == ("healthy", None, (), ())
    assert page.headline == "Nothing is bad: none of 1 recorded tensors contains an infinity or a NaN."
    assert page.not_observed == "1 op outputs (op_regex)"


def test_a_run_in_a_mode_without_health_is_not_healthy(tmp_path: Path) -> None:
    run = RunBuilder("run-a", tensor_debug_mode="NO_TENSOR")
    run.graph("f").op("x", "Mul")
    page = overview(run.write(tmp_path))
    assert page.verdict == "unmeasured"
    headline = "It is not known whether there are infinities or NaN: the mode NO_TENSOR does not detect them."
    assert page.headline == headline


def test_a_run_without_tensors_is_empty(tmp_path: Path) -> None:
    page = overview(RunBuilder("run-a").write(tmp_path))
    assert (page.verdict, page.headline, page.strip) == ("empty", "Nothing is recorded here yet.", None)


@pytest.mark.slow
def test_several_workers_are_listed_and_one_can_be_chosen(tmp_path: Path) -> None:
    logdirs.log_of_zero(tmp_path, run_id="run-a", worker="worker:0")
    other = RunBuilder("run-b", worker="worker:1", wall_time_ns=START_NS + 1)
    other.tensor(other.graph("f").op("x", "Mul"), "x", CLEAN)
    other.write(tmp_path)

    page = overview(tmp_path)
    facts = [(row.run.worker, row.num_tensors, row.num_bad, row.first_bad_step, row.last_step) for row in page.runs]
    assert facts == [("worker:0", 6, 3, 1, 2), ("worker:1", 1, 0, None, None)]
    assert page.origin is not None
    assert page.origin.worker == "worker:0"
    chosen = overview(tmp_path, "run-b")
    assert (chosen.verdict, len(chosen.runs)) == ("healthy", 2)


def test_unrecorded_inputs_are_counted_and_the_origin_is_not_proven(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Mul", not_recorded="op_regex").op("y", "Log", ["x"])
    run.tensor(graph, "y", NAN)
    page = overview(run.write(tmp_path))
    assert page.origin is not None
    assert (page.origin.is_origin, page.num_unrecorded_inputs, page.why) == (False, 1, None)


@pytest.mark.slow
def test_skipped_broken_parts_are_named(tmp_path: Path) -> None:
    path = logdirs.log_of_zero(tmp_path)
    (part,) = (path / "tensor_health").glob("run=*/*")
    part.write_bytes(b"PAR1")
    page = overview(path, skip_broken=True)
    assert (page.num_broken, [broken.path for broken in page.broken]) == (1, [str(part)])
    assert overview(logdirs.log_of_zero(tmp_path / "sound")).num_broken == 0
