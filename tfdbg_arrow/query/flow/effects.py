"""Effects: where the badness of a tensor ends, and whether the program meant it to be bad.

Starting at a bad tensor, this module follows every bad tensor that is computed from it, in the same call and later.
The badness can end in these places, the most harmful first:

* in a variable (`variable`) that an op writes it to;
* in a result (`result`): a function or an eager op returns it to the program, or an op passes it out of TensorFlow, and
  nothing computes with it any more;
* in a metric (`metric`): only ops of metrics take it;
* nowhere (`absorbed`): every tensor that is computed from it is finite, or nothing is computed from it.

An absorbed value is expected, as it did no harm. There is one exception. An optimizer that scales the loss provokes
overflows, looks for them and skips the step. If the step is skipped because of a division by zero, or of a NaN that no
overflow caused, a smaller scale would not help and the step is lost for good. Such a value is absorbed but not
expected.

If the recording does not determine the effect (no call sites, an unrecorded function, too many tensors to follow), the
effect is None and the value is not expected.
"""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.origins import Origins
from tfdbg_arrow.query.flow.sinks import Sinks
from tfdbg_arrow.query.flow.walk import (
    ABSORBED,
    SKIPPED_STEP,
    CannotTellError,
    Frame,
    OutOfSightError,
    Walk,
    WalkedTensor,
)
from tfdbg_arrow.query.recorded import Context, TensorEvent

_POLE_INPUT = {
    "Div": 1, "RealDiv": 1, "Xdivy": 1, "Inv": 0, "Log": 0, "Pow": 0, "Reciprocal": 0, "Rsqrt": 0, "SqrtGrad": 0,
}  # fmt: skip
"""Op types that make an infinity from a zero, and the index of the input that is zero."""
LITERAL = "the program wrote this infinity itself"


@dataclass(frozen=True)
class Effect:
    """Where the badness of a tensor ends.

    Attributes:
        name: `variable`, `result`, `metric` or `absorbed`; None if the recording does not determine it.
        expected_reason: Why the value is expected; None if it is not.
    """

    name: str | None
    expected_reason: str | None


_UNKNOWN = Effect(None, None)


class Effects:
    """Determines where bad values end within one run.

    Args:
        flow: The run's data flow.
        origins: The run's origins.
        sinks: The run's sinks.
        logdir: The logdir.
        run_id: The run.
    """

    def __init__(self, logdir: Engine, flow: DataFlow, origins: Origins, sinks: Sinks, *, run_id: str) -> None:
        self._flow = flow
        self._labels = flow.labels
        self._origins = origins
        self._sinks = sinks
        self._known: dict[int, Effect] = {}
        self._is_overflow: dict[int, bool] = {}
        self._logdir = logdir
        self._run_id = run_id

    def of(self, event: TensorEvent) -> Effect:
        """Returns where the badness of a tensor ends."""
        known = self._known.get(event.event_index)
        if known is None:
            known = self._known[event.event_index] = self._find(event)
        return known

    def _find(self, event: TensorEvent) -> Effect:
        computed = self._flow.computed(event)
        if self._origins.is_literal(computed):
            return Effect("absorbed", LITERAL)
        walk = Walk(self._flow, self._sinks)
        try:
            walk.follow(self._start(computed))
        except CannotTellError:
            return _UNKNOWN
        except OutOfSightError:
            if event.execution_index is not None and self._sinks.has_failed(event.execution_index):
                return Effect("result", None)  # the program got an error instead
            return Effect("absorbed", ABSORBED) if self._sinks.has_none else _UNKNOWN
        if walk.harm is not None:
            return Effect(walk.harm, None)
        is_lost = walk.reason == SKIPPED_STEP and self._is_lost(event, walk.skipped_graphs)
        return Effect("absorbed", None if is_lost else walk.reason)

    def _is_lost(self, event: TensorEvent, skipped_graphs: set[int]) -> bool:
        """Returns whether steps are lost for good: none was ever applied, and a smaller loss scale would not help."""
        ids = sorted(skipped_graphs)
        is_applied = self._logdir.rows(
            f"SELECT 1 FROM tensor_health WHERE run_id = ? AND graph_id IN ({', '.join('?' * len(ids))}) LIMIT 1",
            [self._run_id, *ids],
        )
        return not is_applied and not all(map(self._overflowed, self._beginnings(event)))

    def _beginnings(self, event: TensorEvent) -> list[TensorEvent]:
        """Returns the bad tensors at the start of the chains of bad tensors that lead to a bad tensor."""
        found, seen, waiting = [], {event.event_index}, [event]
        while waiting:
            row = waiting.pop()
            causes = [source for source in self._flow.recent_sources_of(row) if source.has_inf_or_nan]
            if not causes:
                found.append(row)
            waiting += [cause for cause in causes if cause.event_index not in seen]
            seen.update(cause.event_index for cause in causes)
        return found

    def _overflowed(self, origin: TensorEvent) -> bool:
        if origin.event_index not in self._is_overflow:
            self._is_overflow[origin.event_index] = not origin.num_nan and not self._is_at_pole(origin)
        return self._is_overflow[origin.event_index]

    def _is_at_pole(self, origin: TensorEvent) -> bool:
        index = _POLE_INPUT.get(origin.op_type or "")
        health = next((each.trace.health for each in self._flow.inputs_of(origin) if each.index == index), None)
        return health is not None and bool(health.num_zero)

    def _start(self, event: TensorEvent) -> WalkedTensor:
        if event.scope != "graph":
            if event.tensor_id is None:
                raise CannotTellError
            return WalkedTensor(None, "", event.tensor_id, is_metric=self._is_metric(event))
        if event.graph_id is None or event.op_name is None or event.output_slot is None:
            raise CannotTellError
        levels = self._flow.borders.levels(event.context, event.graph_id)
        if self._flow.borders.sessions.is_session_graph(event.graph_id) or self._labels.of(event).role == "input":
            raise OutOfSightError
        if levels is None:
            raise CannotTellError
        root_id = levels[0].call.graph_id if levels else event.graph_id
        outermost = Context(event.step_id, event.execution_index, "", 0, 0)
        frame = Frame(root_id, outermost if levels else event.context, None, None)
        for depth, level in enumerate(levels, start=1):
            if level.call.callee_graph_id is None:
                raise CannotTellError
            context = event.context
            for inner in range(len(levels), depth, -1):
                context = self._flow.borders.outer_context(context, levels[:inner])
            frame = Frame(level.call.callee_graph_id, context, level.call, frame)
        return WalkedTensor(frame, event.op_name, event.output_slot, is_metric=self._is_metric(event))

    def _is_metric(self, event: TensorEvent) -> bool:
        return self._labels.of(event).role == "metric"
