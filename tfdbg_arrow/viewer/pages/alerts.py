"""The alerts: what the rules found, by rule, the worst first."""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.query import Alert, AlertFinding, Logdir, builtin_rules
from tfdbg_arrow.query.alert_rules.rules import SEVERITIES
from tfdbg_arrow.viewer.page import PageKind, chosen_run
from tfdbg_arrow.viewer.parameters import Parameters
from tfdbg_arrow.viewer.rule_runs import run_rules

DEFAULT_LIMIT = 50
MAX_LIMIT = 1000
BUDGET_S = 15.0
"""Seconds for all rules together."""


@dataclass(frozen=True, kw_only=True)
class RuleAlerts:
    """What one rule found.

    Attributes:
        kind: The rule.
        severity: `error`, `warning` or `info`.
        doc: What one of its alerts is.
        num_found: How many alerts there are.
        num_findings: How many findings these make.
        findings: The first findings.
        alerts: The first alerts.
    """

    kind: str
    severity: str
    doc: str
    num_found: int
    num_findings: int
    findings: tuple[AlertFinding, ...]
    alerts: tuple[Alert, ...]


@dataclass(frozen=True, kw_only=True)
class AlertsPage:
    """The alerts.

    Attributes:
        run_id: Only of this run; None: of all.
        rule: Only of this rule; None: of all.
        severity: Only of this severity; None: of any.
        limit: At most so many findings and alerts of each rule.
        groups: What each rule found, the worst first; rules that found nothing are left out.
        num_found: Alerts of these rules.
        known_rules: The names of all rules.
        known_severities: All severities, the worst first.
        silent_rules: The rules that were asked for and found nothing.
        unfinished_rules: The rules that were asked for and were not run to their end, for want of time or memory.
    """

    run_id: str | None
    rule: str | None
    severity: str | None
    limit: int
    groups: tuple[RuleAlerts, ...]
    num_found: int
    known_rules: tuple[str, ...]
    known_severities: tuple[str, ...]
    silent_rules: tuple[str, ...]
    unfinished_rules: tuple[str, ...]


def read_alerts(
    logdir: Logdir,
    *,
    run_id: str | None = None,
    rule: str | None = None,
    severity: str | None = None,
    limit: int = DEFAULT_LIMIT,
    budget_s: float = BUDGET_S,
) -> AlertsPage:
    """Returns the alerts, by rule.

    Args:
        logdir: The logdir.
        run_id: Only this run; None: all.
        rule: Only this rule; None: all.
        severity: Only this severity; None: any.
        limit: At most so many findings and alerts of each rule, and no more than MAX_LIMIT.
        budget_s: Seconds for all rules.
    """
    known = builtin_rules()
    asked = [one.kind for one in known if rule in (None, one.kind) and severity in (None, one.severity)]
    limit = max(1, min(limit, MAX_LIMIT))
    found = run_rules(logdir, asked, run_id=run_id, limit=limit, budget_s=budget_s)
    return AlertsPage(
        run_id=run_id,
        rule=rule,
        severity=severity,
        limit=limit,
        groups=tuple(
            RuleAlerts(
                kind=run.rule.kind,
                severity=run.rule.severity,
                doc=run.rule.doc,
                num_found=run.num_found,
                num_findings=len(run.findings),
                findings=run.findings[:limit],
                alerts=run.alerts,
            )
            for run in found.runs
            if run.alerts
        ),
        num_found=sum(run.num_found for run in found.runs),
        known_rules=tuple(one.kind for one in known),
        known_severities=SEVERITIES,
        silent_rules=tuple(run.rule.kind for run in found.runs if not run.num_found),
        unfinished_rules=found.unfinished,
    )


def _read(logdir: Logdir, parameters: Parameters) -> AlertsPage:
    return read_alerts(
        logdir,
        run_id=chosen_run(logdir, parameters),
        rule=parameters.choice("rule", (rule.kind for rule in builtin_rules())),
        severity=parameters.choice("severity", SEVERITIES),
        limit=parameters.integer("limit") or DEFAULT_LIMIT,
    )


PAGE = PageKind(name="alerts", title="Alerts", key="a", read=_read)
