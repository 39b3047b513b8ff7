"""Decides why a question failed: because the logdir is damaged, or because this package has a bug.

The tables have several guarantees: most columns have no NULL, keys are unique, and references lead to rows. The code of
the questions relies on these guarantees, but a logdir from an untrusted source may violate them. Checking each row when
it is read would cost more time than the questions themselves. Therefore the guarantees are checked only after a
question has failed.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfdbg_arrow.errors import LogdirError, QueryError, TfdbgArrowError
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.integrity.parts import examined_parts
from tfdbg_arrow.query.logdir.open_logdir import OpenLogdir
from tfdbg_arrow.safe_text import is_stack_used_up
from tfdbg_arrow.schema import TABLES, Column, Table
from tfdbg_arrow.storage.manifest import read_live_parts, run_ids

_READERS = sys.stdlib_module_names | {"tfdbg_arrow", "numpy", "pyarrow", "duckdb"}
"""Modules in which a question can fail. An error from a callback of the caller is passed on unchanged."""
_EVENTS = frozenset(("execution", "tensor_health"))
"""Tables whose rows can be missing although other rows refer to them, because events can be dropped."""


@contextlib.contextmanager
def damage_told(*logdirs: Engine) -> Iterator[None]:
    """Turns errors of the block into a LogdirError if damage of a logdir explains them. Other errors are passed on.

    Args:
        *logdirs: The logdirs that the block reads.

    Raises:
        LogdirError: The block failed, and a logdir has rows that the format does not allow.
        BrokenPartError: The block failed, and a part cannot be read.
    """
    try:
        yield
    except (TfdbgArrowError, OSError, MemoryError):
        raise
    except Exception as error:
        if not _is_of_reader(error):
            raise
        for logdir in logdirs:
            if any(str(logdir.path) in note for note in getattr(error, "__notes__", ())):  # from an inner block
                continue
            try:
                what = damage_of(logdir)
            except QueryError as limit:
                error.add_note(f"tfdbg_arrow could not look for damage in {logdir.path}: {limit}")
                continue
            if what is not None:
                raise LogdirError(
                    f"the rows of {logdir.path} do not fit together: {what}. tfdbg_arrow does not write such rows. "
                    "Restore the logdir from a copy, or record again."
                ) from error
            error.add_note(f"tfdbg_arrow found no damage in {logdir.path}, so this is a bug of tfdbg_arrow.")
        raise


def bug_text(error: BaseException, *, evidence: str) -> str:
    """Returns the sentence for the user about an error that is a bug of this package.

    Args:
        error: The error.
        evidence: The evidence that a report of the bug should contain.
    """
    frames = [(str(frame.f_globals.get("__name__")), line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [f" in {module}:{line}" for module, line in frames if module.partition(".")[0] == "tfdbg_arrow"]
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return f"tfdbg-arrow has a bug: {what[:200]}{own[-1] if own else ''}; please report it with {evidence}."


def damage_of(logdir: Engine) -> str | None:
    """Returns the first damage that is found in the parts and rows of a logdir; None if there is none.

    Raises:
        LogdirError: The logdir or a part of it cannot be read.
        QueryError: The search reached a limit of time or memory.
    """
    what = _wrong_part(logdir)
    return what or next((what for table in TABLES for what in _wrong_rows(logdir, table)), None)


def _is_of_reader(error: Exception) -> bool:
    if isinstance(error, RecursionError) and is_stack_used_up():
        return False
    *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
    return str(innermost.f_globals.get("__name__")).partition(".")[0] in _READERS


def _wrong_part(logdir: Engine) -> str | None:
    if not isinstance(logdir.path, Path):
        return None  # a part at a URL was compared with the manifest when it was fetched
    runs, left_out = run_ids(logdir.path), set[Path]()
    if isinstance(logdir, OpenLogdir):
        runs, left_out = logdir.run_ids(), {Path(part.path) for part in logdir.broken_parts}
    for run_id in runs:
        entries = [
            entry for entry in read_live_parts(logdir.path, run_id=run_id) if logdir.path / entry.path not in left_out
        ]
        for entry, reason in examined_parts(logdir.path, entries, advance=lambda num_bytes: None):
            if reason is not None:
                return f"{entry.path} {reason}"
    return None


def _wrong_rows(logdir: Engine, table: Table) -> Iterator[str]:
    """Yields the problems of the rows of a table, each kind of problem once."""
    key = ", ".join(table.key)
    required = [column.name for column in table.columns if not column.nullable]
    condition = " OR ".join(f"{name} IS NULL" for name in required)
    for row in logdir.rows(f"SELECT {key}, {', '.join(required)} FROM {table.name} WHERE {condition} LIMIT 1"):
        name = required[row[len(table.key) :].index(None)]
        yield f"{table.name}.{name} is NULL in the row {_row(table, row)}"
    for row in logdir.rows(f"SELECT {key}, count(*) FROM {table.name} GROUP BY {key} HAVING count(*) > 1 LIMIT 1"):
        yield f"{table.name} has {row[-1]:,} rows {_row(table, row)}"
    for column in table.columns:
        target = (column.references or "").partition(".")[0]
        if target and target not in _EVENTS | {"run"}:
            for row in logdir.rows(_lost(table, column)):
                value = f"{table.name}.{column.name} is {row[-1]!r} in the row {_row(table, row)}"
                yield f"{value}, and {target} has no such row"


def _lost(table: Table, column: Column) -> str:
    """Returns the SQL that finds a row whose reference leads to no row.

    Only runs that ended cleanly are examined: while a run records, a row may be sealed before the row that it refers
    to.
    """
    target, _, target_column = (column.references or "").partition(".")
    # The name of an op is unique only within its graph.
    graph = "forward_graph_id" if column.name == "forward_op_name" else "graph_id"
    same_graph = f" AND t.graph_id = s.{graph}" if target == "graph_op" else ""
    key, value = ", ".join(f"s.{name}" for name in table.key), f"s.{column.name}"
    lost = (
        f"SELECT {key}, {value} FROM {table.name} AS s WHERE {value} IS NOT NULL "
        "AND s.run_id IN (SELECT run_id FROM run WHERE is_clean_end) "
        f"AND NOT EXISTS (SELECT 1 FROM {target} AS t WHERE t.run_id = s.run_id "
        f"AND t.{target_column} = {value}{same_graph})"
    )
    if target == "graph_op":  # a node that TensorFlow's optimizer made is not in graph_op
        lost += f" AND NOT EXISTS (SELECT 1 FROM executed_op AS t WHERE t.run_id = s.run_id AND t.node_name = {value})"
    return f"{lost} LIMIT 1"


def _row(table: Table, row: tuple[Any, ...]) -> str:
    return "(" + ", ".join(f"{name} {value!r}" for name, value in zip(table.key, row, strict=False)) + ")"
