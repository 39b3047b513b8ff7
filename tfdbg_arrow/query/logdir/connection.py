"""The in-memory DuckDB of a logdir."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import duckdb

from tfdbg_arrow.query.logdir.live_views import LiveViews

MAX_LOADED_ROWS = 500_000
"""Rows of a run's table that is small: it is read into memory."""


def connect(spill: str) -> duckdb.DuckDBPyConnection:
    """Opens a database in memory.

    Args:
        spill: The directory for what a large query spills: DuckDB would write into the working directory.
    """
    return duckdb.connect(
        ":memory:",
        config={
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "temp_directory": spill,
        },
    )


def prepared(
    connection: duckdb.DuckDBPyConnection, *, check: Callable[[Iterable[str]], None], run_id: str | None = None
) -> LiveViews:
    """Sets what holds for one connection alone; returns its views."""
    connection.execute("SET enable_progress_bar = false")
    connection.execute("SET parquet_metadata_cache = true")
    connection.execute("CREATE MACRO IF NOT EXISTS blob_prefix(value, n) AS value[1:n]")
    return LiveViews(connection, check=check, run_id=run_id, max_loaded=MAX_LOADED_ROWS)
