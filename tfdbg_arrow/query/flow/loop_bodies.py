"""LoopBodies: the bodies of loops such as `for batch in dataset` in a tf.function. A data set runs these bodies."""

from __future__ import annotations

import itertools
from functools import cached_property, lru_cache
from typing import NamedTuple

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.graphs import GraphReader
from tfdbg_arrow.query.recorded import GraphTensor, TensorEvent
from tfdbg_arrow.safe_text import parse_json


class LoopBody(NamedTuple):
    """A body of a loop over a data set.

    Attributes:
        outer_graph_id: The graph with the loop.
        op_name: The op of the outer graph that makes a data set. This data set runs the body. The first input of the op
            is the data set of the loop.
        function_name: The function of the body.
        num_states: Number of arguments that hold the state of the loop. The components of the element follow these
            arguments.
    """

    outer_graph_id: int
    op_name: str
    function_name: str
    num_states: int


class LoopRun(NamedTuple):
    """The iterations of one run of a loop, from the first iteration up to a given iteration.

    Attributes:
        execution_index: The execution that ran the loop.
        first_event: The event_index of the first event of these iterations.
        num_iterations: Number of the iterations.
    """

    execution_index: int
    first_event: int
    num_iterations: int


class _Iteration(NamedTuple):
    """An iteration of a loop: its step, and its first and last event in the body."""

    step_id: int
    first: int
    last: int


class LoopBodies:
    """Finds the bodies of the loops over data sets in one run."""

    def __init__(self, logdir: Engine, graphs: GraphReader, *, run_id: str) -> None:
        self._logdir = logdir
        self._graphs = graphs
        self._run_id = run_id
        self._iterations = lru_cache(maxsize=16)(self._read_iterations)
        self._iterations_before = lru_cache(maxsize=16)(self._read_iterations_before)

    def components(self, graph_id: int | None) -> dict[str, int]:
        """Returns the arguments of a loop's body that are components of the element, with the component numbers.

        The keys are names of ops. The result is empty if the graph is not the body of such a loop.
        """
        body = None if graph_id is None else self.by_graph.get(graph_id)
        if graph_id is None or body is None:
            return {}
        components: dict[str, int] = {}
        index = body.num_states
        while (name := self._graphs.placeholder(body.function_name, index)) is not None:
            argument = self._graphs.argument(graph_id, name, function_name=body.function_name)
            if argument is None or argument.is_capture:
                break
            components[name] = index - body.num_states
            index += 1
        return components

    def is_component(self, tensor: GraphTensor | None) -> bool:
        """Returns whether a tensor is a component of the element in the body of a loop."""
        return tensor is not None and tensor.op_name in self.components(tensor.graph_id)

    def of_reduce(self, graph_id: int, op_name: str | None) -> list[int]:
        """Returns the graph of a loop's body if a ReduceDataset returns the loop's state; otherwise an empty list."""
        op = None if op_name is None else self._graphs.op(graph_id, op_name)
        source = None if op is None or not op.inputs else self._graphs.op(graph_id, op.inputs[0][0])
        if source is not None and source.op_type == "TakeWhileDataset" and source.inputs:  # a loop with `break`
            source = self._graphs.op(graph_id, source.inputs[0][0])
        return [
            body_id
            for body_id, body in self.by_graph.items()
            if source is not None and (body.outer_graph_id, body.op_name) == (graph_id, source.op_name)
        ]

    def previous_iteration(self, graph_id: int, step_id: int) -> int | None:
        """Returns the step of the previous iteration, given the step of an iteration.

        The result is None if there is no previous iteration, if the two iterations overlap, or if an execution started
        between the two iterations.

        Args:
            graph_id: The body of the loop.
            step_id: The step. Each iteration runs in a step of its own.
        """
        before = self._iterations_before(graph_id).get(step_id)
        if before is None:
            return None
        previous, last, first = before
        between = self._logdir.rows(
            "SELECT 1 FROM execution WHERE run_id = ? AND event_index > ? AND event_index < ? LIMIT 1",
            [self._run_id, last, first],
        )
        return previous if last < first and not between else None

    def run_until(self, graph_id: int, step_id: int) -> LoopRun | None:
        """Returns the iterations from the start of a loop to a given one.

        The result is None if iterations overlap, or if the execution that ran the loop is not known.

        Args:
            graph_id: The body of the loop.
            step_id: The step of the given iteration.
        """
        iterations = self._iterations(graph_id)
        index = next((index for index, iteration in enumerate(iterations) if iteration.step_id == step_id), None)
        if index is None:
            return None
        # The loop runs within one execution: the last one that started before the iteration.
        executions = self._logdir.rows(
            "SELECT execution_index, event_index FROM execution WHERE run_id = ? AND event_index < ? "
            "ORDER BY event_index DESC LIMIT 1",
            [self._run_id, iterations[index].first],
        )
        if not executions:
            return None
        ((execution_index, started),) = executions
        own = [iteration for iteration in iterations[: index + 1] if iteration.first > started]
        is_in_order = all(before.last < after.first for before, after in itertools.pairwise(own))
        return LoopRun(execution_index, own[0].first, len(own)) if is_in_order else None

    def run_of(self, event: TensorEvent) -> LoopRun | None:
        """Returns the iterations up to the one that computed a tensor, or None for a tensor outside of such loops."""
        if event.scope != "graph" or event.execution_index is not None or event.step_id is None:
            return None
        bodies = [body for body in self.by_graph if event.graph_id in self._graphs.parts(body)]
        return self.run_until(bodies[0], event.step_id) if len(bodies) == 1 else None

    def _read_iterations_before(self, graph_id: int) -> dict[int, tuple[int, int, int]]:
        """Returns, for each iteration of a loop, the previous iteration. The keys are the steps of the iterations.

        Each value is: the step of the previous iteration, the last event of the previous iteration, and the first event
        of the iteration.
        """
        return {
            after.step_id: (before.step_id, before.last, after.first)
            for before, after in itertools.pairwise(self._iterations(graph_id))
        }

    def _read_iterations(self, graph_id: int) -> list[_Iteration]:
        rows = self._logdir.rows(
            "SELECT step_id, min(event_index), max(event_index) FROM tensor_health WHERE run_id = ? AND graph_id = ? "
            "AND execution_index IS NULL AND step_id IS NOT NULL GROUP BY step_id ORDER BY min(event_index)",
            [self._run_id, graph_id],
        )
        return [_Iteration(*row) for row in rows]

    @cached_property
    def by_graph(self) -> dict[int, LoopBody]:
        """The bodies, by their graph."""
        # Only a loop runs a ScanDataset on the devices of the program.
        rows = self._logdir.rows(
            "SELECT graph_id, op_name, attributes FROM graph_op WHERE run_id = ? AND op_type = 'ScanDataset' "
            "AND contains(attributes, '\"use_default_device\":false') ORDER BY graph_id, op_index",
            [self._run_id],
        )
        bodies: dict[int, LoopBody] = {}
        for outer_graph_id, op_name, text in rows:
            attributes = parse_json(text)
            values = attributes if isinstance(attributes, dict) else {}
            function_name, states = values.get("f"), values.get("Tstate")
            if isinstance(function_name, str) and isinstance(states, list):
                graph_id = self._graphs.function_graphs.get(function_name)
                if graph_id is not None:
                    bodies[graph_id] = LoopBody(outer_graph_id, op_name, function_name, len(states))
        return bodies
