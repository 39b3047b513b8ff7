"""Programs for the oracle: eager code that calls graphs, traced as TensorFlow traces them.

A graph captures a tensor from outside with a Placeholder. A branch or a loop's body captures from the graph around
it. Both branches have the same arguments, and so have a loop's body and condition. All tensors are float32 vectors of
NUM_ELEMENTS, except the counters and predicates of control flow.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

NUM_ELEMENTS = 2
TENSORFLOW_ONLY = (
    "Float16",
    "BFloat16",
    "Float64",
    "Complex64",
    "Integers",
    "Empty",
    "EmptyMean",
    "EmptyMask",
    "Cumulative",
    "Broadcast",
    "TensorArray",
    "TensorList",
    "OldTensorArray",
    "OldStack",
    "LocalGradient",
    "SecondGradient",
)
"""Stands for groups of ops with one input and one output that TensorFlow can run and the interpreter cannot."""


@dataclass(frozen=True)
class Symbol:
    """An output of an op of a graph during tracing."""

    graph: Graph = field(repr=False, compare=False)
    op_name: str
    slot: int = 0

    @property
    def name(self) -> str:
        return f"{self.op_name}:{self.slot}"

    def __repr__(self) -> str:
        return self.name


@dataclass(eq=False)
class Variable:
    """A variable that was made before the recording."""

    tensor_id: int
    start: tuple[float, ...]

    def __repr__(self) -> str:
        return f"variable {self.tensor_id} {self.start}"


@dataclass(eq=False)
class EagerSymbol:
    """An eager tensor. It is computed when the program runs; graphs that use it capture it."""

    tensor_id: int

    def __repr__(self) -> str:
        return f"tensor {self.tensor_id}"


Source = Symbol | Variable | EagerSymbol


@dataclass(frozen=True)
class Poison:
    """A bad value that an op puts into its output in one of its runs, counted from 0, or in each run (-1)."""

    value: float
    at_run: int


@dataclass(eq=False)
class Op:
    """One op.

    Attributes:
        calls: The graphs that the op calls, as (attribute, branch_index, graph).
                forward: The forward op in the same graph, if this op is a gradient; else None.
    """

    name: str
    op_type: str
    inputs: tuple[Symbol, ...]
    dtypes: tuple[str, ...] = ("float32",)
    calls: tuple[tuple[str, int, Graph], ...] = ()
    num_iterations: int = 0
    poison: Poison | None = None
    forward: str | None = None


@dataclass(eq=False)
class Graph:
    """A graph and its function. `around` is the graph whose branch, loop body or loop condition this graph is."""

    name: str
    function_name: str
    around: Graph | None = None
    ops: dict[str, Op] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    captures: list[tuple[Source, Symbol]] = field(default_factory=list)
    results: list[Symbol] = field(default_factory=list)

    def add(
        self,
        op_type: str,
        inputs: Iterable[Symbol] = (),
        *,
        dtypes: tuple[str, ...] = ("float32",),
        calls: tuple[tuple[str, int, Graph], ...] = (),
        num_iterations: int = 0,
        poison: Poison | None = None,
        forward: str | None = None,
        name: str | None = None,
    ) -> Symbol:
        """Adds an op under a unique name, as TensorFlow makes it, and returns its first output."""
        wanted = name or op_type
        names = (wanted if number == 0 else f"{wanted}_{number}" for number in itertools.count())
        free = next(candidate for candidate in names if candidate not in self.ops)
        self.ops[free] = Op(free, op_type, tuple(inputs), dtypes, calls, num_iterations, poison, forward)
        return Symbol(self, free)

    def argument(self, *, dtype: str = "float32") -> Symbol:
        """Adds an argument."""
        symbol = self.add("Placeholder", dtypes=(dtype,), name="x")
        self.arguments.append(symbol.op_name)
        return symbol

    def capture(self, source: Source) -> Symbol:
        """Returns the symbol of a tensor or a variable in this graph, adding a Placeholder if it is from outside."""
        if isinstance(source, Symbol):
            if source.graph is self:
                return source
            assert self.around is not None
            source = self.around.capture(source)
        elif self.around is not None:
            source = self.around.capture(source)
        for known, symbol in self.captures:
            if known == source:
                return symbol
        dtype = "resource" if self.is_handle(source) else "float32"
        symbol = self.add("Placeholder", dtypes=(dtype,), name="captured")
        self.captures.append((source, symbol))
        return symbol

    def is_handle(self, source: Source) -> bool:
        """Returns whether a source is a variable or stands for one."""
        if isinstance(source, Symbol):
            return source.graph.ops[source.op_name].dtypes[source.slot] == "resource"
        return isinstance(source, Variable)

    def called(self, callee: Graph, arguments: Iterable[Symbol], *, name: str) -> list[Symbol]:
        """Adds a call of a function and returns its results."""
        inputs = (*arguments, *(self.capture(source) for source, _ in callee.captures))
        first = self.add(
            "StatefulPartitionedCall",
            inputs,
            dtypes=("float32",) * len(callee.results),
            calls=(("f", 0, callee),),
            name=name,
        )
        return self._outputs(first, len(callee.results))

    def differentiated(self, callee: Graph, arguments: Iterable[Symbol], *, target: Symbol) -> list[Symbol]:
        """Adds a call of a function, and the gradient of its first result, and returns both. TensorFlow only.

        Args:
            callee: The function.
            arguments: Its arguments.
            target: An argument, or a variable, to which the gradient is then applied.
        """
        inputs = (target, *arguments, *(self.capture(source) for source, _ in callee.captures))
        first = self.add("Gradient", inputs, dtypes=("float32",) * 2, calls=(("f", 0, callee),))
        return self._outputs(first, 2)

    def branched(self, predicate: Symbol, branches: list[Graph]) -> list[Symbol]:
        """Adds an If or a Case and returns its results. All branches must have the same number of results."""
        self._unite(branches)
        if len(branches) == 2:
            op_type, attributes = "If", [("then_branch", 0), ("else_branch", 0)]
        else:
            op_type, attributes = "Case", [("branches", index) for index in range(len(branches))]
        inputs = (predicate, *(self.capture(source) for source, _ in branches[0].captures))
        num_results = len(branches[0].results)
        calls = tuple((*attribute, branch) for attribute, branch in zip(attributes, branches, strict=True))
        name = "cond" if op_type == "If" else "indexed_case"
        first = self.add(op_type, inputs, dtypes=("float32",) * num_results, calls=calls, name=name)
        return self._outputs(first, num_results)

    def looped(self, start: list[Symbol], *, body: Graph, cond: Graph, num_iterations: int) -> list[Symbol]:
        """Adds a While and returns its final loop variables. `start` holds their initial values; a counter is added."""
        self._unite([body, cond])
        counter = self.add("Const", dtypes=("int32",), name="while/loop_counter")
        captured = [self.capture(source) for source, _ in body.captures]
        body.results += [symbol for _, symbol in body.captures]
        dtypes = ("int32",) + ("float32",) * len(start)
        dtypes += tuple("resource" if self.is_handle(symbol) else "float32" for symbol in captured)
        first = self.add(
            "While",
            (counter, *start, *captured),
            dtypes=dtypes,
            calls=(("body", 0, body), ("cond", 0, cond)),
            num_iterations=num_iterations,
            name="while",
        )
        return self._outputs(first, len(start) + 1)[1:]

    def _unite(self, graphs: list[Graph]) -> None:
        """Makes all graphs have the same captures in the same order."""
        sources: list[Source] = []
        for graph in graphs:
            sources += [source for source, _ in graph.captures if source not in sources]
        for graph in graphs:
            graph.captures = [(source, graph.capture(source)) for source in sources]

    def _outputs(self, first: Symbol, number: int) -> list[Symbol]:
        return [Symbol(self, first.op_name, slot) for slot in range(number)]

    def __repr__(self) -> str:
        lines = [f"{self.function_name}({', '.join(self.arguments)}) captures {self.captures}:"]
        for op in self.ops.values():
            what = "".join(f" {attribute}{index or ''}={graph!r}" for attribute, index, graph in op.calls)
            times = f" x{op.num_iterations}" if op.op_type == "While" else ""
            poison = "" if op.poison is None else f" {op.poison}"
            poison += "" if op.forward is None else f" gradient of {op.forward}"
            lines += f"  {op.name} = {op.op_type}{list(op.inputs)}{times}{poison}{what}".splitlines()
        return "\n    ".join([*lines, f"  return {self.results}"])

    def parts(self) -> list[Graph]:
        """Returns the graphs that the ops of this graph call, in the order of the ops."""
        return [graph for op in self.ops.values() for _, _, graph in op.calls]


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor from outside."""

    tensor: EagerSymbol
    values: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class EagerOp:
    """An eager op. It reads or writes `variable` if one is given."""

    op_type: str
    inputs: tuple[EagerSymbol, ...]
    output: EagerSymbol | None
    variable: Variable | None = None
    poison: Poison | None = None


@dataclass(frozen=True, eq=False)
class EagerCall:
    """A call of a function from eager code.

    Attributes:
        gradient: The gradient of the first output by `target`, or None. TensorFlow only.
        target: An argument or a variable.
    """

    graph: Graph
    arguments: tuple[EagerSymbol, ...]
    outputs: tuple[EagerSymbol, ...]
    gradient: EagerSymbol | None = None
    target: EagerSymbol | Variable | None = None


Statement = Constant | EagerOp | EagerCall


@dataclass(frozen=True, eq=False)
class Program:
    """Eager code. `order` is the seed that shuffles the events within each call; 0 keeps the order of the ops."""

    variables: tuple[Variable, ...]
    statements: tuple[Statement, ...]
    order: int

    def __repr__(self) -> str:
        return "\n".join(["Program:", *map(repr, (*self.variables, *self.statements)), f"order={self.order}"])

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """Prints a failing program for hypothesis."""
        printer.text(repr(self))
