"""Counts the tensors that a program makes, without any of our code: from FunctionDefs and known loop counts.

The program runs without recording. A callback counts the eager ops, a wrapper notes each call of a function,
and a walk through the functions' own definitions counts their tensors.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as eager_context
from tensorflow.python.framework import function_def_to_graph, op_callbacks

from .programs import Program, on_thread_start

Counts = Counter[str]
"""By op type, `Stateful` and `Stateless` taken off; a call of a function is `call`."""


def plain(op_type: str) -> str:
    """Returns an op type as both runs name it: recording makes stateless calls and loops stateful."""
    return op_type.removeprefix("Stateful").removeprefix("Stateless")


@dataclass
class Expected:
    """What a run of a program makes.

    Attributes:
        calls: For each call of a function from eager code, in order of start: the graph tensors of a covered dtype.
        apart: Graph tensors of functions that data sets run.
        eager: Outputs of a covered dtype of eager ops and of calls.
        num_executions: Eager ops and calls.
        num_external: Tensors of a covered dtype that went into an op and that no op made.
    """

    calls: list[Counts] = field(default_factory=list)
    apart: Counts = field(default_factory=Counter)
    eager: Counts = field(default_factory=Counter)
    num_executions: int = 0
    num_external: int = 0


def is_covered(tensor: Any) -> bool:
    dtype = tensor.dtype.base_dtype
    return bool(dtype.is_floating or dtype.is_complex)


def forget_cached_tensors() -> None:
    """Makes TensorFlow forget the zeros, ones and scalars that it keeps for later gradients."""
    eager_context.context()._clear_caches()


class Counting:
    """One bare run of a program."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._lock = threading.RLock()
        self._expected = Expected()
        self._seen: dict[int, Any] = {}
        self._num_ops: Counter[str] = Counter()
        self._graphs: dict[str, Any] = {}
        self._call_index = -1

    def run(self) -> tuple[Any, Expected]:
        """Returns what the program returned, and what it made."""
        forget_cached_tensors()
        with self._observed():
            result = self._program.run()
        return result, self._expected

    @contextmanager
    def _observed(self) -> Iterator[None]:
        original_call = eager_context.Context.call_function
        original_run = threading.Thread.run

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

        eager_context.Context.call_function = call_function
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
                self._seen[id(tensor)] = tensor  # held, so that no other gets its id
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

    def _count(self, function_name: str, times: Fraction, counts: Counts) -> None:
        """Adds the tensors of `times` runs of a function."""
        if times == 0:
            return
        graph = self._graphs.get(function_name)
        if graph is None:
            definition = eager_context.context().get_function_def(function_name)
            graph = self._graphs[function_name] = function_def_to_graph.function_def_to_graph(definition)
        for op in graph.get_operations():
            num = sum(is_covered(tensor) for tensor in op.outputs)
            if num:
                counts[plain(op.type)] += _integer(num * times)
            for name, each in self._called(op):
                into = self._expected.apart if "Dataset" in op.type else counts
                self._count(name, each * times, into)

    def _now(self, times: Any, op_name: str) -> Any:
        """What holds for an op in the call that is being counted."""
        value = times[op_name] if isinstance(times, Mapping) else times
        return value[self._call_index] if isinstance(value, list) else value

    def _called(self, op: Any) -> list[tuple[str, Fraction]]:
        """The functions that an op runs, and how often each time it runs."""
        kind = plain(op.type)
        attributes = op.node_def.attr
        if kind == "PartitionedCall":
            return [(attributes["f"].func.name, Fraction(1))]
        if kind == "While":
            iterations = Fraction(self._now(self._program.iterations, op.name))
            return [(attributes["body"].func.name, iterations), (attributes["cond"].func.name, iterations + 1)]
        if kind in ("If", "Case"):
            names = [attributes[key].func.name for key in ("else_branch", "then_branch") if key in attributes]
            names += [function.name for function in attributes["branches"].list.func]
            times = self._now(self._program.branches, op.name)
            return [(name, Fraction(each)) for name, each in zip(names, times, strict=True)]
        if "Dataset" in kind:
            times = Fraction(self._program.elements.get(kind, 0))
            return [(value.func.name, times) for value in attributes.values() if value.HasField("func")]
        if any(value.HasField("func") for value in attributes.values()):
            raise AssertionError(f"{op.type} runs a function, and this counter does not know how often")
        return []


def _function_name(value: Any) -> str:
    name = value.name
    return name.decode() if isinstance(name, bytes) else str(name)


def _integer(number: Fraction) -> int:
    if number.denominator != 1:
        raise AssertionError(f"{number} tensors: the program's loop counts are wrong")
    return number.numerator
