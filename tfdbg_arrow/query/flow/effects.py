"""Effects: where the badness of a tensor ends.

The effects are, the most harmful first:

* `variable`: an op writes the bad value to a variable.
* `result`: a function or an eager op returns the bad value to the program, or an op passes the bad value out of
  TensorFlow. Nothing more is computed from the value.
* `metric`: only ops of metrics take the bad value.
* `absorbed`: no bad value is computed from the bad value, or the computed bad values have none of the other effects.

If a statement threw away the value of a layer before the program trained, as the statement `model(example)` does, that
value does not count as a result.

If an op turns a NaN into an integer or a boolean, and the program uses that output, the NaN counts as a result.
Examples are the class that ArgMax picks, an index, and a comparison. The exceptions are ops that test whether a value
is bad (IsNan, IsInf, IsFinite, `x != x`), because their output is correct.

If a call raised an error before it used a bad value, the value counts as a result, because the program got the error.
The value did no harm if the program caught the error. The program caught the error if the same line of code called the
function again later without an error. An update in a call that raised an error counts only if a variable was bad
afterwards.

The gradient of an op may create bad values where the op itself created a bad value: the gradient of a logarithm of 0 is
infinite, even if the program did not use the logarithm. The bad values of the gradient belong to the bad value of the
op. If the bad values of the gradient did harm, the bad value of the op counts as harmful, too.

An absorbed value is expected, because it did no harm. There is one exception. An optimizer that scales the loss
provokes overflows. When such an optimizer finds an overflow, it skips the step. If the step is skipped because of a
division by zero, or because of a NaN that no overflow caused, a smaller scale would not help. If, in addition, the
branch that would have used the value never ran in any step, the steps are lost for good. A value that causes lost steps
is absorbed but not expected. If a skipped step returns a scalar that was computed from the gradients alone, the scalar
does not count as a result.

The recording may not show where a value went: there are no call sites, a function was not recorded, or there are too
many tensors to follow. A value whose path was not recorded counts as absorbed if everything that was written, returned
or counted by a metric since then is finite. Otherwise the effect is None, and the value is not expected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.decisions import is_writer
from tfdbg_arrow.query.flow.gradients import Gradients
from tfdbg_arrow.query.flow.graphs import BRANCHES
from tfdbg_arrow.query.flow.origins import FROM_OUTSIDE, Origins, looks_like_mask
from tfdbg_arrow.query.flow.search import rows_behind
from tfdbg_arrow.query.flow.sinks import Sinks
from tfdbg_arrow.query.flow.walk import (
    ABSORBED,
    CAUGHT_ERROR,
    RETURNED_SCALAR,
    SKIPPED_BY_LOSS_SCALING,
    SKIPPED_STEP,
    UNREACHED,
    CannotTellError,
    Frame,
    OutOfSightError,
    UnrecordedEndError,
    Walk,
    WalkedTensor,
)
from tfdbg_arrow.query.recorded import KINDS, Context, TensorEvent, read_events
from tfdbg_arrow.schema.op_traits import MOVING, PIPELINE_ENDS, POLES

LITERAL = "the program wrote this infinity itself"
LOG_OF_MASK = "it is the logarithm of a mask of zeros and ones, which the program adds to other values"
OVERFLOW_OF_MASK = "the program masked these elements with very low numbers, which overflowed to -Inf"
LITERAL_FROM_OUTSIDE = "it holds only infinities, or infinities and zeros, as a mask or a start value does"
"""The reason for a tensor that came from outside. Nothing shows who wrote the infinities of such a tensor."""
_INFINITY = re.compile(r"\b(N|P)?inf(ty|inity)?\b", re.IGNORECASE)
"""An infinity in Python code, such as `np.inf` or `float("-inf")`."""
_MAX_STARTS = 1000
"""For one bad tensor, at most this many bad tensors that gradients created are followed."""
_LOSS_SCALING = "loss_scale_optimizer"
"""The Keras module with the optimizer that scales the loss has this name in all versions of Keras."""
_HALVINGS_OF_LOSS_SCALE = 15
"""Keras's loss scale begins at 2**15, and each skipped step halves the scale. After 15 steps, the scale is 1."""
_CHOOSING = MOVING | {"Const", "NoOp", "Placeholder"}
"""If a branch has only ops of these types, it only chooses between values."""
_MAX_ELEMENTS = 500
"""Bad elements of data sets are followed only if the run has fewer bad elements than this number."""


@dataclass(frozen=True)
class Effect:
    """Where the badness of a tensor ends.

    Attributes:
        name: `variable`, `result`, `metric` or `absorbed`; None if the recording does not determine the effect.
        expected_reason: Why the value is expected; None if the value is not expected.
    """

    name: str | None
    expected_reason: str | None


_UNKNOWN = Effect(None, None)


class Effects:
    """Determines where bad values end within one run."""

    def __init__(
        self,
        logdir: Engine,
        flow: DataFlow,
        origins: Origins,
        sinks: Sinks,
        gradients: Gradients,
        *,
        blamed: Callable[[], Mapping[int, str]],
        is_followed_by_harm: Callable[[TensorEvent], bool],
        run_id: str,
    ) -> None:
        self._flow = flow
        self._labels = flow.labels
        self._origins = origins
        self._sinks = sinks
        self._gradients = gradients
        self._find_blamed = blamed
        self._is_followed_by_harm = is_followed_by_harm
        self._effects: dict[int, Effect] = {}
        self._is_overflow: dict[int, bool] = {}
        self._skipped_updates: dict[int, str | None] = {}
        self._logdir = logdir
        self._run_id = run_id
        self._stacks = flow.stacks

    @cached_property
    def _blamed(self) -> Mapping[int, str]:
        return self._find_blamed()

    def of(self, event: TensorEvent) -> Effect:
        """Returns where the badness of a tensor ends."""
        effect = self._effects.get(event.event_index)
        if effect is None:
            effect = self._effects[event.event_index] = self._find(event)
        return effect

    def _find(self, event: TensorEvent) -> Effect:
        computed = self._flow.computed(event)
        if computed.event_index in self._blamed:
            return Effect(self._blamed[computed.event_index], None)
        if self._origins.is_literal(computed):
            if self._origins.is_log_of_mask(computed):
                return Effect("absorbed", LOG_OF_MASK)
            if self._origins.is_overflow_of_mask(computed):
                return Effect("absorbed", OVERFLOW_OF_MASK)
            is_from_outside = computed.op_type in FROM_OUTSIDE and looks_like_mask(computed)
            is_known = not is_from_outside or self.is_in_code(computed)
            return Effect("absorbed", LITERAL if is_known else LITERAL_FROM_OUTSIDE)
        walk = Walk(self._flow, self._sinks)
        try:
            self._follow(walk, computed)
        except CannotTellError:
            is_all_known = self._flow.records_all and computed.execution_index is not None and walk.harm is None
            is_harmless = is_all_known and not self._is_followed_by_harm(computed)
            return Effect("absorbed", UNREACHED) if is_harmless else _UNKNOWN
        except UnrecordedEndError:
            return _UNKNOWN
        except OutOfSightError:
            index = event.execution_index
            is_caught = self._sinks.failed_calls.is_caught(index)
            is_failed = index is not None and self._sinks.failed_calls.has_failed(index) and not is_caught
            if is_failed or self._sinks.failed_calls.is_stopped:
                return Effect("result", None)  # the program got an error instead
            is_harmless = walk.harm is None and not self._is_followed_by_harm(computed)
            if not is_harmless:
                return _UNKNOWN
            return Effect("absorbed", CAUGHT_ERROR if is_caught else self._reason_out_of_sight(walk, computed))
        if walk.harm == "result" and self._branches_of_optimizer:
            reasons = {self.skipped_update(beginning) for beginning in self._beginnings(computed)}
            reason = reasons.pop() if len(reasons) == 1 else None
            return Effect("absorbed" if reason else "result", reason)
        if walk.harm is not None:
            return Effect(walk.harm, None)
        if walk.reason != SKIPPED_STEP:
            return Effect("absorbed", walk.reason)
        is_lost = self._is_lost(event, walk.skipped_graphs)
        return Effect("absorbed", None if is_lost else self._reason_of_skipped_step(walk.skipped_graphs))

    def is_in_code(self, event: TensorEvent) -> bool:
        """Returns whether the line of code that first used a number from outside contains an infinity."""
        execution = self._flow.events.execution(event.execution_index)
        if event.op_type is not None or event.shape != () or execution is None or execution.stack_trace_id is None:
            return False
        source = self._stacks.user_sources([execution.stack_trace_id]).get(execution.stack_trace_id)
        return source is not None and bool(_INFINITY.search(source.code or ""))

    def skipped_update(self, origin: TensorEvent) -> str | None:
        """Returns why a gradient's overflow did no harm although the call returned a scalar made from it.

        The result is None if the overflow may have done harm. An example of such a scalar is the norm of the gradients
        in a step that an optimizer with a dynamic loss scale skipped. The optimizer must have applied a later step,
        because this shows that the program trained on. The scalar must not belong to the loss. The scalar of a gradient
        penalty belongs to the loss, and its overflow does not depend on the loss scale. So a gradient op must have made
        the origin, and nothing that is computed from the origin may be differentiated.
        """
        if origin.event_index not in self._skipped_updates:
            self._skipped_updates[origin.event_index] = self._find_skipped_update(origin)
        return self._skipped_updates[origin.event_index]

    def _find_skipped_update(self, origin: TensorEvent) -> str | None:
        is_of_gradient = self._labels.of(origin).role == "gradient" and origin.execution_index is not None
        if not is_of_gradient or not self._branches_of_optimizer or not self._overflowed(origin):
            return None
        walk = Walk(self._flow, self._sinks)
        try:
            self._follow(walk, origin)
        except (CannotTellError, OutOfSightError, UnrecordedEndError):
            return None
        if not walk.is_skipped_but_returned:
            return None
        of_call = all(row.shape == () and row.execution_index == origin.execution_index for row in walk.returned)
        branches = walk.skipped_graphs & self._branches_of_optimizer
        if not of_call or not self._is_run(branches, after=origin):
            return None
        if any(map(self._labels.is_of_loss, (origin, *walk.met.values()))):
            return None
        return self._reason_of_skipped_step(branches) + RETURNED_SCALAR

    @cached_property
    def _branches_of_optimizer(self) -> frozenset[int]:
        """The graphs of branches in which an optimizer writes to variables."""
        rows = self._logdir.rows(
            "SELECT DISTINCT graph_id, op_type FROM graph_op WHERE run_id = ? AND role = 'optimizer'", [self._run_id]
        )
        writing = {graph_id for graph_id, op_type in rows if is_writer(op_type)}
        branches = self._logdir.rows(
            "SELECT DISTINCT callee_graph_id FROM graph_call WHERE run_id = ? AND callee_graph_id IS NOT NULL "
            f"AND attribute IN ({', '.join('?' * len(BRANCHES))})",
            [self._run_id, *BRANCHES],
        )
        return frozenset(branch for (branch,) in branches if not writing.isdisjoint(self._flow.graphs.parts(branch)))

    def _reason_of_skipped_step(self, branches: Iterable[int]) -> str:
        """Returns why branches that would have used a bad value did not run: loss scaling, or another check."""
        ids = sorted(branches)
        is_of_loss_scaling = self._logdir.rows(
            "SELECT 1 FROM graph_call AS c JOIN graph_op AS o USING (run_id, graph_id, op_name) "
            "JOIN stack_trace AS t USING (run_id, stack_trace_id) JOIN stack_frame AS f USING (run_id, stack_frame_id) "
            f"WHERE run_id = ? AND c.callee_graph_id IN ({', '.join('?' * len(ids))}) AND f.owner <> 'user' "
            f"AND contains(f.file_path, '{_LOSS_SCALING}') LIMIT 1",
            [self._run_id, *ids],
        )
        return SKIPPED_BY_LOSS_SCALING if is_of_loss_scaling else SKIPPED_STEP

    def _follow(self, walk: Walk, event: TensorEvent) -> None:
        """Follows a bad tensor, and the bad tensors that were created by the gradients of the ops on its way."""
        seen = {event.event_index}
        to_follow = [event]
        while to_follow and walk.harm != "variable" and len(seen) < _MAX_STARTS:
            start = to_follow.pop()
            before = len(walk.met)
            walk.follow(self._start(start))
            for row in (start, *islice(walk.met.values(), before, None)):
                created = (
                    of_gradient
                    for of_gradient in self._gradients.created_by(row)
                    if of_gradient.event_index not in seen
                )
                new = [of_gradient for of_gradient in created if not self._origins.is_literal(of_gradient)]
                seen.update(of_gradient.event_index for of_gradient in new)
                to_follow += new
            walk.met.update((unfollowed.event_index, unfollowed) for unfollowed in to_follow)
        if to_follow and walk.harm != "variable":
            raise CannotTellError  # what was not followed may do harm

    def _reason_out_of_sight(self, walk: Walk, event: TensorEvent) -> str:
        """Returns why a value that went out of reach did no harm.

        Follows the elements that data sets made from the value.
        """
        if len(self._flow.events.bad_events(KINDS, limit=2)) == 1:
            return ABSORBED
        elements = self._elements_of(event)
        walk.met.update((element.event_index, element) for element in elements)
        try:
            for element in elements:
                walk.follow(self._start(element))
        except (CannotTellError, OutOfSightError, UnrecordedEndError):
            return UNREACHED
        return walk.reason if elements and walk.harm is None else UNREACHED

    def _elements_of(self, event: TensorEvent) -> list[TensorEvent]:
        """Returns the elements that data sets made from a bad tensor; empty if the run has very many bad elements."""
        return self._elements_by_root.get(event.event_index, [])

    @cached_property
    def _elements_by_root(self) -> Mapping[int, list[TensorEvent]]:
        """The bad elements that data sets made, by the event_index of each origin."""
        ends = " OR ".join("starts_with(op_type, ?)" for _ in PIPELINE_ENDS)
        elements = read_events(
            self._logdir,
            f"has_inf_or_nan AND ({ends}) ORDER BY event_index LIMIT {_MAX_ELEMENTS}",
            [self._run_id, *PIPELINE_ENDS],
        )
        by_root: dict[int, list[TensorEvent]] = {}
        for element in elements if len(elements) < _MAX_ELEMENTS else ():
            for root in self._origins.roots([element], set()):
                by_root.setdefault(root.event_index, []).append(element)
        return by_root

    def _is_lost(self, event: TensorEvent, skipped_graphs: set[int]) -> bool:
        """Returns whether steps are lost for good: no step was ever applied, and a smaller loss scale would not help.

        A smaller loss scale helps against an overflow, unless the overflow came up in as many steps as reduce the scale
        to 1. If the branches compute and write nothing, no step is lost: the program only chose between values, as
        `tf.where` does.
        """
        if self._is_run(self._flow.graphs.in_all_traces(skipped_graphs)):
            return False
        is_overflow = all(map(self._overflowed, self._beginnings(event)))
        if is_overflow and self._num_bad_like(event) <= _HALVINGS_OF_LOSS_SCALE:
            return False
        parts = {part for branch in skipped_graphs for part in self._flow.graphs.parts(branch)}
        op_types = {op.op_type for part in parts for op in self._flow.graphs.graph(part).ops.values()}
        return not op_types <= _CHOOSING

    def _num_bad_like(self, event: TensorEvent) -> int:
        """Returns how many tensors of the op output of a tensor are bad."""
        ((number,),) = self._logdir.rows(
            "SELECT count(*) FROM tensor_health WHERE run_id = ? AND graph_id = ? AND op_name = ? AND output_slot = ? "
            "AND has_inf_or_nan",
            [self._run_id, event.graph_id, event.op_name, event.output_slot],
        )
        return int(number)

    def _is_run(self, graph_ids: Iterable[int], *, after: TensorEvent | None = None) -> bool:
        """Returns whether one of the graphs ran in any call.

        If `after` is given, only calls after the call of this tensor count.
        """
        ids = sorted(graph_ids)
        if not ids:
            return False
        last = -1 if after is None else after.execution_index
        rows = self._logdir.rows(
            f"SELECT 1 FROM tensor_health WHERE run_id = ? AND graph_id IN ({', '.join('?' * len(ids))}) "
            "AND coalesce(execution_index, 0) > ? LIMIT 1",
            [self._run_id, *ids, last],
        )
        return bool(rows)

    def _beginnings(self, event: TensorEvent) -> list[TensorEvent]:
        """Follows all chains of bad tensors back from a bad tensor, and returns the first tensor of each chain."""
        rows = rows_behind([event], self._flow.bad_sources_of)
        return [row for row in rows if not self._flow.bad_sources_of(row)]

    def _overflowed(self, origin: TensorEvent) -> bool:
        if origin.event_index not in self._is_overflow:
            self._is_overflow[origin.event_index] = not origin.num_nan and not self._is_at_pole(origin)
        return self._is_overflow[origin.event_index]

    def _is_at_pole(self, origin: TensorEvent) -> bool:
        index = POLES.get(origin.op_type or "")
        health = next((taken.trace.health for taken in self._flow.inputs_of(origin) if taken.index == index), None)
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
