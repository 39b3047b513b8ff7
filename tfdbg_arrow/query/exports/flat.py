"""Flattens rows for tools that support neither lists nor 128-bit integers.

| column | becomes |
|---|---|
| BIGINT[] | text, a JSON array such as `[32, 10]`; a scalar's shape is `[]` |
| DECIMAL(38, 0), the type of sums of integers | BIGINT |
| `*wall_time_ns` without a matching TIMESTAMP column | stays, and a TIMESTAMP such as `end_wall_time` is added |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

Conversion = Callable[[pa.Array], pa.Array]
"""Converts a column to another of the same length."""

TIMESTAMP = pa.timestamp("us")


@dataclass(frozen=True, kw_only=True)
class FlatColumn:
    """One column of the written table.

    Attributes:
        name: Its name.
        type: Its Arrow type.
        source: The column that it is made from.
        convert: Converts the source column to it.
    """

    name: str
    type: pa.DataType
    source: str
    convert: Conversion

    def then(self, type_: pa.DataType, convert: Conversion) -> FlatColumn:
        """Returns the column with one more conversion, which gives another type."""
        before = self.convert
        return FlatColumn(name=self.name, type=type_, source=self.source, convert=lambda array: convert(before(array)))


@dataclass(frozen=True)
class FlatRows:
    """The columns that are written for a table or view."""

    columns: tuple[FlatColumn, ...]

    @property
    def schema(self) -> pa.Schema:
        """The columns as an Arrow schema."""
        return pa.schema([(column.name, column.type) for column in self.columns])

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns a flattened batch of rows.

        Raises:
            pa.ArrowInvalid: A sum does not fit into a BIGINT.
        """
        arrays = [column.convert(batch.column(column.source)) for column in self.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def flat_rows(schema: pa.Schema, *, with_timestamps: bool = True) -> FlatRows:
    """Returns how to flatten the rows of a table or view.

    Args:
        schema: Its columns, as returned by DuckDB.
        with_timestamps: Whether to add a TIMESTAMP column for each time in nanoseconds that has none.
    """
    columns = []
    for field in schema:
        columns.append(_flat_column(field))
        timestamp = field.name.removesuffix("_ns")
        if with_timestamps and field.name.endswith("wall_time_ns") and timestamp not in schema.names:
            columns.append(FlatColumn(name=timestamp, type=TIMESTAMP, source=field.name, convert=_to_timestamp))
    return FlatRows(tuple(columns))


def _flat_column(field: pa.Field) -> FlatColumn:
    type_, convert = field.type, _same
    if pa.types.is_list(field.type):
        type_, convert = pa.string(), _list_to_text
    elif pa.types.is_decimal(field.type):
        type_, convert = pa.int64(), _to_bigint
    return FlatColumn(name=field.name, type=type_, source=field.name, convert=convert)


def _same(array: pa.Array) -> pa.Array:
    return array


def _to_bigint(array: pa.Array) -> pa.Array:
    return array.cast(pa.int64())


def _list_to_text(array: pa.Array) -> pa.Array:
    elements = pc.binary_join(array.cast(pa.list_(pa.string())), ", ")
    return pc.binary_join_element_wise("[", elements, "]", "")


def _to_timestamp(array: pa.Array) -> pa.Array:
    return pc.floor_temporal(array.cast(pa.timestamp("ns")), unit="microsecond").cast(TIMESTAMP)
