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
        op_name: Name of the op in its graph; None outside graphs.
        graph_name: Name of the graph; None outside graphs.
        output_slot: Index of the op's output. None if the index is unknown, or if the op wrote to a variable.
        event_index: The event_index of the tensor; None if the tensor was not recorded.
        execution_index: The execution that made the tensor, or the call during which the tensor was made; None if
            unknown.
        how: The first border between the producer and the op that takes the tensor. `graph` and `eager` mean that there
            is no border. With `graph`, both ops are in one graph; with `eager`, both ops are eager. `argument` or
            `capture` means that the tensor is an argument or a capture of a function. `loop` means that the tensor is a
            loop variable. `call` means that the tensor is the result of a function. `variable` means that the tensor
            was read from a variable, and that the producer is the op that last wrote the variable. `external` means
            that the tensor came from outside.
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
        health: Health of the input; None if the input was not recorded. For a variable, the health of the value that
            was last assigned to the variable. If TensorFlow did not compute the tensor, the counts are derived from
            another tensor, and `event_index` is the one of that tensor.
        producer: Where the input came from; None if the recording does not show it.
    """

    index: int
    health: TensorHealth | None
    producer: Producer | None


@dataclass(frozen=True)
class FunctionCall:
    """A call of a function from eager code.

    Attributes:
        function: The name of the function; `the gradient of f` for a function that TensorFlow made to compute the
            gradient of `f`.
        number: Number of the call, from 1. Only calls of this function in the run are counted, in the order of their
            start.
        execution_index: Index of the call among all executions of the run.
    """

    function: str
    number: int
    execution_index: int


@dataclass(frozen=True, kw_only=True)
class TensorContext(UserPlace):
    """Where a good or bad tensor was computed, and for what purpose. NonFinite describes the attributes."""

    inputs: tuple[InputTensor, ...]
    role: str | None
    ran_as: str | None
    samples: BadSamples | None


@dataclass(frozen=True, kw_only=True, repr=False)
class NonFinite(TensorHealth):
    """A tensor that has an infinity or a NaN. An attribute is None if it was not measured or does not apply.

    The class also has the attributes of TensorHealth. These attributes normally describe the recorded row. If
    TensorFlow replaced the program's op by another op, and the output of the program's op follows from the recording,
    the attributes describe that output.

    Attributes:
        run_id: The run.
        wall_time_ns: When the tensor was recorded, in nanoseconds since 1970-01-01T00:00:00Z.
        op_type: Type of the program's op that made the tensor; None for a tensor from outside. If the tensor was read
            from a variable, and an optimizer's op wrote the bad values to the variable, `op_type` is the type of the
            optimizer's op, but the row is the row of the read.
        op_name: Name of the op in its graph; None outside graphs.
        graph_name: Name of the graph; None outside graphs.
        iteration: Iteration of the loop, from 0; None outside loops.
        output_slot: Index of the op's output, from 0; None for a tensor from outside, and for an op that wrote to a
            variable.
        device_name: The device on which the tensor was computed.
        is_origin: True if it is proven that this op created a bad value of a requested kind: the tensor has a value of
            this kind, and no input of the op has one. False if an input has a value of this kind, or if an input that
            could have one was not recorded, or was not found because the search stopped at a limit.
        inputs: The inputs of the op, in order.
        stack: The Python stack, innermost frame first. For an op in a graph, it is the stack that created the op; for
            an eager op, the stack that executed the op; for a tensor from outside, the stack that first used the
            tensor.
        source: The line to look at: the user's innermost frame in the stack of the op or, for a gradient, in the stack
            of the forward op. If these stacks have no frame of the user, it is the user's frame of the innermost call
            that has such a frame. None if there is no such frame.
        forward: For a gradient, the op whose gradient was computed. None for other ops, and if the forward op was not
            recorded.
        called_from: The calls that led to this execution of the op, innermost call first. The last one is the call from
            eager code. Empty for an eager op.
        step: The marked training step. A data set reads ahead, so for a tensor that a function of a data set made, this
            is the step that used the record, or None if that step is not known.
        step_in_call: The number of the batch in a call of Keras that runs several steps (`steps_per_execution`), from
            0. `step` is then the step of the first batch of the call. None for other calls.
        call: If `step` is None, the call from eager code in which the op ran. For a record that a function of a data
            set made, the call that first took the batch with this record. None if the op did not run in a function, or
            if the run does not have all executions.
        layer: The Keras layer or module that the op belongs to, as the user named it. For a gradient, the layer of its
            forward op. None outside layers.
        made_at: The line where the user made the Keras layer, loss, metric or optimizer that the op belongs to. For a
            gradient, the line for its forward op. None if the op belongs to no such object, if the object was made
            before the recording began, or if `source` is the same line.
        role: The purpose of the op: `forward`, `gradient`, `optimizer`, `loss`, `metric` or `input`.
        ran_as: The op that TensorFlow ran in place of the program's op, such as `LogSoftmax in place of Softmax and
            Log`; None if TensorFlow ran the program's op unchanged.
        equal_lines: The user's lines of other ops of the program that equal this op. TensorFlow's optimizer computed
            these ops and this op as one op. The line to change may be any of these lines.
        also_bad: The user's lines of other origins that are equally responsible: in the same call, they made bad values
            from healthy inputs and did the same harm. Each line may need its own fix. `code` is the part of the line
            that made the value, if that part is known. Only `first_nonfinite` finds these lines.
        effect: Where the bad value of an origin, or a bad value in the gradient of the op, ends up. None if this is
            unknown, or if the tensor is not an origin. `variable` means that an op wrote the value to a variable.
            `result` means that the program got the value, and no later op uses it. `result` can also mean that the
            program used an integer or a boolean that was computed from a NaN, or that the program got an error instead
            of a result. `metric` means that only metrics took the value. `absorbed` means that all tensors computed
            from the value are finite.
        is_expected: True if it is proven that the value did no harm: the value was absorbed, or a check found the value
            and skipped an update. For example, an optimizer with dynamic loss scaling skips the update of a step whose
            gradients overflow.
        expected_reason: Why the value is expected; None if it is not expected.
        ended_in_error: True if `effect` is `result`, and the call that made the value raised an error, so that the
            program got the error instead of a result.
        samples: The samples that have the bad elements; None if the recording does not show that the first axis is the
            axis of the batch or of the whole data.
        outside_name: What a tensor from outside is in the program, such as "the argument `x` of `train_step`", `a value
            for a variable of the optimizer` or `a tensor made outside the function`. None for other tensors, and if the
            name is not known. A function captures a tensor made outside the function; `source` is then the line of the
            first op that takes this tensor.
        worker: The cluster task of the run, such as `worker:1`; None outside a cluster.
        left_out: The events that the run left out on request, or lost. An earlier bad tensor may be among these events.
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
    ended_in_error: bool = False
    samples: BadSamples | None = None
    outside_name: str | None = None
    worker: str | None = None
    left_out: tuple[str, ...] = ()
    headline: str = ""
