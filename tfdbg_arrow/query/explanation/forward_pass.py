"""Where a bad tensor goes in the forward pass, which ops replace, hide or mask it, and whether its gradient is bad."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property

from tfdbg_arrow.query.bad_tensor import BadTensorReader
from tfdbg_arrow.query.explanation.computed import holds_only_neg_inf
from tfdbg_arrow.query.explanation.facts import BadTensorFacts
from tfdbg_arrow.query.explanation.library import IN_LOGSUMEXP, library_functions
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.decisions import SELECTS
from tfdbg_arrow.query.flow.extremes import POOLS, holds_extreme
from tfdbg_arrow.query.flow.masks import NORMALIZATIONS
from tfdbg_arrow.query.flow.origins import Origins
from tfdbg_arrow.query.flow.sinks import Sinks
from tfdbg_arrow.query.flow.walk import CannotTellError, OutOfSightError, UnrecordedEndError, Walk, WalkedTensor
from tfdbg_arrow.query.recorded import KINDS, GraphTensor, Op, TensorEvent, bad_condition, read_events
from tfdbg_arrow.query.stacks import short_place, user_source
from tfdbg_arrow.schema.op_traits import Trait, types_with

_GETS_ELEMENT = f"{tuple(sorted(types_with(Trait.GETS_ELEMENT)))}"


class ForwardPass(BadTensorFacts):
    """The forward pass through which a bad tensor goes."""

    def bad_gradient_of_masked(self) -> TensorEvent | None:
        """Returns a bad tensor of the gradient if a `tf.where` replaces the bad value everywhere in the forward pass.

        Returns None if the forward pass does not stay finite, or if the recording does not show where the value goes.
        """
        if not self.flow.labels.has_roles or self.flow.labels.of(self.event).role == "gradient":
            return None
        if not self._has_selects():
            return None
        walk = self._forward_walk
        if not walk.is_complete or walk.harm is not None or not self._selects():
            return None
        gradient = walk.bad_gradients[0] if walk.bad_gradients else self._bad_gradient_of_op()
        return None if gradient is None or self._did_no_harm() else gradient

    def line_of_select(self) -> str | None:
        """Returns the line of the first `tf.where` that replaces the bad value; None if no such line is known."""
        first = min(self._selects(), key=lambda made: made[0], default=None)
        return None if first is None else self._line(first[1])

    def _selects(self) -> list[tuple[int, int | None]]:
        """Returns the program's calls of `tf.where`, without those inside tf.reduce_logsumexp."""
        selects = self._forward_walk.selects
        return [made for made in selects if IN_LOGSUMEXP not in library_functions(self.flow.stacks.stack(made[1]))]

    def pool_of_nan(self) -> TensorEvent | None:
        """Returns the finite result of an op that returned the lowest number where the tensor is NaN, or None."""
        pool = next(iter(self._forward_walk.pools), None) if self.event.num_nan else None
        return None if pool is None or self._did_no_harm() else pool

    def softmax_of_mask(self) -> TensorEvent | None:
        """Returns the first tensor with NaN that a softmax made from the -Inf of the tensor, or None."""
        bad = (row for row in self._forward_walk.met.values() if row.op_type in NORMALIZATIONS and row.num_nan)
        of_masks = (row for row in bad if any(map(holds_only_neg_inf, self.flow.sources_of(row).events)))
        return min(of_masks, key=lambda row: row.event_index, default=None)

    def masking_product(self) -> str | None:
        """Returns the line that multiplies the tensor by a tensor that looks like a mask of its NaN, or None."""
        if not self.event.num_nan:
            return None
        for product in sorted(self._forward_walk.products, key=lambda row: row.event_index):
            if any(_is_mask(row, product) for _, _, row in self.flow.taken_by(product)):
                return None if self._did_no_harm() else self._line(self.flow.stack_trace_id(product))
        return None

    def may_be_rejected(self) -> bool:
        """Returns whether the program may have rejected all bad results of the call that computed the tensor."""
        given = read_events(
            self.logdir,
            "has_inf_or_nan AND scope = 'execution' AND execution_index = ?",
            [self.run_id, self.event.execution_index],
        )
        sinks = Sinks(self.logdir, self.flow, run_id=self.run_id, kinds=KINDS)
        results = [row for row in given if sinks.results.is_given(row)]
        return bool(results) and all(map(sinks.skipped_uses.may_be_rejected, results))

    def _did_no_harm(self) -> bool:
        """Returns whether the tensor certainly did no harm. Such a tensor is no sign of a bug."""
        reader = BadTensorReader(self.logdir, run_id=self.run_id, kinds=KINDS)
        return reader.own_effect(self.event).expected_reason is not None

    def _line(self, stack_trace_id: int | None) -> str | None:
        """Returns the user's line of a stack, such as `train.py:9`; None if it is not known."""
        frame = user_source(self.flow.stacks.stack(stack_trace_id))
        return None if frame is None else short_place(frame)

    @cached_property
    def _forward_walk(self) -> _ForwardWalk:
        """The walk from the tensor, as far as the recording shows where the tensor goes."""
        walk = _ForwardWalk(self.flow, Sinks(self.logdir, self.flow, run_id=self.run_id, kinds=KINDS))
        with suppress(CannotTellError, OutOfSightError, UnrecordedEndError):
            walk.follow_event(self.flow.computed(self._first_use()))
            walk.is_complete = True
        return walk

    def _has_selects(self) -> bool:
        types = ", ".join(f"'{op_type}'" for op_type in SELECTS)
        rows = self.logdir.rows(
            f"SELECT 1 WHERE EXISTS (SELECT 1 FROM graph_op WHERE run_id = ? AND op_type IN ({types})) "
            f"OR EXISTS (SELECT 1 FROM execution WHERE run_id = ? AND op_type IN ({types}))",
            [self.run_id, self.run_id],
        )
        return bool(rows)

    def _first_use(self) -> TensorEvent:
        """Returns the bad tensor; for an array that feeds a data pipeline, the first bad element from the pipeline."""
        own = self.event
        if own.scope != "external":
            return own
        uses = () if own.tensor_id is None else self.flow.events.uses(own.tensor_id)
        if any("Dataset" not in use.execution.op_type for use in uses):
            return own
        of_components = read_events(
            self.logdir,
            f"event_index IN (SELECT min(event_index) FROM tensor_health WHERE run_id = ? AND {bad_condition(KINDS)} "
            f"AND op_type IN {_GETS_ELEMENT} AND event_index > ? GROUP BY graph_id, op_name, output_slot)",
            [self.run_id, self.run_id, own.event_index],
        )
        # The rows of two arrays may look alike. The recording does not show from which array some elements came.
        origins, indexes = Origins(self.flow, kinds=KINDS), {use.input_index for use in uses}
        roots = [(element, origins.roots([element], set())) for element in of_components]
        may_come = [element for element, of_element in roots if of_element == [element] or own in of_element]
        return min(may_come, key=lambda row: (row.output_slot not in indexes, row.event_index), default=own)

    def _bad_gradient_of_op(self) -> TensorEvent | None:
        """Returns the first bad tensor that the gradient of the op computed, in the same call or later."""
        own = self.event
        parameters: list[object] = [self.run_id]
        if own.scope == "graph":
            condition = (
                "scope = 'graph' AND (graph_id, op_name) IN (SELECT (graph_id, op_name) FROM graph_op "
                "WHERE run_id = ? AND forward_graph_id = ? AND forward_op_name = ?)"
            )
            parameters += [self.run_id, own.graph_id, own.op_name]
        else:
            condition = (
                "scope = 'execution' AND execution_index IN (SELECT execution_index FROM execution "
                "WHERE run_id = ? AND forward_execution_index = ?)"
            )
            parameters += [self.run_id, own.execution_index]
        gradients = read_events(
            self.logdir,
            f"{bad_condition(KINDS)} AND {condition} AND coalesce(execution_index, 0) >= ? "
            "ORDER BY execution_index, event_index LIMIT 1",
            [*parameters, own.execution_index or 0],
        )
        return gradients[0] if gradients else None


class _ForwardWalk(Walk):
    """A walk that does not follow a bad tensor into the gradient.

    Attributes:
        is_complete: Whether the recording shows where the tensor went.
        selects: The calls of `tf.where` that took a bad tensor and returned a finite tensor, as pairs: the index of the
            op or the execution, and the id of its stack trace.
        bad_gradients: The bad tensors of the gradient that were computed from bad tensors of the forward pass.
        products: The bad products of the forward pass.
        pools: The finite results that hold the lowest number where the input is NaN.
    """

    def __init__(self, flow: DataFlow, sinks: Sinks) -> None:
        super().__init__(flow, sinks)
        self.is_complete = False
        self.selects: list[tuple[int, int | None]] = []
        self.bad_gradients: list[TensorEvent] = []
        self.products: list[TensorEvent] = []
        self.pools: list[TensorEvent] = []

    def follow_event(self, event: TensorEvent) -> None:
        """Follows a bad tensor.

        Raises:
            CannotTellError: The recording does not show where the tensor goes.
            OutOfSightError: The tensor goes out of reach of the recording.
        """
        if event.scope != "graph" and event.tensor_id is not None:
            self.follow(WalkedTensor(None, "", event.tensor_id))
        elif event.graph_id is not None and event.op_name is not None and event.output_slot is not None:
            self.follow(WalkedTensor(self._frame(event.graph_id, event.context), event.op_name, event.output_slot))

    def _took(self, op: Op, place: GraphTensor) -> bool:
        """Returns True: an op of the program counts as a user of a tensor, even if TensorFlow ran other ops instead."""
        return True

    def _is_bad(self, tensor: WalkedTensor) -> bool:
        is_bad = super()._is_bad(tensor)
        if tensor.frame is None:
            made = self._flow.events.eager(tensor.slot)
            op_type, event = made.op_type, made.event
            execution = self._flow.events.execution(made.execution_index)
            made_by = None if execution is None else (execution.execution_index, execution.stack_trace_id)
            role = None if made.execution_index is None else self._labels.execution(made.execution_index).role
        else:
            op = self._flow.graphs.op(tensor.frame.graph_id, tensor.name)
            op_type = None if op is None else op.op_type
            made_by = None if op is None else (op.op_index, op.stack_trace_id)
            event = self._flow.events.graph_tensor(
                GraphTensor(tensor.frame.context, tensor.frame.graph_id, tensor.name, tensor.slot, 2**63 - 1)
            )
            role = self._labels.op(tensor.frame.graph_id, tensor.name).role
        if role == "gradient":
            self.bad_gradients += [event] if is_bad and event is not None else []
            return False
        self.selects += [made_by] if op_type in SELECTS and not is_bad and made_by is not None else []
        self.products += [event] if op_type == "Mul" and is_bad and event is not None else []
        if event is not None and op_type in POOLS and not is_bad:
            taken = next((row for index, _, row in self._flow.taken_by(event) if index == 0), None)
            self.pools += [event] if taken is not None and holds_extreme(event, taken) else []
        return is_bad


def _is_mask(row: TensorEvent, product: TensorEvent) -> bool:
    """Returns whether a factor has as many zeros as the product has NaN, and all its other elements are positive."""
    is_finite = row.has_inf_or_nan is False and row.num_neg_finite == 0 and bool(row.num_pos_finite)
    return is_finite and bool(row.num_zero) and row.num_zero == product.num_nan
