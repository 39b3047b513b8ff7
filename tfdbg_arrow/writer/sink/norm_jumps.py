"""NormJumps, which computes the largest ratio of a norm to the mean of earlier norms for each op output of a part."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.spool.batch import Ints, Mask

WINDOW = 10
"""Number of preceding norms with which each norm is compared."""
_LARGEST_NORM = 1e300
"""Beyond this value a sum of norms might overflow, so the jump counts as unknown."""
_Floats = npt.NDArray[np.float64]


class NormJumps:
    """Computes jumps of norms piece by piece; keeps the last norms of each output for the next piece."""

    def __init__(self) -> None:
        self._greatest: _Floats = np.zeros(0)
        self._is_known: Mask = np.zeros(0, np.bool_)
        self._last_event: Ints = np.zeros(0, np.int64)
        self._tails: _Floats = np.zeros((0, WINDOW))
        self._num_tail: Ints = np.zeros(0, np.int64)

    def add(self, outputs: Ints, *, events: Ints, norms: _Floats) -> None:
        """Adds norms.

        Args:
            outputs: The number of the op output of each norm.
            events: The event_index of each norm. If a later piece has an older event of an output, the output's jump is
                unknown.
            norms: The norms; NaN for an unknown norm.
        """
        if len(outputs) == 0:
            return
        self._grow(int(outputs.max()) + 1)
        order = np.lexsort((events, outputs))
        outputs, events, norms = outputs[order], events[order], norms[order]
        starts = np.flatnonzero(np.diff(outputs, prepend=-1))
        counts = np.diff(starts, append=len(outputs))
        present = outputs[starts]
        self._is_known[present] &= events[starts] > self._last_event[present]
        self._last_event[present] = np.maximum(events[starts + counts - 1], self._last_event[present])
        is_sound = norms <= _LARGEST_NORM
        self._is_known[outputs[~is_sound]] = False
        norms = np.where(is_sound, norms, 0.0)

        # The sequence holds, for each output, the tail of earlier pieces followed by its new norms.
        num_tail = self._num_tail[present]
        lengths = num_tail + counts
        begins = np.cumsum(lengths) - lengths
        sequence = np.empty(int(lengths.sum()))
        columns = np.arange(WINDOW)
        is_tail = columns < num_tail[:, None]
        sequence[(begins[:, None] + columns)[is_tail]] = self._tails[present][is_tail]
        places = np.arange(len(outputs)) + np.repeat(begins + num_tail - starts, counts)
        sequence[places] = norms

        has_window = places - np.repeat(begins, counts) >= WINDOW
        ratios = np.zeros(len(outputs))
        sums = _sums_before(sequence)[places[has_window]]
        ratios[has_window] = np.divide(norms[has_window] * WINDOW, sums, out=np.zeros(len(sums)), where=sums > 0)
        self._greatest[present] = np.maximum(self._greatest[present], np.maximum.reduceat(ratios, starts))

        num_kept = np.minimum(lengths, WINDOW)
        is_kept = columns < num_kept[:, None]
        tails = np.zeros((len(present), WINDOW))
        tails[is_kept] = sequence[((begins + lengths - num_kept)[:, None] + columns)[is_kept]]
        self._tails[present], self._num_tail[present] = tails, num_kept

    def greatest(self, num_outputs: int) -> _Floats:
        """Returns the largest jump of each output; 0 if there is none, NaN if it is unknown.

        Args:
            num_outputs: Number of outputs.
        """
        self._grow(num_outputs)
        return np.where(self._is_known, self._greatest, np.nan)[:num_outputs]

    def _grow(self, num_outputs: int) -> None:
        more = num_outputs - len(self._greatest)
        if more > 0:
            self._greatest = np.pad(self._greatest, (0, more))
            self._is_known = np.pad(self._is_known, (0, more), constant_values=True)
            self._last_event = np.pad(self._last_event, (0, more), constant_values=-1)
            self._tails = np.pad(self._tails, ((0, more), (0, 0)))
            self._num_tail = np.pad(self._num_tail, (0, more))


def _sums_before(sequence: _Floats) -> _Floats:
    """Returns for each position the sum of the WINDOW values before it, or of fewer for the first positions."""
    sums = np.zeros(len(sequence))
    for distance in range(1, WINDOW + 1):
        sums[distance:] += sequence[:-distance]
    return sums
