"""Origins and effects: the bad tensors whose bad elements came from no input, and where their badness ends.

A row is an *origin* of a kind (NaN; infinity) if it holds the kind and no tensor that it was computed from does. It is
a *propagator* if one does. If an input that could be bad was not recorded and none of the recorded ones is bad, neither
is proven. Such a row is a candidate for the first origin, and its `is_origin` is False.

An infinity that the program wrote itself (a mask of -Inf or the logarithm of one of zeros, the initial value of a
running minimum) is a *literal*. An op that makes a NaN from literals alone created it. An op that makes a NaN from an
infinity that another op computed did not. The first op that makes an infinite loss from literals alone created that
infinity: a mask must not cover the class of a label. A log-sum-exp of -Inf has the infinities that its exponentials
took, unless these are literals: a mask must not cover a whole row.

A constant or a captured tensor that holds -Inf and no positive number may hold logarithms of probabilities, in which
-Inf is right: it is the logarithm of 0. If Softmax or `x - max(x)` makes a NaN of a row that holds only such -Inf, that
op created it.

The badness of a tensor can end in these places, the most harmful first:

* in a variable (`variable`) that an op writes it to;
* in a result (`result`): a function or an eager op returns it to the program, or an op passes it out of TensorFlow, and
  nothing computes with it any more;
* in a metric (`metric`): only ops of metrics take it;
* nowhere (`absorbed`): the bad values that are computed from it end in none of these, or there are none.

A result of a layer that a statement threw away before the program trained, as `model(example)` does, is none.

A NaN of which an op makes an integer or a boolean counts as a result if that is used: the class that ArgMax picks, an
index, a comparison. Only an op that asks whether a value is bad (IsNan, IsInf, IsFinite, `x != x`) knows the answer.
A call that raised an error before it used a bad value returned the error instead of a result. The value did no harm if
the program caught the error: the same line of code called the function again later, and this raised no error. An update
in such a call counts only if a variable was bad afterwards.

The gradient of an op may create bad values where the op itself did: the gradient of a logarithm of 0 is infinite, even
if the logarithm was left out. These belong to the bad value of the op. Its effect is also theirs.

An absorbed value is expected, as it did no harm. There is one exception. An optimizer that scales the loss provokes
overflows, looks for them and skips the step. If the step is skipped because of a division by zero, or of a NaN that no
overflow caused, a smaller scale would not help and the step is lost for good. Such a value is absorbed but not
expected. A scalar that such a step returns, and that was computed from the gradients alone, is no result either.

If the recording does not show where a value went (no call sites, an unrecorded function, too many tensors to follow),
the value counts as absorbed if everything that was written, returned or counted by a metric since then is finite.
Otherwise the effect is None and the value is not expected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice, permutations

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.graphs import BRANCHES
from tfdbg_arrow.query.flow.masks import Masks
from tfdbg_arrow.query.flow.sinks import Sinks, is_writer
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
from tfdbg_arrow.query.recorded import KINDS, Context, TensorEvent, bad_condition, read_events
from tfdbg_arrow.query.stacks import GRADIENT_FUNCS
from tfdbg_arrow.schema.op_traits import MOVING, PIPELINE_ENDS, POLES

_FROM_OUTSIDE = frozenset({None, "Placeholder", "PlaceholderWithDefault"})
"""Types of ops whose result came from outside; None for a tensor that no recorded op made."""
_LITERAL_TYPES = frozenset({"Const", "ReadVariableOp"}) | _FROM_OUTSIDE
"""Types of ops that return a value which the program wrote, if they are origins."""

_LOSSES = frozenset({"SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"})
"""Types of ops that compute the loss of each sample. Other losses are known by being scalars."""
NORMALIZATIONS = frozenset({"LogSoftmax", "Softmax"})
"""Types of ops that normalise rows of logarithms: their result is NaN in a row that holds only -Inf."""
_MAXIMUM = MOVING | {"Max"}
"""Types of ops that compute the maximum of a row, in a shape that fits the row."""
LITERAL = "the program wrote this infinity itself"
LOG_OF_MASK = "it is the logarithm of a mask of zeros and ones, which the program adds to other values"
LITERAL_FROM_OUTSIDE = "it holds only infinities, or infinities and zeros, as a mask or a start value does"
"""The reason for a tensor that came from outside. Nothing shows who wrote its infinities."""
_MAX_OF_GRADIENT = 256
"""Maximum number of bad tensors that are read of one op or its gradient."""
_MAX_STARTS = 1000
"""Maximum number of bad tensors created by gradients that are followed for one bad tensor."""
_LOSS_SCALING = "loss_scale_optimizer"
"""The module of Keras with the optimizer that scales the loss, in any version."""
_MAX_ELEMENTS = 500
"""Bad elements of data sets are followed if the run has fewer than this number."""
OrderKey = tuple[int, int, tuple[tuple[int, int], ...], int, int]
_PHASES = {"gradient": 1, "optimizer": 2}
"""The order of the roles in a call: what an optimizer computes comes after the gradients, and other ops before them."""


@dataclass(frozen=True)
class Verdict:
    """Whether a bad tensor is an origin.

    Attributes:
        causes: The inputs that hold the same kinds of bad values; empty for a candidate.
        is_origin: True if it is proven that at least one of its kinds came from no input.
    """

    causes: tuple[TensorEvent, ...]
    is_origin: bool


class ProgramOrder:
    """Orders the tensors of one run as the program computes them, regardless of the order of arrival."""

    def __init__(self, flow: DataFlow) -> None:
        self._flow = flow

    def key(self, event: TensorEvent) -> OrderKey:
        """Returns the sort key of a tensor among those of the run.

        Executions are ordered by their start. Within a call, forward ops come before those of gradients, and these
        before those of optimizers. Then the order of creation decides: that of the calling ops from the outermost
        graph on, with the iterations of loops, and that of the op itself. The event_index breaks the remaining ties.
        """
        phase = _PHASES.get(self._flow.labels.of(event).role or "", 0)
        return self._start(event), phase, self._creation(event), event.output_slot or 0, event.event_index

    def _start(self, event: TensorEvent) -> int:
        """Returns the event_index of the start of the call in which a tensor was made."""
        execution = self._flow.events.execution(event.execution_index)
        if execution is not None:
            return execution.event_index
        if event.step_id is None:
            return event.event_index
        visits = self._flow.events.site_visits(event.step_id, event.execution_index)
        return min((visit.first_event_index for visit in visits), default=event.event_index)

    def _creation(self, event: TensorEvent) -> tuple[tuple[int, int], ...]:
        """Returns (order of creation, iteration) for each calling op, from the outermost, and for the op itself."""
        if event.scope != "graph" or event.graph_id is None or event.op_name is None:
            return ()
        flow = self._flow
        path: list[tuple[int, int]] = []
        context, levels = event.context, flow.borders.levels(event.context, event.graph_id) or ()
        while levels:
            call = levels[-1].call
            iteration = (context.iteration or 0) if levels[-1].is_loop else 0
            path.append((self._op_index(call.graph_id, call.op_name), iteration))
            context, levels = flow.borders.outer_context(context, levels), levels[:-1]
        return (*reversed(path), (self._op_index(event.graph_id, event.op_name), 0))

    def _op_index(self, graph_id: int, op_name: str) -> int:
        op = self._flow.graphs.op(graph_id, op_name)
        return -1 if op is None else op.op_index


class Origins:
    """Distinguishes origins from propagators within one run, and orders them.

    Args:
        kinds: The kinds that count: `nan`, `inf` or both.
        is_allowed: Returns True for an origin that is allowed to be bad. Its values are literals. None allows none.

    Attributes:
        kinds: The kinds that count.
        is_allowed: As given.
        order: Returns the sort key of a tensor in the order of the program.
        is_log_of_mask: As `Masks.is_log_of_mask`.
    """

    def __init__(
        self,
        flow: DataFlow,
        *,
        kinds: tuple[str, ...],
        is_allowed: Callable[[TensorEvent], bool] | None = None,
    ) -> None:
        self._flow = flow
        self.kinds = kinds
        self.is_allowed = is_allowed
        self._is_literal: dict[int, bool] = {}
        self._is_of_literals: dict[int, bool] = {}
        self._is_logarithm: dict[int, bool] = {}
        self.order = ProgramOrder(flow).key
        self.is_log_of_mask = lru_cache(maxsize=4096)(Masks(flow).is_log_of_mask)

    def verdict(self, event: TensorEvent) -> Verdict:
        """Returns whether a bad tensor is an origin, and otherwise which tensors made it bad."""
        causes = self._brought_by(event)
        if not causes and (hidden := self._flow.infinities_behind(event)):
            causes = tuple(row for row in hidden if not self.is_literal(row))
        if not causes or self._is_loss_of_literals(event, causes):
            return Verdict((), is_origin=self._flow.sources_of(event).is_complete)
        return Verdict(causes, is_origin=False)

    def _brought_by(self, event: TensorEvent) -> tuple[TensorEvent, ...]:
        """Returns the inputs that hold all the kinds of bad values of a tensor, or none if one kind came from none."""
        own = event.bad_kinds(self.kinds)
        causes = tuple(source for source in self._flow.recent_sources_of(event) if source.bad_kinds(own))
        brought = frozenset(kind for cause in causes for kind in cause.bad_kinds(own))
        return () if own - brought else causes

    def _is_loss_of_literals(self, event: TensorEvent, causes: tuple[TensorEvent, ...]) -> bool:
        """Returns whether an op made an infinite loss of infinities that the program wrote, and of no other loss."""
        if event.num_nan != 0 or not self._is_loss(event) or any(map(self._is_loss, causes)):
            return False
        return all(
            self._goes_back(cause, self._is_base_literal, self._brought_by, self._is_of_literals) for cause in causes
        )

    def _is_loss(self, event: TensorEvent) -> bool:
        return event.op_type in _LOSSES or (event.shape == () and self._flow.labels.is_of_loss(event))

    def of(self, event: TensorEvent) -> TensorEvent:
        """Returns the origin of a bad tensor; if there are several, the first by `order`."""
        return min(self.roots([event], set()), key=self.order)

    def roots(self, events: Iterable[TensorEvent], seen: set[int]) -> list[TensorEvent]:
        """Returns the candidates to which the badness of tensors goes back, in no particular order.

        Args:
            events: Bad tensors.
            seen: The event indexes of tensors that were followed before. These are not followed again. The tensors
                that are followed now are added.
        """
        roots: list[TensorEvent] = []
        start = [event for event in events if event.event_index not in seen]
        to_follow = list(start)
        while to_follow:
            row = to_follow.pop()
            if row.event_index in seen:
                continue
            seen.add(row.event_index)
            causes = self._followed(row)
            to_follow += causes
            if not causes:
                roots.append(row)
        # Without a root, the rows seem to cause each other in a cycle. This happens only for rows without context.
        return roots or start

    def is_root(self, event: TensorEvent) -> bool:
        """Returns whether the badness of a tensor goes back to itself alone."""
        return not self._followed(event)

    def _followed(self, event: TensorEvent) -> list[TensorEvent]:
        """Returns the tensors to follow from a bad tensor, or none if its own op created the badness."""
        verdict = self.verdict(event)
        if verdict.causes:
            return list(verdict.causes)
        bad = self._bad_sources(event)
        return [] if self._is_normalization_of_zeros(event, bad) else [row for row in bad if not self.is_literal(row)]

    def _bad_sources(self, event: TensorEvent) -> list[TensorEvent]:
        return [source for source in self._flow.recent_sources_of(event) if source.bad_kinds(self.kinds)]

    def without_written(self, roots: Sequence[TensorEvent]) -> list[TensorEvent]:
        """Returns the roots without those whose infinities the program wrote, and of which another root may be made."""
        others = [root for root in roots if not self.is_literal(root)]
        if not any(self._is_normalization_of_zeros(root, self._bad_sources(root)) for root in others):
            return others
        return [root for root in others if not self._is_base_logarithm(root)]

    def _is_normalization_of_zeros(self, event: TensorEvent, bad: Sequence[TensorEvent]) -> bool:
        """Returns whether an op made NaN when it normalised probabilities that are all 0, given by their logarithms.

        Args:
            event: The result of the op, an origin.
            bad: The bad tensors that it takes.
        """
        if not event.num_nan or not bad:
            return False
        if event.op_type == "Sub":
            is_maximum = (
                self._goes_back(one, lambda row: False, self._causes_of_maximum, {other.event_index: True})
                for one, other in permutations(bad, 2)
            )
            is_normalization = any(is_maximum)
        else:
            is_normalization = event.op_type in NORMALIZATIONS
        return is_normalization and all(
            self._goes_back(row, self._is_base_logarithm, self._causes_of_logarithm, self._is_logarithm) for row in bad
        )

    def _causes(self, event: TensorEvent) -> tuple[TensorEvent, ...]:
        return self.verdict(event).causes

    def _causes_of_maximum(self, event: TensorEvent) -> tuple[TensorEvent, ...]:
        return self._causes(event) if event.op_type in _MAXIMUM else ()

    def _causes_of_logarithm(self, event: TensorEvent) -> tuple[TensorEvent, ...]:
        return () if event.num_pos_inf else self._causes(event)

    def is_literal(self, event: TensorEvent) -> bool:
        """Returns whether a tensor holds only infinities that the program wrote, or values that are allowed."""
        return self._goes_back(event, self._is_base_literal, self._causes, self._is_literal)

    def _goes_back(
        self,
        event: TensorEvent,
        is_base: Callable[[TensorEvent], bool],
        causes_of: Callable[[TensorEvent], tuple[TensorEvent, ...]],
        verdicts: dict[int, bool],
    ) -> bool:
        """Returns whether a bad tensor goes back to some tensors alone.

        Args:
            event: The tensor.
            is_base: Returns whether a tensor without causes is one of those tensors.
            causes_of: Returns the tensors that made a tensor bad.
            verdicts: The results for other tensors, by event_index. Those that are found are added.
        """
        takers: dict[int, int | None] = {event.event_index: None}
        to_follow = [event]
        while to_follow:
            row = to_follow.pop()
            result = verdicts.get(row.event_index)
            causes = () if result is not None else causes_of(row)
            if result is False or (result is None and not causes and not is_base(row)):
                # Neither it nor what was computed from it goes back to those tensors alone.
                at: int | None = row.event_index
                while at is not None:
                    verdicts[at] = False
                    at = takers[at]
                return False
            new = [cause for cause in causes if cause.event_index not in takers]
            takers.update((cause.event_index, row.event_index) for cause in new)
            to_follow += new
        verdicts.update(dict.fromkeys(takers, True))
        return True

    def _is_base_literal(self, origin: TensorEvent) -> bool:
        if self.is_allowed is not None and self.is_allowed(origin):
            return True
        is_computed = self._flow.program_ops.is_computed_in_advance(origin) or self._flow.as_written(origin) != origin
        if origin.num_nan == 0 and _is_written(origin) and not is_computed:
            return True
        return self.is_log_of_mask(origin)

    def _is_base_logarithm(self, origin: TensorEvent) -> bool:
        if origin.num_pos_inf != 0:
            return False
        is_constant = origin.op_type == "Const" or self._flow.captured_as(origin) is not None
        is_of_probabilities = is_constant and origin.num_nan == 0 and origin.num_pos_finite == 0
        return is_of_probabilities or self._is_base_literal(origin)


def _is_written(origin: TensorEvent) -> bool:
    """Returns whether an origin looks like infinities that the program wrote: alone or among zeros, as in a mask.

    A batch of data with some infinite elements also holds other numbers.
    """
    if origin.op_type not in _LITERAL_TYPES:
        return False
    if origin.num_pos_finite is None or origin.num_neg_finite is None:
        return False
    return not (origin.num_pos_finite or origin.num_neg_finite)


class Gradients:
    """Relates the bad tensors that the ops of a gradient created to those of their forward ops, within one run."""

    def __init__(self, logdir: Engine, flow: DataFlow, origins: Origins, *, run_id: str) -> None:
        self._logdir = logdir
        self._flow = flow
        self._labels = flow.labels
        self._origins = origins
        self._run_id = run_id

    def forward_of(self, root: TensorEvent) -> list[TensorEvent]:
        """Returns the bad tensors that the forward op of a gradient returned, in the last call before in which it ran.

        In a run without roles, which does not tell the forward op, these are the bad tensors that were computed before
        of an input of the gradient.

        Args:
            root: A bad tensor that took its bad values from no input. If no gradient made it, the result is empty.
        """
        label = self._labels.of(root)
        graph_id, op_name, index = label.forward_graph_id, label.forward_op_name, label.forward_execution_index
        if graph_id is not None and op_name is not None:
            return self._bad_outputs("graph_id = ? AND op_name = ?", [graph_id, op_name], root)
        if index is not None:
            return self._bad_outputs("scope = 'execution' AND execution_index = ?", [index], root)
        return self._of_same_inputs(root) if not self._labels.has_roles and self.has_made(root) else []

    def has_made(self, event: TensorEvent) -> bool:
        """Returns whether TensorFlow's code of gradients made or executed the op of a tensor."""
        stack_id = self._flow.stack_trace_id(event)
        return stack_id is not None and stack_id in self._gradient_stacks

    @cached_property
    def _gradient_stacks(self) -> frozenset[int]:
        rows = self._logdir.rows(
            "SELECT DISTINCT stack_trace_id FROM stack WHERE run_id = ? AND owner = 'framework' AND func IN (?, ?)",
            [self._run_id, *GRADIENT_FUNCS],
        )
        return frozenset(stack_id for (stack_id,) in rows)

    def _of_same_inputs(self, root: TensorEvent) -> list[TensorEvent]:
        """Returns the bad tensors that forward ops computed of an input of a gradient's op."""
        if root.scope == "execution":
            takes_same = (
                "scope = 'execution' AND execution_index < ? AND execution_index IN (SELECT execution_index FROM "
                "execution_input WHERE run_id = ? AND tensor_id IN (SELECT tensor_id FROM execution_input "
                "WHERE run_id = ? AND execution_index = ?))"
            )
            rows = self._read(takes_same, [root.execution_index, self._run_id, self._run_id, root.execution_index])
        else:
            takes_same = (
                "scope = 'graph' AND graph_id = ? AND execution_index IS NOT DISTINCT FROM ? AND event_index < ? AND "
                "op_name IN (SELECT other.op_name FROM graph_op_input AS own JOIN graph_op_input AS other "
                "USING (run_id, graph_id, source_op_name, source_output_slot) "
                "WHERE run_id = ? AND graph_id = ? AND own.op_name = ?)"
            )
            before_root = [root.graph_id, root.execution_index, root.event_index]
            rows = self._read(takes_same, [*before_root, self._run_id, root.graph_id, root.op_name])
        return [row for row in rows if not self.has_made(row)]

    def created_by(self, event: TensorEvent) -> list[TensorEvent]:
        """Returns the bad tensors that the gradient of a bad tensor's op created: those of which it is `forward_of`."""
        if event.scope == "graph" and event.graph_id is not None and event.op_name is not None:
            created = self._created_in_graphs(event, self._gradient_ops.get((event.graph_id, event.op_name), []))
        elif event.scope == "execution" and event.execution_index in self._forward_executions:
            created = self._read(
                "scope = 'execution' AND execution_index IN "
                "(SELECT execution_index FROM execution WHERE run_id = ? AND forward_execution_index = ?)",
                [self._run_id, event.execution_index],
            )
        else:
            return []
        return [row for row in created if self._origins.is_root(row)]

    def _created_in_graphs(self, event: TensorEvent, ops: list[tuple[int, str]]) -> list[TensorEvent]:
        """Returns the bad tensors of ops of a gradient from the call of a forward op until it ran again."""
        if not ops:
            return []
        ((until,),) = self._logdir.rows(
            "SELECT min(execution_index) FROM tensor_health "
            "WHERE run_id = ? AND graph_id = ? AND op_name = ? AND execution_index > ?",
            [self._run_id, event.graph_id, event.op_name, event.execution_index],
        )
        condition = " OR ".join("(graph_id = ? AND op_name = ?)" for _ in ops)
        return self._read(
            f"({condition}) AND coalesce(execution_index BETWEEN ? AND ?, execution_index IS NOT DISTINCT FROM ?)",
            [
                *(part for op in ops for part in op),
                event.execution_index,
                2**62 if until is None else until - 1,
                event.execution_index,
            ],
        )

    @cached_property
    def _gradient_ops(self) -> dict[tuple[int, str], list[tuple[int, str]]]:
        """The ops of gradients that returned bad tensors, by their forward op: graph and name."""
        by_forward_op: dict[tuple[int, str], list[tuple[int, str]]] = {}
        for graph_id, op_name in self._logdir.rows(
            "SELECT DISTINCT graph_id, op_name FROM tensor_health "
            "WHERE run_id = ? AND has_inf_or_nan AND scope = 'graph' AND graph_id IS NOT NULL ORDER BY 1, 2",
            [self._run_id],
        ):
            label = self._labels.op(graph_id, op_name)
            if label.forward_graph_id is not None and label.forward_op_name is not None:
                by_forward_op.setdefault((label.forward_graph_id, label.forward_op_name), []).append(
                    (graph_id, op_name)
                )
        return by_forward_op

    @cached_property
    def _forward_executions(self) -> frozenset[int]:
        """The executions whose gradient returned bad tensors."""
        rows = self._logdir.rows(
            "SELECT DISTINCT e.forward_execution_index FROM tensor_health AS t JOIN execution AS e "
            "ON e.run_id = t.run_id AND e.execution_index = t.execution_index "
            "WHERE t.run_id = ? AND has_inf_or_nan AND scope = 'execution' AND e.forward_execution_index IS NOT NULL",
            [self._run_id],
        )
        return frozenset(index for (index,) in rows)

    def _bad_outputs(self, condition: str, parameters: list[object], root: TensorEvent) -> list[TensorEvent]:
        """Returns the bad tensors of an op in the last call before a tensor in which it ran."""
        rows = self._logdir.rows(
            f"SELECT execution_index FROM tensor_health WHERE run_id = ? AND {condition} AND "
            "(execution_index <= ? OR execution_index IS NULL) ORDER BY execution_index DESC NULLS LAST LIMIT 1",
            [self._run_id, *parameters, 2**62 if root.execution_index is None else root.execution_index],
        )
        if not rows:
            return []
        return self._read(f"{condition} AND execution_index IS NOT DISTINCT FROM ?", [*parameters, rows[0][0]])

    def _read(self, condition: str, parameters: list[object]) -> list[TensorEvent]:
        kinds = bad_condition(self._origins.kinds)
        return read_events(
            self._logdir,
            f"{kinds} AND {condition} ORDER BY event_index LIMIT {_MAX_OF_GRADIENT}",
            [self._run_id, *parameters],
        )


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
            is_from_outside = computed.op_type in _FROM_OUTSIDE and _is_written(computed)
            return Effect("absorbed", LITERAL_FROM_OUTSIDE if is_from_outside else LITERAL)
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
            is_caught = self._sinks.is_caught(index)
            is_failed = index is not None and self._sinks.has_failed(index) and not is_caught
            if is_failed or self._sinks.is_stopped:
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

    def skipped_update(self, origin: TensorEvent) -> str | None:
        """Returns why an overflow of a gradient did no harm although the call returned a scalar of it, or None.

        An example is the norm of the gradients in a step that an optimizer with a dynamic loss scale skipped. A later
        step must not have been skipped: the program trained on. The scalar must not belong to the loss, as that of a
        gradient penalty does: such an overflow does not depend on the scale. So the origin is of a gradient, and no
        gradient is taken of what is computed from it.
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
        """Returns the reason for a value that a check found, so that branches did not run: that of loss scaling."""
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
        """Follows a bad tensor, and the bad tensors that the gradients of the ops on its way created."""
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

    def _reason_out_of_sight(self, walk: Walk, event: TensorEvent) -> str:
        """Returns why a value that went out of reach did no harm. What a data set returned of it is followed."""
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
        """Returns what data sets returned of a bad tensor; none if the run has very many bad elements of data sets."""
        ends = " OR ".join("starts_with(op_type, ?)" for _ in PIPELINE_ENDS)
        elements = read_events(
            self._logdir,
            f"has_inf_or_nan AND ({ends}) ORDER BY event_index LIMIT {_MAX_ELEMENTS}",
            [self._run_id, *PIPELINE_ENDS],
        )
        if len(elements) == _MAX_ELEMENTS:
            return []
        return [element for element in elements if event in self._origins.roots([element], set())]

    def _is_lost(self, event: TensorEvent, skipped_graphs: set[int]) -> bool:
        """Returns whether steps are lost for good: none was ever applied, and a smaller loss scale would not help."""
        return not self._is_run(skipped_graphs) and not all(map(self._overflowed, self._beginnings(event)))

    def _is_run(self, graph_ids: Iterable[int], *, after: TensorEvent | None = None) -> bool:
        """Returns whether one of some graphs ran in any call, or in a call after that of a tensor."""
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
        """Returns the bad tensors at the start of the chains of bad tensors that lead to a bad tensor."""
        beginnings, seen, unexpanded = [], {event.event_index}, [event]
        while unexpanded:
            row = unexpanded.pop()
            causes = [source for source in self._flow.recent_sources_of(row) if source.has_inf_or_nan]
            if not causes:
                beginnings.append(row)
            unexpanded += [cause for cause in causes if cause.event_index not in seen]
            seen.update(cause.event_index for cause in causes)
        return beginnings

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
