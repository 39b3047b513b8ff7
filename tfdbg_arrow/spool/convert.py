"""Converts spool records and rows into Arrow tables, and counts the rows that could not be converted.

A whole batch of records is converted at a time, without Python objects for single events. `spool/records.py` defines
the records, and `schema/tables.py` defines the columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tfdbg_arrow.safe_text import as_utf8
from tfdbg_arrow.schema import arrow_schema
from tfdbg_arrow.schema.dtypes import dtype_name
from tfdbg_arrow.spool.failures import Failures
from tfdbg_arrow.spool.names import Names, compact
from tfdbg_arrow.spool.records import (
    COUNTS,
    MAGNITUDES,
    NO_STEP,
    NO_VALUE,
    NUM_INLINE_DIMS,
    PAYLOAD_BYTES,
    PAYLOAD_LENGTH,
    Batch,
    Flag,
    Ints,
    Kind,
    Mask,
    histogram_width,
    num_buckets,
    num_dims_records,
    num_histogram_records,
)

EVENT_TABLES = (
    *("execution", "execution_input", "execution_output", "execution_error"),
    *("tensor_health", "tensor_value", "input_value", "step_input"),
)
"""The tables that contain events. These tables grow with each op that runs. The other tables describe the program."""
_MAX_DTYPE = 256
"""The numbers of TensorFlow's dtypes are below this, also those of references."""

_SCOPES = ("graph", "execution", "external")


class Converter:
    """Converts records into the event tables of a run."""

    def __init__(self, run_id: str, *, names: Names) -> None:
        self._run_id = run_id
        self._names = names

    def tables(self, batch: Batch, *, values: Mapping[int, bytes]) -> dict[str, pa.Table]:
        """Converts complete groups of records.

        Args:
            batch: The records. The execution_index of a GRAPH_TENSOR is the index of its call, or -1.
            values: The elements of the tensors whose elements are kept, by event_index.

        Returns:
            The tables by name, with their rows in the order of event_index. Tables without rows are left out.
        """
        made: dict[str, pa.Table] = {}
        executions = np.flatnonzero(batch.kind == Kind.EXECUTION)
        if len(executions):
            made["execution"] = self._executions(batch, executions)
            made["execution_input"] = self._inputs(batch)
        outputs = np.flatnonzero(batch.kind == Kind.EXECUTION_TENSOR)
        if len(outputs):
            made["execution_output"] = self._outputs(batch, outputs)
        errors = np.flatnonzero(batch.kind == Kind.EXECUTION_ERROR)
        if len(errors):
            made["execution_error"] = self._errors(batch, errors)
        if len(batch.covered):
            shapes = _shapes(batch, batch.covered)
            made["tensor_health"] = self._tensors(batch, shapes)
            if values:
                made["tensor_value"] = self._values(batch, shapes, values)
        inputs = np.flatnonzero(batch.kind == Kind.INPUT_VALUE)
        if len(inputs) and values:
            made["input_value"] = self._input_values(batch, inputs, values)
        inputs = np.flatnonzero(batch.kind == Kind.STEP_INPUT)
        if len(inputs) and values:
            made["step_input"] = self._step_inputs(batch, inputs, values)
        return {name: table for name, table in made.items() if table.num_rows}

    def devices(self, batch: Batch) -> dict[int, str]:
        """Returns the names of the devices of tensors that get a row, by device ID."""
        devices = batch.field("device", batch.covered)
        ids = np.flatnonzero(np.bincount(devices[devices > 0]))
        names = self._names.of_strings(ids)
        return {int(i): self._names.texts[name] for i, name in zip(ids, names, strict=True) if name >= 0}

    def _table(self, name: str, num_rows: int, columns: Mapping[str, pa.Array]) -> pa.Table:
        return arrow_table(name, columns, num_rows=num_rows, run_id=self._run_id)

    def _executions(self, batch: Batch, rows: Ints) -> pa.Table:
        get = partial(batch.field, rows=rows)
        node, step, stack, part_stack = get("node"), get("step"), get("stack"), get("part_stack")
        forward, layer, role = get("forward_execution"), get("layer"), get("role")
        graphs = self._names.function_graphs(node)
        columns = {
            "execution_index": pa.array(get("execution_index")),
            "event_index": pa.array(batch.event_index[rows]),
            "wall_time_ns": pa.array(get("wall_time_ns")),
            "op_type": _strings(np.maximum(self._names.of_strings(node), 0), self._names.texts),
            "graph_id": _nullable(graphs, graphs >= 0),
            "num_inputs": pa.array(get("num_inputs")),
            "num_outputs": pa.array(get("num_outputs")),
            "stack_trace_id": _nullable(stack, stack >= 0),
            "thread_id": pa.array(get("thread")),
            "step": _nullable(step, step != NO_STEP),
            "forward_execution_index": _nullable(forward, forward >= 0),
            "layer": _strings(self._names.of_strings(np.where(layer > 0, layer, -1)), self._names.texts),
            "role": _strings(self._names.of_strings(np.where(role > 0, role, -1)), self._names.texts),
            "part_stack_trace_id": _nullable(part_stack, part_stack >= 0),
        }
        return self._table("execution", len(rows), columns)

    def _inputs(self, batch: Batch) -> pa.Table:
        kind, heads = batch.kind, batch.heads
        rows = np.flatnonzero(((kind == Kind.EXECUTION) | (kind == Kind.INPUTS)) & (heads >= 0))
        rows = rows[kind[heads[rows]] == Kind.EXECUTION]
        first = np.where(kind[rows] == Kind.INPUTS, batch.field("slot", rows), 0).astype(np.int64)
        counts = np.clip(batch.field("num_inputs", heads[rows]) - first, 0, PAYLOAD_LENGTH)
        places = np.arange(PAYLOAD_LENGTH)
        used = places < counts[:, None]
        columns = {
            "execution_index": pa.array(np.repeat(batch.field("execution_index", heads[rows]), counts)),
            "input_index": pa.array((first[:, None] + places)[used]),
            "tensor_id": pa.array(batch.payload(rows)[used]),
        }
        return self._table("execution_input", int(counts.sum()), columns)

    def _outputs(self, batch: Batch, rows: Ints) -> pa.Table:
        columns = {
            "execution_index": pa.array(batch.field("execution_index", rows)),
            "output_slot": pa.array(batch.field("slot", rows)),
            "tensor_id": pa.array(batch.field("tensor_id", rows)),
            "dtype": _dtypes(batch.field("dtype", rows)),
        }
        return self._table("execution_output", len(rows), columns)

    def _errors(self, batch: Batch, rows: Ints) -> pa.Table:
        columns = {
            "execution_index": pa.array(batch.field("execution_index", rows)),
            "event_index": pa.array(batch.event_index[rows]),
            "wall_time_ns": pa.array(batch.field("wall_time_ns", rows)),
            "error_type": _strings(np.maximum(self._names.of_strings(batch.field("node", rows)), 0), self._names.texts),
        }
        return self._table("execution_error", len(rows), columns)

    def _tensors(self, batch: Batch, shapes: pa.ListArray) -> pa.Table:
        rows, names = batch.covered, self._names
        get = partial(batch.field, rows=rows)
        kind, flags, node = batch.kind[rows], batch.flags[rows], get("node")
        graph, external = kind == Kind.GRAPH_TENSOR, kind == Kind.EXTERNAL_TENSOR
        context = graph & ((flags & Flag.CONTEXT) != 0)
        shaped = (flags & Flag.SHAPE) != 0
        placed, slices = (flags & Flag.PLACED) != 0, get("num_bad_slices")
        graph_ids, op_names, node_types, slots = names.of_nodes(np.where(graph, node, -1))
        op_types = np.where(graph, node_types, names.of_strings(np.where(external, -1, node)))
        slots = np.where(graph, slots, get("slot"))
        execution, tensor_id, device, step = get("execution_index"), get("tensor_id"), get("device"), get("step")
        executed_graph = get("executed_graph")
        call_site = np.full(len(context), -1, dtype=np.int64)
        call_site[context] = names.call_sites(get("call_site")[context], graph_ids=graph_ids[context])
        columns: dict[str, pa.Array] = {
            "event_index": pa.array(batch.event_index[rows]),
            "wall_time_ns": pa.array(get("wall_time_ns")),
            "scope": _strings(kind.astype(np.int64) - 1, _SCOPES),
            "execution_index": _nullable(execution, execution >= 0),
            "step_id": _nullable(get("step_id"), context),
            "frame_id": _nullable(get("frame_id"), context),
            "iteration": _nullable(get("iteration"), context),
            "call_site": _strings(call_site, names.texts),
            "graph_id": _nullable(graph_ids, graph_ids >= 0),
            "op_name": _strings(op_names, names.texts),
            "op_type": _strings(op_types, names.texts),
            "output_slot": _nullable(slots, ~external & (slots >= 0)),
            "tensor_id": _nullable(tensor_id, ~graph & (tensor_id >= 0)),
            "device_id": _nullable(device, device > 0),
            "dtype": _dtypes(get("dtype")),
            "rank": _nullable(get("rank"), shaped),
            "shape": shapes,
            "size": _nullable(get("size"), shaped),
            "has_inf_or_nan": _nullable((flags & Flag.BAD) != 0, (flags & Flag.CHECKED) != 0),
            "step": _nullable(step, step != NO_STEP),
            "is_call_inferred": pa.nulls(len(rows), pa.bool_()),  # a recording observes calls and infers none
            "executed_graph_id": _nullable(executed_graph, graph & (executed_graph >= 0)),
            "first_bad_index": _nullable(get("first_bad_index"), placed),
            "num_bad_slices": _nullable(slices, placed & (slices != NO_VALUE)),
            "scalar_value": _nullable(get("max"), (flags & Flag.SCALAR) != 0),
        }
        for measure in (*COUNTS, *MAGNITUDES):
            numbers = get(measure.field)
            is_measured = numbers >= 0 if numbers.dtype.kind == "i" else ~np.isnan(numbers)
            is_measured &= (flags & measure.flags) == measure.flags
            columns[measure.column] = _nullable(numbers, is_measured)
        columns.update(_histograms(batch, rows))
        return self._table("tensor_health", len(rows), columns)

    def _values(self, batch: Batch, shapes: pa.ListArray, values: Mapping[int, bytes]) -> pa.Table:
        rows, columns = self._elements(batch, batch.covered, shapes, values)
        return self._table("tensor_value", len(rows), {"event_index": pa.array(batch.event_index[rows]), **columns})

    def _input_values(self, batch: Batch, rows: Ints, values: Mapping[int, bytes]) -> pa.Table:
        rows = rows[np.argsort(batch.field("execution_index", rows), kind="stable")]
        rows, columns = self._elements(batch, rows, _shapes(batch, rows), values)
        columns["event_index"] = pa.array(batch.field("execution_index", rows))
        columns["input_index"] = pa.array(batch.field("slot", rows))
        return self._table("input_value", len(rows), columns)

    def _step_inputs(self, batch: Batch, rows: Ints, values: Mapping[int, bytes]) -> pa.Table:
        rows, columns = self._elements(batch, rows, _shapes(batch, rows), values)
        get = partial(batch.field, rows=rows)
        tensor_id = get("tensor_id")
        is_eager = tensor_id >= 0
        graph_ids, op_names, _, slots = self._names.of_nodes(np.where(is_eager, -1, get("node")))
        columns["event_index"] = pa.array(batch.event_index[rows])
        columns["tensor_id"] = _nullable(tensor_id, is_eager)
        columns["graph_id"] = _nullable(graph_ids, graph_ids >= 0)
        columns["op_name"] = _strings(op_names, self._names.texts)
        columns["output_slot"] = _nullable(slots, slots >= 0)
        for name in ("step_id", "frame_id", "iteration"):
            columns[name] = _nullable(get(name), ~is_eager)
        return self._table("step_input", len(rows), columns)

    def _elements(
        self, batch: Batch, rows: Ints, shapes: pa.ListArray, values: Mapping[int, bytes]
    ) -> tuple[Ints, dict[str, pa.Array]]:
        """Returns those of the given rows whose elements are known, and the columns that describe these elements."""
        events = batch.event_index[rows].tolist()
        places = [place for place, event in enumerate(events) if event in values and shapes[place].is_valid]
        return rows[places], {
            "dtype": _dtypes(batch.field("dtype", rows[places])),
            "shape": shapes.take(pa.array(places, pa.int64())),
            "value": pa.array([values[events[place]] for place in places], pa.binary()),
        }


def _shapes(batch: Batch, rows: Ints) -> pa.ListArray:
    """Returns the shapes of tensors. A shape is NULL if it was not measured, or if a DIMS record is missing."""
    has_shape = (batch.flags[rows] & Flag.SHAPE) != 0
    lengths = np.where(has_shape, batch.field("rank", rows).astype(np.int64), 0)
    deep: dict[int, Ints] = {}
    for place in np.flatnonzero(lengths > NUM_INLINE_DIMS).tolist():  # rare
        row = int(rows[place])
        behind = np.arange(row + 1, row + 1 + int(num_dims_records(batch.records[row : row + 1])[0]))
        if behind[-1] < len(batch) and np.all(batch.kind[behind] == Kind.DIMS):
            deep[place] = batch.payload(behind).ravel()[: int(lengths[place]) - NUM_INLINE_DIMS]
        else:
            has_shape[place], lengths[place] = False, 0
    offsets = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    inline = np.arange(NUM_INLINE_DIMS) < lengths[:, None]
    flat = batch.dims(rows)[inline]
    if deep:
        whole = np.empty(int(offsets[-1]), dtype=np.int64)
        whole[(offsets[:-1, None] + np.arange(NUM_INLINE_DIMS))[inline]] = flat
        for place, more in deep.items():
            whole[offsets[place] + NUM_INLINE_DIMS : offsets[place + 1]] = more
        flat = whole
    mask = None if has_shape.all() else pa.array(~has_shape)
    shape_type = arrow_schema("tensor_health").field("shape").type
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat), type=shape_type, mask=mask)


def _histograms(batch: Batch, rows: Ints) -> dict[str, pa.Array]:
    """Returns the columns of histograms. The columns are NULL if a histogram was not measured or is not complete."""
    flags, sizes = batch.flags[rows], batch.field("size", rows)
    measured = (flags & Flag.HISTOGRAM_COUNTED) != 0
    list_type = arrow_schema("tensor_health").field("histogram_negative").type
    if not measured.any():
        nothing = pa.nulls(len(rows), list_type)
        exponent = pa.nulls(len(rows), pa.int32())
        return {"histogram_exponent": exponent, "histogram_negative": nothing, "histogram_positive": nothing}
    behind = np.flatnonzero((batch.kind == Kind.HISTOGRAM) & (batch.heads >= 0))
    expected = num_histogram_records(flags, sizes)
    measured &= np.bincount(batch.heads[behind], minlength=len(batch))[rows] == expected
    expected, lengths = np.where(measured, expected, 0), np.where(measured, num_buckets(flags), 0)
    is_wanted = np.zeros(len(batch), np.bool_)
    is_wanted[rows[measured]] = True
    behind = behind[is_wanted[batch.heads[behind]]]
    # For each HISTOGRAM record, `tensors` has the position of its tensor in `rows`, and `ordinals` has the position of
    # the record among the records of that tensor.
    tensors = np.repeat(np.arange(len(rows)), expected)
    first = np.cumsum(expected) - expected
    ordinals = np.arange(len(behind)) - first[tensors]
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    counts = np.zeros(2 * int(offsets[-1]), dtype=np.int64)
    widths = histogram_width(sizes)[tensors]
    for width in np.unique(widths).tolist():
        own = np.flatnonzero(widths == width)
        length = PAYLOAD_BYTES // width
        places = ordinals[own, None] * length + np.arange(length)
        used = places < 2 * lengths[tensors[own], None]
        num_elements = batch.payload(behind[own]).view(f"<u{width}")
        counts[(2 * offsets[tensors[own], None] + places)[used]] = num_elements[used]
    has_buckets = lengths > 0
    exponents = np.zeros(len(rows), dtype=np.int32)
    exponents[has_buckets] = batch.field("slot", behind[first[has_buckets]])
    mask = None if measured.all() else pa.array(~measured)
    negative, positive = (
        pa.ListArray.from_arrays(
            pa.array(offsets.astype(np.int32)), pa.array(counts[side::2]), type=list_type, mask=mask
        )
        for side in (0, 1)
    )
    return {
        "histogram_exponent": _nullable(exponents, has_buckets),
        "histogram_negative": negative,
        "histogram_positive": positive,
    }


def _strings(ids: Ints, texts: Sequence[str]) -> pa.Array:
    """Returns texts[ids] as an Arrow array; NULL for negative IDs."""
    used, places = compact(ids, len(texts))
    dictionary = pa.array([texts[i] for i in used], pa.string())
    return dictionary.take(_nullable(places, places >= 0))


def _dtypes(numbers: npt.NDArray[Any]) -> pa.Array:
    ids = np.clip(numbers.astype(np.int64), 0, _MAX_DTYPE - 1)
    return _strings(ids, _DTYPE_NAMES)


_DTYPE_NAMES = tuple(dtype_name(number) for number in range(_MAX_DTYPE))


def _nullable(values: npt.NDArray[Any], valid: Mask) -> pa.Array:
    values = np.ascontiguousarray(values)
    return pa.array(values) if valid.all() else pa.array(values, mask=~valid)


def arrow_table(name: str, columns: Mapping[str, pa.Array], *, num_rows: int, run_id: str) -> pa.Table:
    """Makes a table from Arrow arrays, and adds `run_id` and `wall_time`. A missing column becomes NULL."""
    schema = arrow_schema(name)
    arrays = []
    for field in schema:
        if field.name == "run_id":
            array = pa.repeat(pa.scalar(run_id, pa.string()), num_rows)
        elif field.name == "wall_time":
            array = pa.array(columns["wall_time_ns"].to_numpy() // 1000)  # in microseconds
        else:
            array = columns[field.name] if field.name in columns else pa.nulls(num_rows, field.type)
        arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def checked_tables(
    name: str, columns: Mapping[str, Sequence[object]], *, run_id: str, failures: Failures
) -> Iterator[pa.Table]:
    """Yields tables of the valid rows, which are given as columns of equal length.

    Invalid rows are counted as failures. The other arguments have the same meaning as in `metadata_table`.
    """
    try:
        table = column_table(name, columns, run_id=run_id)
    except Exception:
        for row in rows_of_columns(columns):  # keep the valid rows
            given = {key: value for key, value in row.items() if value is not None}
            try:
                yield metadata_table(name, [given], run_id=run_id)
            except Exception as error:
                failures.add(f"table {name}", error, num_events=1)
    else:
        if table.num_rows:
            yield table


def columns_of_rows(rows: Sequence[Mapping[str, object]]) -> dict[str, list[object]]:
    """Converts rows into columns of equal length; a value that a row lacks becomes None."""
    names = dict.fromkeys(key for row in rows for key in row)
    return {name: [row.get(name) for row in rows] for name in names}


def rows_of_columns(columns: Mapping[str, object]) -> list[Mapping[str, object]]:
    """Converts columns into rows. Returns an empty list if the columns do not have the same length."""
    lists = [values for values in columns.values() if isinstance(values, (list, tuple))]
    if len(lists) < len(columns) or len({len(values) for values in lists}) != 1:
        return []
    return [dict(zip(columns, values, strict=True)) for values in zip(*lists, strict=True)]


def column_table(name: str, columns: Mapping[str, Sequence[object]], *, run_id: str) -> pa.Table:
    """Makes a table from columns of equal length. The other arguments and the errors are those of `metadata_table`."""
    schema = arrow_schema(name)
    unknown = sorted(columns.keys() - set(schema.names))
    if unknown:
        raise ValueError(f"rows for table {name} have the columns {unknown}, expected among {schema.names}")
    num_rows = len(next(iter(columns.values()), ()))
    arrays = []
    for field in schema:
        values = columns.get(field.name, [None] * num_rows)
        if field.name == "run_id":
            values = [run_id] * num_rows
        elif field.name == "wall_time":
            times = columns.get("wall_time_ns", values)
            cut = [time // 1000 if isinstance(time, int) else None for time in times]
            values = [given if given is not None else us for given, us in zip(values, cut, strict=True)]
        try:
            array = pa.array(values, type=field.type)
        except UnicodeEncodeError:
            array = pa.array([as_utf8(value) if isinstance(value, str) else value for value in values], type=field.type)
        if array.null_count and not field.nullable:
            raise ValueError(f"rows for table {name} have NULL in {field.name}, expected a value in each row")
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=schema)


def metadata_table(name: str, rows: Sequence[Mapping[str, object]], *, run_id: str) -> pa.Table:
    """Makes a table from rows that are mappings.

    Args:
        name: Name of the table.
        rows: Mappings from column name to value. This function sets `run_id`, and computes a missing `wall_time` from
            `wall_time_ns`. Other missing columns become NULL.
        run_id: The run.

    Raises:
        ValueError: A column does not exist, or a column that is not nullable is NULL.
        pa.ArrowException: A value does not have the type of its column.
    """
    # The length of a column gives the number of rows.
    columns = columns_of_rows(rows) or {"run_id": [None] * len(rows)}
    return column_table(name, columns, run_id=run_id)
