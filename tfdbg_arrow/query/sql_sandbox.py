"""Sandbox: runs untrusted SQL over an untrusted logdir, each query in a separate process.

The separate process runs this module. In this process, DuckDB is restricted: it opens only the live parts, loads no
extensions, cannot access Python objects, and does not change its settings. The query's time, its memory and the size of
the answer are limited. The process ends after one query, so a failed query does not affect later queries.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from tfdbg_arrow.errors import QueryError, TfdbgArrowError, TimeLimitError
from tfdbg_arrow.query.engine import sql_literal
from tfdbg_arrow.query.exports.flat_files import rows_as_csv
from tfdbg_arrow.query.logdir.live_views import mentioned_tables
from tfdbg_arrow.query.logdir.open_logdir import OpenLogdir
from tfdbg_arrow.safe_text import to_json
from tfdbg_arrow.schema import TABLES

_ATTEMPTS = 3
"""Maximum number of runs of a query if a recording replaces parts meanwhile. Then the user gets the error."""
_GRACE_S = 10.0
"""Seconds that the process may take to start and to open the logdir, in addition to the time limit of the query."""
_ADDRESS_SPACE = 2 << 30
"""Number of bytes of address space for code, stacks, allocators and the answer, in addition to DuckDB's memory."""
_MAX_SPILL = "1GB"
_BATCH_ROWS = 256
"""Number of rows that are read at a time. With more, a query would read far more rows than it may return."""
_MAX_TEXT = 8 << 20
"""Maximum number of bytes of an answer as text."""
_MAX_BUFFERS = 64 << 20
"""If the Arrow buffers of an answer have more bytes than this, no more rows are read."""


class SandboxBusyError(TfdbgArrowError):
    """Another query is running."""


@dataclass(frozen=True, kw_only=True)
class SandboxColumn:
    """A column of an answer: the name of the column, and Arrow's name of the column's type."""

    name: str
    type: str


@dataclass(frozen=True, kw_only=True)
class SandboxAnswer:
    """The rows that a SELECT returned.

    Attributes:
        columns: The columns.
        rows: The rows, with values converted by `to_json`.
        is_cut: Whether rows are missing because the answer reached a limit.
    """

    columns: tuple[SandboxColumn, ...]
    rows: tuple[tuple[Any, ...], ...]
    is_cut: bool


class Sandbox:
    """Answers SQL over a logdir, one SELECT at a time.

    Args:
        path: The logdir's path or URL.
        timeout_s: Maximum time of a query in seconds.
        memory_limit: Number of bytes that DuckDB may use. The whole process may use 2 GiB more address space.
        max_rows: Maximum number of rows of an answer.
        skip_broken: Whether to leave out broken parts.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        timeout_s: float = 20.0,
        memory_limit: int = 512 << 20,
        max_rows: int = 1000,
        skip_broken: bool = False,
    ) -> None:
        self._settings = {
            "path": str(path),
            "timeout_s": timeout_s,
            "memory_limit": memory_limit,
            "max_rows": max_rows,
            "skip_broken": skip_broken,
        }
        self._timeout_s = timeout_s
        self._slot = threading.Lock()

    @property
    def is_busy(self) -> bool:
        """Whether a query is running."""
        return self._slot.locked()

    def ask(self, query: str) -> SandboxAnswer:
        """Returns the first rows of a SELECT.

        Args:
            query: One SELECT in DuckDB's SQL, over the tables and views of the logdir.

        Raises:
            QueryError: The query is not one SELECT, DuckDB refuses the query, or the query needs more time or memory
                than the limits allow.
            SandboxBusyError: Another query is running.
        """
        answer = self._answer(query, as_csv=False)
        return SandboxAnswer(
            columns=tuple(SandboxColumn(**column) for column in answer["columns"]),
            rows=tuple(tuple(row) for row in answer["rows"]),
            is_cut=answer["is_cut"],
        )

    def csv(self, query: str) -> str:
        """Returns the same rows as `ask`, as CSV in the form of `export --format csv`.

        Raises:
            QueryError: As for `ask`.
            SandboxBusyError: As for `ask`.
        """
        return str(self._answer(query, as_csv=True)["csv"])

    def _answer(self, query: str, *, as_csv: bool) -> Mapping[str, Any]:
        if not self._slot.acquire(blocking=False):
            raise SandboxBusyError("another query is running; try again when it is done.")
        try:
            for _ in range(_ATTEMPTS):
                answer = self._ask_process({**self._settings, "query": query, "as_csv": as_csv})
                if "is_stale" not in answer:
                    break
            if "error" in answer:
                raise QueryError(answer["error"])
            return answer
        finally:
            self._slot.release()

    def _ask_process(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        command = [sys.executable, "-P", "-m", "tfdbg_arrow.query.sql_sandbox"]
        # A killed process may leave files in this directory. These files are removed with the directory.
        with tempfile.TemporaryDirectory(prefix="tfdbg_arrow_sql_") as scratch:
            try:
                done = subprocess.run(
                    command,
                    input=json.dumps(request).encode(),
                    capture_output=True,
                    timeout=self._timeout_s + _GRACE_S,
                    check=False,
                    # Arrow's own allocator would reserve 1 GiB of the address space.
                    env={**os.environ, "TMPDIR": scratch, "ARROW_DEFAULT_MEMORY_POOL": "system"},
                )
            except subprocess.TimeoutExpired:
                return {"error": _too_long(self._timeout_s)}
        try:
            answer: Mapping[str, Any] = json.loads(done.stdout)
        except ValueError:
            last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
            how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
            return {"error": f"the query's process ended with {how}; it may have run out of memory. {last}".strip()}
        return answer


def _main() -> None:
    """Reads a query from stdin, and writes the answer to stdout."""
    request = json.load(sys.stdin)
    try:
        answer = _answer(request)
    except (TfdbgArrowError, MemoryError) as error:
        # DuckDB's advice is removed, because it is about settings that cannot be changed here.
        text = str(error).partition("\n\nPossible solutions")[0]
        answer = {"error": text or "the query needs more memory than its limit."}
    except (ValueError, ArithmeticError) as error:  # for example, Python has no date after the year 9999
        answer = {"error": f"the answer holds a value that cannot be shown ({error}); cast it to VARCHAR."}
    sys.stdout.write(json.dumps(answer, allow_nan=False))


def _answer(request: Mapping[str, Any]) -> Mapping[str, Any]:
    query = request["query"]
    _check_is_select(query)
    with OpenLogdir(request["path"], skip_broken=request["skip_broken"]) as logdir:
        logdir.fetch(*mentioned_tables(query))
        parts = _parts(logdir)
        _limit_memory(logdir, memory_limit=request["memory_limit"])
        _bound_process(request["timeout_s"], memory=request["memory_limit"] + _ADDRESS_SPACE)
        try:
            with logdir.within(request["timeout_s"]):
                logdir.prepare(query)
                parts = _lock(logdir)
                return logdir.stream(query, lambda rows: _first(rows, request), batch_rows=_BATCH_ROWS)
        except TimeLimitError:
            return {"error": _too_long(request["timeout_s"])}
        except QueryError as error:
            if _parts(logdir) != parts:  # compaction replaced parts; DuckDB must not open the new parts
                return {"error": str(error), "is_stale": True}
            raise


def _check_is_select(query: str) -> None:
    try:
        statements = duckdb.extract_statements(query)
    except duckdb.Error as error:
        raise QueryError(str(error)) from error
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        statement_types = ", ".join(statement.type.name for statement in statements) or "nothing"
        raise QueryError(f"expected one SELECT, found {statement_types}; `tfdbg-arrow sql` runs other statements.")


def _limit_memory(logdir: OpenLogdir, *, memory_limit: int) -> None:
    for setting in (
        f"memory_limit = '{memory_limit}B'",
        f"max_temp_directory_size = '{_MAX_SPILL}'",
        "threads = 2",
    ):
        logdir.connection.execute(f"SET {setting}")


def _lock(logdir: OpenLogdir) -> list[Path]:
    """Restricts DuckDB to the live parts, so that a query cannot open other files. Returns the live parts."""
    connection = logdir.connection
    parts = _parts(logdir)
    for setting in (
        "python_enable_replacements = false",
        "allow_community_extensions = false",
        f"allowed_paths = [{', '.join(sql_literal(str(part)) for part in parts)}]",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        connection.execute(f"SET {setting}")
    return parts


def _parts(logdir: OpenLogdir) -> list[Path]:
    return [part for table in TABLES for part in logdir.parts(table.name)]


def _bound_process(timeout_s: float, *, memory: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    seconds = int(4 * timeout_s) + 10  # processor time: DuckDB's two threads use up to twice the elapsed time
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C, the server ends this process


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
    first_rows = [
        list(row) for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]
    if request["as_csv"]:
        lines = rows_as_csv(rows.schema.names, first_rows)
        return {"csv": lines} if len(lines) <= _MAX_TEXT else {"error": _too_much(len(lines))}
    answer = {"columns": columns, "rows": to_json(first_rows), "is_cut": is_cut}
    size = len(json.dumps(answer, allow_nan=False))
    return answer if size <= _MAX_TEXT else {"error": _too_much(size)}


def _too_long(timeout_s: float) -> str:
    return f"the query took longer than {timeout_s:g} seconds and was stopped."


def _too_much(size: int) -> str:
    return f"the answer has {size:,} bytes, expected at most {_MAX_TEXT:,}; select fewer columns, or shorten them."


if __name__ == "__main__":
    _main()
