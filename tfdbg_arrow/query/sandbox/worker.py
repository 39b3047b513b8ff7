"""The process of a Sandbox: reads one query from stdin, locks itself, writes one answer to stdout, and exits."""

from __future__ import annotations

import json
import resource
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from tfdbg_arrow.errors import QueryError, TfdbgArrowError
from tfdbg_arrow.json_values import to_json
from tfdbg_arrow.query.exports.csv_files import rows_as_csv
from tfdbg_arrow.query.logdir import Logdir, open_logdir
from tfdbg_arrow.query.logdir.live_views import literal, mentioned_tables
from tfdbg_arrow.schema import TABLES

_ADDRESS_SPACE = 2 << 30
"""Bytes of address space in addition to DuckDB's memory: for code, stacks, allocators and the answer."""
_MAX_SPILL = "1GB"
_BATCH_ROWS = 256
_MAX_TEXT = 8 << 20
"""Maximum number of bytes of an answer as text."""
_MAX_BUFFERS = 64 << 20
"""If the Arrow buffers of an answer have more bytes, no more rows are read."""


def main() -> None:
    """Answers the query on stdin."""
    request = json.load(sys.stdin)
    try:
        answer = _answer(request)
    except (TfdbgArrowError, MemoryError) as error:
        # DuckDB's advice is about settings, which are locked here, so it is cut off.
        text = str(error).partition("\n\nPossible solutions")[0]
        answer = {"error": text or "the query needs more memory than its limit."}
    sys.stdout.write(json.dumps(answer, allow_nan=False))


def _answer(request: Mapping[str, Any]) -> Mapping[str, Any]:
    query = request["query"]
    _check_is_select(query)
    with open_logdir(request["path"], skip_broken=request["skip_broken"]) as logdir:
        logdir.fetch(*mentioned_tables(query))
        parts = _lock(logdir, memory_limit=request["memory_limit"])
        _bound_process(request["timeout_s"], memory=request["memory_limit"] + _ADDRESS_SPACE)
        late = threading.Timer(request["timeout_s"], logdir.interrupt)
        late.daemon = True
        late.start()
        try:
            return logdir.stream(query, lambda rows: _first(rows, request), batch_rows=_BATCH_ROWS)
        except QueryError as error:
            if not late.is_alive():
                raise QueryError(
                    f"the query took longer than {request['timeout_s']:g} seconds and was stopped."
                ) from error
            if _parts(logdir) != parts:  # compaction replaced parts; DuckDB must not open the new ones
                return {"error": str(error), "is_stale": True}
            raise
        finally:
            late.cancel()


def _check_is_select(query: str) -> None:
    try:
        statements = duckdb.extract_statements(query)
    except duckdb.Error as error:
        raise QueryError(str(error)) from error
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        found = ", ".join(statement.type.name for statement in statements) or "nothing"
        raise QueryError(f"expected one SELECT, found {found}; `tfdbg-arrow sql` runs other statements.")


def _lock(logdir: Logdir, *, memory_limit: int) -> list[Path]:
    """Restricts DuckDB to the live parts, so that no query can open another file. Returns the live parts."""
    connection = logdir.connection
    parts = _parts(logdir)
    for setting in (
        f"memory_limit = '{memory_limit}B'",
        f"max_temp_directory_size = '{_MAX_SPILL}'",
        "threads = 2",
        "python_enable_replacements = false",
        "allow_community_extensions = false",
        f"allowed_paths = [{', '.join(literal(str(part)) for part in parts)}]",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        connection.execute(f"SET {setting}")
    return parts


def _parts(logdir: Logdir) -> list[Path]:
    return [part for table in TABLES for part in logdir.parts(table.name)]


def _bound_process(timeout_s: float, *, memory: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    seconds = int(4 * timeout_s) + 10  # processor time, of which DuckDB's two threads use twice the elapsed time
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this process


def _first(rows: pa.RecordBatchReader, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the first rows as an answer, up to the limits on rows and size."""
    columns = [{"name": field.name, "type": str(field.type)} for field in rows.schema]
    batches: list[pa.RecordBatch] = []
    number = size = 0
    is_cut = False
    for batch in rows:
        wanted = batch.slice(0, request["max_rows"] - number)
        batches.append(wanted)
        number, size = number + wanted.num_rows, size + wanted.get_total_buffer_size()
        if wanted.num_rows < batch.num_rows or size > _MAX_BUFFERS:
            is_cut = True
            break
    found = [
        list(row) for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]
    if request["as_csv"]:
        lines = rows_as_csv(rows.schema.names, found)
        return {"csv": lines} if len(lines) <= _MAX_TEXT else {"error": _too_much(len(lines))}
    answer = {"columns": columns, "rows": to_json(found), "is_cut": is_cut}
    size = len(json.dumps(answer, allow_nan=False))
    return answer if size <= _MAX_TEXT else {"error": _too_much(size)}


def _too_much(size: int) -> str:
    return f"the answer has {size:,} bytes, expected at most {_MAX_TEXT:,}; select fewer columns, or shorten them."


if __name__ == "__main__":
    main()
