"""Rules as a page runs them: one after the other, the worst first, as far as the time allows."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from tfdbg_arrow.query import Alert, AlertFinding, Logdir, Rule, builtin_rules
from tfdbg_arrow.query.alert_rules.rules import SEVERITIES
from tfdbg_arrow.viewer.bounding import bounded
from tfdbg_arrow.viewer.failures import TookTooLongError

_FIRST = ("nonfinite_origin", "nonfinite")
"""What a reader looks for first, and what every mode finds."""
_LEAST_S = 0.05


@dataclass(frozen=True, kw_only=True)
class RuleRun:
    """What one rule found.

    Attributes:
        rule: The rule.
        num_found: How many alerts there are.
        findings: The alerts, rolled up.
        alerts: The first alerts.
    """

    rule: Rule
    num_found: int
    findings: tuple[AlertFinding, ...]
    alerts: tuple[Alert, ...]


@dataclass(frozen=True, kw_only=True)
class RuleRuns:
    """What rules found.

    Attributes:
        runs: Of each rule that was run, the worst first.
        unfinished: The rules that were not run to their end: the time was up, or the memory limit stopped them.
    """

    runs: tuple[RuleRun, ...]
    unfinished: tuple[str, ...]


def run_rules(
    logdir: Logdir, kinds: Iterable[str] | None = None, *, run_id: str | None, limit: int, budget_s: float
) -> RuleRuns:
    """Runs built-in rules as far as the time allows; one that takes long leaves nothing for those after it.

    Args:
        logdir: The logdir.
        kinds: Only these rules; None: all.
        run_id: Only this run; None: all.
        limit: At most so many alerts of each rule.
        budget_s: Seconds for all of them.
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
