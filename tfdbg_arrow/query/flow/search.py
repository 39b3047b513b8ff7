"""Searches through graphs of any items: ops, tensors, or rows of tensor_health."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from operator import attrgetter
from typing import TypeVar

from tfdbg_arrow.query.recorded import TensorEvent

T = TypeVar("T")
_event_index = attrgetter("event_index")


def breadth_first(
    start: Iterable[T],
    step: Callable[[T], Iterable[T]],
    *,
    limit: int | None = None,
    key: Callable[[T], Hashable] = lambda item: item,
) -> Iterator[T]:
    """Yields the start items and all items that repeated steps reach, each item once, nearest items first.

    Args:
        start: The first items.
        step: Returns the items that follow an item. `step` is called after the item was yielded.
        limit: Maximum number of items; None means all.
        key: Returns the identity of an item; by default, the item itself.
    """
    seen: set[Hashable] = set()
    to_follow = deque(start)
    while to_follow and (limit is None or len(seen) < limit):
        item = to_follow.popleft()
        item_key = key(item)
        if item_key not in seen:
            seen.add(item_key)
            yield item
            to_follow.extend(step(item))


def rows_behind(
    rows: Iterable[TensorEvent], sources: Callable[[TensorEvent], Iterable[TensorEvent]], *, limit: int | None = None
) -> Iterator[TensorEvent]:
    """Yields rows of tensor_health and the rows behind them, as `breadth_first` does.

    Args:
        rows: The first rows.
        sources: Returns the rows to follow from a row.
        limit: Maximum number of rows; None means all.
    """
    return breadth_first(rows, sources, limit=limit, key=_event_index)
