"""Loop frames: in which iteration of an outer loop the runtime entered an inner one.

TensorFlow makes the id of a loop's frame by hashing the frame and the iteration in which the loop is entered with the
loop's name. The hash can be undone step by step: from a frame and a place where it may have been entered follows the
hash of the name, and that is the same for all frames of one loop.

Source: tensorflow/core/common_runtime/propagator_state.cc, FindOrCreateChildFrame; tensorflow/core/lib/hash/hash.h.
"""

from __future__ import annotations

from collections.abc import Sequence

_WORD = 2**64
_SALT = 0x9E3779B97F4A7800

Entry = tuple[int, int]
"""Where a loop is entered: frame and iteration."""


def find_entries(frames: Sequence[int], entries: Sequence[Entry]) -> dict[int, Entry]:
    """Returns where each frame of one loop was entered; frames for which that is not certain are left out.

    Args:
        frames: All frames of the loop in one step, in the order in which their first tensors were recorded.
        entries: All places where it can have been entered, in the order of the iterations.
    """
    if len(frames) == len(entries) == 1:
        return {frames[0]: entries[0]}
    by_frame = _entries_by_frame(frames, entries)
    if by_frame is not None:
        return by_frame
    # Another runtime's ids, which tell nothing: as many entries as frames were most likely made in the same order.
    return dict(zip(frames, entries, strict=True)) if len(frames) == len(entries) else {}


def _entries_by_frame(frames: Sequence[int], entries: Sequence[Entry]) -> dict[int, Entry] | None:
    """Returns where each frame was entered if exactly one name of the loop explains all frames, else None.

    A few frames decide on the name, so the time is linear in the number of frames and entries.
    """
    names: set[int] | None = None
    for frame in frames:
        own = {_name_hash(frame, entry) for entry in entries}
        names = own if names is None else names & own
        if len(names) <= 1:
            break
    if names is None or len(names) != 1:
        return None
    (name,) = names
    found = {_frame(name, entry): entry for entry in entries}
    wanted = {frame: frame % _WORD for frame in frames}
    if not all(word in found for word in wanted.values()):
        return None
    return {frame: found[word] for frame, word in wanted.items()}


def _frame(name_hash: int, entry: Entry) -> int:
    """Returns the id of the frame, as an unsigned number, that a loop gets where it is entered."""
    outer, iteration = entry
    return _combine(outer, _combine(iteration, name_hash))


def _combine(first: int, second: int) -> int:
    """Returns Hash64Combine(first, second)."""
    first %= _WORD
    return (first ^ (second + _SALT + (first << 10) + (first >> 4))) % _WORD


def _name_hash(frame: int, entry: Entry) -> int:
    """Returns the hash of the name that a loop has if it got this frame where it was entered there."""
    outer, iteration = entry
    return _second(iteration, _second(outer, frame))


def _second(first: int, combined: int) -> int:
    """Returns what was combined with `first` to a hash (Hash64Combine undone)."""
    first %= _WORD
    return (((combined % _WORD) ^ first) - _SALT - (first << 10) - (first >> 4)) % _WORD
