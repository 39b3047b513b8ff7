"""Findings: the alerts of one rule, layer and line of the user's code, grouped into one row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tfdbg_arrow.query.alert_rules.alert import Alert
from tfdbg_arrow.query.alert_rules.rules import SEVERITIES
from tfdbg_arrow.query.stacks import Frame


@dataclass(frozen=True, kw_only=True)
class AlertFinding:
    """The alerts of one rule for one layer and line of the user's code in one run. An attribute is None if unknown.

    Attributes:
        kind: The rule.
        severity: `error`, `warning` or `info`.
        run_id: The run.
        layer: The Keras layer or tf.Module scope.
        source: The user's line.
        num_alerts: Number of alerts. Each is about an op output or a graph.
        num_events: Number of tensors that they are about.
        first_step: The training step of the first of these tensors.
        last_step: The training step of the last one.
        first_event_index: Row in tensor_health of the first one.
        last_event_index: Row in tensor_health of the last one.
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
