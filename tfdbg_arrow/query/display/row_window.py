"""Rows that match a filter: finds windows of them from row counts per block, without sorting all rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.schema.declaration import MAX_INT64

BLOCK_SIZE = 8192
"""Number of index values in a block."""
_WIDER = 64
"""Each searched range is wider than the previous range by this factor."""

Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True)
class Window(Generic[Row]):
    """A window of the rows that match a filter.

    Attributes:
        rows: The rows, by their index.
        num_matching: Total number of matching rows.
        num_before: Number of matching rows before the first of `rows`.
    """

    rows: tuple[Row, ...] = ()
    num_matching: int = 0
    num_before: int = 0

    @property
    def num_after(self) -> int:
        """Number of matching rows after the last of `rows`."""
        return self.num_matching - self.num_before - len(self.rows)


@dataclass(frozen=True, kw_only=True)
class Rows(Generic[Row]):
    """The rows of a run that match a filter, ordered by a column.

    Attributes:
        logdir: The logdir.
        table: The table, such as `tensor_health AS h`.
        index: The column that orders the rows, such as `h.event_index`. Its values are unique and not negative.
        condition: Returns the SQL condition on the rows with `low` <= index < `end`, and its parameters.
        read: Reads the rows that meet a condition. It takes the condition and its parameters, the maximum number of
            rows, and the number of rows to skip.
    """

    logdir: Engine
    table: str
    index: str
    condition: Callable[[int, int], tuple[str, list[object]]]
    read: Callable[[str, list[object], int, int], tuple[Row, ...]]

    def window(
        self, *, first: int = 0, before: int | None = None, place: int | None = None, limit: int = 100
    ) -> Window[Row]:
        """Returns a window of the rows.

        Args:
            first: The window starts at the first row with at least this index.
            before: The window ends directly before this index instead; None makes it start at `first`.
            place: The window starts after this many rows instead, or at the last row if there are fewer rows.
            limit: Maximum number of rows.

        Raises:
            QueryError: The limit is below 1.
            BrokenPartError: A part cannot be read.
        """
        if limit < 1:
            raise QueryError(f"limit is {limit}, expected 1 or more.")
        source, parameters = self._source(0, MAX_INT64)
        blocks: list[tuple[int, int]] = self.logdir.kept_rows(
            f"SELECT {self.index} - {self.index} % {BLOCK_SIZE} AS block, count(*) {source} GROUP BY 1 ORDER BY 1",
            parameters,
        )
        num_matching = sum(count for _, count in blocks)
        if place is not None:
            num_before, end = min(place, max(0, num_matching - 1)), num_matching
        else:
            at = first if before is None else before
            num_before = sum(count for block, count in blocks if block + BLOCK_SIZE <= at)
            if any(block < at < block + BLOCK_SIZE for block, _ in blocks):
                source, parameters = self._source(at - at % BLOCK_SIZE, at)
                ((in_block,),) = self.logdir.rows(f"SELECT count(*) {source}", parameters)
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
        rows = self.read(*self.condition(low, last), num_rows, offset) if num_rows else ()
        return Window(rows=rows, num_matching=num_matching, num_before=num_before)

    def next(self, at: int, *, is_backwards: bool = False) -> int | None:
        """Returns the next index after `at`, or the previous index before it; None if there is none.

        It searches near ranges before far ranges.
        """
        function, width = "max" if is_backwards else "min", BLOCK_SIZE
        low, end = (at - width, at) if is_backwards else (at + 1, at + 1 + width)
        while end > 0 and low < MAX_INT64:
            source, parameters = self._source(max(low, 0), min(end, MAX_INT64))
            ((index,),) = self.logdir.rows(f"SELECT {function}({self.index}) {source}", parameters)
            if index is not None:
                return int(index)
            width *= _WIDER
            low, end = (low - width, low) if is_backwards else (end, end + width)
        return None

    def index_of(self, row: Row) -> int:
        """Returns the index of a row."""
        return int(getattr(row, self.index.rpartition(".")[2]))

    def _source(self, low: int, end: int) -> tuple[str, list[object]]:
        condition, parameters = self.condition(low, end)
        return f"FROM {self.table} WHERE {condition}", parameters


def first_of_step(logdir: Engine, table: str, index: str, step: int, *, run_id: str) -> int | None:
    """Returns the least index of a row of a training step, or else of a later step; None if there is none."""
    ((first,),) = logdir.rows(f"SELECT min({index}) FROM {table} WHERE run_id = ? AND step >= ?", [run_id, step])
    return None if first is None else int(first)


def given_conditions(pairs: Sequence[tuple[str, object]]) -> tuple[list[str], list[object]]:
    """Returns the conditions whose value is given (not None), and these values."""
    given = [(text, value) for text, value in pairs if value is not None]
    return [text for text, _ in given], [value for _, value in given]
