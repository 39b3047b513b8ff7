"""Origins: the bad tensors whose bad elements came from no input.

A row is an *origin* of a kind of bad value (NaN or infinity) if the row holds this kind, but none of the row's sources
hold it. If a source of the row holds the kind, the row is a *propagator*. If no recorded input is bad, but an input
that could be bad was not recorded, it is not known whether the row is an origin or a propagator. Such a row is a
candidate for the first origin, and its `is_origin` is False.

An infinity that the program wrote itself is a *literal*: a mask of -Inf, the logarithm of a mask of zeros, the sum of
two masks of the lowest number, or the initial value of a running minimum. If an op makes a NaN from literals alone,
that op created the NaN. If an op makes a NaN from an infinity that another op computed, the NaN goes back to the other
op. The first op that makes an infinite loss from literals alone created that infinity: a mask must not cover the class
of a label. The infinities in a log-sum-exp of -Inf come from the arguments of the exponentials. The exception is a
log-sum-exp of literals: a mask must not cover a whole row.

A constant or a captured tensor that holds -Inf and no positive number may hold logarithms of probabilities. In such a
tensor, -Inf is correct: it is the logarithm of 0. If Softmax or `x - max(x)` makes a NaN from a row that holds only
-Inf of this kind, that op created the NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations

from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.masks import NORMALIZATIONS, Masks
from tfdbg_arrow.query.recorded import TensorEvent
from tfdbg_arrow.schema.op_traits import MOVING

FROM_OUTSIDE = frozenset({None, "Placeholder", "PlaceholderWithDefault"})
"""Types of ops whose result came from outside; None for a tensor that no recorded op made."""
_LITERAL_TYPES = frozenset({"Const", "ReadVariableOp"}) | FROM_OUTSIDE
"""If the output of an op of these types is an origin, the program wrote the value."""

_LOSSES = frozenset({"SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"})
"""Types of ops that compute the loss of each sample. Other losses are recognized because they are scalars."""
_MAXIMUM = MOVING | {"Max"}
"""Types of ops that compute the maximum of a row, or give the maximum a shape that fits the row."""
OrderKey = tuple[int, int, tuple[tuple[int, int], ...], int, int]
_PHASES = {"gradient": 1, "optimizer": 2}
"""In a call, ops of an optimizer come after the gradients, and all other ops come before the gradients."""


class TooManyTensorsError(Exception):
    """A search for origins reached its limit."""


@dataclass(frozen=True)
class Verdict:
    """Whether a bad tensor is an origin.

    Attributes:
        causes: The inputs that hold the same kinds of bad values; empty for a candidate.
        is_origin: True if it is proven that at least one kind of bad values in the tensor came from no input.
    """

    causes: tuple[TensorEvent, ...]
    is_origin: bool


class ProgramOrder:
    """Orders the tensors of one run as the program computes them, regardless of the order of arrival."""

    def __init__(self, flow: DataFlow) -> None:
        self._flow = flow

    def key(self, event: TensorEvent) -> OrderKey:
        """Returns the sort key of a tensor among the tensors of the run.

        Executions are ordered by their start. Within a call, forward ops come before the ops of gradients, and the ops
        of optimizers come last. Among ops of the same phase, the order of creation decides. The calling ops are
        compared first, from the outermost graph on and with the iterations of loops, and then the ops themselves. The
        event_index breaks the remaining ties.
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
        is_allowed: Returns True for an origin that is allowed to be bad. The values of such an origin count as
            literals. If this argument is None, no origin is allowed to be bad.

    Attributes:
        kinds: The kinds that count.
        is_allowed: The argument of this name.
        order: Returns the sort key of a tensor in the order of the program.
        is_log_of_mask: The method `Masks.is_log_of_mask`.
        is_overflow_of_mask: The method `Masks.is_overflow_of_mask`.
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
        masks = Masks(flow)
        self.is_log_of_mask = lru_cache(maxsize=4096)(masks.is_log_of_mask)
        self.is_overflow_of_mask = lru_cache(maxsize=4096)(masks.is_overflow_of_mask)

    def verdict(self, event: TensorEvent) -> Verdict:
        """Returns whether a bad tensor is an origin and, if it is not, the tensors that made it bad."""
        causes = self._brought_by(event)
        if not causes and (hidden := self._flow.infinities_behind(event)):
            causes = tuple(row for row in hidden if not self.is_literal(row))
        if not causes or self._is_loss_of_literals(event, causes):
            return Verdict((), is_origin=self._flow.sources_of(event).is_complete)
        return Verdict(causes, is_origin=False)

    def _brought_by(self, event: TensorEvent) -> tuple[TensorEvent, ...]:
        """Returns the bad inputs of a bad tensor; empty if the tensor has a kind of bad values that no input has."""
        own = event.bad_kinds(self.kinds)
        causes = tuple(source for source in self._flow.recent_sources_of(event) if source.bad_kinds(own))
        brought = frozenset(kind for cause in causes for kind in cause.bad_kinds(own))
        return () if own - brought else causes

    def _is_loss_of_literals(self, event: TensorEvent, causes: tuple[TensorEvent, ...]) -> bool:
        """Returns whether an op made an infinite loss from infinities that the program wrote, not from another loss."""
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

    def roots(self, events: Iterable[TensorEvent], seen: set[int], *, limit: int | None = None) -> list[TensorEvent]:
        """Returns the candidates to which the badness of tensors goes back, in no particular order.

        Args:
            events: Bad tensors.
            seen: The event indexes of tensors that were followed before. Tensors in this set are not followed again.
                The tensors that are followed now are added to the set.
            limit: Maximum size of `seen`; None means no limit.

        Raises:
            TooManyTensorsError: The search reached the limit.
        """
        roots: list[TensorEvent] = []
        start = [event for event in events if event.event_index not in seen]
        to_follow = list(start)
        while to_follow:
            row = to_follow.pop()
            if row.event_index in seen:
                continue
            if len(seen) == limit:
                raise TooManyTensorsError
            seen.add(row.event_index)
            causes = self._followed(row)
            to_follow += causes
            if not causes:
                roots.append(row)
        # Without a root, the rows seem to cause each other in a cycle. This happens only for rows without context.
        return roots or start

    def is_root(self, event: TensorEvent) -> bool:
        """Returns whether the badness of a tensor goes back to no other tensor."""
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
        """Returns the roots without literals. Also leaves out logarithms of 0 if another root may be made from them."""
        others = [root for root in roots if not self.is_literal(root)]
        if not any(self._is_normalization_of_zeros(root, self._bad_sources(root)) for root in others):
            return others
        return [root for root in others if not self._is_base_logarithm(root)]

    def _is_normalization_of_zeros(self, event: TensorEvent, bad: Sequence[TensorEvent]) -> bool:
        """Returns whether an op made NaN because it normalised logarithms of probabilities that are all 0.

        Args:
            event: The result of the op, an origin.
            bad: The bad tensors that the op takes.
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
        """Returns whether the badness of a tensor goes back only to base tensors.

        Args:
            event: The tensor.
            is_base: Returns whether a tensor without causes is a base tensor.
            causes_of: Returns the tensors that made a tensor bad.
            verdicts: The results for other tensors, by event_index. New results are added.
        """
        takers: dict[int, int | None] = {event.event_index: None}
        to_follow = [event]
        while to_follow:
            row = to_follow.pop()
            verdict = verdicts.get(row.event_index)
            causes = () if verdict is not None else causes_of(row)
            if verdict is False or (verdict is None and not causes and not is_base(row)):
                # Neither this tensor nor the tensors computed from it go back only to base tensors.
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
        if origin.num_nan == 0 and looks_like_mask(origin) and not is_computed:
            return True
        return self.is_log_of_mask(origin) or self.is_overflow_of_mask(origin)

    def _is_base_logarithm(self, origin: TensorEvent) -> bool:
        if origin.num_pos_inf != 0:
            return False
        is_constant = origin.op_type == "Const" or self._flow.captured_as(origin) is not None
        is_of_probabilities = is_constant and origin.num_nan == 0 and origin.num_pos_finite == 0
        return is_of_probabilities or self._is_base_literal(origin)


def looks_like_mask(origin: TensorEvent) -> bool:
    """Returns whether an origin looks as if the program wrote it: it holds only infinities and zeros, as a mask does.

    A batch of data with some infinite elements also holds other numbers.
    """
    if origin.op_type not in _LITERAL_TYPES:
        return False
    if origin.num_pos_finite is None or origin.num_neg_finite is None:
        return False
    return not (origin.num_pos_finite or origin.num_neg_finite)
