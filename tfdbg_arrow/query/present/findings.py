"""The blocks of the findings of alert rules, and of the tensors that a recording did not examine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from tfdbg_arrow.query import wording
from tfdbg_arrow.query.present.blocks import SEVERITY_STYLES, Blocks, Heading, Line, Table
from tfdbg_arrow.query.present.tensors import code_line
from tfdbg_arrow.safe_text import number_of, some_of

if TYPE_CHECKING:
    from tfdbg_arrow.query.alert_rules.answer import Alert, AlertFinding, Alerts, RuleSummary
    from tfdbg_arrow.query.coverage import ChangedOps, Coverage, UnobservedOps

_MAX_OPS = 8
"""Maximum number of ops of a group that are named."""


def alerts(answer: Alerts) -> Blocks:
    """Yields the number of alerts of each rule, then the findings."""
    yield from summary(answer.summary)
    yield from findings(answer)


def alerts_text(answer: Alerts) -> str:
    """Returns the rules that found something in one line."""
    rules = [f"{rule.severity} {rule.kind} ({rule.num_alerts:,})" for rule in answer.summary]
    return ", ".join(rules) or "nothing was found"


def summary(rules: Sequence[RuleSummary]) -> Blocks:
    """Yields the number of alerts, places and steps of each rule."""
    if rules:
        rows = [
            (
                (rule.severity, SEVERITY_STYLES[rule.severity]),
                rule.kind,
                _steps_text(rule.first_step, rule.last_step).partition(" ")[2],
                f"{rule.num_alerts:,}",
                f"{rule.num_places:,}",
            )
            for rule in rules
        ]
        yield Table(("", "rule", "steps", "alerts", "places"), rows, num_numbers=2)
        yield Line()


def rule_line(rule: RuleSummary) -> Line:
    """Returns the number of alerts of a rule, its places and its steps."""
    places = f"{number_of(rule.num_alerts, 'alert')} at {number_of(rule.num_places, 'place')}"
    text = ", ".join(filter(None, (places, _steps_text(rule.first_step, rule.last_step))))
    return Line((rule.severity, SEVERITY_STYLES[rule.severity]), f" {rule.kind}: {text}")


def findings(answer: Alerts, *, expand: bool = False, limit: int | None = None) -> Blocks:
    """Yields the findings, then what the limits left out.

    Args:
        answer: The findings of the rules.
        expand: Whether to show every alert instead of the findings.
        limit: Maximum number of findings of each rule to show; None means all.
    """
    if not answer.findings and not answer.not_run:
        yield Line("No rule found anything.")
    if expand:
        for shown in answer.alerts:
            yield from alert(shown)
        yield from _rest("alerts", Counter(answer.num_found) - Counter(shown.kind for shown in answer.alerts))
    else:
        yield from _limited_findings(answer, limit)
    if answer.num_unjudged:
        yield Line((wording.unjudged_text(answer.num_unjudged), "bold"))
    for kind, error in answer.not_run.items():
        yield Line((f"The rule {kind} did not finish: {error}", "bad"))


def finding(answer: AlertFinding) -> Iterator[Line]:
    """Yields a finding: the number of occurrences, the first alert, then the steps, events and source line."""
    times = "" if answer.num_alerts == 1 else f"{answer.num_alerts:,} times, first "
    yield from _about(answer, answer.first, times)


def alert(answer: Alert) -> Iterator[Line]:
    """Yields an alert: its op or other subject, then the steps, events and source line."""
    yield from _about(answer, answer, "")


def coverage(answer: Coverage) -> Blocks:
    """Yields the tensors that were not examined, by run and graph, and other events during the recording."""
    if answer.summary is None:
        yield Line("Every tensor that could be bad was looked at.")
    else:
        yield Line(("Not looked at: ", "bold"), answer.summary)
    unobserved = [group for group in answer.unobserved if group.num_could_be_bad]
    for run_id, groups in groupby(unobserved, key=lambda group: group.run_id):
        yield Heading(("run ", "quiet"), run_id)
        for group in groups:
            yield Line(f"{_graph(group)}: {_unobserved_text(group)}", indent=2)
            yield Line((_ops_text(group), "quiet"), indent=6)
    num_others = sum(group.num_outputs for group in answer.unobserved if not group.num_could_be_bad)
    if num_others:
        text = f"{number_of(num_others, 'other output')} cannot be bad or are recorded at another op"
        yield Line((text, "quiet"), ("; --json lists them", "option"), (".", "quiet"))
    if answer.changed:
        yield Heading("changed by TensorFlow's optimizer, and recorded as executed")
    for changed in answer.changed:
        yield Line(f"{_graph(changed)}: {_changed_text(changed)}", indent=2)
    if answer.failed:
        yield Heading("raised an error")
    for failed in answer.failed:
        times = f"{failed.op_type}: {failed.error_type}, {number_of(failed.num_executions, 'time')}"
        yield Line(times, "; some of its tensors may be missing" if failed.is_lossy else "", indent=2)
    if answer.stats:
        yield Heading("noted while recording")
    for stat in answer.stats:
        number = "" if stat.num_events is None else f" ({number_of(stat.num_events, 'event')})"
        yield Line(f"{stat.stat}: {stat.subject}{number}: {stat.reason}", indent=2)


def _limited_findings(answer: Alerts, limit: int | None) -> Iterator[Line]:
    num_findings, num_alerts = Counter[str](), Counter[str]()
    for grouped in answer.findings:
        num_findings[grouped.kind] += 1
        num_alerts[grouped.kind] += grouped.num_alerts
        if limit is None or num_findings[grouped.kind] <= limit:
            yield from finding(grouped)
    if limit is not None:
        yield from _rest("findings", {kind: number - limit for kind, number in num_findings.items()})
    for kind, number in answer.num_found.items():
        if number > num_alerts[kind]:
            text = f"{kind} has {number_of(number, 'alert')}; the findings cover only the first {num_alerts[kind]:,}."
            yield Line((text, "bold"))
    if any(grouped.num_alerts > 1 for grouped in answer.findings):
        yield Line(("--all lists every alert.", "option"))


def _about(answer: Alert | AlertFinding, first: Alert, times: str) -> Iterator[Line]:
    severity, layer = SEVERITY_STYLES[answer.severity], "" if answer.layer is None else f", layer {answer.layer}"
    yield Line((answer.severity, severity), f" {answer.kind}: {times}", (_alert_text(first), "bold"), layer)
    yield Line(first.message, indent=4)
    events = ""
    if answer.first_event_index is not None:
        events = (
            f"events {answer.first_event_index} to {answer.last_event_index}, {number_of(answer.num_events, 'tensor')}"
        )
        events = f"event {answer.first_event_index}" if answer.num_events == 1 else events
    when = ", ".join(filter(None, (_steps_text(answer.first_step, answer.last_step), events)))
    if when:
        yield Line((when, "quiet"), indent=4)
    yield from code_line(answer.source, indent=4)


def _alert_text(alert: Alert) -> str:
    """Returns the op or graph that an alert is about, such as `Log:0 (Log) in loss`."""
    if alert.op_type is None and alert.op_name is None and alert.graph_name:
        return f"the function {alert.graph_name}"
    graph = "" if alert.graph_name is None or alert.op_name is None else f" in {alert.graph_name}"
    return wording.output_text(alert) + graph


def _steps_text(first: int | None, last: int | None) -> str:
    """Returns a range of training steps, such as `steps 3 to 9`; an empty text if the steps are not known."""
    if first is None:
        return ""
    return f"step {first}" if last in (None, first) else f"steps {first} to {last}"


def _rest(what: str, num_of_kind: Mapping[str, int]) -> Iterator[Line]:
    rest = {kind: number for kind, number in num_of_kind.items() if number > 0}
    if rest:
        names = ", ".join(f"{number:,} of {kind}" for kind, number in rest.items())
        text = f"{sum(rest.values()):,} more {what} are not shown ({names})"
        yield Line((text, "bold"), ("; --limit raises the limit", "option"), (".", "bold"))


def _graph(ops: UnobservedOps | ChangedOps) -> str:
    return ops.graph_name or f"graph {ops.graph_id}"


def _unobserved_text(group: UnobservedOps) -> str:
    """Returns the number of outputs that were not recorded, the reason, and how many of these outputs could be bad."""
    text = f"{number_of(group.num_outputs, 'output')} of {number_of(len(group.ops), 'op')}: {group.reason}"
    if group.num_could_be_bad < group.num_outputs:
        text += f"; {group.num_could_be_bad:,} of them could be bad"
    return text


def _ops_text(group: UnobservedOps) -> str:
    """Returns the first ops of a group, and the number of the remaining ops."""
    return some_of([f"{op.op_name} ({op.op_type})" for op in group.ops], _MAX_OPS)


def _changed_text(changed: ChangedOps) -> str:
    """Returns how TensorFlow's optimizer changed the ops of a graph."""
    counts = (
        (changed.num_replaced, "replaced"),
        (changed.num_folded, "computed in advance"),
        (changed.num_absorbed, "absorbed by others or not needed"),
    )
    return f"of {number_of(changed.num_ops, 'op')} " + ", ".join(
        f"{number:,} {what}" for number, what in counts if number
    )
