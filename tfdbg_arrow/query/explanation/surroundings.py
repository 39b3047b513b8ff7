"""Facts from the tensors that a bad tensor was computed from, and from the tensors that were computed from it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import islice, takewhile

from tfdbg_arrow.query.bad_samples import BadSamples, SampleFinder
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.explanation.computed import Computed, Inputs, VariableWrite, chain_of, holds_only_neg_inf
from tfdbg_arrow.query.explanation.keras_ops import name_of_keras_ops
from tfdbg_arrow.query.explanation.kinds import ADDS, PLUS_CONSTANT, RESHAPES
from tfdbg_arrow.query.explanation.program_results import ProgramResults
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.extremes import MAXIMA, MINIMA, POOLS, largest_of
from tfdbg_arrow.query.flow.resources import Write
from tfdbg_arrow.query.headline import executed_code
from tfdbg_arrow.query.outside_tensors import OutsideTensors
from tfdbg_arrow.query.recorded import (
    EagerValue,
    Execution,
    GraphTensor,
    Op,
    TensorEvent,
    read_events,
)
from tfdbg_arrow.query.stacks import (
    Frame,
    StackReader,
    executed_span,
    parsed_source,
    short_place,
    source_lines,
    user_source,
)
from tfdbg_arrow.safe_text import parsed_python
from tfdbg_arrow.schema.op_traits import READER, Trait, types_with

_MAX_BEHIND = 300
"""The maximum number of tensors that are examined in the search back from an op."""
_BOUNDED = frozenset({
    "ClipByValue", "Erf", "Maximum", "Minimum", "Relu6", "Select", "SelectV2", "Sigmoid", "Sign", "Softmax", "Softsign",
    "Tanh",
})  # fmt: skip
"""Types of ops whose result can be small although an input is very large."""
_NORM_STEPS = frozenset({
    "AddN", "AddV2", "Cast", "ConcatV2", "ExpandDims", "Identity", "Mul", "Pack", "Reshape", "Select", "SelectV2",
    "Square", "Squeeze", "Sum",
})  # fmt: skip
"""Types of ops between the squares of a norm and its root."""
_ROOTS = ("Sqrt", *RESHAPES)
"""Types of ops whose result is 0 only where their argument is 0, and negative only where the argument is negative."""
_READERS = types_with(Trait.READS | Trait.READS_PART)
_CONSTANTS = frozenset({"Const", "Fill", "ZerosLike"})
"""Types of ops that count as constants of the program when the program writes their result to a variable."""
_MAX_NORM_OPS = 200
_MAX_CODE = 1000
"""The parser reads at most this many characters of a line of code."""
_MAX_UNSCALING = 3
"""The maximum number of ops between a gradient and its norm, such as a division by the scale of the loss."""


@dataclass(frozen=True)
class BadTensorFacts:
    """The base class for facts about a bad tensor that are read on demand.

    Attributes:
        logdir: The logdir.
        flow: The run's data flow. The caller must hold its lock.
        event: The bad tensor.
        run_id: The run.
    """

    logdir: Engine
    flow: DataFlow
    event: TensorEvent
    run_id: str

    @cached_property
    def _stacks(self) -> StackReader:
        return StackReader(self.logdir, run_id=self.run_id)


class Surroundings(BadTensorFacts):
    """The facts about the op of a bad tensor for which tensors must be followed through the recording."""

    def inputs_of(self, event: TensorEvent) -> Inputs:
        """Returns the recorded inputs of the op that made a tensor."""
        return {index: row for index, _, row in self.flow.taken_by(event)}

    def behind(self) -> Iterator[Computed]:
        """Yields the ops that the tensor was computed from in its call, or by eager code, the nearest first.

        The search does not go past small tensors, or past ops whose result is small for a large input.
        """
        seen = {self.event.event_index}
        to_follow = [*self.inputs_of(self.event).values()]
        while to_follow and len(seen) < _MAX_BEHIND:
            row = to_follow.pop(0)
            is_near = row.execution_index == self.event.execution_index or self.event.scope == row.scope == "execution"
            if row.event_index in seen or not is_near or row.op_type in _BOUNDED or self._is_small(row):
                continue
            seen.add(row.event_index)
            inputs = self.inputs_of(row)
            forward = self.flow.labels.forward_op(self.flow.labels.of(row))
            yield Computed(output=row, inputs=inputs, forward_type=None if forward is None else forward.op_type)
            to_follow += inputs.values()

    def infinities_behind(self) -> Iterator[TensorEvent]:
        """Yields the tensors whose -Inf became zeros in the op's healthy inputs, because exp(-Inf) is 0.

        If a library function takes the exponential, the result has the tensors that the user's code passed to the
        function.
        """
        yield from map(self._passed_to_call, self.flow.infinities_behind(self.event))

    def _passed_to_call(self, row: TensorEvent) -> TensorEvent:
        """Returns the tensor with -Inf that the user's code passed to the call in which an op computed a -Inf."""
        calls = self._user_frames(self.event)
        for _ in range(_MAX_BEHIND):
            source = next(filter(holds_only_neg_inf, self.inputs_of(row).values()), None)
            if source is None or self._user_frames(row) != calls:
                break
            row = source
        return row

    def _user_frames(self, row: TensorEvent) -> list[Frame]:
        return [frame for frame in self._stacks.stack(self.flow.stack_trace_id(row)) if frame.is_user]

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
        """Returns whether the program adds a constant to a tensor, or to its root's argument, that rounds to 0.

        If the other term has no negative element, adding a constant above 0 leaves no zeros. So if the zeros are still
        there, the constant is 0. TensorFlow's optimizer removes such a sum, so that neither the sum nor the constant
        has a row.
        """
        ops = {} if row.graph_id is None else self.flow.graphs.graph(row.graph_id).ops
        op = _op_behind(ops, row.op_name or "", _ROOTS)
        if op is None or op.op_type not in ADDS:
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

    def _behind(self, row: TensorEvent, *op_types: str) -> TensorEvent | None:
        """Returns the first input of a tensor's op; None if the op has none of the types or the input has no row."""
        return self.inputs_of(row).get(0) if self.made_by(row) in op_types else None

    def constant(self, row: TensorEvent) -> str | None:
        """Returns the code of a constant, perhaps cast; an empty text if the code is not known separately, or None."""
        ops = {} if row.graph_id is None else self.flow.graphs.graph(row.graph_id).ops
        if not _is_constant(ops, row.op_name or ""):
            return None
        code = self._code(self.flow.stack_trace_id(row))
        return "" if code is None or code == self._code(self.flow.stack_trace_id(self.event)) else code

    def last_write(self, row: TensorEvent) -> VariableWrite | None:
        """Returns the last write to the variable from which a tensor was read, perhaps cast.

        In a function, only the write of a constant counts. The ops that computed any other value explain the value
        better.
        """
        reader = self._integers_of(row) if self.made_by(row) == "Cast" else row
        if reader is None or reader.op_type not in _READERS:
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
        frame, code = user_source(self._stacks.stack(stack_id)), self._code(stack_id)
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
        frame = user_source(self._stacks.stack(stack_trace_id))
        lines = () if frame is None else source_lines(self.logdir, frame, run_id=self.run_id, context=0)
        return executed_code(frame, lines[0].text if lines else None)

    def added_number(self, index: int) -> str | None:
        """Returns the number that the program adds last to make an input, as written in the code, such as `1e-8`.

        The result is None if the input is not a sum, or if the code adds no number or several numbers.
        """
        stack_trace_id = self._stack_of_sum(index)
        frame = user_source(self._stacks.stack(stack_trace_id))
        lines = () if frame is None else source_lines(self.logdir, frame, run_id=self.run_id, context=0)
        if frame is None or not lines:
            return None
        (line,) = lines
        span = executed_span(frame, line.text)
        numbers = _added_numbers(line.text if span is None else line.text[slice(*span)])
        return numbers.pop() if len(numbers) == 1 else None

    def _stack_of_sum(self, index: int) -> int | None:
        """Returns the stack of the program's op that made an input, if the op adds two tensors."""
        own = self._own()
        made: Op | Execution | None = None
        if isinstance(own, str):
            op = self.flow.graphs.op(self.event.graph_id or 0, own)
            if op is not None and index < len(op.inputs):
                made = self.flow.graphs.op(self.event.graph_id or 0, op.inputs[index][0])
        else:
            taken = self.flow.events.execution_inputs(self.event.execution_index or 0).get(index)
            made = None if taken is None else self.flow.events.execution(self.flow.events.eager(taken).execution_index)
        return made.stack_trace_id if made is not None and made.op_type in ADDS else None

    def made_by(self, row: TensorEvent) -> str | None:
        """Returns the type of the program's op that made a tensor. TensorFlow may have run another op in its place."""
        return self._type_of(row.graph_id, row.op_name) or row.op_type

    def _type_of(self, graph_id: int | None, op_name: str | None) -> str | None:
        op = None if graph_id is None or op_name is None else self.flow.graphs.op(graph_id, op_name)
        return None if op is None else op.op_type

    def is_before_training(self) -> bool:
        """Returns whether the tensor was computed in the first call of its function, before any training step in it."""
        execution = self.flow.events.execution(self.event.execution_index)
        if self.event.scope != "graph" or execution is None:
            return False
        earlier_calls = self.logdir.rows(
            "SELECT 1 FROM execution WHERE run_id = ? AND op_type = ? AND execution_index < ? LIMIT 1",
            [self.run_id, execution.op_type, execution.execution_index],
        )
        if earlier_calls or self._takes_updated_weights():
            return False
        return not self.event.loop_iteration or not self.is_after_gradient()

    def is_after_gradient(self) -> bool:
        """Returns whether an earlier call of the function, or an earlier iteration of a loop, computed a gradient."""
        execution = self.flow.events.execution(self.event.execution_index)
        if execution is None:
            return False
        # Gradient ops that take no result of the forward pass can run at any time within an iteration, so the gradients
        # of the same iteration do not count.
        gradients = self.logdir.rows(
            "SELECT 1 FROM tensor_health AS h JOIN graph_op AS o "
            "ON o.run_id = h.run_id AND o.graph_id = h.graph_id AND o.op_name = h.op_name "
            "JOIN execution AS e ON e.run_id = h.run_id AND e.execution_index = h.execution_index "
            "WHERE h.run_id = ? AND e.op_type = ? AND h.event_index < ? AND o.role = 'gradient' "
            "AND (h.execution_index < ? OR (h.frame_id != 0 AND (h.frame_id != ? OR h.iteration < ?))) LIMIT 1",
            [
                *(self.run_id, execution.op_type, self.event.event_index),
                *(execution.execution_index, self.event.frame_id, self.event.iteration),
            ],
        )
        return bool(gradients)

    def first_loss(self) -> float | None:
        """Returns the first recorded loss of the function, in any of its traces; None if it has no gradient.

        It is the last scalar that the loss computes, or else the last scalar with a gradient in the forward pass. If
        every call was recorded, no update had changed the weights yet.
        """
        execution = self.flow.events.execution(self.event.execution_index)
        if self.event.scope != "graph" or execution is None or execution.graph_id is None:
            return None
        rows = self.logdir.rows(
            "WITH loss AS (SELECT o.* FROM graph_op AS o SEMI JOIN graph_op AS g ON g.run_id = o.run_id AND "
            "g.forward_graph_id = o.graph_id AND g.forward_op_name = o.op_name WHERE o.run_id = ? AND o.role IN "
            "('forward', 'loss') AND o.op_type NOT IN ('Cast', 'Const', 'ReadVariableOp')) "
            "SELECT h.scalar_value FROM tensor_health AS h "
            "JOIN loss AS o ON o.run_id = h.run_id AND o.graph_id = h.graph_id AND o.op_name = h.op_name "
            "JOIN execution AS e ON e.run_id = h.run_id AND e.execution_index = h.execution_index "
            "JOIN graph AS f ON f.run_id = e.run_id AND f.graph_id = e.graph_id "
            "WHERE h.run_id = ? AND f.graph_name = ? AND h.event_index < ? AND h.scalar_value IS NOT NULL "
            "ORDER BY h.execution_index, o.role DESC, h.iteration, o.op_index DESC LIMIT 1",
            [self.run_id, self.run_id, self.flow.graphs.names.get(execution.graph_id), self.event.event_index],
        )
        return rows[0][0] if rows else None

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

    def _takes_updated_weights(self) -> bool:
        """Returns whether the tensor was computed from an update, such as w - rate * gradient, in the same call.

        Unrolled inner steps of a training make such updates before the first call ends.
        """
        seen, to_follow = {self.event.event_index}, [self.event]
        while to_follow and len(seen) < _MAX_BEHIND:
            row = to_follow.pop(0)
            inputs = self.inputs_of(row)
            if self._is_update(row, inputs):
                return True
            near = [source for source in inputs.values() if source.execution_index == self.event.execution_index]
            to_follow += [source for source in near if source.event_index not in seen]
            seen.update(source.event_index for source in near)
        return False

    def _is_update(self, row: TensorEvent, inputs: Inputs) -> bool:
        if self.made_by(row) != "Sub" or not inputs.keys() >= {0, 1} or self.made_by(inputs[0]) == "Const":
            return False
        return self._is_of_gradient(inputs[1])

    def bad_samples(self) -> BadSamples | None:
        """Returns the samples of the batch that are bad in the tensor; None if the tensor has no known samples."""
        return SampleFinder(self.logdir, self.flow, run_id=self.run_id).of(self.event)

    def magnitudes_before(self) -> list[float | None]:
        """Returns the tensor's largest magnitude in each iteration of its loop before its first bad value.

        None stands for a magnitude that was not recorded. The list is empty if the tensor was not computed from its
        value in an earlier iteration.
        """
        if not self.event.loop_iteration or not self._takes_earlier_iteration():
            return []
        rows = self.logdir.rows(
            "SELECT has_inf_or_nan, coalesce(max_abs_finite, abs(scalar_value)) FROM tensor_health "
            "WHERE run_id = ? AND execution_index = ? AND frame_id = ? AND call_site = ? AND graph_id = ? "
            "AND op_name = ? AND output_slot = ? AND iteration < ? ORDER BY iteration",
            [
                *(self.run_id, self.event.execution_index, self.event.frame_id, self.event.call_site),
                *(self.event.graph_id, self.event.op_name, self.event.output_slot, self.event.iteration),
            ],
        )
        return [magnitude for _, magnitude in takewhile(lambda row: not row[0], rows)]

    def _takes_earlier_iteration(self) -> bool:
        """Returns whether the tensor was computed from the same output of its op in an earlier iteration."""
        own = self.event
        seen = {own.event_index}
        to_follow = [*self.inputs_of(own).values()]
        while to_follow and len(seen) < _MAX_BEHIND:
            row = to_follow.pop(0)
            # A value read from a variable depends on the loop only through writes, such as the updates of a training.
            if row.event_index in seen or row.frame_id != own.frame_id or row.op_type == READER:
                continue
            if (row.graph_id, row.op_name, row.output_slot) == (own.graph_id, own.op_name, own.output_slot):
                return True
            seen.add(row.event_index)
            to_follow += self.inputs_of(row).values()
        return False

    def op_to_change(self) -> tuple[tuple[Frame, ...], str | None]:
        """Returns the stack and type of the program's op that made the tensor, or whose gradient made the tensor."""
        forward = self.flow.labels.forward_op(self.flow.label_of_maker(self.event))
        stack_id = self.flow.stack_trace_id(self.event) if forward is None else forward.stack_trace_id
        made = self.flow.program_ops.maker(self.event)
        own_type = self.event.op_type if made is None else made.op.op_type
        return self._stacks.stack(stack_id), own_type if forward is None else forward.op_type

    def keras_ops(self) -> str | None:
        """Returns the name for keras.ops in the op's source file; None without keras.ops, or with TensorFlow."""
        frame = user_source(self.op_to_change()[0])
        module = None if frame is None else parsed_source(self.logdir, frame.file_path, run_id=self.run_id)
        return None if module is None else name_of_keras_ops(module)

    def shows_root(self) -> bool:
        """Returns whether the user's line has `sqrt`. For a gradient op, this is the line of the forward op."""
        frame = user_source(self.op_to_change()[0])
        return frame is not None and "sqrt" in (frame.code or "")

    def takers(self) -> frozenset[tuple[str, ...]]:
        """Returns the types of the forward ops that take the tensor, alone and with each op that takes the result."""
        types: set[tuple[str, ...]] = set()
        own_key = self._own()
        if isinstance(own_key, str) and self._type_of(self.event.graph_id, own_key) != self.event.op_type:
            return frozenset()  # TensorFlow fused several ops, and the op that takes the result is inside the fused op
        for key, op_type in self._forward_users(own_key):
            own = PLUS_CONSTANT if op_type in ADDS and self._adds_constant(key) else op_type
            types |= {(own,), *((own, after) for _, after in self._forward_users(key))}
        return frozenset(types)

    def _forward_users(self, key: str | int) -> list[tuple[str | int, str]]:
        return [(user, op_type) for user, op_type in self._users(key) if self._role(user) != "gradient"]

    def _role(self, key: str | int) -> str | None:
        if isinstance(key, str):
            return self.flow.labels.op(self.event.graph_id or 0, key).role
        index = self.flow.events.eager(key).execution_index
        return None if index is None else self.flow.labels.execution(index).role

    def _adds_constant(self, key: str | int) -> bool:
        """Returns whether an op adds a constant. In eager code, any tensor that no op made counts as a constant."""
        if isinstance(key, str):
            ops = self.flow.graphs.graph(self.event.graph_id or 0).ops
            return any(ops[name].op_type == "Const" for name, _ in ops[key].inputs)
        index = self.flow.events.eager(key).execution_index
        taken = () if index is None else self.flow.events.execution_inputs(index).values()
        return any(self.flow.events.eager(tensor_id).execution_index is None for tensor_id in taken)

    def is_p_log_p(self) -> bool:
        """Returns whether the op is a logarithm that the program uses only to multiply it by its argument.

        For an op of a gradient, the forward op counts.
        """
        log = self._results.forward_result(self.event, self._own())
        return log is not None and self._results.is_p_log_p(log)

    def has_log_of_complement(self) -> bool:
        """Returns whether the program computes log(x) and log(1 - x), and the op is one of the two logarithms.

        For an op of a gradient, the forward op counts.
        """
        log = self._results.forward_result(self.event, self._own())
        return log is not None and self._results.has_log_of_complement(log)

    def divides_by_argument(self) -> bool:
        """Returns whether the op is a logarithm and the program also divides by its argument.

        For an op of a gradient, the forward op counts.
        """
        log = self._results.forward_result(self.event, self._own())
        return log is not None and self._results.divides_by_argument(log)

    def divides_by_result(self) -> bool:
        """Returns whether the program divides by the tensor, or takes its logarithm, perhaps after other ops."""
        made = self.flow.program_ops.maker(self.event)
        result = self._results.forward_result(self.event, self._own() if made is None else made.op.op_name)
        return result is not None and self._results.is_divided_by(result)

    def is_summed_for_division(self) -> bool:
        """Returns whether the program divides by the sum of the tensor, a quotient, and other quotients."""
        made = self.flow.program_ops.maker(self.event)
        result = self._results.forward_result(self.event, self._own() if made is None else made.op.op_name)
        return result is not None and self._results.is_summed_for_division(result)

    @cached_property
    def _results(self) -> ProgramResults:
        return ProgramResults(self.logdir, self.flow, self.run_id)

    def is_norm_of_gradient(self) -> bool:
        """Returns whether the op computes the squares of a gradient, or their sum, for the norm of the gradient."""
        op_type = self.event.op_type
        inputs = [*self.inputs_of(self.event).values()]
        if op_type == "Sum":
            inputs = [row for square in inputs if square.op_type == "Square" for row in self.inputs_of(square).values()]
        is_square = op_type in ("Sum", "Square", "L2Loss") or (
            op_type == "Mul" and len(inputs) == 2 and inputs[0].event_index == inputs[1].event_index
        )
        return is_square and any(self._is_of_gradient(row) for row in inputs) and self._has_root_behind_sum()

    def _is_of_gradient(self, row: TensorEvent, *, depth: int = 0) -> bool:
        if self.flow.labels.of(row).role == "gradient":
            return True
        return depth < _MAX_UNSCALING and any(
            self._is_of_gradient(source, depth=depth + 1) for source in self.inputs_of(row).values()
        )

    def _has_root_behind_sum(self) -> bool:
        """Returns whether the program takes the root of a sum of the tensor's elements."""
        start = self.event.op_type in ("Sum", "L2Loss")
        seen: set[tuple[str | int, bool]] = set()
        to_follow = [(user, start) for user in self._users(self._own())]
        while to_follow and len(seen) < _MAX_NORM_OPS:
            (key, op_type), is_summed = to_follow.pop()
            if op_type == "Sqrt" and is_summed:
                return True
            is_summed = is_summed or op_type == "Sum"
            if op_type in _NORM_STEPS and (key, is_summed) not in seen:
                seen.add((key, is_summed))
                to_follow += [(user, is_summed) for user in self._users(key)]
        return False

    def _own(self) -> str | int:
        """Returns the key of the bad tensor's op."""
        return self._key(self.event)

    def _key(self, row: TensorEvent) -> str | int:
        """Returns the key of a tensor's op: its name in the graph, or the eager tensor."""
        if row.scope != "graph":
            return -1 if row.tensor_id is None else row.tensor_id
        op = None if row.graph_id is None else self.flow.graphs.op(row.graph_id, row.op_name or "")
        return (row.op_name or "") if op is None else op.made_for or op.op_name

    def _users(self, key: str | int) -> list[tuple[str | int, str]]:
        """Returns (key, op type) of the ops of the program that take the result of an op, or an eager tensor."""
        if isinstance(key, str):
            graph = self.flow.graphs.graph(self.event.graph_id or 0)
            return [(name, graph.ops[name].op_type) for name in graph.users.get(key, ())]
        return [
            (tensor_id, use.execution.op_type)
            for use in self.flow.events.uses(key)
            for tensor_id, _ in self.flow.events.execution_outputs(use.execution.execution_index).values()
        ]

    def unrecorded_function(self) -> tuple[str, str] | None:
        """Returns the unrecorded function that returned an eager tensor or an input of its op, and a reason.

        The first text is the name of the function. The second text is the reason why the function was not recorded.
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

    def stored_in(self) -> str | None:
        """Returns the owner of the variable to which eager code wrote the tensor, such as `of the layer bn`."""
        return OutsideTensors(self.flow).stored_in(self.event)

    def outside_name(self) -> str | None:
        """Returns words for a tensor from outside the program, as in `NonFinite.outside_name`."""
        samples = self.bad_samples()
        return OutsideTensors(self.flow).name(self.event) if samples is None else samples.name

    def has_gradients(self) -> bool:
        """Returns whether the run has ops of gradients; True if the recording does not show the roles of ops."""
        rows = self.logdir.rows(
            "SELECT 1 FROM graph_op WHERE run_id = ? AND role = 'gradient' UNION ALL "
            "SELECT 1 FROM execution WHERE run_id = ? AND role = 'gradient' LIMIT 1",
            [self.run_id, self.run_id],
        )
        return bool(rows) or not self.flow.labels.has_roles

    def is_differentiated(self, row: TensorEvent) -> bool:
        """Returns whether the program differentiates the op of a tensor. The op may itself belong to a gradient."""
        if row.scope == "graph":
            rows = self.logdir.rows(
                "SELECT 1 FROM graph_op WHERE run_id = ? AND forward_graph_id = ? AND forward_op_name = ? LIMIT 1",
                [self.run_id, row.graph_id, self._key(row)],
            )
        else:
            rows = self.logdir.rows(
                "SELECT 1 FROM execution WHERE run_id = ? AND forward_execution_index = ? LIMIT 1",
                [self.run_id, row.execution_index],
            )
        return bool(rows)

    def place_of(self, row: TensorEvent) -> str:
        """Returns the layer in which a tensor was computed, or its line; an empty text if neither is known."""
        layer = self.flow.labels.of(row).layer
        if layer is not None:
            return f"the layer {layer}"
        frame = user_source(self._stacks.stack(self.flow.stack_trace_id(row)))
        return "" if frame is None else short_place(frame)


def _op_behind(ops: Mapping[str, Op], name: str, op_types: tuple[str, ...]) -> Op | None:
    """Returns an op, or, for an op of some types, the first source op of another type; None if not recorded."""

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
