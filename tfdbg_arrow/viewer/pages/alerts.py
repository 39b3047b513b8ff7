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
"""Default maximum number of findings, and of alerts, for each rule."""
MAX_LIMIT = 1000
"""Maximum number that an address can ask for. Browsers are slow with longer tables."""
BUDGET_S = 15.0
"""Time limit for all rules together, in seconds."""
WAIT_S = 0.5
"""How long the page waits for rules that run in the background, in seconds."""
_FIRST = ("nonfinite_origin", "nonfinite")
"""The rules that run first. Readers look for their alerts first, and these rules work in every mode."""
_LEAST_S = 0.05
"""Seconds of remaining time below which no rule is started, because it could not end."""


@dataclass(frozen=True, kw_only=True)
class RuleSummary:
    """The result of one alert rule: name, severity, number of alerts, number of findings, and the first findings."""

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
    """

    doc: str
    alerts: tuple[Alert, ...]


@dataclass(frozen=True, kw_only=True)
class AlertsView:
    """The alerts that a request asks for.

    Attributes:
        run_id: The run, or "all". None means the newest run, with the other processes of its program.
        rule: The rule; None means all.
        severity: The severity of the rules; None means any.
        limit: Maximum number of findings and alerts for each rule. Pages with equal limits share the answers.
    """

    run_id: str | None = None
    rule: str | None = None
    severity: str | None = None
    limit: int = DEFAULT_LIMIT

    @property
    def kinds(self) -> list[str]:
        """The names of the rules in the order in which they run."""
        rules = [
            rule
            for rule in builtin_rules()
            if self.rule in (None, rule.kind) and self.severity in (None, rule.severity)
        ]
        rules.sort(key=lambda rule: (rule.kind not in _FIRST, SEVERITIES.index(rule.severity)))
        return [rule.kind for rule in rules]


@dataclass(frozen=True, kw_only=True)
class AlertsPage(AlertsView):
    """The data of the alerts page.

    Attributes:
        groups: The results of the rules that found something, the most severe first.
        num_found: Number of alerts of these rules.
        known_rules: The names of all rules.
        known_severities: All severities, the worst first.
        silent_rules: The selected rules that found nothing.
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


def read_alerts(logdir: Logdir, view: AlertsView, *, budget_s: float = BUDGET_S) -> AlertsPage:
    """Returns the alerts, by rule.

    Args:
        logdir: The logdir.
        view: The alerts to read.
        budget_s: Time limit for all rules together, in seconds.
    """
    rule_runs = run_rules(logdir, view.kinds, run_id=view.run_id, limit=view.limit, budget_s=budget_s)
    return page_of_rules(rule_runs, view)


def read_known_alerts(background: Background, view: AlertsView, *, wait_s: float) -> AlertsPage:
    """Returns the alerts of the rules that have finished, and runs the other rules in the background.

    Args:
        background: Runs the rules.
        view: The alerts to read.
        wait_s: Maximum time to wait for rules that have not finished, in seconds.
    """
    rule_runs, pending = known_rules(background.known(wanted_rules(view), wait_s=wait_s))
    return page_of_rules(rule_runs, view, pending=pending)


def wanted_rules(view: AlertsView) -> dict[Hashable, Callable[[Logdir], RuleRuns]]:
    """Returns the computations by which the background runs rules, in the order in which the rules run."""

    def run(kind: str) -> Callable[[Logdir], RuleRuns]:
        return lambda logdir: run_rules(logdir, [kind], run_id=view.run_id, limit=view.limit, budget_s=BUDGET_S)

    return {_RuleKey(kind, view.run_id, view.limit): run(kind) for kind in view.kinds}


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


def page_of_rules(rule_runs: RuleRuns, view: AlertsView, *, pending: tuple[str, ...] = ()) -> AlertsPage:
    """Returns the page with the results of rules.

    Args:
        rule_runs: The results.
        view: The alerts that were asked for.
        pending: The rules that still run.
    """
    return AlertsPage(
        **vars(view),
        groups=tuple(
            RuleAlerts(**run.summary(limit=view.limit), doc=run.rule.doc, alerts=run.alerts)
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

    def summary(self, *, limit: int) -> dict[str, Any]:
        """Returns the attributes of a RuleSummary with at most `limit` findings."""
        return {
            "kind": self.rule.kind,
            "severity": self.rule.severity,
            "num_found": self.num_found,
            "num_findings": len(self.findings),
            "findings": self.findings[:limit],
        }


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
    for rule in (rules[kind] for kind in (AlertsView().kinds if kinds is None else kinds)):
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


def _view(run_id: str | None, parameters: Parameters) -> AlertsView:
    return AlertsView(
        run_id=run_id,
        rule=parameters.choice("rule", (rule.kind for rule in builtin_rules())),
        severity=parameters.choice("severity", SEVERITIES),
        limit=min(parameters.integer("limit") or DEFAULT_LIMIT, MAX_LIMIT),
    )


def _read(logdir: Logdir, parameters: Parameters) -> AlertsPage:
    return read_alerts(logdir, _view(chosen_run(logdir, parameters), parameters))


def _complete(background: Background, run_id: str | None, parameters: Parameters) -> AlertsPage:
    return read_known_alerts(background, _view(run_id, parameters), wait_s=WAIT_S)


PAGE = PageKind(
    name="alerts",
    title="Alerts",
    key="a",
    read=_read,
    assets=("alerts.css", "pending.js"),
    gradual=Gradual(start=chosen_run, complete=_complete),
)
