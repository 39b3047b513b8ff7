"""Finds the entry of each frame of a nested loop: the outer frame and the outer iteration that entered the frame.

TensorFlow computes the ID of a frame by hashing three values: the ID of the outer frame, the outer iteration in which
the loop is entered, and the name of the loop. The hash of the name is the same for all frames of one loop. Each pair of
a frame and a possible entry determines the hash of the name. The name of a lowered loop is the path of its op, so the
ID of a frame without rows can be computed.

This module does not use NumPy, because an answer about a short run should not have to import it.

Sources: tensorflow/core/common_runtime/propagator_state.cc, FindOrCreateChildFrame; tensorflow/core/lib/hash/hash.h,
Hash64Combine; tensorflow/core/common_runtime/lower_while_op.cc; xla/tsl/platform/hash.cc, Hash64.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

Entry = tuple[int, int]
"""The ID of a frame, and an iteration of this frame."""
_LIMIT = 1 << 64
"""Hashes are integers modulo this number. Recorded IDs are signed, so they are taken modulo this number, too."""
_SALT = 0x9E3779B97F4A7800
_SEED, _FACTOR, _SHIFT = 0xDECAFCAFFE, 0xC6A4A7935BD1E995, 47
"""Constants of TensorFlow's Hash64, which is MurmurHash64A."""
_LOOP_SUFFIX = re.compile(r"/(?:cond|body)(?:/_\d+)?$")
_MAX_COMPARED = 64
"""Maximum number of frames that are compared with all entries. Two frames suffice, except in a hostile logdir."""
_MAX_SEARCHED = 100_000
"""Maximum number of outer iterations that are compared with frames. The comparison takes at most 0.1 s."""


def find_entries(frame_ids: Sequence[int], entries: Sequence[Entry]) -> dict[int, int]:
    """Returns the index of the entry of each frame of a loop. Frames whose entry is unknown are left out.

    Args:
        frame_ids: The frames in one step, in the order in which they began.
        entries: The possible entries, in the order of the iterations.
    """
    if not frame_ids or not entries:
        return {}
    in_order = {frame: index for index, frame in enumerate(frame_ids)} if len(frame_ids) == len(entries) else {}
    if in_order and len(set(map(_name_of, frame_ids, entries))) == 1:
        return in_order
    names = {_name_of(frame_ids[0], entry) for entry in entries}
    for frame in frame_ids[1:_MAX_COMPARED]:
        if len(names) <= 1:
            break
        names &= {_name_of(frame, entry) for entry in entries}
    if len(names) == 1:
        (name,) = names
        index_of = {_frame_of(entry, name): index for index, entry in enumerate(entries)}
        if all(frame % _LIMIT in index_of for frame in frame_ids):
            return {frame: index_of[frame % _LIMIT] for frame in frame_ids}
    # The IDs may come from another runtime. If there are as many frames as entries, the frames most likely began in the
    # order of the entries.
    return in_order


def find_iterations(frame_ids: Sequence[int], *, site: str, outer_site: str) -> dict[int, int]:
    """Returns the iteration of an outermost loop that entered each frame of an inner loop.

    The outer loop needs no rows. The result is empty if the iteration of any frame is unknown.

    Args:
        frame_ids: The frames of the inner loop in one step.
        site: The call site of the inner loop's condition or body.
        outer_site: The call site of the outer loop's condition or body.
    """
    name, outer_name = (_hash_of(_LOOP_SUFFIX.sub("", text)) for text in (site, outer_site))
    outer_frame = _frame_of((0, 0), outer_name)
    unknown = {frame % _LIMIT: frame for frame in frame_ids}
    iterations: dict[int, int] = {}
    for iteration in range(_MAX_SEARCHED):
        if not unknown:
            return iterations
        frame = unknown.pop(_frame_of((outer_frame, iteration), name), None)
        if frame is not None:
            iterations[frame] = iteration
    return {}


def _frame_of(entry: Entry, name: int) -> int:
    """Returns the ID of the frame that an entry begins, given the hash of the loop's name."""
    hashed = name
    for part in reversed(entry):
        part %= _LIMIT
        hashed = part ^ ((hashed + _SALT + (part << 10) + (part >> 4)) % _LIMIT)
    return hashed


def _name_of(frame: int, entry: Entry) -> int:
    """Returns the hash that the name of the loop must have if a frame was entered by the given entry."""
    hashed = frame % _LIMIT
    for part in entry:
        part %= _LIMIT
        hashed = ((hashed ^ part) - _SALT - (part << 10) - (part >> 4)) % _LIMIT
    return hashed


def _hash_of(text: str) -> int:
    """Returns TensorFlow's Hash64 of a text."""
    text_bytes = text.encode()
    hashed = _SEED ^ (len(text_bytes) * _FACTOR % _LIMIT)
    for start in range(0, len(text_bytes), 8):
        word = int.from_bytes(text_bytes[start : start + 8], "little")
        if start + 8 <= len(text_bytes):
            word = word * _FACTOR % _LIMIT
            word = (word ^ (word >> _SHIFT)) * _FACTOR % _LIMIT
        hashed = (hashed ^ word) * _FACTOR % _LIMIT
    hashed = (hashed ^ (hashed >> _SHIFT)) * _FACTOR % _LIMIT
    return hashed ^ (hashed >> _SHIFT)
