"""MovedTensors: bad tensors from outside that the program only moved, or changed only by elementwise arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.search import rows_behind
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
        numbers in the variable later. Only tensors that are computed from such a tensor can do harm.
        """
        if row.event_index not in self._moved:
            self._moved[row.event_index] = self._find_whether_moved(row)
        return self._moved[row.event_index]

    def _find_whether_moved(self, row: TensorEvent) -> bool:
        return all(
            computed.scope == "external" or (computed.op_type in MOVING and bool(bad) and number < _MAX_KEPT)
            for number, (computed, bad) in enumerate(self._computed_behind(row))
        )

    def is_given_infinity(self, row: TensorEvent) -> bool:
        """Returns whether elementwise ops made all infinities of an array from the infinities of external arrays.

        An example is the width of intervals, some of which are open. If only checks take such an array, the program
        expects the infinities.
        """
        for number, (computed, bad) in enumerate(self._computed_behind(row)):
            if computed.num_nan or not computed.shape or computed.shape != row.shape or number > _MAX_KEPT:
                return False
            if computed.scope == "external":
                continue
            num_given = sum((source.num_neg_inf or 0) + (source.num_pos_inf or 0) for source in bad)
            num_infinite = (computed.num_neg_inf or 0) + (computed.num_pos_inf or 0)
            if computed.op_type not in _ELEMENTWISE or num_infinite > num_given:
                return False
        return True

    def _computed_behind(self, row: TensorEvent) -> Iterator[tuple[TensorEvent, list[TensorEvent]]]:
        """Yields a bad tensor and the bad tensors behind it, without copies at borders, each with its bad sources."""

        def sources(computed: TensorEvent) -> Iterator[TensorEvent]:
            return map(self._flow.computed, self._flow.bad_sources_of(computed))

        rows = rows_behind([self._flow.computed(row)], sources)
        return ((computed, self._flow.bad_sources_of(computed)) for computed in rows)
