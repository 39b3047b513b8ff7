"""Aligns two sequences of tokens like a text diff: common ends first, then unique tokens, then the fewest edits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int64]
_Gap = tuple[int, int, int, int]
"""Start and end in A, start and end in B."""

_MAX_EDITS = 400
_MAX_STEPS = 4_000_000
"""Maximum number of comparisons for one search for the fewest edits. Beyond it, tokens are paired by occurrence."""


def align(a: Sequence[Tokens], b: Sequence[Tokens]) -> list[tuple[int, int, int]]:
    """Returns (place in A, place in B, level) of each aligned pair, increasing in both.

    Args:
        a: The tokens of A on each level, the strictest first. Each level aligns what the previous one left.
        b: The tokens of B on each level.
    """
    found: list[tuple[int, int, int]] = []
    gaps: list[_Gap] = [(0, len(a[0]), 0, len(b[0]))]
    for level, (tokens_a, tokens_b) in enumerate(zip(a, b, strict=True)):
        left: list[_Gap] = []
        for gap in gaps:
            pairs = sorted(_align_gap(tokens_a, tokens_b, gap))
            found += ((i, j, level) for i, j in pairs)
            left += _between(pairs, gap)
        gaps = left
    return sorted(found)


def match_rest(a: Tokens, b: Tokens, rest_a: Tokens, rest_b: Tokens) -> list[tuple[int, int]]:
    """Returns pairs of equal tokens, in any order: the first occurrences are paired, then the second, and so on.

    Args:
        a: The tokens of A.
        b: The tokens of B.
        rest_a: The places in A that may be paired.
        rest_b: The places in B that may be paired.
    """
    return [(int(rest_a[i]), int(rest_b[j])) for i, j in _by_occurrence(a[rest_a], b[rest_b])]


def _between(pairs: Sequence[tuple[int, int]], gap: _Gap) -> Iterable[_Gap]:
    i, end_i, j, end_j = gap
    for next_i, next_j in (*pairs, (end_i, end_j)):
        if i < next_i and j < next_j:
            yield i, next_i, j, next_j
        i, j = next_i + 1, next_j + 1


def _align_gap(a: Tokens, b: Tokens, gap: _Gap) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    waiting = [gap]
    while waiting:
        i, end_i, j, end_j = waiting.pop()
        length = min(end_i - i, end_j - j)
        head = _common(a[i : i + length], b[j : j + length])
        found += zip(range(i, i + head), range(j, j + head), strict=True)
        i, j, length = i + head, j + head, length - head
        tail = _common(a[end_i - length : end_i][::-1], b[end_j - length : end_j][::-1])
        found += zip(range(end_i - tail, end_i), range(end_j - tail, end_j), strict=True)
        end_i, end_j = end_i - tail, end_j - tail
        if i == end_i or j == end_j:
            continue
        part_a, part_b = a[i:end_i], b[j:end_j]
        anchors = _rising(_unique(part_a, part_b))
        if anchors:
            pairs = [(i + x, j + y) for x, y in anchors]
            found += pairs
            waiting += _between(pairs, (i, end_i, j, end_j))
            continue
        edited = _fewest_edits(part_a.tolist(), part_b.tolist())
        if edited is None:
            edited = _rising(_by_occurrence(part_a, part_b))
            pairs = [(i + x, j + y) for x, y in edited]
            waiting += _between(pairs, (i, end_i, j, end_j)) if pairs else ()
        found += ((i + x, j + y) for x, y in edited)
    return found


def _common(a: Tokens, b: Tokens) -> int:
    """Returns the number of equal tokens at the front."""
    differs = a != b
    return int(differs.argmax()) if differs.any() else len(differs)


def _unique(a: Tokens, b: Tokens) -> list[tuple[int, int]]:
    """Returns the places of the tokens that occur exactly once in both, by their place in A."""
    once = []
    for tokens in (a, b):
        values, places, counts = np.unique(tokens, return_index=True, return_counts=True)
        once.append((values[counts == 1], places[counts == 1]))
    _, in_a, in_b = np.intersect1d(once[0][0], once[1][0], assume_unique=True, return_indices=True)
    return sorted(zip(once[0][1][in_a].tolist(), once[1][1][in_b].tolist(), strict=True))


def _by_occurrence(a: Tokens, b: Tokens) -> list[tuple[int, int]]:
    """Returns the places of equal tokens, paired by occurrence and ordered by their place in A."""
    places: dict[int, list[int]] = {}
    for place, token in enumerate(b.tolist()):
        places.setdefault(token, []).append(place)
    waiting = {token: iter(found) for token, found in places.items()}
    found = []
    for place, token in enumerate(a.tolist()):
        other = next(waiting.get(token, iter(())), None)
        if other is not None:
            found.append((place, other))
    return found


def _rising(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns a longest selection of pairs, ordered by the first number, in which the second number also increases."""
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for index, (_, y) in enumerate(pairs):
        place = bisect_left(ends, y)
        before.append(last[place - 1] if place else -1)
        if place == len(ends):
            ends.append(y)
            last.append(index)
        else:
            ends[place], last[place] = y, index
    chosen = []
    index = last[-1] if last else -1
    while index >= 0:
        chosen.append(pairs[index])
        index = before[index]
    return chosen[::-1]


def _fewest_edits(a: list[int], b: list[int]) -> list[tuple[int, int]] | None:
    """Returns the pairs of a shortest edit, or None if the search takes too long.

    Source: Myers, An O(ND) Difference Algorithm and Its Variations (1986), the greedy algorithm.
    """
    n, m = len(a), len(b)
    reach = {1: 0}
    history: list[dict[int, int]] = []
    steps = 0
    for edits in range(min(n + m, _MAX_EDITS) + 1):
        history.append(dict(reach))
        for k in range(-edits, edits + 1, 2):
            x = reach[k + 1] if k == -edits or (k != edits and reach[k - 1] < reach[k + 1]) else reach[k - 1] + 1
            y = x - k
            start = x
            while x < n and y < m and a[x] == b[y]:
                x, y = x + 1, y + 1
            steps += x - start + 1
            reach[k] = x
            if x >= n and y >= m:
                return _walk_back(history, n, m)
        if steps > _MAX_STEPS:
            return None
    return None


def _walk_back(history: list[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    pairs = []
    for edits in range(len(history) - 1, -1, -1):
        reach, k = history[edits], x - y
        down = k == -edits or (k != edits and reach[k - 1] < reach[k + 1])
        before_k = k + 1 if down else k - 1
        before_x = reach[before_k] if edits else 0
        before_y = before_x - before_k if edits else 0
        start_x, start_y = (before_x, before_y + 1) if down else (before_x + 1, before_y)
        if not edits:
            start_x = start_y = 0
        while x > start_x and y > start_y:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = before_x, before_y
    return pairs[::-1]
