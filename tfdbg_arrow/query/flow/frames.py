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
    names = [{_name_hash(frame, entry): entry for entry in entries} for frame in frames]
    common = set(names[0]).intersection(*names[1:]) if names else set()
    if len(common) == 1:
        (name,) = common
        return {frame: by_name[name] for frame, by_name in zip(frames, names, strict=True)}
    # Another runtime's ids, which tell nothing: as many entries as frames were most likely made in the same order.
    return dict(zip(frames, entries, strict=True)) if len(frames) == len(entries) else {}


def _name_hash(frame: int, entry: Entry) -> int:
    """Returns the hash of the name that a loop has if it got this frame where it was entered there."""
    outer, iteration = entry
    return _second(iteration, _second(outer, frame))


def _second(first: int, combined: int) -> int:
    """Returns what was combined with `first` to a hash (Hash64Combine undone)."""
    first %= _WORD
    return (((combined % _WORD) ^ first) - _SALT - (first << 10) - (first >> 4)) % _WORD
