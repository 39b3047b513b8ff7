"""The in-memory DuckDB database of a logdir."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import duckdb

from tfdbg_arrow.query.logdir.live_views import LiveViews

MAX_LOADED_ROWS = 500_000
"""Maximum number of rows of a run's table that is read into memory."""


_PERCENT_OF_LIMIT = 75
"""DuckDB's share of the memory limit; the rest is for the rows that Python holds."""


def connect(spill: str, *, memory_limit: int) -> duckdb.DuckDBPyConnection:
    """Opens a database in memory.

    Args:
        spill: The directory for temporary files of large queries. DuckDB's default is the working directory.
        memory_limit: How many bytes the queries may use in total.
    """
    return duckdb.connect(
        ":memory:",
        config={
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "memory_limit": f"{duckdb_share(memory_limit)}B",
            "temp_directory": spill,
        },
    )


def duckdb_share(memory_limit: int) -> int:
    """Returns DuckDB's share of a memory limit, in bytes."""
    return memory_limit * _PERCENT_OF_LIMIT // 100


def prepared(
    connection: duckdb.DuckDBPyConnection, *, check: Callable[[Iterable[str]], None], run_id: str | None = None
) -> LiveViews:
    """Applies the settings of one connection and returns its views."""
    connection.execute("SET enable_progress_bar = false")
    connection.execute("SET parquet_metadata_cache = true")
    connection.execute("CREATE MACRO IF NOT EXISTS blob_prefix(value, n) AS value[1:n]")
    return LiveViews(connection, check=check, run_id=run_id, max_loaded=MAX_LOADED_ROWS)
