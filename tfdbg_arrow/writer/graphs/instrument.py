"""Makes graphs record: they get record ops for their tensors.

The record ops are added in one go, just before TensorFlow makes a runtime function of a graph, and are
control outputs of it: so every op that was traced runs and is recorded, arguments' Placeholders and
outermost backward graphs included, and the user's own tracing code never sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from tfdbg_arrow.writer.graphs.compiled import CompiledFunctions
from tfdbg_arrow.writer.graphs.description import GraphDescriber, Reasons
from tfdbg_arrow.writer.graphs.executed import ExecutedGraphs
from tfdbg_arrow.writer.graphs.failing_ops import StageFinder, has_checks, without_idle_checks
from tfdbg_arrow.writer.graphs.own_ops import HoldForRecordOps, RecordOps, SingleRecordOps, TensorBatch
from tfdbg_arrow.writer.graphs.registry import CallKey, GraphRegistry, GraphState
from tfdbg_arrow.writer.graphs.sums import SumFinder


class GraphInstrumenter:
    """Describes graphs and adds record ops to them, for one recording.

    Args:
        registry: Gives out ids and keys.
        describer: Turns graphs into rows, and knows their states.
        record_ops: How tensors are recorded.
        single_record_ops: How a tensor is recorded by an op of its own.
        is_pruned: Whether only those ops of a function's graph run that its results need.
        make_run: `(graph, ops)`: makes TensorFlow run ops of a graph whose outputs nobody uses.
        hold_loop_variables: The ops that give what an iteration of a loop, by its body's graph, computes for the next.
        hold: Makes an op wait for the record ops of tensors.
        is_remote: Whether a device, by name, is another process's, where our ops have no kernels.
        is_pipeline: Whether what the calling thread traces is a function of a tf.data pipeline.
        judge: `(graph, batches)`: says of the tensors of a graph which stop the program if they are bad; None: none.
        executed: Records functions as TensorFlow's optimizer leaves them; None: they are recorded as they are traced.
        compiled: Records functions that XLA compiles; None: nothing does.
    """

    def __init__(
        self,
        registry: GraphRegistry,
        describer: GraphDescriber,
        *,
        record_ops: RecordOps,
        single_record_ops: SingleRecordOps,
        is_pruned: Callable[[Any], bool],
        make_run: Callable[[Any, Sequence[Any]], None],
        hold_loop_variables: Callable[[Any], Sequence[Any]],
        hold: HoldForRecordOps,
        is_remote: Callable[[str], bool],
        is_pipeline: Callable[[], bool],
        judge: Callable[[Any, list[TensorBatch]], list[TensorBatch]] | None,
        executed: ExecutedGraphs | None = None,
        compiled: CompiledFunctions | None = None,
    ) -> None:
        self._registry = registry
        self._describer = describer
        self._record_ops = record_ops
        self._single_record_ops = single_record_ops
        self._is_pruned = is_pruned
        self._make_run = make_run
        self._hold_loop_variables = hold_loop_variables
        self._hold = hold
        self._sums = SumFinder()
        self._stages = StageFinder()
        self._is_remote = is_remote
        self._is_pipeline = is_pipeline
        self._judge = judge
        self._executed = executed
        self._compiled = compiled

    def prepare(
        self, function_name: str, graph: Any, *, unobserved_for: str | None = None, is_compiled: bool = False
    ) -> None:
        """Describes what is new in a graph and makes it record; a function is about to be made of it.

        Args:
            function_name: The function.
            graph: The FuncGraph.
            unobserved_for: Why nothing may be added to the graph, as a `not_recorded_reason`; None where it may.
            is_compiled: Whether XLA compiles it, with what it calls.
        """
        with self._describer.lock:
            state = self._describer.state(graph)
            self._registry.add_function(function_name, state.graph_id)
            self._describer.describe_graph(graph, state)
            batches = self._describer.describe_ops(graph, state, reasons=self._function_reasons(unobserved_for))
            self._describer.describe_signature(function_name, graph, state)
            if unobserved_for is not None:
                state.num_described = len(graph.get_operations())
                return
            if is_compiled and self._compiled is not None:
                if self._judge is not None:
                    batches = self._judge(graph, batches)
                self._compiled.add_tensors(state, batches)
                state.num_described = len(graph.get_operations())
                return
            if self._executed is not None and self._executed.is_optimized(graph):
                self._executed.prepare(graph, state, batches)
                self._make_run(graph, self._calls_of(graph, self._executed.called_as_traced(state)))
                state.num_described = len(graph.get_operations())
                return
            if self._judge is not None:
                batches = self._judge(graph, batches)
            # What a loop computes may be summed by its next iteration, or behind it.
            loop_variables = self._hold_loop_variables(graph)
            sums = self._sums.find(graph, state, also=loop_variables)
            summed = {tensor.op.name for each in sums for tensor in each.tensors}
            batches = [replace(batch, is_alone=True) if batch.op.name in summed else batch for batch in batches]
            if self._is_pruned(graph):
                must_run = self._add_where_reached(graph, batches, state)
            else:
                must_run = self._add_in_stages(graph, batches, state, loop_variables)
            # TensorFlow keeps what a call holds only if the call itself must run.
            must_run += self._calls_of(graph, state.callees)
            for each in sums:
                self._hold(each.op, each.tensors, calls=each.calls)
            self._make_run(graph, must_run)
            state.num_described = len(graph.get_operations())

    def prepare_session_graph(self, graph: Any, reasons: Reasons) -> tuple[int, list[TensorBatch]]:
        """Describes what is new in a graph that a session runs.

        Args:
            graph: The graph.
            reasons: Why tensors of it are not recorded.

        Returns:
            The graph's id, and the new tensors to record.
        """
        with self._describer.lock:
            state = self._describer.state(graph)
            self._describer.describe_graph(graph, state)
            ops = graph.get_operations()
            if len(ops) > state.num_described:
                batches = self._describer.describe_ops(graph, state, reasons=reasons)
                if self._executed is not None:
                    self._executed.add_session_graph(graph, state, batches)
            else:
                batches = []
            state.num_described = len(ops)
            return state.graph_id, batches

    def _add_in_stages(
        self, graph: Any, batches: Sequence[TensorBatch], state: GraphState, loop_variables: Sequence[Any]
    ) -> list[Any]:
        """Adds record ops to a graph: what can fail, and what its loop computes for later, waits for what it needs."""
        if has_checks(batches):
            batches = without_idle_checks(batches, ops_needed_for(_results(graph)))
        found = self._stages.find(graph, state, batches, also=loop_variables)
        added = []
        for op, calls in found.calls:
            self._hold(op, (), calls=calls)
        for stage in found.stages:
            record_ops = self._record_ops.add(graph, stage.batches, is_stateless=self._is_pipeline())
            added += record_ops
            for op in stage.gates:
                op._add_control_inputs(record_ops)
        return added

    def _add_where_reached(self, graph: Any, batches: Sequence[TensorBatch], state: GraphState) -> list[Any]:
        """Adds record ops to a graph of which only what its results need runs: one for each tensor that does."""
        for batch in batches:
            for tensor, node, decides in zip(batch.tensors, batch.nodes, batch.all_decides, strict=True):
                state.unreached[tensor.op.name, tensor.value_index] = (node, batch.is_chosen, decides)
        added = []
        for op in ops_needed_for(_results(graph)):
            for slot, tensor in enumerate(op.outputs):
                if (op.name, slot) in state.unreached:
                    node, keep, decides = state.unreached.pop((op.name, slot))
                    record_ops = self._single_record_ops
                    added.append(record_ops.add_record(graph, tensor, node, keep=keep, decides=decides))
        return added

    @staticmethod
    def _calls_of(graph: Any, calls: Iterable[CallKey]) -> list[Any]:
        return [graph.get_operation_by_name(name) for name in sorted({name for name, _, _ in calls})]

    def _function_reasons(self, unobserved_for: str | None) -> Reasons:
        """The reasons of a function's graph; `unobserved_for` is that of all its tensors, None for no such."""

        def reason(op: Any, op_type: str, tensor: Any) -> str | None:
            return unobserved_for or ("remote" if self._is_remote(op.device) else None)

        return reason


def _results(graph: Any) -> list[Any]:
    """The ops that a function runs for its results and for its control outputs."""
    return [tensor.op for tensor in graph.outputs] + list(graph.control_outputs)


def ops_needed_for(asked_for: Sequence[Any]) -> list[Any]:
    """Returns the ops that run if some are asked for, in no order."""
    waiting = list(asked_for)
    reached: dict[str, Any] = {}
    while waiting:
        op = waiting.pop()
        if op.name not in reached:
            reached[op.name] = op
            waiting += [tensor.op for tensor in op.inputs]
            waiting += op.control_inputs
    return list(reached.values())
