"""Test where frames of inner loops were entered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tfdbg_arrow.link.frame_entries import find_entries, find_iterations

IDS = st.integers(-(2**63), 2**63 - 1)


def combine(first: int, second: int) -> int:
    """Combines two hashes. Source: tensorflow/core/lib/hash/hash.h, Hash64Combine."""
    first %= 2**64
    return first ^ ((second + 0x9E3779B97F4A7800 + (first << 10) + (first >> 4)) % 2**64)


def frame_id(outer: int, iteration: int, name: int) -> int:
    made = combine(outer, combine(iteration, name))
    return made - 2**64 if made >= 2**63 else made


def entries(frames: list[int], places: list[tuple[int, int]]) -> list[int]:
    index_of = find_entries(frames, places)
    return [index_of.get(frame, -1) for frame in frames]


@given(
    outer=IDS,
    name=IDS,
    chosen=st.sets(st.integers(0, 30), min_size=2, max_size=30).flatmap(lambda each: st.permutations(sorted(each))),
)
def test_frames_in_any_order_and_of_some_iterations(outer: int, name: int, chosen: list[int]) -> None:
    places = [(outer, iteration) for iteration in range(31)]
    found = entries([frame_id(outer, iteration, name) for iteration in chosen], places)
    assert found in (chosen, [-1] * len(chosen))  # several names can explain few frames


@given(order=st.permutations(range(31)))
def test_frames_of_all_iterations_in_any_order(order: list[int]) -> None:
    places = [(2**61 + 12345, iteration) for iteration in range(31)]
    assert entries([frame_id(2**61 + 12345, iteration, 2**50 + 7) for iteration in order], places) == order


def test_one_frame_may_have_been_entered_anywhere() -> None:
    assert entries([frame_id(5, 1, 77)], [(5, 0), (5, 1)]) == [-1]


def test_ids_of_another_runtime_are_paired_in_order() -> None:
    assert entries([7, 9], [(5, 0), (5, 1)]) == [0, 1]
    assert entries([7, 9], [(5, 0), (5, 1), (5, 2)]) == [-1, -1]


def test_iterations_of_an_outer_loop_without_rows() -> None:
    # IDs that TensorFlow 2.21 computed for a loop in a loop
    frames = [1524684700944194831, 1524684700944195852, 1524684700944193806]
    iterations = find_iterations(frames, site="while/body/_1/while/while/body/_59", outer_site="while/body/_1")
    assert [iterations[frame] for frame in frames] == [1, 0, 2]


def test_a_frame_that_no_iteration_explains() -> None:
    assert find_iterations([1524684700944194831, 7], site="while/body/while/body", outer_site="while/body") == {}
