"""The structure of a random program: eager code that calls graphs. The graphs are traced as TensorFlow traces them.

A graph captures a tensor from outside with a Placeholder. A branch or a loop's body captures tensors from the graph
around it. All tensors are float32 vectors, except the counters and predicates of control flow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

OP_GROUPS = (
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
"""Each name stands for a group of ops with one input and one output."""


@dataclass(frozen=True)
class Symbol:
    """An output of an op of a graph during tracing."""

    graph: Graph = field(repr=False, compare=False)
    op_name: str
    slot: int = 0


@dataclass(eq=False)
class Variable:
    """A variable."""

    number: int
    start: tuple[float, ...]


@dataclass(eq=False)
class EagerSymbol:
    """An eager tensor. The tensor is computed when the program runs. Graphs that use the tensor capture it."""

    number: int


Source = Symbol | Variable | EagerSymbol


@dataclass(frozen=True)
class Poison:
    """A bad value that an op puts into its output in one run of the op, counted from 0, or in each run (-1)."""

    value: float
    at_run: int


@dataclass(eq=False)
class Op:
    """One op. `calls` are the graphs that the op calls, and `num_iterations` is the number of iterations of a loop."""

    name: str
    op_type: str
    inputs: tuple[Symbol, ...]
    num_outputs: int = 1
    calls: tuple[Graph, ...] = ()
    num_iterations: int = 0
    poison: Poison | None = None


@dataclass(eq=False)
class Graph:
    """A graph and its function. `around` is the graph whose branch, loop body or loop condition this graph is."""

    name: str
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
        num_outputs: int = 1,
        calls: tuple[Graph, ...] = (),
        num_iterations: int = 0,
        poison: Poison | None = None,
    ) -> list[Symbol]:
        """Adds an op under a unique name and returns its outputs."""
        name = f"{op_type}_{len(self.ops)}"
        self.ops[name] = Op(name, op_type, tuple(inputs), num_outputs, calls, num_iterations, poison)
        return [Symbol(self, name, slot) for slot in range(num_outputs)]

    def argument(self) -> Symbol:
        """Adds an argument."""
        (symbol,) = self.add("Placeholder")
        self.arguments.append(symbol.op_name)
        return symbol

    def capture(self, source: Source) -> Symbol:
        """Returns the symbol of a tensor or a variable in this graph. Adds a Placeholder for a value from outside."""
        if isinstance(source, Symbol) and source.graph is self:
            return source
        if self.around is not None:
            source = self.around.capture(source)
        for known, symbol in self.captures:
            if known == source:
                return symbol
        (symbol,) = self.add("Placeholder")
        self.captures.append((source, symbol))
        return symbol

    def differentiated(self, callee: Graph, arguments: Iterable[Symbol], *, target: Symbol) -> list[Symbol]:
        """Adds a call of a function and the gradient of its first result. Returns the call and the gradient.

        Args:
            callee: The function.
            arguments: The arguments of the call.
            target: An argument, or a variable. The gradient is then applied to the variable.
        """
        return self.add("Gradient", (target, *arguments), num_outputs=2, calls=(callee,))

    def branched(self, predicate: Symbol, branches: list[Graph]) -> list[Symbol]:
        """Adds an If or a Case and returns its results. All branches must have the same number of results."""
        op_type = "If" if len(branches) == 2 else "Case"
        return self.add(op_type, [predicate], num_outputs=len(branches[0].results), calls=tuple(branches))

    def looped(self, start: list[Symbol], *, body: Graph, cond: Graph, num_iterations: int) -> list[Symbol]:
        """Adds a While with a counter, and returns its final loop variables. `start` holds their initial values."""
        inputs = [*self.add("Const"), *start]
        calls = (body, cond)
        return self.add("While", inputs, num_outputs=len(inputs), calls=calls, num_iterations=num_iterations)[1:]


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor from outside."""

    tensor: EagerSymbol
    values: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class EagerOp:
    """An eager op. The op reads or writes `variable` if a variable is given."""

    op_type: str
    inputs: tuple[EagerSymbol, ...]
    output: EagerSymbol | None
    variable: Variable | None = None
    poison: Poison | None = None


@dataclass(frozen=True, eq=False)
class EagerCall:
    """A call of a function from eager code.

    Attributes:
        gradient: The gradient of the first output with respect to `target`, or None.
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
    """A program. `is_large` says if tensors are so large that TensorFlow captures them as arguments."""

    variables: tuple[Variable, ...]
    statements: tuple[Statement, ...]
    is_large: bool
