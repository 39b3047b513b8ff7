"""Spool records -> Arrow tables, a whole batch at a time: no Python object per event.

Source: writer/records.py for the records, schema/tables.py for the columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tfdbg_arrow.schema import arrow_schema
from tfdbg_arrow.schema.dtypes import dtype_name
from tfdbg_arrow.writer.records import (
    NO_STEP,
    NUM_INLINE_DIMS,
    PAYLOAD_LENGTH,
    RECORD_DTYPE,
    RECORD_SIZE,
    Flag,
    Kind,
)

Records = npt.NDArray[np.void]
"""An array of RECORD_DTYPE. Copy it by `pick` and `join_records`: NumPy itself copies the fields one by one, which
is slow and loses the bytes that are no field, such as a payload's last integer."""
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_FIELDS: dict[str, tuple[np.dtype[Any], int]] = {n: f[:2] for n, f in (RECORD_DTYPE.fields or {}).items()}
_RAW = np.dtype(f"V{RECORD_SIZE}")
_WORDS = RECORD_SIZE // 8
_PAYLOAD_WORD = _WORDS - PAYLOAD_LENGTH
_TRANSPOSE_ROWS = 512
"""Records transposed at a time: 128 KiB, which stay in the cache."""
_MAX_DTYPE = 256
_SCOPES = ("graph", "execution", "external")
_COUNTS = ("num_neg_inf", "num_pos_inf", "num_nan")
_SIGNS = ("num_neg_finite", "num_zero", "num_pos_finite")
_MAGNITUDES = {"min_finite": "min", "max_finite": "max", "mean_finite": "mean", "stddev_finite": "stddev"}


class Strings(Protocol):
    """Where interned strings come from."""

    def strings(self, start: int) -> list[str]:
        """Returns the interned strings from id `start` on; id 0 is the empty one."""


class TensorNodes(Protocol):
    """Keys of graph tensors, given out by the hooks' graph registry; append-only."""

    def nodes(self, start: int) -> Sequence[tuple[int, str, str, int]]:
        """Returns (graph_id, op_name, op_type, output_slot) of the keys from `start` on."""


class CallGraph(Protocol):
    """What is known of functions and of the graphs that run inline in others."""

    def graph_id_of_function(self, function_name: str) -> int | None:
        """Returns the graph of a runtime function; None for an op and for an unrecorded function."""

    def reaches(self, graph_id: int, inner_graph_id: int) -> bool:
        """Returns whether `inner_graph_id` runs inline in a call of `graph_id`; True if they are equal."""

    def call_site(self, path: str, inner_graph_id: int) -> str:
        """Returns a call site in the op names of the graphs, given the runtime's path of node names."""


class Names:
    """The names that records refer to by number, kept level with the recorder and the registry."""

    def __init__(self, strings: Strings, *, nodes: TensorNodes, call_graph: CallGraph) -> None:
        self._source, self._nodes, self._call_graph = strings, nodes, call_graph
        self._ids: dict[str, int] = {}
        self.texts: list[str] = []
        """Distinct names; a name id points here."""
        self._string_ids: list[int] = []
        self._node_rows: list[tuple[int, int, int, int]] = []
        self._function_graphs: dict[int, int] = {}
        self._call_sites: dict[tuple[int, int], int] = {}
        self.refresh()

    def refresh(self) -> None:
        """Takes over what was added; call it after a drain, so that all that the records name is known."""
        for text in self._source.strings(len(self._string_ids)):
            self._string_ids.append(self._intern(text))
        for graph_id, op_name, op_type, slot in self._nodes.nodes(len(self._node_rows)):
            self._node_rows.append((graph_id, self._intern(op_name), self._intern(op_type), slot))
        self._strings_array = np.array(self._string_ids, dtype=np.int64)
        self._nodes_array = np.array(self._node_rows, dtype=np.int64).reshape(-1, 4)

    def _intern(self, text: str) -> int:
        found = self._ids.get(text)
        if found is None:
            found = self._ids[text] = len(self.texts)
            self.texts.append(text)
        return found

    def of_strings(self, ids: npt.NDArray[Any]) -> Ints:
        """Returns the name ids of interned strings, -1 for ids that do not exist."""
        return _lookup(self._strings_array, ids)

    def of_nodes(self, keys: npt.NDArray[Any]) -> tuple[Ints, Ints, Ints, Ints]:
        """Returns graph ids, name ids of op names and op types, and slots; -1 for keys that do not exist."""
        table = self._nodes_array
        return (
            _lookup(table[:, 0], keys),
            _lookup(table[:, 1], keys),
            _lookup(table[:, 2], keys),
            _lookup(table[:, 3], keys),
        )

    def call_sites(self, string_ids: npt.NDArray[Any], *, graph_ids: Ints) -> Ints:
        """Returns the name ids of call sites, given the runtime's paths and the graphs that they lead to."""
        names = self.of_strings(string_ids)
        width = int(graph_ids.max(initial=0)) + 2
        pairs, places = np.unique(names * width + graph_ids + 1, return_inverse=True)
        sites = np.empty(len(pairs), dtype=np.int64)
        for place, pair in enumerate(pairs.tolist()):
            name, graph_id = pair // width, pair % width - 1
            site = self._call_sites.get((name, graph_id))
            if site is None:
                text = self._call_graph.call_site(self.texts[name], graph_id)
                site = self._call_sites[name, graph_id] = self._intern(text)
            sites[place] = site
        return sites[places]

    def function_graphs(self, string_ids: npt.NDArray[Any]) -> Ints:
        """Returns the graph of each called function, -1 for ops and unrecorded functions."""
        names = self.of_strings(string_ids)
        used, places = _compact(names, len(self.texts))
        graphs = np.full(len(used) + 1, -1, dtype=np.int64)
        for place, name in enumerate(used):
            graph = self._function_graphs.get(name)
            if graph is None:
                found = self._call_graph.graph_id_of_function(self.texts[name])
                if found is None:  # asked again next time: the function may be registered by then
                    continue
                graph = self._function_graphs[name] = found
            graphs[place] = graph
        return graphs[places]  # a name of -1 has the place -1: the last element


def pick(records: Records, rows: Ints) -> Records:
    """Returns a copy of some records, all of their bytes."""
    picked: Records = records.view(_RAW).take(rows).view(RECORD_DTYPE)
    return picked


def join_records(pieces: Sequence[Records]) -> Records:
    """Returns the records of all pieces, one behind the other, all of their bytes."""
    joined: Records = np.concatenate([np.empty(0, _RAW), *(piece.view(_RAW) for piece in pieces)]).view(RECORD_DTYPE)
    return joined


def num_whole(records: Records) -> int:
    """Returns how many records from the start hold whole groups: no EXECUTION or tensor lacks its followers."""
    last = len(records) - 1
    while last >= 0 and records["kind"][last] in (Kind.INPUTS, Kind.DIMS):
        last -= 1
    if last < 0:
        return len(records)
    missing = int(_num_followers(records[last : last + 1])[0]) - (len(records) - 1 - last)
    return last if missing > 0 else len(records)


class Batch:
    """A batch of records in order of event_index, and their fields as columns.

    The records are transposed once: each column would else touch every one of them.
    """

    def __init__(self, records: Records) -> None:
        self.records = records
        words = np.ascontiguousarray(records).view("<i8").reshape(len(records), _WORDS)
        self._columns = np.empty((_WORDS, len(records)), dtype="<i8")
        for start in range(0, len(records), _TRANSPOSE_ROWS):
            self._columns[:, start : start + _TRANSPOSE_ROWS] = words[start : start + _TRANSPOSE_ROWS].T
        self.kind: npt.NDArray[np.uint8] = np.ascontiguousarray(self.field("kind"))
        self.flags: npt.NDArray[np.int32] = np.ascontiguousarray(self.field("flags"))
        self.event_index: Ints = self.field("commit") - 1

    def __len__(self) -> int:
        return len(self.records)

    def field(self, name: str, rows: Ints | None = None) -> npt.NDArray[Any]:
        """Returns a field of all records or of some; `commit` as a signed integer."""
        dtype, offset = _FIELDS[name]
        word = self._columns[offset // 8]
        if name != "commit":
            word = word.view(dtype)[(offset % 8) // dtype.itemsize :: 8 // dtype.itemsize]
        column: npt.NDArray[Any] = word if rows is None else word[rows]
        return column

    def dims(self, rows: Ints) -> Ints:
        """Returns the inline dimensions, of shape (rows, NUM_INLINE_DIMS)."""
        dims: Ints = np.ascontiguousarray(self._columns[_PAYLOAD_WORD : _PAYLOAD_WORD + NUM_INLINE_DIMS, rows].T)
        return dims

    def payload(self, rows: Ints) -> Ints:
        """Returns the payloads, of shape (rows, PAYLOAD_LENGTH)."""
        payload: Ints = np.ascontiguousarray(self._columns[_PAYLOAD_WORD:, rows].T)
        return payload

    def set_execution_index(self, rows: Ints, execution_index: Ints) -> None:
        """Changes a field of some records."""
        self.field("execution_index")[rows] = execution_index
        self.records["execution_index"][rows] = execution_index

    @cached_property
    def heads(self) -> Ints:
        """For each record the position of the record that it follows, its own for a head, -1 for an orphan."""
        is_head = (self.kind != Kind.INPUTS) & (self.kind != Kind.DIMS)
        heads: Ints = np.maximum.accumulate(np.where(is_head, np.arange(len(self)), -1))
        return heads

    @cached_property
    def covered(self) -> Ints:
        """Positions of the tensors that get a row in tensor_health."""
        is_tensor = (self.kind >= Kind.GRAPH_TENSOR) & (self.kind <= Kind.EXTERNAL_TENSOR)
        return np.flatnonzero(is_tensor & ((self.flags & Flag.COVERED) != 0))


class Converter:
    """Makes the event tables of a run."""

    def __init__(self, run_id: str, *, names: Names) -> None:
        self._run_id = run_id
        self._names = names

    def tables(self, batch: Batch, *, values: Mapping[int, bytes]) -> dict[str, pa.Table]:
        """Converts whole groups of records.

        Args:
            batch: The records; the execution_index of a GRAPH_TENSOR is that of its call, or -1.
            values: Elements by event_index, for the tensors whose elements are kept.

        Returns:
            By table name, in order of event_index; tables without a row are left out.
        """
        made: dict[str, pa.Table] = {}
        executions = np.flatnonzero(batch.kind == Kind.EXECUTION)
        if len(executions):
            made["execution"] = self._executions(batch, executions)
            made["execution_input"] = self._inputs(batch)
        outputs = np.flatnonzero(batch.kind == Kind.EXECUTION_TENSOR)
        if len(outputs):
            made["execution_output"] = self._outputs(batch, outputs)
        if len(batch.covered):
            shapes = _shapes(batch)
            made["tensor_health"] = self._tensors(batch, shapes)
            if values:
                made["tensor_value"] = self._values(batch, shapes, values)
        return {name: table for name, table in made.items() if table.num_rows}

    def devices(self, batch: Batch) -> dict[int, str]:
        """Returns name by device id of the devices of tensors that get a row."""
        devices = batch.field("device", batch.covered)
        ids = np.flatnonzero(np.bincount(devices[devices > 0]))
        names = self._names.of_strings(ids)
        return {int(i): self._names.texts[name] for i, name in zip(ids, names, strict=True) if name >= 0}

    def _table(self, name: str, num_rows: int, columns: Mapping[str, pa.Array]) -> pa.Table:
        schema = arrow_schema(name)
        arrays = []
        for field in schema:
            if field.name == "run_id":
                array = pa.repeat(pa.scalar(self._run_id, pa.string()), num_rows)
            elif field.name == "wall_time":
                array = _cut_to_us(columns["wall_time_ns"])
            else:
                array = columns[field.name]
            arrays.append(array if array.type == field.type else array.cast(field.type))
        return pa.Table.from_arrays(arrays, schema=schema)

    def _executions(self, batch: Batch, rows: Ints) -> pa.Table:
        get = partial(batch.field, rows=rows)
        node, step, stack = get("node"), get("step"), get("tensor_id")
        graphs = self._names.function_graphs(node)
        columns = {
            "execution_index": pa.array(get("execution_index")),
            "event_index": pa.array(batch.event_index[rows]),
            "wall_time_ns": pa.array(get("wall_time_ns")),
            "op_type": _strings(np.maximum(self._names.of_strings(node), 0), self._names.texts),
            "graph_id": _nullable(graphs, graphs >= 0),
            "num_inputs": pa.array(get("size")),
            "num_outputs": pa.array(get("slot")),
            "stack_trace_id": _nullable(stack, stack >= 0),
            "thread_id": pa.array(get("step_id")),
            "step": _nullable(step, step != NO_STEP),
        }
        return self._table("execution", len(rows), columns)

    def _inputs(self, batch: Batch) -> pa.Table:
        kind, heads = batch.kind, batch.heads
        rows = np.flatnonzero(((kind == Kind.EXECUTION) | (kind == Kind.INPUTS)) & (heads >= 0))
        rows = rows[kind[heads[rows]] == Kind.EXECUTION]
        first = np.where(kind[rows] == Kind.INPUTS, batch.field("slot", rows), 0).astype(np.int64)
        counts = np.clip(batch.field("size", heads[rows]) - first, 0, PAYLOAD_LENGTH)
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

    def _tensors(self, batch: Batch, shapes: pa.ListArray) -> pa.Table:
        rows, names = batch.covered, self._names
        get = partial(batch.field, rows=rows)
        kind, flags, node = batch.kind[rows], batch.flags[rows], get("node")
        graph, external = kind == Kind.GRAPH_TENSOR, kind == Kind.EXTERNAL_TENSOR
        context = graph & ((flags & Flag.CONTEXT) != 0)
        shaped, numeric = (flags & Flag.SHAPE) != 0, (flags & Flag.NUMERICS) != 0
        graph_ids, op_names, node_types, slots = names.of_nodes(np.where(graph, node, -1))
        op_types = np.where(graph, node_types, names.of_strings(np.where(external, -1, node)))
        slots = np.where(graph, slots, get("slot"))
        execution, tensor_id, device, step = get("execution_index"), get("tensor_id"), get("device"), get("step")
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
            "num_subnormal": _nullable(get("num_subnormal"), numeric),
            "max_abs_finite": _nullable(get("max_abs"), numeric & ((flags & Flag.ANY_FINITE) != 0)),
            "step": _nullable(step, step != NO_STEP),
            "is_call_inferred": pa.nulls(len(rows), pa.bool_()),  # a recording observes it
        }
        for group, flag in ((_COUNTS, Flag.COUNTS), (_SIGNS, Flag.SIGNS)):
            measured = (flags & flag) != 0
            columns.update((name, _nullable(get(name), measured)) for name in group)
        ordered = numeric & ((flags & Flag.ORDERED) != 0)
        columns.update((name, _nullable(get(field), ordered)) for name, field in _MAGNITUDES.items())
        return self._table("tensor_health", len(rows), columns)

    def _values(self, batch: Batch, shapes: pa.ListArray, values: Mapping[int, bytes]) -> pa.Table:
        events = batch.event_index[batch.covered]
        places = [place for place, event in enumerate(events.tolist()) if event in values and shapes[place].is_valid]
        chosen = events[places]
        columns = {
            "event_index": pa.array(chosen),
            "dtype": _dtypes(batch.field("dtype", batch.covered[places])),
            "shape": shapes.take(pa.array(places, pa.int64())),
            "value": pa.array([values[event] for event in chosen.tolist()], pa.binary()),
        }
        return self._table("tensor_value", len(places), columns)


def _num_followers(records: Records) -> Ints:
    """Returns how many INPUTS or DIMS records belong behind each record."""
    kind = records["kind"]
    shaped = (kind <= Kind.EXTERNAL_TENSOR) & ((records["flags"] & Flag.SHAPE) != 0)
    more = np.where(kind == Kind.EXECUTION, records["size"] - PAYLOAD_LENGTH, 0)
    more = np.where(shaped, records["rank"].astype(np.int64) - NUM_INLINE_DIMS, more)
    followers: Ints = -(-np.maximum(more, 0) // PAYLOAD_LENGTH)
    return followers


def _shapes(batch: Batch) -> pa.ListArray:
    """Returns the shape of each covered tensor, NULL where not measured or where a DIMS record is missing."""
    rows = batch.covered
    known = (batch.flags[rows] & Flag.SHAPE) != 0
    lengths = np.where(known, batch.field("rank", rows).astype(np.int64), 0)
    deep: dict[int, Ints] = {}
    for place in np.flatnonzero(lengths > NUM_INLINE_DIMS).tolist():  # rare
        row = int(rows[place])
        behind = np.arange(row + 1, row + 1 + int(_num_followers(batch.records[row : row + 1])[0]))
        if behind[-1] < len(batch) and np.all(batch.kind[behind] == Kind.DIMS):
            deep[place] = batch.payload(behind).ravel()[: int(lengths[place]) - NUM_INLINE_DIMS]
        else:
            known[place], lengths[place] = False, 0
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
    mask = None if known.all() else pa.array(~known)
    shape_type = arrow_schema("tensor_health").field("shape").type
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat), type=shape_type, mask=mask)


def _lookup(table: Ints, keys: npt.NDArray[Any]) -> Ints:
    """Returns table[keys], -1 for keys outside of it."""
    padded: Ints = np.append(table, -1)
    found: Ints = padded[np.where((keys >= 0) & (keys < len(table)), keys, len(table))]
    return found


def _compact(ids: Ints, length: int) -> tuple[list[int], Ints]:
    """Returns the ids in use, rising, and for each element its place among them, -1 for a negative one."""
    seen = np.zeros(length + 1, dtype=np.bool_)
    seen[ids] = True  # -1 marks the last
    seen[length] = False
    used = np.flatnonzero(seen)
    places = np.full(length + 1, -1, dtype=np.int64)
    places[used] = np.arange(len(used))
    return used.tolist(), places[ids]


def _strings(ids: Ints, texts: Sequence[str]) -> pa.Array:
    """Returns texts[ids] as strings, NULL for negative ids."""
    used, places = _compact(ids, len(texts))
    dictionary = pa.array([texts[i] for i in used], pa.string())
    return dictionary.take(_nullable(places, places >= 0))


def _dtypes(numbers: npt.NDArray[Any]) -> pa.Array:
    ids = np.clip(numbers.astype(np.int64), 0, _MAX_DTYPE - 1)
    return _strings(ids, _DTYPE_NAMES)


_DTYPE_NAMES = tuple(dtype_name(number) for number in range(_MAX_DTYPE))


def _nullable(values: npt.NDArray[Any], valid: Mask) -> pa.Array:
    values = np.ascontiguousarray(values)
    return pa.array(values) if valid.all() else pa.array(values, mask=~valid)


def _cut_to_us(wall_time_ns: pa.Array) -> pa.Array:
    return pa.array(wall_time_ns.to_numpy() // 1000).cast(pa.timestamp("us"))


def metadata_table(name: str, rows: Sequence[Mapping[str, object]], *, run_id: str) -> pa.Table:
    """Makes a table of rows given as mappings.

    Args:
        name: Name of the table.
        rows: Column name to value; `run_id` is set here, `wall_time` is made of `wall_time_ns`
            where it is missing, another missing column is NULL.
        run_id: The run.

    Raises:
        ValueError: A column does not exist, or NULL stands where the declaration has none.
        pa.ArrowException: A value is not of its column's type.
    """
    schema = arrow_schema(name)
    unknown = sorted({key for row in rows for key in row} - set(schema.names))
    if unknown:
        raise ValueError(f"rows for table {name} have the columns {unknown}, expected among {schema.names}")
    arrays = []
    for field in schema:
        values: list[object] = [row.get(field.name) for row in rows]
        if field.name == "run_id":
            values = [run_id] * len(rows)
        elif field.name == "wall_time":
            times = [row.get("wall_time_ns") for row in rows]
            cut = [time // 1000 if isinstance(time, int) else None for time in times]
            values = [given if given is not None else us for given, us in zip(values, cut, strict=True)]
        array = pa.array(values, type=field.type)
        if array.null_count and not field.nullable:
            raise ValueError(f"rows for table {name} have NULL in {field.name}, expected a value in each row")
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=schema)
