"""Database: opens DuckDB databases with the settings that all of them share."""

from __future__ import annotations

import shutil

import duckdb

_SPILL_PER_MEMORY = 10
"""The limit on the size of a database's temporary files, as a multiple of the memory limit.

With the default memory limit, it is enough to sort a table of 100 M rows.
"""


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

    The files take at most half of the free disk space. By default, DuckDB would fill the disk, to which a training may
    also write.

    Args:
        directory: The directory of the temporary files.
        memory_limit: The memory limit of the queries, in bytes.
    """
    limit = min(_SPILL_PER_MEMORY * memory_limit, shutil.disk_usage(directory).free // 2)
    return {"temp_directory": directory, "max_temp_directory_size": f"{limit}B"}


def hide_progress_bar(connection: duckdb.DuckDBPyConnection) -> None:
    """Turns off the progress bar of one connection. In notebooks, DuckDB turns it on.

    Without the package ipywidgets, DuckDB does not turn the progress bar on, and every statement that changes this
    setting is an error. The setting cannot be passed to `duckdb.connect`, because each connection has its own.
    """
    if connection.execute("SELECT current_setting('enable_progress_bar')").fetchall() == [(True,)]:
        connection.execute("SET enable_progress_bar = false")
