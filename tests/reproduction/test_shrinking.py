"""Test that inputs are shrunk to the smallest ones that are still bad."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdbg_arrow.reproduction.trial import Array, shrink, smallest

NEVER = lambda: False  # noqa: E731


@settings(deadline=None)
@given(st.integers(1, 60).flatmap(lambda size: st.tuples(st.just(size), st.sets(st.integers(0, size - 1), min_size=1))))
def test_exactly_the_items_that_are_needed_remain(size_and_needed: tuple[int, set[int]]) -> None:
    size, needed = size_and_needed
    assert set(smallest(list(range(size)), lambda kept: needed <= set(kept), is_over=NEVER)) == needed


def test_a_search_that_is_over_ends_with_what_it_has() -> None:
    assert smallest([1, 2, 3], lambda kept: True, is_over=lambda: True) == [1, 2, 3]


def test_axes_of_equal_size_are_sliced_together() -> None:
    x = np.ones((5, 4), np.float32)
    w = np.ones((4, 3), np.float32)
    x[3, 2] = np.nan

    def is_bad(arrays: dict[str, Array]) -> bool:
        if arrays["x"].shape[1] != arrays["w"].shape[0]:
            return False  # the op refuses these
        return bool(np.isnan(arrays["x"] @ arrays["w"]).any())

    found = shrink({"x": x, "w": w}, is_bad, is_over=NEVER)
    assert {name: array.shape for name, array in found.items()} == {"x": (1, 1), "w": (1, 1)}
    assert np.isnan(found["x"]).all()


def test_an_input_that_cannot_be_sliced_stays() -> None:
    x, shape = np.zeros((6,), np.float32), np.array([2, 3])
    found = shrink({"x": x, "shape": shape}, lambda arrays: len(arrays["shape"]) == 2, is_over=NEVER)
    assert {name: array.shape for name, array in found.items()} == {"x": (1,), "shape": (2,)}
