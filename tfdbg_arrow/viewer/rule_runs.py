"""Runs alert rules for a page, one after the other, the most severe first, within a time limit."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from tfdbg_arrow.query import Alert, AlertFinding, Logdir, Rule, builtin_rules
from tfdbg_arrow.query.alert_rules.rules import SEVERITIES
from tfdbg_arrow.viewer.bounding import bounded
from tfdbg_arrow.viewer.failures import TookTooLongError

_FIRST = ("nonfinite_origin", "nonfinite")
"""The rules that are run first: readers look for them first, and they work in every mode."""
_LEAST_S = 0.05


@dataclass(frozen=True, kw_only=True)
class RuleRun:
    """The result of one rule.

    Attributes:
        rule: The rule.
        num_found: Number of all alerts.
        findings: The alerts, grouped into findings.
        alerts: The first alerts.
    """

    rule: Rule
    num_found: int
    findings: tuple[AlertFinding, ...]
    alerts: tuple[Alert, ...]


@dataclass(frozen=True, kw_only=True)
class RuleRuns:
    """The results of several rules.

    Attributes:
        runs: The results of the rules that finished, the most severe first.
        unfinished: The rules that did not finish because the time was up or the memory limit was reached.
    """

    runs: tuple[RuleRun, ...]
    unfinished: tuple[str, ...]


def run_rules(
    logdir: Logdir, kinds: Iterable[str] | None = None, *, run_id: str | None, limit: int, budget_s: float
) -> RuleRuns:
    """Runs built-in rules until the time is up. The rules after a slow rule may not be run.

    Args:
        logdir: The logdir.
        kinds: The rules to run; None means all.
        run_id: The run to read; None means all.
        limit: Maximum number of alerts for each rule.
        budget_s: Time limit for all rules together, in seconds.
    """
    wanted = None if kinds is None else set(kinds)
    rules = [rule for rule in builtin_rules() if wanted is None or rule.kind in wanted]
    rules.sort(key=lambda rule: (rule.kind not in _FIRST, SEVERITIES.index(rule.severity)))
    end = time.monotonic() + budget_s
    runs, unfinished = [], []
    for rule in rules:
        left_s = end - time.monotonic()
        try:
            if left_s < _LEAST_S:
                raise TookTooLongError("the time is up.")
            with bounded(logdir, left_s):
                found = logdir.alerts(kinds=[rule.kind], run_id=run_id, limit=limit)
        except TookTooLongError:
            unfinished.append(rule.kind)
            continue
        if rule.kind in found.not_run:
            unfinished.append(rule.kind)
            continue
        runs.append(
            RuleRun(rule=rule, num_found=found.num_found[rule.kind], findings=found.findings, alerts=found.alerts)
        )
    runs.sort(key=lambda run: SEVERITIES.index(run.rule.severity))
    return RuleRuns(runs=tuple(runs), unfinished=tuple(unfinished))
