"""SkippedUses: results that a program usually uses, but did not use in one step, for example after an overflow."""

from __future__ import annotations

import ast
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.graphs import CHECKS, NEVER_BAD_IN_SQL
from tfdbg_arrow.query.recorded import EagerTensor, Execution, TensorEvent
from tfdbg_arrow.schema.op_traits import WRITER

_QUESTIONS = frozenset({"is_finite", "is_inf", "is_nan", "isfinite", "isinf", "isnan"})
"""The functions of Python, NumPy, TensorFlow and Keras that test whether numbers are bad."""
_QUESTIONS_FOR_BAD = _QUESTIONS - {"is_finite", "isfinite"}
_BLOCK = 16_384
"""The search for users of a line's results reads this many executions at a time."""
_MAX_SOURCES = 100
"""For a tensor that only checks took, at most this many sources are examined."""


@dataclass(frozen=True)
class _ResultsOfLine:
    """How ops used the results of all calls that one line of code makes to a function. Checks do not count as uses.

    Attributes:
        num_finite: The number of finite results.
        last_finite: The last execution with a finite result, or -1.
        last_bad: The last execution with a bad result, or -1.
        are_finite_used: Whether ops used all finite results; None if ops used only some of them.
        is_bad_used: Whether an op used a bad result.
    """

    num_finite: int
    last_finite: int
    last_bad: int
    are_finite_used: bool | None
    is_bad_used: bool


class SkippedUses:
    """Finds the uses that a program skipped, within one run.

    Args:
        logdir: The logdir.
        flow: The data flow of the run.
        eager_writers: The types of eager ops that write to variables.
        run_id: The run.
    """

    def __init__(self, logdir: Engine, flow: DataFlow, *, eager_writers: Sequence[str], run_id: str) -> None:
        self._logdir = logdir
        self._flow = flow
        self._eager_writers = eager_writers
        self._run_id = run_id
        self._users_of_line = lru_cache(maxsize=4096)(self._read_users_of_line)
        self._user_frames = lru_cache(maxsize=64)(self._read_user_frames)
        self._calls_without_error = lru_cache(maxsize=64)(self._read_calls_without_error)
        self._results = lru_cache(maxsize=64)(self._read_results)
        self._stacks = flow.stacks
        self._asks_in_loop = lru_cache(maxsize=64)(self._find_question)
        self._skips_in_loop = lru_cache(maxsize=64)(self._find_skip)
        self._loops_of = lru_cache(maxsize=64)(self._find_loops)

    def is_skipped(self, row: TensorEvent, *, is_taken: bool = True) -> bool:
        """Returns whether the program usually uses a tensor, but skipped this use once and continued.

        In another call, the same line of code must have returned a tensor from which something was computed. The
        program continued if this other call came later, or if an optimizer wrote to a variable afterwards. An optimizer
        that scales the loss writes the new scale when it skips a step.

        A tensor that only checks take, such as the norm of all gradients, counts as skipped if a tensor from which it
        was computed was skipped. A tensor that nothing takes, such as the loss, counts as skipped under the same
        condition, but only if the loop around its line skips bad numbers. An example is `if not np.isfinite(loss):
        continue`.

        In an imported run, several ops of a line have the same stack, so it is not known which op was used.

        Args:
            row: The tensor.
            is_taken: Whether any execution may have taken the tensor.
        """
        execution = self._flow.events.execution(row.execution_index)
        if execution is None or row.scope != "execution":
            return False
        if execution.stack_trace_id is None or not self._flow.labels.has_roles:
            return False
        last = self._last_used(execution, row.output_slot)
        if last >= 0 and max(last, self._last_optimizer_write) > execution.execution_index:
            return True
        return self._is_of_skipped(row) and (is_taken or self._skips_in_loop(execution.stack_trace_id))

    def is_rejected(self, row: TensorEvent) -> bool:
        """Returns whether the program used each finite result of a line, but no bad result, and continued.

        An example is a line search: it compares a new objective with the best objective so far only if the new
        objective is finite. Ops that only test whether a result is bad do not count as uses. There must be several
        finite results, and one of them must come later than the given result. The program may have another criterion
        for the results that it uses. To exclude such a criterion, the loop around the line must call a function such as
        `isfinite`. If ops took none of the finite results, the program took the results as Python numbers. In this
        case, the loop must use a function such as `isfinite` to skip bad numbers, and the called function must not
        write to a variable.
        """
        execution = self._flow.events.execution(row.execution_index)
        # Checked first, because the other checks read all calls of the line.
        if execution is None or not self._asks_in_loop(execution.stack_trace_id):
            return False
        results = self._results_like(row)
        if results is None or results.is_bad_used or results.are_finite_used is None:
            return False
        if results.num_finite < 2 or results.last_finite < execution.execution_index:
            return False
        if results.are_finite_used:
            return True
        is_writing = execution.graph_id is not None and self._writes(execution.graph_id)
        return not is_writing and self._skips_in_loop(execution.stack_trace_id)

    def _find_question(self, stack_trace_id: int | None) -> bool:
        """Returns whether the innermost loop around a line of the program calls a function such as `isfinite`."""
        return any(map(_question, self._nodes_of_loops(stack_trace_id)))

    def _find_skip(self, stack_trace_id: int | None) -> bool:
        """Returns whether the innermost loop around a line of the program skips bad numbers."""
        return any(isinstance(node, ast.If) and _skips(node) for node in self._nodes_of_loops(stack_trace_id))

    def _find_loops(self, file_path: str) -> tuple[ast.For | ast.While, ...]:
        module = self._stacks.module(file_path)
        nodes = () if module is None else ast.walk(module)
        return tuple(node for node in nodes if isinstance(node, ast.For | ast.While))

    def _nodes_of_loops(self, stack_trace_id: int | None) -> Iterator[ast.AST]:
        """Yields the syntax nodes of the innermost loop around each line of the program in a stack."""
        for frame in self._stacks.stack(stack_trace_id):
            loops = self._loops_of(frame.file_path) if frame.is_user else ()
            around = [loop for loop in loops if loop.lineno <= frame.lineno <= (loop.end_lineno or 0)]
            if around:
                yield from ast.walk(max(around, key=lambda loop: loop.lineno))

    def may_be_rejected(self, row: TensorEvent) -> bool:
        """Returns whether the program may have rejected a number that a call returned, as a search over values does.

        Three conditions must hold:

        - No op used a bad result of the line, or ops only made scalars for Python from this number.
        - The last result of the line is finite.
        - The function changes no variable.
        """
        execution = self._flow.events.execution(row.execution_index)
        if execution is None or execution.graph_id is None or row.scope != "execution" or row.shape != ():
            return False
        results = self._results_like(row)
        if results is None or self._writes(execution.graph_id):
            return False
        if results.is_bad_used and not self._is_used_for_numbers(row):
            return False
        return results.last_finite > results.last_bad

    def _is_used_for_numbers(self, row: TensorEvent) -> bool:
        """Returns whether ops made only scalars from a tensor and no op takes the scalars, as in `float(new - old)`."""
        uses = () if row.tensor_id is None else self._flow.events.uses(row.tensor_id)
        made = [self._flow.events.execution_outputs(use.execution.execution_index) for use in uses]
        tensor_ids = [tensor_id for outputs in made for tensor_id, _ in outputs.values()]
        results = [self._flow.events.eager(tensor_id).event for tensor_id in tensor_ids]
        are_scalars = all(result is not None and result.shape == () for result in results)
        return bool(results) and are_scalars and not any(map(self._flow.events.uses, tensor_ids))

    def _writes(self, graph_id: int) -> bool:
        """Returns whether a function writes to a variable."""
        graphs = self._flow.graphs
        op_types = (op.op_type for part in graphs.parts(graph_id) for op in graphs.graph(part).ops.values())
        return any(map(WRITER.fullmatch, op_types))

    def _results_like(self, row: TensorEvent) -> _ResultsOfLine | None:
        """Returns how ops used the results of the line that returned a tensor, or None if this is not known."""
        execution = self._flow.events.execution(row.execution_index)
        if execution is None or row.scope != "execution":
            return None
        if execution.stack_trace_id is None or not self._flow.labels.has_roles:
            return None
        return self._results(self._traces_of_function(execution), execution.stack_trace_id, row.output_slot or 0)

    def _read_results(self, functions: tuple[str, ...], stack_trace_id: int, output_slot: int) -> _ResultsOfLine:
        stacks = self._stacks_of_line(functions, stack_trace_id)
        results = (
            "SELECT max(e.execution_index) AS last, bool_or(coalesce(h.has_inf_or_nan, false)) AS is_bad, "
            f"coalesce(bool_or(u.op_type NOT IN ({', '.join('?' * len(CHECKS))})), false) AS is_used "
            "FROM execution AS e "
            "JOIN execution_output AS o ON o.run_id = e.run_id AND o.execution_index = e.execution_index "
            "LEFT JOIN tensor_health AS h ON h.run_id = o.run_id AND h.tensor_id = o.tensor_id "
            "AND h.execution_index = o.execution_index AND h.scope = 'execution' "
            "LEFT JOIN execution_input AS i ON i.run_id = o.run_id AND i.tensor_id = o.tensor_id "
            "LEFT JOIN execution AS u ON u.run_id = i.run_id AND u.execution_index = i.execution_index "
            f"WHERE e.run_id = ? AND e.op_type IN ({', '.join('?' * len(functions))}) "
            f"AND e.stack_trace_id IN ({', '.join('?' * len(stacks))}) AND o.output_slot = ? GROUP BY o.tensor_id"
        )
        (row,) = self._logdir.rows(
            "SELECT count(*) FILTER (WHERE NOT is_bad), coalesce(max(last) FILTER (WHERE NOT is_bad), -1), "
            "coalesce(max(last) FILTER (WHERE is_bad), -1), "
            "CASE WHEN bool_and(is_used) FILTER (WHERE NOT is_bad) THEN true "
            "WHEN NOT coalesce(bool_or(is_used) FILTER (WHERE NOT is_bad), false) THEN false END, "
            f"coalesce(bool_or(is_used) FILTER (WHERE is_bad), false) FROM ({results}) AS t",
            [*sorted(CHECKS), self._run_id, *functions, *stacks, output_slot],
        )
        return _ResultsOfLine(*row)

    def _is_of_skipped(self, row: TensorEvent) -> bool:
        """Returns whether a tensor comes from a tensor with skipped uses, and nothing except checks took it."""
        uses = () if row.tensor_id is None else self._flow.events.uses(row.tensor_id)
        if not all(use.execution.op_type in CHECKS for use in uses):
            return False
        executions, seen = [row.execution_index or 0], {row.tensor_id}
        while executions and len(seen) < _MAX_SOURCES:
            for tensor_id in self._flow.events.execution_inputs(executions.pop()).values():
                source = self._flow.events.eager(tensor_id)
                if tensor_id in seen or source.event is None or not source.event.has_inf_or_nan:
                    continue
                if self._has_more_uses_later(source):
                    return True
                seen.add(tensor_id)
                executions += [] if source.execution_index is None else [source.execution_index]
        return False

    def _has_more_uses_later(self, tensor: EagerTensor) -> bool:
        """Returns whether ops of other types took a tensor that the same line of code returned later."""
        execution = self._flow.events.execution(tensor.execution_index)
        if execution is None or execution.stack_trace_id is None:
            return False
        own_users = {use.execution.op_type for use in self._flow.events.uses(tensor.tensor_id)}
        return self._last_used(execution, tensor.output_slot, other_users=own_users) > execution.execution_index

    @cached_property
    def _last_optimizer_write(self) -> int:
        """The last execution in which eager code of an optimizer wrote to a variable, or -1 if there is none."""
        if not self._eager_writers:
            return -1
        ((last,),) = self._logdir.rows(
            "SELECT max(execution_index) FROM execution WHERE run_id = ? AND role = 'optimizer' "
            f"AND op_type IN ({', '.join('?' * len(self._eager_writers))})",
            [self._run_id, *self._eager_writers],
        )
        return -1 if last is None else int(last)

    def _last_used(self, execution: Execution, output_slot: int | None, *, other_users: Collection[str] = ()) -> int:
        """Returns the last execution of the same line whose output was used to compute something, or -1.

        Only the executions around the given one and the last ones of the run are searched.

        Args:
            execution: An execution with a stack.
            output_slot: The output.
            other_users: Types of ops and names of functions that do not count as users.
        """
        assert execution.stack_trace_id is not None
        own, final = execution.execution_index // _BLOCK, self._last_execution // _BLOCK
        last_blocks = (max(final - 1, 0), final)
        around = (max(own - 1, 0), min(own + 1, last_blocks[0] - 1))
        for blocks in (last_blocks, around):
            if blocks[0] > blocks[1]:
                continue
            last_by_user = self._users_of_line(execution.op_type, execution.stack_trace_id, *blocks)
            of_others = last_by_user.get(output_slot or 0, {}).items()
            lasts = [last for user, last in of_others if user not in other_users]
            if lasts:
                return max(lasts)
        return -1

    @cached_property
    def _last_execution(self) -> int:
        rows = self._logdir.rows("SELECT max(execution_index) FROM execution WHERE run_id = ?", [self._run_id])
        return -1 if rows[0][0] is None else int(rows[0][0])

    def _read_users_of_line(
        self, op_type: str, stack_trace_id: int, first_block: int, last_block: int
    ) -> dict[int, dict[str, int]]:
        """Returns the last execution of a line whose output was used to compute something, by output slot and user.

        If a gradient op made the output, gradient ops that took the output do not count: an optimizer or the program
        must have taken the output.

        Args:
            op_type: The op type, or the name of the function.
            stack_trace_id: A stack with the line.
            first_block: The first block of the run's executions in which to consider executions of the line.
            last_block: The last such block. Users are considered up to the end of the next block.

        Returns:
            The execution_index, by output slot and by user. A user is the type of an op or the name of a function.
        """
        writers = self._eager_writers or ["AssignVariableOp"]
        stacks = self._stacks_of_line((op_type,), stack_trace_id)
        # Without the aggregate in this subquery, DuckDB may join the line's executions with all executions that could
        # be users.
        taken = (
            "SELECT o.output_slot, i.execution_index AS user_index, coalesce(e.role, '') = 'gradient' AS is_gradient, "
            "max(e.execution_index) AS last FROM execution AS e "
            "JOIN execution_output AS o ON o.run_id = e.run_id AND o.execution_index = e.execution_index "
            "JOIN execution_input AS i ON i.run_id = o.run_id AND i.tensor_id = o.tensor_id "
            "WHERE e.run_id = ? AND e.execution_index BETWEEN ? AND ? AND o.execution_index BETWEEN ? AND ? "
            "AND i.execution_index BETWEEN ? AND ? "
            f"AND e.op_type = ? AND e.stack_trace_id IN ({', '.join('?' * len(stacks))}) "
            "GROUP BY o.output_slot, i.execution_index, coalesce(e.role, '') = 'gradient'"
        )
        first, last = first_block * _BLOCK, (last_block + 1) * _BLOCK - 1
        users: dict[int, dict[str, int]] = {}
        for output_slot, user, index in self._logdir.rows(
            f"SELECT t.output_slot, u.op_type, max(t.last) FROM ({taken}) AS t "
            "JOIN execution AS u ON u.execution_index = t.user_index "
            "LEFT JOIN execution_output AS m ON m.run_id = u.run_id AND m.execution_index = u.execution_index "
            "WHERE u.run_id = ? AND NOT (t.is_gradient AND coalesce(u.role, '') = 'gradient') "
            f"AND (u.graph_id IS NOT NULL OR u.op_type IN ({', '.join('?' * len(writers))}) "
            f"OR (m.output_slot IS NOT NULL AND coalesce(m.dtype, '') NOT IN ({NEVER_BAD_IN_SQL}))) "
            "GROUP BY t.output_slot, u.op_type",
            [self._run_id, first, last, first, last, first, last + _BLOCK, op_type, *stacks, self._run_id, *writers],
        ):
            users.setdefault(output_slot, {})[user] = index
        return users

    def next_call(self, execution_index: int) -> int | None:
        """Returns the next execution in which the same line of code called the same function without an error.

        TensorFlow may have traced the function again in between, for example for arguments of another shape.
        """
        execution = self._flow.events.execution(execution_index)
        if execution is None or execution.stack_trace_id is None:
            return None
        calls = self._calls_without_error(self._traces_of_function(execution), execution.stack_trace_id)
        next_index = bisect_right(calls, execution_index)
        return calls[next_index] if next_index < len(calls) else None

    def _read_calls_without_error(self, functions: tuple[str, ...], stack_trace_id: int) -> tuple[int, ...]:
        """Returns the executions in which the line of a stack called one of the functions without error, in order."""
        stacks = self._stacks_of_line(functions, stack_trace_id)
        rows = self._logdir.rows(
            "SELECT e.execution_index FROM execution AS e LEFT JOIN execution_error AS x "
            "ON x.run_id = e.run_id AND x.execution_index = e.execution_index "
            "WHERE e.run_id = ? AND x.error_type IS NULL "
            f"AND e.op_type IN ({', '.join('?' * len(functions))}) "
            f"AND e.stack_trace_id IN ({', '.join('?' * len(stacks))}) ORDER BY e.execution_index",
            [self._run_id, *functions, *stacks],
        )
        return tuple(index for (index,) in rows)

    def _traces_of_function(self, execution: Execution) -> tuple[str, ...]:
        """Returns the functions that TensorFlow made from the Python function that an execution called."""
        graphs = self._flow.graphs
        name = None if execution.graph_id is None else graphs.names.get(execution.graph_id)
        traces = (
            function for function, graph_id in graphs.function_graphs.items() if graphs.names.get(graph_id) == name
        )
        return (execution.op_type,) if name is None else tuple(traces)

    def _stacks_of_line(self, op_types: tuple[str, ...], stack_trace_id: int) -> list[int]:
        """Returns the stacks in which the same lines of the program called functions. An op has only its own stack.

        The first calls of a function pass through other frames of TensorFlow than later calls. If a library executes
        several ops for one line of the program, their stacks differ only in the frames of the library.
        """
        lines = self._user_frames(op_types)
        own = lines.get(stack_trace_id)
        return [stack_trace_id] if own is None else [stack for stack, frames in lines.items() if frames == own]

    def _read_user_frames(self, functions: tuple[str, ...]) -> dict[int, list[int]]:
        """Returns, by stack, the frames of the program's own code in all calls of the functions."""
        frames: dict[int, list[int]] = {}
        for stack, frame in self._logdir.rows(
            "SELECT t.stack_trace_id, t.stack_frame_id FROM stack_trace AS t "
            "JOIN stack_frame AS f ON f.run_id = t.run_id AND f.stack_frame_id = t.stack_frame_id "
            "WHERE t.run_id = ? AND f.owner = 'user' AND t.stack_trace_id IN "
            "(SELECT stack_trace_id FROM execution WHERE run_id = ? AND graph_id IS NOT NULL "
            f"AND op_type IN ({', '.join('?' * len(functions))})) ORDER BY t.stack_trace_id, t.depth",
            [self._run_id, self._run_id, *functions],
        ):
            frames.setdefault(stack, []).append(frame)
        return frames


def _question(node: ast.AST) -> str | None:
    """Returns the name of the called function if a call tests whether numbers are bad; None for other nodes."""
    if not isinstance(node, ast.Call):
        return None
    name = getattr(node.func, "attr", getattr(node.func, "id", None))
    return name if name in _QUESTIONS else None


def _skips(condition: ast.If) -> bool:
    """Returns whether an `if` runs its body only for finite numbers, or leaves the iteration for bad numbers."""
    nodes = list(ast.walk(condition.test))
    asked = {name for node in nodes if (name := _question(node)) is not None}
    if not asked:
        return False
    is_negated = any(isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert) for node in nodes)
    is_for_bad = asked.isdisjoint(_QUESTIONS_FOR_BAD) == is_negated
    return not is_for_bad or any(
        isinstance(node, ast.Continue | ast.Break) for part in condition.body for node in ast.walk(part)
    )
