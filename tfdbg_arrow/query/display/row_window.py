"""Finds a window of rows among all rows that match a filter, from row counts per block, without sorting all rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypedDict, TypeVar

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.schema.declaration import MAX_INT64

BLOCK_SIZE = 8192
"""Number of index values in a block."""
_WIDER = 64
"""The factor by which each searched range is wider than the previous range."""

Matching = Callable[[int, int], tuple[str, list[object]]]
"""Returns the SQL that selects the matching rows with `low` <= index < `end`, and its parameters.

The SQL begins after FROM and ends with the condition.
"""


Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True)
class Window(Generic[Row]):
    """A window of the rows that match a filter.

    Attributes:
        rows: The rows, by their index.
        num_matching: Total number of matching rows.
        num_before: Number of matching rows before the first of `rows`.
    """

    rows: tuple[Row, ...]
    num_matching: int
    num_before: int


class WindowStart(TypedDict, total=False):
    """Where a window starts and its number of rows, as in the arguments of `find_window`."""

    first: int
    before: int | None
    place: int | None
    limit: int


@dataclass(frozen=True, kw_only=True)
class WindowPlace:
    """The position of a window: of the rows with `low` <= index < `end`, skip `offset` rows and read `num_rows` rows.

    Attributes:
        low: The least index to read.
        end: The index at which reading may stop.
        offset: Number of rows between `low` and the window.
        num_rows: Number of rows in the window.
        num_before: Total number of rows before the window.
        num_matching: Total number of matching rows.
    """

    low: int
    end: int
    offset: int
    num_rows: int
    num_before: int
    num_matching: int


def find_window(
    logdir: Engine,
    matching: Matching,
    *,
    index: str,
    first: int = 0,
    before: int | None = None,
    place: int | None = None,
    limit: int = 100,
) -> WindowPlace:
    """Returns the position of a window of a table's rows, ordered by a column of non-negative integers.

    Args:
        logdir: The logdir.
        matching: Selects the rows.
        index: The column to order by. Its values are unique.
        first: The window starts at the first row with at least this index.
        before: The window ends directly before this index instead; None makes it start at `first`.
        place: The window starts after this many matching rows instead, or at the last row if there are fewer rows.
        limit: Maximum number of rows.

    Raises:
        QueryError: The limit is below 1.
        BrokenPartError: A part cannot be read.
    """
    if limit < 1:
        raise QueryError(f"limit is {limit}, expected 1 or more.")
    source, parameters = matching(0, MAX_INT64)
    blocks: list[tuple[int, int]] = logdir.kept_rows(
        f"SELECT {index} - {index} % {BLOCK_SIZE} AS block, count(*) FROM {source} GROUP BY 1 ORDER BY 1",
        parameters,
    )
    num_matching = sum(count for _, count in blocks)
    if place is not None:
        num_before, end = min(place, max(0, num_matching - 1)), num_matching
    else:
        at = first if before is None else before
        num_before = sum(count for block, count in blocks if block + BLOCK_SIZE <= at)
        if any(block < at < block + BLOCK_SIZE for block, _ in blocks):
            source, parameters = matching(at - at % BLOCK_SIZE, at)
            ((in_block,),) = logdir.rows(f"SELECT count(*) FROM {source}", parameters)
            num_before += in_block
        end = num_matching
        if before is not None:
            num_before, end = max(0, num_before - limit), num_before
    num_rows = min(limit, end - num_before)
    low, last, offset, seen = 0, 0, 0, 0
    for block, count in blocks:
        if seen <= num_before < seen + count:
            low, offset = block, num_before - seen
        if seen < num_before + num_rows:
            last = block + BLOCK_SIZE
        seen += count
    return WindowPlace(
        low=low, end=last, offset=offset, num_rows=num_rows, num_before=num_before, num_matching=num_matching
    )


def given_conditions(pairs: Sequence[tuple[str, object]]) -> tuple[list[str], list[object]]:
    """Returns the conditions whose value is given (not None), and these values."""
    given = [(text, value) for text, value in pairs if value is not None]
    return [text for text, _ in given], [value for _, value in given]


def first_matching(logdir: Engine, matching: Matching, *, index: str, first: int) -> int | None:
    """Returns the least matching index that is at least `first`, or None. It searches near ranges before far ranges."""
    width = BLOCK_SIZE
    while True:
        end = min(first + width, MAX_INT64)
        source, parameters = matching(first, end)
        ((least,),) = logdir.rows(f"SELECT min({index}) FROM {source}", parameters)
        if least is not None:
            return int(least)
        if end == MAX_INT64:
            return None
        first, width = end, width * _WIDER


def last_matching(logdir: Engine, matching: Matching, *, index: str, before: int) -> int | None:
    """Returns the greatest matching index below `before`, or None; see `first_matching`."""
    width = BLOCK_SIZE
    while before > 0:
        low = max(before - width, 0)
        source, parameters = matching(low, before)
        ((greatest,),) = logdir.rows(f"SELECT max({index}) FROM {source}", parameters)
        if greatest is not None:
            return int(greatest)
        before, width = low, width * _WIDER
    return None
