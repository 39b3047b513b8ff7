"""Reads stack traces and source files of a run: the text of the files, and the ops that ran on each line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.safe_text import parsed_python

_MAX_AT_ONCE = 1000
"""Maximum number of stacks that one statement reads. Each is a parameter of the statement."""
_MAX_KEPT = 10_000
"""Maximum number of stacks that are kept in memory."""
GRADIENT_FUNCS = ("imperative_grad", "_GradientsHelper")
"""The TensorFlow functions that call the gradient functions of ops."""
_FRAME = "file_path, lineno, func, code, owner, colno, end_colno"
"""The attributes of Frame, in order."""
_CELL = re.compile(r"Cell In\[\d+\]")
"""Matches the path of a notebook's cell."""


def line_text(file_path: str, lineno: int | str) -> str:
    """Returns a line of a file as text, such as `/home/me/train.py:9`, or `Cell In[2], line 9` in a notebook."""
    return f"{file_path}, line {lineno}" if _CELL.fullmatch(file_path) else f"{file_path}:{lineno}"


def file_name(file_path: str) -> str:
    """Returns the last part of a path."""
    return file_path.replace("\\", "/").rstrip("/").rpartition("/")[2] or file_path


def short_place(frame: Frame) -> str:
    """Returns the line of a frame as text, with the name of the file only, such as `train.py:9`."""
    return line_text(file_name(frame.file_path), frame.lineno)


@dataclass(frozen=True)
class Frame:
    """One frame of a stack.

    Attributes:
        file_path: Path of the source file, as the interpreter used it.
        lineno: Line number, from 1.
        func: Name of the function; `<module>` at the top level of a module.
        code: Text of the line without its indentation; None if the source could not be read.
        owner: The owner of the code: `user`, `framework` (TensorFlow, Keras) or `library`.
        colno: Position in the line, from 1, of the first character of the expression that the frame executes; None if
            the position was not recorded. See the column `stack_frame.colno` for expressions over several lines.
        end_colno: Position in the line after the last character of this expression; None if `colno` is None.
    """

    file_path: str
    lineno: int
    func: str
    code: str | None
    owner: str
    colno: int | None = None
    end_colno: int | None = None

    @property
    def line(self) -> tuple[str, int, str]:
        """The path, the line number and the function."""
        return self.file_path, self.lineno, self.func

    @property
    def place(self) -> str:
        """The file and the line number as text; see `line_text`."""
        return line_text(self.file_path, self.lineno)

    @property
    def is_user(self) -> bool:
        """Whether the line is in the user's code."""
        return self.owner == "user"


def executed_span(frame: Frame, text: str) -> tuple[int, int] | None:
    """Returns the part of a line that a frame executes, as the arguments of a slice.

    The result is None if the part is not known, or if it is the whole line without its indentation.
    """
    if frame.colno is None or frame.end_colno is None or not 1 <= frame.colno < frame.end_colno <= len(text) + 1:
        return None
    start, end = frame.colno - 1, frame.end_colno - 1
    return None if text[start:end] == text.strip() else (start, end)


@dataclass(frozen=True)
class SourceLine:
    """One line of a source file: its number, from 1, and its text."""

    lineno: int
    text: str


class StackReader:
    """Reads and caches the stacks of one run and the syntax trees of its source files."""

    def __init__(self, logdir: Engine, *, run_id: str) -> None:
        self._logdir = logdir
        self._run_id = run_id
        self._stacks: dict[int, tuple[Frame, ...]] = {}
        self.module = lru_cache(maxsize=16)(self._read_module)

    def _read_module(self, file_path: str) -> ast.Module | None:
        """Returns the syntax tree of a file; None if the run did not keep the file, or if it is not Python code."""
        lines = source_text(self._logdir, file_path, run_id=self._run_id)
        return None if lines is None else parsed_python("\n".join(lines))

    def stack(self, stack_trace_id: int | None) -> tuple[Frame, ...]:
        """Returns the frames, innermost first; an empty tuple for None."""
        if stack_trace_id is None:
            return ()
        self.read([stack_trace_id])
        return self._stacks[stack_trace_id]

    def read(self, stack_trace_ids: Iterable[int]) -> None:
        """Reads the stacks that were not read before, in one query."""
        if len(self._stacks) > _MAX_KEPT:
            self._stacks.clear()
        unread = set(stack_trace_ids) - self._stacks.keys()
        frames: dict[int, list[Frame]] = {stack_trace_id: [] for stack_trace_id in unread}
        for stack_trace_id, frame in self._frames(unread):
            frames[stack_trace_id].append(frame)
        self._stacks.update((stack_trace_id, tuple(stack)) for stack_trace_id, stack in frames.items())

    def _frames(self, stack_trace_ids: Iterable[int], condition: str = "true") -> Iterator[tuple[int, Frame]]:
        """Yields (stack_trace_id, frame) for frames that meet a condition, sorted by stack, innermost frame first."""
        ids = sorted(set(stack_trace_ids))
        for start in range(0, len(ids), _MAX_AT_ONCE):
            some = ids[start : start + _MAX_AT_ONCE]
            rows = self._logdir.rows(
                f"SELECT stack_trace_id, {_FRAME} FROM stack WHERE run_id = ? AND {condition} "
                f"AND stack_trace_id IN ({', '.join('?' * len(some))}) ORDER BY stack_trace_id, depth",
                [self._run_id, *some],
            )
            yield from ((stack_trace_id, Frame(*frame)) for stack_trace_id, *frame in rows)

    def user_lines(self, function: str, *, execution_index: int | None) -> list[tuple[str, int]]:
        """Returns (file, line) of each line that made an op, in the user's functions and methods of a given name.

        Args:
            function: The name of the functions and methods.
            execution_index: The execution whose ops count; None means that all ops count.
        """
        frames = "SELECT file_path, lineno, func, owner FROM stack_frame WHERE run_id = ?"
        parameters: list[object] = [self._run_id]
        if execution_index is not None:
            frames = (
                "SELECT s.file_path, s.lineno, s.func, s.owner FROM tensor_health AS h "
                "JOIN graph_op AS o ON o.run_id = h.run_id AND o.graph_id = h.graph_id AND o.op_name = h.op_name "
                "JOIN stack AS s ON s.run_id = o.run_id AND s.stack_trace_id = o.stack_trace_id "
                "WHERE h.run_id = ? AND h.execution_index = ? AND h.scope = 'graph'"
            )
            parameters.append(execution_index)
        return self._logdir.rows(
            f"SELECT DISTINCT file_path, lineno FROM ({frames}) AS frame WHERE owner = 'user' "
            "AND (func = ? OR func LIKE ?) ORDER BY file_path, lineno",
            [*parameters, function, f"%.{function}"],
        )

    def user_sources(self, stack_trace_ids: Iterable[int]) -> dict[int, Frame]:
        """Returns the user's innermost frame in each stack; omits stacks without a frame of the user.

        All stacks are read in one query.
        """
        sources: dict[int, Frame] = {}
        for stack_trace_id, frame in self._frames(stack_trace_ids, "owner = 'user'"):
            sources.setdefault(stack_trace_id, frame)
        return sources


def user_source(stack: tuple[Frame, ...]) -> Frame | None:
    """Returns the user's innermost frame; None if the stack has no frame of the user."""
    return next((frame for frame in stack if frame.is_user), None)


def library_function_names(stack: tuple[Frame, ...]) -> set[str]:
    """Returns the names of the library functions in a stack, without the names of their classes."""
    return {frame.func.rpartition(".")[2] for frame in stack if not frame.is_user}


def source_lines(logdir: Engine, frame: Frame, *, run_id: str, context: int = 3) -> tuple[SourceLine, ...]:
    """Returns the lines around the line of a frame, from the text that the run kept.

    Args:
        logdir: The logdir.
        frame: The frame.
        run_id: The run of the frame.
        context: Number of lines before and after the frame's line.

    Returns:
        The lines in order; empty if the run kept no text of the file, or if the file does not have the line.
    """
    lines = source_text(logdir, frame.file_path, run_id=run_id) or ()
    if not 1 <= frame.lineno <= len(lines):
        return ()
    first, last = max(1, frame.lineno - context), min(len(lines), frame.lineno + context)
    return tuple(SourceLine(lineno, lines[lineno - 1]) for lineno in range(first, last + 1))


@dataclass(frozen=True)
class SourceFile:
    """One source file of a run.

    Attributes:
        run_id: The run.
        file_path: The path of the file, as the interpreter used it.
        owner: The owner of the code: `user`, `framework` or `library`; None if no recorded stack has a frame in the
            file.
        has_text: Whether the run kept the text of the file.
        num_ops: Number of graph ops whose innermost line in the user's code is in this file.
        num_bad: Number of bad tensors of these ops.
    """

    run_id: str
    file_path: str
    owner: str | None
    has_text: bool
    num_ops: int
    num_bad: int


@dataclass(frozen=True)
class LineUse:
    """The ops and executions of a run on one line of a file.

    If a stack has several lines in the file, only the innermost line counts.

    Attributes:
        lineno: The line number, from 1.
        num_ops: Number of graph ops that the line created.
        num_executions: Number of eager ops and calls that the line ran.
        num_bad: Number of bad tensors that these ops and calls made.
        first_bad_event_index: The event_index of the first of these bad tensors; None if no tensor was bad.
        first_op: The name of the first op, or the type of the first execution, whichever came first.
    """

    lineno: int
    num_ops: int
    num_executions: int
    num_bad: int
    first_bad_event_index: int | None
    first_op: str | None


def source_files(logdir: Engine, *, run_id: str) -> tuple[SourceFile, ...]:
    """Returns the source files of a run: first files with bad tensors, then the user's files, then other files.

    Files of the same group are sorted by path.
    """
    rows = logdir.rows(
        "WITH bad AS (SELECT graph_id, op_name, count(*) AS num_bad FROM tensor_health "
        "WHERE run_id = ? AND has_inf_or_nan AND scope = 'graph' GROUP BY graph_id, op_name), "
        "used AS (SELECT s.file_path, count(*) AS num_ops, CAST(sum(bad.num_bad) AS BIGINT) AS num_bad "
        "FROM op_source AS s LEFT JOIN bad ON bad.graph_id = s.graph_id AND bad.op_name = s.op_name "
        "WHERE s.run_id = ? AND s.file_path IS NOT NULL GROUP BY s.file_path), "
        "owned AS (SELECT file_path, min(owner) AS owner FROM stack_frame WHERE run_id = ? GROUP BY file_path) "
        "SELECT f.file_path, o.owner, f.source_text IS NOT NULL, coalesce(u.num_ops, 0), coalesce(u.num_bad, 0) "
        "FROM source_file AS f LEFT JOIN used AS u ON u.file_path = f.file_path "
        "LEFT JOIN owned AS o ON o.file_path = f.file_path WHERE f.run_id = ? "
        "ORDER BY coalesce(u.num_bad, 0) > 0 DESC, coalesce(o.owner, '') = 'user' DESC, f.file_path",
        [run_id] * 4,
    )
    return tuple(SourceFile(run_id, *row) for row in rows)


def source_text(logdir: Engine, file_path: str, *, run_id: str) -> tuple[str, ...] | None:
    """Returns the lines of a source file; None if the run did not keep the text of the file."""
    rows = logdir.rows(
        "SELECT source_text FROM source_file WHERE run_id = ? AND file_path = ? AND source_text IS NOT NULL LIMIT 1",
        [run_id, file_path],
    )
    if not rows:
        return None
    # Split only at line ends. splitlines() would also split at form feeds, so its line numbers would differ from those
    # of Python.
    return tuple(str(rows[0][0]).replace("\r\n", "\n").replace("\r", "\n").split("\n"))


def line_uses(logdir: Engine, file_path: str, *, run_id: str) -> tuple[LineUse, ...]:
    """Returns the ops and executions of a run on each line of a file, sorted by line number.

    Lines without ops and executions are omitted.
    """
    rows = logdir.rows(
        "WITH place AS (SELECT stack_trace_id, min_by(lineno, depth) AS lineno FROM stack "
        "WHERE run_id = ? AND file_path = ? GROUP BY stack_trace_id), "
        "bad_op AS (SELECT graph_id, op_name, count(*) AS num_bad, min(event_index) AS first_bad FROM tensor_health "
        "WHERE run_id = ? AND has_inf_or_nan AND scope = 'graph' GROUP BY graph_id, op_name), "
        "bad_execution AS (SELECT execution_index, count(*) AS num_bad, min(event_index) AS first_bad "
        "FROM tensor_health WHERE run_id = ? AND has_inf_or_nan AND scope <> 'graph' GROUP BY execution_index), "
        "used AS (SELECT p.lineno, 1 AS num_ops, 0 AS num_executions, b.num_bad, b.first_bad, "
        "o.op_name AS op, o.wall_time_ns FROM graph_op AS o "
        "JOIN place AS p ON p.stack_trace_id = o.stack_trace_id "
        "LEFT JOIN bad_op AS b ON b.graph_id = o.graph_id AND b.op_name = o.op_name WHERE o.run_id = ? "
        "UNION ALL SELECT p.lineno, 0 AS num_ops, 1 AS num_executions, b.num_bad, b.first_bad, "
        "e.op_type AS op, e.wall_time_ns FROM execution AS e "
        "JOIN place AS p ON p.stack_trace_id = e.stack_trace_id "
        "LEFT JOIN bad_execution AS b ON b.execution_index = e.execution_index WHERE e.run_id = ?) "
        "SELECT lineno, CAST(sum(num_ops) AS BIGINT), CAST(sum(num_executions) AS BIGINT), "
        "coalesce(CAST(sum(num_bad) AS BIGINT), 0), min(first_bad), "
        "min_by(op, wall_time_ns) FROM used GROUP BY lineno ORDER BY lineno",
        [run_id, file_path, *[run_id] * 4],
    )
    return tuple(LineUse(*row) for row in rows)
