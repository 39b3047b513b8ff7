"""Program ops: for a tensor of an optimized graph, the op of the program that made the tensor's bad elements.

TensorFlow's optimizer can change the ops of the program in four ways:

- It runs several ops as one node, such as `Relu` and `Log` as `_UnaryOpsComposition`.
- It runs another op in place of the program's op, such as `x * (1 / c)` for `x / c`.
- It computes an op of constants in advance.
- It runs one op in place of equal ops on the parts of a tensor, see `joined_parts`.

A node can also compute a value that no op of the program computes: the reciprocal of a constant divisor, or the
reciprocal of a root. Answers name the program's op.

Values inside a node are not recorded. This module computes the element counts of values inside a node if the counts
follow from the inputs or outputs of the node, see `element_counts`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tfdbg_arrow.query.flow.borders import Borders
from tfdbg_arrow.query.flow.element_counts import (
    COUNTS,
    UNDONE,
    Counts,
    counted,
    divided_by_0,
    known_sum,
    logarithm_undone,
    negative,
    num_bad,
    ones,
    reciprocal,
    same,
    scaled,
)
from tfdbg_arrow.query.flow.graphs import NEVER_BAD, GraphReader
from tfdbg_arrow.query.flow.joined_parts import JoinedParts
from tfdbg_arrow.query.flow.search import breadth_first
from tfdbg_arrow.query.recorded import KINDS, GraphTensor, Op, TensorEvent
from tfdbg_arrow.schema.op_traits import ANY_BAD, MADE_OF_FINITE, MOVING, Bad, Trait, made_of_bad, types_with

_KEEPING_FINITE = types_with(Trait.KEEPS_FINITE)
_SINGULAR = types_with(Trait.IS_SINGULAR)
_DIVISIONS = types_with(Trait.DIVIDES)
_OF_ONE = types_with(Trait.DIVIDES_ONE)
"""Types of nodes that TensorFlow runs for a division if the dividend is a constant of ones."""
_FUSED = "_Fused"
"""Prefix of the types of nodes that multiply matrices or images, and then add a bias and apply an activation."""
CHAIN = "_UnaryOpsComposition"
"""Type of a node that runs elementwise functions of one argument in sequence. A division in such a node is 1 / x."""
_SUMS_WITH_0 = frozenset({"Add", "AddV2", "Sub"})
"""Types of ops that a chain leaves out if they add or subtract 0."""
_KEEPING_PLACES = frozenset({"Abs", "Identity", "Log", "Neg", "Sqrt"}) | _SUMS_WITH_0
"""Types of ops in a chain that keep bad elements bad. If the number of bad elements does not change, the places of the
bad elements do not change either."""
_MERGING = frozenset({"Abs", "Relu"})
"""Types of ops whose output does not show how many finite elements of their input were negative."""
_MAX_NAMES = 4
"""Maximum number of op types that a text lists."""
_MAX_DEPTH = 8
"""Maximum number of ops inside a node through which counts are computed. TensorFlow fuses few ops, so no node reaches
this limit."""


@dataclass(frozen=True, slots=True)
class ProgramOp:
    """The op of the program that made the bad elements of a tensor, if TensorFlow did not run this op as it is.

    Attributes:
        place: The first output of the op.
        op: The op.
        others: The types of other ops that TensorFlow ran as the same node and that can also make bad values.
        is_output: Whether the tensor is the op's own output, possibly after ops that keep its bad elements.
        ran_as: A text that names the node that TensorFlow ran in place of the op; None if TensorFlow ran the op itself.
            An example is `_UnaryOpsComposition in place of Relu and Log`.
        later: The types of ops that TensorFlow computed in advance from the op's result, if they can have made the bad
            elements from an infinity in this result.
    """

    place: GraphTensor
    op: Op
    others: tuple[str, ...]
    is_output: bool
    ran_as: str | None
    later: tuple[str, ...] = ()


class ProgramOps:
    """Finds the ops of the program behind the tensors of one run.

    Args:
        graphs: The graphs.
        borders: The borders of the graphs.
        row_of: Returns the row of the tensor at a place, or of an equal tensor; None if there is no row.
    """

    def __init__(
        self, graphs: GraphReader, borders: Borders, row_of: Callable[[GraphTensor], TensorEvent | None]
    ) -> None:
        self._graphs = graphs
        self._borders = borders
        self._row_of = row_of
        self._joined_parts = JoinedParts(graphs, borders.executed, row_of)

    def op_types(self, event: TensorEvent) -> tuple[str, ...]:
        """Returns the types of the program's ops that the op of a tensor stands for, in order of creation.

        The result is empty if TensorFlow ran the op as it is in the program.
        """
        return tuple(op.op_type for _, op in self._computed(event))

    def is_computed_in_advance(self, event: TensorEvent) -> bool:
        """Returns whether a bad constant is the result of ops that took no bad constant.

        TensorFlow's optimizer replaces ops that take only constants with the result of these ops.
        """
        ops = self._computed(event) if event.op_type == "Const" else ()
        return bool(ops) and self._bad_constant(ops) is None

    def bad_before_folding(self, event: TensorEvent) -> tuple[TensorEvent, ...]:
        """Returns the bad constants that the ops behind a constant take in the program.

        TensorFlow's optimizer may replace ops with a constant, and also replace an earlier op with another constant.
        Nothing in the graph that ran connects the two constants.
        """
        ops = self._computed(event) if event.op_type == "Const" else ()
        own = {at.of_op(op.op_name) for at, op in ops}
        taken = {at.of_op(*edge) for at, op in ops for edge in op.inputs}
        rows = (self._row_of(place) for place in taken if place.of_op(place.op_name) not in own)
        constants = {row.event_index: row for row in rows if row is not None and row.op_type == "Const"}
        bad = [row for row in constants.values() if row.has_inf_or_nan and row.event_index != event.event_index]
        return tuple(sorted(bad, key=lambda row: row.event_index))

    def maker(self, event: TensorEvent) -> ProgramOp | None:
        """Returns the op that made a tensor, or None if TensorFlow ran the program's op as it is.

        If TensorFlow ran one op on several tensors at once, the maker of a bad tensor is the op of the first bad part.
        Otherwise, the rules of `_maker_in_node` apply.
        """
        made = self._maker_in_node(event)
        on_part = self._joined_parts.op_of_bad_part(event, None if made is None else made.op)
        own = event.graph_tensor
        if on_part is None or own is None:
            return made
        ran_as = f"{event.op_type} of several tensors at once"
        return ProgramOp(own.of_op(on_part.op_name), on_part, others=(), is_output=False, ran_as=ran_as)

    def _maker_in_node(self, event: TensorEvent) -> ProgramOp | None:
        """Returns the op that made a tensor, among the ops that TensorFlow ran as one node; None if it is the only op.

        The maker of a healthy tensor is the op whose output the tensor is. If several ops ran as one node, the maker of
        a bad tensor is the only op that can make a bad value from finite values. If there are several such ops, the
        maker is the only op among them that can make a bad value from small numbers. Otherwise, the maker is the op
        after which the node is named, or the last of the ops that can have made the bad value.
        """
        computed = self._computed(event)
        own = event.graph_tensor
        if not computed or own is None:
            return None
        op_types = [op.op_type for _, op in computed]
        possible = self._that_can_have_made(event, computed)
        constant = self._bad_constant(computed) if event.op_type == "Const" else None
        if constant is not None:
            return ProgramOp(*constant, others=(), is_output=False, ran_as=_ran_as(event.op_type, op_types, "Const"))
        divided = self._division_by(own, event)
        if divided is not None:
            place, op = divided
            op_types += [] if op.op_type in op_types else [op.op_type]
            # TensorFlow runs x / c as x * (1 / c). The constant 1 / c has a row, and stands for the quotient.
            node = "Mul with a constant" if event.op_type == "Const" else event.op_type
            return ProgramOp(place, op, others=(), is_output=False, ran_as=_ran_as(node, op_types, op.op_type))
        place, op = self._most_likely(own, event, possible)
        is_itself = (place.graph_id, op.op_name, op.op_type) == (own.graph_id, own.op_name, event.op_type)
        after = self._after(place, op, computed)
        is_output = after is not None and all(self._undoing(later, place, event) is not None for later in after)
        is_output = is_output and not (event.op_type == "Const" and self._takes_computed(place, op))
        others = sorted({other.op_type for _, other in possible} - {op.op_type} - _KEEPING_FINITE)
        may_change = event.op_type == "Const" and (bool(event.num_nan) or not is_output)
        later = _that_change_kinds(event, op, after or ()) if may_change else ()
        ran_as = None if is_itself else _ran_as(event.op_type, op_types, op.op_type)
        return ProgramOp(place, op, others=tuple(others), is_output=is_output, ran_as=ran_as, later=later)

    def _takes_computed(self, place: GraphTensor, op: Op) -> bool:
        """Returns whether an op takes a tensor that a node computed.

        For (x * a) * b with constants a and b, TensorFlow computes the constant a * b. This constant is not an output
        of the op.
        """
        rows = (self._row_of(place.of_op(*edge)) for edge in op.inputs)
        return any(row is not None and row.op_type not in (None, "Const") for row in rows)

    def _after(self, place: GraphTensor, op: Op, computed: Sequence[tuple[GraphTensor, Op]]) -> list[Op] | None:
        """Returns the ops of a node that come after the given op, in order; None if the ops are in several graphs."""
        if any((at.graph_id, at.context) != (place.graph_id, place.context) for at, _ in computed):
            return None
        ops = {op.op_name: op} | {other.op_name: other for _, other in computed}
        before = set(
            breadth_first([op.op_name], lambda name: (source for source, _ in ops[name].inputs if source in ops))
        )
        return [other for _, other in computed if other.op_name not in before]

    def _most_likely(
        self, own: GraphTensor, event: TensorEvent, computed: Sequence[tuple[GraphTensor, Op]]
    ) -> tuple[GraphTensor, Op]:
        named = self._graphs.op(own.graph_id, own.op_name)
        name = None if named is None else named.made_for or named.op_name
        own_op = next(((at, op) for at, op in computed if (at.graph_id, op.op_name) == (own.graph_id, name)), None)
        if own_op is not None and event.has_inf_or_nan is False:
            return own_op
        makers = [(at, op) for at, op in computed if op.op_type not in _KEEPING_FINITE] or list(computed)
        if (event.op_type or "").startswith(_FUSED):
            # The sum with the bias overflows only if the product is next to the largest number. So the product
            # overflowed.
            return makers[0]
        singular = [
            (at, op) for at, op in makers if op.op_type in _SINGULAR and not self._is_factor(op, at.graph_id, event)
        ]
        only = next((ops[0] for ops in (makers, singular) if len(ops) == 1), None)
        if only is not None:
            return only
        return own_op if own_op in makers else makers[-1]

    def _is_factor(self, op: Op, graph_id: int, event: TensorEvent) -> bool:
        """Returns whether a division ran as a product with a constant's reciprocal. The reciprocal has its own row."""
        if op.op_type not in _DIVISIONS or event.op_type in _DIVISIONS | {"Const"} or len(op.inputs) != 2:
            return False
        divisor = self._graphs.op(graph_id, op.inputs[1][0])
        return divisor is not None and divisor.op_type == "Const"

    def _bad_constant(self, computed: Sequence[tuple[GraphTensor, Op]]) -> tuple[GraphTensor, Op] | None:
        """Returns the program's constant from which an op that was computed in advance took a bad value, or None."""
        for at, op in computed:
            key = self._borders.bad_constant_taken_by(at, op)
            if key is not None:
                constant = self._graphs.op(*key)
                return None if constant is None else (replace(at, graph_id=key[0], op_name=key[1]), constant)
        return None

    def _division_by(self, own: GraphTensor, event: TensorEvent) -> tuple[GraphTensor, Op] | None:
        """Returns the division for which the optimizer computed the tensor as the reciprocal of the divisor, or None.

        For a * (x / c) with constants a and c, the tensor is a / c. This tensor counts only if it shows that c is 0.
        If the divisor is a root, the reciprocal may be the last function of a chain. The chain's NaN then come from the
        root of a negative number, and not from the division.
        """
        op = self._graphs.op(own.graph_id, own.op_name)
        if op is None:
            return None
        if event.op_type == CHAIN and op.made_for is not None:
            root = self._graphs.op(own.graph_id, op.made_for)
            is_root = root is not None and root.op_type == "Sqrt" and not event.num_nan
            return self._division_by_root(own) if is_root else None
        if op.made_for is not None:
            return self._borders.division_by(own) if event.op_type == "Const" else None
        if event.op_type == "Const" and op.op_type in _DIVISIONS and op.inputs:
            dividend = self._row_of(own.of_op(*op.inputs[0])) if self._is_scaled_by_integer(own, op) else None
            is_by_0 = event.size == known_sum(event.num_neg_inf, event.num_pos_inf)
            return (own, op) if is_by_0 and dividend is not None and dividend.op_type != "Const" else None
        return self._division_by_root(own) if (op.op_type, event.op_type) == ("Sqrt", "Rsqrt") else None

    def _division_by_root(self, own: GraphTensor) -> tuple[GraphTensor, Op] | None:
        """Returns the division that ran as a product with a tensor, the reciprocal of a root; None if there is none."""
        users = [use.user for use in self._borders.executed.users(own)]
        ops = [(user, self._graphs.op(user.graph_id, user.op_name)) for user in users]
        divisions = [
            (user, op)
            for user, op in ops
            if op is not None and op.op_type in _DIVISIONS
            if self._borders.executed.node_type(user) not in _DIVISIONS
        ]
        return min(divisions, key=lambda division: division[1].op_index, default=None)

    def _is_scaled_by_integer(self, own: GraphTensor, division: Op) -> bool:
        """Returns whether a division by a constant integer is followed only by products with finite constants.

        Unless the integer is 0, such a constant divided by the integer is finite.
        """
        graph = self._graphs.graph(own.graph_id)
        cast = graph.ops.get(division.inputs[1][0]) if len(division.inputs) == 2 else None
        if cast is None or cast.op_type != "Cast" or not cast.inputs:
            return False
        if graph.dtypes.get(cast.inputs[0]) not in NEVER_BAD or not self._is_of_constants(cast, own.graph_id):
            return False
        users = [graph.ops.get(name) for name in graph.users.get(division.op_name, ())]
        return all(user is not None and self._is_product_with_constant(own, user) for user in users)

    def _is_product_with_constant(self, own: GraphTensor, op: Op) -> bool:
        """Returns whether an op multiplies a tensor by a constant that is not bad."""
        sources = [self._graphs.op(own.graph_id, name) for name, _ in op.inputs]
        is_product = op.op_type == "Mul" and any(source is not None and source.op_type == "Const" for source in sources)
        return is_product and self._borders.bad_constant_taken_by(own.of_op(op.op_name), op) is None

    def inputs(self, made: ProgramOp, event: TensorEvent) -> Mapping[int, TensorEvent]:
        """Returns the inputs of the op that made a tensor, if they are recorded or follow from recorded tensors.

        Args:
            made: The op.
            event: The tensor.
        """
        # If TensorFlow ran an op before the Split that the op takes, the row of the Split is computed from the tensor.
        own = event.graph_tensor
        node = None if own is None else self._graphs.op(own.graph_id, own.op_name)
        rows = {
            index: row
            for index, edge in enumerate(made.op.inputs)
            if node is None or node.made_for != edge[0]
            if (row := self._value(made.place.of_op(*edge), event, _MAX_DEPTH)) is not None
        }
        if not rows and made.op.op_type == "Log":
            output = self.output(made, event)
            logarithm_of = None if output is None else counted(output, logarithm_undone(output))
            if logarithm_of is not None:
                rows[0] = _at(logarithm_of, made.place.of_op(*made.op.inputs[0]), None)
        is_division = made.op.op_type in _DIVISIONS
        if 1 not in rows and len(made.op.inputs) == 2:
            quotient = event if self._is_by_divisor(event) else None
            if is_division and event.op_type == CHAIN and made.is_output:
                quotient = self.output(made, event)
            divisor = None if quotient is None else counted(quotient, reciprocal(quotient))
            if divisor is not None:
                rows[1] = _at(divisor, made.place.of_op(*made.op.inputs[1]), None)
        if 0 not in rows and 1 in rows and is_division and event.op_type in (*_OF_ONE, CHAIN):
            rows[0] = _at(ones(rows[1]), made.place.of_op(*made.op.inputs[0]), "Const")
        return rows

    def as_output(self, event: TensorEvent, *, kinds: Sequence[str] = KINDS) -> TensorEvent:
        """Returns the output of the op that made a tensor if it has bad elements of the kinds; otherwise `event`."""
        made = self.maker(event)
        output = None if made is None else self.output(made, event)
        if made is None or output is None or not output.bad_kinds(kinds):
            return event
        after = self._after(made.place, made.op, self._computed(event)) or ()
        if made.is_output and any(later.op_type in _MERGING for later in after):
            return replace(output, num_neg_finite=None, num_zero=None, num_pos_finite=None)
        return output

    def output(self, made: ProgramOp, event: TensorEvent) -> TensorEvent | None:
        """Returns the output of the op that made a tensor, with the bad elements that follow from the tensor.

        The result has the event_index of the tensor. The result is None if the bad elements are unknown.
        """
        if made.op.op_type in _DIVISIONS and not made.is_output:
            row = self._quotient(made, event)
            return row and replace(_at(row, made.place, made.op.op_type), event_index=event.event_index)
        after = self._after(made.place, made.op, self._computed(event))
        if not made.is_output or after is None:
            return None
        output: TensorEvent | None = event
        for later in reversed(after):
            undone = self._undoing(later, made.place, event)
            output = None if output is None or undone is None else counted(output, undone(output))
        keeps_places = event.op_type == CHAIN and all(later.op_type in _KEEPING_PLACES for later in after)
        if output is not None and keeps_places and num_bad(output) == num_bad(event):
            output = replace(output, first_bad_index=event.first_bad_index, num_bad_slices=event.num_bad_slices)
        return None if output is None else _at(output, made.place, made.op.op_type)

    def _undoing(self, op: Op, at: GraphTensor, event: TensorEvent) -> Callable[[TensorEvent], Counts] | None:
        """Returns the function that computes the bad elements of an op's input from its output, or None."""
        if self._left_out(op, at, event) is not None:
            return same
        if _is_sum_with_constant(op, event):
            first = self._graphs.op(at.graph_id, op.inputs[0][0]) if op.inputs else None
            return negative if op.op_type == "Sub" and first is not None and first.op_type == "Const" else same
        is_reciprocal = event.op_type == CHAIN and op.op_type in _DIVISIONS | _OF_ONE
        return reciprocal if is_reciprocal else UNDONE.get(op.op_type)

    def dividend(self, event: TensorEvent) -> TensorEvent | None:
        """Returns the row of the dividend, if TensorFlow ran the reciprocal of a divisor in place of a division."""
        own = event.graph_tensor
        division = None if own is None else self._division_by(own, event)
        return None if division is None else self._row_of(division[0].of_op(*division[1].inputs[0]))

    def _is_by_divisor(self, event: TensorEvent) -> bool:
        """Returns whether a tensor is the reciprocal of a divisor, or a constant divided by the divisor."""
        return event.graph_tensor is not None and self._division_by(event.graph_tensor, event) is not None

    def _quotient(self, made: ProgramOp, divided_one: TensorEvent) -> TensorEvent | None:
        """Returns a row with the bad elements of a quotient that ran as a product with the divisor's reciprocal.

        TensorFlow's optimizer may turn a * (x / sqrt(v)) into x * (a * rsqrt(v)). If a is positive, a * rsqrt(v) has
        the same bad elements as rsqrt(v).
        """
        place, op = made.place, made.op
        dividend = place.of_op(*op.inputs[0])
        for number_before in range(_MAX_DEPTH):
            row, taken = self._row_of(place), self._borders.executed.inputs(place, op)
            if row is None or not row.has_inf_or_nan:
                return None
            if row.op_type == "Const":
                return divided_by_0(self._row_of(dividend), row)
            if self._is_among(dividend, taken):
                return scaled(row, divided_one) if number_before else row
            is_as_bad = not row.num_nan and row.num_pos_inf == divided_one.num_pos_inf
            user = self._only_user(place) if is_as_bad and self._scales(row, taken) else None
            if user is None:
                return None
            place, op = user
        return None

    def _scales(self, row: TensorEvent, taken: Sequence[GraphTensor]) -> bool:
        """Returns whether a node multiplies a bad tensor by a tensor that is positive everywhere."""
        factors = [factor for source in taken if (factor := self._row_of(source)) is not None]
        positive = [factor for factor in factors if factor.num_pos_finite == factor.size]
        return row.op_type == "Mul" and len(factors) == 2 and len(positive) == 1

    def _only_user(self, place: GraphTensor) -> tuple[GraphTensor, Op] | None:
        """Returns the only node that takes a tensor, or None."""
        users = [use.user for use in self._borders.executed.users(place)]
        ops = [(user, op) for user in users if (op := self._graphs.op(user.graph_id, user.op_name)) is not None]
        return ops[0] if len(ops) == len(users) == 1 else None

    def _is_among(self, tensor: GraphTensor, taken: Sequence[GraphTensor]) -> bool:
        """Returns whether a tensor of the program, or an equal tensor, is among the tensors that a node takes."""
        row = self._row_of(tensor)
        taken_rows = [taken_row for source in taken if (taken_row := self._row_of(source)) is not None]
        is_same_row = row is not None and row.event_index in {taken_row.event_index for taken_row in taken_rows}
        return is_same_row or any(source.of_op(tensor.op_name, tensor.output_slot) == source for source in taken)

    def _value(self, place: GraphTensor, event: TensorEvent, depth: int) -> TensorEvent | None:
        """Returns the row of a tensor behind another tensor, or a row with the counts that follow from other rows."""
        op = self._graphs.op(place.graph_id, place.op_name)
        row = self._row_of(place)
        if row is not None and (op is None or (op.op_type, row.op_type) != ("Sqrt", "Rsqrt")):
            return row
        if op is None or not depth:
            return None
        left_out = self._left_out(op, place, event)
        counts = COUNTS.get(op.op_type) if left_out is None else same
        if counts is None or (left_out is None and len(op.inputs) != 1):
            return None
        source = self._value(place.of_op(*op.inputs[left_out or 0]), event, depth - 1)
        value = None if source is None else counted(source, counts(source))
        return None if value is None else _at(value, place, op.op_type)

    def _that_can_have_made(
        self, event: TensorEvent, computed: Sequence[tuple[GraphTensor, Op]]
    ) -> Sequence[tuple[GraphTensor, Op]]:
        """Returns the ops of a node that can have made the node's bad elements from finite inputs of the node."""
        able = _that_make_kinds_of(event, computed)
        if event.op_type == "Const":
            return able
        return [
            (at, op)
            for at, op in able
            if not self._is_of_constants(op, at.graph_id) and not _is_sum_with_constant(op, event)
        ] or able

    def _is_of_constants(self, op: Op, graph_id: int) -> bool:
        """Returns whether an op takes only constants.

        TensorFlow computes such an op in advance, and nodes take the result.
        """
        taken = [self._graphs.op(graph_id, name) for name, _ in op.inputs]
        return bool(taken) and all(source is not None and source.op_type == "Const" for source in taken)

    def _left_out(self, op: Op, at: GraphTensor, event: TensorEvent) -> int | None:
        """If TensorFlow left a sum out of a chain, returns the index of the input that equals the sum; otherwise None.

        TensorFlow leaves out a sum with a constant that is 0, perhaps because the dtype rounds the constant to 0.
        TensorFlow also turns `log(x + 1)` into Log1p and `exp(x) - 1` into Expm1. Of the results of these ops, only
        `log(x + 0)` can be bad if x is not negative.
        """
        if event.op_type != CHAIN or op.op_type not in _SUMS_WITH_0:
            return None
        sources = [self._graphs.op(at.graph_id, name) for name, _ in op.inputs]
        terms = [(index, term) for index, term in enumerate(sources) if term is None or term.op_type != "Const"]
        if len(sources) != 2 or len(terms) != 1 or (op.op_type == "Sub" and terms[0][0] == 1):
            return None
        ((index, term),) = terms
        if any(later.op_type == "Log" and (op.op_name, 0) in later.inputs for _, later in self._computed(event)):
            row = self._row_of(at.of_op(*op.inputs[index]))
            is_0 = row is not None and row.has_inf_or_nan is False and bool(row.num_zero) and row.num_neg_finite == 0
            return index if is_0 else None
        return None if term is None or term.op_type == "Exp" else index

    def _computed(self, event: TensorEvent) -> tuple[tuple[GraphTensor, Op], ...]:
        own = event.graph_tensor
        return () if own is None else self._borders.computed_ops(own)


def _is_sum_with_constant(op: Op, event: TensorEvent) -> bool:
    """Returns whether an op of a chain adds a constant. Such a sum overflows only next to the largest number."""
    return event.op_type == CHAIN and op.op_type in _SUMS_WITH_0


def _that_make_kinds_of(
    event: TensorEvent, computed: Sequence[tuple[GraphTensor, Op]]
) -> Sequence[tuple[GraphTensor, Op]]:
    """Returns the ops of a node that can have made its bad elements from finite ones; all ops if this is not known."""
    if event.op_type != CHAIN:
        return computed
    seen = _kinds_in(event)
    possible = []
    for number_before, maker in enumerate(computed, start=1):
        kinds = MADE_OF_FINITE.get(_type_in_chain(maker[1]), ANY_BAD)
        for _, later in computed[number_before:]:
            kinds = made_of_bad(_type_in_chain(later), kinds)
        if kinds & seen:
            possible.append(maker)
    return possible or computed


def _kinds_in(event: TensorEvent) -> Bad:
    """Returns the kinds of bad elements that a tensor holds."""
    seen = Bad(0)
    for kind, number in ((Bad.NAN, event.num_nan), (Bad.NEG_INF, event.num_neg_inf), (Bad.POS_INF, event.num_pos_inf)):
        seen |= kind if number else Bad(0)
    return seen


def _type_in_chain(op: Op) -> str:
    return "Reciprocal" if op.op_type in _DIVISIONS else op.op_type


def _that_change_kinds(event: TensorEvent, op: Op, after: Sequence[Op]) -> tuple[str, ...]:
    """Returns the types of the later ops that can have made a tensor's bad elements from the bad elements of an op.

    For a tensor without NaN, the result is empty if the op itself can make all kinds of bad elements in the tensor.
    """
    made = MADE_OF_FINITE.get(op.op_type, ANY_BAD)
    infinite = made & (Bad.NEG_INF | Bad.POS_INF)
    seen = _kinds_in(event)
    if not event.num_nan:
        changed = (later.op_type for later in after if later.op_type not in MOVING)
        return tuple(dict.fromkeys(changed)) if infinite and seen & ~made else ()
    types = (
        later.op_type
        for later in after
        if later.op_type not in MOVING
        if len(later.inputs) > 1 or Bad.NAN in made_of_bad(later.op_type, infinite)
    )
    return tuple(dict.fromkeys(types)) if infinite else ()


def _ran_as(op_type: str | None, program_ops: Sequence[str], maker: str) -> str:
    """Returns a text with the type that ran and the program's ops, such as `LogSoftmax in place of Softmax and Log`.

    Args:
        op_type: The type that ran.
        program_ops: The types of the program's ops, in order.
        maker: The type of the op that made the tensor.
    """
    counts = Counter(program_ops)
    if len(counts) > _MAX_NAMES:
        named = maker if maker in counts else program_ops[-1]
        return f"{op_type} in place of {named} and {len(program_ops) - 1} other ops"
    *first, last = (name if number == 1 else f"{number} {name}" for name, number in counts.items())
    return f"{op_type} in place of {', '.join(first)}{' and ' if first else ''}{last}"


def _at(row: TensorEvent, place: GraphTensor, op_type: str | None) -> TensorEvent:
    """Returns a row with the place and op type of another tensor."""
    return replace(
        row, graph_id=place.graph_id, op_name=place.op_name, op_type=op_type, output_slot=place.output_slot,
        call_site=place.context.call_site,
    )  # fmt: skip
