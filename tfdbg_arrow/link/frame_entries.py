"""Where the frames of a loop in a loop were entered.

TensorFlow makes the id of a frame by hashing the id of the outer frame, the iteration of it in which the loop is
entered, and the loop's name, whose hash is the same for all frames of one loop. Each pair of a frame and a place where
it may have been entered determines this hash. Sources: tensorflow/core/common_runtime/propagator_state.cc,
FindOrCreateChildFrame; tensorflow/core/lib/hash/hash.h, Hash64Combine.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tfdbg_arrow.link.arrays import Ints

_Hashes = NDArray[np.uint64]
_SALT = np.uint64(0x9E3779B97F4A7800)


def find_entries(frame_ids: Ints, outer_ids: Ints, iterations: Ints) -> Ints:
    """Returns the entry where each frame of a loop was entered, -1 where that is unknown.

    Args:
        frame_ids: The frames in one step, in the order in which they began.
        outer_ids: The frame of each entry where the loop can have been entered.
        iterations: The iteration of each entry.
    """
    in_order = np.arange(len(frame_ids))
    is_paired = len(frame_ids) == len(outer_ids)
    frames, outer, iteration = (ids.astype(np.uint64) for ids in (frame_ids, outer_ids, iterations))
    if is_paired and (names := _names(frames, outer, iteration)).min() == names.max():
        return in_order
    names = _names(frames[0], outer, iteration)
    for frame in frames[1:]:
        if len(names) <= 1:
            break
        names = names[np.isin(names, _names(frame, outer, iteration))]
    if len(set(names.tolist())) == 1:
        computed_frames = _combined(outer, _combined(iteration, names[:1]))
        order = np.argsort(computed_frames)
        entry = order[np.minimum(np.searchsorted(computed_frames[order], frames), len(computed_frames) - 1)]
        if (computed_frames[entry] == frames).all():
            return entry
    # These may be ids of another runtime. If there are as many frames as places, they most likely began in order.
    return in_order if is_paired else np.full(len(frame_ids), -1)


def _combined(first: _Hashes, second: _Hashes) -> _Hashes:
    """Returns Hash64Combine of each pair, modulo 2**64."""
    combined: _Hashes = first ^ (second + _SALT + (first << np.uint64(10)) + (first >> np.uint64(4)))
    return combined


def _names(frames: _Hashes, outer: _Hashes, iteration: _Hashes) -> _Hashes:
    """Returns the hash of the name that a loop has if it got each frame at each place."""
    names: _Hashes = np.broadcast_to(frames, outer.shape)
    with np.errstate(over="ignore"):
        for first in (outer, iteration):
            names = (names ^ first) - _SALT - (first << np.uint64(10)) - (first >> np.uint64(4))
    return names
