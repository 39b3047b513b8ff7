"""Walk: follows a bad tensor to every bad tensor that is computed from it, and notes where the badness ends.

The walk goes forward, from ops to their users, across the borders of calls, branches, loops and eager code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tfdbg_arrow.query.flow.borders import PASSING_OPS, is_in
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.decisions import SELECTS, effect_of_decision, is_check, is_decision, is_writer
from tfdbg_arrow.query.flow.graphs import BRANCHES, CHECKS, DISCRETE, LOOPS, NEVER_BAD, Call
from tfdbg_arrow.query.flow.sinks import Sinks, effect_of_write
from tfdbg_arrow.query.recorded import KINDS, Context, GraphTensor, Op, SiteVisit, TensorEvent
from tfdbg_arrow.schema.declaration import MAX_INT64
from tfdbg_arrow.schema.op_traits import CONTAINERS, DIVISIONS, PUTS_INTO_STORE

SKIPPED_STEP = "a check found it, and the branch that would have used it did not run"
SKIPPED_BY_LOSS_SCALING = "the loss scaling found it and skipped the update"
RETURNED_SCALAR = "; the call only returned a scalar that was computed from it"
"""The text that is appended to the reason why the update was skipped."""
SKIPPED_UPDATE = "the program skipped its usual use, such as an update, and continued"
REJECTED = "the program used each finite result of this line, but rejected the bad ones, and continued"
CAUGHT_ERROR = "its call raised an error, and the program caught the error and continued without the value"
DISCARDED = "the program threw away what the call returned, and trained later"
SKIPPED_BRANCH = "only a branch that did not run would have used it"
UNUSED = "nothing was computed, assigned or returned from it"
ABSORBED = "everything that was computed from it is finite"
VANISHED = "ops replaced or left out the bad values that were computed from it, or only compared or checked them"
VANISHED_OR_READ = (
    "ops replaced or left out the bad values that were computed from it, or only comparisons, checks and Python code "
    "took them"
)
MADE_0 = "{} made 0 of the infinities, and the program continued with finite numbers, which may be wrong"
UNREACHED = "no bad value that was computed from it reached a variable, a result or a metric"

_HANDS_OUT = re.compile(r"\w*PyFunc\w*|Write\w+|Save\w*|_?Send|_?HostSend")
"""Types of ops that pass their inputs out of TensorFlow."""
_MAX_STEPS = 20_000
"""For one bad tensor, at most this many tensors are followed."""


class CannotTellError(Exception):
    """The recording does not show where a tensor goes."""


class UnrecordedEndError(Exception):
    """A tensor may have reached the program in a way that was not recorded."""


class OutOfSightError(Exception):
    """A tensor went out of reach of the recording. If the tensor did harm, other tensors show this."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One run of a graph: the context of the run, and the call that started the run (None for eager code)."""

    graph_id: int
    context: Context
    call: Call | None
    caller: Frame | None


@dataclass(frozen=True, slots=True)
class WalkedTensor:
    """A tensor on the walk: an output of an op in a frame, or an eager tensor (no frame).

    Attributes:
        frame: The run of the graph; None for an eager tensor.
        name: The op; empty for an eager tensor.
        slot: The output slot; for an eager tensor, its ID.
        is_verdict: Whether the tensor is the result of a check of the value, or was computed from such a result and not
            from the value.
        is_metric: Whether an op of a metric computed the tensor.
    """

    frame: Frame | None
    name: str
    slot: int
    is_verdict: bool = False
    is_metric: bool = False


class Walk:
    """Follows one bad tensor to everything bad that is computed from it.

    Attributes:
        met: The rows of the bad tensors on the way, by event_index.
        skipped_graphs: The branches that would have taken the value, but did not run.
        returned: The bad tensors that a call or an eager op returned to the program, and that no op took.
    """

    def __init__(self, flow: DataFlow, sinks: Sinks) -> None:
        self._flow = flow
        self._labels = flow.labels
        self._sinks = sinks
        self._harms: set[str] = set()
        self._is_taken = False
        self._is_checked = False
        self._decides = False
        self._verdicts: list[WalkedTensor] = []
        self.met: dict[int, TensorEvent] = {}
        self.skipped_graphs: set[int] = set()
        self.returned: list[TensorEvent] = []
        self._is_skipped_eagerly = False
        self._is_rejected = False
        self._is_caught = False
        self._is_discarded = False
        self._is_given = False
        self._is_unclear = False
        self._made_0: set[str] = set()

    @property
    def harm(self) -> str | None:
        """The most harmful effect; None if no effect is harmful, or if the program handled the value and continued."""
        if self._is_skipped_eagerly and self._harms <= {"result"}:
            return None
        harms = self._harms | ({"result"} if self.returned else set())
        return next((effect for effect in ("variable", "result", "metric") if effect in harms), None)

    @property
    def is_skipped_but_returned(self) -> bool:
        """Whether a branch did not run because a check found the value, and the value was otherwise only returned."""
        is_only_returned = bool(self.returned) and not self._harms and not self._is_unclear
        return is_only_returned and self.reason == SKIPPED_STEP

    @property
    def reason(self) -> str:
        """The reason why a harmless value is expected."""
        if self._is_skipped_eagerly:
            return SKIPPED_UPDATE
        if self._is_rejected:
            return REJECTED
        if self._is_caught:
            return CAUGHT_ERROR
        if self.skipped_graphs:
            return SKIPPED_STEP if self._is_checked and self._decides else SKIPPED_BRANCH
        if self._is_discarded:
            return DISCARDED
        if self._made_0:
            return MADE_0.format(" and ".join(sorted(self._made_0)))
        if self.met:
            return VANISHED_OR_READ if self._is_given else VANISHED
        return ABSORBED if self._is_taken else UNUSED

    def follow(self, start: WalkedTensor) -> None:
        """Follows the tensor until all its paths end, or until it reaches a variable."""
        seen = {start}
        to_follow = [start]
        while to_follow and "variable" not in self._harms:
            tensor = to_follow.pop()
            for user in self._users(tensor):
                if user.is_verdict:
                    self._verdicts.append(user)
                elif user in seen:
                    continue
                elif not self._is_bad(user):
                    self._note_finite(user)
                elif not self._is_replaced(tensor, user):
                    seen.add(user)
                    to_follow.append(user)
            if len(seen) > _MAX_STEPS:
                raise CannotTellError
        if self.skipped_graphs and "variable" not in self._harms:
            self._follow_verdicts()
        if self._is_unclear and self.harm is None:
            raise CannotTellError

    def _follow_verdicts(self) -> None:
        """Follows the results of checks until one of them decides which branch runs.

        These results are followed only to find out why a branch did not run: a mask of bad elements can reach the whole
        model.
        """
        seen: set[WalkedTensor] = set()
        while self._verdicts and not self._decides:
            verdict = self._verdicts.pop()
            if verdict not in seen:
                seen.add(verdict)
                self._verdicts += self._users(verdict)
            if len(seen) > _MAX_STEPS:
                raise CannotTellError

    def _users(self, tensor: WalkedTensor) -> Iterator[WalkedTensor]:
        """Yields the tensors that are computed from a tensor, bad or not."""
        return self._eager_users(tensor) if tensor.frame is None else self._graph_users(tensor, tensor.frame)

    def _is_bad(self, tensor: WalkedTensor) -> bool:
        """Returns whether a tensor is bad, or was not recorded and so may be bad.

        A tensor that was not computed because the call raised an error is not bad. The program got the error instead.
        """
        event = self._event(tensor)
        if event is not None:
            if event.has_inf_or_nan and not tensor.is_verdict:
                self.met[event.event_index] = event
            return bool(event.has_inf_or_nan)
        if tensor.frame is None:
            return True
        place = _place(tensor.frame, tensor.name, tensor.slot)
        if self._sinks.failed_calls.is_cut_off(place):
            self._note_failure(place.context.execution_index)
            return False
        crossing = self._flow.borders.crossing(place)
        return crossing is None or crossing.place is None or self._flow.is_bad(crossing.place)

    def _note_finite(self, quotient: WalkedTensor) -> None:
        """Notes the type of the op that made a finite tensor from a bad tensor, if the op is a division."""
        event = self._event(quotient)
        if event is not None and event.op_type in DIVISIONS and event.num_zero:
            self._made_0.add(event.op_type)

    def _is_replaced(self, tensor: WalkedTensor, choice: WalkedTensor) -> bool:
        """Returns whether a `tf.where` replaced all bad elements of a tensor, as in `tf.where(is_nan(x), inf, x)`."""
        chosen, event = self._event(choice), self._event(tensor)
        if chosen is None or event is None or chosen.op_type not in SELECTS:
            return False
        return set(chosen.bad_kinds(KINDS)).isdisjoint(event.bad_kinds(KINDS))

    def _event(self, tensor: WalkedTensor) -> TensorEvent | None:
        if tensor.frame is None:
            return self._flow.events.eager(tensor.slot).event
        return self._flow.events.graph_tensor(_place(tensor.frame, tensor.name, tensor.slot))

    def _is_nan(self, tensor: WalkedTensor) -> bool | None:
        """Returns whether a bad tensor holds a NaN; None if it was not recorded."""
        event = self._event(tensor)
        if event is None and tensor.frame is not None:
            event = self._flow.trace(_place(tensor.frame, tensor.name, tensor.slot), how="graph", near=MAX_INT64).row
        return None if event is None else event.num_nan != 0

    # Graphs.

    def _graph_users(self, tensor: WalkedTensor, frame: Frame) -> Iterator[WalkedTensor]:
        graph = self._flow.graphs.graph(frame.graph_id)
        executed = self._flow.borders.executed
        place = _place(frame, tensor.name, tensor.slot)
        for name in graph.users.get(tensor.name, ()):
            op = graph.ops[name]
            if not self._took(op, place):
                continue
            for index, source in enumerate(op.inputs):
                if source == (tensor.name, tensor.slot):
                    yield from self._through(op, index, tensor, frame)
        made = graph.ops.get(tensor.name)
        if made is not None and made.made_for is not None and made.replaced_slot is not None:
            yield replace(tensor, name=made.made_for, slot=made.replaced_slot)
        self._decides |= tensor.is_verdict and executed.decides(place)
        for use in executed.users(place):
            user = self._flow.graphs.op(use.user.graph_id, use.user.op_name)
            if user is None:
                continue
            if self._is_skipped(use.user, frame):
                self.skipped_graphs |= set() if tensor.is_verdict else {use.user.graph_id}
                continue
            yield from self._through(user, use.input_index, tensor, self._frame_of(use.user, frame))
        yield from self._returned(tensor, frame)

    def _took(self, op: Op, place: GraphTensor) -> bool:
        """Returns whether an op that takes a tensor in the program took the tensor or its source when the op ran."""
        executed = self._flow.borders.executed
        user = place.of_op(op.op_name)
        if not executed.replaces_inputs(user):
            return True
        # An argument, for example, has no node. The nodes of its users took the tensor that was passed as the argument.
        path = self._flow.trace(place, how="graph", near=place.near).path[1:]
        stands_for = [passed for passed in path if isinstance(passed, GraphTensor)]
        behind = [source for passed in stands_for if (source := executed.passed_on_at(passed)) is not None]
        took = {replace(source, near=place.near) for source in executed.inputs(user, op)}
        return any(replace(passed, near=place.near) in took for passed in (*stands_for, *behind))

    def _is_skipped(self, user: GraphTensor, near: Frame) -> bool:
        """Returns whether an op is in a graph that did not run: a branch that was not taken."""
        if (
            user.context == near.context
            or user.graph_id not in self._flow.graphs.recorded_graphs
            or user.context.step_id is None
        ):
            return False
        visits = self._flow.events.site_visits(user.context.step_id, user.context.execution_index)
        return not any(
            visit.graph_id == user.graph_id and visit.call_site == user.context.call_site and is_in(visit, user.context)
            for visit in visits
        )

    def _frame_of(self, user: GraphTensor, near: Frame) -> Frame:
        """Returns the frame of an op that takes a tensor of another frame."""
        if user.graph_id == near.graph_id and user.context == near.context:
            return near
        return self._frame(user.graph_id, user.context)

    def _frame(self, graph_id: int, context: Context) -> Frame:
        execution = self._flow.events.execution(context.execution_index)
        if context.call_site == "" and (execution is None or execution.graph_id == graph_id):
            return Frame(graph_id, context, None, None)
        levels = self._flow.borders.levels(context, graph_id)
        if not levels:
            raise CannotTellError
        outer = self._flow.borders.outer_context(context, levels)
        call = levels[-1].call
        return Frame(graph_id, context, call, self._frame(call.graph_id, outer))

    def _through(self, op: Op, index: int, tensor: WalkedTensor, frame: Frame) -> Iterator[WalkedTensor]:
        """Yields the outputs that an op computes from an input."""
        calls = self._flow.graphs.calls(frame.graph_id, op.op_name)
        if calls:
            yield from self._into(op, index, calls, tensor, frame)
            return
        role = self._labels.op(frame.graph_id, op.op_name).role
        is_metric = self._is_metric(op.op_type, role, tensor)
        if not tensor.is_verdict:
            self._note_end(op.op_type, tensor, role=role)
            self._note_decision(op, tensor, frame, role=role)
        dtypes = self._flow.graphs.graph(frame.graph_id).dtypes
        slots = [slot for name, slot in dtypes if name == op.op_name]
        is_verdict = tensor.is_verdict or self._asks(op.op_type, op.inputs)
        for slot in slots:
            if is_verdict or dtypes[op.op_name, slot] not in NEVER_BAD:
                self._is_taken |= not is_verdict
                yield WalkedTensor(frame, op.op_name, slot, is_verdict, is_metric)

    @staticmethod
    def _is_metric(op_type: str, role: str | None, tensor: WalkedTensor) -> bool:
        """Returns whether the output of an op belongs to a metric.

        The output of an op that only hands on a tensor belongs to a metric if the tensor does.
        """
        is_handed_on = op_type in PASSING_OPS or op_type.startswith(CONTAINERS)
        return tensor.is_metric if is_handed_on else role == "metric"

    def _asks(self, op_type: str, inputs: Sequence[object]) -> bool:
        """Returns whether an op only tests whether a tensor is bad."""
        is_asking = is_check(op_type, inputs)
        self._is_checked |= is_asking
        return is_asking

    def _note_decision(self, op: Op, tensor: WalkedTensor, frame: Frame, *, role: str | None) -> None:
        """Notes that an op made an integer or a boolean from a NaN."""
        executed = self._flow.borders.executed
        has_run = executed.node_type(_place(frame, op.op_name, 0)) is not None or not self._flow.graphs.executed(
            frame.graph_id
        )
        if has_run and self._sinks.decisions.decides(frame.graph_id, op):
            is_nan = self._is_nan(tensor)
            self._is_taken = True
            self._is_unclear |= is_nan is None
            self._harms |= {effect_of_decision(role)} if is_nan else set()

    def _note_end(self, op_type: str, tensor: WalkedTensor, *, role: str | None) -> None:
        if op_type == "MakeIterator" or "Dataset" in op_type or (is_writer(op_type) and self._is_from_outside(tensor)):
            raise OutOfSightError
        if PUTS_INTO_STORE.fullmatch(op_type):
            raise OutOfSightError
        if is_writer(op_type):
            self._note_write(tensor, role)
        elif _HANDS_OUT.fullmatch(op_type):
            self._harms.add("result")

    def _note_write(self, tensor: WalkedTensor, role: str | None) -> None:
        if tensor.frame is not None and self._sinks.failed_calls.is_undone(tensor.frame.context.execution_index):
            self._is_caught = True
        else:
            self._harms.add(effect_of_write(role))

    def _is_from_outside(self, tensor: WalkedTensor) -> bool:
        """Returns whether a tensor came from outside or is a constant. Storing such a tensor does no harm."""
        event = self._event(tensor)
        if event is not None and self._sinks.moved.is_moved(event):
            return True
        if tensor.frame is None:
            return False
        op = self._flow.graphs.op(tensor.frame.graph_id, tensor.name)
        return op is not None and op.op_type == "Const"

    def _into(
        self, op: Op, index: int, calls: list[Call], tensor: WalkedTensor, frame: Frame
    ) -> Iterator[WalkedTensor]:
        """Yields the arguments of the called functions that receive a tensor."""
        is_conditional = calls[0].attribute in BRANCHES
        if is_conditional and index == 0:
            self._decides |= tensor.is_verdict
            return
        for call in calls:
            if call.callee_graph_id is None:
                raise CannotTellError
            visit = self._flow.borders.visit(frame.context, call)
            if call.attribute == "body" and visit is None:
                yield self._past_loop(op, index, call, tensor, frame)
                continue
            if visit is None and is_conditional and call.callee_graph_id in self._flow.graphs.recorded_graphs:
                self.skipped_graphs |= set() if tensor.is_verdict else {call.callee_graph_id}
                continue
            inner = Frame(call.callee_graph_id, self._inner_context(frame.context, call, visit), call, frame)
            yield self._argument(call, index - 1 if is_conditional else index, inner, tensor)

    def _past_loop(self, op: Op, index: int, body: Call, tensor: WalkedTensor, frame: Frame) -> WalkedTensor:
        """Returns the result of a loop that ended before its first iteration: the loop's own input."""
        if not self._flow.borders.is_never_entered(frame.context, body):
            raise CannotTellError
        return replace(tensor, frame=frame, name=op.op_name, slot=index)

    def _inner_context(self, context: Context, call: Call, visit: SiteVisit | None) -> Context:
        """Returns the context of a called graph; for a loop, the context of its first iteration."""
        context = replace(context, call_site=self._flow.borders.callee_site(context, call, visit))
        if visit is None:
            return context
        iteration = 0 if call.attribute in LOOPS else context.iteration
        return replace(context, frame_id=visit.frame_id, iteration=iteration)

    def _argument(self, call: Call, index: int, frame: Frame, tensor: WalkedTensor) -> WalkedTensor:
        placeholder = self._flow.graphs.placeholder(call.function_name, index)
        if placeholder is None:
            raise CannotTellError
        return replace(tensor, frame=frame, name=placeholder, slot=0)

    def _returned(self, tensor: WalkedTensor, frame: Frame) -> Iterator[WalkedTensor]:
        """Yields the outputs of the calling op that return a tensor."""
        graphs = self._flow.graphs
        if frame.call is None or frame.caller is None:
            yield from self._returned_to_eager_code(tensor, frame)
            return
        call = frame.call
        for index in graphs.result_indexes(call.function_name, tensor.name, tensor.slot):
            if call.attribute == "cond":
                continue
            if call.attribute == "body" and (again := self._next_iteration(frame, call)) is not None:
                yield self._argument(call, index, again, tensor)
                continue
            yield replace(tensor, frame=frame.caller, name=call.op_name, slot=index)

    def _next_iteration(self, frame: Frame, body: Call) -> Frame | None:
        """Returns the next run of a loop's body, or None after the last run."""
        assert frame.caller is not None
        visits = self._flow.borders.visits(frame.caller.context, body)
        here = [visit for visit in visits if visit.frame_id == frame.context.frame_id]
        if frame.context.iteration is None or len(here) != 1:
            raise CannotTellError
        if frame.context.iteration >= here[0].last_iteration:
            return None
        context = replace(frame.context, iteration=frame.context.iteration + 1)
        return replace(frame, context=context)

    def _returned_to_eager_code(self, tensor: WalkedTensor, frame: Frame) -> Iterator[WalkedTensor]:
        execution = self._flow.events.execution(frame.context.execution_index)
        if execution is None:
            if self._labels.op(frame.graph_id, tensor.name).role == "input":
                raise OutOfSightError  # a function of a tf.data pipeline: its elements are separate tensors
            if self._flow.graphs.may_return(frame.graph_id, tensor.name, tensor.slot):
                raise UnrecordedEndError
            return
        outputs = self._flow.events.execution_outputs(execution.execution_index)
        results = {
            *self._flow.graphs.result_indexes(execution.op_type, tensor.name, tensor.slot),
            *self._flow.borders.executed.result_indexes(_place(frame, tensor.name, tensor.slot)),
        }
        for result in sorted(results):
            if result not in outputs:
                if not self._sinks.failed_calls.has_failed(execution.execution_index):
                    raise UnrecordedEndError
                self._note_failure(execution.execution_index)
                return
            yield replace(tensor, frame=None, name="", slot=outputs[result][0])

    def _note_failure(self, execution_index: int | None) -> None:
        """Notes that a call did not compute or return a tensor because it raised an error."""
        if self._sinks.failed_calls.is_caught(execution_index):
            self._is_caught = True
        else:
            self._harms.add("result")

    # Eager code.

    def _eager_users(self, tensor: WalkedTensor) -> Iterator[WalkedTensor]:
        event = self._flow.events.eager(tensor.slot).event
        is_used = tensor.is_verdict
        self._is_given |= event is not None and not tensor.is_verdict and self._sinks.results.is_given(event)
        for use in self._flow.events.uses(tensor.slot):
            execution = use.execution
            graph_id = self._flow.graphs.function_graphs.get(execution.op_type, execution.graph_id)
            if graph_id is not None:
                is_used = True
                yield self._called(tensor, graph_id, execution.op_type, execution.execution_index, use.input_index)
                continue
            inputs = [*self._flow.events.execution_inputs(execution.execution_index).values()]
            is_verdict = tensor.is_verdict or self._asks(execution.op_type, inputs)
            outputs = self._flow.events.execution_outputs(execution.execution_index).values()
            role = self._labels.execution(execution.execution_index).role
            if not is_verdict:
                self._note_end(execution.op_type, tensor, role=role)
                if is_writer(execution.op_type):
                    is_used = True
                elif event is not None and event.num_nan == 0:
                    is_used = True  # a comparison of infinities, or a choice among them, is well-defined
                    self._is_taken |= bool(outputs)
                elif (
                    event is not None
                    and is_decision(execution.op_type)
                    and any(dtype in DISCRETE for _, dtype in outputs)
                    and not (role == "metric" and self._is_tested(tensor))
                ):
                    self._harms.add(effect_of_decision(role))
            for tensor_id, dtype in outputs:
                if is_verdict or dtype not in NEVER_BAD:
                    self._is_taken |= not is_verdict
                    is_used |= not is_verdict
                    is_metric = self._is_metric(execution.op_type, role, tensor)
                    yield WalkedTensor(None, "", tensor_id, is_verdict, is_metric)
        if not is_used:
            self._note_unused(tensor, event)

    def _is_tested(self, tensor: WalkedTensor) -> bool:
        """Returns whether an eager op tests whether a tensor is bad."""
        return any(use.execution.op_type in CHECKS for use in self._flow.events.uses(tensor.slot))

    def _note_unused(self, tensor: WalkedTensor, event: TensorEvent | None) -> None:
        if event is None:
            raise CannotTellError
        if self._sinks.skipped_uses.is_skipped(event):
            self._is_skipped_eagerly = True
        elif self._sinks.skipped_uses.is_rejected(event):
            self._is_rejected = True
        elif self._sinks.results.discarded.is_discarded(event):
            self._is_discarded = True
        elif self._flow.events.uses(tensor.slot) and self._sinks.moved.is_given_infinity(event):
            return  # only checks take the tensor
        elif self._sinks.results.is_given(event) and not self._sinks.moved.is_moved(event):
            if tensor.is_metric:
                self._harms.add("metric")
            else:
                self.returned.append(event)

    def _called(
        self, tensor: WalkedTensor, graph_id: int, function_name: str, execution_index: int, input_index: int
    ) -> WalkedTensor:
        placeholder = self._flow.graphs.placeholder(function_name, input_index)
        if placeholder is None:
            raise CannotTellError
        context = self._flow.events.root_context(execution_index, graph_id)
        return replace(tensor, frame=Frame(graph_id, context, None, None), name=placeholder, slot=0)


def _place(frame: Frame, op_name: str, output_slot: int) -> GraphTensor:
    return GraphTensor(frame.context, frame.graph_id, op_name, output_slot, MAX_INT64)
