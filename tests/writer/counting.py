"""Counts the tensors that a program makes, from FunctionDefs and known loop counts, without using the recorder.

The program runs without recording. A callback counts the eager ops. A wrapper notes each call of a function. A walk
through the definitions of the functions counts the tensors of these functions.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context as eager_context
from tensorflow.python.framework import function_def_to_graph, op_callbacks
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

from .programs import Program, on_thread_start

Counts = Counter[str]
"""Counts by op type, without the prefix `Stateful` or `Stateless`. Function calls are counted as `call`."""


CALLS = frozenset({"Case", "If", "PartitionedCall", "While"})
"""TensorFlow replaces these ops with the ops of the functions that they call."""
UNSEEN = CALLS | {"Identity", "IdentityN", "StopGradient"}
"""Ops that are not counted: calls, and ops that TensorFlow removes because they only pass a tensor on."""


def plain(op_type: str) -> str:
    """Returns an op type without its prefix, because a recording makes stateless calls and loops stateful."""
    return op_type.removeprefix("Stateful").removeprefix("Stateless")


@dataclass
class Expected:
    """The tensors that a run of a program makes, and the ops that it runs.

    Attributes:
        calls: Number of graph tensors of a covered dtype in each call of a function from eager code. The calls are in
            the order in which they start.
        apart: Number of graph tensors of functions that data sets run.
        eager: Number of outputs of eager ops and calls that have a covered dtype.
        num_executions: Number of eager ops and calls.
        num_external: Number of tensors of a covered dtype that are inputs of an op, but are not made by an op.
    """

    calls: list[Counts] = field(default_factory=list)
    apart: Counts = field(default_factory=Counter)
    eager: Counts = field(default_factory=Counter)
    num_executions: int = 0
    num_external: int = 0


def is_covered(tensor: Any) -> bool:
    dtype = tensor.dtype.base_dtype
    return bool(dtype.is_floating or dtype.is_complex)


def has_effect(op: Any) -> bool:
    """Returns whether TensorFlow runs an op even if nothing needs its outputs."""
    return bool(op.op_def.is_stateful) and op.type != "ReadVariableOp"


def forget_cached_tensors() -> None:
    """Clears the zeros, ones and scalars that TensorFlow caches for later gradients."""
    eager_context.context()._clear_caches()


@dataclass
class _Callee:
    """A function that an op runs.

    Attributes:
        name: Name of the function.
        times: How often the function runs for each run of the op.
        outputs: The outputs of the function that are needed.
    """

    name: str
    times: Fraction
    outputs: Collection[int]


class Counting:
    """One unrecorded run of a program."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._lock = threading.RLock()
        self._expected = Expected()
        self._seen: dict[int, Any] = {}
        self._num_ops: Counter[str] = Counter()
        self._graphs: dict[str, Any] = {}
        self._call_index = -1

    def run(self) -> tuple[Any, Expected]:
        """Returns the results of the program and the expected counts."""
        forget_cached_tensors()
        with self._observed():
            result = self._program.run()
        return result, self._expected

    @contextmanager
    def _observed(self) -> Iterator[None]:
        original_call = eager_context.Context.call_function
        original_run = threading.Thread.run
        original_execute = pywrap_tfe.TFE_Py_FastPathExecute

        def call_function(ctx: Any, name: Any, inputs: Any, num_outputs: int) -> Any:
            counts: Counts = Counter()
            with self._lock:
                self._call_index = len(self._expected.calls)
                self._expected.calls.append(counts)
                self._count(name.decode() if isinstance(name, bytes) else name, Fraction(1), counts)
            return original_call(ctx, name, inputs, num_outputs)

        def run(thread: threading.Thread) -> None:
            op_callbacks.add_op_callback(self._callback)
            original_run(thread)

        def start_here() -> None:
            if self._callback not in eager_context.context().op_callbacks:
                op_callbacks.add_op_callback(self._callback)

        def execute_op(*arguments: Any) -> Any:
            read = [argument for argument in arguments if isinstance(argument, BaseResourceVariable)]
            with self._lock:
                # Op callbacks do not see the reads. Op callbacks see only the results of reads, as tensors that no op
                # made.
                self._expected.num_executions += len(read)
                self._expected.num_external -= sum(map(is_covered, read))
                self._expected.eager["ReadVariableOp"] += sum(map(is_covered, read))
            return original_execute(*arguments)

        eager_context.Context.call_function = call_function
        pywrap_tfe.TFE_Py_FastPathExecute = execute_op
        threading.Thread.run = run  # type: ignore[method-assign]
        on_thread_start.append(start_here)
        op_callbacks.add_op_callback(self._callback)
        try:
            yield
        finally:
            op_callbacks.remove_op_callback(self._callback)
            on_thread_start.remove(start_here)
            threading.Thread.run = original_run  # type: ignore[method-assign]
            eager_context.Context.call_function = original_call
            pywrap_tfe.TFE_Py_FastPathExecute = original_execute

    def _callback(
        self, op_type: Any, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> None:
        if graph is not None:
            return
        text = op_type.decode() if isinstance(op_type, bytes) else op_type
        with self._lock:
            self._expected.num_executions += 1
            for tensor in inputs:
                if hasattr(tensor, "_id") and id(tensor) not in self._seen:
                    self._seen[id(tensor)] = tensor
                    self._expected.num_external += is_covered(tensor)
            for tensor in outputs:
                self._seen[id(tensor)] = tensor  # keeps the tensor alive, so that its id is not reused
                kind = plain(text) if tf.raw_ops.__dict__.get(text) else "call"
                self._expected.eager[kind] += is_covered(tensor)
            values = list(attrs or ())
            for key, value in zip(values[::2], values[1::2], strict=True):
                if text in self._program.elements and key in ("f", "predicate"):
                    times = self._program.elements[text]
                    if isinstance(times, list):
                        times = times[self._num_ops[text]]
                    self._count(_function_name(value), Fraction(times), self._expected.apart)
            self._num_ops[text] += 1

    def _count(
        self, function_name: str, times: Fraction, counts: Counts, *, outputs: Collection[int] | None = None
    ) -> None:
        """Adds the tensors of `times` runs of a function. Ops that the function's results do not need are left out.

        Args:
            function_name: The function.
            times: How often the function runs.
            counts: The counts to which the tensors are added.
            outputs: If TensorFlow inlines the function, the outputs that are needed. The arguments are then not
                counted. None if TensorFlow does not inline the function, so that all outputs are needed.
        """
        if times == 0:
            return
        graph = self._graph(function_name)
        is_inlined = outputs is not None
        arguments = {tensor.op.name for tensor in graph.inputs}
        needed = self._needed(graph, range(len(graph.outputs)) if outputs is None else outputs)
        for op in graph.get_operations():
            if op.name not in needed or (is_inlined and op.name in arguments):
                continue
            num = sum(is_covered(tensor) for tensor in op.outputs)
            if num and plain(op.type) not in UNSEEN:
                counts[plain(op.type)] += _integer(num * times)
            for callee in self._called(op, needed[op.name]):
                if "Dataset" in op.type:
                    self._count(callee.name, callee.times * times, self._expected.apart)
                else:
                    self._count(callee.name, callee.times * times, counts, outputs=callee.outputs)

    def _graph(self, function_name: str) -> Any:
        graph = self._graphs.get(function_name)
        if graph is None:
            definition = eager_context.context().get_function_def(function_name)
            graph = self._graphs[function_name] = function_def_to_graph.function_def_to_graph(definition)
        return graph

    def _needed(self, graph: Any, outputs: Collection[int]) -> dict[str, set[int]]:
        """Returns the ops that the given outputs and the stateful ops of a graph need, with the needed output slots."""
        arguments = {tensor.op.name for tensor in graph.inputs}
        waiting = [(graph.outputs[index].op, graph.outputs[index].value_index) for index in outputs]
        roots = [op for op in graph.get_operations() if has_effect(op) and op.name not in arguments]
        waiting += [(op, None) for op in (*graph.control_outputs, *roots)]
        needed: dict[str, set[int]] = {}
        while waiting:
            op, slot = waiting.pop()
            is_new = op.name not in needed
            slots = needed.setdefault(op.name, set())
            if not is_new and (slot is None or slot in slots):
                continue
            if slot is not None:
                slots.add(slot)
            waiting += [(op.inputs[index].op, op.inputs[index].value_index) for index in self._needed_inputs(op, slots)]
            waiting += [(each, None) for each in op.control_inputs]
        return needed

    def _needed_inputs(self, op: Any, slots: Collection[int]) -> Collection[int]:
        """Returns the inputs of an op that the given outputs need. For a call, the called functions decide."""
        if plain(op.type) not in CALLS:
            return range(len(op.inputs))
        num_others = len(op.inputs) - len(self._graph(self._function_names(op)[0]).inputs)  # the condition of a branch
        found = set(range(num_others))
        for callee in self._called(op, slots):
            found |= {num_others + index for index in self._needed_arguments(callee.name, callee.outputs)}
        return found

    def _needed_arguments(self, function_name: str, outputs: Collection[int]) -> set[int]:
        graph = self._graph(function_name)
        needed = self._needed(graph, outputs)
        return {index for index, tensor in enumerate(graph.inputs) if tensor.op.name in needed}

    def _now(self, times: Any, op_name: str) -> Any:
        """Returns the entry of `times` for an op and the current call."""
        value = times[op_name] if isinstance(times, Mapping) else times
        return value[self._call_index] if isinstance(value, list) else value

    @staticmethod
    def _function_names(op: Any) -> list[str]:
        attributes = op.node_def.attr
        keys = ("f", "body", "cond", "else_branch", "then_branch")
        names = [attributes[key].func.name for key in keys if key in attributes]
        return names + [function.name for function in attributes["branches"].list.func]

    def _called(self, op: Any, slots: Collection[int]) -> list[_Callee]:
        """Returns the functions that an op runs for the given outputs, and how often it runs each function."""
        kind = plain(op.type)
        names = self._function_names(op)
        if kind == "PartitionedCall":
            return [_Callee(names[0], Fraction(1), slots)]
        if kind == "While":
            iterations = Fraction(self._now(self._program.iterations, op.name))
            variables = self._loop_variables(*names, slots)
            return [_Callee(names[0], iterations, variables), _Callee(names[1], iterations + 1, [0])]
        if kind in ("If", "Case"):
            times = self._now(self._program.branches, op.name)
            return [_Callee(name, Fraction(each), slots) for name, each in zip(names, times, strict=True)]
        functions = [value.func.name for value in op.node_def.attr.values() if value.HasField("func")]
        if "Dataset" in kind:
            times = Fraction(self._program.elements.get(kind, 0))
            return [_Callee(name, times, []) for name in functions]
        if functions:
            raise AssertionError(f"{op.type} runs a function, and this counter does not know how often")
        return []

    def _loop_variables(self, body: str, cond: str, slots: Collection[int]) -> set[int]:
        """Returns the variables of a loop that its condition and the given results need."""
        needed = {*slots, *self._needed_arguments(cond, [0])}
        while True:
            more = self._needed_arguments(body, needed) - needed
            if not more:
                return needed
            needed |= more


def _function_name(value: Any) -> str:
    name = value.name
    return name.decode() if isinstance(name, bytes) else str(name)


def _integer(number: Fraction) -> int:
    if number.denominator != 1:
        raise AssertionError(f"{number} tensors: the program's loop counts are wrong")
    return number.numerator
