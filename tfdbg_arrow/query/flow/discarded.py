"""DiscardedResults: results of layers that the program threw away before the training, as in `model(zeros)`.

Such a call only creates the weights. The value that the model returns means nothing: the batch is a dummy, and
statistics of the data still have their initial values.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, pairwise

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.recorded import TensorEvent
from tfdbg_arrow.query.stacks import Frame

_CALL_OF_LAYER = "Layer.__call__"
_WRAPPER = "error_handler"
"""TensorFlow and Keras wrap other functions with this function, so that errors have short stacks."""

_UNUSED = "_"
"""The name that programs give to values that they do not use."""

_Span = tuple[tuple[int, int], tuple[int, int]]
"""The start and the end of a part of a text, as (line, column). Lines count from 1, and columns from 0."""


@dataclass(frozen=True)
class _Statements:
    """The parts of a file that show whether the program uses the value of a call.

    Attributes:
        calls: The calls whose values the program throws away: a statement consists only of the call, or assigns the
            value to `_`, which the file never reads. The last statement of the file is left out, because a notebook
            shows its value.
        returned: The values that statements return, and the elements of returned tuples, lists and dictionaries.
    """

    calls: frozenset[_Span]
    returned: frozenset[_Span]


class DiscardedResults:
    """Finds the results that a program threw away, within one run.

    Args:
        logdir: The logdir.
        flow: The data flow of the run.
        run_id: The run.
    """

    def __init__(self, logdir: Engine, flow: DataFlow, *, run_id: str) -> None:
        self._logdir = logdir
        self._flow = flow
        self._run_id = run_id
        self._stacks = flow.stacks
        self._statements = lru_cache(maxsize=16)(self._read_statements)
        self._is_discarded_at = lru_cache(maxsize=4096)(self._find_whether_discarded)

    def is_discarded(self, row: TensorEvent) -> bool:
        """Returns whether an eager op computed a tensor for a call whose value the program threw away.

        Two conditions must hold. First, a statement consists only of a call, or assigns the value of a call to `_`.
        The call is a call of a layer, or a call of one of the program's functions that returns the value of a layer.
        Second, an optimizer computed something later: otherwise the value may be the purpose of the program.
        """
        execution = self._flow.events.execution(row.execution_index)
        if execution is None or execution.graph_id is not None or self._flow.labels.of(row).role != "forward":
            return False
        stack_id = execution.stack_trace_id
        return self._is_discarded_at(stack_id) and execution.execution_index < self._last_of_optimizer

    @cached_property
    def _last_of_optimizer(self) -> int:
        """The last execution in which an optimizer computed something, or -1 if there is none."""
        ((last,),) = self._logdir.rows(
            "SELECT max(execution_index) FROM (SELECT execution_index FROM execution WHERE run_id = ? AND role = "
            "'optimizer' UNION ALL SELECT t.execution_index FROM tensor_health AS t JOIN graph_op AS o ON "
            "o.run_id = t.run_id AND o.graph_id = t.graph_id AND o.op_name = t.op_name "
            "WHERE t.run_id = ? AND o.role = 'optimizer')",
            [self._run_id, self._run_id],
        )
        return -1 if last is None else int(last)

    def _find_whether_discarded(self, stack_trace_id: int | None) -> bool:
        frames = [frame for frame in self._stacks.stack(stack_trace_id) if not frame.func.endswith(_WRAPPER)]
        for inner, frame in pairwise(frames):
            if not frame.is_user:
                continue
            span, statements = _span(frame), self._statements(frame.file_path)
            if span is None or statements is None:
                return False
            if span in statements.calls:
                return inner.is_user or inner.func == _CALL_OF_LAYER
            if span not in statements.returned:
                return False
        return False

    def _read_statements(self, file_path: str) -> _Statements | None:
        module = self._stacks.module(file_path)
        if module is None:
            return None
        statements = [node for node in ast.walk(module) if node not in module.body[-1:]]
        unused = _values_of_unused_name(module)
        values = (node.value for node in statements if isinstance(node, ast.Expr) or node in unused)
        calls = (value for value in values if isinstance(value, ast.Call))
        returned = (part for node in statements if isinstance(node, ast.Return) for part in _parts(node.value))
        return _Statements(frozenset(map(_span_of, calls)), frozenset(map(_span_of, returned)))


def _span(frame: Frame) -> _Span | None:
    if frame.colno is None or frame.end_colno is None:
        return None
    return (frame.lineno, frame.colno - 1), (frame.lineno, frame.end_colno - 1)


def _values_of_unused_name(module: ast.Module) -> frozenset[ast.Assign]:
    """Returns the assignments to the name `_`, or none of them if the file reads this name."""
    names = [node for node in ast.walk(module) if isinstance(node, ast.Name) and node.id == _UNUSED]
    if any(isinstance(name.ctx, ast.Load) for name in names):
        return frozenset()
    targets = {name for name in names if isinstance(name.ctx, ast.Store)}
    assignments = (node for node in ast.walk(module) if isinstance(node, ast.Assign))
    return frozenset(node for node in assignments if targets.issuperset(node.targets))


def _parts(value: ast.expr | None) -> Iterator[ast.expr]:
    """Yields a value and, if it is a tuple, a list or a dictionary, its elements at any depth."""
    if value is not None:
        yield value
    if isinstance(value, ast.Tuple | ast.List):
        yield from chain.from_iterable(map(_parts, value.elts))
    elif isinstance(value, ast.Dict):
        yield from chain.from_iterable(map(_parts, value.values))


def _span_of(node: ast.stmt | ast.expr) -> _Span:
    end = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
    return (node.lineno, node.col_offset), end
