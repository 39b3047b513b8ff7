"""Opens DuckDB databases with the settings that all of them share."""

from __future__ import annotations

import shutil

import duckdb

_SPILL_PER_MEMORY = 10
"""The limit on the size of a database's temporary files, as a multiple of the memory limit.

With the default memory limit, this size is enough to sort a table of 100 million rows.
"""


def open_database(path: str = ":memory:", **settings: str | bool) -> duckdb.DuckDBPyConnection:
    """Opens a database that downloads nothing and prints nothing.

    Args:
        path: The file of the database. By default, the database is in memory.
        settings: More settings of DuckDB, by name.
    """
    connection = duckdb.connect(
        path, config={"autoinstall_known_extensions": False, "autoload_known_extensions": False, **settings}
    )
    hide_progress_bar(connection)
    return connection


def temporary_files(directory: str, *, memory_limit: int) -> dict[str, str]:
    """Returns the settings for the temporary files of large queries.

    The files take at most half of the free disk space. DuckDB's default would let them fill the disk, but a training
    may also write to this disk.

    Args:
        directory: The directory of the temporary files.
        memory_limit: The memory limit of the queries, in bytes.
    """
    limit = min(_SPILL_PER_MEMORY * memory_limit, shutil.disk_usage(directory).free // 2)
    return {"temp_directory": directory, "max_temp_directory_size": f"{limit}B"}


def hide_progress_bar(connection: duckdb.DuckDBPyConnection) -> None:
    """Turns off the progress bar of one connection. In notebooks, DuckDB turns the progress bar on.

    If the package ipywidgets is missing, DuckDB does not turn the progress bar on, and a statement that changes this
    setting fails. The setting cannot be passed to `duckdb.connect`, because it belongs to a single connection.
    """
    if connection.execute("SELECT current_setting('enable_progress_bar')").fetchall() == [(True,)]:
        connection.execute("SET enable_progress_bar = false")
