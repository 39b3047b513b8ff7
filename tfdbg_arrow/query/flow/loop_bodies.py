"""LoopBodies: the bodies of the loops `for batch in dataset` in tf.functions, which TensorFlow runs in a data set."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.graphs import GraphReader
from tfdbg_arrow.query.recorded import GraphTensor
from tfdbg_arrow.safe_text import parse_json


class LoopBody(NamedTuple):
    """A body of a loop over a data set.

    Attributes:
        outer_graph_id: The graph with the loop.
        op_name: The op of this graph that makes a data set that runs the body. Its first input is the looped data set.
        function_name: The function of the body.
        num_states: Number of arguments that hold the state of the loop. The components of the element follow them.
    """

    outer_graph_id: int
    op_name: str
    function_name: str
    num_states: int


class LoopBodies:
    """Finds the bodies of the loops over data sets in one run."""

    def __init__(self, logdir: Engine, graphs: GraphReader, *, run_id: str) -> None:
        self._logdir = logdir
        self._graphs = graphs
        self._run_id = run_id

    def components(self, graph_id: int | None) -> dict[str, int]:
        """Returns the arguments of a body that are components of the element, with the number of the component.

        The keys are names of ops. The result is empty for a graph that is no body of such a loop.
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
        """Returns the graph of the body of the loop whose state a ReduceDataset returns; empty if it is no loop's."""
        op = None if op_name is None else self._graphs.op(graph_id, op_name)
        source = None if op is None or not op.inputs else self._graphs.op(graph_id, op.inputs[0][0])
        if source is not None and source.op_type == "TakeWhileDataset" and source.inputs:  # a loop with `break`
            source = self._graphs.op(graph_id, source.inputs[0][0])
        return [
            body_id
            for body_id, body in self.by_graph.items()
            if source is not None and (body.outer_graph_id, body.op_name) == (graph_id, source.op_name)
        ]

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
