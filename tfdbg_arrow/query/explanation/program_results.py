"""The program's ops, their inputs and their users, for graphs and for eager code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.search import breadth_first
from tfdbg_arrow.query.recorded import TensorEvent
from tfdbg_arrow.schema.op_traits import POLES

_DIVIDES = {op_type: index for op_type, index in POLES.items() if op_type not in ("Pow", "SqrtGrad")}
"""Types of ops whose result is infinite where an input is 0, and the index of that input."""
_KEEPS_ZEROS = frozenset({
    "Abs", "Cast", "ExpandDims", "GatherV2", "Identity", "Minimum", "Mul", "Neg", "Reshape", "Sqrt", "Square",
    "Squeeze", "StridedSlice", "Transpose",
})  # fmt: skip
"""Types of ops whose result is 0 where an input is 0. For Minimum, this holds only if the other input is not
negative."""
_MAX_RESULTS = 20
"""Of the results computed from a tensor, at most this many are examined."""
Result = tuple[int, str, int] | int
"""A result of an op in a graph (graph, name of the op, output), or an eager tensor."""


@dataclass(frozen=True)
class Made:
    """An op of the forward pass: its type, its inputs, and its first result."""

    op_type: str | None
    taken: tuple[Result, ...]
    result: Result


@dataclass(frozen=True)
class ProgramResults:
    """The results of the program's ops.

    Attributes:
        logdir: The logdir.
        flow: The run's data flow. The caller must hold the lock of the data flow.
        run_id: The run.
    """

    logdir: Engine
    flow: DataFlow
    run_id: str

    def forward_result(self, event: TensorEvent, own: str | int) -> Result | None:
        """Returns the result of an op; for an op of a gradient, the result of its forward op.

        Args:
            event: A row of the op.
            own: The name of the program's op that the row stands for, if the op is in a graph.
        """
        label = self.flow.labels.of(event)
        if event.scope == "graph":
            is_forward = label.forward_op_name is None
            graph_id = event.graph_id if is_forward else label.forward_graph_id
            return None if graph_id is None else (graph_id, str(own if is_forward else label.forward_op_name), 0)
        index = event.execution_index if label.forward_execution_index is None else label.forward_execution_index
        outputs = {} if index is None else self.flow.events.execution_outputs(index)
        return next((tensor_id for tensor_id, _ in outputs.values()), None) if len(outputs) == 1 else None

    def is_p_log_p(self, log: Result) -> bool:
        """Returns whether the program uses a logarithm only to multiply it by its argument."""
        made, users = self._made(log), self._users(log)
        factors = {log, *made.taken}
        is_product = all(user.op_type == "Mul" and {*user.taken} == factors for user in users)
        return made.op_type == "Log" and bool(users) and is_product

    def has_log_of_complement(self, log: Result) -> bool:
        """Returns whether the program computes log(x) and log(1 - x), and a result is one of the two logarithms."""
        made = self._made(log)
        if made.op_type != "Log" or len(made.taken) != 1:
            return False
        (x,) = made.taken
        others = [user.result for user in self._users(x) if self._complement_of(user.result) == x]
        others += [y for y in [self._complement_of(x)] if y is not None]
        return any(user.op_type == "Log" for other in others for user in self._users(other))

    def divides_by_argument(self, log: Result) -> bool:
        """Returns whether the program also divides by the argument of a logarithm."""
        made = self._made(log)
        if made.op_type != "Log" or len(made.taken) != 1:
            return False
        return any(
            _DIVIDES.get(user.op_type or "") == 1 and user.taken[1:2] == made.taken
            for user in self._users(made.taken[0])
        )

    def _complement_of(self, result: Result) -> Result | None:
        """Returns x if a result is 1 - x; otherwise None."""
        made = self._made(result)
        is_difference = made.op_type == "Sub" and len(made.taken) == 2
        return made.taken[1] if is_difference and self._is_one(made.taken[0]) else None

    def is_divided_by(self, result: Result) -> bool:
        """Returns whether the program divides by a result, or takes its logarithm, perhaps after other ops."""

        def with_same_zeros(taken: Result) -> Iterator[Result]:
            return (user.result for user in self._users(taken) if user.op_type in _KEEPS_ZEROS)

        results = breadth_first([result], with_same_zeros, limit=_MAX_RESULTS)
        users = ((taken, user) for taken in results for user in self._users(taken))
        divisors = ((taken, user.taken, _DIVIDES.get(user.op_type or "")) for taken, user in users)
        return any(index is not None and taken in inputs[index : index + 1] for taken, inputs, index in divisors)

    def is_summed_for_division(self, quotient: Result) -> bool:
        """Returns whether the program divides by the sum of a quotient and other quotients."""
        sums = [user for user in self._users(quotient) if user.op_type in ("Add", "AddV2")]
        return any(
            all(self._made(term).op_type == "RealDiv" for term in total.taken) and self.is_divided_by(total.result)
            for total in sums
        )

    def _made(self, result: Result) -> Made:
        """Returns the op that made a result; an op without a type if the op is not known."""
        if isinstance(result, tuple):
            graph_id, name, _ = result
            op = self.flow.graphs.op(graph_id, name)
            taken = () if op is None else tuple((graph_id, *edge) for edge in op.inputs)
            return Made(None if op is None else op.op_type, taken, result)
        eager = self.flow.events.eager(result)
        inputs = {} if eager.execution_index is None else self.flow.events.execution_inputs(eager.execution_index)
        return Made(eager.op_type, tuple(inputs.values()), result)

    def _users(self, result: Result) -> list[Made]:
        """Returns the ops of the forward pass that take a result."""
        if isinstance(result, tuple):
            graph_id, name, _ = result
            names = self.flow.graphs.graph(graph_id).users.get(name, ())
            forward = (user for user in names if self.flow.labels.op(graph_id, user).role != "gradient")
            users = (self._made((graph_id, user, 0)) for user in forward)
            return [user for user in users if result in user.taken]
        executions = {use.execution.execution_index for use in self.flow.events.uses(result)}
        return [
            self._made(tensor_id)
            for index in sorted(executions)
            if self.flow.labels.execution(index).role != "gradient"
            for tensor_id, _ in self.flow.events.execution_outputs(index).values()
        ]

    def _is_one(self, result: Result) -> bool:
        """Returns whether a result is the number 1 wherever it was recorded."""
        where, key = (
            ("tensor_id = ?", (result,))
            if isinstance(result, int)
            else ("graph_id = ? AND op_name = ? AND output_slot = ?", result)
        )
        rows = self.logdir.rows(
            f"SELECT DISTINCT scalar_value FROM tensor_health WHERE run_id = ? AND {where}", [self.run_id, *key]
        )
        return rows == [(1.0,)]
