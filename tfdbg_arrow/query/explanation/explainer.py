"""Reads the facts for a rule from a recording, and explains a recorded tensor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.explanation.explain import explain
from tfdbg_arrow.query.explanation.explanation import Computed, Explanation, Inputs
from tfdbg_arrow.query.explanation.growth import Growth, find_growth
from tfdbg_arrow.query.explanation.op_facts import op_facts
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.origins import Origins
from tfdbg_arrow.query.logdir import opened
from tfdbg_arrow.query.recorded import KINDS, TensorEvent


@dataclass(frozen=True, kw_only=True)
class Reasons:
    """Why a tensor went bad.

    Attributes:
        explanation: What its op did; None if the counts prove nothing, or if the bad elements came from an input.
        growth: What had grown from step to step until then; None if nothing had, or if magnitudes were not recorded.
    """

    explanation: Explanation | None
    growth: Growth | None

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences, each followed by its repair."""
        found = [each for each in (self.explanation, self.growth) if each is not None]
        return tuple(each.sentence + ("" if each.repair is None else f" {each.repair}") for each in found)


def read_reasons(logdir: Engine | str | Path, event_index: int, *, run_id: str) -> Reasons:
    """Returns why a recorded tensor went bad.

    Args:
        logdir: An open logdir or its path.
        event_index: The tensor's row in tensor_health. A missing row or a tensor that is not bad has no reasons.
        run_id: The run.

    Raises:
        LogdirError: The path is not a logdir that can be read.
        BrokenPartError: A part cannot be read.
    """
    with opened(logdir) as open_:
        scope = open_.of_run(run_id)
        flow = DataFlow.of(scope, run_id=run_id)
        with flow.lock:
            event = flow.events.event(event_index)
            if event is None or not event.has_inf_or_nan:
                return Reasons(explanation=None, growth=None)
            verdict = Origins(flow, kinds=KINDS).verdict(event)
            explanation = (
                None
                if verdict.causes
                else explain_event(scope, flow, event, run_id=run_id, is_origin=verdict.is_origin)
            )
            return Reasons(explanation=explanation, growth=find_growth(scope, flow, event, run_id=run_id))


def explain_event(
    logdir: Engine, flow: DataFlow, event: TensorEvent, *, run_id: str, is_origin: bool
) -> Explanation | None:
    """Returns why the op of a bad tensor made it bad, or None if the counts prove nothing.

    Args:
        logdir: The logdir.
        flow: The run's data flow. The caller must hold its lock.
        event: The tensor. Its bad elements must not come from an input.
        run_id: The run.
        is_origin: Whether it is proven that they came from no input.
    """
    taken = _inputs(flow, event)
    inputs = flow.inputs_of(event)
    writes = [each.write for each in inputs if each.write is not None] if is_origin else []
    return explain(
        Computed(
            output=event,
            inputs=taken,
            is_complete=is_origin or len(taken) == len(inputs),
            forward_type=op_facts(logdir, event, run_id=run_id).forward_type,
            made_from=lambda row: _inputs(flow, row),
            written_by=writes[0].op_type if len(writes) == 1 else None,
            program_ops=flow.program_ops(event),
        )
    )


def _inputs(flow: DataFlow, event: TensorEvent) -> Inputs:
    return {index: row for index, _, row in flow.taken_by(event)}
