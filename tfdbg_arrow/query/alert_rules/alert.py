"""Alert: what one rule found about one op output."""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.query.stacks import Frame


@dataclass(frozen=True, kw_only=True)
class Alert:
    """What one rule found about one op output; None where it does not apply.

    Attributes:
        kind: The rule.
        severity: `error`, `warning` or `info`.
        run_id: The run.
        graph_id: The graph; None for an eager op.
        graph_name: Its name.
        op_name: The op in it.
        op_type: Type of the op; None for a tensor from outside and for what is about a whole graph.
        output_slot: Which output of the op.
        first_event_index: Row in tensor_health of the first tensor that it is about.
        last_event_index: The same of the last one.
        num_events: How many tensors it is about.
        value: The measure that the rule looks at.
        layer: The Keras layer or tf.Module scope that the op belongs to, where it was recorded.
        first_step: The training step of the first tensor that it is about.
        last_step: The training step of the last one.
        message: One sentence.
        source: The user's line that made the op, or None.
        is_expected: Whether what it found did no harm, as `NonFinite.is_expected`.
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
