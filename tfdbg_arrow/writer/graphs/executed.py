"""Records the graphs that TensorFlow runs, after its optimizer has changed them.

When TensorFlow makes a function of a graph of the program, the graph is described and its ops are marked. TensorFlow
keeps the marks while it inlines and optimizes. The native core then finds the op that each node stands for, and adds
record ops after the nodes. The nodes become rows of `executed_op` and `executed_op_input`.

An op that fails ends its whole graph, and tensors that are not recorded yet are lost. So an op that can fail because of
values waits for the record ops of the floating tensors that it depends on. Waiting adds no order between ops of the
program, because those tensors are computed before the op anyway.
"""

from __future__ import annotations

import functools
import json
import math
import operator
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from typing import Any, Protocol

from tfdbg_arrow.schema.dtypes import dtype_name
from tfdbg_arrow.schema.op_traits import Trait, types_with
from tfdbg_arrow.spool.names import GraphLinks, inlined_suffix
from tfdbg_arrow.writer.graphs.compiled_rows import OF_SHAPES, RESHAPED
from tfdbg_arrow.writer.graphs.node_defs import TensorBatch, is_own
from tfdbg_arrow.writer.graphs.state import GraphState
from tfdbg_arrow.writer.hooks.graph_optimizer import is_small, is_used_by_graph, mark_ops, may_break
from tfdbg_arrow.writer.hooks.runtime import refuses_counting_on_accelerators
from tfdbg_arrow.writer.live_stop.stop import GraphJudge
from tfdbg_arrow.writer.rows import AppendColumns, Columns

_MAX_PARTS = 32
"""At most this many parts of a name, between slashes or underscores, are compared with names of ops."""
_MAX_USERS = 1_000
"""To find an op that is computed from a node, at most this many nodes are searched."""

NamedOp = tuple[str, str, str, tuple[int, ...], bool]
"""Node name, op name, op type, key of each output or -1, and whether the elements are kept."""

ExecutedNode = tuple[str, str, str, int, str, str | None, list[tuple[str, int, bool]], list[int] | None, int | None]
"""A node of an optimized graph:

* node name, op type and device;
* ID of the graph of the program or -1, op name or "", and path of calls or None;
* inputs: the node, the slot, and whether the input is a control edge;
* dtype numbers of the outputs, or None;
* index of the graph's argument or result that the node stands for, or None.
"""


ExecutedGraph = tuple[int, list[ExecutedNode]]
"""The ID of an optimized graph, and its nodes."""

MaskedOutput = tuple[int, str, str, int, list[str]]
"""Key, op name, op type, slot, and the types of the ops that take the output."""


class GraphOptimizer(Protocol):
    """The part of the native core that puts record ops into optimized graphs."""

    def add_program_graph(
        self,
        graph_id: int,
        ops: Sequence[NamedOp],
        arguments: Sequence[str],
        calls: Mapping[str, int],
        is_used_by_graph: bool,
        failing_ops: Mapping[str, bool],
        elements: Sequence[str],
    ) -> None:
        """Adds a graph to record.

        `arguments` are node names from `ops`. `calls` holds the called graphs, by the path that their nodes get when
        TensorFlow inlines them. `is_used_by_graph` is True if another graph uses the results. `failing_ops` holds the
        nodes that wait for the record ops before them, and whether they wait only on the host. `elements` are the
        arguments that are components of an element of a data set.
        """

    def set_summary_graphs(
        self,
        device_types: Sequence[str],
        graphs: Mapping[int, tuple[int, bytes]],
        small_dtypes: Mapping[int, int],
    ) -> None:
        """Sets what device_graphs() and small_dtypes() return; call it before start()."""

    def set_same_elements(self, same_tensor: Sequence[str], reshaped: Sequence[str]) -> None:
        """Sets the ops whose outputs have the elements of their first input; call it before start().

        The outputs of ops in `same_tensor` also have the shape of the input.
        """

    def add_small_tensors(self, keys: Sequence[int]) -> None:
        """Notes which tensors are small: on a device, they are copied to the host together, and counted there."""

    def add_shapes(self, shapes: Mapping[int, Sequence[int]]) -> None:
        """Notes the shapes of reshaped tensors, by key."""

    def set_counting_on_devices(self, is_allowed: bool) -> None:
        """Sets whether tensors are counted on their devices. Otherwise they are copied to the host."""

    def take_executed_graphs(self) -> list[ExecutedGraph]:
        """Returns the graphs that TensorFlow optimized since the last call."""

    def set_stop_rules(self, harmless_users: Sequence[str], harmless_outputs: Sequence[tuple[str, int]]) -> None:
        """Sets the rules of masking.stop_rules(); call it before start()."""

    def take_masked_outputs(self) -> list[MaskedOutput]:
        """Returns the outputs that do not stop the program, for the graphs optimized since the last call."""

    def set_trying(self, is_trying: bool) -> None:
        """Sets whether the calling thread only makes TensorFlow optimize graphs that may never run."""

    def take_unreadable_graphs(self) -> int:
        """Returns the number of graphs that the optimizer could not read since the last call."""


MAX_SMALL_ELEMENTS = 1 << 14
"""The size of the largest tensor that is copied from a device to be counted. On an H100, copying 64 KiB along with
other tensors takes a few microseconds, and the ops that count on the device take 50 microseconds."""


class ExecutedGraphs:
    """Records optimized graphs, for one recording.

    Args:
        optimizer: Adds the record ops to the graphs.
        links: Stores which graph calls which.
        append_columns: Takes rows for a table, as columns.
        lock: The lock of the recording; see Journal.
        generation: The number of the recording in this process.
        keeps_ops: Whether TensorFlow's optimizer leaves all ops of functions unchanged.
        judge: Takes the outputs that do not stop the program.
        note_failure: `(what, error)`: records a failure.
        failing: Finds the ops that must wait for the record ops before them. None if tensors are recorded at once when
            they are computed; then no op has to wait.
    """

    def __init__(
        self,
        optimizer: GraphOptimizer,
        *,
        links: GraphLinks,
        append_columns: AppendColumns,
        lock: AbstractContextManager[object],
        generation: int,
        keeps_ops: bool,
        judge: GraphJudge,
        note_failure: Callable[[str, object], None],
        failing: FailingOps | None,
    ) -> None:
        self._optimizer = optimizer
        self._links = links
        self._append_columns = append_columns
        self._generation = generation
        self._keeps_ops = keeps_ops
        self._unchanged_functions: set[bytes] = set()
        """Functions whose ops no pass of TensorFlow may change: TensorFlow does not optimize them by itself."""
        self._breakable_graphs: set[int] = set()
        self._untried_functions: set[bytes] = set()
        self._judge = judge
        self._note_failure = note_failure
        self._failing = failing
        self._lock = lock
        self._is_writing = False
        self._graphs: deque[ExecutedGraph] = deque()
        """The graphs that TensorFlow optimized and that have no rows yet."""
        self._keys: dict[int, dict[str, tuple[int, ...]]] = {}
        self._chosen: dict[int, set[str]] = {}
        self._op_names: dict[int, set[str]] = {}
        self._marked: set[int] = set()
        self._runs_seen: set[str] = set()
        self._graphs_seen: set[int] = set()

    def prepare(self, function_name: str, graph: Any, state: GraphState, batches: Iterable[TensorBatch]) -> None:
        """Marks the ops of a graph that becomes a function, and notes which of its tensors to record."""
        self._note_keys(state, batches)
        self._optimizer.set_counting_on_devices(not refuses_counting_on_accelerators())
        if is_small(graph):
            self._unchanged_functions.add(function_name.encode())
        if may_break(graph) or not self._breakable_graphs.isdisjoint(state.callees.values()):
            self._breakable_graphs.add(state.graph_id)
            if not self._keeps_ops:
                self._untried_functions.add(function_name.encode())
        mark_ops(graph, self.mark(state.graph_id))
        if graph.get_operations():  # TensorFlow does not optimize an empty graph
            self._marked.add(state.graph_id)

    def mark(self, graph_id: int) -> int:
        """Returns the mark of a graph's ops."""
        return (self._generation << 32) | graph_id

    def keeps_ops(self, function_name: bytes) -> bool:
        """Returns True if no pass of TensorFlow may change the ops of a function."""
        # We make TensorFlow optimize functions that are too small or that it may break, but this must not change an op.
        return self._keeps_ops or function_name in self._unchanged_functions

    def is_untried(self, function_name: bytes) -> bool:
        """Returns True for a function that TensorFlow's optimizer may break, until trying() has ended for it."""
        return function_name in self._untried_functions

    @contextmanager
    def trying(self, function_name: bytes, graph_id: int) -> Iterator[None]:
        """Observes whether TensorFlow can optimize the function of a graph, which does not run meanwhile."""
        self._optimizer.set_trying(True)
        try:
            yield
        finally:
            self._optimizer.set_trying(False)
        self.write()
        if self.is_left_alone(graph_id):
            self._unchanged_functions.add(function_name)
        self._untried_functions.discard(function_name)

    def add_function(self, graph: Any, state: GraphState, node_names: Sequence[tuple[str, str, str]]) -> None:
        """Gives the optimizer the names that the ops of a graph have in a function.

        Args:
            graph: The FuncGraph.
            state: The state of the graph.
            node_names: Node name, op name and op type of each op except the arguments.
        """
        keys_of_op, chosen = self._keys.get(state.graph_id), self._chosen.get(state.graph_id, set())
        if keys_of_op is None:
            return
        ops: list[NamedOp] = [
            (node, name, op_type, keys_of_op.get(name, ()), name in chosen) for node, name, op_type in node_names
        ]
        arguments = []
        for index, tensor in enumerate(graph.inputs):
            node = f"^{index}"  # not a valid node name: TensorFlow identifies an argument by its index
            arguments.append(node)
            name = tensor.op.name
            ops.append((node, name, tensor.op.type, keys_of_op.get(name, ()), name in chosen))
        self._op_names.setdefault(state.graph_id, set()).update(op_name for _, op_name, *_ in ops)
        elements = arguments if graph.name == _LOOP_OVER_DATA_SET else []
        calls = _inlined_calls(state, node_names)
        is_used = is_used_by_graph(graph)
        failing = {} if self._failing is None else self._failing.find(graph, state)
        failing_nodes = {node: failing[name] for node, name, _ in node_names if name in failing}
        self._optimizer.add_program_graph(state.graph_id, ops, arguments, calls, is_used, failing_nodes, elements)

    def add_session_graph(self, graph: Any, state: GraphState, batches: Iterable[TensorBatch]) -> None:
        """Gives the optimizer the names of the ops of a graph that a session runs, and notes the tensors to record.

        Args:
            graph: The graph. The ops of the graph keep their names and get no marks.
            state: The state of the graph.
            batches: The new tensors to record.
        """
        self._optimizer.set_counting_on_devices(not refuses_counting_on_accelerators())
        self._note_keys(state, batches)
        keys_of_op, chosen = self._keys[state.graph_id], self._chosen.get(state.graph_id, set())
        names = [(op.name, op.name, op.type) for op in graph.get_operations() if not is_own(op.type, op.name)]
        ops: list[NamedOp] = [
            (node, name, op_type, keys_of_op.get(name, ()), name in chosen) for node, name, op_type in names
        ]
        self._op_names.setdefault(state.graph_id, set()).update(name for _, name, _ in names)
        self._optimizer.add_program_graph(state.graph_id, ops, [], _inlined_calls(state, names), False, {}, [])

    def is_left_alone(self, graph_id: int) -> bool:
        """Returns True if a marked graph was not optimized and recorded: write() has not seen the graph."""
        return graph_id in self._marked and graph_id not in self._graphs_seen

    def has_run(self, run_op: str) -> bool:
        """Returns True if write() has seen a graph with this op, which stands for a run of a session."""
        return run_op in self._runs_seen

    def _note_keys(self, state: GraphState, batches: Iterable[TensorBatch]) -> None:
        keys_of_op = self._keys.setdefault(state.graph_id, {})
        small = []
        shapes: dict[int, Sequence[int]] = {}
        for batch in batches:
            name = batch.op.name
            keys = list(keys_of_op.get(name, ()))
            keys += [-1] * (len(batch.op.outputs) - len(keys))
            for tensor, key in zip(batch.tensors, batch.nodes, strict=True):
                keys[tensor.value_index] = key
                if self._failing is not None and _is_small(tensor):
                    small.append(key)
                if self._failing is not None and batch.op.type in RESHAPED and tensor.shape.is_fully_defined():
                    shapes[key] = tensor.shape.as_list()
            keys_of_op[name] = tuple(keys)
            if batch.is_chosen:
                self._chosen.setdefault(state.graph_id, set()).add(name)
        self._optimizer.add_small_tensors(small)
        self._optimizer.add_shapes(shapes)

    def write(self) -> None:
        """Adds the rows of the graphs that TensorFlow optimized since the last call."""
        with self._lock:
            # The taken graphs wait in this queue, so that an interruption loses nothing.
            self._graphs.extend(chain.from_iterable(map(operator.call, [self._optimizer.take_executed_graphs])))
            if not self._is_writing:  # a signal handler or a finalizer can call write() in _write_waiting()
                self._write_waiting()

    def _write_waiting(self) -> None:
        try:
            self._is_writing = True
            self._note_taken()
            while self._graphs:
                executed_graph_id, nodes = self._graphs[0]
                self._write_graph(executed_graph_id, self._without_own(nodes))
        finally:
            self._is_writing = False

    def _note_taken(self) -> None:
        for masked in self._optimizer.take_masked_outputs():
            self._judge.note_masked(*masked)
        num_unreadable = self._optimizer.take_unreadable_graphs()
        if num_unreadable:
            self._note_failure(
                "optimized graphs", f"{num_unreadable} could not be read, so they run without being recorded"
            )

    def _write_graph(self, executed_graph_id: int, nodes: Sequence[ExecutedNode]) -> None:
        """Adds the rows of the oldest waiting graph; `nodes` are its nodes without our own."""
        self._graphs_seen.update(node[3] for node in nodes)
        if not nodes:  # all nodes of the graph are ours
            self._graphs.popleft()
            return
        inputs = _input_columns(nodes)
        num_inputs = len(inputs["node_name"])
        # Write the ops last, because readers see the inputs only if the ops exist.
        if num_inputs:
            self._append_columns("executed_op_input", {"executed_graph_id": [executed_graph_id] * num_inputs, **inputs})
        self._append_columns(
            "executed_op",
            {
                "executed_graph_id": [executed_graph_id] * len(nodes),
                **self._op_columns(nodes, self._made_for(nodes)),
            },
            self._graphs.popleft,
        )

    def _without_own(self, nodes: Sequence[ExecutedNode]) -> list[ExecutedNode]:
        """Returns a graph's nodes without the ops that Python added, and notes the runs that those ops stand for."""
        own = {name for name, op_type, *_ in nodes if is_own(op_type, name)}
        if not own:
            return list(nodes)
        self._runs_seen |= own
        return [
            (*node[:6], [edge for edge in node[6] if edge[0] not in own], *node[7:])
            for node in nodes
            if node[0] not in own
        ]

    def _made_for(self, nodes: Sequence[ExecutedNode]) -> dict[str, str]:
        """Returns the op that each node made by the optimizer belongs to, keyed by the name of the node."""
        graph_ids = {node[0]: node[3] for node in nodes}
        op_names = {node[0]: node[4] for node in nodes}
        users: dict[str, list[str]] = {}
        for node in nodes:
            for source, _, is_control in node[6]:
                if not is_control:
                    users.setdefault(source, []).append(node[0])
        op_of_node = {}
        for name, graph_id in graph_ids.items():
            if graph_id >= 0 and not op_names[name]:
                op_name = op_named_in(name, self._op_names.get(graph_id, set()))
                op_of_node[name] = op_name or _nearest_user(name, graph_ids, op_names, users)
        return {name: op_name for name, op_name in op_of_node.items() if op_name}

    def _op_columns(self, nodes: Sequence[ExecutedNode], made_for: Mapping[str, str]) -> Columns:
        """Returns the rows of the nodes of one graph as columns."""
        names, op_types, devices, graph_ids, op_names, paths, _, dtypes, interface_indexes = zip(*nodes, strict=True)
        return {
            "node_name": names,
            "op_type": op_types,
            "graph_id": [graph_id if graph_id >= 0 else None for graph_id in graph_ids],
            "op_name": [op_name or None for op_name in op_names],
            "made_for": [made_for.get(name) for name in names],
            "call_site": [
                None if path is None else self._links.call_site(path, graph_id)
                for path, graph_id in zip(paths, graph_ids, strict=True)
            ],
            "device_name": [device or None for device in devices],
            "interface_index": interface_indexes,
            "output_dtypes": [
                None if node_dtypes is None else _dtypes_json(tuple(node_dtypes)) for node_dtypes in dtypes
            ],
        }


@functools.lru_cache(maxsize=1_000)
def _dtypes_json(dtypes: tuple[int, ...]) -> str:
    """Returns the names of the dtypes of outputs as a JSON array."""
    return json.dumps([dtype_name(dtype) if dtype > 0 else None for dtype in dtypes])


def _inlined_calls(state: GraphState, node_names: Sequence[tuple[str, str, str]]) -> dict[str, int]:
    """Returns the graphs that a graph calls, by the path that their nodes get when TensorFlow inlines them."""
    if not state.callees:
        return {}
    nodes = {op_name: node_name for node_name, op_name, _ in node_names}
    return {
        nodes[op_name] + inlined_suffix(attribute, index): callee
        for (op_name, attribute, index), callee in state.callees.items()
        if callee is not None and op_name in nodes
    }


def _input_columns(nodes: Sequence[ExecutedNode]) -> Columns:
    """Returns the rows of the inputs of the nodes of one graph as columns."""
    edges = [(node[0], index, *edge) for node in nodes for index, edge in enumerate(node[6])]
    return {
        "node_name": [name for name, *_ in edges],
        "input_index": [index for _, index, *_ in edges],
        "source_node_name": [source for _, _, source, _, _ in edges],
        "source_output_slot": [None if is_control else slot for *_, slot, is_control in edges],
        "is_control": [is_control for *_, is_control in edges],
    }


def op_named_in(node_name: str, op_names: Container[str]) -> str | None:
    """Returns the op whose name is part of the name of a node that the optimizer made; None if there is none.

    The optimizer makes names like `Log_1/unary_ops_composition` and `scope/ArithmeticOptimizer/AddOpsRewrite_add_3`. A
    path of calls can precede them.

    Args:
        node_name: The name of the node.
        op_names: The names of the ops of its graph.
    """
    parts = node_name.split("/")[-_MAX_PARTS:]
    scope, last = parts[:-2], parts[-1]
    in_scope = (
        "/".join([*scope[first:], last[at + 1 :]])
        for at in [at for at, letter in enumerate(last) if letter == "_"][:_MAX_PARTS]
        for first in range(len(scope) + 1)
    )
    before_last = (
        "/".join(parts[first:end]) for first in range(len(parts)) for end in range(len(parts) - 1, first, -1)
    )
    # The scope `gradient_tape/Pow` in gradient_tape/Pow/ArithmeticOptimizer/ConvertPow__inner_Pow ends in the name of
    # another op.
    is_in_scope = parts[-2:-1] == ["ArithmeticOptimizer"]
    names = chain(in_scope, before_last) if is_in_scope else chain(before_last, in_scope)
    return next((name for name in names if name in op_names), None)


def _nearest_user(
    node_name: str, graph_ids: Mapping[str, int], op_names: Mapping[str, str], users: Mapping[str, list[str]]
) -> str | None:
    """Returns the nearest op that is computed from a node, in the node's graph."""
    unvisited, seen = deque([node_name]), {node_name}
    while unvisited and len(seen) < _MAX_USERS:
        for user in users.get(unvisited.popleft(), ()):
            if op_names[user] and graph_ids[user] == graph_ids[node_name]:
                return op_names[user]
            if not op_names[user] and user not in seen:
                seen.add(user)
                unvisited.append(user)
    return None


_ALWAYS = types_with(Trait.CAN_FAIL) | frozenset(
    (
        *("Assert", "PyFunc", "PyFuncStateless", "EagerPyFunc"),
        *("Cholesky", "CholeskyGrad", "Eig", "LogMatrixDeterminant", "MatrixDeterminant", "MatrixInverse"),
        *("MatrixLogarithm", "MatrixSolve", "MatrixSolveLs", "MatrixSquareRoot", "MatrixTriangularSolve", "Qr"),
        *("SelfAdjointEigV2", "Svd"),
        *("Bincount", "CTCLoss", "CTCLossV2", "DenseBincount", "DynamicPartition", "DynamicStitch", "GatherNd"),
        *("ParallelDynamicStitch", "ResourceGather", "ResourceGatherNd", "ScatterNd", "SparseReshape"),
        *("SparseSoftmaxCrossEntropyWithLogits", "SparseToDense", "SparseTensorDenseMatMul"),
        *("Multinomial", "ParameterizedTruncatedNormal", "RandomGamma", "RandomPoissonV2", "StatelessMultinomial"),
        *("StatelessParameterizedTruncatedNormal", "StringToNumber"),
    )
)
"""Op types that can fail because of the values of their inputs."""

_ALWAYS_PREFIXES = (
    *("Decode", "LookupTable", "Parse", "Ragged", "ResourceScatter", "Scatter", "Segment", "SparseSegment"),
    *("TensorScatter", "UnsortedSegment"),
)

_ON_HOST = frozenset(
    (
        *("Bincount", "DenseBincount", "DynamicPartition", "DynamicStitch", "Gather", "GatherNd", "GatherV2"),
        *("Multinomial", "ParallelDynamicStitch", "ParameterizedTruncatedNormal", "ResourceGather", "ResourceGatherNd"),
        *("ScatterNd", "SparseSoftmaxCrossEntropyWithLogits", "SparseTensorDenseMatMul", "StatelessMultinomial"),
        "StatelessParameterizedTruncatedNormal",
    )
)
"""Op types that fail only on the host. On a GPU they skip values that are out of range, or return zeros or NaN instead.
Source: the definitions of these ops in tensorflow/core/ops, which document this for their GPU kernels."""

_ON_HOST_PREFIXES = ("ResourceScatter", "Scatter", "Segment", "SparseSegment", "TensorScatter", "UnsortedSegment")

_RESHAPING = frozenset({"BroadcastTo", "Reshape"})

_OF_INTEGERS = frozenset(
    (
        *("AddV2", "BroadcastArgs", "Cast", "ConcatV2", "FloorDiv", "GatherV2", "Identity", "Maximum", "Mul", "Pack"),
        *("Prod", "Range", "Slice", "StridedSlice", "Sub"),
    )
)
"""Op types that compute the shapes for reshaping."""

_LOOP_OVER_DATA_SET = "Dataset_scan_scan_body"
"""The name of the graph of a loop `for batch in dataset` in a tf.function.

Its arguments are the state of the loop, the components of the element, and captured tensors.
"""
_INDEX_INPUT = {"Gather": 1, "GatherV2": 1, "StridedSlice": 1}
"""Op types that fail if an index is out of range, each with the number of the input that holds the indices."""


class FailingOps:
    """Finds the ops of graphs that can fail; call find() for the callees of a graph first."""

    def __init__(self) -> None:
        self._graphs: set[int] = set()

    def find(self, graph: Any, state: GraphState) -> dict[str, bool]:
        """Returns the names of the ops of a graph that can fail, and whether they fail only on the host.

        Args:
            graph: The graph.
            state: The state of the graph.
        """
        failing = {key[0]: False for key, callee in state.callees.items() if callee in self._graphs}
        for op in graph.get_operations():
            if op.name not in failing and not is_own(op.type, op.name) and can_fail(op):
                failing[op.name] = op.type in _ON_HOST or op.type.startswith(_ON_HOST_PREFIXES)
        if failing:
            self._graphs.add(state.graph_id)
        return failing


def can_fail(op: Any) -> bool:
    """Returns True if an op can fail because of the values of its inputs, in a way that occurs in practice."""
    kind = op.type
    if kind in _ALWAYS or kind.startswith(_ALWAYS_PREFIXES):
        return True
    if kind in _RESHAPING:
        # If the program computes the new shape, TensorFlow infers the output shape as if the new shape were valid.
        return not (_keeps_size(op.inputs[0].shape, op.outputs[0].shape) and _is_of_shapes(op.inputs[1]))
    if kind in _INDEX_INPUT:
        # Slices of shapes are very common and valid.
        is_of_values = op.outputs[0].dtype.is_floating or op.outputs[0].dtype.is_complex
        is_index = kind != "StridedSlice" or op.get_attr("shrink_axis_mask") != 0
        return bool(is_of_values and is_index and op.inputs[_INDEX_INPUT[kind]].op.type != "Const")
    return False


def _is_of_shapes(tensor: Any) -> bool:
    """Returns True if a tensor is computed only from constants and the shapes of tensors."""
    unvisited, seen = [tensor.op], set()
    while unvisited:
        op = unvisited.pop()
        if op.name in seen or op.type in OF_SHAPES:
            continue
        if op.type not in _OF_INTEGERS:
            return False
        seen.add(op.name)
        unvisited += [source.op for source in op.inputs]
    return True


def _keeps_size(before: Any, after: Any) -> bool:
    """Returns True if two static shapes have the same number of elements, assuming equal unknown dimensions."""
    if before.rank is None or after.rank is None:
        return False
    known_dims = [[dim for dim in shape.as_list() if dim is not None] for shape in (before, after)]
    unknown = [shape.rank - len(dims) for shape, dims in zip((before, after), known_dims, strict=True)]
    sizes = [math.prod(dims) for dims in known_dims]
    return bool(sizes[0] == sizes[1] and unknown[0] == unknown[1] <= 1)


def _is_small(tensor: Any) -> bool:
    """Returns True if a symbolic tensor is known to have few elements."""
    size = tensor.shape.num_elements()
    return size is not None and size <= MAX_SMALL_ELEMENTS
