"""Makes graphs record: describes them, and passes their tensors to ExecutedGraphs or CompiledFunctions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfdbg_arrow.writer.graphs.compiled import CompiledFunctions
from tfdbg_arrow.writer.graphs.description import GraphDescriber, Reasons
from tfdbg_arrow.writer.graphs.executed import ExecutedGraphs
from tfdbg_arrow.writer.graphs.own_ops import TensorBatch
from tfdbg_arrow.writer.graphs.registry import GraphRegistry


class GraphInstrumenter:
    """Describes graphs and makes them record, for one recording.

    Args:
        registry: Assigns IDs and keys.
        describer: Turns graphs into rows, and keeps their states.
        is_remote: Returns True if the device with this name belongs to another process, where our ops have no kernels.
        judge: `(graph, batches)`: marks the tensors of a graph that stop the program if they are bad. None if nothing
            stops the program.
        executed: Records functions after TensorFlow's optimizer has changed them.
        compiled: Records functions that XLA compiles. None if such functions are not recorded inside XLA.
    """

    def __init__(
        self,
        registry: GraphRegistry,
        describer: GraphDescriber,
        *,
        is_remote: Callable[[str], bool],
        judge: Callable[[Any, list[TensorBatch]], list[TensorBatch]] | None,
        executed: ExecutedGraphs,
        compiled: CompiledFunctions | None,
    ) -> None:
        self._registry = registry
        self._describer = describer
        self._is_remote = is_remote
        self._judge = judge
        self._executed = executed
        self._compiled = compiled

    def prepare(
        self, function_name: str, graph: Any, *, unobserved_for: str | None = None, is_compiled: bool = False
    ) -> None:
        """Describes the new ops of a graph that becomes a function, and makes the graph record.

        Args:
            function_name: The name of the function.
            graph: The FuncGraph.
            unobserved_for: Why the graph is not recorded, as a `not_recorded_reason`. None if it is recorded.
            is_compiled: Whether XLA compiles the graph and the functions that it calls.
        """
        with self._describer.lock:
            state = self._describer.state(graph)
            self._registry.add_function(function_name, state.graph_id)
            self._describer.describe_graph(graph, state)
            batches = self._describer.describe_ops(graph, state, reasons=self._function_reasons(unobserved_for))
            self._describer.describe_signature(function_name, graph, state)
            state.num_described = len(graph.get_operations())
            if unobserved_for is not None:
                return
            if is_compiled and self._compiled is not None:
                self._compiled.add_tensors(state, batches if self._judge is None else self._judge(graph, batches))
            else:
                self._executed.prepare(function_name, graph, state, batches)

    def prepare_session_graph(self, graph: Any, reasons: Reasons) -> tuple[int, list[TensorBatch]]:
        """Describes the new ops of a graph that a session runs, and makes the graph record.

        Args:
            graph: The graph.
            reasons: Returns why a tensor of the graph is not recorded.

        Returns:
            The ID of the graph, and the new tensors to record.
        """
        with self._describer.lock:
            state = self._describer.state(graph)
            self._describer.describe_graph(graph, state)
            num_ops = len(graph.get_operations())
            batches: list[TensorBatch] = []
            if num_ops > state.num_described:
                batches = self._describer.describe_ops(graph, state, reasons=reasons)
                self._executed.add_session_graph(graph, state, batches)
            state.num_described = num_ops
            return state.graph_id, batches

    def _function_reasons(self, unobserved_for: str | None) -> Reasons:
        """Returns the reasons for a function's graph; `unobserved_for` is a reason for all of its tensors, or None."""

        def reason(op: Any, op_type: str, tensor: Any) -> str | None:
            return unobserved_for or ("remote" if self._is_remote(op.device) else None)

        return reason
