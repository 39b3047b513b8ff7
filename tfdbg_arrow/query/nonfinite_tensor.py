"""NonFinite: the description of a bad tensor."""

from __future__ import annotations

from dataclasses import dataclass, field

from tfdbg_arrow.query.bad_samples import BadSamples
from tfdbg_arrow.query.recorded import FLAT, TensorHealth
from tfdbg_arrow.query.stacks import Frame
from tfdbg_arrow.query.user_places import CallSite, Forward, UserPlace


@dataclass(frozen=True)
class Producer:
    """Where an input came from.

    Attributes:
        op_type: Type of the op that computed the tensor, or the name of an unrecorded function; None for a tensor from
            outside.
        op_name: Name of this op in its graph; None outside graphs.
        graph_name: Name of this graph; None outside graphs.
        output_slot: Index of the op's output; None for a variable's writer and if unknown.
        event_index: The tensor's row in tensor_health; None if it was not recorded.
        execution_index: The execution that made the tensor, or in whose call it was made; None if unknown.
        how: The first border between the producer and the op that takes the tensor: `graph` (no border, in one graph),
            `argument` or `capture` (of a function), `loop` (a loop variable), `call` (a function's result), `variable`
            (read from a variable; the producer is the op that last wrote the variable), `eager` (no border, between
            eager ops), `external` (from outside).
    """

    op_type: str | None
    op_name: str | None
    graph_name: str | None
    output_slot: int | None
    event_index: int | None
    execution_index: int | None
    how: str


@dataclass(frozen=True)
class InputTensor:
    """One input of the op that made a bad tensor.

    Attributes:
        index: Index of the input, from 0.
        health: Health of the input, or for a variable the health of the last assigned value; None if it was not
            recorded. If TensorFlow did not compute the tensor, the counts follow from another tensor, and `event_index`
            is the row of that other tensor.
        producer: Where the input came from; None if this was not recorded.
    """

    index: int
    health: TensorHealth | None
    producer: Producer | None


@dataclass(frozen=True)
class FunctionCall:
    """A call of a function from eager code.

    Attributes:
        function: The name of the function; `the gradient of f` if TensorFlow computed the gradient of `f` in a function
            of its own.
        number: Number of the call among the calls of this function in the run, from 1, in the order in which they
            began.
        execution_index: Index of the call among all executions of the run.
    """

    function: str
    number: int
    execution_index: int


@dataclass(frozen=True, kw_only=True)
class TensorContext(UserPlace):
    """Where and for what purpose a tensor, bad or not, was computed. The attributes are those of NonFinite."""

    inputs: tuple[InputTensor, ...]
    role: str | None
    ran_as: str | None
    samples: BadSamples | None


@dataclass(frozen=True, kw_only=True, repr=False)
class NonFinite(TensorHealth):
    """A tensor that holds an infinity or a NaN. None means not measured in this mode, or not applicable.

    It also has the attributes of TensorHealth. If TensorFlow ran another op in place of the program's op, these
    attributes describe the output of the program's op if the recording implies them. Otherwise, they describe the row.

    Attributes:
        run_id: The run.
        wall_time_ns: When the tensor was recorded, in nanoseconds since 1970-01-01T00:00:00Z.
        op_type: Type of the program's op that made the tensor; None for a tensor from outside. If the tensor was read
            from a variable, and an op of an optimizer wrote the bad values to the variable, this is the optimizer's op,
            but the row is the row of the read.
        op_name: Name of this op in its graph; None outside graphs.
        graph_name: Name of this graph; None outside graphs.
        iteration: Iteration of the loop, from 0; None outside loops.
        output_slot: Index of the op's output, from 0; None for a tensor from outside, and for an op that wrote to a
            variable.
        device_name: The device on which the tensor was computed.
        is_origin: True if it is proven that this op created a value of a requested kind: the tensor holds this kind,
            and no input of the op does. False if an input holds the kind, or if an input that could hold it was not
            recorded.
        inputs: The inputs of the op, in order.
        stack: The Python stack that created the op (in a graph), executed it (eagerly) or first used the tensor
            (from outside), innermost frame first.
        source: The line to look at: the user's innermost frame of the op, or for a gradient, of the forward op. If
            neither has a frame of the user, it is the user's frame of the innermost call that has such a frame. None if
            there is no such frame.
        forward: For a gradient, the op whose gradient it is; None for other ops, and if the forward op was not
            recorded.
        called_from: The calls that led to this execution of the op, innermost first, ending with the call from eager
            code; empty for an eager op.
        step: The marked training step. For a tensor that a function of a data set made, the step that got the record,
            because a data set reads ahead; None if this step is not known.
        step_in_call: For Keras with `steps_per_execution` above 1, the number of the batch in its call, from 0: `step`
            marks the whole call, with the number of its first batch. None otherwise.
        call: Without a step, the call from eager code in which the op ran; for a record that a function of a data set
            made, the call that first took the batch with this record. None if the op did not run in a function, or
            if the run does not have all executions.
        layer: The Keras layer or module that the op belongs to, as the user named it. For a gradient, the layer of its
            forward op. None outside layers.
        made_at: The line where the user made the Keras layer, loss, metric or optimizer that the op belongs to. For a
            gradient, the line for its forward op. None if the op belongs to none of these, if the part was made before
            the recording began, or if `source` is the same line.
        role: The purpose of the op: `forward`, `gradient`, `optimizer`, `loss`, `metric` or `input`.
        ran_as: The op that TensorFlow ran in place of the program's op, such as `LogSoftmax in place of Softmax and
            Log`; None if TensorFlow ran the program's op unchanged.
        equal_lines: The user's lines of other ops of the program that equal this op: TensorFlow's optimizer computed
            them all as one op. Each of these lines may be the one to change.
        also_bad: The user's lines of other origins that are equally responsible: in the same call, they made bad values
            from healthy inputs and did the same harm. Each line may need its own fix. `code` is the part of the line
            that made the value, if that part is known. Only `first_nonfinite` finds them.
        effect: Where the bad value of an origin ends up: `variable` (an op wrote it to a variable), `result` (it was
            returned to the program, and no later op uses it; or an integer or a boolean was computed from a NaN and
            used; or the program got an error instead), `metric` (only metrics took it), `absorbed` (everything computed
            from it is finite). Bad values that the gradient of its op made are included. None if the effect is unknown
            or the tensor is not an origin.
        is_expected: True if it is proven that the value did no harm: it was absorbed, or a check found it and an
            update was skipped, as an optimizer with dynamic loss scaling does for a step whose gradients overflow.
        expected_reason: Why the value is expected; None if it is not.
        samples: The samples that hold the bad elements, if the recording shows that the first axis is the axis of the
            batch or of the whole data; otherwise None.
        outside_name: What a tensor from outside is in the program, such as `the argument x of train_step`, `a value for
            a variable of the optimizer` or `a tensor made outside the function` (the function captures it). None for
            other tensors, and if this is not known. For a tensor made outside the function, `source` is the line of the
            first op that takes it.
        worker: The cluster task of the run, such as `worker:1`; None outside a cluster.
        left_out: What the run did not record, either on request or because of a loss. This may include an earlier bad
            tensor.
        headline: The answer in one sentence: the user's line, the bad values, the step and the sample. Unknown facts
            are left out. An example is
            "`log(1 - p)` at layers.py:12 made -Inf in step 211: sample 17 of the batch."
    """

    run_id: str
    wall_time_ns: int
    op_type: str | None
    op_name: str | None
    graph_name: str | None
    iteration: int | None
    output_slot: int | None
    device_name: str | None
    is_origin: bool
    inputs: tuple[InputTensor, ...]
    stack: tuple[Frame, ...]
    source: Frame | None
    forward: Forward | None = field(default=None, metadata={FLAT: True})
    called_from: tuple[CallSite, ...] = ()
    step: int | None = None
    step_in_call: int | None = None
    call: FunctionCall | None = None
    layer: str | None = None
    made_at: Frame | None = None
    role: str | None = None
    ran_as: str | None = None
    equal_lines: tuple[Frame, ...] = ()
    also_bad: tuple[Frame, ...] = ()
    effect: str | None = None
    is_expected: bool = False
    expected_reason: str | None = None
    samples: BadSamples | None = None
    outside_name: str | None = None
    worker: str | None = None
    left_out: tuple[str, ...] = ()
    headline: str = ""
