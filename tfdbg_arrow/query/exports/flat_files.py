r"""Export as files: one flat file per table and view, as Parquet for BI tools or as CSV.

Most tools support neither lists nor 128-bit integers, so both formats flatten the rows:

| column | becomes |
|---|---|
| BIGINT[] | text, a JSON array such as `[32, 10]`; a scalar's shape is `[]` |
| DECIMAL(38, 0), the type of sums of integers | BIGINT |
| `*wall_time_ns` without a matching TIMESTAMP column | stays, and a TIMESTAMP such as `end_wall_time` is added |

Parquet has snappy, PLAIN encoding and TIMESTAMP columns, for tools that support neither zstd nor DELTA_BINARY_PACKED.
As in a logdir, DOUBLE columns have no statistics, because they make readers lose NaN.

CSV is in UTF-8, quoted as in RFC 4180:

| value | in the file |
|---|---|
| NULL | nothing, not even quotes |
| text | always in quotes; an empty text is `""` |
| text that a spreadsheet would take for a formula | prefixed with `'` |
| number, boolean, TIMESTAMP | without quotes: `-0.5`, `true`, `2026-01-31 12:00:00.000001`, `nan`, `inf`, `-inf` |
| BLOB | text: `\x` and the bytes in hexadecimal, as in PostgreSQL |

A text counts as a formula if it begins with `=`, `+`, `-`, `@`, their full-width forms, tab, carriage return or line
feed, and is not just a number. A text that begins with `'` gets another `'`. So you get the recorded text back by
removing one leading `'`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from tfdbg_arrow.query.exports.table_writer import Relation, TableWriter
from tfdbg_arrow.safe_text import to_json
from tfdbg_arrow.schema.parquet import ROW_GROUP_ROWS

_Conversion = Callable[[pa.Array], pa.Array]
"""Converts a column to another of the same length."""
_TIMESTAMP = pa.timestamp("us")
_FORMULA = r"\A[=+\-@\t\r\n'＝＋－＠]"  # noqa: RUF001
_NUMBER = r"\A[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\z"
_ROW_GROUP_BYTES = 64 * 2**20


class _FileExport(TableWriter):
    """Writes `<name><suffix>` files into a directory that it creates.

    Attributes:
        suffix: The suffix of the files.
    """

    suffix: ClassVar[str]

    def __init__(self, path: Path, *, final: Path) -> None:
        self._path = path
        path.mkdir()

    def file_of(self, relation: Relation) -> Path:
        """Returns the path of the file of a table or view."""
        return self._path / f"{relation.name}{self.suffix}"

    @classmethod
    def holds(cls, entry: Path) -> bool:
        """Returns whether an entry of a directory belongs to an export."""
        return entry.name in {f"{name}{cls.suffix}" for name in cls.names()}


class ParquetExport(_FileExport):
    """Writes `<name>.parquet` files into a directory."""

    suffix: ClassVar[str] = ".parquet"
    content: ClassVar[str | None] = "*.parquet files"

    def write(self, relation: Relation, rows: pa.RecordBatchReader, *, advance: Callable[[int], None]) -> None:
        """Writes a file; see TableWriter."""
        flat = flat_rows(rows.schema)
        schema = flat.schema
        options = {
            "compression": "snappy",
            "use_dictionary": False,
            "write_statistics": [
                field.name for field in schema if not pa.types.is_floating(field.type) and field.type != pa.binary()
            ],
            "store_schema": False,
        }
        with pq.ParquetWriter(self.file_of(relation), schema, **options) as writer:
            for group in row_groups(map(flat.convert, rows), advance):
                writer.write_table(pa.Table.from_batches(group, schema), row_group_size=ROW_GROUP_ROWS)


class CsvExport(_FileExport):
    """Writes `<name>.csv` files into a directory."""

    suffix: ClassVar[str] = ".csv"
    content: ClassVar[str | None] = "*.csv files"

    def write(self, relation: Relation, rows: pa.RecordBatchReader, *, advance: Callable[[int], None]) -> None:
        """Writes a file; see TableWriter."""
        flat = FlatRows(tuple(_safe(column) for column in flat_rows(rows.schema).columns))
        options = pyarrow.csv.WriteOptions(quoting_style="needed", quoting_header="none", eol="\r\n")
        with pyarrow.csv.CSVWriter(self.file_of(relation), flat.schema, write_options=options) as writer:
            for batch in rows:
                writer.write_batch(flat.convert(batch))
                advance(batch.num_rows)


def rows_as_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    r"""Returns rows as CSV in the form of these files. Values of other types become JSON as text.

    Args:
        columns: The column names.
        rows: Rows of Python values.
    """
    lines = [",".join(_cell(str(name)) for name in columns)]
    lines += [",".join(_cell(value) for value in row) for row in rows]
    return "".join(f"{line}\r\n" for line in lines)


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
    convert: _Conversion = lambda array: array

    def then(self, type_: pa.DataType, convert: _Conversion) -> FlatColumn:
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


def flat_rows(schema: pa.Schema, *, with_timestamps: bool = True, with_lists: bool = False) -> FlatRows:
    """Returns how to flatten the rows of a table or view.

    Args:
        schema: Its columns, as returned by DuckDB.
        with_timestamps: Whether to add a TIMESTAMP column for each time in nanoseconds that has none.
        with_lists: Whether lists stay lists.
    """
    columns = []
    for field in schema:
        columns.append(_flat_column(field, with_lists=with_lists))
        timestamp = field.name.removesuffix("_ns")
        if with_timestamps and field.name.endswith("wall_time_ns") and timestamp not in schema.names:
            columns.append(FlatColumn(name=timestamp, type=_TIMESTAMP, source=field.name, convert=_to_timestamp))
    return FlatRows(tuple(columns))


def _flat_column(field: pa.Field, *, with_lists: bool) -> FlatColumn:
    column = FlatColumn(name=field.name, type=field.type, source=field.name)
    if pa.types.is_list(field.type) and not with_lists:
        return column.then(pa.string(), _list_to_text)
    if pa.types.is_decimal(field.type):
        return column.then(pa.int64(), lambda array: array.cast(pa.int64()))
    return column


def _list_to_text(array: pa.Array) -> pa.Array:
    elements = pc.binary_join(array.cast(pa.list_(pa.string())), ", ")
    return pc.binary_join_element_wise("[", elements, "]", "")


def _to_timestamp(array: pa.Array) -> pa.Array:
    return pc.floor_temporal(array.cast(pa.timestamp("ns")), unit="microsecond").cast(_TIMESTAMP)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float, Decimal)):
        return str(value)
    if isinstance(value, (datetime, date)):
        return value.isoformat(" ") if isinstance(value, datetime) else value.isoformat()
    if isinstance(value, bytes):
        value = f"\\x{value.hex()}"
    text = value if isinstance(value, str) else json.dumps(to_json(value))
    safe: str = _without_formulas(pa.array([text], pa.string()))[0].as_py()
    return '"' + safe.replace('"', '""') + '"'


def _safe(column: FlatColumn) -> FlatColumn:
    if column.type == pa.binary():
        return column.then(pa.string(), _to_hexadecimal)
    return column.then(pa.string(), _without_formulas) if column.type == pa.string() else column


def _without_formulas(array: pa.Array) -> pa.Array:
    encoded = array.dictionary_encode()  # few texts stand in many rows
    texts = encoded.dictionary
    is_formula = pc.and_not(pc.match_substring_regex(texts, _FORMULA), pc.match_substring_regex(texts, _NUMBER))
    return pc.if_else(is_formula, pc.binary_join_element_wise("'", texts, ""), texts).take(encoded.indices)


def _to_hexadecimal(array: pa.Array) -> pa.Array:
    return pa.array([None if value is None else f"\\x{value.hex()}" for value in array.to_pylist()], pa.string())


def row_groups(batches: Iterator[pa.RecordBatch], advance: Callable[[int], None]) -> Iterator[list[pa.RecordBatch]]:
    """Yields the batches of one row group at a time, bounded in rows and bytes.

    Args:
        batches: The batches.
        advance: Called with the number of rows of each batch.
    """
    group: list[pa.RecordBatch] = []
    num_rows = num_bytes = 0
    for batch in batches:
        if group and (num_rows + batch.num_rows > ROW_GROUP_ROWS or num_bytes + batch.nbytes > _ROW_GROUP_BYTES):
            yield group
            group, num_rows, num_bytes = [], 0, 0
        group.append(batch)
        num_rows += batch.num_rows
        num_bytes += batch.nbytes
        advance(batch.num_rows)
    if group:
        yield group
