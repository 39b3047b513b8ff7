"""Gradients: the bad tensors that gradient ops created, and the bad tensors of their forward ops."""

from __future__ import annotations

from functools import cached_property

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.origins import Origins
from tfdbg_arrow.query.flow.program_ops import CHAIN
from tfdbg_arrow.query.recorded import TensorEvent, bad_condition, read_events
from tfdbg_arrow.query.stacks import GRADIENT_FUNCS

_MAX_OF_GRADIENT = 256
"""Maximum number of bad tensors that are read for one op or for its gradient."""


class Gradients:
    """Relates the bad tensors that gradient ops created to the bad tensors of their forward ops, within one run."""

    def __init__(self, logdir: Engine, flow: DataFlow, origins: Origins, *, run_id: str) -> None:
        self._logdir = logdir
        self._flow = flow
        self._labels = flow.labels
        self._origins = origins
        self._run_id = run_id

    def forward_of(self, root: TensorEvent) -> list[TensorEvent]:
        """Returns the bad tensors that a gradient's forward op made when the op last ran before the gradient.

        A run without roles does not show the forward op. In such a run, the result is the bad tensors that were
        computed earlier from an input of the gradient op.

        Args:
            root: A bad tensor that took its bad values from no input. If no gradient made this tensor, the result is
                empty.
        """
        label = self._labels.of(root)
        graph_id, op_name, index = label.forward_graph_id, label.forward_op_name, label.forward_execution_index
        if graph_id is not None and op_name is not None:
            recorded = self._bad_chains.get((graph_id, op_name), (graph_id, op_name))
            return self._bad_outputs("graph_id = ? AND op_name = ?", [*recorded], root)
        if index is not None:
            return self._bad_outputs("scope = 'execution' AND execution_index = ?", [index], root)
        return self._of_same_inputs(root) if not self._labels.has_roles and self.has_made(root) else []

    def has_made(self, event: TensorEvent) -> bool:
        """Returns whether TensorFlow's gradient code made or executed the op of a tensor."""
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
        """Returns the bad tensors that forward ops computed from an input of a gradient op."""
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

    def is_bad_of(self, event: TensorEvent) -> bool:
        """Returns whether the gradient of the eager op that made a tensor has a bad value."""
        return event.scope == "execution" and event.execution_index in self._forward_executions

    def created_by(self, event: TensorEvent) -> list[TensorEvent]:
        """Returns the bad tensors that the gradient of a bad tensor's op created.

        For each of these tensors, `forward_of` returns the given bad tensor.
        """
        if event.scope == "graph" and event.graph_id is not None and event.op_name is not None:
            own = (event.graph_id, event.op_name)
            forward_ops = [own, *(op for op, chain in self._bad_chains.items() if chain == own and op != own)]
            created = self._created_in_graphs(
                event, [op for name in forward_ops for op in self._gradient_ops.get(name, ())]
            )
        elif self.is_bad_of(event):
            created = self._read(
                "scope = 'execution' AND execution_index IN "
                "(SELECT execution_index FROM execution WHERE run_id = ? AND forward_execution_index = ?)",
                [self._run_id, event.execution_index],
            )
        else:
            return []
        return [row for row in created if self._origins.is_root(row)]

    def _created_in_graphs(self, event: TensorEvent, ops: list[tuple[int, str]]) -> list[TensorEvent]:
        """Returns the bad tensors of gradient ops from the call of their forward op until the forward op ran again."""
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
        """The gradient ops that returned bad tensors, by the graph and the name of their forward op."""
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
    def _bad_chains(self) -> dict[tuple[int, str], tuple[int, str]]:
        """The node (graph, name) that ran an op in a chain of elementwise functions, by the graph and name of the op.

        Only chains that returned bad tensors are included.
        """
        first_rows = (
            "SELECT min(event_index) FROM tensor_health WHERE run_id = ? AND has_inf_or_nan AND scope = 'graph' "
            "AND op_type = ? AND graph_id IS NOT NULL GROUP BY graph_id, op_name, call_site"
        )
        rows = read_events(
            self._logdir, f"event_index IN ({first_rows}) ORDER BY event_index", [self._run_id, self._run_id, CHAIN]
        )
        return {
            (at.graph_id, op.op_name): (row.graph_id, row.op_name)
            for row in rows
            if row.graph_tensor is not None and row.graph_id is not None and row.op_name is not None
            for at, op in self._flow.borders.computed_ops(row.graph_tensor)
        }

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
        """Returns the bad tensors of an op from the last call in which it ran, up to the call of `root`."""
        rows = self._logdir.rows(
            f"SELECT execution_index FROM tensor_health WHERE run_id = ? AND {condition} AND execution_index <= ? "
            "ORDER BY execution_index DESC LIMIT 1",
            [self._run_id, *parameters, 2**62 if root.execution_index is None else root.execution_index],
        )
        if rows:
            return self._read(f"{condition} AND execution_index = ?", [*parameters, rows[0][0]])
        # Outside of executions, a function runs in a step of its own. Steps after the step of the root do not count.
        return self._read(
            f"{condition} AND execution_index IS NULL AND (step_id = ? OR event_index < ?)",
            [*parameters, root.step_id, root.event_index],
        )

    def _read(self, condition: str, parameters: list[object]) -> list[TensorEvent]:
        kinds = bad_condition(self._origins.kinds)
        return read_events(
            self._logdir,
            f"{kinds} AND {condition} ORDER BY event_index LIMIT {_MAX_OF_GRADIENT}",
            [self._run_id, *parameters],
        )
