"""Finds the piece of a program that makes a bad value: the op that made it, earlier ops, and recorded inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tfdbg_arrow.errors import ReproError
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.recorded import EagerValue, GraphTensor, Op, Place, TensorEvent, Trace
from tfdbg_arrow.query.stacks import Frame, user_source
from tfdbg_arrow.reproduction.elements import ElementReader, Elements
from tfdbg_arrow.reproduction.op_signatures import (
    Signature,
    Value,
    choices,
    known_attributes,
    signature_of,
    split_inputs,
)
from tfdbg_arrow.safe_text import parse_json, printable

MAX_UNRECORDED = 16
"""Maximum length of the chain of ops that a script runs to compute an input without recorded elements."""
_MAX_OPS = 500
"""Maximum number of ops in a script. Bounds the time and the length of the script."""
_MAX_SEARCHED = 40
"""To find the gradient of the forward op's output, at most this many gradient ops are searched."""
_HINT = (
    "`tfdbg-arrow zoom LOGDIR -- SCRIPT` runs the program again and keeps them. Or record with "
    'on_nonfinite="keep", with values= for the op and those before it, or in mode FULL_TENSOR.'
)
_FROM_OUTSIDE = frozenset({"Const", "Placeholder", "_Arg", "_Retval"})
_FUSED_NAMES = {"Add": "BiasAdd", "AddV2": "BiasAdd", "FusedBatchNormV3": "FusedBatchNorm"}
"""The names of the program's ops in `fused_ops`, if they differ from the op types. The optimizer also fuses additions
of a vector."""


@dataclass(frozen=True)
class InputRef:
    """A reference to an input whose elements were recorded: the index in `Piece.inputs`."""

    index: int


@dataclass(frozen=True)
class OutputRef:
    """A reference to an output of an op: the index of the op in `Piece.ops`, and the output slot."""

    op: int
    slot: int


Operand = InputRef | OutputRef


@dataclass(frozen=True, kw_only=True)
class PieceInput:
    """One tensor that the script loads.

    Attributes:
        elements: The dtype, shape and elements of the tensor.
        made_by: The op that made the tensor, such as `Softmax (softmax_1)`; None if the op is not known.
    """

    elements: Elements
    made_by: str | None


@dataclass(frozen=True, kw_only=True)
class PieceOp:
    """One op that the script runs.

    Attributes:
        signature: The signature of the op, which defines how to call it.
        arguments: The operands by argument. A list of tensors is a tuple.
        choices: The possible sets of attributes. If there are several, the script tries them in this order until the
            result fits.
        slot: The index of the output that is bad, or that another op needs.
        dtype: The dtype of that output; None if unknown.
        shape: The recorded shape of that output; None if unknown.
        op_name: The name of the op in its graph; None outside graphs.
        source: The user's line, or None.
    """

    signature: Signature
    arguments: tuple[tuple[str, Operand | tuple[Operand, ...]], ...]
    choices: tuple[Mapping[str, Value], ...]
    slot: int
    dtype: str | None
    shape: tuple[int, ...] | None
    op_name: str | None
    source: Frame | None

    @property
    def op_type(self) -> str:
        """The op's type."""
        return self.signature.op_type

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The operands in the order of the inputs."""
        operands: list[Operand] = []
        for _, operand in self.arguments:
            operands += operand if isinstance(operand, tuple) else [operand]
        return tuple(operands)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """The ops that a script runs, and their inputs.

    Attributes:
        ops: The ops. Each op comes after the ops that it depends on.
        inputs: The recorded tensors that the ops take.
        event: The bad tensor, which is an output of the last op. None if the last op is a forward op whose gradient is
            bad.
    """

    ops: tuple[PieceOp, ...]
    inputs: tuple[PieceInput, ...]
    event: TensorEvent | None


@dataclass(frozen=True, kw_only=True)
class GradientPiece:
    """A forward op whose gradient a script computes.

    Attributes:
        forward: The piece whose last op is the forward op.
        upstream: The gradient of the forward op's output. None if the op that made the bad value does not depend on
            this gradient; the script then uses ones.
    """

    forward: Piece
    upstream: PieceInput | None


@dataclass(frozen=True)
class _Made:
    """How a tensor was made: the op that ran, and the origins of its inputs."""

    key: tuple[object, ...]
    op_type: str
    attributes: Mapping[str, Value]
    is_recorded: bool
    slot: int
    traces: tuple[Trace, ...]
    dtype: str | None
    shape: tuple[int, ...] | None
    op_name: str | None
    stack_trace_id: int | None


def unfused(piece: Piece) -> Piece:
    """Returns the piece, but with separate ops for a chain of unary ops that TensorFlow's optimizer fused."""
    last = piece.ops[-1]
    names = last.choices[0].get("op_names") if last.op_type == "_UnaryOpsComposition" else None
    if not isinstance(names, list):
        return piece
    ops = list(piece.ops[:-1])
    ((_, operand),) = last.arguments
    for name in names:
        signature = signature_of(str(name))
        if signature is None or len(signature.inputs) != 1 or not signature.is_raw:
            return piece
        ((argument, _),) = signature.inputs
        attribute_choices = choices(signature, {}, dtype=last.dtype, is_recorded=True)
        ops.append(
            replace(
                last, signature=signature, arguments=((argument, operand),), choices=tuple(attribute_choices), slot=0
            )
        )
        operand = OutputRef(len(ops) - 1, 0)
    return replace(piece, ops=tuple(ops))


class NotRecordedError(ReproError):
    """The elements of an input were not recorded."""


class PieceFinder:
    """Finds pieces of the program of one run. The caller must hold the lock of `flow`."""

    def __init__(self, logdir: Engine, *, run_id: str) -> None:
        self._logdir = logdir.of_run(run_id)
        self._run_id = run_id
        self.flow = DataFlow.of(self._logdir, run_id=run_id)
        self._elements = ElementReader(self._logdir, run_id=run_id)
        self._stacks = self.flow.stacks

    def piece(self, event: TensorEvent, *, depth: int) -> Piece:
        """Returns the op that made a tensor, and the ops before it.

        Args:
            event: The tensor.
            depth: Number of earlier ops on each path that are part of the piece, if the inputs of these ops are known.

        Raises:
            ReproError: A script cannot run the op, or an input was not recorded.
        """
        event = self.flow.computed(event)
        place = self._place(event)
        maker = self._made(place)
        if maker is None:
            raise ReproError(self._no_op_text(event))
        if maker.op_type == "Const" and self.flow.program_ops.op_types(event):
            names = ", ".join(dict.fromkeys(self.flow.program_ops.op_types(event)))
            raise ReproError(
                f"TensorFlow computed {printable(names)[:120]} on constants in advance, so no op ran that a script can "
                "run. Record with graphs='traced'."
            )
        given = self._elements.inputs_of(event.event_index)
        return _Building(self, given).build(maker, event, depth)

    def gradient(self, event: TensorEvent) -> GradientPiece | None:
        """Returns the forward op whose gradient made a tensor; None if the op is unknown or was not recorded."""
        event = self.flow.computed(event)
        label = self.flow.label_of_maker(event)
        start = self._made(self._place(event))
        if start is None or (label.forward_op_name is None and label.forward_execution_index is None):
            return None
        place = self._forward_place(event, start)
        maker = None if place is None else self._made(place)
        signature = None if maker is None else signature_of(maker.op_type)
        if maker is None or signature is None or not (signature.is_single and signature.is_raw):
            return None
        try:
            piece = _Building(self, {}).build(maker, None, 0)
        except ReproError:
            return None
        return GradientPiece(forward=piece, upstream=self._upstream(event, start, maker))

    def _place(self, event: TensorEvent) -> Place:
        if event.scope == "graph" and event.graph_id is not None and event.op_name is not None:
            place: Place = GraphTensor(
                event.context, event.graph_id, event.op_name, event.output_slot or 0, event.event_index
            )
        elif event.scope == "execution" and event.tensor_id is not None:
            place = EagerValue(event.tensor_id)
        else:
            raise ReproError(self._no_op_text(event))
        return self.flow.trace(place, how="graph", near=event.event_index).place

    def _no_op_text(self, event: TensorEvent) -> str:
        if event.scope == "external" or event.op_type is None:
            return (
                f"the bad tensor (event {event.event_index}) came from outside: no recorded op made it, so there is "
                "nothing to run. Look at the data that the program gave to TensorFlow."
            )
        return f"the recording does not show the op that made the bad tensor (event {event.event_index})."

    def _made(self, place: Place) -> _Made | None:
        """Returns how a tensor was made; None if a call made it, or if no op did."""
        return self._made_eagerly(place) if isinstance(place, EagerValue) else self._made_in_graph(place)

    def _made_eagerly(self, place: EagerValue) -> _Made | None:
        tensor = self.flow.events.eager(place.tensor_id)
        execution = self.flow.events.execution(tensor.execution_index)
        if execution is None or tensor.execution_index is None or execution.graph_id is not None:
            return None
        inputs = self.flow.events.execution_inputs(tensor.execution_index)
        traces = [
            self.flow.trace(EagerValue(inputs[index]), how="eager", near=execution.event_index)
            for index in sorted(inputs)
        ]
        return _Made(
            key=("execution", tensor.execution_index),
            op_type=execution.op_type,
            attributes={},
            is_recorded=False,
            slot=tensor.output_slot or 0,
            traces=tuple(traces),
            dtype=tensor.dtype,
            shape=None if tensor.event is None else tensor.event.shape,
            op_name=None,
            stack_trace_id=execution.stack_trace_id,
        )

    def _made_in_graph(self, place: GraphTensor) -> _Made | None:
        graphs, executed = self.flow.graphs, self.flow.borders.executed
        op = graphs.op(place.graph_id, place.op_name)
        if op is None or graphs.calls(place.graph_id, op.op_name):
            return None
        traced = op if op.made_for is None else graphs.op(place.graph_id, op.made_for) or op
        event = self.flow.events.graph_tensor(place)
        node_type = executed.node_type(place)
        op_type = (event.op_type if event is not None else None) or node_type or traced.op_type
        attributes = self._attributes(place.graph_id, traced.op_name)
        is_same = op_type == traced.op_type and op.made_for is None
        if not is_same:
            attributes = self._merged(place, traced, op_type)
        return _Made(
            key=(place.context, place.graph_id, place.op_name),
            op_type=op_type,
            attributes=attributes or {},
            is_recorded=attributes is not None and is_same and node_type is None,
            slot=place.output_slot,
            traces=tuple(
                self.flow.trace(source, how="graph", near=place.near) for source in executed.inputs(place, op)
            ),
            dtype=event.dtype if event is not None else graphs.graph(place.graph_id).dtypes.get(
                (place.op_name, place.output_slot)
            ),
            shape=None if event is None else event.shape,
            op_name=op.op_name,
            stack_trace_id=traced.stack_trace_id,
        )  # fmt: skip

    def _merged(self, place: GraphTensor, traced: Op, op_type: str) -> dict[str, Value]:
        """Returns the attributes of a node made by the optimizer: the attributes of the ops that the node computes."""
        ops = self.flow.borders.computed_ops(place) or ((place, traced),)
        merged: dict[str, Value] = {}
        for at, op in ops:
            merged = {**(self._attributes(at.graph_id, op.op_name) or {}), **merged}
        merged.pop("N", None)  # N belongs to the replaced ops
        if op_type == "_UnaryOpsComposition":
            merged["op_names"] = [op.op_type for _, op in ops]
        elif op_type.startswith("_Fused") and len(ops) > 1:
            merged["fused_ops"] = [_FUSED_NAMES.get(op.op_type, op.op_type) for _, op in ops[1:]]
            if op_type == "_FusedBatchNormEx":
                merged["activation_mode"] = merged.pop("fused_ops")[-1]
        return merged

    def _attributes(self, graph_id: int, op_name: str) -> dict[str, Value] | None:
        """Returns the recorded attributes of an op; None if they are unknown."""
        rows = self._logdir.rows(
            "SELECT attributes FROM graph_op WHERE run_id = ? AND graph_id = ? AND op_name = ?",
            [self._run_id, graph_id, op_name],
        )
        if not rows or rows[0][0] is None:
            return None
        try:
            attributes = parse_json(rows[0][0])
        except ValueError:
            attributes = None
        if not isinstance(attributes, dict):
            raise ReproError(f"the attributes of the op {printable(op_name)[:80]} in the recording are no JSON object.")
        return attributes

    def _forward_place(self, event: TensorEvent, start: _Made) -> Place | None:
        """Returns the place of the forward op's output, in the forward pass whose gradient made a tensor."""
        label = self.flow.label_of_maker(event)
        if label.forward_execution_index is not None:
            outputs = self.flow.events.execution_outputs(label.forward_execution_index)
            return EagerValue(outputs[0][0]) if 0 in outputs else None
        if label.forward_graph_id is None or label.forward_op_name is None:
            return None
        if event.graph_id == label.forward_graph_id:
            return GraphTensor(event.context, event.graph_id, label.forward_op_name, 0, event.event_index)
        # The gradient is a separate function. The gradient takes tensors of the forward function. These tensors have
        # the context of the forward function.
        for maker in self._before(start):
            for trace in maker.traces:
                for place in trace.path:
                    if isinstance(place, GraphTensor) and place.graph_id == label.forward_graph_id:
                        return place.of_op(label.forward_op_name)
        return None

    def _upstream(self, event: TensorEvent, start: _Made, forward: _Made) -> PieceInput | None:
        """Returns the gradient of the forward op's output, or None.

        This tensor is an input of an op in the forward op's gradient. The tensor comes from the gradient of another op.
        """
        label = self.flow.label_of_maker(event)
        own = (label.forward_graph_id, label.forward_op_name, label.forward_execution_index)
        for maker in self._before(start):
            for trace in maker.traces:
                row = trace.row
                if row is None or row.dtype != forward.dtype or row.shape != forward.shape:
                    continue
                other = self.flow.labels.of(row)
                is_own = (other.forward_graph_id, other.forward_op_name, other.forward_execution_index) == own
                if other.role == "gradient" and not is_own:
                    elements = self.elements_of(trace)
                    return None if elements is None else PieceInput(elements=elements, made_by=self.maker_text(trace))
        return None

    def _before(self, start: _Made) -> Iterator[_Made]:
        """Yields an op of a gradient and the ops before it, from the nearest to the farthest."""
        unvisited, seen = [start], {start.key}
        while unvisited and len(seen) < _MAX_SEARCHED:
            maker = unvisited.pop(0)
            yield maker
            for trace in maker.traces:
                before = self._made(trace.place)
                if before is not None and before.key not in seen:
                    seen.add(before.key)
                    unvisited.append(before)

    def made_behind(self, trace: Trace) -> _Made | None:
        """Returns how a tensor was made; None if this is not known."""
        return None if trace.is_lost else self._made(trace.place)

    def elements_of(self, trace: Trace) -> Elements | None:
        """Returns the recorded elements of a tensor, or None.

        All places on the path of the tensor have the same elements.
        """
        rows = [trace.event, trace.health]
        for place in trace.path:
            if isinstance(place, EagerValue):
                rows.append(self.flow.events.eager(place.tensor_id).event)
            else:
                rows.append(self.flow.events.graph_tensor(place))
        return self._elements.first_of([row.event_index for row in rows if row is not None])

    def maker_text(self, trace: Trace) -> str | None:
        """Returns the op that made a tensor, such as `Softmax (softmax_1)`."""
        maker = self.made_behind(trace)
        if maker is not None:
            return maker.op_type + ("" if maker.op_name is None else f" ({maker.op_name})")
        if isinstance(trace.place, EagerValue):
            return "a tensor from outside" if trace.how == "external" else None
        op = self.flow.graphs.op(trace.place.graph_id, trace.place.op_name)
        return None if op is None else f"{op.op_type} ({op.op_name})"

    def source(self, stack_trace_id: int | None) -> Frame | None:
        """Returns the innermost frame of a stack that is in the user's code."""
        return user_source(self._stacks.stack(stack_trace_id))


@dataclass
class _Building:
    """A piece that is being built. `given` holds the kept inputs of the last op, by index."""

    finder: PieceFinder
    given: Mapping[int, Elements]
    ops: list[PieceOp] = field(default_factory=list)
    inputs: list[PieceInput] = field(default_factory=list)
    _op_of: dict[tuple[object, ...], int] = field(default_factory=dict)
    _input_of: dict[Place, int] = field(default_factory=dict)

    def build(self, maker: _Made, event: TensorEvent | None, depth: int) -> Piece:
        signature = self._signature(maker)
        if self._are_all_given(maker, signature):
            operands = [self._given(index, None) for index in sorted(self.given)]
        else:
            operands = [
                self._operand(trace, depth, 0, index=index, of=maker) for index, trace in enumerate(maker.traces)
            ]
        self._add(maker, signature, operands)
        return Piece(ops=tuple(self.ops), inputs=tuple(self.inputs), event=event)

    def _are_all_given(self, maker: _Made, signature: Signature) -> bool:
        """Returns whether the kept inputs are all inputs of an op, although the recording has other edges to the op."""
        if len(self.given) == len(maker.traces) or sorted(self.given) != list(range(len(self.given))):
            return False
        try:
            split_inputs(signature, len(self.given), maker.attributes)
        except ReproError:
            return False
        return True

    def _signature(self, maker: _Made) -> Signature:
        signature = signature_of(maker.op_type)
        if signature is not None:
            return signature
        name = printable(maker.op_type)[:80]
        if maker.op_type in _FROM_OUTSIDE:
            raise ReproError(
                f"the bad value comes from a {name} op, which takes no inputs, so there is nothing to run. Look at the "
                "value that the program gave to TensorFlow."
            )
        resource = next((trace for trace in maker.traces if trace.dtype == "resource"), None)
        if resource is not None:
            raise ReproError(
                f"the op that ran is {name}, which reads or writes a variable or another resource. A script runs only "
                "ops that compute numbers from numbers. Name another bad tensor with --event; tfdbg-arrow why lists "
                "those that led to this one."
            )
        raise ReproError(
            f"the op that ran is {name}, which a script does not run: it runs only ops of TensorFlow that compute "
            "numbers from numbers, because the recording is untrusted. Name another bad tensor with --event."
        )

    def _operand(self, trace: Trace, depth: int, num_ops: int, *, index: int, of: _Made) -> Operand:
        """Returns an input of an op.

        Args:
            trace: The origin of the input.
            depth: How many more ops before the input to include.
            num_ops: Number of ops between the input and the last op.
            index: The index of the input.
            of: The op that takes the input.
        """
        is_given = num_ops == 0 and index in self.given
        if is_given and depth <= 0:
            return self._given(index, trace)
        elements = None if trace.place in self._input_of else self.finder.elements_of(trace)
        if depth > 0 or (elements is None and trace.place not in self._input_of):
            maker = self.finder.made_behind(trace)
            mark = len(self.ops), len(self.inputs), dict(self._op_of), dict(self._input_of)
            try:
                if maker is not None and num_ops < max(depth, MAX_UNRECORDED):
                    return self._run_before(maker, depth - 1, num_ops + 1)
            except ReproError:
                num_kept_ops, num_kept_inputs, self._op_of, self._input_of = mark
                del self.ops[num_kept_ops:], self.inputs[num_kept_inputs:]
        if is_given:
            return self._given(index, trace)
        if trace.place in self._input_of:
            return InputRef(self._input_of[trace.place])
        if elements is None:
            name = printable(of.op_type)[:80]
            by = self.finder.maker_text(trace)
            by_text = "" if by is None else f", made by {printable(by)[:120]},"
            raise NotRecordedError(f"the elements of input {index} of {name}{by_text} were not recorded; {_HINT}")
        self._input_of[trace.place] = len(self.inputs)
        self.inputs.append(PieceInput(elements=elements, made_by=self.finder.maker_text(trace)))
        return InputRef(len(self.inputs) - 1)

    def _given(self, index: int, trace: Trace | None) -> Operand:
        made_by = None if trace is None else self.finder.maker_text(trace)
        self.inputs.append(PieceInput(elements=self.given[index], made_by=made_by))
        return InputRef(len(self.inputs) - 1)

    def _run_before(self, maker: _Made, depth: int, num_ops: int) -> Operand:
        if maker.key in self._op_of:
            return OutputRef(self._op_of[maker.key], maker.slot)
        signature = self._signature(maker)
        if signature.is_random or not maker.traces:
            raise NotRecordedError(f"{maker.op_type} would give another result.")
        if len(self.ops) >= _MAX_OPS:
            raise ReproError(f"the piece has more than {_MAX_OPS} ops; pass a smaller --depth.")
        operands = [
            self._operand(trace, depth, num_ops, index=index, of=maker) for index, trace in enumerate(maker.traces)
        ]
        self._add(maker, signature, operands)
        self._op_of[maker.key] = len(self.ops) - 1
        return OutputRef(len(self.ops) - 1, maker.slot)

    def _add(self, maker: _Made, signature: Signature, operands: Sequence[Operand]) -> None:
        arguments: list[tuple[str, Operand | tuple[Operand, ...]]] = []
        rest = list(operands)
        for argument, length in split_inputs(signature, len(rest), maker.attributes):
            if length is None:
                arguments.append((argument, rest.pop(0)))
            else:
                arguments.append((argument, tuple(rest[:length])))
                del rest[:length]
        known_values = known_attributes(signature, maker.attributes)
        attribute_choices = choices(signature, known_values, dtype=maker.dtype, is_recorded=maker.is_recorded)
        self.ops.append(
            PieceOp(
                signature=signature,
                arguments=tuple(arguments),
                choices=tuple(attribute_choices),
                slot=maker.slot,
                dtype=maker.dtype,
                shape=maker.shape,
                op_name=maker.op_name,
                source=self.finder.source(maker.stack_trace_id),
            )
        )
