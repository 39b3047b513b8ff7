"""Stack traces and the source text around their frames."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from tfdbg_arrow.query.engine import Engine

_MAX_AT_ONCE = 1000


@dataclass(frozen=True)
class Frame:
    """One frame of a stack.

    Attributes:
        file_path: Path of the source file, as the interpreter used it.
        lineno: Line number, from 1.
        func: Name of the function; `<module>` at the top level of a module.
        code: Text of the line without its indentation; None if the source could not be read.
        owner: `user`, `framework` (TensorFlow, Keras) or `library`.
    """

    file_path: str
    lineno: int
    func: str
    code: str | None
    owner: str

    @property
    def is_user(self) -> bool:
        """Whether the line is in the user's code."""
        return self.owner == "user"


@dataclass(frozen=True)
class SourceLine:
    """One line of a source file: its number, from 1, and its text."""

    lineno: int
    text: str


class StackReader:
    """Reads the stacks of one run, each of them once.

    Args:
        logdir: The logdir.
        run_id: The run.
    """

    def __init__(self, logdir: Engine, *, run_id: str) -> None:
        self._logdir = logdir
        self._run_id = run_id
        self._stack = lru_cache(maxsize=10_000)(self._read_stack)

    def stack(self, stack_trace_id: int | None) -> tuple[Frame, ...]:
        """Returns the frames, innermost first; an empty tuple for None."""
        return () if stack_trace_id is None else self._stack(stack_trace_id)

    def user_sources(self, stack_trace_ids: Iterable[int]) -> dict[int, Frame]:
        """Returns the user's innermost frame of each stack that has one, all read together."""
        ids = sorted(set(stack_trace_ids))
        found: dict[int, Frame] = {}
        for start in range(0, len(ids), _MAX_AT_ONCE):
            some = ids[start : start + _MAX_AT_ONCE]
            rows = self._logdir.rows(
                "SELECT stack_trace_id, file_path, lineno, func, code, owner FROM stack WHERE run_id = ? "
                f"AND owner = 'user' AND stack_trace_id IN ({', '.join('?' * len(some))}) "
                "ORDER BY stack_trace_id, depth",
                [self._run_id, *some],
            )
            for stack_trace_id, *frame in rows:
                found.setdefault(stack_trace_id, Frame(*frame))
        return found

    def _read_stack(self, stack_trace_id: int) -> tuple[Frame, ...]:
        rows = self._logdir.rows(
            "SELECT file_path, lineno, func, code, owner FROM stack "
            "WHERE run_id = ? AND stack_trace_id = ? ORDER BY depth",
            [self._run_id, stack_trace_id],
        )
        return tuple(Frame(*row) for row in rows)


def user_source(stack: tuple[Frame, ...]) -> Frame | None:
    """Returns the user's innermost frame, or None if no frame is the user's."""
    return next((frame for frame in stack if frame.is_user), None)


def source_lines(logdir: Engine, frame: Frame, *, run_id: str, context: int = 3) -> tuple[SourceLine, ...]:
    """Returns the lines around a frame, from the text that the run kept.

    Args:
        logdir: The logdir.
        frame: The frame.
        run_id: The run of the frame.
        context: Number of lines before and after the frame's line.

    Returns:
        The lines in order; none if the run kept no text of the file or the file does not have the line.
    """
    rows = logdir.rows(
        "SELECT source_text FROM source_file WHERE run_id = ? AND file_path = ? AND source_text IS NOT NULL LIMIT 1",
        [run_id, frame.file_path],
    )
    if not rows:
        return ()
    # Only \n ends a line. splitlines() would also split at form feeds and count lines differently than Python.
    lines = str(rows[0][0]).replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if not 1 <= frame.lineno <= len(lines):
        return ()
    first, last = max(1, frame.lineno - context), min(len(lines), frame.lineno + context)
    return tuple(SourceLine(lineno, lines[lineno - 1]) for lineno in range(first, last + 1))
