"""Uses: what the program does with a bad tensor, and with the argument of its op."""

from __future__ import annotations

from functools import cached_property

from tfdbg_arrow.query.explanation.facts import BadTensorFacts
from tfdbg_arrow.query.explanation.kinds import ADDS, PLUS_CONSTANT
from tfdbg_arrow.query.explanation.program_results import ProgramResults
from tfdbg_arrow.query.recorded import TensorEvent

_NORM_STEPS = frozenset({
    "AddN", "AddV2", "Cast", "ConcatV2", "ExpandDims", "Identity", "Mul", "Pack", "Reshape", "Select", "SelectV2",
    "Square", "Squeeze", "Sum",
})  # fmt: skip
"""Types of ops between the squares of a norm and its root."""
_MAX_NORM_OPS = 200
"""Maximum number of ops in the search for the root. Bounds the time if a tensor has very many users."""


class Uses(BadTensorFacts):
    """The facts about the ops that take a bad tensor."""

    def takers(self) -> frozenset[tuple[str, ...]]:
        """Returns the types of the forward ops that take the tensor.

        Each type is returned alone, such as `(Sum,)`, and with the type of each op that takes the result, such as
        `(Sum, Log)`. An op that adds a constant has the type PLUS_CONSTANT.
        """
        types: set[tuple[str, ...]] = set()
        own_key = self.own_key()
        if isinstance(own_key, str) and self._type_of(self.event.graph_id, own_key) != self.event.op_type:
            maker = self.flow.program_ops.maker(self.event)
            if maker is None or maker.place.graph_id != self.event.graph_id:
                return frozenset()
            own_key = maker.op.op_name  # TensorFlow fused several ops, and named the node after another op
        for key, op_type in self._forward_users(own_key):
            own = PLUS_CONSTANT if op_type in ADDS and self._adds_constant(key) else op_type
            types |= {(own,), *((own, after) for _, after in self._forward_users(key))}
        return frozenset(types)

    def _forward_users(self, key: str | int) -> list[tuple[str | int, str]]:
        return [(user, op_type) for user, op_type in self._users(key) if self._role(user) != "gradient"]

    def _role(self, key: str | int) -> str | None:
        if isinstance(key, str):
            return self.flow.labels.op(self.event.graph_id or 0, key).role
        index = self.flow.events.eager(key).execution_index
        return None if index is None else self.flow.labels.execution(index).role

    def _adds_constant(self, key: str | int) -> bool:
        """Returns whether an op adds a constant. In eager code, any tensor that no op made counts as a constant."""
        if isinstance(key, str):
            ops = self.flow.graphs.graph(self.event.graph_id or 0).ops
            return any(ops[name].op_type == "Const" for name, _ in ops[key].inputs)
        index = self.flow.events.eager(key).execution_index
        taken = () if index is None else self.flow.events.execution_inputs(index).values()
        return any(self.flow.events.eager(tensor_id).execution_index is None for tensor_id in taken)

    def is_p_log_p(self) -> bool:
        """Returns whether the op is a logarithm that the program uses only to multiply it by its argument.

        For an op of a gradient, the forward op counts.
        """
        log = self._results.forward_result(self.event, self.own_key())
        return log is not None and self._results.is_p_log_p(log)

    def has_log_of_complement(self) -> bool:
        """Returns whether the program computes log(x) and log(1 - x), and the op is one of the two logarithms.

        For an op of a gradient, the forward op counts.
        """
        log = self._results.forward_result(self.event, self.own_key())
        return log is not None and self._results.has_log_of_complement(log)

    def divides_by_argument(self) -> bool:
        """Returns whether the op is a logarithm and the program also divides by its argument.

        For an op of a gradient, the forward op counts.
        """
        log = self._results.forward_result(self.event, self.own_key())
        return log is not None and self._results.divides_by_argument(log)

    def divides_by_result(self) -> bool:
        """Returns whether the program divides by the tensor, or takes its logarithm.

        Ops that return 0 where the tensor is 0 may come before the division or the logarithm.
        """
        maker = self.flow.program_ops.maker(self.event)
        result = self._results.forward_result(self.event, self.own_key() if maker is None else maker.op.op_name)
        return result is not None and self._results.is_divided_by(result)

    def is_summed_for_division(self) -> bool:
        """Returns whether the tensor is a quotient, and the program divides by its sum with other quotients."""
        maker = self.flow.program_ops.maker(self.event)
        result = self._results.forward_result(self.event, self.own_key() if maker is None else maker.op.op_name)
        return result is not None and self._results.is_summed_for_division(result)

    @cached_property
    def _results(self) -> ProgramResults:
        return ProgramResults(self.logdir, self.flow, self.run_id)

    def is_norm_of_gradient(self) -> bool:
        """Returns whether the op computes the squares of a gradient, or their sum, for the norm of the gradient."""
        op_type = self.event.op_type
        inputs = [*self.inputs_of(self.event).values()]
        if op_type == "Sum":
            inputs = [row for square in inputs if square.op_type == "Square" for row in self.inputs_of(square).values()]
        is_square = op_type in ("Sum", "Square", "L2Loss") or (
            op_type == "Mul" and len(inputs) == 2 and inputs[0].event_index == inputs[1].event_index
        )
        is_norm = is_square and any(self.is_of_gradient(row) for row in inputs) and self._has_root_behind_sum()
        return is_norm and not self.is_differentiated(self.event)  # otherwise the norm is a penalty in the loss

    def _has_root_behind_sum(self) -> bool:
        """Returns whether the program takes the root of a sum of the tensor's elements."""
        start = self.event.op_type in ("Sum", "L2Loss")
        seen: set[tuple[str | int, bool]] = set()
        to_follow = [(user, start) for user in self._users(self.own_key())]
        while to_follow and len(seen) < _MAX_NORM_OPS:
            (key, op_type), is_summed = to_follow.pop()
            if op_type == "Sqrt" and is_summed:
                return True
            is_summed = is_summed or op_type == "Sum"
            if op_type in _NORM_STEPS and (key, is_summed) not in seen:
                seen.add((key, is_summed))
                to_follow += [(user, is_summed) for user in self._users(key)]
        return False

    def is_differentiated(self, row: TensorEvent) -> bool:
        """Returns whether the program differentiates the op of a tensor. The op may itself belong to a gradient."""
        if row.scope == "graph":
            rows = self.logdir.rows(
                "SELECT 1 FROM graph_op WHERE run_id = ? AND forward_graph_id = ? AND forward_op_name = ? LIMIT 1",
                [self.run_id, row.graph_id, self.key_of(row)],
            )
        else:
            rows = self.logdir.rows(
                "SELECT 1 FROM execution WHERE run_id = ? AND forward_execution_index = ? LIMIT 1",
                [self.run_id, row.execution_index],
            )
        return bool(rows)

    def _users(self, key: str | int) -> list[tuple[str | int, str]]:
        """Returns (key, op type) of the ops of the program that take the result of an op, or an eager tensor."""
        if isinstance(key, str):
            graph = self.flow.graphs.graph(self.event.graph_id or 0)
            return [(name, graph.ops[name].op_type) for name in graph.users.get(key, ())]
        return [
            (tensor_id, use.execution.op_type)
            for use in self.flow.events.uses(key)
            for tensor_id, _ in self.flow.events.execution_outputs(use.execution.execution_index).values()
        ]
