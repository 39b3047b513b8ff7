"""alerts: runs the alert rules over a logdir."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.alert_rules.findings import FindingPlace, Row, RuleFindings, read_places, run_rule, run_select
from tfdbg_arrow.query.alert_rules.rules import COLUMNS, SEVERITIES, Rule, builtin_rules, read_rules
from tfdbg_arrow.query.alert_rules.scan import is_large, scan
from tfdbg_arrow.query.asked_runs import AskedRuns, asking
from tfdbg_arrow.query.displayed import Displayed
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.logdir.open_logdir import OpenLogdir
from tfdbg_arrow.query.nonfinite_search import first_nonfinite, judged_origins
from tfdbg_arrow.query.nonfinite_tensor import NonFinite
from tfdbg_arrow.query.stacks import Frame

DEFAULT_LIMIT = 100
"""Default maximum number of alerts of each rule. `num_found` counts all of them."""
MAX_ROLLED_UP = 5_000
"""Findings are made from at most this many alerts of each rule. This bounds the memory."""
ORIGIN_RULE = "nonfinite_origin"
"""The rule whose alerts are about origins of bad values."""
_BAD_RULE = "nonfinite"
"""The rule whose alerts are about all bad tensors."""
_MAX_JUDGED = 200
"""Maximum number of runs whose bad values are checked for harm, and of origins of each run. Each takes a search."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Alert(Displayed):
    """One finding of a rule about one op output. An attribute is None if it does not apply.

    Attributes:
        kind: The rule.
        severity: `error`, `warning` or `info`.
        run_id: The run.
        graph_id: The graph; None for an eager op.
        graph_name: The name of the graph.
        op_name: Name of the op in the graph.
        op_type: Type of the op; None for a tensor of scope `external` and for an alert about a whole graph.
        output_slot: Index of the op's output.
        first_event_index: Row in tensor_health of the first tensor that the alert is about.
        last_event_index: Row in tensor_health of the last of these tensors.
        num_events: Number of tensors that the alert is about.
        value: The quantity that the rule measures.
        layer: The Keras layer or tf.Module scope of the op, if it was recorded.
        first_step: The training step of the first tensor.
        last_step: The training step of the last tensor.
        message: One sentence.
        source: The line of the user's code that created the op, or None.
        is_expected: Whether the finding is harmless, as in `NonFinite.is_expected`.
    """

    kind: str
    severity: str
    run_id: str
    graph_id: int | None
    graph_name: str | None
    op_name: str | None
    op_type: str | None
    output_slot: int | None
    first_event_index: int | None
    last_event_index: int | None
    num_events: int
    value: float
    layer: str | None
    first_step: int | None
    last_step: int | None
    message: str
    source: Frame | None
    is_expected: bool = False


@dataclass(frozen=True, kw_only=True, repr=False)
class AlertFinding(Displayed):
    """The alerts of one rule, one run, one layer and one line of the user's code. An attribute is None if unknown.

    Attributes:
        kind: The rule.
        severity: `error`, `warning` or `info`.
        run_id: The run.
        layer: The Keras layer or tf.Module scope.
        source: The user's line.
        num_alerts: Number of alerts. Each alert is about an op output or a graph.
        num_events: Number of tensors that the alerts are about.
        first_step: The training step of the first of these tensors.
        last_step: The training step of the last of these tensors.
        first_event_index: Row in tensor_health of the first of these tensors.
        last_event_index: Row in tensor_health of the last of these tensors.
        first: The alert that begins first.
        is_expected: Whether the finding is harmless, as in `NonFinite.is_expected`.
    """

    kind: str
    severity: str
    run_id: str
    layer: str | None
    source: Frame | None
    num_alerts: int
    num_events: int
    first_step: int | None
    last_step: int | None
    first_event_index: int | None
    last_event_index: int | None
    first: Alert
    is_expected: bool = False


@dataclass(frozen=True, kw_only=True, repr=False)
class RuleSummary(Displayed):
    """The findings of one rule and one severity.

    Attributes:
        kind: The rule.
        severity: `error`, `warning` or `info`.
        num_alerts: Number of alerts.
        num_places: Number of findings. A finding is about one layer and one line of the user's code in one run.
        first_step: The first training step in which one of the alerts begins; None if no step is known.
        last_step: The last training step in which one of the alerts ends; None if no step is known.
    """

    kind: str
    severity: str
    num_alerts: int
    num_places: int
    first_step: int | None
    last_step: int | None


@dataclass(frozen=True, kw_only=True, repr=False)
class Alerts(Displayed):
    """The result of the rules.

    Attributes:
        findings: The alerts grouped by rule, run, layer and line, using the first MAX_ROLLED_UP alerts of each rule.
        alerts: The single alerts, ordered by severity, then rule, then first event. The culprits that
            `first_nonfinite` names in the runs come first.
        num_found: For each rule that was run, the total number of alerts.
        num_cut: Number of alerts that are not in `alerts` because of the limit.
        not_run: The rules that the memory limit stopped, with the error message.
        num_unjudged: Number of alerts about bad values that were not checked for harm because of a limit. Their
            severity is that of the rule, although the values may have done no harm.
    """

    findings: tuple[AlertFinding, ...]
    alerts: tuple[Alert, ...]
    num_found: dict[str, int]
    num_cut: int
    not_run: dict[str, str]
    num_unjudged: int

    @property
    def summary(self) -> tuple[RuleSummary, ...]:
        """The findings by severity and rule: the worst severity first, then the rule with the most alerts."""
        groups: dict[tuple[str, str], list[AlertFinding]] = {}
        for finding in self.findings:
            groups.setdefault((finding.severity, finding.kind), []).append(finding)
        summaries = [_summary(findings) for findings in groups.values()]
        return tuple(sorted(summaries, key=lambda rule: (SEVERITIES.index(rule.severity), -rule.num_alerts, rule.kind)))


def _summary(findings: Sequence[AlertFinding]) -> RuleSummary:
    steps = [step for finding in findings for step in (finding.first_step, finding.last_step) if step is not None]
    return RuleSummary(
        kind=findings[0].kind,
        severity=findings[0].severity,
        num_alerts=sum(finding.num_alerts for finding in findings),
        num_places=len(findings),
        first_step=min(steps, default=None),
        last_step=max(steps, default=None),
    )


def alerts(
    logdir: Engine | str | Path,
    *,
    kinds: Iterable[str] | None = None,
    parameters: Mapping[str, Mapping[str, float]] | None = None,
    rules_directory: str | Path | None = None,
    run_id: str | None = None,
    limit: int = DEFAULT_LIMIT,
) -> Alerts:
    """Runs alert rules over a logdir.

    Args:
        logdir: An open logdir, or its path.
        kinds: Only these rules; None means all rules.
        parameters: Values to use instead of a rule's defaults, by rule.
        rules_directory: A directory with your own rules. These rules come after the built-in rules, and replace
            built-in rules of the same name.
        run_id: The run, or "all". None means the newest run, with the other processes of its program.
        limit: Maximum number of alerts per rule; the first alerts are kept. The limit does not apply to the findings.

    Raises:
        LogdirError: The path is not a readable logdir.
        QueryError: A rule, a parameter or the run is unknown, or a rule is invalid.
        BrokenPartError: A part cannot be read.
    """
    if limit < 0:
        raise QueryError(f"limit is {limit}, expected 0 or more.")
    rules = _choose(kinds, rules_directory)
    given = dict(parameters or {})
    unknown = sorted(set(given) - {rule.kind for rule in rules})
    if unknown:
        raise QueryError(f"parameters are given for {unknown[0]!r}, which is not one of the rules to run.")
    rolled_up = max(limit, MAX_ROLLED_UP)
    with asking(logdir, run_id) as (open_, asked):
        by_rule: dict[str, RuleFindings] = {}
        if isinstance(open_, OpenLogdir) and is_large(open_, asked):
            scannable = [rule for rule in rules if rule.candidates is not None]
            by_rule = scan(open_, asked, scannable, given, limit=rolled_up)
        condition, run_ids = asked.condition("f.run_id")
        for rule in rules:
            if rule.kind not in by_rule:
                by_rule[rule.kind] = findings = RuleFindings()
                values = given.get(rule.kind, {})
                run_rule(open_, rule, values, findings, limit=rolled_up, condition=condition, parameters=run_ids)
        num_found = {rule.kind: by_rule[rule.kind].number for rule in rules if by_rule[rule.kind].error is None}
        rows = [(rule, row) for rule in rules if rule.kind in num_found for row in by_rule[rule.kind].rows]
        places = read_places(open_, [row for _, row in rows])
        all_alerts = [
            _alert(rule, given.get(rule.kind, {}), row, place) for (rule, row), place in zip(rows, places, strict=True)
        ]
        num_unjudged = 0
        if not num_found.keys().isdisjoint((ORIGIN_RULE, _BAD_RULE)):
            culprits = _culprits(open_, asked)
            num_unjudged = sum(alert.kind == _BAD_RULE and alert.run_id not in culprits for alert in all_alerts)
            all_alerts = [_of_bad_tensor(alert, culprits.get(alert.run_id)) for alert in all_alerts]
            origin_rule = next((rule for rule in rules if rule.kind == ORIGIN_RULE and rule.kind in num_found), None)
            if origin_rule is not None:
                before = len(all_alerts)
                all_alerts, unjudged = _judged(open_, all_alerts, culprits)
                all_alerts = _with_culprits(open_, origin_rule, all_alerts, culprits)
                num_found[ORIGIN_RULE] += len(all_alerts) - before
                num_unjudged += sum(alert in unjudged for alert in all_alerts)
    all_alerts.sort(key=lambda alert: SEVERITIES.index(alert.severity))
    listed = _first_of_each(all_alerts, limit)
    return Alerts(
        findings=roll_up(all_alerts),
        alerts=listed,
        num_found=num_found,
        num_cut=sum(num_found.values()) - len(listed),
        not_run={kind: str(findings.error) for kind, findings in by_rule.items() if findings.error is not None},
        num_unjudged=num_unjudged,
    )


def _culprits(logdir: Engine, asked: AskedRuns) -> dict[str, NonFinite | None]:
    """Returns the result of `first_nonfinite` for each run with a bad value."""
    condition, run_ids = asked.condition()
    runs = logdir.rows(
        f"SELECT DISTINCT run_id FROM tensor_health WHERE has_inf_or_nan AND {condition} "
        f"ORDER BY run_id LIMIT {_MAX_JUDGED}",
        run_ids,
    )
    return {run: first_nonfinite(logdir, run_id=run) for (run,) in runs}


def _judged(
    logdir: Engine, alerts: list[Alert], culprits: Mapping[str, NonFinite | None]
) -> tuple[list[Alert], set[Alert]]:
    """Returns the alerts with the origins, effects and lines that `first_nonfinite` determines.

    Alerts about harmless origins get the severity `info` and a message with the reason. Alerts about tensors that took
    their bad values from another tensor are left out.

    Returns:
        The alerts, and those of them that were not checked for harm because of a limit.
    """
    judged: dict[tuple[str, int | None], NonFinite | None] = {}
    for run_id, culprit in culprits.items():
        firsts = [a.first_event_index for a in alerts if a.kind == ORIGIN_RULE and a.run_id == run_id]
        indexes = [index for index in firsts if index is not None][:_MAX_JUDGED]
        origins = judged_origins(logdir, indexes, run_id=run_id, culprit=culprit)
        judged |= {(run_id, index): origin for index, origin in origins.items()}
    judged_alerts, unjudged = [], set()
    for alert in alerts:
        key = (alert.run_id, alert.first_event_index)
        if alert.kind != ORIGIN_RULE:
            judged_alerts.append(alert)
        elif key not in judged:
            judged_alerts.append(alert)
            culprit = culprits.get(alert.run_id)
            if culprit is None or culprit.event_index != alert.first_event_index:
                unjudged.add(alert)
        elif (origin := judged[key]) is not None:
            judged_alerts.append(_of_origin(alert, origin))
    return judged_alerts, unjudged


def _of_bad_tensor(alert: Alert, culprit: NonFinite | None) -> Alert:
    """Returns an alert about a bad tensor; the severity becomes `info` if no bad value of the run did harm."""
    if alert.kind != _BAD_RULE or culprit is None or not culprit.is_expected:
        return alert
    message = f"{alert.message} No bad value of this run did harm."
    return replace(alert, severity="info", message=message, is_expected=True)


def _of_origin(alert: Alert, origin: NonFinite) -> Alert:
    names = ("op_name", "op_type", "graph_name", "source", "layer")
    alert = replace(alert, **{name: getattr(origin, name) for name in names})
    if not origin.is_expected:
        return alert
    message = f"This op created a bad value, which did no harm: {origin.expected_reason}."
    return replace(alert, severity="info", message=message, is_expected=True)


def _with_culprits(
    logdir: Engine, rule: Rule, given_alerts: list[Alert], culprits: Mapping[str, NonFinite | None]
) -> list[Alert]:
    """Returns the alerts. Alerts about culprits come first: one for each run in which a bad value did harm.

    The rule does not find an op that creates a NaN from the infinities of a mask, or a bad value whose origin was not
    recorded. `first_nonfinite` follows the data and finds both. If the first bad value of the culprit's op did no harm,
    the alert is about the bad value that did harm.
    """
    alert_of_op = {(alert.run_id, *_op(alert)): alert for alert in given_alerts if alert.kind == ORIGIN_RULE}
    added = []
    for run, culprit in culprits.items():
        if culprit is None or culprit.is_expected:
            continue
        select = (
            "SELECT run_id, graph_id, op_name, op_type, output_slot, event_index AS first_event_index, "
            "event_index AS last_event_index, 1 AS num_events, "
            "CAST(num_nan + num_neg_inf + num_pos_inf AS DOUBLE) AS value "
            f"FROM tensor_health WHERE event_index = {culprit.event_index}"
        )
        rows, _ = run_select(logdir, select, limit=1, condition="f.run_id = ?", parameters=[run])
        for row in rows:
            place = FindingPlace(culprit.graph_name, culprit.layer, culprit.source)
            alert = replace(_of_origin(_alert(rule, {}, row, place), culprit), message=_message_of_culprit(culprit))
            same = alert_of_op.pop((run, *_op(alert)), None)
            if same is not None and same.first_event_index == culprit.event_index and not same.is_expected:
                alert = same
            elif same is not None:
                last = max(same.last_event_index or 0, culprit.event_index)
                alert = replace(alert, num_events=same.num_events, last_event_index=last)
            added.append(alert)
    return [
        *added,
        *(alert for alert in given_alerts if alert.kind != ORIGIN_RULE or (alert.run_id, *_op(alert)) in alert_of_op),
    ]


def _op(alert: Alert) -> tuple[object, ...]:
    """Returns the op of an alert.

    For eager ops, the result also contains the tensor, because one alert is about all eager ops of a type.
    """
    event_index = alert.first_event_index if alert.graph_id is None else None
    return alert.graph_id, alert.op_name, alert.op_type, alert.output_slot, event_index


def _message_of_culprit(culprit: NonFinite) -> str:
    if not culprit.is_origin:
        return "This value is bad, and its origin was not recorded."
    if any(taken.health is not None and taken.health.has_inf_or_nan for taken in culprit.inputs):
        return "This op created a bad value from infinities that the program wrote itself."
    return "This op created a bad value. Its inputs are not bad."


def _first_of_each(alerts: Iterable[Alert], limit: int) -> tuple[Alert, ...]:
    """Returns at most `limit` alerts of each rule."""
    numbers: Counter[str] = Counter()
    listed = []
    for alert in alerts:
        numbers[alert.kind] += 1
        if numbers[alert.kind] <= limit:
            listed.append(alert)
    return tuple(listed)


def _choose(kinds: Iterable[str] | None, directory: str | Path | None) -> Sequence[Rule]:
    rules = {rule.kind: rule for rule in builtin_rules()}
    if directory is not None:
        rules |= {rule.kind: rule for rule in read_rules(directory)}
    if kinds is None:
        return list(rules.values())
    wanted = [kinds] if isinstance(kinds, str) else list(kinds)
    unknown = [kind for kind in wanted if kind not in rules]
    if unknown or not wanted:
        what = f"rule {unknown[0]!r} is unknown" if unknown else "no rule is named"
        raise QueryError(f"{what}; there are {', '.join(sorted(rules))}.")
    return [rules[kind] for kind in dict.fromkeys(wanted)]


class _Unknown:
    """Stands for a value that the recording's mode does not measure. Such a value is formatted as `?`."""

    def __format__(self, _: str) -> str:
        return "?"


def _alert(rule: Rule, given: Mapping[str, float], row: Row, place: FindingPlace) -> Alert:
    facts = dict(zip(COLUMNS, row, strict=False))
    *_, first_step, last_step = row
    value = _Unknown() if facts["value"] is None else facts["value"]
    return Alert(
        kind=rule.kind,
        severity=rule.severity,
        graph_name=place.graph_name,
        layer=place.layer,
        first_step=first_step,
        last_step=last_step,
        message=rule.message.format(**rule.values(given), value=value),
        source=place.source,
        **facts,
    )


def roll_up(alerts: Iterable[Alert]) -> tuple[AlertFinding, ...]:
    """Groups alerts into findings, ordered by severity, then in the order of the alerts."""
    groups: dict[tuple[object, ...], list[Alert]] = {}
    for alert in alerts:
        line = None if alert.source is None else (alert.source.file_path, alert.source.lineno)
        groups.setdefault((alert.kind, alert.run_id, alert.layer, line, alert.is_expected), []).append(alert)
    return tuple(sorted(map(_finding, groups.values()), key=lambda finding: SEVERITIES.index(finding.severity)))


def _finding(alerts: list[Alert]) -> AlertFinding:
    first = min(alerts, key=lambda alert: (alert.first_event_index is None, alert.first_event_index))
    last = max(alerts, key=lambda alert: -1 if alert.last_event_index is None else alert.last_event_index)
    return AlertFinding(
        kind=first.kind,
        severity=first.severity,
        run_id=first.run_id,
        layer=first.layer,
        source=first.source,
        num_alerts=len(alerts),
        num_events=sum(alert.num_events for alert in alerts),
        first_step=first.first_step,
        last_step=last.last_step,
        first_event_index=first.first_event_index,
        last_event_index=last.last_event_index,
        first=first,
        is_expected=first.is_expected,
    )
