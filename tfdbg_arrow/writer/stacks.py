"""Converts Python frames into interned stack traces, frames and source files.

The native core interns a stack as a sequence of (code object, instruction). This module converts each new stack into
rows, once per run. The path of a frame determines its `owner`.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from types import CodeType

from tfdbg_arrow.writer.own_frames import PACKAGE_DIRECTORY
from tfdbg_arrow.writer.program import EXECUTE_MAIN_CODE
from tfdbg_arrow.writer.rows import Append, AppendColumns, Row, library_directories
from tfdbg_arrow.writer.source_parts import Columns, Span, executed_part, parse_span, span_of
from tfdbg_arrow.writer.source_text import SourceText, cell_name, source_text

Location = tuple[str, int, str]
"""File path, line number from 1, function name."""

AUTOGRAPH_FILE = "__autograph_generated_file"
"""A part of the paths of files that AutoGraph generates. Source: tensorflow/python/autograph/pyct/loader.py."""
_CALLBACK_FILE = os.path.join("tensorflow", "python", "framework", "op_callbacks.py")
"""TensorFlow's frame between an op and our callback, which is not part of the program."""
_FIRST_TRACEBACK_ID = 1 << 40
"""The first ID for a stack of add_traceback(), far above the IDs of the stacks that the recorder observes."""
_FRAMEWORK_PACKAGES = ("tensorflow", "keras", "tf_keras", "tensorflow_core")
_INSTALLED = re.compile(r".*/(?:site|dist)-packages/")
"""The directories of installed packages, including those of a base interpreter or environment."""


def _framework_directories() -> tuple[str, ...]:
    """Returns the directories of the framework's loaded packages, inside or outside of the library directories."""
    loaded = [getattr(sys.modules.get(name), "__file__", None) for name in _FRAMEWORK_PACKAGES]
    return tuple(os.path.join(os.path.dirname(path), "") for path in loaded if path)


class FrameOwners:
    """Distinguishes frames of the user, of the framework and of other libraries."""

    def __init__(self) -> None:
        self._libraries = library_directories()
        self._frameworks = tuple(
            os.path.join(library, package, "") for library in self._libraries for package in _FRAMEWORK_PACKAGES
        )
        self._frameworks += _framework_directories()

    def owner(self, file_path: str) -> str:
        """Returns `user`, `framework` or `library` for the file path of a code object."""
        if file_path.startswith(self._frameworks):
            return "framework"
        installed = _INSTALLED.match(file_path)
        if installed is not None:
            package = file_path[installed.end() :].partition("/")[0]
            return "framework" if package in _FRAMEWORK_PACKAGES else "library"
        if file_path.startswith((*self._libraries, "<frozen ")):
            return "library"
        return "user"


def lineno_of(code: CodeType, instruction: int) -> int:
    """Returns the line number, from 1, of the instruction at a byte offset; if it has no line, that of its function."""
    for start, end, lineno in code.co_lines():
        if start <= instruction < end and lineno:  # a module's first instruction has line 0
            return lineno
    return max(code.co_firstlineno, 1)


@dataclass(slots=True)
class _Instruction:
    """The location of an instruction.

    The object keeps the code object alive, so that the id of the code object stays valid.

    Attributes:
        location: The location; None for tfdbg_arrow's own code.
        columns: The columns of the executed part of the line; None if the code is not the user's.
        statement: The file and a line of the user's statement that generated code was made from; None for other code.
        frame_id: The id of the instruction's frame; None if no stack has contained the frame yet.
    """

    code: CodeType
    location: Location | None
    columns: Columns
    statement: tuple[str, int] | None
    frame_id: int | None = None


@dataclass
class _NewRows:
    """New rows, and the IDs that are noted with the rows.

    The rows are written before the stacks that refer to them.
    """

    files: list[Row] = field(default_factory=list)
    frames: list[Row] = field(default_factory=list)
    file_ids: dict[str, int] = field(default_factory=dict)
    frame_ids: dict[tuple[Location, Columns], int] = field(default_factory=dict)


class StackTable:
    """The stacks, frames and source files of one run.

    Args:
        append: Adds rows to a table: `append(table_name, rows)`.
        append_columns: Does the same for many rows, given as columns.
        lock: The lock of the recording; see Journal.
        original_location: Maps a line of generated code (file path, lineno) to the user's line that it
            was made from; returns None for an unknown file.
        original_span: Maps the span of a generated expression (file path, span) to the span of the user's expression;
            returns None if it is not known.
    """

    def __init__(
        self,
        append: Append,
        append_columns: AppendColumns,
        *,
        lock: AbstractContextManager[object],
        original_location: Callable[[str, int], Location | None],
        original_span: Callable[[str, Span], Span | None],
    ) -> None:
        self._append, self._append_columns = append, append_columns
        self._original_location, self._original_span = original_location, original_span
        self._owners = FrameOwners()
        self._instructions: dict[tuple[int, int], _Instruction] = {}
        """Instructions by (id of code, instruction), because hash() of a code object is slow; see _Instruction."""
        self._frame_ids: dict[tuple[Location, Columns], int] = {}
        self._file_ids: dict[str, int] = {}
        self._stack_ids: dict[tuple[int, ...], int] = {}
        """Stack ids by the ids of the frames. Two sequences of instructions can have the same frames, if AutoGraph
        converts a function again, or if Python specializes an instruction, which changes its offset."""
        # An ID is never used again, even if an interruption came before it was noted.
        self._next_frame_id, self._next_file_id = itertools.count(), itertools.count()
        self._next_traceback_id = itertools.count(_FIRST_TRACEBACK_ID)
        self._lock = lock
        self._lines: dict[str, SourceText] = {}
        """The text of each file when it was first seen, because a file can change while the program runs."""

    def add(self, stack_id: int, codes: Sequence[CodeType], instructions: Sequence[int], /) -> int:
        """Writes the rows of a stack unless one with the same frames was written; returns the ID of the written stack.

        Args:
            stack_id: The id of a new stack.
            codes: The code object of each frame, innermost first.
            instructions: The byte offset of the instruction that each frame executes.
        """
        located = self._located(codes, instructions)
        new = _NewRows()
        with self._lock:
            return self._write(stack_id, self._frames(located, new), new)

    def add_traceback(self, traceback: Iterable[Location]) -> int:
        """Writes the rows of a stack given by its locations, innermost first; returns its id, or -1 if it is empty."""
        # Frames outside the function that runs the program belong to the command line.
        of_program = itertools.takewhile(
            lambda location: location[0] != EXECUTE_MAIN_CODE.co_filename or location[2] != EXECUTE_MAIN_CODE.co_name,
            traceback,
        )
        located = [self._original_location(path, lineno) or (path, lineno, func) for path, lineno, func in of_program]
        locations = [
            self._with_source(location) for location in located if not location[0].startswith(PACKAGE_DIRECTORY)
        ]
        if not locations:
            return -1
        new = _NewRows()
        with self._lock:
            frame_ids = [self._frame_id(location, None, new) for location in locations]
            return self._write(next(self._next_traceback_id), frame_ids, new)

    def _write(self, stack_id: int, frame_ids: Sequence[int], new: _NewRows) -> int:
        """Writes a stack, given as the ids of its frames, after the rows that it refers to; returns its id.

        Writes nothing if the stack was written before, with another id.
        """
        written = self._stack_ids.get(tuple(frame_ids))
        if written is not None:
            return written
        if new.files:
            self._append("source_file", new.files, partial(self._file_ids.update, new.file_ids))
        if new.frames:
            self._append("stack_frame", new.frames, partial(self._frame_ids.update, new.frame_ids))
        if frame_ids:
            num_frames = len(frame_ids)
            columns = {
                "stack_trace_id": [stack_id] * num_frames,
                "depth": list(range(num_frames)),
                "stack_frame_id": frame_ids,
            }
            self._append_columns("stack_trace", columns)
        self._stack_ids[tuple(frame_ids)] = stack_id
        return stack_id

    def _located(self, codes: Sequence[CodeType], instructions: Sequence[int]) -> list[_Instruction]:
        """Returns the instructions with their locations, innermost first, and reads the files that are new.

        The caller must not hold the lock, because reading a file can take long.
        """
        located: list[_Instruction] = []
        for code, instruction in zip(codes, instructions, strict=True):
            if code is EXECUTE_MAIN_CODE:
                break  # the outer frames belong to the command line
            key = (id(code), instruction)
            frame = self._instructions.get(key)
            if frame is None:
                frame = self._instructions.setdefault(key, _Instruction(code, *self._location(code, instruction)))
            located.append(frame)
        return located

    def _frames(self, located: Iterable[_Instruction], new: _NewRows) -> list[int]:
        """Returns the ids of the frames, innermost first; leaves out our own frames."""
        frame_ids: list[int] = []
        last_line: tuple[str, int] | None = None
        for frame in located:
            location = frame.location
            if location is None:
                continue
            if frame.statement is not None and frame.statement == last_line:
                continue  # helper functions that AutoGraph made from one statement of the user
            last_line = frame.statement or location[:2]
            if frame.frame_id is None:
                frame.frame_id = self._frame_ids.get((location, frame.columns))  # None if the row of the frame is new
            frame_id = self._frame_id(location, frame.columns, new) if frame.frame_id is None else frame.frame_id
            frame_ids.append(frame_id)
        return frame_ids

    def _location(self, code: CodeType, instruction: int) -> tuple[Location | None, Columns, tuple[str, int] | None]:
        """Returns an instruction's location, its columns and, for generated code, the statement that it was made from.

        All three are None for our own code.
        """
        path = code.co_filename
        if path.startswith(PACKAGE_DIRECTORY) or path.endswith(_CALLBACK_FILE):
            return None, None, None
        lineno = lineno_of(code, instruction)
        original = self._original_location(path, lineno)
        if original is not None and original[0].startswith(PACKAGE_DIRECTORY):
            return None, None, None  # AutoGraph converts the user's method together with our wrapper around it
        location = self._with_source(original or (path, lineno, code.co_qualname))
        statement = None if original is None else location[:2]
        # Frames of libraries do not need columns, and their functions are long.
        span = span_of(code, instruction) if self._owners.owner(location[0]) == "user" else None
        lines = self._lines[location[0]]
        if span is not None and original is not None:
            span = self._original_span(path, span)
            # AutoGraph searches for the text of some functions, and can find the text of another function.
            span = span if span is not None and parse_span(span, lines) is not None else None
        if span is None:
            return location, None, statement
        lineno, columns = executed_part(span, lines)
        return location if columns is None else (location[0], lineno, location[2]), columns, statement

    def _with_source(self, location: Location) -> Location:
        """Reads the file of a location, and returns the location; notebook cells get the names that the user knows."""
        path, lineno, func = location
        name = cell_name(path) or path
        if name not in self._lines:
            self._lines.setdefault(name, source_text(path))
        return name, lineno, func

    def _frame_id(self, location: Location, columns: Columns, new: _NewRows) -> int:
        key = location, columns
        frame_id = self._frame_ids.get(key, new.frame_ids.get(key))
        if frame_id is not None:
            return frame_id
        path, lineno, func = location
        colno, end_colno = columns or (None, None)
        frame_id = new.frame_ids[key] = next(self._next_frame_id)
        lines = self._lines[path]
        file_id = self._file_ids.get(path, new.file_ids.get(path))
        if file_id is None:
            file_id = new.file_ids[path] = next(self._next_file_id)
            new.files.append({"source_file_id": file_id, "file_path": path, "source_text": lines.text or None})
        code = lines[lineno - 1].strip() if 1 <= lineno <= len(lines) else ""
        new.frames.append(
            {
                "stack_frame_id": frame_id,
                "source_file_id": file_id,
                "file_path": path,
                "lineno": lineno,
                "func": func,
                "code": code or None,
                "owner": self._owners.owner(path),
                "colno": colno,
                "end_colno": end_colno,
            }
        )
        return frame_id
