"""Relations as NumPy arrays of int64: groups of rows, ranges of numbers, and sets of keys."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NO_INTS: Ints = np.empty(0, np.int64)


def ints(values: Any) -> Ints:
    """Returns values as an array of int64."""
    return np.asarray(values, np.int64).reshape(-1)


def joined(parts: list[Ints]) -> Ints:
    """Returns the concatenation of arrays; empty if there are no arrays."""
    return np.concatenate([NO_INTS, *parts])


def grouped(owner: Ints, size: int) -> tuple[Ints, Ints]:
    """Groups the rows of a relation by their owner.

    Args:
        owner: The owner of each row, from 0 to `size` - 1.
        size: The number of owners.

    Returns:
        The order of the rows by owner, and the start of each group in this order (`size` + 1 numbers).
    """
    order = np.argsort(owner, kind="stable")
    return order, np.searchsorted(owner[order], np.arange(size + 1))


def ranges(first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """Returns (index of the range, number) for each number of the ranges `first[i]` to `last[i]` - 1."""
    count = np.maximum(last - first, 0)
    item = np.repeat(np.arange(len(first)), count)
    return item, np.arange(len(item)) - np.repeat(np.cumsum(count) - count, count) + first[item]


def distinct(values: Ints) -> Ints:
    """Returns the distinct values, sorted. `np.unique` would hash the values, which takes several times as long."""
    values = np.sort(values)
    return values[np.concatenate([[True], values[1:] != values[:-1]])] if len(values) else values


def place_of(keys: Ints, sorted_keys: Ints) -> Ints:
    """Returns the index of each key among sorted keys, -1 for a key that is missing there."""
    if not len(sorted_keys):
        return np.full(len(keys), -1)
    candidate = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    return np.where(sorted_keys[candidate] == keys, candidate, -1)


def has(keys: Ints, sorted_keys: Ints) -> Bools:
    """Returns which keys are among sorted keys."""
    return place_of(keys, sorted_keys) >= 0


class KeySet:
    """A set of keys to which arrays of keys are added.

    The set consists of sorted arrays, each at least twice as long as the next, so that adding few keys to many is
    cheap.
    """

    def __init__(self) -> None:
        self._parts: list[Ints] = []

    def add(self, keys: Ints) -> Ints:
        """Adds keys, and returns the keys that are new in the set, sorted and distinct."""
        new = distinct(keys)
        for part in self._parts:
            new = new[~has(new, part)]
        if len(new):
            self._parts.append(new)
            while len(self._parts) > 1 and len(self._parts[-2]) < 2 * len(self._parts[-1]):
                last = self._parts.pop()
                self._parts[-1] = np.sort(np.concatenate([self._parts[-1], last]), kind="stable")
        return new

    def __len__(self) -> int:
        return sum(map(len, self._parts))
