"""Test `breadth_first` against a search that grows sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tfdbg_arrow.query.flow.search import breadth_first

EDGES = st.dictionaries(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=4), max_size=10)


@given(edges=EDGES, start=st.lists(st.integers(0, 9), max_size=3), limit=st.none() | st.integers(0, 12))
def test_the_nearest_items_come_first_and_each_comes_once(
    edges: dict[int, list[int]], start: list[int], limit: int | None
) -> None:
    distances: dict[int, int] = {}
    level = set(start)
    for distance in range(10):
        distances.update(dict.fromkeys(level, distance))
        level = {item for source in level for item in edges.get(source, ())} - distances.keys()

    found = list(breadth_first(start, lambda item: edges.get(item, ()), limit=limit))

    assert len(found) == len(set(found)) == min(len(distances), len(distances) if limit is None else limit)
    assert [distances[item] for item in found] == sorted(distances.values())[: len(found)]


def test_items_with_the_same_key_count_as_one() -> None:
    assert list(breadth_first([1, -1, 2], lambda item: [item - 4], limit=5, key=abs)) == [1, 2, -3, -7, -11]
