"""Why an op made an infinity or a NaN, how to fix it, and whether the op's inputs grew in the steps before.

* `computed.py`: an explanation, and the facts about an op from which rules derive it.
* `kinds.py`, `linear.py`, `outside.py` and `optimizers.py`: the kinds of rule.
* `surroundings.py`, `program_results.py`, `forward_pass.py`: facts for which a tensor must be followed through the
  recording.
* `rules.py`: the rule for each type of op. `logarithms.py` has the rule for the logarithm.
* `library.py`: fixes for ops inside functions of libraries. `keras_ops.py`: fixes for programs that use keras.ops.
* `growth.py`: tensors that grew until an op overflowed.

This module reads the facts for a rule from a recording, and chooses the fix.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from tfdbg_arrow.query.bad_tensor import run_and_row
from tfdbg_arrow.query.displayed import Displayed
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.explanation.computed import Computed, Explanation, bad_text, infs
from tfdbg_arrow.query.explanation.forward_pass import ForwardPass
from tfdbg_arrow.query.explanation.growth import Growth, find_growth, growth_in_loop, label_of_op
from tfdbg_arrow.query.explanation.keras_ops import in_keras_ops
from tfdbg_arrow.query.explanation.kinds import (
    BEFORE_TRAINING,
    OVERFLOW,
    OVERFLOW_AFTER_STEPS,
    OVERFLOW_OF_BATCH,
    OVERFLOW_OF_DATA,
    OVERFLOW_OF_GRADIENT,
    OVERFLOW_OF_SAMPLES,
    of_maybe_large,
)
from tfdbg_arrow.query.explanation.library import library_functions, repair_of_call
from tfdbg_arrow.query.explanation.rules import CLIP, DIFFERENTIATED_ROOT, SCALE_INPUTS, explain
from tfdbg_arrow.query.explanation.surroundings import MAX_OTHER_DATA, Surroundings
from tfdbg_arrow.query.explanation.training import Training
from tfdbg_arrow.query.explanation.uses import Uses
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.extremes import largest_of
from tfdbg_arrow.query.flow.origins import Origins
from tfdbg_arrow.query.flow.program_ops import ProgramOp
from tfdbg_arrow.query.logdir.opening import opened
from tfdbg_arrow.query.nonfinite_tensor import NonFinite
from tfdbg_arrow.query.recorded import KINDS, TensorEvent
from tfdbg_arrow.schema.op_traits import POLES

__all__ = ["Computed", "Explanation", "Growth", "Reasons", "explain", "explain_event", "read_reasons"]


_STATE = (
    "Keep the state of the loop from growing with each iteration: use a smaller step size or gain (such as smaller "
    "recurrent weights), or bound the state, for example with tf.tanh or tf.clip_by_value."
)
_STATE_IN_TRAINING = "If it grew only after some steps of training, lower the learning rate or clip the gradients."
_LARGE_LOSS = 1e6
"""A loss of at least this magnitude before training shows that the data are large. If the numbers in the data are near
1, a mean loss is near 1, and the sum of a loss over a batch is smaller than this constant."""
_REJECTED = (
    "Change nothing if the program rejects such a result, as a search that tries values does: the last result of the "
    "line is finite. Otherwise:"
)
_ITERATIONS_OF_XLA = (
    "An earlier iteration of the loop made it. Of a loop that XLA compiles, only the first iteration with a bad value "
    "and the last iteration are recorded. To record all iterations, use `tfdbg-arrow run --xla observe` or "
    "enable(xla='observe')."
)
_LOOK_TOO = "Look at {}, too: a number in {} data may be far larger than in the others."
_LOOK_AT_LABEL = "Look at {}, too: a number in {} data or label may be far larger than in the others."
_IS_DATA = (
    "The {0} is data that no op changed: if such numbers are not meant to be there, replace them in {1}, or leave {1} "
    "out."
)
_EXTREME_EXPONENT = 0.75
"""If the first loss is at least the largest number of the dtype to this power, some numbers are near that number."""
_MAX_SHARE_OF_OUTLIERS = 0.1
"""The largest share of bad samples for which the fix says to look at these samples first."""


@dataclass(frozen=True, kw_only=True)
class Reasons(Displayed):
    """Why a tensor went bad.

    Attributes:
        explanation: The reason why the op made the bad value; None if the counts prove nothing, or if the bad elements
            came from an input.
        growth: The tensor that grew from step to step until the bad value; None if no tensor grew, or if magnitudes
            were not recorded.
    """

    explanation: Explanation | None
    growth: Growth | None

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences of the reasons, each followed by its fix."""
        reasons = [reason for reason in (self.explanation, self.growth) if reason is not None]
        return tuple(reason.sentence + ("" if reason.repair is None else f" {reason.repair}") for reason in reasons)


def read_reasons(logdir: Engine | str | Path, tensor: NonFinite | int, *, run_id: str | None = None) -> Reasons:
    """Returns why a recorded tensor went bad.

    Args:
        logdir: An open logdir or its path.
        tensor: The result of `first_nonfinite`, or the event_index of the tensor's row in tensor_health. A missing row
            or a tensor that is not bad has no reasons.
        run_id: The run of the row. None means the newest run.

    Raises:
        LogdirError: The path is not a logdir that can be read.
        QueryError: The run is unknown.
        BrokenPartError: A part cannot be read.
    """
    with opened(logdir) as open_:
        run, event_index = run_and_row(open_, tensor, run_id)
        scope = open_.of_run(run)
        flow = DataFlow.of(scope, run_id=run)
        with flow.lock:
            event = flow.events.event(event_index)
            if event is None or not event.has_inf_or_nan:
                return Reasons(explanation=None, growth=None)
            verdict = Origins(flow, kinds=KINDS).verdict(event)
            explanation = None
            if not verdict.causes:
                explanation = explain_event(scope, flow, event, run_id=run, is_origin=verdict.is_origin)
            return Reasons(explanation=explanation, growth=find_growth(scope, flow, event, run_id=run))


class _Facts(Surroundings, Uses, ForwardPass, Training):
    """All facts about a bad tensor that are read on demand."""


def explain_event(
    logdir: Engine, flow: DataFlow, event: TensorEvent, *, run_id: str, is_origin: bool
) -> Explanation | None:
    """Returns why an op made a tensor bad, or None if the counts prove nothing.

    Args:
        logdir: The logdir.
        flow: The run's data flow. The caller must hold the lock of the data flow.
        event: The tensor. The tensor's bad elements must not come from an input.
        run_id: The run.
        is_origin: Whether it is proven that the bad elements came from no input.
    """
    event = flow.as_written(event)
    facts = _Facts(logdir, flow, event, run_id)
    unrecorded = None if is_origin else facts.unrecorded_function()
    if unrecorded is not None:
        name, reason = unrecorded
        return Explanation(f"It is a result of {name}, which {reason}.")
    if not is_origin and facts.is_of_unrecorded_iteration():
        return Explanation(_ITERATIONS_OF_XLA)
    taken = facts.inputs_of(event)
    inputs = flow.inputs_of(event)
    label = label_of_op(flow, event)
    forward = flow.labels.forward_op(label)
    made = flow.program_ops.maker(event)
    as_run = Computed(
        output=event,
        inputs=flow.program_ops.inputs(made, event) if made is not None and event.op_type == "Const" else taken,
        is_complete=is_origin or len(taken) == len(inputs),
        forward_type=None if forward is None else forward.op_type,
        made_from=facts.inputs_of,
        program_ops=flow.program_ops.op_types(event),
        makers=() if made is None else (made.op.op_type, *made.others),
        later=() if made is None else made.later,
        is_optimizer=label.role == "optimizer",
        is_in_loss=label.role == "loss",
        is_loss=is_origin and event.shape == () and flow.labels.is_of_loss(event),
        is_literal=Origins(flow, kinds=KINDS).is_literal,
        library_functions=lambda: library_functions(facts.op_to_change()[0]),
        made_by=facts.made_by,
        behind=facts.behind,
        takers=facts.takers,
        is_p_log_p=facts.is_p_log_p,
        has_log_of_complement=facts.has_log_of_complement,
        divides_by_argument=facts.divides_by_argument,
        has_moved_constant=facts.has_moved_constant,
        adds_rounded_to_0=facts.adds_rounded_to_0,
        last_write=facts.last_write,
        constant=facts.constant,
        integers_behind=facts.integers_behind,
        is_norm_of_gradient=facts.is_norm_of_gradient,
        bad_gradient_of_masked=facts.bad_gradient_of_masked,
        line_of_select=facts.line_of_select,
        pool_of_nan=facts.pool_of_nan,
        masking_product=facts.masking_product,
        softmax_of_mask=facts.softmax_of_mask,
        added_number=facts.added_number,
        stored_in=facts.stored_in,
        outside_name=facts.outside_name,
        has_gradients=facts.has_gradients,
        is_differentiated=facts.is_differentiated,
        is_before_training=facts.is_before_training,
        shows_root=facts.shows_root,
        divides_by_result=facts.divides_by_result,
        is_summed_for_division=facts.is_summed_for_division,
        place_of=facts.place_of,
    )
    explanation = None
    if made is not None and made.ran_as is not None:
        in_program = _in_program(flow, made, as_run, is_origin=is_origin)
        explanation = None if in_program is None else explain(in_program)
    explanation = explain(as_run) if explanation is None else explanation
    if explanation is None or explanation.repair is None:
        return explanation
    is_negative = forward is None and bool(event.num_nan) and not infs(event)
    repair = repair_of_call(*facts.op_to_change(), is_negative=is_negative)
    if repair is not None and explanation.repair != DIFFERENTIATED_ROOT:
        explanation = replace(explanation, repair=repair)
    elif explanation.repair in BEFORE_TRAINING:
        explanation = _of_overflow(explanation.sentence, explanation.repair, facts)
    else:
        explanation = replace(explanation, repair=_with_data(explanation, facts, is_forward=forward is None))
        if explanation.sentence.startswith("Overflow in Exp"):
            growth = growth_in_loop(facts.magnitudes_before())
            explanation = replace(explanation, sentence=" ".join(filter(None, (explanation.sentence, growth))))
    if event.scope == "external" and (others := facts.other_bad_data()):
        listed = ", ".join(f"{name}, with {bad_text(row)}" for name, row in others[:MAX_OTHER_DATA])
        listed += ", and others" if len(others) > MAX_OTHER_DATA else ""
        explanation = replace(explanation, sentence=f"{explanation.sentence} Also bad: {listed}.")
    if (ops := facts.keras_ops()) is not None:
        explanation = Explanation(in_keras_ops(explanation.sentence, ops), in_keras_ops(explanation.repair or "", ops))
    if facts.is_differentiated(event) or not facts.may_be_rejected():
        return explanation
    return replace(explanation, repair=f"{_REJECTED} {explanation.repair}")


def _of_overflow(sentence: str, repair: str, facts: _Facts) -> Explanation:
    """Returns the explanation of an overflow, with the fix for the loop, the samples or the step."""
    is_before_training = facts.is_before_training()
    growth = growth_in_loop(facts.magnitudes_before())
    if growth is not None:
        return Explanation(f"{sentence} {growth}", _STATE if is_before_training else f"{_STATE} {_STATE_IN_TRAINING}")
    samples = facts.bad_samples()
    are_all_bad = samples is not None and samples.num_bad == samples.num_samples
    first_loss = facts.first_loss()
    is_large = first_loss is not None and _LARGE_LOSS <= abs(first_loss) < inf
    if is_large and repair != OVERFLOW_OF_GRADIENT:
        sentence = f"{sentence} The first recorded loss of the training is already {first_loss:.6g}."
        repair = OVERFLOW_OF_DATA
    elif is_before_training:
        repair = BEFORE_TRAINING[repair]
    elif repair == OVERFLOW and facts.is_after_gradient():
        is_of_half = samples is not None and samples.num_bad is not None and 2 * samples.num_bad <= samples.num_samples
        otherwise = OVERFLOW_OF_SAMPLES if is_of_half else OVERFLOW_AFTER_STEPS
        repair = OVERFLOW_OF_BATCH if are_all_bad else otherwise
    if (outliers := _outliers(facts)) is not None:
        repair = f"{repair} {_LOOK_AT_LABEL.format(*outliers)}"
    explanation = Explanation(sentence, repair)
    # Growing weights are no cause of an overflow in few samples or before the first update.
    made = facts.maybe_extreme_behind() if outliers is not None or is_before_training else None
    if first_loss is not None and largest_of(facts.event) ** _EXTREME_EXPONENT <= abs(first_loss) < inf:
        made = facts.maybe_extreme_of_nothing()
    if made is None and is_before_training:
        made = facts.numbers_from_bytes()
    return explanation if made is None else of_maybe_large(explanation, made, facts.place_of(made))


def _with_data(explanation: Explanation, facts: _Facts, *, is_forward: bool) -> str:
    """Returns the fix of an explanation. If few samples are bad, the fix says to look at these samples."""
    repair = explanation.repair or ""
    if explanation.sentence.startswith("Overflow in Exp") and repair.startswith((CLIP, SCALE_INPUTS)):
        if (outliers := _outliers(facts)) is not None:
            repair = repair.removeprefix(SCALE_INPUTS).lstrip()
            return f"{repair[0].upper()}{repair[1:]} {_LOOK_TOO.format(*outliers)}"
        return repair
    index = POLES.get(facts.event.op_type or "", 0)
    made = facts.flow.program_ops.maker(facts.event)
    runs_alone = made is None or made.ran_as is None
    if is_forward and runs_alone and facts.takes_data(index) and (outliers := _outliers(facts)) is not None:
        return f"{repair} {_IS_DATA.format('divisor' if index else 'argument', outliers[0])}"
    return repair


def _outliers(facts: _Facts) -> tuple[str, str] | None:
    """Returns words for the bad samples, such as (`this sample`, `its`); None if the samples are many or unknown."""
    samples = facts.bad_samples()
    if samples is None or not samples.num_bad or samples.num_bad / samples.num_samples > _MAX_SHARE_OF_OUTLIERS:
        return None
    return (f"this {samples.unit}", "its") if samples.num_bad == 1 else (f"these {samples.unit}s", "their")


def _in_program(flow: DataFlow, made: ProgramOp, as_run: Computed, *, is_origin: bool) -> Computed | None:
    """Returns the facts about the program's op if TensorFlow ran another op; None if the op's output is not known."""
    output = flow.program_ops.output(made, as_run.output)
    if output is None:
        return None
    inputs = flow.program_ops.inputs(made, as_run.output)
    label = flow.label_of_maker(as_run.output)
    forward = flow.labels.forward_op(label)
    return replace(
        as_run,
        output=output,
        inputs=inputs,
        is_complete=is_origin or len(inputs) == len(made.op.inputs),
        forward_type=None if forward is None else forward.op_type,
        is_optimizer=label.role == "optimizer",
        is_in_loss=label.role == "loss",
        program_ops=(),
        makers=(),
    )
