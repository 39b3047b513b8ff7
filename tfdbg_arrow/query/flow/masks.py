"""Masks: the infinities in logarithms of masks of zeros and ones. A program adds such a logarithm to scores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.recorded import EagerValue, Place, TensorEvent
from tfdbg_arrow.schema.op_traits import MOVING, Trait, types_with

_ADDS = frozenset({"Add", "AddN", "AddV2", "BiasAdd"})
_MOVES = MOVING | types_with(Trait.EQUAL)
_MAKES_MASK = _MOVES | {"MatrixBandPart", "Mul", "Sub"}
"""Types of ops that can make a mask from other masks: they move elements, invert a mask, or combine two masks."""
_GIVEN = types_with(Trait.FED | Trait.GETS_ELEMENT) | {"Const", None}
"""Types of ops whose elements the program wrote or got; None for a tensor that no recorded op made."""
_MAX_TENSORS = 64
"""Before and after a logarithm, at most this many tensors are examined."""


class Masks:
    """Recognizes the logarithms of masks within one run."""

    def __init__(self, flow: DataFlow) -> None:
        self._flow = flow

    def is_log_of_mask(self, event: TensorEvent) -> bool:
        """Returns whether a tensor is the logarithm of a mask of zeros and ones, and is only added to other tensors.

        The logarithm of 0 is -Inf, and only the logarithm of 1 is 0. A probability or a count can be 0 or 1 by chance.
        So a tensor counts as a mask only if its elements are booleans, or were given to the program. A mask of given
        floating-point numbers counts only if the run has no NaN.
        """
        own: Place | None = event.graph_tensor
        if event.scope == "execution" and event.tensor_id is not None:
            own = EagerValue(event.tensor_id)
        if event.op_type != "Log" or own is None or not _holds_zeros_and_neg_inf(event):
            return False
        return self._is_only_added(own) and self._is_of_mask(own)

    def _is_of_mask(self, log: Place) -> bool:
        """Returns whether a logarithm was computed from booleans, or from given zeros and ones."""
        sources = [place for place, _ in self._flow.made_from(log)]
        seen = {*sources}
        has_given_floats = False
        while sources:
            trace = self._flow.trace(sources.pop(), how="graph", near=2**63 - 1)
            op_type = self._op_type(trace.place)
            if trace.dtype == "bool" or op_type == "OneHot":
                continue
            if trace.is_lost or len(seen) > _MAX_TENSORS:
                return False
            if op_type in _GIVEN:
                has_given_floats |= op_type != "Const" and not self._flow.cannot_be_bad(trace)
                continue
            elements = [*self._elements(trace.place, trace.dtype, op_type)]
            if op_type not in _MAKES_MASK or not elements:
                return False
            sources += [place for place in elements if place not in seen]
            seen.update(elements)
        return not (has_given_floats and self._has_nan)

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

    def _is_only_added(self, log: Place) -> bool:
        """Returns whether the forward pass adds a logarithm to other values, and otherwise only moves its elements.

        The other values must be neither a single number, such as an epsilon, nor an infinite logarithm, such as the
        logarithm of another probability.
        """
        results, seen = [log], {log}
        is_added = False
        while results and len(seen) <= _MAX_TENSORS:
            taken = results.pop()
            for op_type, inputs, made in self._forward_users(taken):
                if op_type in _MOVES:
                    results += [place for place in made if place not in seen]
                    seen.update(made)
                elif op_type not in _ADDS or not self._are_scores(place for place in inputs if place != taken):
                    return False
                else:
                    is_added = True
        return is_added and not results

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


def _holds_zeros_and_neg_inf(event: TensorEvent) -> bool:
    counts = (event.num_nan, event.num_pos_inf, event.num_neg_finite, event.num_pos_finite)
    return counts == (0, 0, 0, 0) and bool(event.num_zero) and bool(event.num_neg_inf)
