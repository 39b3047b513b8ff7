"""Writes the source files, frames and stacks of a recorded run into a Debugger V2 dump."""

from __future__ import annotations

from collections import defaultdict

from tfdbg_arrow.writer.debugger_v2.export_files import DumpFiles
from tfdbg_arrow.writer.debugger_v2.export_tables import RunTables
from tfdbg_arrow.writer.debugger_v2.protos.debug_event_pb2 import CodeLocation, DebugEvent

UNKNOWN = "<unknown>"
"""File path, function and id of the frame that replaces an unrecorded stack."""


class Stacks:
    """Writes the source files and frames, and then returns the code locations of stacks.

    The stacks stay in memory, which grows with the program and not with its running time.

    Args:
        tables: The run's tables.
        files: The dump.
        host_name: Host name of the run.
        wall_time: The time for the records, in seconds since 1970-01-01T00:00:00Z.
    """

    def __init__(self, tables: RunTables, files: DumpFiles, *, host_name: str, wall_time: float) -> None:
        self._files, self._host_name, self._wall_time = files, host_name, wall_time
        self._paths: set[str] = set()
        self._num_files = 0
        file_indexes: dict[int, int] = {}
        for file_id, path, text in tables.rows("source_file", ("source_file_id", "file_path", "source_text")):
            file_indexes[file_id] = self._write_file(path, text)
        known: set[int] = set()
        for frame_id, file_id, path, lineno, func in tables.rows(
            "stack_frame", ("stack_frame_id", "source_file_id", "file_path", "lineno", "func")
        ):
            if file_id not in file_indexes:  # the run was killed between the two rows
                file_indexes[file_id] = self._write_file(path, None)
            self._write_frame(str(frame_id), file_indexes[file_id], lineno, func)
            known.add(frame_id)
        self._locations = self._read_stacks(tables, known)
        self._unknown: CodeLocation | None = None

    def location(self, stack_trace_id: int | None, *, needs_frame: bool) -> CodeLocation:
        """Returns the code location of a stack, the outermost frame first.

        Args:
            stack_trace_id: The stack; None if it was not recorded.
            needs_frame: Whether an unknown stack gets one frame that says so; otherwise it has no frames. Debugger V2's
                reader needs this frame to return the stack of an execution.
        """
        found = self._locations.get(stack_trace_id) if stack_trace_id is not None else None
        if found is not None:
            return found
        if not needs_frame:
            return CodeLocation(host_name=self._host_name)
        if self._unknown is None:
            self._write_frame(UNKNOWN, self._write_file(UNKNOWN, None), 0, UNKNOWN)
            self._unknown = CodeLocation(host_name=self._host_name, stack_frame_ids=[UNKNOWN])
        return self._unknown

    def _read_stacks(self, tables: RunTables, known: set[int]) -> dict[int, CodeLocation]:
        frames: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for stack_id, depth, frame_id in tables.rows("stack_trace", ("stack_trace_id", "depth", "stack_frame_id")):
            if frame_id in known:
                frames[stack_id].append((depth, frame_id))
        return {
            stack_id: CodeLocation(
                host_name=self._host_name,
                stack_frame_ids=[str(frame_id) for _, frame_id in sorted(stack, reverse=True)],
            )
            for stack_id, stack in frames.items()
        }

    def _write_file(self, path: str, text: str | None) -> int:
        """Writes a source file and returns its index."""
        # The reader finds a file by its path; a second file with the same path would shift the indexes of later ones.
        name, number = path, 1
        while name in self._paths:
            number += 1
            name = f"{path} ({number})"
        self._paths.add(name)
        event = DebugEvent(wall_time=self._wall_time)
        event.source_file.file_path = name
        event.source_file.host_name = self._host_name
        if text is not None:
            event.source_file.lines.extend(text.split("\n"))
        self._files.write("source_files", event.SerializeToString())
        self._num_files += 1
        return self._num_files - 1

    def _write_frame(self, frame_id: str, file_index: int, lineno: int, func: str) -> None:
        event = DebugEvent(wall_time=self._wall_time)
        frame = event.stack_frame_with_id
        frame.id = frame_id
        frame.file_line_col.file_index = file_index
        frame.file_line_col.line = lineno
        frame.file_line_col.func = func
        self._files.write("stack_frames", event.SerializeToString())
