"""Finds the entry of each frame of a nested loop: the outer frame and the outer iteration that entered the frame.

TensorFlow computes the ID of a frame by hashing three values: the ID of the outer frame, the outer iteration in which
the loop is entered, and the name of the loop. The hash of the name is the same for all frames of one loop. Each pair of
a frame and a possible entry determines the hash of the name.

Sources: tensorflow/core/common_runtime/propagator_state.cc, FindOrCreateChildFrame; tensorflow/core/lib/hash/hash.h,
Hash64Combine.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tfdbg_arrow.link.arrays import Ints

_Hashes = NDArray[np.uint64]
_SALT = np.uint64(0x9E3779B97F4A7800)


def find_entries(frame_ids: Ints, outer_ids: Ints, iterations: Ints) -> Ints:
    """Returns the index of the entry of each frame of a loop, -1 for an unknown entry.

    Args:
        frame_ids: The frames in one step, in the order in which they began.
        outer_ids: The outer frame of each possible entry.
        iterations: The outer iteration of each possible entry.
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
    # The IDs may come from another runtime. If there are as many frames as entries, the frames most likely began in the
    # order of the entries.
    return in_order if is_paired else np.full(len(frame_ids), -1)


def _combined(first: _Hashes, second: _Hashes) -> _Hashes:
    """Returns Hash64Combine of each pair, modulo 2**64."""
    combined: _Hashes = first ^ (second + _SALT + (first << np.uint64(10)) + (first >> np.uint64(4)))
    return combined


def _names(frames: _Hashes, outer: _Hashes, iteration: _Hashes) -> _Hashes:
    """Returns the hash that the name of the loop must have if each frame was entered by the given entry."""
    names: _Hashes = np.broadcast_to(frames, outer.shape)
    with np.errstate(over="ignore"):
        for first in (outer, iteration):
            names = (names ^ first) - _SALT - (first << np.uint64(10)) - (first >> np.uint64(4))
    return names
