"""MovedTensors: bad tensors that a program got from outside and, except for elementwise arithmetic, only moved."""

from __future__ import annotations

from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.recorded import TensorEvent
from tfdbg_arrow.schema.op_traits import MOVING, Trait, types_with

_ELEMENTWISE = types_with(Trait.ELEMENTWISE)
_MAX_KEPT = 100
"""Maximum number of tensors that one search examines."""


class MovedTensors:
    """Finds the bad tensors that the program did not compute, within one run."""

    def __init__(self, flow: DataFlow) -> None:
        self._flow = flow
        self._moved: dict[int, bool] = {}

    def is_moved(self, row: TensorEvent) -> bool:
        """Returns whether a bad tensor came from outside, and ops have only moved its elements since then.

        Such a tensor does no harm when it is stored or returned: a program may fill a variable with NaN, and store
        numbers in the variable later. Only tensors that are computed from it can do harm.
        """
        if row.event_index not in self._moved:
            self._moved[row.event_index] = self._find_whether_moved(row)
        return self._moved[row.event_index]

    def _find_whether_moved(self, row: TensorEvent) -> bool:
        seen, to_follow = {row.event_index}, [row]
        while to_follow:
            computed = self._flow.computed(to_follow.pop())
            if computed.scope == "external":
                continue
            bad = self._flow.bad_sources_of(computed)
            if computed.op_type not in MOVING or not bad or len(seen) > _MAX_KEPT:
                return False
            to_follow += [source for source in bad if source.event_index not in seen]
            seen.update(source.event_index for source in bad)
        return True

    def is_given_infinity(self, row: TensorEvent) -> bool:
        """Returns whether elementwise ops made all infinities of an array from infinities of arrays from outside.

        An example is the width of intervals, some of which are open. If only checks take such an array, the program
        expects the infinities.
        """
        seen, to_follow = {row.event_index}, [row]
        while to_follow:
            computed = self._flow.computed(to_follow.pop())
            if computed.num_nan or not computed.shape or computed.shape != row.shape or len(seen) > _MAX_KEPT:
                return False
            if computed.scope == "external":
                continue
            bad = self._flow.bad_sources_of(computed)
            num_given = sum((source.num_neg_inf or 0) + (source.num_pos_inf or 0) for source in bad)
            num_infinite = (computed.num_neg_inf or 0) + (computed.num_pos_inf or 0)
            if computed.op_type not in _ELEMENTWISE or num_infinite > num_given:
                return False
            to_follow += [source for source in bad if source.event_index not in seen]
            seen.update(source.event_index for source in bad)
        return True
