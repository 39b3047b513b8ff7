"""Training: what the training had done before a tensor went bad."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, takewhile

from tfdbg_arrow.query.explanation.facts import MAX_BEHIND, BadTensorFacts
from tfdbg_arrow.query.flow.search import rows_behind
from tfdbg_arrow.query.recorded import TensorEvent
from tfdbg_arrow.schema.op_traits import READER


class Training(BadTensorFacts):
    """The facts about the steps and iterations before a bad tensor."""

    def is_before_training(self) -> bool:
        """Returns whether the tensor was computed in the first call of its function, before any training step in it."""
        execution = self.flow.events.execution(self.event.execution_index)
        if self.event.scope != "graph" or execution is None:
            return False
        earlier_calls = self.logdir.rows(
            "SELECT 1 FROM execution WHERE run_id = ? AND op_type = ? AND execution_index < ? LIMIT 1",
            [self.run_id, execution.op_type, execution.execution_index],
        )
        if earlier_calls or self._takes_updated_weights():
            return False
        return not self.event.loop_iteration or not self.is_after_gradient()

    def is_after_gradient(self) -> bool:
        """Returns whether an earlier call of the function, or an earlier iteration of a loop, computed a gradient."""
        execution = self.flow.events.execution(self.event.execution_index)
        if execution is None:
            return False
        # Gradient ops that take no result of the forward pass can run at any time within an iteration, so the gradients
        # of the same iteration do not count.
        gradients = self.logdir.rows(
            "SELECT 1 FROM tensor_health AS h JOIN graph_op AS o "
            "ON o.run_id = h.run_id AND o.graph_id = h.graph_id AND o.op_name = h.op_name "
            "JOIN execution AS e ON e.run_id = h.run_id AND e.execution_index = h.execution_index "
            "WHERE h.run_id = ? AND e.op_type = ? AND h.event_index < ? AND o.role = 'gradient' "
            "AND (h.execution_index < ? OR (h.frame_id != 0 AND (h.frame_id != ? OR h.iteration < ?))) LIMIT 1",
            [
                *(self.run_id, execution.op_type, self.event.event_index),
                *(execution.execution_index, self.event.frame_id, self.event.iteration),
            ],
        )
        return bool(gradients)

    def first_loss(self) -> float | None:
        """Returns the first recorded loss of the function, in any of its traces; None if the function has no gradient.

        The result is the last scalar that the loss computes. Without such a scalar, the result is the last scalar with
        a gradient in the forward pass. If every call was recorded, no update had changed the weights before this loss.
        """
        execution = self.flow.events.execution(self.event.execution_index)
        if self.event.scope != "graph" or execution is None or execution.graph_id is None:
            return None
        rows = self.logdir.rows(
            "WITH loss AS (SELECT o.* FROM graph_op AS o SEMI JOIN graph_op AS g ON g.run_id = o.run_id AND "
            "g.forward_graph_id = o.graph_id AND g.forward_op_name = o.op_name WHERE o.run_id = ? AND o.role IN "
            "('forward', 'loss') AND o.op_type NOT IN ('Cast', 'Const', 'ReadVariableOp')) "
            "SELECT h.scalar_value FROM tensor_health AS h "
            "JOIN loss AS o ON o.run_id = h.run_id AND o.graph_id = h.graph_id AND o.op_name = h.op_name "
            "JOIN execution AS e ON e.run_id = h.run_id AND e.execution_index = h.execution_index "
            "JOIN graph AS f ON f.run_id = e.run_id AND f.graph_id = e.graph_id "
            "WHERE h.run_id = ? AND f.graph_name = ? AND h.event_index < ? AND h.scalar_value IS NOT NULL "
            "ORDER BY h.execution_index, o.role DESC, h.iteration, o.op_index DESC LIMIT 1",
            [self.run_id, self.run_id, self.flow.graphs.names.get(execution.graph_id), self.event.event_index],
        )
        return rows[0][0] if rows else None

    def _takes_updated_weights(self) -> bool:
        """Returns whether the tensor was computed from an update, such as w - rate * gradient, in the same call.

        Unrolled inner steps of a training make such updates before the first call ends.
        """

        def taken_in_call(row: TensorEvent) -> Iterator[TensorEvent]:
            call = self.event.execution_index
            return (source for source in self.inputs_of(row).values() if source.execution_index == call)

        return any(map(self._is_update, rows_behind([self.event], taken_in_call, limit=MAX_BEHIND)))

    def _is_update(self, row: TensorEvent) -> bool:
        inputs = self.inputs_of(row)
        if self.made_by(row) != "Sub" or not inputs.keys() >= {0, 1} or self.made_by(inputs[0]) == "Const":
            return False
        return self.is_of_gradient(inputs[1])

    def magnitudes_before(self) -> list[float | None]:
        """Returns the tensor's largest magnitude in each iteration of its loop before its first bad value.

        None stands for a magnitude that was not recorded. The list is empty if the tensor was not computed from its
        value in an earlier iteration.
        """
        iteration = self.event.loop_iteration
        if not iteration or not self._takes_earlier_iteration():
            return []
        rows = self.logdir.rows(
            "SELECT has_inf_or_nan, coalesce(max_abs_finite, abs(scalar_value)) FROM tensor_health "
            "WHERE run_id = ? AND execution_index = ? AND frame_id = ? AND call_site = ? AND graph_id = ? "
            "AND op_name = ? AND output_slot = ? AND iteration < ? ORDER BY iteration",
            [
                *(self.run_id, self.event.execution_index, self.event.frame_id, self.event.call_site),
                *(self.event.graph_id, self.event.op_name, self.event.output_slot, self.event.iteration),
            ],
        )
        if not rows and self.flow.records_all:
            # In a function that XLA compiled, the first iteration with a bad value is the first recorded one.
            return [None] * iteration
        return [magnitude for _, magnitude in takewhile(lambda row: not row[0], rows)]

    def _takes_earlier_iteration(self) -> bool:
        """Returns whether the tensor was computed from the same output of its op in an earlier iteration."""
        own = self.event

        # A value read from a variable depends on the loop only through writes, such as the updates of a training.
        def taken_in_loop(row: TensorEvent) -> list[TensorEvent]:
            taken = self.inputs_of(row).values()
            return [source for source in taken if source.frame_id == own.frame_id and source.op_type != READER]

        return any(
            (row.graph_id, row.op_name, row.output_slot) == (own.graph_id, own.op_name, own.output_slot)
            or self._is_state_computed_from_own(row)
            for row in islice(rows_behind([own], taken_in_loop, limit=MAX_BEHIND), 1, None)
        )

    def _is_state_computed_from_own(self, row: TensorEvent) -> bool:
        """Returns whether a tensor is an argument of the loop's body, and the bad tensor led to its next value.

        This check is needed if the earlier iterations were not recorded.
        """
        place, graphs = row.graph_tensor, self.flow.graphs
        argument = None if place is None else graphs.argument(place.graph_id, place.op_name, function_name=None)
        if place is None or argument is None or argument.is_capture:
            return False

        def taken_in_iteration(taker: TensorEvent) -> Iterator[TensorEvent]:
            taken = self.inputs_of(taker).values()
            return (source for source in taken if source.iteration == row.iteration)

        results = graphs.results_at(place.graph_id, argument.input_index)
        next_values = [self.flow.events.graph_tensor(place.of_op(*result)) for result in results]
        behind = rows_behind(filter(None, next_values), taken_in_iteration, limit=MAX_BEHIND)
        return any(source.event_index == self.event.event_index for source in behind)

    def has_gradients(self) -> bool:
        """Returns whether the run has ops of gradients; True if the recording does not show the roles of ops."""
        rows = self.logdir.rows(
            "SELECT 1 FROM graph_op WHERE run_id = ? AND role = 'gradient' UNION ALL "
            "SELECT 1 FROM execution WHERE run_id = ? AND role = 'gradient' LIMIT 1",
            [self.run_id, self.run_id],
        )
        return bool(rows) or not self.flow.labels.has_roles
