r"""The storage of a dump's records, and how an export restores them as equal messages in the same order.

The import makes one row of `dump_record` for each record of each of the six files, in the order of
`record_index`. Each row refers to a row of `dump_message`. To restore the record:

1. If `is_whole` is true, `message` is the record byte for byte: write it unchanged. This applies to records that could
   not be parsed, and to records that could not be restored exactly from the tables.
2. Otherwise parse `message` as a DebugEvent, and restore what was removed from it:

   * `wall_time` is `dump_record.wall_time_s`.
   * If `stack_trace_id` is not NULL, the `stack_frame_ids` of the CodeLocation (of a `graph_op_creation` or an
     `execution`) are those of the rows of `stack_trace` with that id, by descending `depth` (a dump lists the outermost
     frame first). The text of a frame's id is `stack_frame_with_id.id` in the message of the record of
     `stack_frames` whose `row_id` is that `stack_frame_id`. The host's name stayed in the message.
   * `source_file.lines` is `source_text.split("\n")` of the row of `source_file` with `source_file_id` = `row_id`;
     it is empty if `source_text` is NULL.
   * `execution.input_tensor_ids` and `execution.output_tensor_ids` are the `tensor_id`s of the rows of
     `execution_input` by `input_index`, and of `execution_output` by `output_slot`, with `execution_index` = `row_id`.
   * The `tensor_content` is restored for each TensorProto for which `is_measured()` is true. The n-th of an execution
     belongs to its n-th row of `tensor_health` by `event_index` (`scope` = 'execution', `execution_index` = `row_id`).
     That of a trace belongs to the row with `event_index` = `row_id`. In health and shape modes, a part of the content
     stayed in the message: append `summary_tail()` of the row's columns to it. In FULL_TENSOR, the content is
     `tensor_content()` of `tensor_value.value` of the row with that `event_index`. If there is no such row, the
     content stayed in the message. If the message lists the elements (`float_val` and so on), it has no content.

Records of the file `graphs` keep everything except their stack in the message, because names are short and differ in
each. A file of a file set exists (possibly without records) if `run.settings` lists it: see `importer.py`.
"""

from __future__ import annotations

import json
import math
import struct
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path, PurePath
from typing import Any

from tfdbg_arrow.debugger_v2.export_tables import Row, RunRow, RunTables, listed, read_stacks, to_rows
from tfdbg_arrow.debugger_v2.file_sets import FILES, DumpFiles
from tfdbg_arrow.debugger_v2.protos.debug_event_pb2 import DebugEvent, TensorDebugMode
from tfdbg_arrow.debugger_v2.protos.tensor_pb2 import DataType, TensorProto
from tfdbg_arrow.errors import BrokenPartError, LogdirError
from tfdbg_arrow.schema.dtypes import decode_strings

_SHAPE: int = TensorDebugMode.SHAPE
NUM_KEPT: dict[int, int] = {
    TensorDebugMode.CURT_HEALTH: 1,
    TensorDebugMode.CONCISE_HEALTH: 1,
    TensorDebugMode.FULL_HEALTH: 3,
    TensorDebugMode.SHAPE: 2,
}
"""Number of a summary's leading numbers that stay in the message: tensor id, and device id and dtype if present."""
NUM_SUMMARY: dict[int, int] = {
    TensorDebugMode.CURT_HEALTH: 2,
    TensorDebugMode.CONCISE_HEALTH: 5,
    TensorDebugMode.FULL_HEALTH: 11,
    TensorDebugMode.SHAPE: 10,
}
"""Number of numbers in a summary."""
NUM_SHAPE_DIMS = 6
"""Number of dimensions in a summary of mode SHAPE."""
TAIL_COLUMNS: dict[int, tuple[str, ...]] = {
    TensorDebugMode.CURT_HEALTH: ("has_inf_or_nan",),
    TensorDebugMode.CONCISE_HEALTH: ("size", "num_neg_inf", "num_pos_inf", "num_nan"),
    TensorDebugMode.FULL_HEALTH: (
        "rank", "size", "num_neg_inf", "num_pos_inf", "num_nan", "num_neg_finite", "num_zero", "num_pos_finite",
    ),
    TensorDebugMode.SHAPE: ("rank", "size"),
}  # fmt: skip
"""Columns of tensor_health with the rest of a summary, in order; in mode SHAPE, the dimensions follow them."""
IMPORTED_BACKEND = "debugger_v2"
"""Value of run.health_backend for an imported run."""
_NO_ELEMENTS = ("dtype", "tensor_shape", "version_number")
"""The fields of a TensorProto that hold no elements. A TensorProto with other fields stayed complete in its message."""
_RECORD_WINDOW = 4096
_HELD_MESSAGE_BYTES = 64 * 2**20
MEASURED_COLUMNS = tuple(dict.fromkeys(name for names in TAIL_COLUMNS.values() for name in names))


def is_measured(tensor: TensorProto, mode: int) -> bool:
    """Returns whether a TensorProto of a dump has measurements, and so a row in tensor_health.

    An execution's message has an empty TensorProto for each output that its mode does not cover.
    """
    if mode in NUM_SUMMARY:
        dims = tensor.tensor_shape.dim
        return bool(tensor.dtype == DataType.DT_DOUBLE and len(dims) == 1 and dims[0].size == NUM_SUMMARY[mode])
    return bool(mode == TensorDebugMode.FULL_TENSOR and tensor.dtype != DataType.DT_INVALID)


def summary_tail(mode: int, values: Sequence[float], shape: Sequence[int] | None = None) -> bytes:
    """Returns the bytes of a summary that follow those that stayed in the message.

    Args:
        mode: A key of TAIL_COLUMNS.
        values: The values of those columns in the row.
        shape: The row's shape, which only mode SHAPE needs.
    """
    numbers = tuple(values)
    if mode == _SHAPE:
        dims = tuple(shape or ())[-NUM_SHAPE_DIMS:]
        numbers += dims + (0,) * (NUM_SHAPE_DIMS - len(dims))
    return struct.pack(f"<{len(numbers)}d", *numbers)


def tensor_content(tensor: TensorProto, value: bytes) -> bytes:
    """Returns the original `tensor_content` of a TensorProto.

    Args:
        tensor: The TensorProto, which has dtype and shape but not its content.
        value: `tensor_value.value`: the elements in row-major order, little-endian; strings as in `schema.strings`.

    Raises:
        ValueError: The dtype is string, and the number of strings does not match the shape.
    """
    if tensor.dtype != DataType.DT_STRING:
        return value
    return pack_strings(decode_strings(value, math.prod(dim.size for dim in tensor.tensor_shape.dim)))


def imported_files(run: RunRow, dump: Path) -> DumpFiles:
    """Returns the files of the imported dump, under their original names, to be written into a directory.

    Raises:
        LogdirError: The run's settings do not list the files, or its import was not finished.
    """
    try:
        made_of = json.loads(run.settings)["debugger_v2"]
        prefix, suffixes = made_of["prefix"], [name for name in FILES if name in made_of["files"]]
        is_finished = bool(made_of["is_finished"])
    except (ValueError, KeyError, TypeError) as error:
        raise LogdirError(
            f"the settings of the imported run {run.run_id} do not say from which files it was made "
            f"({type(error).__name__}: {error}); import the dump again."
        ) from error
    if not is_finished:
        raise LogdirError(
            f"the import of the run {run.run_id} was not finished; run `tfdbg-arrow import` again to finish it."
        )
    if not isinstance(prefix, str) or not prefix or PurePath(prefix).name != prefix:
        raise LogdirError(f"the imported run {run.run_id} has the file prefix {prefix!r}, expected a plain file name.")
    return DumpFiles(dump, prefix, suffixes=suffixes)


class ImportedRunWriter:
    """Writes one imported run into the files of a dump.

    Args:
        tables: The run's tables.
        files: The dump, with the same files as the imported one.
        advance: Called with the number of rows of dump_record that were written.
    """

    def __init__(self, tables: RunTables, *, files: DumpFiles, advance: Callable[[int], None]) -> None:
        self._tables, self._files, self._advance = tables, files, advance
        self._messages = _Messages(tables)
        self._frame_ids: dict[int, str] = {}
        self._sources = tables.keyed("source_file", "source_file_id", ("source_text",))
        self._stacks: dict[int, list[int]] = {}
        self._tensors = _Tensors(tables)

    def write(self) -> None:
        """Writes all records.

        Raises:
            BrokenPartError: A part cannot be read.
            PartGoneError: A part was replaced in the meantime.
            OSError: The dump cannot be written.
        """
        self._stacks = read_stacks(self._tables)
        for file in FILES:  # the ids of frames come before the stacks that refer to them
            columns = ("record_index", "message_id", "wall_time_s", "row_id")
            records = self._tables.keyed("dump_record", "record_index", columns, where=("file", file))
            for _, _, window in records.windows(_RECORD_WINDOW):
                rows = list(to_rows(window))
                if file in ("execution", "graph_execution_traces"):
                    row_ids = [row_id for *_, row_id in rows if row_id is not None]
                    self._tensors.load(row_ids, is_execution=file == "execution")
                for _, message_id, wall_time_s, row_id in rows:
                    self._files.write(file, self._record(file, message_id, wall_time_s, row_id))
                self._advance(len(rows))

    def _record(self, file: str, message_id: int, wall_time_s: float, row_id: int | None) -> bytes:
        is_whole, stack_trace_id, message = self._messages.get(message_id)
        if file == "stack_frames" and row_id is not None:
            frame_id = DebugEvent.FromString(message).stack_frame_with_id.id
            self._frame_ids.setdefault(row_id, frame_id)
        if is_whole:
            return bytes(message)
        event = DebugEvent.FromString(message)
        event.wall_time = wall_time_s
        if file == "source_files" and row_id is not None:
            source = self._sources.get(row_id)
            if source is not None and source[0] is not None:
                event.source_file.lines.extend(source[0].split("\n"))
        elif file == "graphs":
            if stack_trace_id is not None:
                self._add_stack(event.graph_op_creation.code_location, stack_trace_id)
        elif file == "execution" and row_id is not None:
            if stack_trace_id is not None:
                self._add_stack(event.execution.code_location, stack_trace_id)
            event.execution.input_tensor_ids.extend(tensor_id for _, tensor_id in self._tensors.inputs[row_id])
            event.execution.output_tensor_ids.extend(tensor_id for _, tensor_id in self._tensors.outputs[row_id])
            mode = event.execution.tensor_debug_mode
            tensors = [tensor for tensor in event.execution.tensor_protos if is_measured(tensor, mode)]
            rows = self._tensors.of_execution(row_id)
            if len(rows) < len(tensors):
                raise _missing("tensor_health", "execution_index", row_id)
            for tensor, row in zip(tensors, rows, strict=False):
                self._tensors.add_content(tensor, mode, row)
        elif file == "graph_execution_traces" and row_id is not None:
            trace = event.graph_execution_trace
            if is_measured(trace.tensor_proto, trace.tensor_debug_mode):
                row = self._tensors.of_trace(row_id)
                self._tensors.add_content(trace.tensor_proto, trace.tensor_debug_mode, row)
        return bytes(event.SerializeToString())

    def _add_stack(self, location: Any, stack_trace_id: int) -> None:
        location.stack_frame_ids.extend(self._frame_ids[frame_id] for frame_id in self._stacks.get(stack_trace_id, ()))


class _Messages:
    """The rows of dump_message by id; the most recently used ones stay in memory."""

    def __init__(self, tables: RunTables) -> None:
        self._rows = tables.keyed("dump_message", "message_id", ("is_whole", "stack_trace_id", "message"))
        self._held: OrderedDict[int, Row] = OrderedDict()
        self._held_bytes = 0

    def get(self, message_id: int) -> Row:
        """Returns (is_whole, stack_trace_id, message)."""
        row = self._held.get(message_id)
        if row is not None:
            self._held.move_to_end(message_id)
            return row
        row = self._rows.get(message_id)
        if row is None:
            raise _missing("dump_message", "message_id", message_id)
        self._held[message_id] = row
        self._held_bytes += len(row[2])
        while self._held_bytes > _HELD_MESSAGE_BYTES:
            self._held_bytes -= len(self._held.popitem(last=False)[1][2])
        return row


class _Tensors:
    """The data of a window of executions or traces in other tables.

    Attributes:
        inputs: The (input_index, tensor id) pairs of each execution, in order.
        outputs: The (output_slot, tensor id) pairs of each execution, in order.
    """

    def __init__(self, tables: RunTables) -> None:
        key = "execution_index"
        self._all_inputs = tables.keyed("execution_input", key, (key, "input_index", "tensor_id"))
        self._all_outputs = tables.keyed("execution_output", key, (key, "output_slot", "tensor_id"))
        columns = (key, "event_index", "shape", *MEASURED_COLUMNS)
        self._execution_health = tables.keyed("tensor_health", key, columns, where=("scope", "execution"))
        self._trace_health = tables.keyed("tensor_health", "event_index", columns, where=("scope", "graph"))
        self._values = tables.keyed("tensor_value", "event_index", ("value",))
        self.inputs: dict[int, list[tuple[int, int]]] = {}
        self.outputs: dict[int, list[tuple[int, int]]] = {}
        self._health: dict[int, list[Row]] = {}
        self._traces: dict[int, Row] = {}

    def load(self, row_ids: Sequence[int], *, is_execution: bool) -> None:
        """Reads the data of executions (by execution_index) or traces (by event_index)."""
        first, end = (min(row_ids), max(row_ids) + 1) if row_ids else (0, 0)
        if not is_execution:
            self._traces = {row[1]: row[1:] for row in to_rows(self._trace_health.between(first, end))}
            return
        self.inputs, self.outputs = listed(self._all_inputs, first, end), listed(self._all_outputs, first, end)
        self._health = defaultdict(list)
        for row in to_rows(self._execution_health.between(first, end)):
            self._health[row[0]].append(row[1:])

    def of_execution(self, execution_index: int) -> list[Row]:
        """Returns the rows of tensor_health of an execution, in the order of its summaries."""
        return sorted(self._health[execution_index], key=lambda row: row[0])

    def of_trace(self, event_index: int) -> Row:
        """Returns the row of tensor_health of a trace."""
        row = self._traces.get(event_index)
        if row is None:
            raise _missing("tensor_health", "event_index", event_index)
        return row

    def add_content(self, tensor: Any, mode: int, row: Row) -> None:
        """Restores the content that was removed from a TensorProto."""
        event_index, shape, *health = row
        if mode == TensorDebugMode.FULL_TENSOR:
            is_listed = any(field.name not in _NO_ELEMENTS for field, _ in tensor.ListFields())
            value = None if is_listed else self._values.get(event_index)
            if value is not None:
                tensor.tensor_content = tensor_content(tensor, value[0])
            return
        values = dict(zip(MEASURED_COLUMNS, health, strict=True))
        tail = summary_tail(mode, [values[name] for name in TAIL_COLUMNS[mode]], shape)
        tensor.tensor_content += tail


def _missing(table: str, key: str, value: int) -> BrokenPartError:
    return BrokenPartError(
        f"the table {table} has no row with {key} = {value}, which an imported record needs; restore the logdir, or "
        "import the dump again."
    )


def pack_strings(elements: Iterable[bytes]) -> bytes:
    """Returns the content for elements in row-major order."""
    items = list(elements)
    return b"".join((*(_varint(len(item)) for item in items), *items))


def unpack_strings(content: bytes, size: int) -> tuple[bytes, ...] | None:
    """Returns the elements of a content; None if TensorFlow would not write it like this for `size` elements."""
    if size > len(content):
        return None
    lengths: list[int] = []
    length = shift = place = 0
    while len(lengths) < size and place < len(content):
        byte = content[place]
        place += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            lengths.append(length)
            length = shift = 0
    ends = list(accumulate(lengths, initial=place))
    if len(lengths) < size or ends[-1] != len(content):
        return None
    elements = tuple(content[start:end] for start, end in pairwise(ends))
    return elements if pack_strings(elements) == content else None


def _varint(number: int) -> bytes:
    made = bytearray()
    while number >= 0x80:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)
