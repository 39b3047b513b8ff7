"""Rows made flat for tools that know neither lists nor 128-bit integers.

| column | becomes |
|---|---|
| BIGINT[] | text, as `[32, 10]`: a JSON array; `[]` is a scalar's |
| DECIMAL(38, 0), as which sums of integers arrive | BIGINT |
| `*wall_time_ns` without a TIMESTAMP beside it | stays, and gets one, as `end_wall_time` |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

Conversion = Callable[[pa.Array], pa.Array]
"""Makes one column of another, of the same length."""

TIMESTAMP = pa.timestamp("us")


@dataclass(frozen=True, kw_only=True)
class FlatColumn:
    """One column of what is written.

    Attributes:
        name: Its name.
        type: Its Arrow type.
        source: The column that it is made of.
        convert: How.
    """

    name: str
    type: pa.DataType
    source: str
    convert: Conversion

    def then(self, type_: pa.DataType, convert: Conversion) -> FlatColumn:
        """Returns the column with one more conversion, to a type."""
        before = self.convert
        return FlatColumn(name=self.name, type=type_, source=self.source, convert=lambda array: convert(before(array)))


@dataclass(frozen=True)
class FlatRows:
    """The columns that are written of a relation."""

    columns: tuple[FlatColumn, ...]

    @property
    def schema(self) -> pa.Schema:
        """The columns as an Arrow schema."""
        return pa.schema([(column.name, column.type) for column in self.columns])

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns a batch of rows made flat.

        Raises:
            pa.ArrowInvalid: A sum does not fit into a BIGINT.
        """
        arrays = [column.convert(batch.column(column.source)) for column in self.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def flat_rows(schema: pa.Schema, *, with_timestamps: bool = True) -> FlatRows:
    """Returns how the rows of a relation are made flat.

    Args:
        schema: Its columns, as DuckDB gives them.
        with_timestamps: Whether a time in nanoseconds gets a TIMESTAMP beside it where it has none.
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
