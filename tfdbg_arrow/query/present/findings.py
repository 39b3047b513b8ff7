"""What the alert rules found, and what a recording did not look at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from tfdbg_arrow.query.present.blocks import EMPTY, SEVERITY_STYLES, Block, Heading, Item, Items, Line, Table, items
from tfdbg_arrow.query.present.tensors import code_line
from tfdbg_arrow.query.wording import alert_text, changed_text, events_text, ops_text, steps_text, unobserved_text
from tfdbg_arrow.safe_text import number_of

if TYPE_CHECKING:
    from tfdbg_arrow.query.alert_rules.answer import Alert, AlertFinding, Alerts, RuleSummary
    from tfdbg_arrow.query.coverage import Coverage


def alerts(found: Alerts) -> Iterator[Block]:
    """Yields the number of alerts of each rule, then the findings."""
    yield from summary(found.summary)
    yield from findings(found)


def alerts_text(found: Alerts) -> str:
    """Returns the rules that found something in one line."""
    rules = [f"{rule.severity} {rule.kind} ({rule.num_alerts:,})" for rule in found.summary]
    return ", ".join(rules) or "nothing was found"


def summary(rules: Sequence[RuleSummary]) -> Iterator[Block]:
    """Yields the number of alerts, places and steps of each rule."""
    if rules:
        rows = [
            (
                (rule.severity, SEVERITY_STYLES[rule.severity]),
                rule.kind,
                steps_text(rule.first_step, rule.last_step).partition(" ")[2],
                f"{rule.num_alerts:,}",
                f"{rule.num_places:,}",
            )
            for rule in rules
        ]
        yield Table(("", "rule", "steps", "alerts", "places"), rows, num_numbers=2)
        yield EMPTY


def rule_line(found: RuleSummary) -> Line:
    """Returns the number of alerts of a rule, its places and its steps."""
    places = f"{number_of(found.num_alerts, 'alert')} at {number_of(found.num_places, 'place')}"
    steps = steps_text(found.first_step, found.last_step)
    return Line(
        (found.severity, SEVERITY_STYLES[found.severity]), f" {found.kind}: {places}" + (f", {steps}" if steps else "")
    )


def findings(found: Alerts, *, limit: int | None = None) -> Iterator[Block]:
    """Yields the findings, then the rules that were stopped.

    Args:
        found: What the rules found.
        limit: How many findings of each rule to show; None shows all.
    """
    yield from _nothing(found)
    numbers: Counter[str] = Counter()
    num_alerts = Counter(dict.fromkeys(found.num_found, 0))
    shown: list[Item] = []
    for each in found.findings:
        numbers[each.kind] += 1
        num_alerts[each.kind] += each.num_alerts
        if limit is None or numbers[each.kind] <= limit:
            shown.append(_finding(each))
    yield items(*shown)
    yield from _rest("findings", {} if limit is None else {kind: number - limit for kind, number in numbers.items()})
    for kind, number in found.num_found.items():
        if number > num_alerts[kind]:
            text = f"{kind} has {number_of(number, 'alert')}; the findings cover only the first {num_alerts[kind]:,}."
            yield Line((text, "bold"))
    if any(each.num_alerts > 1 for each in found.findings):
        yield Line(("--all lists every alert.", "option"))
    yield from _not_run(found)


def every_alert(found: Alerts) -> Iterator[Block]:
    """Yields each alert, then the rules that were stopped."""
    yield from _nothing(found)
    yield items(*map(_alert, found.alerts))
    shown = Counter(each.kind for each in found.alerts)
    yield from _rest("alerts", {kind: number - shown[kind] for kind, number in found.num_found.items()})
    yield from _not_run(found)


def finding(found: AlertFinding) -> Iterator[Items]:
    """Yields a finding: how often it occurred, its first alert, then the steps, events and source line."""
    yield items(_finding(found))


def alert(found: Alert) -> Iterator[Items]:
    """Yields an alert: what it is about, then the steps, events and source line."""
    yield items(_alert(found))


def coverage(found: Coverage) -> Iterator[Block]:
    """Yields what was not looked at, by run and graph, and what else happened while the program was recorded."""
    if found.summary is None:
        yield Line("Every tensor that could be bad was looked at.")
    else:
        yield Line(("Not looked at: ", "bold"), found.summary)
    unobserved = [group for group in found.unobserved if group.num_could_be_bad]
    for run_id, groups in groupby(unobserved, key=lambda group: group.run_id):
        yield Heading(("run ", "quiet"), run_id)
        yield items(
            *(
                (
                    Line(f"{_graph(group.graph_name, group.graph_id)}: {unobserved_text(group)}", indent=2),
                    Line((ops_text(group), "quiet"), indent=6),
                )
                for group in groups
            )
        )
    num_others = sum(group.num_outputs for group in found.unobserved if not group.num_could_be_bad)
    if num_others:
        text = f"{number_of(num_others, 'other output')} cannot be bad or are recorded at another op"
        yield Line((text, "quiet"), ("; --json lists them", "option"), (".", "quiet"))
    changed = [f"{_graph(each.graph_name, each.graph_id)}: {changed_text(each)}" for each in found.changed]
    failed = [
        f"{each.op_type}: {each.error_type}, {number_of(each.num_executions, 'time')}"
        + ("; some of its tensors may be missing" if each.is_lossy else "")
        for each in found.failed
    ]
    stats = [
        f"{each.stat}: {each.subject}"
        + ("" if each.num_events is None else f" ({number_of(each.num_events, 'event')})")
        + f": {each.reason}"
        for each in found.stats
    ]
    for title, texts in (
        ("changed by TensorFlow's optimizer, and recorded as executed", changed),
        ("raised an error", failed),
        ("noted while recording", stats),
    ):
        if texts:
            yield Heading(title)
            yield items(*((Line(text, indent=2),) for text in texts))


def _finding(found: AlertFinding) -> Item:
    times = "" if found.num_alerts == 1 else f"{found.num_alerts:,} times, first "
    return _item(found, found.first, times)


def _alert(found: Alert) -> Item:
    return _item(found, found, "")


def _item(found: Alert | AlertFinding, first: Alert, times: str) -> Item:
    events = events_text(found.first_event_index, found.last_event_index, found.num_events)
    when = ", ".join(filter(None, (steps_text(found.first_step, found.last_step), events)))
    return (
        Line(
            (found.severity, SEVERITY_STYLES[found.severity]),
            f" {found.kind}: {times}",
            (alert_text(first), "bold"),
            "" if found.layer is None else f", layer {found.layer}",
        ),
        Line(first.message, indent=4),
        *((Line((when, "quiet"), indent=4),) if when else ()),
        *(() if found.source is None else (code_line(found.source, indent=4),)),
    )


def _rest(what: str, left: Mapping[str, int]) -> Iterator[Line]:
    rest = {kind: number for kind, number in left.items() if number > 0}
    if rest:
        names = ", ".join(f"{number:,} of {kind}" for kind, number in rest.items())
        text = f"{sum(rest.values()):,} more {what} are not shown ({names})"
        yield Line((text, "bold"), ("; --limit raises the limit", "option"), (".", "bold"))


def _nothing(found: Alerts) -> Iterator[Line]:
    if not found.findings and not found.not_run:
        yield Line("No rule found anything.")


def _not_run(found: Alerts) -> Iterator[Line]:
    for kind, error in found.not_run.items():
        yield Line((f"The rule {kind} did not finish: {error}", "bad"))


def _graph(name: str | None, graph_id: int) -> str:
    return name or f"graph {graph_id}"
