"""The alerts page: findings by rule, the most severe first."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, fields, replace
from itertools import groupby, islice
from typing import Any

from tfdbg_arrow.query import Alert, AlertFinding, Logdir, Rule, builtin_rules
from tfdbg_arrow.query.alert_rules.answer import MAX_ROLLED_UP
from tfdbg_arrow.query.alert_rules.rules import SEVERITIES
from tfdbg_arrow.viewer.background import WAIT_S, Answers, ReadyAnswers
from tfdbg_arrow.viewer.page import MAX_LIMIT, PageKind, Parameters, chosen_run

DEFAULT_LIMIT = 50
"""Default maximum number of findings, and of alerts, for each rule."""
_FIRST = ("nonfinite_origin", "nonfinite")
"""The rules that run first. Readers look for their alerts first, and these rules work in every mode."""


@dataclass(frozen=True, kw_only=True)
class RuleSummary:
    """The result of one alert rule.

    Attributes:
        kind: The rule.
        severity: The severity of the worst finding, or of the rule if it found nothing. A finding about bad values that
            did no harm is less severe than its rule.
        num_found: Number of alerts.
        num_findings: Number of findings.
        findings: The first findings, the most severe first.
    """

    kind: str
    severity: str
    num_found: int
    num_findings: int
    findings: tuple[AlertFinding, ...]


@dataclass(frozen=True, kw_only=True)
class RuleAlerts(RuleSummary):
    """The result of one rule with its alerts.

    Attributes:
        doc: Description of one alert of the rule.
        alerts: The first alerts.
        num_unjudged: Number of alerts that were not checked for harm.
    """

    doc: str
    alerts: tuple[Alert, ...]
    num_unjudged: int

    def summary(self, *, limit: int) -> RuleSummary:
        """Returns the result without the alerts, with at most `limit` findings."""
        facts = {field.name: getattr(self, field.name) for field in fields(RuleSummary)}
        return RuleSummary(**{**facts, "findings": self.findings[:limit]})


@dataclass(frozen=True, kw_only=True)
class AlertsView:
    """The alerts that a request asks for.

    Attributes:
        run_id: The run, or "all". None means the newest run, with the other processes of its program.
        rule: The rule; None means all.
        severity: The severity of the alerts, as the page shows it; None means any. An alert about a value that did no
            harm is less severe than its rule.
        limit: Maximum number of findings and alerts for each rule. Pages with equal limits share the answers.
    """

    run_id: str | None = None
    rule: str | None = None
    severity: str | None = None
    limit: int = DEFAULT_LIMIT

    @property
    def rules(self) -> list[Rule]:
        """The rules that can find such alerts, in the order in which they run.

        An alert can be less severe than its rule, but not more severe.
        """
        lowest = 0 if self.severity is None else SEVERITIES.index(self.severity)
        rules = [
            rule
            for rule in builtin_rules()
            if self.rule in (None, rule.kind) and (self.severity is None or SEVERITIES.index(rule.severity) <= lowest)
        ]
        return sorted(rules, key=lambda rule: (rule.kind not in _FIRST, SEVERITIES.index(rule.severity)))


@dataclass(frozen=True, kw_only=True)
class AlertsPage(AlertsView):
    """The data of the alerts page.

    Attributes:
        groups: The results of the rules that found something of this severity, the most severe first. Alerts of another
            severity are left out of the results.
        num_found: Number of alerts in these results.
        known_rules: The names of all rules.
        known_severities: All severities, the worst first.
        silent_rules: The selected rules that found nothing of this severity.
        unfinished_rules: The selected rules that did not finish because time or memory was not sufficient.
        pending_rules: The selected rules that still run.
    """

    groups: tuple[RuleAlerts, ...]
    num_found: int
    known_rules: tuple[str, ...]
    known_severities: tuple[str, ...]
    silent_rules: tuple[str, ...]
    unfinished_rules: tuple[str, ...]
    pending_rules: tuple[str, ...] = ()


def read_alerts(answers: Answers, view: AlertsView, *, wait_s: float = WAIT_S) -> AlertsPage:
    """Returns the alerts of the rules that have finished, by rule.

    Args:
        answers: Runs the rules.
        view: The alerts to read.
        wait_s: Maximum time to wait for rules that run in the background, in seconds.
    """
    results = rule_results(answers.ready(wanted_rules(view), wait_s=wait_s))
    finished = [_of_severity(rule, view.severity) for rule in results.finished]
    return AlertsPage(
        **vars(view),
        groups=tuple(
            replace(rule, findings=rule.findings[: view.limit], alerts=rule.alerts[: view.limit])
            for rule in finished
            if rule.num_found
        ),
        num_found=sum(rule.num_found for rule in finished),
        known_rules=tuple(one.kind for one in builtin_rules()),
        known_severities=SEVERITIES,
        silent_rules=tuple(rule.kind for rule in finished if not rule.num_found),
        unfinished_rules=results.unfinished,
        pending_rules=results.pending,
    )


def _of_severity(result: RuleAlerts, severity: str | None) -> RuleAlerts:
    """Returns the part of a rule's result that has a severity; the whole result if the severity is None."""
    if severity is None:
        return result
    findings = tuple(finding for finding in result.findings if finding.severity == severity)
    num_found, num_unjudged = sum(finding.num_alerts for finding in findings), 0
    (rule,) = (rule for rule in builtin_rules() if rule.kind == result.kind)
    if rule.severity == severity:
        # The findings have only the first alerts. The others were not checked for harm.
        num_found += result.num_found - sum(finding.num_alerts for finding in result.findings)
        num_unjudged = result.num_unjudged
    return replace(
        result,
        severity=severity,
        num_found=num_found,
        num_findings=len(findings),
        findings=findings,
        alerts=tuple(alert for alert in result.alerts if alert.severity == severity),
        num_unjudged=num_unjudged,
    )


@dataclass(frozen=True)
class _RuleKey:
    """The key of a rule's result among the answers."""

    kind: str
    run_id: str | None
    limit: int


def wanted_rules(view: AlertsView) -> dict[Hashable, Callable[[Logdir], RuleAlerts | None]]:
    """Returns the computations that run the rules, in the order in which the rules run."""
    return {
        _RuleKey(rule.kind, view.run_id, view.limit): functools.partial(
            run_rule, rule=rule, run_id=view.run_id, limit=view.limit
        )
        for rule in view.rules
    }


def run_rule(logdir: Logdir, *, rule: Rule, run_id: str | None, limit: int) -> RuleAlerts | None:
    """Returns the result of a rule, with at most `limit` alerts of each severity.

    The result is None if the memory limit stopped the rule.
    """
    answer = logdir.alerts(kinds=[rule.kind], run_id=run_id, limit=MAX_ROLLED_UP)
    if rule.kind in answer.not_run:
        return None
    return RuleAlerts(
        kind=rule.kind,
        severity=answer.findings[0].severity if answer.findings else rule.severity,
        doc=rule.doc,
        num_found=answer.num_found[rule.kind],
        num_findings=len(answer.findings),
        findings=answer.findings,
        alerts=_first_of_each_severity(answer.alerts, limit),
        num_unjudged=answer.num_unjudged,
    )


def _first_of_each_severity(alerts: Iterable[Alert], limit: int) -> tuple[Alert, ...]:
    of_severity = groupby(alerts, key=lambda alert: alert.severity)  # the alerts are ordered by severity
    return tuple(alert for _, group in of_severity for alert in islice(group, limit))


@dataclass(frozen=True, kw_only=True)
class RuleResults:
    """The results of several rules.

    Attributes:
        finished: The results of the rules that finished, the most severe first.
        unfinished: The rules that did not finish because the time was up or the memory limit was reached.
        pending: The rules that still run.
    """

    finished: tuple[RuleAlerts, ...]
    unfinished: tuple[str, ...]
    pending: tuple[str, ...]


def rule_results(ready: ReadyAnswers[Any]) -> RuleResults:
    """Returns the results of rules. Answers to other questions are ignored."""
    results = {key.kind: answer for key, answer in ready.answers.items() if isinstance(key, _RuleKey)}
    failed, pending = (
        tuple(key.kind for key in keys if isinstance(key, _RuleKey)) for keys in (ready.failed, ready.pending)
    )
    finished = [result for result in results.values() if result is not None]
    return RuleResults(
        finished=tuple(sorted(finished, key=lambda rule: SEVERITIES.index(rule.severity))),
        unfinished=(*(kind for kind, result in results.items() if result is None), *failed),
        pending=pending,
    )


def _view(logdir: Logdir, parameters: Parameters) -> AlertsView:
    return AlertsView(
        run_id=chosen_run(logdir, parameters),
        rule=parameters.choice("rule", (rule.kind for rule in builtin_rules())),
        severity=parameters.choice("severity", SEVERITIES),
        limit=min(parameters.integer("limit") or DEFAULT_LIMIT, MAX_LIMIT),
    )


PAGE = PageKind(
    name="alerts",
    title="Alerts",
    key="a",
    read=_view,
    complete=lambda answers, view, _: read_alerts(answers, view, wait_s=WAIT_S),
    assets=("alerts.css", "pending.js"),
)
