"""Loop frames: the iteration of an outer loop in which the runtime entered an inner loop.

TensorFlow makes the id of a loop's frame by hashing the frame and iteration in which the loop is entered, and the
loop's name. The hash can be inverted step by step: a frame and a place where it may have been entered determine the
hash of the name, and this hash is the same for all frames of one loop.

Source: tensorflow/core/common_runtime/propagator_state.cc, FindOrCreateChildFrame; tensorflow/core/lib/hash/hash.h.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_WORD = 2**64
_SALT = 0x9E3779B97F4A7800

Entry = tuple[int, int]
"""Where a loop is entered: frame and iteration."""


def find_entries(frames: Sequence[int], entries: Sequence[Entry]) -> dict[int, Entry]:
    """Returns where each frame of one loop was entered; frames for which that is uncertain are left out.

    Args:
        frames: All frames of the loop in one step, in the order in which their first tensors were recorded.
        entries: All places where it can have been entered, in order of the iterations.
    """
    in_order = dict(zip(frames, entries, strict=True)) if len(frames) == len(entries) else {}
    # The usual case, in linear time. If other names explain the frames as well, the order still decides.
    if in_order and len({_name_hash(frame, entry) for frame, entry in in_order.items()}) == 1:
        return in_order
    by_frame = _entries_by_frame(frames, entries)
    # None may mean ids of another runtime. With as many entries as frames, they were most likely made in order.
    return in_order if by_frame is None else by_frame


def _entries_by_frame(frames: Sequence[int], entries: Sequence[Entry]) -> dict[int, Entry] | None:
    """Returns where each frame was entered if exactly one name of the loop explains all frames, or else None."""
    if not frames or not entries:
        return None
    outer = np.array([frame % _WORD for frame, _ in entries], np.uint64)
    iteration = np.array([iteration % _WORD for _, iteration in entries], np.uint64)
    names = np.unique(_name_hashes(frames[0], outer, iteration))
    for frame in frames[1:]:
        if len(names) <= 1:
            break
        names = names[np.isin(names, _name_hashes(frame, outer, iteration))]
    if len(names) != 1:
        return None
    found = {_frame(int(names[0]), entry): entry for entry in entries}
    if not all(frame % _WORD in found for frame in frames):
        return None
    return {frame: found[frame % _WORD] for frame in frames}


def _name_hashes(
    frame: int, outer: npt.NDArray[np.uint64], iteration: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """Returns `_name_hash` of a frame for many entries. Arithmetic of uint64 arrays is modulo 2**64."""
    combined = np.full_like(outer, frame % _WORD)
    for first in (outer, iteration):
        combined = (combined ^ first) - np.uint64(_SALT) - (first << np.uint64(10)) - (first >> np.uint64(4))
    return combined


def _frame(name_hash: int, entry: Entry) -> int:
    """Returns the id, as an unsigned number, of the frame of a loop that is entered at an entry."""
    outer, iteration = entry
    return _combine(outer, _combine(iteration, name_hash))


def _combine(first: int, second: int) -> int:
    """Returns Hash64Combine(first, second)."""
    first %= _WORD
    return (first ^ (second + _SALT + (first << 10) + (first >> 4))) % _WORD


def _name_hash(frame: int, entry: Entry) -> int:
    """Returns the hash of the name of a loop that got this frame when it was entered at an entry."""
    outer, iteration = entry
    return _second(iteration, _second(outer, frame))


def _second(first: int, combined: int) -> int:
    """Returns the value that was combined with `first` into a hash (the inverse of Hash64Combine)."""
    first %= _WORD
    return (((combined % _WORD) ^ first) - _SALT - (first << 10) - (first >> 4)) % _WORD
