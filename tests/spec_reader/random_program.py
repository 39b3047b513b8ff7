"""Makes random programs from seeds."""

from __future__ import annotations

import math
import random

from tests.spec_reader.programs import (
    OP_GROUPS,
    Constant,
    EagerCall,
    EagerOp,
    EagerSymbol,
    Graph,
    Poison,
    Program,
    Statement,
    Symbol,
    Variable,
)

_UNARY = ("Neg", "Identity", "Reverse", "SelectV2", "Log", "Sqrt", "Exp", "Unpack")
_BINARY = ("AddV2", "Mul", "Sub", "RealDiv")
_ELEMENTS = [1.0, 0.0, -2.0, 0.5]
_MAX_DEPTH = 3
_MAX_OPS = 6
_MAX_STATEMENTS = 7


def random_program(seed: int) -> Program:
    """Returns a program with loops, branches, gradients, variables, eager ops, and functions that call each other."""
    return _Writer(random.Random(seed)).program()


class _Writer:
    def __init__(self, source: random.Random) -> None:
        self._number = source.randint
        self._choice = source.choice
        self._next_number = 100
        self._num_graphs = 0
        self._variables: list[Variable] = []
        self._functions: list[Graph] = []
        self._eager: list[EagerSymbol] = []
        self._budget = _MAX_OPS * 6
        """The number of ops that may still be added to any graph, so that nested loops and calls stay small."""

    def program(self) -> Program:
        statements: list[Statement] = [self._constant()]
        for _ in range(self._number(1, 2)):
            self._variables.append(Variable(self._new_number(), self._elements()))
        for _ in range(self._number(2, 3)):
            self._functions.append(self._function())
        statements.append(self._call(self._functions[-1]))
        for _ in range(self._number(1, _MAX_STATEMENTS)):
            statements += self._step() if self._number(0, 3) == 3 else [self._statement()]
        return Program(tuple(self._variables), tuple(statements), is_large=self._number(0, 3) == 0)

    # Eager code.

    def _constant(self) -> Constant:
        symbol = self._new_eager()
        self._eager.append(symbol)
        return Constant(symbol, self._elements())

    def _statement(self) -> Statement:
        kind = self._choice(["call", "call", "op", "constant", "read", "assign", "assign_add", "gradient", "gradient"])
        if kind == "constant":
            return self._constant()
        if kind == "call":
            return self._call(self._choice(self._functions))
        if kind == "gradient":
            return self._gradient()
        if kind == "op":
            op_type = self._choice([*_BINARY, *(name for name in _UNARY if name != "Unpack"), *OP_GROUPS])
            inputs = tuple(self._choice(self._eager) for _ in range(2 if op_type in _BINARY else 1))
            poison = None if op_type == "Identity" else self._poison()
            return self._with_output(EagerOp(op_type, inputs, self._new_eager(), poison=poison))
        variable = self._choice(self._variables)
        if kind == "read":
            return self._with_output(EagerOp("ReadVariableOp", (), self._new_eager(), variable))
        op_type = "AssignVariableOp" if kind == "assign" else "AssignAddVariableOp"
        return EagerOp(op_type, (self._choice(self._eager),), None, variable)

    def _step(self) -> list[Statement]:
        """Returns a training step: it reads a variable, calls a function, and updates the variable."""
        variable = self._choice(self._variables)
        read = self._with_output(EagerOp("ReadVariableOp", (), self._new_eager(), variable))
        call = self._call(self._choice(self._functions))
        op_type = self._choice(["AssignAddVariableOp", "AssignVariableOp"])
        return [read, call, EagerOp(op_type, (call.outputs[0],), None, variable)]

    def _call(self, graph: Graph) -> EagerCall:
        arguments = tuple(self._choice(self._eager[-4:]) for _ in graph.arguments)
        outputs = tuple(self._new_eager() for _ in graph.results)
        self._eager += outputs
        return EagerCall(graph, arguments, outputs)

    def _gradient(self) -> EagerCall:
        """Returns a call of a function, with the gradient of its first result for its first argument or a variable."""
        call = self._call(self._choice(self._functions))
        target = self._choice([call.arguments[0], *self._variables])
        gradient = self._new_eager()
        self._eager.append(gradient)
        return EagerCall(call.graph, call.arguments, call.outputs, gradient, target)

    def _with_output(self, op: EagerOp) -> EagerOp:
        assert op.output is not None
        self._eager.append(op.output)
        return op

    # Graphs.

    def _function(self) -> Graph:
        graph = self._graph("function", around=None)
        tensors = [graph.argument() for _ in range(self._number(1, 2))]
        self._fill(graph, tensors, depth=0)
        self._return(graph, tensors, self._number(1, 2))
        return graph

    def _graph(self, name: str, *, around: Graph | None) -> Graph:
        self._num_graphs += 1
        return Graph(f"{name}_{self._num_graphs}", around)

    def _return(self, graph: Graph, tensors: list[Symbol], number: int) -> None:
        """Adds results to a graph. As in TensorFlow, each result has its own Identity."""
        for _ in range(number):
            graph.results += graph.add("Identity", [self._choice(tensors[:-4:-1])])

    def _fill(self, graph: Graph, tensors: list[Symbol], *, depth: int) -> None:
        """Adds ops to a graph and appends their outputs to `tensors`."""
        for _ in range(self._number(2, _MAX_OPS)):
            if self._budget <= 0:
                return
            self._budget -= 1
            self._add(graph, tensors, depth=depth)

    def _add(self, graph: Graph, tensors: list[Symbol], *, depth: int) -> None:
        kinds = ["op", "op", "op", "read", "read", "assign", "assign_add"]
        if depth == 0:
            kinds += ["outside"]
        if self._functions:
            kinds += ["call", "call", "gradient", "gradient", "train"]
        if depth < _MAX_DEPTH:
            kinds += ["branch", "loop", "loop"]
        kind = self._choice(kinds)
        if kind == "op":
            op_type = self._choice([*_BINARY, *_UNARY, *OP_GROUPS])
            # The first input is one of the latest tensors, which makes chains likely.
            inputs = [self._choice(tensors[-3:]), *([self._choice(tensors)] if op_type in _BINARY else [])]
            poison = None if op_type == "Identity" else self._poison()
            tensors += graph.add(op_type, inputs, num_outputs=2 if op_type == "Unpack" else 1, poison=poison)
        elif kind == "outside":
            tensors.append(graph.capture(self._choice(self._eager)))
        elif kind == "read":
            tensors += graph.add("ReadVariableOp", [graph.capture(self._choice(self._variables))])
        elif kind in ("assign", "assign_add"):
            op_type = "AssignVariableOp" if kind == "assign" else "AssignAddVariableOp"
            handle = graph.capture(self._choice(self._variables))
            graph.add(op_type, [handle, self._choice(tensors[-3:])], num_outputs=0)
        elif kind == "call":
            callee = self._choice(self._functions)
            arguments = [self._choice(tensors[-3:]) for _ in callee.arguments]
            tensors += graph.add("Call", arguments, num_outputs=len(callee.results), calls=(callee,))
        elif kind in ("gradient", "train"):
            callee = self._choice(self._functions)
            arguments = [self._choice(tensors[-3:]) for _ in callee.arguments]
            target = graph.capture(self._choice(self._variables)) if kind == "train" else arguments[0]
            tensors += graph.differentiated(callee, arguments, target=target)
        elif kind == "branch":
            tensors += self._branch(graph, tensors, depth=depth)
        else:
            tensors += self._loop(graph, tensors, depth=depth)

    def _branch(self, graph: Graph, tensors: list[Symbol], *, depth: int) -> list[Symbol]:
        num_branches = self._number(2, 3)
        op_type = "Greater" if num_branches == 2 else "ArgMax"
        (predicate,) = graph.add(op_type, [self._choice(tensors[-3:])])
        branches = []
        num_results = self._number(1, 2)
        for _ in range(num_branches):
            branch = self._graph("branch", around=graph)
            inner = [branch.capture(self._choice(tensors[-3:])) for _ in range(self._number(1, 2))]
            self._fill(branch, inner, depth=depth + 1)
            self._return(branch, inner, num_results)
            branches.append(branch)
        return graph.branched(predicate, branches)

    def _loop(self, graph: Graph, tensors: list[Symbol], *, depth: int) -> list[Symbol]:
        start = [self._choice(tensors[-3:]) for _ in range(self._number(1, 2))]
        body, cond = self._graph("while_body", around=graph), self._graph("while_cond", around=graph)
        counter = body.argument()
        inner = [body.argument() for _ in start]
        body.results = body.add("Increment", [counter])
        if self._number(0, 1):
            inner.append(body.capture(self._choice(tensors)))
        self._fill(body, inner, depth=depth + 1)
        for argument in body.arguments[1:]:
            kept = Symbol(body, argument)
            chosen = kept if self._number(0, 3) == 3 else self._choice(inner[:-4:-1])
            body.results += body.add("Identity", [chosen])
        cond.results = cond.add("Less", [cond.argument()])
        seen = [cond.argument() for _ in start]
        if self._number(0, 1):
            cond.add("Sum", [seen[0]])
        return graph.looped(start, body=body, cond=cond, num_iterations=self._number(0, 3))

    # Draws.

    def _poison(self) -> Poison | None:
        if self._number(0, 4) < 4:
            return None
        return Poison(self._choice([math.nan, math.inf, -math.inf]), self._choice([-1, 0, 1]))

    def _elements(self) -> tuple[float, ...]:
        return (self._choice(_ELEMENTS), self._choice(_ELEMENTS))

    def _new_number(self) -> int:
        self._next_number += 1
        return self._next_number

    def _new_eager(self) -> EagerSymbol:
        return EagerSymbol(self._new_number())
