"""The alerts: what the rules found, by rule, the worst first."""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.query import Alert, Logdir, builtin_rules
from tfdbg_arrow.query.alert_rules import SEVERITIES
from tfdbg_arrow.viewer.page import PageKind, chosen_run
from tfdbg_arrow.viewer.parameters import Parameters

DEFAULT_LIMIT = 50
MAX_LIMIT = 1000


@dataclass(frozen=True, kw_only=True)
class RuleAlerts:
    """What one rule found.

    Attributes:
        kind: The rule.
        severity: `error`, `warning` or `info`.
        doc: What one of its findings is.
        num_found: How many there are.
        alerts: The first of them.
    """

    kind: str
    severity: str
    doc: str
    num_found: int
    alerts: tuple[Alert, ...]


@dataclass(frozen=True, kw_only=True)
class AlertsPage:
    """The alerts.

    Attributes:
        run_id: Only of this run; None: of all.
        rule: Only of this rule; None: of all.
        severity: Only of this severity; None: of any.
        limit: At most so many of each rule.
        groups: What each rule found, the worst first; rules that found nothing are left out.
        num_found: Alerts of these rules.
        known_rules: The names of all rules.
        known_severities: All severities, the worst first.
        silent_rules: The rules that were asked for and found nothing.
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


def read_alerts(
    logdir: Logdir,
    *,
    run_id: str | None = None,
    rule: str | None = None,
    severity: str | None = None,
    limit: int = DEFAULT_LIMIT,
) -> AlertsPage:
    """Returns the alerts, by rule.

    Args:
        logdir: The logdir.
        run_id: Only this run; None: all.
        rule: Only this rule; None: all.
        severity: Only this severity; None: any.
        limit: At most so many of each rule, and no more than MAX_LIMIT.
    """
    rules = {known.kind: known for known in builtin_rules()}
    asked = [kind for kind in rules if rule in (None, kind) and severity in (None, rules[kind].severity)]
    limit = max(1, min(limit, MAX_LIMIT))
    groups: dict[str, list[Alert]] = {}
    num_found: dict[str, int] = {}
    if asked:
        found = logdir.alerts(kinds=asked, run_id=run_id, limit=limit)
        num_found = found.num_found
        for alert in found.alerts:
            groups.setdefault(alert.kind, []).append(alert)
    return AlertsPage(
        run_id=run_id,
        rule=rule,
        severity=severity,
        limit=limit,
        groups=tuple(
            RuleAlerts(
                kind=kind,
                severity=rules[kind].severity,
                doc=rules[kind].doc,
                num_found=num_found[kind],
                alerts=tuple(alerts),
            )
            for kind, alerts in groups.items()
        ),
        num_found=sum(num_found.values()),
        known_rules=tuple(rules),
        known_severities=SEVERITIES,
        silent_rules=tuple(kind for kind in asked if not num_found.get(kind)),
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
