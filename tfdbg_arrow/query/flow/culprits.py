"""Culprits: the op that caused the bad values of a run."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.effects import Effect, Effects
from tfdbg_arrow.query.flow.extremes import POOLS, holds_extreme
from tfdbg_arrow.query.flow.gradients import Gradients
from tfdbg_arrow.query.flow.origins import OrderKey, Origins
from tfdbg_arrow.query.flow.search import breadth_first, rows_behind
from tfdbg_arrow.query.flow.sinks import LAST_EXECUTION, Sinks
from tfdbg_arrow.query.recorded import EFFECTS, Execution, TensorEvent, bad_condition, read_events
from tfdbg_arrow.schema.op_traits import (
    DIVISIONS,
    PIPELINE_ENDS,
    POLES,
    PUTS_INTO_STORE,
    TAKES_FROM_STORE,
    Trait,
    types_with,
)

_SINGULAR = types_with(Trait.IS_SINGULAR)
_HARMS = frozenset({"variable", "result"})
_MAX_PIPELINE_ROWS = 256
"""Default maximum number of bad tensors that `_read` returns. Only the first bad tensors matter."""
_MAX_SITES = 1000
"""In the search for a harmless origin, at most this many bad op outputs are examined."""
_NUM_LATER = 1000
"""An update that uses a result counts as skipped if the program skips it at most this many executions later."""
_EXECUTIONS_AT_ONCE = 256
"""Minimum number of executions whose skipped results are read in one query. Each query takes some milliseconds."""
_MAX_BEHIND = 64
"""A search that starts at one bad tensor visits at most this many tensors."""
_MAX_RESULTS = 100
"""In the search for a bad loss before the first bad variable, at most this many executions are examined."""
_WITHOUT_STEP = "scope = 'graph' AND step_id IS NULL AND execution_index IS NOT DISTINCT FROM ?"
"""The condition for the tensors without a step in a call, or outside of calls. The parameter is the execution_index."""
_MAX_CALL_ROWS = 4000
"""Maximum number of bad tensors that are read from one call."""


@dataclass(frozen=True)
class Culprit:
    """The op to blame, given by the bad tensor that it made, and the effect of this tensor.

    Attributes:
        event: The tensor.
        effect: Where the bad values of this tensor ended.
        rivals: Other proven origins that did as much harm in the same phase of the same call. The rivals took no bad
            value from another origin. The phases are the forward pass, the gradients and the optimizer.
    """

    event: TensorEvent
    effect: Effect
    rivals: tuple[TensorEvent, ...] = ()


class _RootsOfSinks(NamedTuple):
    """The origins of bad values that did harm in an execution.

    Attributes:
        execution_index: The execution; None for a step outside of executions.
        start: The event_index at which the execution or the step starts.
        roots: The origins.
    """

    execution_index: int | None
    start: int
    roots: list[TensorEvent]


class _Handled:
    """Origins that the program handled by skipping the updates that would have used them."""

    def __init__(self, origins: Origins, sinks: Sinks) -> None:
        self._origins = origins
        self._sinks = sinks
        self._seen: set[int] = set()
        self._num_read = 0
        self._read: deque[TensorEvent] = deque()
        self._handled: set[int] = set()

    def has(self, origin: TensorEvent, *, until: int) -> bool:
        """Returns whether a tensor that was computed from an origin was skipped in an execution before `until`."""
        self._look_until(until)
        return origin.event_index in self._handled

    def _look_until(self, execution_index: int) -> None:
        """Finds the origins of the skipped tensors of all executions before the given execution."""
        if self._num_read < execution_index:
            num_read = max(execution_index, self._num_read + _EXECUTIONS_AT_ONCE)
            self._read.extend(self._sinks.skipped(self._num_read, num_read - 1))
            self._num_read = num_read
        while self._read and (self._read[0].execution_index or 0) < execution_index:
            roots = self._origins.roots([self._read.popleft()], self._seen)
            self._handled.update(root.event_index for root in roots)


class _EarlierOrigins:
    """Finds the origins of the first bad tensors of a call whose tensors have no step.

    The tensors are followed in order and once, because many of them may be asked about.

    Args:
        origins: Finds the origins.
        gradients: Finds the tensors that the gradient of an op created.
        bad: The bad tensors, by event_index.
    """

    def __init__(self, origins: Origins, gradients: Gradients, bad: Sequence[TensorEvent]) -> None:
        self._origins = origins
        self._gradients = gradients
        self._bad = bad
        self._num_followed = 0
        self._seen: set[int] = set()
        self._roots: list[tuple[int, TensorEvent]] = []
        """Each origin, after the event_index of the first tensor that goes back to it."""
        self._likely_of_first = lru_cache(maxsize=16)(lambda num: self._likely([root for _, root in self._roots[:num]]))

    def before(self, event_index: int) -> list[TensorEvent]:
        """Returns the proven origins of the bad tensors before an event, or origins in the forward pass before them."""
        num_earlier = bisect_left(self._bad, event_index, key=lambda row: row.event_index)
        for row in self._bad[self._num_followed : num_earlier]:
            roots = self._origins.roots([row], self._seen)
            # Without an origin of its own, roots() returns the tensor itself.
            self._roots += [(row.event_index, root) for root in roots if self._origins.is_root(root)]
        self._num_followed = max(self._num_followed, num_earlier)
        num_roots = bisect_left(self._roots, event_index, key=lambda root: root[0])
        return self._likely_of_first(num_roots) if num_roots else self._likely(self._bad[:num_earlier])

    def _likely(self, roots: Sequence[TensorEvent]) -> list[TensorEvent]:
        """Returns the proven origins. If all of these are gradients, returns the origins in the forward pass instead.

        Forward ops may have made bad values first, from inputs that cannot be followed.
        """
        others = [root for root in roots if not self._origins.is_literal(root)]
        proven = [root for root in others if self._origins.verdict(root).is_origin]
        if not proven or not all(map(self._gradients.has_made, proven)):
            return proven
        return [root for root in others if not self._gradients.has_made(root)] or proven


class Culprits:
    """Finds the culprit of one run.

    Args:
        kinds: The kinds that count: `nan`, `inf` or both.

    Attributes:
        effects: Determines where bad values end.
    """

    def __init__(
        self,
        logdir: Engine,
        flow: DataFlow,
        origins: Origins,
        sinks: Sinks,
        gradients: Gradients,
        *,
        run_id: str,
        kinds: tuple[str, ...],
    ) -> None:
        self._logdir = logdir
        self._flow = flow
        self._labels = flow.labels
        self._origins = origins
        self._sinks = sinks
        self._gradients = gradients
        self._harmless_since = LAST_EXECUTION
        """No harm follows this execution or any later execution."""
        self.effects = Effects(
            logdir,
            flow,
            origins,
            sinks,
            gradients,
            blamed=self._blamed,
            is_followed_by_harm=self._is_followed_by_harm,
            run_id=run_id,
        )
        self._run_id = run_id
        self._bad = bad_condition(kinds)
        self._forward_roots = lru_cache(maxsize=16)(self._find_forward_roots)
        self._earlier_origins = lru_cache(maxsize=16)(self._find_earlier_origins)

    def harmful(self) -> Culprit | None:
        """Returns the earliest of the origins that did the greatest harm, or None if no origin did harm."""
        is_allowed = self._origins.is_allowed
        most_harmful = self._most_harmful() if is_allowed is None else self._find_most_harmful(is_allowed)
        all_roots = {root.event_index: root for _, roots in most_harmful for root in roots}.values()
        firsts = [min(roots, key=self._place) for _, roots in most_harmful]
        if not firsts:
            return None
        first = min(firsts, key=self._origins.order)
        origins = {root.event_index: root for root in (*all_roots, *self._hidden_beside(first))}.values()
        rivals = sorted((root for root in origins if self._is_rival(root, first)), key=self._place)
        blamed = {root.event_index for root in (first, *rivals)}
        independent = [root for root in rivals if self._has_own_zeros(root) or not self._is_behind(root, blamed)]
        effect = _effects_of_ops(most_harmful)[_instance(first)]
        return Culprit(first, Effect(effect, None), tuple(independent))

    def _is_behind(self, event: TensorEvent, others: Collection[int]) -> bool:
        """Returns whether a bad tensor was computed from one of `others`, which are the event indexes of bad tensors.

        A finite number divided by an infinity is 0, and this 0 can make the next op bad. So the search also goes
        through such divisions.
        """

        def sources(row: TensorEvent) -> Iterator[TensorEvent]:
            for source in self._flow.recent_sources_of(row):
                if source.has_inf_or_nan or (source.op_type in DIVISIONS and source.num_zero):
                    yield source

        behind = islice(rows_behind([event], sources, limit=_MAX_BEHIND), 1, None)
        return any(row.event_index in others for row in behind)

    def _hidden_beside(self, first: TensorEvent) -> list[TensorEvent]:
        """Returns other harmful bad tensors in an origin's call. The origin's NaN hide the effects of these tensors.

        An infinity that is added to a NaN leaves no trace. Only two groups of ops are examined: ops that are bad at
        single points, and ops of the origin's own type. An overflow of any other op most likely has the same cause as
        the origin.
        """
        if first.scope != "graph" or first.execution_index is None:
            return []
        op_types = sorted(_SINGULAR | {first.op_type or ""})
        rows = self._read(
            f"scope = 'graph' AND execution_index = ? AND op_type IN ({', '.join('?' * len(op_types))})",
            first.execution_index,
            *op_types,
        )
        origins = (row for row in rows if self._is_rival(row, first) and not self._origins.is_literal(row))
        return [row for row in origins if self.effects.of(row).name in _HARMS]

    def _is_rival(self, root: TensorEvent, first: TensorEvent) -> bool:
        """Returns whether an origin is as much to blame as the first origin of its call."""
        is_origin = self._origins.verdict(root).is_origin or self._has_own_zeros(root)
        if root.event_index == first.event_index or not is_origin:
            return False
        return self._origins.order(root)[:2] == self._origins.order(first)[:2]  # the call, and the phase in it

    def _has_own_zeros(self, quotient: TensorEvent) -> bool:
        """Returns whether zeros in the divisor made a quotient infinite. The divisor may also hold infinities."""
        index = POLES.get(quotient.op_type or "")
        if index is None or quotient.op_type not in DIVISIONS or quotient.num_nan != 0:
            return False
        taken = {index: row for index, _, row in self._flow.taken_by(quotient)}
        divisor = taken.pop(index, None)
        is_dividend_finite = all(row.has_inf_or_nan is False for row in taken.values())
        return divisor is not None and divisor.num_nan == 0 and bool(divisor.num_zero) and is_dividend_finite

    def _most_harmful(self) -> list[tuple[str, list[TensorEvent]]]:
        """Returns the result of `_find_most_harmful` for all origins, and keeps it for the next question."""

        def find() -> list[tuple[str, list[TensorEvent]]]:
            return self._find_most_harmful(lambda root: False)

        if self._origins.is_allowed is not None:
            return find()  # another question may allow other origins
        return self._logdir.kept("culprits", (self._run_id, self._origins.kinds), find)

    def _find_most_harmful(self, is_passed_over: Callable[[TensorEvent], bool]) -> list[tuple[str, list[TensorEvent]]]:
        """Returns each effect of the most harmful rank, with the origins of its first sinks that have origins.

        Args:
            is_passed_over: Returns True for origins to ignore.
        """
        for effects in self._ranks():
            firsts = ((effect, next(self._roots_of_sinks(effect, is_passed_over), None)) for effect in effects)
            first_sinks = {effect: first for effect, first in firsts if first is not None}
            if first_sinks.keys() == {"variable"} and self._labels.has_roles:
                losses = self._roots_of_losses(is_passed_over, before=first_sinks["variable"])
                first_sinks |= {} if losses is None else {"result": losses}
            if first_sinks:
                return [(effect, first.roots) for effect, first in first_sinks.items()]
        return []

    def _roots_of_losses(
        self, is_passed_over: Callable[[TensorEvent], bool], *, before: _RootsOfSinks
    ) -> _RootsOfSinks | None:
        """Returns the origins of the first results that belong to a loss, or None if there are none.

        A bad loss is as harmful as a bad variable: the training is spoilt, even if the gradient was finite.

        Args:
            is_passed_over: Returns True for origins to ignore.
            before: The first origins that did harm to a variable. Only results of the same execution or of earlier
                executions count.
        """
        if before.execution_index is None:
            return None
        of_results = self._roots_of_sinks(
            "result", is_passed_over, upto=before.execution_index, unhandled={root.event_index for root in before.roots}
        )
        for results in islice(of_results, _MAX_RESULTS):
            if results.start > before.start:
                return None
            losses = [root for root in results.roots if self._labels.is_of_loss(root)]
            if losses:
                return results._replace(roots=losses)
        return None

    def _blamed(self) -> dict[int, str]:
        """Returns the effect of each origin that may be the culprit, by the event_index of the origin."""
        most_harmful = self._most_harmful()
        effects = _effects_of_ops(most_harmful)
        return {root.event_index: effects[_instance(root)] for _, roots in most_harmful for root in roots}

    def _is_followed_by_harm(self, event: TensorEvent) -> bool:
        """Returns whether a bad tensor was written, returned or counted by a metric in the call of `event` or later."""
        since = -1 if event.execution_index is None else event.execution_index
        if since >= self._harmless_since:
            return False
        is_followed = any(
            next(self._roots_of_sinks(effect, lambda root: False, since=since), None) for effect in EFFECTS[:-1]
        )
        if not is_followed:
            self._harmless_since = since
        return is_followed

    def _ranks(self) -> tuple[tuple[str, ...], ...]:
        """Returns the groups of effects that count as equally harmful. The most harmful group comes first.

        Without recorded roles, forward ops and gradients cannot be distinguished. In a run without roles, a bad loss
        counts as much as the bad variables that resulted from the loss, so that the search finds the forward op.
        """
        return (("variable",), ("result",), ("metric",)) if self._labels.has_roles else (("variable", "result"),)

    def _roots_of_sinks(
        self,
        effect: str,
        is_passed_over: Callable[[TensorEvent], bool],
        *,
        since: int | None = None,
        upto: int = LAST_EXECUTION,
        unhandled: Collection[int] = (),
    ) -> Iterator[_RootsOfSinks]:
        """Yields the origins of the sinks of an effect, in order of the sinks. Sinks without an origin are left out.

        Args:
            effect: The effect.
            is_passed_over: Returns True for origins to ignore.
            since: The first execution whose sinks count; None for all executions.
            upto: The last execution whose sinks count. Sinks in steps outside of executions always count.
            unhandled: The event indexes of origins that are known to have done harm. The program did not handle these
                origins.
        """
        seen: set[int] = set()
        seen_of_updates: set[int] = set()
        handled = _Handled(self._origins, self._sinks) if effect == "result" else None
        for batch in self._sinks.batches(effect, upto=upto):
            until = max((row.execution_index or 0 for row in batch), default=0) + _NUM_LATER
            late = [
                row for row in batch if since is None or row.execution_index is None or row.execution_index >= since
            ]
            updates = [row for row in late if effect == "variable" and self._sinks.updates(row)]
            causes = [
                self._cause(root)
                for root in self._origins.roots(late, seen)
                if handled is None or root.event_index in unhandled or not handled.has(root, until=until)
            ]
            harmful = self._origins.without_written(causes)
            if not harmful:
                # A program may write an infinity into a variable on purpose, but it does not add an infinity on
                # purpose.
                roots = self._origins.roots(updates, seen_of_updates)
                harmful = [root for root in roots if self._origins.is_literal(root)]
            if effect == "result":
                harmful = [root for root in harmful if self.effects.skipped_update(root) is None]
            harmful = [root for root in harmful if not is_passed_over(root)]
            if harmful:
                yield _RootsOfSinks(late[0].execution_index, self._origins.order(late[0])[0], harmful)

    def _place(self, root: TensorEvent) -> tuple[int, bool, OrderKey]:
        """Returns the sort key of a root. Within a call, proven origins sort before unproven ones."""
        order = self._origins.order(root)
        return order[0], not self._origins.verdict(root).is_origin, order

    def harmless(self) -> Culprit | None:
        """Returns the earliest origin that is not proven harmless. If all are harmless, returns the earliest origin."""
        bad = self._bad_sites()
        bad += self._of_first_call(bad)
        is_allowed = self._origins.is_allowed
        roots = [root for root in self._origins.roots(bad, set()) if is_allowed is None or not is_allowed(root)]
        culprits = [Culprit(self._first_behind(self._in_store(root), root), self.effects.of(root)) for root in roots]
        culprits.sort(key=lambda culprit: self._place(culprit.event))
        unproven = (culprit for culprit in culprits if culprit.effect.expected_reason is None)
        return next(unproven, culprits[0] if culprits else None)

    def _bad_sites(self) -> list[TensorEvent]:
        """Returns, for each op output, call site and kind, the bad tensor that was recorded first."""
        rows = self._logdir.rows(
            f"SELECT min(event_index) FROM tensor_health WHERE run_id = ? AND {self._bad} "
            "GROUP BY graph_id, op_name, op_type, output_slot, call_site, num_nan > 0 "
            f"ORDER BY min(event_index) LIMIT {_MAX_SITES}",
            [self._run_id],
        )
        indexes = [index for (index,) in rows]
        if not indexes:
            return []
        return read_events(self._logdir, f"event_index IN ({', '.join('?' * len(indexes))})", [self._run_id, *indexes])

    def _of_first_call(self, bad: list[TensorEvent]) -> list[TensorEvent]:
        """Returns the bad tensors of the first call that has bad tensors.

        The order in which these tensors arrived does not show which one was computed first.
        """
        calls = [row.execution_index for row in bad if row.execution_index is not None]
        if not calls:
            return []
        return self._read("execution_index = ?", min(calls), limit=_MAX_CALL_ROWS)

    def _cause(self, root: TensorEvent) -> TensorEvent:
        """Returns the origin behind an origin: the bad forward op of a gradient, or the bad op of a pipeline or call.

        A constant NaN in a program is intended: it is the result for the case that another value is NaN. This other
        value is the cause of the NaN.
        """
        behind = (
            self._gradients.forward_of(root)
            or self._after_forward_op(root)
            or self._lost_in_pool(root)
            or self._in_pipeline(root)
            or self._in_store(root)
            or self._in_call(root)
            or self._in_step_of_call(root)
            or self._earlier_in_call(root)
            or self.beside_constant(root)
        )
        # An infinity that the program wrote itself, such as a mask, is not the cause.
        cause = self._first_behind(behind, root, is_literal_skipped=True)
        if cause.event_index == root.event_index:
            return cause
        return self._first_behind(self._earlier_in_call(cause), cause, is_literal_skipped=True)

    def _first_behind(
        self, behind: list[TensorEvent], root: TensorEvent, *, is_literal_skipped: bool = False
    ) -> TensorEvent:
        """Returns the first origin of the tensors behind a root, or the root if these tensors have no other origin."""
        others = [other for other in self._origins.roots(behind, set()) if other.event_index != root.event_index]
        if is_literal_skipped:
            others = [other for other in others if not self._origins.is_literal(other)]

        def place_behind(other: TensorEvent) -> tuple[int, bool, object]:
            start, *rest = self._place(other)
            return start, self._takes_unknown_op(other), rest

        return min(others, key=place_behind, default=root)

    def _takes_unknown_op(self, row: TensorEvent) -> bool:
        """Returns whether a tensor's op takes the output of an op that the graph lacks. Imported graphs lack all calls.

        Tensors behind a missing op come after other candidates in the same call, such as an op in the called function.
        """
        graph_id = row.graph_id
        op = None if graph_id is None else self._flow.graphs.op(graph_id, row.op_name or "")
        if graph_id is None or op is None:
            return False
        return any(self._flow.graphs.op(graph_id, name) is None for name, _ in op.inputs)

    def _after_forward_op(self, root: TensorEvent) -> list[TensorEvent]:
        """Returns the bad tensors that the forward pass of a call computed from the result of a gradient's forward op.

        The op that made these tensors has a gradient, too. This gradient is computed before the gradient of the forward
        op, and also has bad values.
        """
        label = self._labels.of(root)
        if label.role == "gradient" and label.forward_execution_index is not None:
            return self._computed_eagerly_from(label.forward_execution_index)
        if label.role != "gradient" or label.forward_op_name is None or root.execution_index is None:
            return []
        place = label.forward_graph_id, label.forward_op_name
        return [
            forward_root
            for forward_root in self._forward_roots(root.execution_index)
            if any((row.graph_id, row.op_name) == place for row in self._behind(forward_root))
        ]

    def _computed_eagerly_from(self, execution_index: int) -> list[TensorEvent]:
        """Returns the origins of bad values that eager ops of the forward pass computed from results of an execution.

        Three groups of ops are left out: ops that return infinities written by the program, ops whose gradient is
        finite, and ops without a gradient.
        """
        events = self._flow.events

        def results(index: int) -> list[int]:
            return [tensor_id for tensor_id, _ in events.execution_outputs(index).values()]

        def computed(tensor_id: int) -> Iterator[int]:
            users = (use.execution.execution_index for use in events.uses(tensor_id))
            return (made for user in users if self._labels.execution(user).role != "gradient" for made in results(user))

        rows = (
            events.eager(made).event for made in breadth_first(results(execution_index), computed, limit=_MAX_BEHIND)
        )
        bad = {row.event_index: row for row in rows if row is not None and row.has_inf_or_nan}
        roots = [root for root in self._origins.roots(bad.values(), set()) if root.event_index in bad]
        return [root for root in roots if self._gradients.is_bad_of(root) and not self._origins.is_literal(root)]

    def _find_forward_roots(self, execution_index: int) -> list[TensorEvent]:
        """Returns the origins of bad tensors in a call's forward pass, without infinities that the program wrote."""
        bad = self._read("scope = 'graph' AND execution_index = ?", execution_index, limit=_MAX_CALL_ROWS)
        forward = [row for row in bad if self._labels.of(row).role != "gradient"]
        return [root for root in self._origins.roots(forward, set()) if not self._origins.is_literal(root)]

    def _lost_in_pool(self, root: TensorEvent) -> list[TensorEvent]:
        """Returns the tensors whose NaN a pool behind the bad tensor replaced with the lowest number of the dtype."""
        for row in self._behind(root, without_bad=True):
            if row.op_type in POOLS:
                taken = [source for source in self._flow.recent_sources_of(row) if holds_extreme(row, source)]
                if taken:
                    return taken
        return []

    def _behind(self, event: TensorEvent, *, without_bad: bool = False) -> Iterator[TensorEvent]:
        """Returns the nearest tensors from which a tensor was computed.

        Args:
            event: The tensor.
            without_bad: Whether to leave out bad tensors and the tensors from which bad tensors were computed.
        """

        def sources(row: TensorEvent) -> Iterator[TensorEvent]:
            nearest = self._flow.recent_sources_of(row)
            return (source for source in nearest if not (without_bad and source.has_inf_or_nan))

        return islice(rows_behind([event], sources, limit=_MAX_BEHIND), 1, None)

    def _in_pipeline(self, root: TensorEvent) -> list[TensorEvent]:
        """Returns the bad tensors that tf.data functions made before a pipeline returned a bad element.

        `Pipelines` links most elements to these functions, but needs roles for that. Imported dumps have no roles.
        """
        if not (root.op_type or "").startswith(PIPELINE_ENDS):
            return []
        graphs = sorted(self._called_graphs())
        apart = f"AND graph_id NOT IN ({', '.join('?' * len(graphs))})" if graphs else ""
        # A tensor without a step belongs to a call if it has an execution.
        in_pipeline = f"scope = 'graph' AND NOT (step_id IS NULL AND execution_index IS NOT NULL) {apart}"
        # Infinities that occur in each record, such as the initial value of a minimum, would use up the limit.
        of_kind = "num_nan > 0 AND " if root.num_nan and not (root.num_pos_inf or root.num_neg_inf) else ""
        return self._read(f"{of_kind}{in_pipeline} AND event_index < ?", *graphs, root.event_index)

    def _in_store(self, root: TensorEvent) -> list[TensorEvent]:
        """Returns the bad tensors that were stored in TensorArrays or stacks before an op returned one of them."""
        if root.graph_id is None or not TAKES_FROM_STORE.fullmatch(root.op_type or ""):
            return []
        ops = self._flow.graphs.graph(root.graph_id).ops.values()
        names = sorted({name for op in ops if PUTS_INTO_STORE.fullmatch(op.op_type) for name, _ in op.inputs})
        if not names:
            return []
        return self._read(
            "scope = 'graph' AND graph_id = ? AND execution_index IS NOT DISTINCT FROM ? AND event_index < ? "
            "AND array_contains(?, op_name)",
            *(root.graph_id, root.execution_index, root.event_index, names),
        )

    def _in_call(self, root: TensorEvent) -> list[TensorEvent]:
        """Returns the bad tensors inside a call if the result of the call is not linked to a tensor of its graph.

        Debugger V2 does not record this link. If several threads call a function at once, it can be unknown which step
        belongs to which call.
        """
        if root.scope != "execution" or root.execution_index is None or root.output_slot is None:
            return []
        execution = self._flow.events.execution(root.execution_index)
        if execution is None:
            return []
        in_call: list[TensorEvent] = []
        if self._flow.graphs.result(execution.op_type, root.output_slot) is None:
            condition = "scope = 'graph' AND execution_index = ? AND event_index < ?"
            in_call = self._read(condition, root.execution_index, root.event_index)
        return in_call or self._in_steps_of_unknown_calls(execution, root)

    def _in_step_of_call(self, root: TensorEvent) -> list[TensorEvent]:
        """Returns the bad tensors inside a function that an op of a graph called, if TensorFlow ran it in another step.

        TensorFlow inlines most calls. TensorFlow does not inline the call of a function whose implementation it chooses
        by the device.
        """
        if root.scope != "graph" or root.graph_id is None or root.step_id is None:
            return []
        callees = [call.callee_graph_id for call in self._flow.graphs.calls(root.graph_id, root.op_name or "")]
        graphs = sorted({part for callee in callees if callee is not None for part in self._flow.graphs.parts(callee)})
        if not graphs:
            return []
        return self._read(
            "scope = 'graph' AND execution_index IS NOT DISTINCT FROM ? AND step_id <> ? AND event_index < ? "
            f"AND graph_id IN ({', '.join('?' * len(graphs))})",
            *(root.execution_index, root.step_id, root.event_index, *graphs),
        )

    def _in_steps_of_unknown_calls(self, execution: Execution, root: TensorEvent) -> list[TensorEvent]:
        """Returns the bad tensors of a called function during a call, in steps that are not linked to any call."""
        if execution.graph_id is None:
            return []
        graphs = self._traced_within(self._flow.graphs.parts(execution.graph_id))
        (is_known,) = self._logdir.rows(
            "SELECT count(*) > 0 FROM tensor_health WHERE run_id = ? AND scope = 'graph' AND execution_index = ?",
            [self._run_id, execution.execution_index],
        )[0]
        if is_known:
            return []
        return self._read(
            "scope = 'graph' AND execution_index IS NULL AND event_index BETWEEN ? AND ? "
            f"AND graph_id IN ({', '.join('?' * len(graphs))})",
            *(execution.event_index, root.event_index, *graphs),
        )

    def _earlier_in_call(self, root: TensorEvent) -> list[TensorEvent]:
        """Returns the bad tensors that may be behind an unproven origin in a call whose tensors have no step.

        Debugger V2 does not record steps. Without steps, a tensor cannot be followed into another graph of its call,
        such as a loop or the gradient of a called function. The result is the likely origins before the tensor in the
        call. Without a proven origin, the result is the bad tensors before the unproven origin that belong to no call.
        """
        if root.scope != "graph" or root.step_id is not None or self._origins.verdict(root).is_origin:
            return []
        likely = self._earlier_origins(root.execution_index).before(root.event_index)
        if likely:
            return likely
        # A function of tf.data made these tensors. Elements of a data set cannot be followed into the call.
        is_in_call = root.execution_index is not None
        return self._read(f"{_WITHOUT_STEP} AND event_index < ?", None, root.event_index) if is_in_call else []

    def _find_earlier_origins(self, execution_index: int | None) -> _EarlierOrigins:
        bad = self._read(_WITHOUT_STEP, execution_index, limit=_MAX_CALL_ROWS)
        return _EarlierOrigins(self._origins, self._gradients, bad)

    def _traced_within(self, graph_ids: Iterable[int]) -> list[int]:
        """Returns graphs and all graphs traced within them, at any depth. Imported runs do not record the calls."""
        inner: dict[int, list[int]] = {}
        for graph_id, outer_graph_id in self._logdir.rows(
            "SELECT graph_id, outer_graph_id FROM graph WHERE run_id = ? AND outer_graph_id IS NOT NULL", [self._run_id]
        ):
            inner.setdefault(outer_graph_id, []).append(graph_id)
        return sorted(breadth_first(graph_ids, lambda outer: inner.get(outer, ())))

    def beside_constant(self, root: TensorEvent) -> list[TensorEvent]:
        """Returns the origins of the NaNs in the call of a constant NaN, without origins that are constants.

        Args:
            root: An origin. If the origin is not a constant that holds only NaN, the result is empty.
        """
        if root.op_type != "Const" or not root.num_nan or root.num_nan != root.size or root.execution_index is None:
            return []
        bad = read_events(
            self._logdir,
            f"num_nan > 0 AND scope = 'graph' AND execution_index = ? AND op_type <> 'Const' ORDER BY event_index "
            f"LIMIT {_MAX_CALL_ROWS}",
            [self._run_id, root.execution_index],
        )
        roots = self._origins.roots(bad, set())
        return [root for root in roots if root.op_type != "Const" and self._origins.verdict(root).is_origin]

    def _called_graphs(self) -> set[int]:
        """Returns all graphs that run within calls from eager code or within runs of sessions, at any depth."""
        graphs = self._flow.graphs
        roots = {graphs.function_graphs.get(name, graph_id) for name, graph_id in self._flow.events.op_types()}
        return {part for root in roots if root is not None for part in graphs.parts(root)}

    def _read(self, condition: str, *parameters: object, limit: int = _MAX_PIPELINE_ROWS) -> list[TensorEvent]:
        """Returns the first bad tensors for which a condition holds."""
        return read_events(
            self._logdir,
            f"{self._bad} AND {condition} ORDER BY event_index LIMIT {limit}",
            [self._run_id, *parameters],
        )


def _effects_of_ops(
    most_harmful: Sequence[tuple[str, Sequence[TensorEvent]]],
) -> dict[tuple[object, ...], str]:
    """Returns, for each run of an op, the most harmful effect of the op's outputs.

    A cross-entropy, for example, returns the loss and the gradient. The program may return a bad loss, but the gradient
    reaches the variables.

    Args:
        most_harmful: Effects and their origins.
    """
    effects: dict[tuple[object, ...], str] = {}
    for effect, roots in sorted(most_harmful, key=lambda of_effect: EFFECTS.index(of_effect[0])):
        for root in roots:
            effects.setdefault(_instance(root), effect)
    return effects


def _instance(row: TensorEvent) -> tuple[object, ...]:
    """Returns a key for the run of the op that made a tensor. The key of an eager tensor is its event_index."""
    place = row.graph_tensor
    return (row.event_index,) if place is None else (place.context, place.graph_id, place.op_name)
