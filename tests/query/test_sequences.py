"""Test properties of the alignment of sequences."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdbg_arrow.query.run_diff.alignment import Tokens, align, align_all

TOKENS = st.lists(st.integers(0, 4), max_size=30)


def tokens(values: list[int]) -> Tokens:
    return np.array(values, np.int64)


@given(TOKENS, TOKENS)
def test_pairs_are_equal_ordered_and_complete(a: list[int], b: list[int]) -> None:
    pairs = align([tokens(a)], [tokens(b)])
    assert all(a[i] == b[j] for i, j, _ in pairs)
    assert all(i < k and j < m for (i, j, _), (k, m, _) in itertools.pairwise(pairs))
    ends = [(-1, -1, 0), *pairs, (len(a), len(b), 0)]
    for (i, j, _), (k, m, _) in itertools.pairwise(ends):
        assert not set(a[i + 1 : k]) & set(b[j + 1 : m])


@given(TOKENS, st.integers(0, 29), st.integers(0, 4))
def test_one_inserted_token_leaves_one_token_unaligned(values: list[int], place: int, token: int) -> None:
    edited = [*values[:place], token, *values[place:]]
    assert len(align([tokens(values)], [tokens(edited)])) == len(values)


def test_a_later_level_aligns_only_between_the_pairs_of_earlier_levels() -> None:
    strict = [tokens([1, 2, 3, 4]), tokens([1, 9, 3, 8])]
    loose = [tokens([0, 5, 0, 6]), tokens([0, 5, 0, 5])]
    assert align([strict[0], loose[0]], [strict[1], loose[1]]) == [(0, 0, 0), (1, 1, 1), (2, 2, 0)]


def test_reordered_tokens_are_matched_last() -> None:
    assert align_all([tokens([7, 7, 8])], [tokens([8, 7, 7])]) == [(2, 0, 0), (0, 1, 0), (1, 2, 0)]


def test_pairs_are_ordered_beyond_the_edit_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{align.__module__}._MAX_EDITS", 1)
    pairs = align([tokens([1, 2, 1, 2, 5, 5, 1])], [tokens([2, 1, 2, 1, 6, 6, 2])])
    assert pairs
    assert all(i < k and j < m for (i, j, _), (k, m, _) in itertools.pairwise(pairs))


def test_an_empty_sequence_has_no_pairs() -> None:
    assert align([tokens([])], [tokens([1])]) == []
