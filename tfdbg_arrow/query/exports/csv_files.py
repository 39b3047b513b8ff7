r"""Export as CSV: one flat file per table and view, in UTF-8, quoted as in RFC 4180.

| value | in the file |
|---|---|
| NULL | nothing, not even quotes |
| text | always in quotes; an empty text is `""` |
| text that a spreadsheet would take for a formula | prefixed with `'` |
| number, boolean, TIMESTAMP | without quotes: `-0.5`, `true`, `2026-01-31 12:00:00.000001`, `nan`, `inf`, `-inf` |
| BIGINT[] | a JSON array as text |
| BLOB | text: `\x` and the bytes in hexadecimal, as in PostgreSQL |

A text counts as a formula if it begins with `=`, `+`, `-`, `@`, their full-width forms, tab, carriage return or line
feed, and is not just a number. A text that begins with `'` gets another `'`. So you get the recorded text back by
removing one leading `'`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from tfdbg_arrow.json_values import to_json
from tfdbg_arrow.query.exports.directory import DirectoryExport
from tfdbg_arrow.query.exports.flat import FlatColumn, FlatRows, flat_rows
from tfdbg_arrow.query.exports.relations import Relation

_FORMULA = r"\A[=+\-@\t\r\n'＝＋－＠]"  # noqa: RUF001
_NUMBER = r"\A[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\z"


class CsvExport(DirectoryExport):
    """Writes `<name>.csv` files into a directory."""

    suffix: ClassVar[str | None] = ".csv"

    def write(self, relation: Relation, rows: pa.RecordBatchReader, *, advance: Callable[[int], None]) -> None:
        """Writes a file; see DirectoryExport."""
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
    is_formula = pc.and_not(pc.match_substring_regex(array, _FORMULA), pc.match_substring_regex(array, _NUMBER))
    return pc.if_else(is_formula, pc.binary_join_element_wise("'", array, ""), array)


def _to_hexadecimal(array: pa.Array) -> pa.Array:
    return pa.array([None if value is None else f"\\x{value.hex()}" for value in array.to_pylist()], pa.string())
