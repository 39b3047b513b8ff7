"""Facts about the sources of a bad tensor, and about the tensors that were computed from the bad tensor."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from itertools import islice

from tfdbg_arrow.query.bad_samples import BadSamples, SampleFinder
from tfdbg_arrow.query.explanation.computed import (
    MAX_CHAIN,
    Computed,
    Integers,
    VariableWrite,
    chain_of,
    holds_only_neg_inf,
)
from tfdbg_arrow.query.explanation.facts import MAX_BEHIND, BadTensorFacts
from tfdbg_arrow.query.explanation.keras_ops import name_of_keras_ops
from tfdbg_arrow.query.explanation.kinds import ADDS, RESHAPES
from tfdbg_arrow.query.explanation.outside import READS_BYTES
from tfdbg_arrow.query.flow.extremes import MAXIMA, MINIMA, POOLS, largest_of, may_hold_extreme
from tfdbg_arrow.query.flow.resources import Write
from tfdbg_arrow.query.flow.search import rows_behind
from tfdbg_arrow.query.headline import executed_code
from tfdbg_arrow.query.info import parse_settings
from tfdbg_arrow.query.outside_tensors import OutsideTensors
from tfdbg_arrow.query.recorded import (
    EagerValue,
    Execution,
    GraphTensor,
    Op,
    TensorEvent,
    read_events,
)
from tfdbg_arrow.query.source_arrays import GETS_ELEMENT
from tfdbg_arrow.query.stacks import (
    Frame,
    executed_span,
    short_place,
    source_lines,
    user_source,
)
from tfdbg_arrow.safe_text import parsed_python
from tfdbg_arrow.schema.op_traits import READERS, Trait, types_with

_BOUNDED = frozenset({
    "ClipByValue", "Erf", "Maximum", "Minimum", "Relu6", "Select", "SelectV2", "Sigmoid", "Sign", "Softmax", "Softsign",
    "Tanh",
})  # fmt: skip
"""Types of ops whose result can be small although an input is very large."""
_ROOTS = ("Sqrt", *RESHAPES)
"""Types of ops whose result is 0 only where their argument is 0, and negative only where the argument is negative."""
_FED = types_with(Trait.FED)
_CONSTANTS = frozenset({"Const", "Fill", "ZerosLike"})
"""Types of ops that count as constants of the program when the program writes their result to a variable."""
_INTEGER = re.compile(r"u?int\d+")
MAX_OTHER_DATA = 4
"""A text lists at most this many other bad tensors from outside."""
_MAX_CODE = 1000
"""The parser reads at most this many characters of a line of code."""


class Surroundings(BadTensorFacts):
    """The facts about the op of a bad tensor for which tensors must be followed through the recording."""

    def behind(self) -> Iterator[Computed]:
        """Yields the ops behind the tensor in its call, or in eager code, nearest first.

        The search does not go past small tensors, or past ops whose result is small for a large input.
        """

        def near_and_large(row: TensorEvent) -> Iterator[TensorEvent]:
            own = self.event
            for source in self.inputs_of(row).values():
                is_near = source.execution_index == own.execution_index or own.scope == source.scope == "execution"
                if is_near and source.op_type not in _BOUNDED and not self._is_small(source):
                    yield source

        for row in islice(rows_behind([self.event], near_and_large, limit=MAX_BEHIND), 1, None):
            forward = self.flow.labels.forward_op(self.flow.labels.of(row))
            yield Computed(
                output=row, inputs=self.inputs_of(row), forward_type=None if forward is None else forward.op_type
            )

    def infinities_behind(self) -> Iterator[TensorEvent]:
        """Yields the tensors whose -Inf became zeros in the op's healthy inputs, because exp(-Inf) is 0.

        If a library function takes the exponential, the result has the tensors that the user's code passed to the
        function.
        """
        yield from map(self._passed_to_call, self.flow.infinities_behind(self.event))

    def _passed_to_call(self, row: TensorEvent) -> TensorEvent:
        """Returns the tensor with -Inf that the user's code passed to the call in which an op computed a -Inf."""
        calls = self._user_frames(self.event)
        for _ in range(MAX_BEHIND):
            source = next(filter(holds_only_neg_inf, self.inputs_of(row).values()), None)
            if source is None or self._user_frames(row) != calls:
                break
            row = source
        return row

    def _user_frames(self, row: TensorEvent) -> list[Frame]:
        return [frame for frame in self.flow.stacks.stack(self.flow.stack_trace_id(row)) if frame.is_user]

    def _is_small(self, row: TensorEvent) -> bool:
        """Returns whether a tensor is so small that no product of a few of its elements overflows in the dtype."""
        return row.max_abs_finite is not None and row.max_abs_finite < largest_of(self.event) ** 0.25

    def has_moved_constant(self, total: TensorEvent) -> bool:
        """Returns whether the program adds a constant to make a tensor, and TensorFlow's optimizer moved the constant.

        The node then takes a part of the program's other term in place of the constant and the whole term.
        """
        op = None if total.graph_id is None else self.flow.graphs.op(total.graph_id, total.op_name or "")
        if op is None or op.made_for is not None or op.op_type not in ADDS:
            return False
        names = {name for name, _ in op.inputs}
        taken = [*self.inputs_of(total).values()]
        if len(taken) != 2 or len(names) != 2 or any(row.graph_id != total.graph_id for row in taken):
            return False
        is_added = any(self.made_by(row) == "Const" for row in taken)
        has_constant = any(self._type_of(total.graph_id, name) == "Const" for name in names)
        return has_constant and not is_added and any(row.op_name not in names for row in taken)

    def adds_rounded_to_0(self, row: TensorEvent) -> bool:
        """Returns whether the program adds a constant that rounds to 0, to a tensor or to the argument of its root.

        If the other term has no negative element, adding a constant above 0 leaves no zeros. So if the zeros are still
        there, the constant is 0. TensorFlow's optimizer removes such a sum, so that neither the sum nor the constant
        has a row.
        """
        ops = {} if row.graph_id is None else self.flow.graphs.graph(row.graph_id).ops
        op = _op_behind(ops, row.op_name or "", _ROOTS)
        if op is None or op.op_type not in ADDS:
            op = self._sum_of(ops, row)
        if op is None:
            return False
        terms = [name for name, _ in op.inputs if name in ops and not _is_constant(ops, name)]
        if len(terms) != 1:
            return False
        term = chain_of(row, lambda taker: None if taker.op_name == terms[0] else self._behind(taker, *_ROOTS, *ADDS))[
            -1
        ]
        argument = chain_of(term, lambda taker: self._behind(taker, "Sqrt"))[-1]
        return (
            term.op_name == terms[0]
            and self.made_by(argument) != "Sqrt"
            and all(
                tensor.has_inf_or_nan is False and bool(tensor.num_zero) and tensor.num_neg_finite == 0
                for tensor in (row, argument)
            )
        )

    def _sum_of(self, ops: Mapping[str, Op], row: TensorEvent) -> Op | None:
        """Returns the sum that the program's op takes, if TensorFlow's op takes a term of this sum instead."""
        own = self.own_key()
        taken = ops[own].inputs if isinstance(own, str) and own in ops else ()
        sums = (ops[name] for name, _ in taken if name in ops and ops[name].op_type in ADDS)
        return next((op for op in sums if any(name == row.op_name for name, _ in op.inputs)), None)

    def _behind(self, row: TensorEvent, *op_types: str) -> TensorEvent | None:
        """Returns the first input of a tensor's op; None if the op has none of the types or the input has no row."""
        return self.inputs_of(row).get(0) if self.made_by(row) in op_types else None

    def constant(self, row: TensorEvent) -> str | None:
        """Returns the code of a constant, perhaps cast; None for another tensor.

        The result is an empty text if the code of the constant is not known separately.
        """
        ops = {} if row.graph_id is None else self.flow.graphs.graph(row.graph_id).ops
        if not _is_constant(ops, row.op_name or ""):
            return None
        code = self._code(self.flow.stack_trace_id(row))
        return "" if code is None or code == self._code(self.flow.stack_trace_id(self.event)) else code

    def integers_behind(self, row: TensorEvent, kind: str) -> Integers | None:
        """Returns the integers that were cast to a tensor, perhaps scaled afterwards; None for another tensor.

        Args:
            row: The tensor.
            kind: The count of the elements that the integers explain, such as `num_zero`.
        """
        for _ in range(MAX_CHAIN):
            inputs = self.inputs_of(row)
            if self.made_by(row) == "Cast":
                integers, dtype = self._integers_of(row), self._dtype_before(row)
                if dtype is None or not _INTEGER.fullmatch(dtype):
                    return None
                maker = None if integers is None else integers.op_type
                return Integers(dtype=dtype, maker=maker, are_squares=self._casts_squares(row))
            with_kind = [taken for taken in inputs.values() if getattr(taken, kind)]
            if self.made_by(row) not in ("Mul", "RealDiv") or len(inputs) != 2 or len(with_kind) != 1:
                return None
            (row,) = with_kind
        return None

    def _dtype_before(self, cast: TensorEvent) -> str | None:
        """Returns the dtype that a cast took, or None if it is not known."""
        op = None if cast.graph_id is None else self.flow.graphs.op(cast.graph_id, cast.op_name or "")
        if cast.graph_id is not None and op is not None and op.op_type == "Cast" and op.inputs:
            return self.flow.graphs.graph(cast.graph_id).dtypes.get(op.inputs[0])
        taken = next(iter(self.flow.inputs_of(cast)), None)
        return None if taken is None else taken.trace.dtype

    def _casts_squares(self, cast: TensorEvent) -> bool:
        """Returns whether a cast in a graph takes squares, or sums of squares."""
        if cast.graph_id is None:
            return False
        graph = self.flow.graphs.graph(cast.graph_id)
        op = graph.ops.get(cast.op_name or "")
        made = None if op is None or not op.inputs else graph.ops.get(op.inputs[0][0])
        squares = graph.ops.get(made.inputs[0][0]) if made is not None and made.op_type == "Sum" else made
        is_product = squares is not None and squares.op_type == "Mul" and len(set(squares.inputs)) == 1
        return is_product or (squares is not None and squares.op_type == "Square")

    def last_write(self, row: TensorEvent) -> VariableWrite | None:
        """Returns the last write to the variable from which a tensor was read, perhaps cast.

        In a function, only the write of a constant counts. Other values are better explained by the ops that computed
        them.
        """
        reader = self._integers_of(row) if self.made_by(row) == "Cast" else row
        if reader is None or reader.op_type not in READERS:
            return None
        read = next(
            (taken_input for taken_input in self.flow.inputs_of(reader) if taken_input.trace.dtype == "resource"), None
        )
        if read is None or read.trace.is_lost or read.write is None:
            return None
        write, place, is_of_call = read.write, read.trace.place, False
        if write.op_name is None:
            execution = self.flow.events.execution(write.execution_index)
            stack_id = None if execution is None else execution.stack_trace_id
        elif write.graph_id is not None:
            is_in_session = self.flow.borders.sessions.is_session_graph(write.graph_id)
            if not is_in_session and not self._is_of_constant(write):
                return None
            is_of_call = not is_in_session and write.execution_index == reader.execution_index
            op = self.flow.graphs.op(write.graph_id, write.op_name)
            stack_id = None if op is None else op.stack_trace_id
        else:
            return None
        frame, code = user_source(self.flow.stacks.stack(stack_id)), self._code(stack_id)
        if frame is None:
            return None
        is_made_here = (
            isinstance(place, EagerValue) and self.flow.events.eager(place.tensor_id).op_type == "VarHandleOp"
        )
        is_only_one = len([*islice(self.flow.resources.writes(read.trace, reader=reader), 2)]) == 1
        line = " at ".join(filter(None, (code, short_place(frame))))
        return VariableWrite(line, is_initial=is_made_here and is_only_one, is_of_call=is_of_call)

    def _integers_of(self, cast: TensorEvent) -> TensorEvent | None:
        """Returns a row that stands for the integers that a cast took; None if the cast took other numbers."""
        taken = next(iter(self.flow.inputs_of(cast)), None)
        if taken is None or taken.trace.is_lost or not self.flow.cannot_be_bad(taken.trace):
            return None
        place = taken.trace.place
        if isinstance(place, GraphTensor):
            return replace(
                cast, **asdict(place.context), graph_id=place.graph_id, op_name=place.op_name,
                op_type=self._type_of(place.graph_id, place.op_name), output_slot=place.output_slot,
            )  # fmt: skip
        eager = self.flow.events.eager(place.tensor_id)
        return replace(cast, execution_index=eager.execution_index, op_type=eager.op_type, tensor_id=place.tensor_id)

    def _is_of_constant(self, write: Write) -> bool:
        """Returns whether a write in a graph replaces the value of a variable with a constant of the program."""
        if not write.is_replacing or len(write.values) != 1:
            return False
        place = self.flow.trace(write.values[0], how="graph", near=2**63 - 1).place
        return isinstance(place, GraphTensor) and self._type_of(place.graph_id, place.op_name) in _CONSTANTS

    def _code(self, stack_trace_id: int | None) -> str | None:
        """Returns the part of the user's line that a stack executes, in backquotes, or None if it is not known."""
        frame = user_source(self.flow.stacks.stack(stack_trace_id))
        lines = () if frame is None else source_lines(self.logdir, frame, run_id=self.run_id, context=0)
        return executed_code(frame, lines[0].text if lines else None)

    def added_number(self, index: int) -> str | None:
        """Returns the number that the program adds last to make an input, as written in the code, such as `1e-8`.

        The result is None if the input is not a sum, or if the code adds no number or several numbers.
        """
        stack_trace_id = self._stack_of_sum(index)
        frame = user_source(self.flow.stacks.stack(stack_trace_id))
        lines = () if frame is None else source_lines(self.logdir, frame, run_id=self.run_id, context=0)
        if frame is None or not lines:
            return None
        (line,) = lines
        span = executed_span(frame, line.text)
        numbers = _added_numbers(line.text if span is None else line.text[slice(*span)])
        return numbers.pop() if len(numbers) == 1 else None

    def _stack_of_sum(self, index: int) -> int | None:
        """Returns the stack of the program's op that made an input, if the op adds two tensors."""
        own = self.own_key()
        made: Op | Execution | None = None
        if isinstance(own, str):
            op = self.flow.graphs.op(self.event.graph_id or 0, own)
            if op is not None and index < len(op.inputs):
                made = self.flow.graphs.op(self.event.graph_id or 0, op.inputs[index][0])
        else:
            taken = self.flow.events.execution_inputs(self.event.execution_index or 0).get(index)
            made = None if taken is None else self.flow.events.execution(self.flow.events.eager(taken).execution_index)
        return made.stack_trace_id if made is not None and made.op_type in ADDS else None

    def maybe_extreme_of_nothing(self) -> TensorEvent | None:
        """Returns the first earlier maximum or minimum whose value for no elements may be an extreme of its dtype."""
        maxima, minima = sorted(MAXIMA - POOLS), sorted(MINIMA)
        rows = read_events(
            self.logdir,
            "NOT has_inf_or_nan AND event_index < ? AND (op_type IN "
            f"({', '.join('?' * len(maxima))}) AND num_neg_finite > 0 OR op_type IN ({', '.join('?' * len(minima))}) "
            "AND num_pos_finite > 0) ORDER BY event_index LIMIT 1",
            [self.run_id, self.event.event_index, *maxima, *minima],
        )
        return rows[0] if rows else None

    def maybe_extreme_behind(self) -> TensorEvent | None:
        """Returns the nearest maximum or minimum behind the tensor in its call that may hold an extreme number."""
        return next((computed.output for computed in self.behind() if may_hold_extreme(computed.output)), None)

    def numbers_from_bytes(self) -> TensorEvent | None:
        """Returns the first earlier tensor of floating-point numbers that the program read from bytes."""
        types = ", ".join(f"'{op_type}'" for op_type in READS_BYTES)
        rows = read_events(
            self.logdir,
            f"op_type IN ({types}) AND event_index < ? ORDER BY event_index LIMIT 1",
            [self.run_id, self.event.event_index],
        )
        return rows[0] if rows else None

    def bad_samples(self) -> BadSamples | None:
        """Returns the samples of the batch that are bad in the tensor; None if the tensor has no known samples."""
        return SampleFinder(self.logdir, self.flow, run_id=self.run_id).of(self.event)

    def takes_data(self, index: int) -> bool:
        """Returns whether an input of the op is data that no op of the program changed, except its dtype and shape."""
        row = self.inputs_of(self.event).get(index)
        if row is None:
            return False
        data = self.flow.computed(chain_of(row, lambda taker: self._behind(taker, "Cast", *RESHAPES))[-1])
        return data.scope == "external" or data.op_type in GETS_ELEMENT

    def keras_ops(self) -> str | None:
        """Returns the name for keras.ops in the source file of the op, as `name_of_keras_ops` does."""
        frame = user_source(self.op_to_change()[0])
        module = None if frame is None else self.flow.stacks.module(frame.file_path)
        return None if module is None else name_of_keras_ops(module)

    def shows_root(self) -> bool:
        """Returns whether the user's line has `sqrt`. For a gradient op, this is the line of the forward op."""
        frame = user_source(self.op_to_change()[0])
        return frame is not None and "sqrt" in (frame.code or "")

    def unrecorded_function(self) -> tuple[str, str] | None:
        """Returns the unrecorded function that returned the eager tensor or an input of its op, and a reason.

        The first text is the name of the function. The second text says why the function was not recorded.
        """
        if self.event.execution_index is None or self.event.scope == "graph":
            return None
        taken = self.flow.events.execution_inputs(self.event.execution_index).values()
        makers = [self.flow.events.eager(tensor_id).execution_index for tensor_id in taken]
        indexes = [index for index in (self.event.execution_index, *makers) if index is not None]
        rows = self.logdir.rows(
            "SELECT g.graph_name, c.reason FROM execution AS e "
            "JOIN capture_stat AS c ON c.run_id = e.run_id AND c.stat = 'unobservable' AND c.subject = e.op_type "
            "JOIN graph AS g ON g.run_id = e.run_id AND g.graph_id = e.graph_id "
            f"WHERE e.run_id = ? AND e.execution_index IN ({', '.join('?' * len(indexes))}) LIMIT 1",
            [self.run_id, *indexes],
        )
        return rows[0] if rows else None

    def is_of_unrecorded_iteration(self) -> bool:
        """Returns whether a tensor came from an iteration of a loop that XLA compiled and that was not recorded."""
        if self.event.op_type not in _FED or not self.event.iteration or self.event.executed_graph_id is not None:
            return False
        ((settings,),) = self.logdir.rows("SELECT settings FROM run WHERE run_id = ? LIMIT 1", [self.run_id])
        given = parse_settings(settings)
        return given.get("graphs") == "executed" and given.get("xla") == "inside"

    def stored_in(self) -> str | None:
        """Returns the owner of the variable to which eager code wrote the tensor, such as `of the layer bn`."""
        return OutsideTensors(self.flow).stored_in(self.event)

    def outside_name(self) -> str | None:
        """Returns words for a tensor from outside the program, as in `NonFinite.outside_name`."""
        return self._outside_name(self.event)

    def _outside_name(self, event: TensorEvent) -> str | None:
        samples = SampleFinder(self.logdir, self.flow, run_id=self.run_id).of(event)
        return OutsideTensors(self.flow).name(event) if samples is None else samples.name

    def other_bad_data(self) -> list[tuple[str, TensorEvent]]:
        """Returns the other bad tensors from outside that the same execution took, such as the targets, with names.

        If there are more than MAX_OTHER_DATA, the first MAX_OTHER_DATA + 1 of them.
        """
        rows = read_events(
            self.logdir,
            "scope = 'external' AND has_inf_or_nan AND execution_index = ? AND event_index <> ? ORDER BY event_index "
            f"LIMIT {MAX_OTHER_DATA + 1}",
            [self.run_id, self.event.execution_index, self.event.event_index],
        )
        return [(name, row) for row in rows if (name := self._outside_name(row)) is not None]

    def place_of(self, row: TensorEvent) -> str:
        """Returns the layer or the line in which a tensor was computed; an empty text if neither is known."""
        layer = self.flow.labels.of(row).layer
        if layer is not None:
            return f"the layer {layer}"
        frame = user_source(self.flow.stacks.stack(self.flow.stack_trace_id(row)))
        return "" if frame is None else short_place(frame)


def _op_behind(ops: Mapping[str, Op], name: str, op_types: tuple[str, ...]) -> Op | None:
    """Follows the first inputs of ops of the given types, and returns the first op of another type, or None."""

    def source_of(taker: str) -> str | None:
        op = ops.get(taker)
        return op.inputs[0][0] if op is not None and op.op_type in op_types and op.inputs else None

    return ops.get(chain_of(name, source_of)[-1])


def _is_constant(ops: Mapping[str, Op], name: str) -> bool:
    """Returns whether an op returns a constant, perhaps cast."""
    op = _op_behind(ops, name, ("Cast",))
    return op is not None and op.op_type == "Const"


def _added_numbers(code: str) -> set[str]:
    """Returns the numbers that an expression or a line of code adds, as written in the code."""
    tree = parsed_python(code.strip()[:_MAX_CODE])
    if tree is None:
        return set()
    sums = [node for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)]
    terms = [term for node in sums for term in (node.left, node.right) if isinstance(term, ast.Constant)]
    return {ast.get_source_segment(code.strip(), term) or "" for term in terms if isinstance(term.value, float)}
