"""Expected bad values: those that dynamic loss scaling provokes, looks for, and throws away.

An optimizer that scales the loss (LossScaleOptimizer, mixed_float16) makes gradients overflow now and then on
purpose: it asks whether all of them are finite, and skips the step if not. Such a value is told apart by data
flow alone, whatever the optimizer is called. From the bad tensor every tensor is followed that is computed from
it, in the same call and after it. The value is expected if

* a check for finiteness takes it (`IsFinite`, `IsInf`, `IsNan`), and in a graph the verdict decides a branch,
* every other way ends in a branch that did not run, or in an op of the graph whose output nobody takes,
* no variable was written from it, no other op with an effect took it, and no result of a function or
  of an eager op carries it out of sight,
* and it came up as an overflow: not as a NaN where no infinity was, nor where an op divides by a zero, which no
  smaller scale would mend.

In a program that checks, an overflow that no op takes at all is expected too: a scaled loss is often needed only for
its gradient.

Where the recording does not tell (no call sites, an unrecorded function, a tensor that goes too far), a value is
not called expected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.graphs import NEVER_BAD, Call, Op
from tfdbg_arrow.query.recorded import Context, TensorEvent

_CHECKS = ("IsFinite", "IsInf", "IsNan")
_CONDITIONALS = frozenset({"then_branch", "else_branch", "branches"})
_LOOPS = frozenset({"body", "cond"})
_HAS_EFFECT = re.compile(
    r"Assign\w*|Resource(Sparse)?Apply\w+|ResourceScatter\w+|ResourceStridedSliceAssign|\w*PyFunc\w*|Print\w*|Write\w+"
    r"|Save\w*|_?Send|_?HostSend"
)
_POLE_INPUT = {
    "Div": 1, "RealDiv": 1, "Xdivy": 1, "Inv": 0, "Log": 0, "Pow": 0, "Reciprocal": 0, "Rsqrt": 0, "SqrtGrad": 0,
}  # fmt: skip
"""Op types that make an infinity out of a zero, and the input that must not be one."""
_MAX_STEPS = 20_000
"""Tensors that are followed for one bad tensor."""

SKIPPED_STEP = "a check found it, and the branch that would have used it did not run"
UNUSED = "an overflow that no op took: nothing was computed, assigned or returned from it"
_UNCHECKED = "only a branch that did not run would have used it, and no check saw it"
ONLY_CHECKED = "only a check for finiteness took it: nothing was computed or assigned from it"


class _NotExpectedError(Exception):
    """The value went where an expected one does not."""


@dataclass(frozen=True, slots=True)
class _Frame:
    """One run of a graph: where, and which op called it (None: eager code)."""

    graph_id: int
    context: Context
    call: Call | None
    caller: _Frame | None


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor on its way: an output of an op in a frame, or an eager tensor (no frame).

    Attributes:
        frame: The run of the graph; None for an eager tensor.
        name: The op; empty for an eager tensor.
        slot: The output; the id of an eager tensor.
        is_verdict: Whether it is what a check said, or was computed from that, and not the value itself.
    """

    frame: _Frame | None
    name: str
    slot: int
    is_verdict: bool


class Expectation:
    """Tells expected bad values from others within one run.

    Args:
        logdir: The logdir.
        flow: The run's data flow.
        run_id: The run.
    """

    def __init__(self, logdir: Engine, flow: DataFlow, *, run_id: str) -> None:
        self._flow = flow
        self._known: dict[_Tensor, str | None] = {}
        self._is_overflow: dict[int, bool] = {}
        checks = ", ".join(f"'{name}'" for name in _CHECKS)
        # Nearly no program checks: then nothing needs to be followed.
        self._has_checks = bool(
            logdir.rows(
                f"SELECT 1 FROM graph_op WHERE run_id = ? AND op_type IN ({checks}) UNION ALL "
                f"SELECT 1 FROM execution WHERE run_id = ? AND op_type IN ({checks}) LIMIT 1",
                [run_id, run_id],
            )
        )
        self._records_graph = {
            graph_id
            for (graph_id,) in logdir.rows(
                "SELECT DISTINCT graph_id FROM graph_op_output WHERE run_id = ? AND is_recorded", [run_id]
            )
        }

    def reason(self, event: TensorEvent) -> str | None:
        """Returns why a bad tensor is an expected one; None where it is not, or not known to be."""
        if not self._has_checks:
            return None
        start = self._start(self._flow.computed(event))
        if start is None:
            return None
        if start not in self._known:
            try:
                self._known[start] = _Walk(self._flow, self._records_graph).follow(start)
            except _NotExpectedError:
                self._known[start] = None
        reason = self._known[start]
        if reason is None:
            return None
        beginnings = self._beginnings(event)
        if not all(self._overflowed(beginning) for beginning in beginnings):
            return None
        if reason not in (UNUSED, _UNCHECKED):
            return reason
        # It is what the tensor that it goes back to is; one that goes back to none, as a scaled loss, is just not used.
        others = [each for each in beginnings if each.event_index != event.event_index]
        reasons = [self.reason(each) for each in others]
        if not others:
            return UNUSED if reason == UNUSED else None
        return None if None in reasons else reasons[0]

    def _beginnings(self, event: TensorEvent) -> list[TensorEvent]:
        """Returns the bad tensors that a bad tensor goes back to and that took in nothing bad of any kind."""
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

    def _start(self, event: TensorEvent) -> _Tensor | None:
        if event.scope != "graph":
            return None if event.tensor_id is None else _Tensor(None, "", event.tensor_id, is_verdict=False)
        if event.graph_id is None or event.op_name is None or event.output_slot is None:
            return None
        levels = self._flow.borders.levels(event.context, event.graph_id)
        if levels is None:
            return None
        root_id = levels[0].call.graph_id if levels else event.graph_id
        outermost = Context(event.step_id, event.execution_index, "", 0, 0)
        frame = _Frame(root_id, outermost if levels else event.context, None, None)
        for depth, level in enumerate(levels, start=1):
            if level.call.callee_graph_id is None:
                return None
            context = event.context
            for inner in range(len(levels), depth, -1):
                context = self._flow.borders.outer_context(context, levels[:inner])
            frame = _Frame(level.call.callee_graph_id, context, level.call, frame)
        return _Tensor(frame, event.op_name, event.output_slot, is_verdict=False)


class _Walk:
    """Follows one bad tensor to everything that is computed from it."""

    def __init__(self, flow: DataFlow, records_graph: set[int]) -> None:
        self._flow = flow
        self._records_graph = records_graph
        self._is_checked = False
        self._decides = False
        self._is_skipped = False
        self._is_eager = False

    def follow(self, start: _Tensor) -> str | None:
        seen = {start}
        waiting = [start]
        while waiting:
            tensor = waiting.pop()
            users = self._eager_users(tensor) if tensor.frame is None else self._graph_users(tensor, tensor.frame)
            for found in users:
                if found not in seen:
                    seen.add(found)
                    waiting.append(found)
            if len(seen) > _MAX_STEPS:
                raise _NotExpectedError
        if not self._is_checked:
            return _UNCHECKED if self._is_skipped else UNUSED
        if self._is_skipped and self._decides:
            return SKIPPED_STEP
        return ONLY_CHECKED if self._is_eager else None

    # Graphs.

    def _graph_users(self, tensor: _Tensor, frame: _Frame) -> Iterator[_Tensor]:
        graph = self._flow.graphs.graph(frame.graph_id)
        for name in graph.users.get(tensor.name, ()):
            op = graph.ops[name]
            for index, source in enumerate(op.inputs):
                if source == (tensor.name, tensor.slot):
                    yield from self._through(op, index, tensor, frame)
        yield from self._returned(tensor, frame)

    def _through(self, op: Op, index: int, tensor: _Tensor, frame: _Frame) -> Iterator[_Tensor]:
        """Yields what an op makes of an input."""
        calls = self._flow.graphs.calls(frame.graph_id, op.op_name)
        if calls:
            yield from self._into(op, index, calls, tensor, frame)
            return
        dtypes = self._flow.graphs.graph(frame.graph_id).dtypes
        slots = [slot for name, slot in dtypes if name == op.op_name]
        is_verdict = self._taken(op.op_type, has_outputs=bool(slots), is_verdict=tensor.is_verdict)
        for slot in slots:
            if is_verdict or dtypes[op.op_name, slot] not in NEVER_BAD:
                yield _Tensor(frame, op.op_name, slot, is_verdict)

    def _taken(self, op_type: str, *, has_outputs: bool, is_verdict: bool) -> bool:
        """Returns whether what an op makes of a tensor is a verdict; raises where it has an effect of its own."""
        if is_verdict:
            return True
        if op_type in _CHECKS:
            self._is_checked = True
            return True
        if not has_outputs or _HAS_EFFECT.fullmatch(op_type):
            raise _NotExpectedError
        return False

    def _into(self, op: Op, index: int, calls: list[Call], tensor: _Tensor, frame: _Frame) -> Iterator[_Tensor]:
        """Yields the arguments under which the functions that an op calls know a tensor."""
        is_conditional = calls[0].attribute in _CONDITIONALS
        if is_conditional and index == 0:
            if not tensor.is_verdict:
                raise _NotExpectedError
            self._decides = True
            return
        for call in calls:
            if call.callee_graph_id is None:
                raise _NotExpectedError
            visit = self._flow.borders.visit(frame.context, call)
            if visit is None and is_conditional and call.callee_graph_id in self._records_graph:
                if not tensor.is_verdict:
                    self._is_skipped = True
                continue
            site = self._flow.borders.callee_site(frame.context, call, visit)
            context = replace(frame.context, call_site=site)
            if visit is not None:
                context = replace(context, frame_id=visit.frame_id)
            inner = _Frame(call.callee_graph_id, context, call, frame)
            placeholder = self._flow.graphs.placeholder(call.function_name, index - 1 if is_conditional else index)
            if placeholder is None:
                raise _NotExpectedError
            yield _Tensor(inner, placeholder, 0, tensor.is_verdict)

    def _returned(self, tensor: _Tensor, frame: _Frame) -> Iterator[_Tensor]:
        """Yields what a result of a function is to its caller."""
        graphs = self._flow.graphs
        if frame.call is None or frame.caller is None:
            yield from self._returned_to_eager_code(tensor, frame)
            return
        call = frame.call
        for index in graphs.result_indexes(call.function_name, tensor.name, tensor.slot):
            if call.attribute == "cond":
                continue
            yield _Tensor(frame.caller, call.op_name, index, tensor.is_verdict)
            if call.attribute != "body":
                continue
            for part in graphs.calls(call.graph_id, call.op_name):
                placeholder = graphs.placeholder(part.function_name, index)
                if part.callee_graph_id is not None and placeholder is not None:
                    # The next iteration: its rows are not asked for one by one.
                    context = replace(frame.context, iteration=None)
                    again = _Frame(part.callee_graph_id, context, part, frame.caller)
                    yield _Tensor(again, placeholder, 0, tensor.is_verdict)

    def _returned_to_eager_code(self, tensor: _Tensor, frame: _Frame) -> Iterator[_Tensor]:
        index = frame.context.execution_index
        execution = None if index is None else self._flow.events.execution(index)
        if execution is None:
            raise _NotExpectedError
        outputs = self._flow.events.execution_outputs(execution.execution_index)
        for result in self._flow.graphs.result_indexes(execution.op_type, tensor.name, tensor.slot):
            if result not in outputs:
                raise _NotExpectedError
            yield _Tensor(None, "", outputs[result][0], tensor.is_verdict)

    # Eager code.

    def _eager_users(self, tensor: _Tensor) -> Iterator[_Tensor]:
        self._is_eager = True
        users = self._flow.events.uses(tensor.slot)
        if not users and not tensor.is_verdict:
            raise _NotExpectedError
        for use in users:
            execution, index = use.execution, use.input_index
            graph_id = self._flow.graphs.function_graphs.get(execution.op_type, execution.graph_id)
            if graph_id is not None:
                placeholder = self._flow.graphs.placeholder(execution.op_type, index)
                if placeholder is None:
                    raise _NotExpectedError
                context = self._flow.events.root_context(execution.execution_index, graph_id)
                yield _Tensor(_Frame(graph_id, context, None, None), placeholder, 0, tensor.is_verdict)
                continue
            outputs = self._flow.events.execution_outputs(execution.execution_index)
            is_verdict = self._taken(execution.op_type, has_outputs=bool(outputs), is_verdict=tensor.is_verdict)
            for tensor_id, dtype in outputs.values():
                if is_verdict or dtype not in NEVER_BAD:
                    yield _Tensor(None, "", tensor_id, is_verdict)
