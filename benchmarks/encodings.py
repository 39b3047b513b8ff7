"""Measures bytes per row and write time of the event tables in Parquet settings that the format does not use.

    python benchmarks/encodings.py LOGDIR [--table tensor_health execution] [--output results.json]

The rows come from a recording. At most one row group is read. benchmarks/README.md has the results.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tfdbg_arrow.schema import ROW_GROUP_ROWS, arrow_schema, parquet_options
from tfdbg_arrow.storage.manifest import read_live_parts, run_ids

TABLES = ("tensor_health", "execution", "execution_input", "execution_output")
ROUNDS = 7

Options = dict[str, Any]


def _encoded(options: Options, *, encodings: Mapping[str, str]) -> Options:
    """Returns options in which columns with one encoding get another encoding."""
    columns = {name: encodings.get(encoding, encoding) for name, encoding in options["column_encoding"].items()}
    return {**options, "column_encoding": columns}


def _dictionaries_everywhere(options: Options) -> Options:
    """Returns options in which every column has a dictionary and no other encoding."""
    return {name: value for name, value in options.items() if name != "column_encoding"} | {"use_dictionary": True}


def _no_dictionaries(options: Options) -> Options:
    """Returns options in which strings are stored as differences to the previous string."""
    texts = dict.fromkeys(options["use_dictionary"], "DELTA_BYTE_ARRAY")
    return {**options, "use_dictionary": False, "column_encoding": {**options["column_encoding"], **texts}}


ALTERNATIVES: dict[str, Callable[[Options], Options]] = {
    "the format's": lambda options: options,
    "uncompressed": lambda options: {**options, "compression": "none"},
    "snappy": lambda options: {**options, "compression": "snappy"},
    "lz4": lambda options: {**options, "compression": "lz4"},
    "zstd, level 3": lambda options: {**options, "compression_level": 3},
    "zstd, level 9": lambda options: {**options, "compression_level": 9},
    "integers PLAIN": lambda options: _encoded(options, encodings={"DELTA_BINARY_PACKED": "PLAIN"}),
    "integers BYTE_STREAM_SPLIT": lambda options: _encoded(
        options, encodings={"DELTA_BINARY_PACKED": "BYTE_STREAM_SPLIT"}
    ),
    "dictionaries for all columns": _dictionaries_everywhere,
    "texts DELTA_BYTE_ARRAY": _no_dictionaries,
    "statistics of no column": lambda options: {**options, "write_statistics": False},
    "without page checksums": lambda options: {**options, "write_page_checksum": False},
}
"""Alternative settings. Each alternative differs from the settings of the format in one value."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result for one table in one setting.

    Attributes:
        table: Name of the table.
        setting: Name of the setting.
        rows: Number of rows that were written.
        bytes_per_row: Bytes of the whole file, including its footer, per row.
        us_per_row: Processor time per row to write the table into memory, in microseconds. The minimum of several
            rounds.
    """

    table: str
    setting: str
    rows: int
    bytes_per_row: float
    us_per_row: float


def read_rows(logdir: Path, table: str) -> pa.Table:
    """Returns the first rows of a table from all runs, at most one row group.

    Raises:
        LogdirError: The logdir cannot be read.
    """
    pieces = [arrow_schema(table).empty_table()]
    for run_id in run_ids(logdir):
        for entry in read_live_parts(logdir, run_id=run_id):
            if entry.table == table and entry.rows and sum(map(len, pieces)) < ROW_GROUP_ROWS:
                pieces.append(pq.read_table(logdir / entry.path, partitioning=None))
    return pa.concat_tables(pieces).slice(0, ROW_GROUP_ROWS).combine_chunks()


def measure(rows: pa.Table, table: str) -> Iterator[Result]:
    """Yields one result for each setting."""
    for setting, change in ALTERNATIVES.items():
        options = change(parquet_options(table))
        seconds = []
        for _ in range(ROUNDS):
            content = io.BytesIO()
            start = time.thread_time()
            with pq.ParquetWriter(content, rows.schema, **options) as writer:
                writer.write_table(rows, row_group_size=ROW_GROUP_ROWS)
            seconds.append(time.thread_time() - start)
        yield Result(
            table=table,
            setting=setting,
            rows=len(rows),
            bytes_per_row=content.tell() / len(rows),
            us_per_row=min(seconds) / len(rows) * 1e6,
        )


def main() -> None:
    """Prints the results as a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logdir", type=Path)
    parser.add_argument("--table", nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument("--output", type=Path, help="also write the results to this file, as JSON")
    arguments = parser.parse_args()
    found = []
    print(f"{'table':<18}{'setting':<32}{'rows':>9}{'bytes a row':>13}{'us a row':>10}")
    for table in arguments.table:
        rows = read_rows(arguments.logdir, table)
        for result in measure(rows, table) if len(rows) else ():
            found.append(result)
            print(
                f"{table:<18}{result.setting:<32}{result.rows:>9,}{result.bytes_per_row:>13.2f}{result.us_per_row:>10.3f}"
            )
    if arguments.output is not None:
        arguments.output.write_text(json.dumps([asdict(result) for result in found], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
