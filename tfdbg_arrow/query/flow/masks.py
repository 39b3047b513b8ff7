"""Masks: the infinities in masks that a program adds to scores.

A program adds the logarithm of a mask of zeros and ones, or a mask that holds the lowest number of the dtype. The sum
of two masks of the lowest number is -Inf.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.decisions import SELECTS
from tfdbg_arrow.query.recorded import EagerValue, Place, TensorEvent
from tfdbg_arrow.schema.op_traits import MOVING, Trait, types_with

_ADDS = frozenset({"Add", "AddN", "AddV2", "BiasAdd"})
_MOVES = MOVING | types_with(Trait.EQUAL)
_MAKES_MASK = _MOVES | SELECTS | {"Fill", "MatrixBandPart", "MatrixDiagV3", "MatrixSetDiagV3", "Mul", "Sub"}
"""Types of ops that can make a mask from other masks: they move or choose elements, invert a mask, or combine two
masks."""
_SCALES = frozenset({"Mul", "RealDiv"})
_GIVEN = types_with(Trait.FED | Trait.GETS_ELEMENT) | {"Const", None}
"""Types of ops whose elements the program wrote or got; None for a tensor that no recorded op made."""
NORMALIZATIONS = frozenset({"LogSoftmax", "Softmax"})
"""Types of ops that normalise rows of logarithms. If a row holds only -Inf, the result of these ops is NaN in this
row."""
_MAX_TENSORS = 64
"""Before and after a logarithm, at most this many tensors are examined."""


class Masks:
    """Recognizes the infinities of masks within one run."""

    def __init__(self, flow: DataFlow) -> None:
        self._flow = flow

    def is_log_of_mask(self, event: TensorEvent) -> bool:
        """Returns whether a tensor is the logarithm of a mask of zeros and ones, and is only added to other tensors.

        The logarithm of 0 is -Inf, and only the logarithm of 1 is 0. A probability or a count can be 0 or 1 by chance.
        So a tensor counts as a mask only if its elements are booleans, or were given to the program. If the run has a
        NaN, a mask of given floating-point numbers counts only if the program normalises all sums, as a softmax does.
        """
        own = _place_of(event)
        if event.op_type != "Log" or own is None or not _holds_zeros_and_neg_inf(event):
            return False
        sums = self._sums_with(own)
        if not sums:
            return False
        given = self._given_floats([place for place, _ in self._flow.made_from(own)])
        return given is not None and (not given or not self._has_nan or self._are_normalized(sums))

    def is_overflow_of_mask(self, event: TensorEvent) -> bool:
        """Returns whether a sum of finite numbers is -Inf because the program added a mask of very low numbers.

        The mask holds zeros and negative numbers, or zeros and positive numbers that the program subtracts. It was made
        from a number of the program, and from booleans or given tensors. The sum may also have overflowed when the
        program scaled it with a number, such as a temperature.
        """
        taken = [row for _, _, row in self._flow.taken_by(event)]
        is_overflow = all(row.has_inf_or_nan is False for row in taken)
        if not is_overflow or not event.num_neg_inf or event.num_pos_inf != 0 or event.num_nan != 0:
            return False
        total = event
        if event.op_type in _SCALES and len(taken) == 2 and 1 in (row.size for row in taken):
            total = taken[0] if taken[1].size == 1 else taken[1]
        masks = self._masks_in(total)
        shares = ((row.size - row.num_zero) / row.size for row in masks if row.size and row.num_zero is not None)
        return event.num_neg_inf <= sum(shares) * (total.size or 0)

    def _masks_in(self, total: TensorEvent) -> list[TensorEvent]:
        """Returns the masks of low numbers among the terms of a sum or difference."""
        if total.op_type not in _ADDS | {"Sub"}:
            return []
        second = 1 if total.op_type == "Sub" else None
        terms = self._flow.taken_by(total)
        return [row for index, _, row in terms if self._is_mask(row, is_subtracted=index == second)]

    def _is_mask(self, row: TensorEvent, *, is_subtracted: bool) -> bool:
        signs = (row.num_pos_finite, row.num_neg_finite) if is_subtracted else (row.num_neg_finite, row.num_pos_finite)
        place = _place_of(row)
        if place is None or not row.num_zero or not signs[0] or signs[1] != 0:
            return False
        return self._is_made_from_number(row) and self._given_floats([place]) is not None

    def _is_made_from_number(self, row: TensorEvent) -> bool:
        """Returns whether a tensor is a constant, a product with a single number, or a choice between numbers."""
        for _ in range(_MAX_TENSORS):
            if row.op_type == "Const":
                return True
            taken = [source for _, _, source in self._flow.taken_by(row)]
            if row.op_type == "Mul" or row.op_type in SELECTS:
                numbers = [source for source in taken if source.size == 1]
                return bool(numbers) and (row.op_type == "Mul" or numbers == taken)
            if row.op_type not in _MOVES or not taken:
                return False
            row = taken[0]
        return False

    def _given_floats(self, masks: Iterable[Place]) -> set[Place] | None:
        """Returns the given floating-point tensors from which masks were made. Booleans are left out.

        The result is None if the masks were also made from other tensors.
        """
        sources = [*masks]
        seen = {*sources}
        given: set[Place] = set()
        while sources:
            trace = self._flow.trace(sources.pop(), how="graph", near=2**63 - 1)
            op_type = self._op_type(trace.place)
            is_computed_in_advance = trace.row is not None and trace.row.op_type == "Const"
            if trace.dtype == "bool" or op_type == "OneHot" or is_computed_in_advance:
                continue
            if trace.is_lost or len(seen) > _MAX_TENSORS:
                return None
            if op_type in _GIVEN:
                given |= set() if op_type == "Const" or self._flow.cannot_be_bad(trace) else {trace.place}
                continue
            elements = [*self._elements(trace.place, trace.dtype, op_type)]
            if op_type not in _MAKES_MASK or not elements:
                return None
            sources += [place for place in elements if place not in seen]
            seen.update(elements)
        return given

    @cached_property
    def _has_nan(self) -> bool:
        return bool(self._flow.events.bad_events(("nan",), limit=1))

    def _elements(self, place: Place, dtype: str | None, op_type: str | None) -> Iterator[Place]:
        """Yields the inputs from which an op took its elements, without shapes and indexes, which have other dtypes."""
        for source, _ in self._flow.made_from(place):
            if op_type == "Cast" or self._flow.trace(source, how="graph", near=2**63 - 1).dtype in (dtype, None):
                yield source

    def _op_type(self, place: Place) -> str | None:
        if isinstance(place, EagerValue):
            return self._flow.events.eager(place.tensor_id).op_type
        op = self._flow.graphs.op(place.graph_id, place.op_name)
        return "" if op is None else op.op_type

    def _sums_with(self, log: Place) -> set[Place]:
        """Returns the sums of a logarithm and other values in the forward pass; empty if it has another use.

        An op may move the elements of the logarithm. The other values must be neither a single number, such as an
        epsilon, nor an infinite logarithm, such as the logarithm of another probability.
        """
        results, seen = [log], {log}
        sums: set[Place] = set()
        while results and len(seen) <= _MAX_TENSORS:
            taken = results.pop()
            for op_type, inputs, made in self._forward_users(taken):
                if op_type in _MOVES:
                    results += [place for place in made if place not in seen]
                    seen.update(made)
                elif op_type not in _ADDS or not self._are_scores(place for place in inputs if place != taken):
                    return set()
                else:
                    sums.update(made)
        return set() if results else sums

    def _are_normalized(self, sums: Iterable[Place]) -> bool:
        """Returns whether the forward pass normalises each sum, and otherwise only adds to it or moves its elements."""
        results = [*sums]
        seen = {*results}
        while results and len(seen) <= _MAX_TENSORS:
            users = [*self._forward_users(results.pop())]
            for op_type, _, made in users:
                if op_type in _MOVES | _ADDS:
                    results += [place for place in made if place not in seen]
                    seen.update(made)
                elif op_type not in NORMALIZATIONS:
                    return False
            if not users:
                return False
        return not results

    def _are_scores(self, places: Iterable[Place]) -> bool:
        traces = [self._flow.trace(place, how="graph", near=2**63 - 1) for place in places]
        return all(
            self._op_type(trace.place) != "Const"  # an op that was fused with others has no row
            if trace.row is None
            else trace.row.size != 1 and not self._is_infinite_log(trace.row)
            for trace in traces
        )

    def _is_infinite_log(self, event: TensorEvent) -> bool:
        row: TensorEvent | None = event
        while row is not None and row.has_inf_or_nan and row.op_type in _MOVES:
            row = next(iter(self._flow.bad_sources_of(row)), None)
        return row is not None and row.op_type == "Log" and bool(row.has_inf_or_nan)

    def _forward_users(self, place: Place) -> Iterator[tuple[str, list[Place], list[Place]]]:
        """Yields the type, the inputs and the results of each op of the forward pass that takes a tensor.

        A call of a function has the name of the function as its type.
        """
        flow = self._flow
        if isinstance(place, EagerValue):
            for use in flow.events.uses(place.tensor_id):
                index = use.execution.execution_index
                if flow.labels.execution(index).role != "gradient":
                    made = [tensor_id for tensor_id, _ in flow.events.execution_outputs(index).values()]
                    taken = flow.events.execution_inputs(index).values()
                    yield use.execution.op_type, [*map(EagerValue, taken)], [*map(EagerValue, made)]
            return
        graph = flow.graphs.graph(place.graph_id)
        for name in graph.users.get(place.op_name, ()):
            if flow.labels.op(place.graph_id, name).role != "gradient":
                op = graph.ops[name]
                yield op.op_type, [place.of_op(*source) for source in op.inputs], [place.of_op(name)]


def _place_of(event: TensorEvent) -> Place | None:
    if event.scope == "execution" and event.tensor_id is not None:
        return EagerValue(event.tensor_id)
    return event.graph_tensor


def _holds_zeros_and_neg_inf(event: TensorEvent) -> bool:
    counts = (event.num_nan, event.num_pos_inf, event.num_neg_finite, event.num_pos_finite)
    return counts == (0, 0, 0, 0) and bool(event.num_zero) and bool(event.num_neg_inf)
