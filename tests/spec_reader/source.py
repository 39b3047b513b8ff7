"""Writes random programs as Python source that runs with TensorFlow, one line for each op."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tests.spec_reader.programs import (
    Constant,
    EagerCall,
    EagerOp,
    EagerSymbol,
    Graph,
    Op,
    Poison,
    Program,
    Symbol,
    Variable,
)

IMPORT = "import tensorflow as tf\n"

_OPS = {
    "Identity": "{0} = tf.identity({x})",
    "Neg": "{0} = -{x}",
    "Log": "{0} = tf.math.log({x})",
    "Sqrt": "{0} = tf.sqrt({x})",
    "Exp": "{0} = tf.exp({x} * 30.0)",
    "Reverse": "{0} = tf.reverse({x}, [0])",
    "SelectV2": "{0} = tf.where(tf.math.is_finite({x}), {x}, tf.ones_like({x}))",
    "Unpack": "{0}, {1} = tf.unstack(tf.stack([{x}, -{x}]))",
    "AddV2": "{0} = {x} + {y}",
    "Mul": "{0} = {x} * {y}",
    "Sub": "{0} = {x} - {y}",
    "RealDiv": "{0} = {x} / {y}",
    "Sum": "{0} = tf.reduce_sum({x})",
    "Greater": "{0} = {x}[0] > 0.0",
    "ArgMax": "{0} = tf.where({x}[0] > 0.0, 0, tf.where({x}[0] <= 0.0, 1, 2))",
    "Less": "{0} = {x} < {n}",
    "Increment": "{0} = {x} + 1",
    "Const": "{0} = tf.constant(0)",
    "ReadVariableOp": "{0} = {x}.read_value()",
    "AssignVariableOp": "{x}.assign({y})",
    "AssignAddVariableOp": "{x}.assign_add({y})",
    # Of OP_GROUPS:
    "Float16": "{0} = tf.cast(tf.exp(tf.cast({x}, tf.float16) * 9.0), tf.float32)",
    "BFloat16": "{0} = tf.cast(tf.math.rsqrt(tf.cast({x}, tf.bfloat16)), tf.float32)",
    "Float64": "{0} = tf.cast(tf.math.log1p(tf.cast({x}, tf.float64)), tf.float32)",
    "Complex64": "{0} = tf.math.real(tf.math.log(tf.cast({x}, tf.complex64)))",
    "Integers": "{0} = tf.cast(tf.cast(tf.clip_by_value({x}, -9.0, 9.0), tf.int32) // 2, tf.float32)",
    "Empty": "{0} = tf.concat([{x}, tf.sqrt({x}[:0])], 0)",
    "EmptyMean": "{0} = {x} + tf.reduce_mean({x}[:0])",
    "EmptyMask": "{0} = {x} * tf.reduce_max(tf.boolean_mask({x}, {x} > 0.75))",
    "Cumulative": "{0} = tf.math.cumsum(1.0 / {x})",
    "Broadcast": "{0} = tf.math.divide_no_nan(tf.reduce_max({x}), {x}[:1]) + {x}",
    "TensorArray": """\
{0} = tf.TensorArray(tf.float32, size=3)
_, {0} = tf.while_loop(
    lambda i, a: i < 3,
    lambda i, a: (i + 1, a.write(i, tf.math.log({x} - tf.cast(i, tf.float32)))),
    [tf.constant(0), {0}],
)
{0} = tf.reduce_max({0}.stack(), 0)""",
    "TensorList": """\
{0} = tf.raw_ops.EmptyTensorList(element_shape={x}.shape, max_num_elements=-1, element_dtype=tf.float32)
{0} = tf.raw_ops.TensorListPushBack(input_handle={0}, tensor=tf.sqrt({x}))
{0} = tf.raw_ops.TensorListPushBack(input_handle={0}, tensor={x})
_, {0} = tf.raw_ops.TensorListPopBack(input_handle={0}, element_shape={x}.shape, element_dtype=tf.float32)
{0} = tf.ensure_shape({0}, {x}.shape)""",
    "OldTensorArray": """\
{0} = tf.raw_ops.TensorArrayV3(size=1, dtype=tf.float32)
flow = tf.raw_ops.TensorArrayWriteV3(
    handle={0}[0], index=0, value=tf.sqrt({x}), flow_in={0}[1]
)
{0} = tf.raw_ops.TensorArrayReadV3(handle={0}[0], index=0, flow_in=flow, dtype=tf.float32)
{0} = tf.ensure_shape(tf.stop_gradient({0}), {x}.shape)""",
    "OldStack": """\
stack = tf.raw_ops.StackV2(max_size=-1, elem_type=tf.float32)
with tf.control_dependencies([tf.raw_ops.StackPushV2(handle=stack, elem=tf.math.log({x}))]):
    {0} = tf.raw_ops.StackPopV2(handle=stack, elem_type=tf.float32)
{0} = tf.ensure_shape(tf.stop_gradient({0}), {x}.shape)""",
    "LocalGradient": """\
with tf.GradientTape() as tape:
    tape.watch({x})
    {0} = tf.sqrt({x}) * {x}
    {0} = tf.where({x} > 0.0, {0}, {x})
{0} = tape.gradient({0}, {x})""",
    "SecondGradient": """\
with tf.GradientTape() as outer:
    outer.watch({x})
    with tf.GradientTape() as tape:
        tape.watch({x})
        {0} = tf.math.log({x})
    {0} = tape.gradient({0}, {x})
{0} = outer.gradient({0}, {x})""",
}
"""The lines of each op. `x` and `y` are the inputs, 0 and 1 are the outputs, `n` is the number of iterations."""
_EAGER_STACKS = ("OldTensorArray", "OldStack")
"""Ops that only graphs have. Eager code takes a square root instead."""


def source(program: Program) -> tuple[str, str]:
    """Returns the source that makes the variables, and the source of the rest of a program.

    Run both sources with the same globals. The first source may run before the recording.
    """
    return _Writer(program).source()


class _Writer:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._lines: list[str] = []
        self._indent = ""
        self._names: dict[tuple[Graph, str, int], str] = {}
        self._written: set[Graph] = set()
        # Tensors of more than 128 elements are captured as arguments, and smaller tensors as constants.
        self._repeats = 65 if program.is_large else 1

    def source(self) -> tuple[str, str]:
        variables = [f"v{each.number} = tf.Variable({self._value(each.start)})" for each in self._program.variables]
        for statement in self._program.statements:
            if isinstance(statement, EagerCall):
                self._function(statement.graph)
        for statement in self._program.statements:
            self._statement(statement)
        return "\n".join([IMPORT, *variables, ""]), "\n".join([IMPORT, *self._lines, ""])

    def _value(self, elements: Sequence[float]) -> str:
        return str(list(elements)) + f" * {self._repeats}" * (self._repeats > 1)

    def _add(self, text: str) -> None:
        self._lines += [self._indent + line for line in text.splitlines()]

    # Eager code.

    def _statement(self, statement: Constant | EagerOp | EagerCall) -> None:
        if isinstance(statement, Constant):
            self._add(f"{_eager(statement.tensor)} = tf.constant({self._value(statement.values)})")
        elif isinstance(statement, EagerOp):
            inputs = [] if statement.variable is None else [_eager(statement.variable)]
            inputs += map(_eager, statement.inputs)
            outputs = [] if statement.output is None else [_eager(statement.output)]
            op_type = "Sqrt" if statement.op_type in _EAGER_STACKS else statement.op_type
            self._op(op_type, inputs, outputs, poison=statement.poison)
        else:
            arguments = [_eager(symbol) for symbol in statement.arguments]
            outputs = [_eager(symbol) for symbol in statement.outputs]
            if statement.target is None or statement.gradient is None:
                self._call(statement.graph, arguments, outputs)
            else:
                target = _eager(statement.target)
                self._gradient(statement.graph, arguments, outputs, target, gradient=_eager(statement.gradient))

    def _call(self, graph: Graph, arguments: Sequence[str], outputs: Sequence[str]) -> None:
        self._add(f"[{', '.join(outputs)}] = {graph.name}({', '.join(arguments)})")

    def _gradient(
        self, graph: Graph, arguments: Sequence[str], outputs: Sequence[str], target: str, *, gradient: str
    ) -> None:
        self._add("with tf.GradientTape() as tape:")
        if not target.startswith("v"):
            self._add(f"    tape.watch({target})")
        self._indent += "    "
        self._call(graph, arguments, outputs)
        self._indent = self._indent[4:]
        taken = f"tape.gradient({outputs[0]}, {target}, unconnected_gradients='zero')"
        self._add(f"{gradient} = tf.convert_to_tensor({taken})")

    def _op(
        self,
        op_type: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        *,
        poison: Poison | None = None,
        counter: str | None = None,
        num_iterations: int = 0,
    ) -> None:
        x, y = [*inputs, "", ""][:2]
        self._add(_OPS[op_type].format(*outputs, x=x, y=y, n=num_iterations))
        if poison is not None and outputs:
            self._add("\n".join(_poisoning(poison, outputs[0], counter)))

    # Graphs.

    def _function(self, graph: Graph) -> None:
        """Writes a function, after the functions that it calls."""
        if graph in self._written:
            return
        self._written.add(graph)
        for callee in _callees(graph):
            self._function(callee)
        self._add("@tf.function(autograph=False)")
        self._graph(graph)

    def _graph(self, graph: Graph, *, num_iterations: int = 0, counter: str | None = None) -> None:
        """Writes a graph as a Python function. `counter` is the loop's counter in the graph."""
        arguments = [self._name(Symbol(graph, name)) for name in graph.arguments]
        for outer, inner in graph.captures:
            self._names[graph, inner.op_name, inner.slot] = self._source(graph, outer)
        self._add(f"def {graph.name}({', '.join(arguments)}):")
        self._indent += "    "
        for op in graph.ops.values():
            if op.op_type != "Placeholder":
                self._graph_op(graph, op, num_iterations=num_iterations, counter=counter)
        results = [self._name(result) for result in graph.results]
        self._add(f"return {results[0]}" if num_iterations else f"return [{', '.join(results)}]")
        self._indent = self._indent[4:]
        self._add("")

    def _source(self, graph: Graph, outer: Symbol | Variable | EagerSymbol) -> str:
        if isinstance(outer, Symbol):
            return self._name(outer)
        return _eager(outer)

    def _name(self, symbol: Symbol) -> str:
        key = symbol.graph, symbol.op_name, symbol.slot
        return self._names.setdefault(key, f"t{len(self._names)}")

    def _graph_op(self, graph: Graph, op: Op, *, num_iterations: int, counter: str | None) -> None:
        inputs = [self._name(symbol) for symbol in op.inputs]
        outputs = [self._name(Symbol(graph, op.name, slot)) for slot in range(op.num_outputs)]
        if op.op_type == "Call":
            self._call(op.calls[0], inputs, outputs)
        elif op.op_type == "Gradient":
            callee = op.calls[0]
            results = [outputs[0], *(["_"] * (len(callee.results) - 1))]
            target, *arguments = inputs
            self._gradient(callee, arguments, results, target, gradient=outputs[1])
            if target.startswith("v"):
                apply = "tf.raw_ops.ResourceApplyGradientDescent(var={}.handle, alpha=0.5, delta={})"
                self._add(apply.format(target, outputs[1]))
        elif op.op_type in ("If", "Case"):
            for branch in op.calls:
                self._graph(branch, counter=counter)
            names = [branch.name for branch in op.calls]
            called = f"tf.cond({inputs[0]}, {names[0]}, {names[1]})"
            if op.op_type == "Case":
                called = f"tf.switch_case({inputs[0]}, [{', '.join(names)}])"
            # TensorFlow may return the tensor itself instead of a list with one tensor.
            self._add(f"[{', '.join(outputs)}] = tf.nest.flatten({called})")
        elif op.op_type == "While":
            body, cond = op.calls
            self._graph(cond, num_iterations=op.num_iterations + 1)
            self._graph(body, counter=self._name(Symbol(body, body.arguments[0])))
            self._add(f"{', '.join(outputs)} = tf.while_loop({cond.name}, {body.name}, [{', '.join(inputs)}])")
        else:
            self._op(op.op_type, inputs, outputs, poison=op.poison, counter=counter, num_iterations=num_iterations - 1)


def _eager(source: EagerSymbol | Variable) -> str:
    return f"{'v' if isinstance(source, Variable) else 'e'}{source.number}"


def _callees(graph: Graph) -> Iterator[Graph]:
    """Yields the functions that a graph calls, including calls from its branches and loops."""
    for op in graph.ops.values():
        for callee in op.calls:
            if callee.around is None:
                yield callee
            else:
                yield from _callees(callee)


def _poisoning(poison: Poison, name: str, counter: str | None) -> Iterator[str]:
    """Yields the lines that make a tensor bad: in all runs of its graph, or in one iteration of a loop."""
    if poison.at_run < 0 or counter is None:
        is_bad = "1.0"
        if poison.at_run > 0:
            return
    else:
        is_bad = f"tf.cast(tf.equal({counter}, {poison.at_run}), tf.float32)"
    if math.isnan(poison.value):
        yield f"{name} += tf.sqrt(-{is_bad} * tf.ones_like({name}))"
    elif poison.value > 0:
        yield f"{name} += tf.exp({is_bad} * 100.0 * tf.ones_like({name})) - 1.0"
    else:
        yield f"{name} += tf.math.log(1.0 - {is_bad} * tf.ones_like({name}))"
