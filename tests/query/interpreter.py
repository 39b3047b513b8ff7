"""Runs a program in NumPy, records it as the writer would, and stores the true dependencies of every tensor."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .builder import GraphBuilder, RunBuilder, counts
from .programs import Constant, EagerCall, EagerOp, EagerSymbol, Graph, Op, Poison, Program, Source, Symbol, Variable

Array = np.ndarray[Any, np.dtype[np.float32]]

OPS: dict[str, Callable[..., Array]] = {
    "Const": lambda: np.full(2, 0.5, np.float32),
    "Identity": lambda x: x,
    "Neg": lambda x: -x,
    "Log": np.log,
    "Sqrt": np.sqrt,
    "Exp": lambda x: np.exp(x * np.float32(30)),
    "Reverse": lambda x: x[::-1],
    "SelectV2": lambda x: np.where(np.isfinite(x), x, np.float32(1)),
    "Unpack": lambda x: np.stack([x, -x]),
    "AddV2": lambda x, y: x + y,
    "Sub": lambda x, y: x - y,
    "Mul": lambda x, y: x * y,
    "RealDiv": lambda x, y: x / y,
    "Sum": lambda x: x,
}
"""The functions that ops compute. Sum stands for the op in a loop's condition."""


@dataclass(eq=False)
class Row:
    """A row of tensor_health, and the rows that its tensor was really made from.

    Attributes:
        values: The elements.
        inputs: For each input of its op: (the first border on the way to the input, the rows that it stands for).
                record: Adds the row to the run and returns its event_index.
                scope: The column of tensor_health.
                event_index: The index of the event; set when the row is recorded.
                passed: The row of the op that computed the tensor, if the tensor has only crossed borders since.
                variables: The variables that the tensor was written to, as tensor IDs of their handles.
                returned_by: The functions that returned the tensor to eager code, as `name:output`.
                execution: The execution that made the tensor; -1 for an unused tensor from outside.
                creation: The place in creation order: (index of the op, iteration) of each graph, outermost first.
                slot: The output slot of the op.
                op: The graph and the name of the op.
                forward: For a gradient, the graph and the name of the forward op.
                is_used: For an eager tensor, whether a later statement uses it.
                decides: Whether it holds a NaN and an op chose a branch by it.
    """

    values: Array
    inputs: list[tuple[str, list[Row]]]
    record: Callable[[], int] = field(repr=False)
    scope: str = "graph"
    event_index: int = -1
    passed: Row | None = None
    variables: set[int] = field(default_factory=set)
    returned_by: dict[str, None] = field(default_factory=dict)
    execution: int = -1
    creation: tuple[tuple[int, int], ...] = ()
    slot: int = 0
    op: tuple[Graph, str] | None = None
    forward: tuple[Graph, str] | None = None
    is_used: bool = False
    decides: bool = False

    @property
    def kinds(self) -> frozenset[str]:
        found = {"nan"} if np.isnan(self.values).any() else set()
        return frozenset(found | ({"inf"} if np.isinf(self.values).any() else set()))


@dataclass(frozen=True)
class Ref:
    """A tensor as an op receives it: the row of the op that computed it, and the last border on the way from there."""

    row: Row
    values: Array
    how: str | None = None

    def crossed(self, how: str) -> Ref:
        return replace(self, how=how)


@dataclass(eq=False)
class Store:
    """The value of a variable: its elements, and the rows of the tensors that they were made from, latest first.

    Attributes:
        read: The last read since the last write, by an execution that cannot write to the variable; None if there
                    is none.
    """

    tensor_id: int
    values: Array
    rows: list[Row] = field(default_factory=list)
    read: Row | None = None


Value = Ref | Store | int
"""A tensor of a graph while the graph runs. Counters and predicates are ints."""


@dataclass(frozen=True)
class Place:
    """The place in a call where a graph runs."""

    execution: int
    step: int
    frame: int = 0
    iteration: int = 0
    site: str = ""
    path: tuple[tuple[int, int], ...] = ()

    def enter(self, op: Op, graph: Graph, suffix: str = "", *, in_loop: bool = False) -> Place:
        site = f"{self.site}/{op.name}{suffix}" if self.site else op.name + suffix
        step = (list(graph.ops).index(op.name), self.iteration if in_loop else 0)
        return replace(self, site=site, path=(*self.path, step))


class Interpreter:
    """Runs one program.

    Attributes:
        run: The recorded run.
                rows: The row of every tensor, by event_index.
    """

    def __init__(self, program: Program) -> None:
        self.run = RunBuilder("run-a")
        self.rows: dict[int, Row] = {}
        self._program = program
        self._builders: dict[Graph, GraphBuilder] = {}
        self._runs_of: dict[object, int] = {}
        self._eager: dict[EagerSymbol, Ref] = {}
        self._stores = {
            variable: Store(variable.tensor_id, np.array(variable.start, np.float32)) for variable in program.variables
        }
        self._pending: list[Row] = []
        self._unused: dict[EagerSymbol, Row] = {}
        self._given: dict[EagerSymbol, Row] = {}
        self._random = random.Random(program.order)
        with np.errstate(all="ignore"):
            for statement in program.statements:
                self._execute(statement)
        for row in (*self.run.rows["graph_op"], *self.run.rows["execution"]):
            row["role"] = row["role"] or "forward"

    # Eager code.

    def _execute(self, statement: Constant | EagerOp | EagerCall) -> None:
        if isinstance(statement, Constant):
            row = Row(np.array(statement.values, np.float32), [], lambda: -1, scope="external")
            self._unused[statement.tensor] = self._given[statement.tensor] = row
            self._eager[statement.tensor] = Ref(row, row.values)
        elif isinstance(statement, EagerOp):
            self._run_eagerly(statement)
        else:
            self._call(statement)

    def _run_eagerly(self, op: EagerOp) -> None:
        refs = [self._eager[symbol] for symbol in op.inputs]
        handle = [] if op.variable is None else [op.variable]
        outputs = () if op.output is None else (op.output,)
        execution = self._start(op.op_type, (*handle, *op.inputs), outputs, graph=None)
        if op.variable is not None and op.op_type != "ReadVariableOp":
            store = self._stores[op.variable]
            self._write(store, op.op_type, refs[0], old=store.read)
            return
        if op.variable is not None:
            store = self._stores[op.variable]
            values, inputs = store.values, [("variable", list(store.rows))]
        else:
            values = self._computed(op, op.op_type, refs, op.poison)
            inputs = [(_eager_how(ref), [ref.row]) for ref in refs]
        assert op.output is not None
        row = self._output_row(execution, op.output, 0, values, inputs)
        row.passed = refs[0].row if op.op_type == "Identity" else None
        if op.variable is not None:
            self._stores[op.variable].read = row
        self._eager[op.output] = refs[0] if op.op_type == "Identity" else Ref(row, values)

    def _call(self, call: EagerCall) -> None:
        graph = call.graph
        captured = [source for source, _ in graph.captures]
        assert not any(isinstance(source, Symbol) for source in captured)
        execution = self._start(
            graph.function_name, (*call.arguments, *captured), call.outputs, graph=self._builder(graph)
        )
        values: list[Value] = [self._eager[symbol].crossed("argument") for symbol in call.arguments]
        for source in captured:
            if isinstance(source, Variable):
                values.append(self._stores[source])
            elif isinstance(source, EagerSymbol):
                values.append(self._eager[source].crossed("capture"))
        results = self._run(graph, values, Place(execution, step=execution + 7))
        if self._program.order:
            self._random.shuffle(self._pending)
        for row in self._pending:
            self._record(row)
        self._pending.clear()
        for slot, (symbol, result) in enumerate(zip(call.outputs, results, strict=True)):
            assert isinstance(result, Ref)
            self._output_row(execution, symbol, slot, result.values, [("call", [result.row])]).passed = result.row
            result.row.returned_by[f"{graph.name}:{slot}"] = None
            self._eager[symbol] = result.crossed("call")

    def _start(
        self,
        op_type: str,
        inputs: tuple[Source, ...],
        outputs: tuple[EagerSymbol, ...],
        *,
        graph: GraphBuilder | None,
    ) -> int:
        """Records an execution. Before it, records the tensors from outside of which it is the first user."""
        execution = len(self.run.rows["execution"])
        ids = []
        for source in inputs:
            assert not isinstance(source, Symbol)
            ids.append(source.tensor_id)
            if isinstance(source, EagerSymbol):
                self._given[source].is_used = True
            row = self._unused.pop(source, None) if isinstance(source, EagerSymbol) else None
            if row is not None:
                row.execution = execution
                row.record = self._recorder(self.run.external, source.tensor_id, row, execution=execution)
                self._record(row)
        made = {symbol.tensor_id: "float32" for symbol in outputs}
        return self.run.execution(op_type, inputs=ids, outputs=made, graph=graph)

    def _output_row(
        self, execution: int, symbol: EagerSymbol, slot: int, values: Array, inputs: list[tuple[str, list[Row]]]
    ) -> Row:
        row = Row(values, inputs, lambda: -1, scope="execution", execution=execution, slot=slot)
        self._given[symbol] = row
        row.record = lambda: self.run.eager(execution, _health(values), tensor_id=symbol.tensor_id, slot=slot)
        self._record(row)
        return row

    def _recorder(self, record: Callable[..., int], target: object, row: Row, **place: Any) -> Callable[[], int]:
        return lambda: record(target, _health(row.values), **place)

    def _record(self, row: Row) -> None:
        row.event_index = row.record()
        self.rows[row.event_index] = row

    # Graphs.

    def _run(self, graph: Graph, arguments: list[Value], place: Place) -> list[Value]:
        """Runs a graph and returns its results."""
        names = [*graph.arguments, *(symbol.op_name for _, symbol in graph.captures)]
        given = dict(zip(names, arguments, strict=True))
        known: dict[tuple[str, int], Value] = {}
        reads: dict[Store, Row] = {}
        """For each variable, the last read in this run of the graph since the last write in this run."""
        for op in graph.ops.values():
            inputs = [known[source.op_name, source.slot] for source in op.inputs]
            outputs = self._run_op(op, inputs, given, place, graph=graph, reads=reads)
            known.update({(op.name, slot): value for slot, value in enumerate(outputs)})
        return [known[result.op_name, result.slot] for result in graph.results]

    def _run_op(
        self,
        op: Op,
        inputs: list[Value],
        given: dict[str, Value],
        place: Place,
        *,
        graph: Graph,
        reads: dict[Store, Row],
    ) -> list[Value]:
        builder = self._builder(graph)

        def row(values: Array, made_from: list[tuple[str, list[Row]]], slot: int = 0) -> Row:
            creation = (*place.path, (list(graph.ops).index(op.name), 0))
            found = Row(values, made_from, lambda: -1, execution=place.execution, creation=creation, slot=slot)
            found.op = (graph, op.name)
            found.forward = None if op.forward is None else (graph, op.forward)
            found.record = self._recorder_in_graph(builder, op, slot, found, place)
            self._pending.append(found)
            return found

        def crossed(value: Value, how: str, slot: int = 0) -> Value:
            """Adds a row for a tensor that only passes through an op, and returns the tensor unchanged."""
            if isinstance(value, Ref):
                row(value.values, [(how, [value.row])], slot).passed = value.row
            return value

        if op.name in given:
            value = given[op.name]
            return [crossed(value, value.how or "graph" if isinstance(value, Ref) else "graph")]
        if op.op_type == "Const" and op.dtypes == ("int32",):
            return [0]
        if op.op_type in ("Greater", "ArgMax"):
            assert isinstance(inputs[0], Ref)
            inputs[0].row.decides |= bool(np.isnan(inputs[0].values).any())
            return [inputs[0]]  # the op decides by this tensor, and passes none of its elements on
        if op.op_type in ("Less", "Increment"):
            return [0]
        if op.calls:
            for store in self._written_by(op, inputs):
                reads.pop(store, None)
            how = "loop" if op.op_type == "While" else "call"
            results = self._run_calling_op(op, inputs, place, graph=graph)
            results = [value.crossed(how) if isinstance(value, Ref) else value for value in results]
            return [crossed(value, how, slot) for slot, value in enumerate(results)]
        store = inputs[0] if inputs and isinstance(inputs[0], Store) else None
        refs = [value for value in inputs if isinstance(value, Ref)]
        if store is not None and op.op_type == "ReadVariableOp":
            read = row(store.values, [("variable", list(store.rows))])
            reads[store] = read
            if not place.site and not _can_write(graph, op.inputs[0].op_name):
                store.read = read
            return [Ref(read, store.values)]
        if store is not None:
            self._write(store, op.op_type, refs[0], old=reads.pop(store, store.read))
            return []
        if op.op_type == "Identity":
            return [crossed(refs[0], refs[0].how or "graph")]
        values = self._computed(op, op.op_type, refs, op.poison)
        made_from = [(ref.how or "graph", [ref.row]) for ref in refs]
        if op.op_type == "Unpack":
            return [Ref(row(part, made_from, slot), part) for slot, part in enumerate(values)]
        return [Ref(row(values, made_from), values)]

    def _run_calling_op(self, op: Op, inputs: list[Value], place: Place, *, graph: Graph) -> list[Value]:
        if op.op_type == "While":
            return self._loop(op, inputs, place, graph=graph)
        if op.op_type == "StatefulPartitionedCall":
            ((_, _, callee),) = op.calls
            return self._run(callee, _entering(callee, inputs), place.enter(op, graph))
        predicate, *rest = inputs
        assert isinstance(predicate, Ref)
        first = predicate.values[0]
        chosen = int(not first > 0) if op.op_type == "If" else 0 if first > 0 else 1 if first <= 0 else 2
        attribute, index, callee = op.calls[min(chosen, len(op.calls) - 1)]
        part = {"then_branch": "then", "else_branch": "else"}.get(attribute, f"branch{index}")
        site = place.enter(op, graph, f"/{part}/_{_number(place, op.name + part)}")
        return self._run(callee, _entering(callee, rest), site)

    def _loop(self, op: Op, inputs: list[Value], place: Place, *, graph: Graph) -> list[Value]:
        (_, _, body), (_, _, cond) = op.calls
        values = _entering(body, inputs)
        # TensorFlow makes the ID of a loop's frame from the loop's name and the frame and iteration that enter it.
        frame = _combine(place.frame, _combine(place.iteration, _hash(f"{place.site}/{op.name}")))
        frame -= 2**64 if frame >= 2**63 else 0
        for iteration in range(op.num_iterations + 1):
            inner = replace(place, frame=frame, iteration=iteration)
            self._run(cond, values, inner.enter(op, graph, f"/cond/_{_number(place, op.name)}", in_loop=True))
            if iteration == op.num_iterations:
                break
            values = self._run(
                body, values, inner.enter(op, graph, f"/body/_{_number(place, op.name) + 1}", in_loop=True)
            )
            values = [value.crossed("loop") if isinstance(value, Ref) else value for value in values]
        return values

    def _written_by(self, op: Op, inputs: list[Value]) -> list[Store]:
        """Returns the variables that the graphs called by an op could write to, even if they do not write now."""
        found = []
        shift = 1 if op.op_type in ("If", "Case") else 0
        for _, _, callee in op.calls:
            names = [*callee.arguments, *(symbol.op_name for _, symbol in callee.captures)]
            for name, value in zip(names, inputs[shift:], strict=True):
                if isinstance(value, Store) and _can_write(callee, name):
                    found.append(value)
        return found

    def _write(self, store: Store, op_type: str, ref: Ref, *, old: Row | None) -> None:
        ref.row.variables.add(store.tensor_id)
        if op_type == "AssignVariableOp":
            store.values, store.rows = ref.values, [ref.row]
        else:
            store.values = store.values + ref.values
            store.rows = [ref.row, *(store.rows if old is None else [old])]
        store.read = None

    def _computed(self, op: object, op_type: str, refs: list[Ref], poison: Poison | None) -> Array:
        number = self._runs_of.get(op, 0)
        self._runs_of[op] = number + 1
        values = np.array(OPS[op_type](*(ref.values for ref in refs)), np.float32)
        if poison is not None and poison.at_run in (-1, number):
            values[..., 0] = poison.value
        return values

    def _recorder_in_graph(self, builder: GraphBuilder, op: Op, slot: int, row: Row, place: Place) -> Callable[[], int]:
        return lambda: self.run.tensor(
            builder,
            f"{op.name}:{slot}",
            _health(row.values),
            execution=place.execution,
            step=place.step,
            frame=place.frame,
            iteration=place.iteration,
            site=place.site,
        )

    def _builder(self, graph: Graph) -> GraphBuilder:
        """Returns the recorded graph. The first call records the graph, its function and the graphs that it calls."""
        if graph in self._builders:
            return self._builders[graph]
        parts = {part: self._builder(part) for part in graph.parts()}
        builder = self._builders[graph] = self.run.graph(graph.name)
        for op in graph.ops.values():
            builder.op(op.name, op.op_type, [symbol.name for symbol in op.inputs], dtypes=op.dtypes)
            if op.forward is not None:
                forward = {"forward_graph_id": builder.graph_id, "forward_op_name": op.forward, "role": "gradient"}
                self.run.rows["graph_op"][-1] |= forward
            for attribute, index, callee in op.calls:
                builder.calls(op.name, callee.function_name, parts[callee], attribute=attribute, branch=index)
        builder.function(
            graph.function_name,
            graph.arguments,
            [symbol.name for symbol in graph.results],
            captures=[symbol.op_name for _, symbol in graph.captures],
        )
        return builder


def _entering(callee: Graph, values: list[Value]) -> list[Value]:
    """Returns the inputs of a calling op as the arguments of the called graph."""
    hows = ["argument"] * len(callee.arguments) + ["capture"] * len(callee.captures)
    return [value.crossed(how) if isinstance(value, Ref) else value for value, how in zip(values, hows, strict=True)]


def _can_write(graph: Graph, handle: str) -> bool:
    for op in graph.ops.values():
        names = [symbol.op_name for symbol in op.inputs]
        if handle not in names:
            continue
        if op.op_type in ("AssignVariableOp", "AssignAddVariableOp"):
            return True
        shift = 1 if op.op_type in ("If", "Case") else 0
        for _, _, callee in op.calls:
            inner = [*callee.arguments, *(symbol.op_name for _, symbol in callee.captures)]
            if any(_can_write(callee, inner[i - shift]) for i, name in enumerate(names) if name == handle):
                return True
    return False


def _eager_how(ref: Ref) -> str:
    if ref.how is not None:
        return ref.how
    return "external" if ref.row.scope == "external" else "eager"


def _health(values: Array) -> dict[str, Any]:
    return counts(
        neg_inf=int(np.isneginf(values).sum()),
        pos_inf=int(np.isposinf(values).sum()),
        nan=int(np.isnan(values).sum()),
        neg=int((np.isfinite(values) & (values < 0)).sum()),
        zero=int((values == 0).sum()),
        pos=int((np.isfinite(values) & (values > 0)).sum()),
    )


def _number(place: Place, what: str) -> int:
    """Returns a stable number, like the one that the runtime appends to the name of a branch or a loop's body."""
    return _hash(f"{place.site}/{what}") % 1000


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def _combine(first: int, second: int) -> int:
    """Combines two hashes. Source: tensorflow/core/lib/hash/hash.h, Hash64Combine."""
    first %= 2**64
    return first ^ ((second + 0x9E3779B97F4A7800 + (first << 10) + (first >> 4)) % 2**64)
