"""Test the page of alerts: groups by rule, filters, and limits."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tfdbg_arrow.query import Logdir, Rule, open_logdir
from tfdbg_arrow.viewer.background import InTurn
from tfdbg_arrow.viewer.pages import alerts as alerts_page
from tfdbg_arrow.viewer.pages.alerts import AlertsPage, AlertsView, RuleAlerts, read_alerts
from tfdbg_arrow.viewer.reading import Reader

from ..query.builder import NAN, RunBuilder
from . import logdirs
from .browser import chromium, watched_page
from .serving import TOKEN, serving

NONFINITE = AlertsView(rule="nonfinite")


def alerts(path: Path, *, budget_s: float = 1000, **asked: Any) -> AlertsPage:
    with open_logdir(path) as logdir:
        return read_alerts(InTurn(logdir, budget_s=budget_s), AlertsView(**asked))


def hold_rules(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Makes all rules but nonfinite_origin wait for the returned event."""
    may_end = threading.Event()
    run_rule = alerts_page.run_rule

    def slow(logdir: Logdir, *, rule: Rule, **settings: Any) -> RuleAlerts | None:
        if rule.kind != "nonfinite_origin":
            assert may_end.wait(60)
        return run_rule(logdir, rule=rule, **settings)

    monkeypatch.setattr(alerts_page, "run_rule", slow)
    return may_end


def test_alerts_are_grouped_by_rule_with_the_worst_first(tmp_path: Path) -> None:
    page = alerts(logdirs.log_of_zero(tmp_path))
    found = [(group.kind, group.severity, [alert.op_name for alert in group.alerts]) for group in page.groups]
    assert found == [("nonfinite_origin", "error", ["Log", "Sqrt"]), ("nonfinite", "warning", ["Log", "Sqrt", "Neg"])]
    assert page.num_found == 5
    assert "dead_relu" in page.silent_rules


def test_alerts_about_values_that_did_no_harm_are_only_informative(tmp_path: Path) -> None:
    page = alerts(logdirs.unused_infinity(tmp_path))
    assert [(group.kind, group.severity) for group in page.groups] == [
        ("nonfinite_origin", "info"),
        ("nonfinite", "info"),
    ]


def test_filters_by_rule_and_severity(tmp_path: Path) -> None:
    path = logdirs.log_of_zero(tmp_path)
    assert [group.kind for group in alerts(path, rule="nonfinite").groups] == ["nonfinite"]
    assert [group.kind for group in alerts(path, severity="error").groups] == ["nonfinite_origin"]
    nothing = alerts(path, rule="nonfinite", severity="error")
    assert (nothing.groups, nothing.num_found, nothing.silent_rules) == ((), 0, ())


def test_the_filter_by_severity_uses_the_severity_of_the_alert(tmp_path: Path) -> None:
    harmless = alerts(logdirs.unused_infinity(tmp_path), severity="error")
    assert (harmless.groups, harmless.num_found) == ((), 0)
    assert "nonfinite_origin" in harmless.silent_rules
    logdirs.log_of_zero(tmp_path, run_id="run-b")
    whole = alerts(tmp_path, run_id="all")
    parts = {severity: alerts(tmp_path, run_id="all", severity=severity) for severity in whole.known_severities}
    assert {severity: [(group.kind, group.num_found) for group in part.groups] for severity, part in parts.items()} == {
        "error": [("nonfinite_origin", 1)],
        "warning": [("nonfinite", 3)],
        "info": [("nonfinite_origin", 2), ("nonfinite", 1)],
    }
    for severity, part in parts.items():
        assert {group.severity for group in part.groups} == {severity}
        for shown in (*part.groups, *(f for group in part.groups for f in (*group.findings, *group.alerts))):
            assert shown.severity == severity
    assert sum(part.num_found for part in parts.values()) == whole.num_found


def test_rules_that_did_not_finish_in_time_are_listed(tmp_path: Path) -> None:
    page = alerts(logdirs.log_of_zero(tmp_path), severity="error", budget_s=0.0)
    assert (page.groups, page.silent_rules, page.unfinished_rules[0]) == ((), (), "nonfinite_origin")


def test_the_limit_applies_to_the_list_and_not_to_the_count(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f")
    for number in range(5):
        graph.op(f"op{number}", "Mul")
        run.tensor(graph, f"op{number}", NAN)
    (group,) = alerts(run.write(tmp_path), rule="nonfinite", limit=2).groups
    assert (len(group.alerts), group.num_found) == (2, 5)
    (group,) = alerts(tmp_path, rule="nonfinite", severity="warning", limit=2).groups
    assert (len(group.alerts), group.num_found) == (2, 5)


@pytest.mark.slow
def test_rules_fill_in_as_they_finish_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = logdirs.log_of_zero(tmp_path)
    whole = alerts(path)
    may_end = hold_rules(monkeypatch)
    with contextlib.closing(Reader(path)) as reader:
        while not (page := read_alerts(reader.background, AlertsView(), wait_s=0.1)).groups:
            pass
        assert [group.kind for group in page.groups] == ["nonfinite_origin"]
        assert "nonfinite" in page.pending_rules
        assert (page.num_found, page.silent_rules) == (2, ())
        may_end.set()
        page = read_alerts(reader.background, AlertsView(), wait_s=60)
    assert page == whole


def test_results_are_shown_until_the_rules_ran_over_the_new_state(tmp_path: Path) -> None:
    with contextlib.closing(Reader(logdirs.log_of_zero(tmp_path))) as reader:
        known = read_alerts(reader.background, NONFINITE, wait_s=60)
        assert (known.num_found, known.pending_rules) == (3, ())
        logdirs.log_of_zero(tmp_path, run_id="run-b")
        assert read_alerts(reader.background, NONFINITE, wait_s=0).num_found == 3
        assert read_alerts(reader.background, NONFINITE, wait_s=60).num_found == 6


def test_a_rule_that_fails_is_unfinished(tmp_path: Path) -> None:
    with contextlib.closing(Reader(logdirs.log_of_zero(tmp_path), timeout_s=0.0)) as reader:
        page = read_alerts(reader.background, NONFINITE, wait_s=60)
    assert (page.groups, page.pending_rules, page.unfinished_rules) == ((), (), ("nonfinite",))


@pytest.mark.slow
def test_the_page_in_a_browser_with_and_without_javascript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts_page, "WAIT_S", 0.0)
    run_rule = alerts_page.run_rule

    def slow(*arguments: Any, **settings: Any) -> RuleAlerts | None:
        time.sleep(0.1)
        return run_rule(*arguments, **settings)

    monkeypatch.setattr(alerts_page, "run_rule", slow)
    path = logdirs.log_of_zero(tmp_path)
    for has_script in (True, False):
        with (
            serving(path) as served,
            chromium() as browser,
            watched_page(browser, java_script_enabled=has_script) as page,
        ):
            page.goto(f"{served.url}/alerts?token={TOKEN}")
            expect(page.get_by_role("heading", name="nonfinite 3")).to_be_visible(timeout=30_000)
            expect(page.locator("[data-pending]")).to_have_count(0, timeout=30_000)
            expect(page.locator(".rule-counts tbody tr")).to_have_count(2)
            assert page.url.endswith("wait=1") != has_script


def test_many_places_of_a_rule_are_folded(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f")
    for number in range(8):
        graph.op(f"op{number}", "Mul", stack=run.stack(("/a.py", number + 1, "f", None, "user")))
        run.tensor(graph, f"op{number}", NAN)
    with serving(run.write(tmp_path)) as served:
        text = served.ask("/alerts?rule=nonfinite&wait=1").text
    shown, _, folded = text.partition('class="more-places"')
    assert (shown.count("data-alert"), folded.count("data-alert")) == (5, 3)
    assert "3 more places" in folded
