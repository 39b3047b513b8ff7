"""Alert: one finding of a rule about one op output."""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.query.stacks import Frame


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One finding of a rule about one op output. An attribute is None if it does not apply.

    Attributes:
        kind: The rule.
        severity: `error`, `warning` or `info`.
        run_id: The run.
        graph_id: The graph; None for an eager op.
        graph_name: Its name.
        op_name: The op in the graph.
        op_type: Type of the op; None for a tensor of scope `external` and for an alert about a whole graph.
        output_slot: Which output of the op.
        first_event_index: Row in tensor_health of the first tensor that the alert is about.
        last_event_index: Row in tensor_health of the last one.
        num_events: How many tensors it is about.
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
