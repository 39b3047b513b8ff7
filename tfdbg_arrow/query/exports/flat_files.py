r"""Export as files: one flat file for each table and view, as Parquet for BI tools or as CSV. DuckDB writes both.

Most tools support neither lists nor 128-bit integers, so both formats flatten the rows:

| column | becomes |
|---|---|
| BIGINT[] | text, a JSON array such as `[32, 10]`; a scalar's shape is `[]` |
| HUGEINT, the type of sums of integers | BIGINT |
| `*wall_time_ns` without a matching TIMESTAMP column | stays, and a TIMESTAMP such as `end_wall_time` is added |

The Parquet files use snappy, the encodings of Parquet version 1, and TIMESTAMP columns, for tools that support neither
zstd nor DELTA_BINARY_PACKED. DuckDB writes no minimum and maximum for DOUBLE columns with a NaN. With such statistics,
readers would lose the rows with NaN.

CSV is in UTF-8, quoted as in RFC 4180:

| value | in the file |
|---|---|
| NULL | nothing, not even quotes |
| text | always in quotes; an empty text is `""` |
| text that a spreadsheet would take for a formula | prefixed with `'` |
| number, boolean, TIMESTAMP | without quotes: `-0.5`, `true`, `2026-01-31 12:00:00.000001`, `nan`, `inf`, `-inf` |
| BLOB | text: `\x` and the bytes in hexadecimal, as in PostgreSQL |

A text counts as a formula if it begins with `=`, `+`, `-`, `@`, their full-width forms, tab, carriage return or line
feed, and is not a plain number. A text that begins with `'` gets another `'`. To restore the recorded text, remove one
leading `'`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

from tfdbg_arrow.query.exports.table_writer import Relation, Rows, TableWriter, relation_names
from tfdbg_arrow.safe_text import to_json
from tfdbg_arrow.schema.parquet import ROW_GROUP_ROWS

_FORMULA = "=+-@\t\r\n'＝＋－＠"  # noqa: RUF001
_NUMBER = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"
_ROW_GROUP_SIZE = f"ROW_GROUP_SIZE {ROW_GROUP_ROWS}"
_ROW_GROUP_SIZE_WITH_BLOBS = "ROW_GROUP_SIZE_BYTES '64MB'"
"""A row group is held in memory until it is complete."""
FLAT = {"BIGINT[]": "CAST({} AS VARCHAR)", "HUGEINT": "CAST({} AS BIGINT)"}
"""The conversions of types that most tools do not support."""
_CSV = {
    **FLAT,
    "BLOB": r"'\x' || lower(hex({0}))",
    "DOUBLE": "CASE WHEN isnan({0}) THEN CAST('nan' AS DOUBLE) ELSE {0} END",  # DuckDB writes some NaN as `-nan`
    "VARCHAR": (
        f"CASE WHEN ord({{0}}) IN ({', '.join(str(ord(character)) for character in _FORMULA)}) "
        f"AND NOT regexp_full_match({{0}}, '{_NUMBER}') THEN '''' || {{0}} ELSE {{0}} END"
    ),
}
_TEXTS = frozenset({"BIGINT[]", "BLOB", "VARCHAR"})
"""The types whose values are texts in CSV."""


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
        return entry.name in {f"{name}{cls.suffix}" for name in relation_names()}


class ParquetExport(_FileExport):
    """Writes `<name>.parquet` files into a directory."""

    suffix: ClassVar[str] = ".parquet"
    content: ClassVar[str | None] = "*.parquet files"

    def write(self, relation: Relation, rows: Rows) -> int:
        """Writes a file; see TableWriter."""
        select = rows.select(FLAT, with_timestamps=True)
        return rows.copy(select, self.file_of(relation), f"COMPRESSION snappy, {parquet_options(rows)}")


class CsvExport(_FileExport):
    """Writes `<name>.csv` files into a directory."""

    suffix: ClassVar[str] = ".csv"
    content: ClassVar[str | None] = "*.csv files"

    def write(self, relation: Relation, rows: Rows) -> int:
        """Writes a file; see TableWriter."""
        options = r"FORMAT csv, HEADER, NEW_LINE '\r\n', TIMESTAMPFORMAT '%Y-%m-%d %H:%M:%S.%f'"
        texts = [f'"{name}"' for name, type_ in rows.types.items() if type_ in _TEXTS]
        if texts:
            options += f", FORCE_QUOTE ({', '.join(texts)})"
        return rows.copy(rows.select(_CSV, with_timestamps=True), self.file_of(relation), options)


def parquet_options(rows: Rows) -> str:
    """Returns the options of COPY for a Parquet file, except the compression."""
    return f"FORMAT parquet, PARQUET_VERSION v1, {_ROW_GROUP_SIZE_WITH_BLOBS if rows.has_blobs else _ROW_GROUP_SIZE}"


def rows_as_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    r"""Returns rows as CSV in the form of the exported files. Values of other types become JSON text.

    Args:
        columns: The column names.
        rows: Rows of Python values.
    """
    lines = [",".join(_cell(str(name)) for name in columns)]
    lines += [",".join(_cell(value) for value in row) for row in rows]
    return "".join(f"{line}\r\n" for line in lines)


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
    if text[:1] and text[0] in _FORMULA and re.fullmatch(_NUMBER, text) is None:
        text = f"'{text}"
    return '"' + text.replace('"', '""') + '"'
