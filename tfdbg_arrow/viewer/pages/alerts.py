"""The alerts page: findings by rule, the most severe first."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from tfdbg_arrow.query import Alert, AlertFinding, Logdir, Rule, builtin_rules
from tfdbg_arrow.query.alert_rules.rules import SEVERITIES
from tfdbg_arrow.viewer.background import Background, Known
from tfdbg_arrow.viewer.page import Gradual, PageKind, Parameters, TookTooLongError, chosen_run
from tfdbg_arrow.viewer.reading import bounded

DEFAULT_LIMIT = 50
MAX_LIMIT = 1000
BUDGET_S = 15.0
"""Time limit for all rules together, in seconds."""
WAIT_S = 0.5
"""How long the page waits for rules that run in the background, in seconds."""
_FIRST = ("nonfinite_origin", "nonfinite")
"""The rules that run first. Readers look for their alerts first, and these rules work in every mode."""
_LEAST_S = 0.05


@dataclass(frozen=True, kw_only=True)
class RuleAlerts:
    """The result of one rule.

    Attributes:
        kind: The rule.
        severity: `error`, `warning` or `info`.
        doc: Description of one alert of the rule.
        num_found: Number of all alerts.
        num_findings: Number of findings that group these alerts.
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
    """The data of the alerts page.

    Attributes:
        run_id: The selected run; None means all.
        rule: The selected rule; None means all.
        severity: The selected severity; None means any.
        limit: Maximum number of findings and alerts for each rule.
        groups: The results of the rules that found something, the most severe first.
        num_found: Number of alerts of these rules.
        known_rules: The names of all rules.
        known_severities: All severities, the worst first.
        silent_rules: The selected rules that found nothing.
        unfinished_rules: The selected rules that did not finish because time or memory was not sufficient.
        pending_rules: The selected rules that still run.
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
    pending_rules: tuple[str, ...] = ()


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
        run_id: The run to read, or "all". None means the newest run, with the other processes of its program.
        rule: The rule to run; None means all.
        severity: The severity of the rules to run; None means any.
        limit: Maximum number of findings and alerts for each rule; values above MAX_LIMIT are reduced to it.
        budget_s: Time limit for all rules together, in seconds.
    """
    asked = _asked(rule, severity)
    limit = max(1, min(limit, MAX_LIMIT))
    rule_runs = run_rules(logdir, asked, run_id=run_id, limit=limit, budget_s=budget_s)
    return page_of_rules(rule_runs, run_id=run_id, rule=rule, severity=severity, limit=limit)


def read_known_alerts(
    background: Background,
    *,
    run_id: str | None = None,
    rule: str | None = None,
    severity: str | None = None,
    limit: int = DEFAULT_LIMIT,
    budget_s: float = BUDGET_S,
    wait_s: float,
) -> AlertsPage:
    """Returns the alerts of the rules that have finished, and runs the other rules in the background.

    Args:
        background: Runs the rules.
        run_id: The run to read, or "all". None means the newest run, with the other processes of its program.
        rule: The rule to run; None means all.
        severity: The severity of the rules to run; None means any.
        limit: Maximum number of findings and alerts for each rule; values above MAX_LIMIT are reduced to it.
        budget_s: Time limit for each rule, in seconds.
        wait_s: Maximum time to wait for rules that have not finished, in seconds.
    """
    limit = max(1, min(limit, MAX_LIMIT))
    wanted = wanted_rules(_asked(rule, severity), run_id=run_id, limit=limit, budget_s=budget_s)
    rule_runs, pending = known_rules(background.known(wanted, wait_s=wait_s))
    return page_of_rules(rule_runs, run_id=run_id, rule=rule, severity=severity, limit=limit, pending=pending)


def wanted_rules(
    kinds: Iterable[str] | None = None,
    *,
    run_id: str | None,
    limit: int = DEFAULT_LIMIT,
    budget_s: float = BUDGET_S,
) -> dict[Hashable, Callable[[Logdir], RuleRuns]]:
    """Returns the computations by which the background runs rules, in the order in which the rules run.

    Args:
        kinds: The rules to run; None means all.
        run_id: The run to read, or "all". None means the newest run, with the other processes of its program.
        limit: Maximum number of alerts for each rule. Pages with equal limits share the answers.
        budget_s: Time limit for each rule, in seconds.
    """

    def run(kind: str) -> Callable[[Logdir], RuleRuns]:
        return lambda logdir: run_rules(logdir, [kind], run_id=run_id, limit=limit, budget_s=budget_s)

    return {_RuleKey(kind, run_id, limit): run(kind) for kind in (_asked(None, None) if kinds is None else kinds)}


def known_rules(ready: Known[Any]) -> tuple[RuleRuns, tuple[str, ...]]:
    """Returns the results of the rules that have finished, and the names of the rules that still run."""
    answers = [answer for key, answer in ready.answers.items() if isinstance(key, _RuleKey)]
    failed, pending = (
        tuple(key.kind for key in keys if isinstance(key, _RuleKey)) for keys in (ready.failed, ready.pending)
    )
    rule_runs = RuleRuns(
        runs=_worst_first(one for answer in answers for one in answer.runs),
        unfinished=(*(kind for answer in answers for kind in answer.unfinished), *failed),
    )
    return rule_runs, pending


@dataclass(frozen=True)
class _RuleKey:
    """The key of a rule's result in the background."""

    kind: str
    run_id: str | None
    limit: int


def _asked(kind: str | None, severity: str | None) -> list[str]:
    """Returns the selected rules in the order in which they run."""
    rules = [rule for rule in builtin_rules() if kind in (None, rule.kind) and severity in (None, rule.severity)]
    rules.sort(key=lambda rule: (rule.kind not in _FIRST, SEVERITIES.index(rule.severity)))
    return [rule.kind for rule in rules]


def page_of_rules(
    rule_runs: RuleRuns,
    *,
    run_id: str | None,
    rule: str | None = None,
    severity: str | None = None,
    limit: int,
    pending: tuple[str, ...] = (),
) -> AlertsPage:
    """Returns the page with the results of rules; see `AlertsPage` for the other arguments."""
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
            for run in rule_runs.runs
            if run.alerts
        ),
        num_found=sum(run.num_found for run in rule_runs.runs),
        known_rules=tuple(one.kind for one in builtin_rules()),
        known_severities=SEVERITIES,
        silent_rules=tuple(run.rule.kind for run in rule_runs.runs if not run.num_found),
        unfinished_rules=rule_runs.unfinished,
        pending_rules=pending,
    )


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
    """Runs built-in rules until the time is up. After a slow rule, the remaining rules may not run.

    Args:
        logdir: The logdir.
        kinds: The rules to run; None means all.
        run_id: The run to read, or "all". None means the newest run, with the other processes of its program.
        limit: Maximum number of alerts for each rule.
        budget_s: Time limit for all rules together, in seconds.
    """
    rules = {rule.kind: rule for rule in builtin_rules()}
    end = time.monotonic() + budget_s
    runs, unfinished = [], []
    for rule in (rules[kind] for kind in (_asked(None, None) if kinds is None else kinds)):
        left_s = end - time.monotonic()
        try:
            if left_s < _LEAST_S:
                raise TookTooLongError("the time is up.")
            with bounded(logdir, left_s):
                answer = logdir.alerts(kinds=[rule.kind], run_id=run_id, limit=limit)
        except TookTooLongError:
            unfinished.append(rule.kind)
            continue
        if rule.kind in answer.not_run:
            unfinished.append(rule.kind)
            continue
        runs.append(
            RuleRun(rule=rule, num_found=answer.num_found[rule.kind], findings=answer.findings, alerts=answer.alerts)
        )
    return RuleRuns(runs=_worst_first(runs), unfinished=tuple(unfinished))


def _worst_first(runs: Iterable[RuleRun]) -> tuple[RuleRun, ...]:
    return tuple(sorted(runs, key=lambda run: SEVERITIES.index(run.rule.severity)))


def _given(parameters: Parameters) -> dict[str, Any]:
    return {
        "rule": parameters.choice("rule", (rule.kind for rule in builtin_rules())),
        "severity": parameters.choice("severity", SEVERITIES),
        "limit": parameters.integer("limit") or DEFAULT_LIMIT,
    }


def _read(logdir: Logdir, parameters: Parameters) -> AlertsPage:
    return read_alerts(logdir, run_id=chosen_run(logdir, parameters), **_given(parameters))


def _complete(background: Background, run_id: str | None, parameters: Parameters) -> AlertsPage:
    return read_known_alerts(background, run_id=run_id, wait_s=WAIT_S, **_given(parameters))


PAGE = PageKind(
    name="alerts",
    title="Alerts",
    key="a",
    read=_read,
    assets=("alerts.css", "pending.js"),
    gradual=Gradual(start=chosen_run, complete=_complete),
)
