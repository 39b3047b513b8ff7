"""Where a window of rows lies among all that a filter leaves, by counts of blocks: nothing large is sorted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.engine import Engine

BLOCK_SIZE = 8192
"""How many values of the index are counted together."""
MAX_INDEX = 2**63 - 1
_WIDER = 64
"""So much wider is each next stretch that is looked through."""

Matching = Callable[[int, int], tuple[str, list[object]]]
"""Given `low` and `end`, says which rows are meant, of those with `low` <= index < `end`: SQL from behind FROM to the
end of the condition, and its parameters."""


@dataclass(frozen=True, kw_only=True)
class WindowPlace:
    """Where a window lies: `num_rows` rows from the `offset`-th on, among those with `low` <= index < `end`.

    Attributes:
        low: Least index that has to be read.
        end: The index at which reading may stop.
        offset: Rows from `low` on that come before the window.
        num_rows: Rows of the window.
        num_before: Rows before the window in all.
        num_matching: Rows that the filter leaves in all.
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
    """Returns where a window of a table's rows lies, in the order of a column of whole numbers from 0 on.

    Args:
        logdir: The logdir.
        matching: Which rows.
        index: The column, each value of which one row has.
        first: The window starts at the first row whose index is not less.
        before: It ends just before this index instead; None: it starts at `first`.
        place: It starts at the row before which so many come instead; the last row where there are not so many.
        limit: At most so many rows.

    Raises:
        QueryError: The limit is below 1.
        BrokenPartError: A part cannot be read.
    """
    if limit < 1:
        raise QueryError(f"limit is {limit}, expected a number of rows from 1 on.")
    source, parameters = matching(0, MAX_INDEX)
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


def first_matching(logdir: Engine, matching: Matching, *, index: str, first: int) -> int | None:
    """Returns the least index from `first` on; looks near by first, then further, so that it ends where one is near."""
    width = BLOCK_SIZE
    while True:
        end = min(first + width, MAX_INDEX)
        source, parameters = matching(first, end)
        ((found,),) = logdir.rows(f"SELECT min({index}) FROM {source}", parameters)
        if found is not None:
            return int(found)
        if end == MAX_INDEX:
            return None
        first, width = end, width * _WIDER


def last_matching(logdir: Engine, matching: Matching, *, index: str, before: int) -> int | None:
    """Returns the greatest index below `before`, as `first_matching`."""
    width = BLOCK_SIZE
    while before > 0:
        low = max(before - width, 0)
        source, parameters = matching(low, before)
        ((found,),) = logdir.rows(f"SELECT max({index}) FROM {source}", parameters)
        if found is not None:
            return int(found)
        before, width = low, width * _WIDER
    return None
