"""Test the page of alerts: groups by rule, filters, and limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfdbg_arrow.query import open_logdir
from tfdbg_arrow.viewer.pages.alerts import AlertsPage, read_alerts

from ..query.builder import NAN, RunBuilder
from . import logdirs


def alerts(path: Path, **asked: Any) -> AlertsPage:
    with open_logdir(path) as logdir:
        return read_alerts(logdir, **{"budget_s": 1000, **asked})


def test_alerts_are_grouped_by_rule_with_the_worst_first(tmp_path: Path) -> None:
    page = alerts(logdirs.log_of_zero(tmp_path))
    found = [(group.kind, group.severity, [alert.op_name for alert in group.alerts]) for group in page.groups]
    assert found == [("nonfinite_origin", "error", ["Log", "Sqrt"]), ("nonfinite", "warning", ["Log", "Sqrt", "Neg"])]
    assert page.num_found == 5
    assert "dead_relu" in page.silent_rules


def test_filters_by_rule_and_severity(tmp_path: Path) -> None:
    path = logdirs.log_of_zero(tmp_path)
    assert [group.kind for group in alerts(path, rule="nonfinite").groups] == ["nonfinite"]
    assert [group.kind for group in alerts(path, severity="error").groups] == ["nonfinite_origin"]
    nothing = alerts(path, rule="nonfinite", severity="error")
    assert (nothing.groups, nothing.num_found, nothing.silent_rules) == ((), 0, ())


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
