"""Database: opens DuckDB databases with the settings that all of them have."""

from __future__ import annotations

import shutil

import duckdb

_SPILL_PER_MEMORY = 10
"""How many times the memory limit the temporary files of a database may take: enough to sort a table of 100 M rows
within the default limit."""


def open_database(path: str = ":memory:", **settings: str | bool) -> duckdb.DuckDBPyConnection:
    """Opens a database that downloads nothing and prints nothing.

    Args:
        path: The file; by default, the database is in memory.
        settings: More settings, by DuckDB's names.
    """
    connection = duckdb.connect(
        path, config={"autoinstall_known_extensions": False, "autoload_known_extensions": False, **settings}
    )
    hide_progress_bar(connection)
    return connection


def temporary_files(directory: str, *, memory_limit: int) -> dict[str, str]:
    """Returns the settings for the temporary files of large queries.

    The files take at most half of the free disk. DuckDB would fill the disk, on which a training may write, too.

    Args:
        directory: Where they are.
        memory_limit: The memory limit of the queries, in bytes.
    """
    limit = min(_SPILL_PER_MEMORY * memory_limit, shutil.disk_usage(directory).free // 2)
    return {"temp_directory": directory, "max_temp_directory_size": f"{limit}B"}


def hide_progress_bar(connection: duckdb.DuckDBPyConnection) -> None:
    """Turns off the progress bar of one connection, in which DuckDB turns it on in notebooks.

    Without the package ipywidgets, DuckDB does not turn it on, and every statement that changes it is an error. The
    setting is not one of `duckdb.connect`, because each connection has its own.
    """
    if connection.execute("SELECT current_setting('enable_progress_bar')").fetchall() == [(True,)]:
        connection.execute("SET enable_progress_bar = false")
