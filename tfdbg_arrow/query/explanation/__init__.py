"""Why an op made an infinity or a NaN, how to fix it, and whether its inputs had grown over the steps before.

* `kinds.py` and `linear.py`: explanations, the facts about an op that they use, and the kinds of rule.
* `surroundings.py`: the facts for which the recording is followed.
* `rules.py`: the rule for each type of op.
* `library.py`: fixes for ops inside functions of libraries.

This module reads the facts for a rule from a recording. It finds tensors that grew from step to step, or in a loop from
iteration to iteration, until an op overflowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from math import prod
from pathlib import Path

from tfdbg_arrow.query.bad_tensor import run_and_row
from tfdbg_arrow.query.displayed import Displayed
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.explanation.computed import Computed, Explanation, infs
from tfdbg_arrow.query.explanation.kinds import BEFORE_TRAINING, OVERFLOW, OVERFLOW_OF_BATCH
from tfdbg_arrow.query.explanation.library import repair_of_call
from tfdbg_arrow.query.explanation.rules import explain
from tfdbg_arrow.query.explanation.surroundings import Surroundings
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.events import NO_LABEL, Label
from tfdbg_arrow.query.flow.origins import Origins
from tfdbg_arrow.query.flow.program_ops import ProgramOp
from tfdbg_arrow.query.logdir.opening import opened
from tfdbg_arrow.query.nonfinite_tensor import NonFinite
from tfdbg_arrow.query.recorded import KINDS, TensorEvent
from tfdbg_arrow.safe_text import number_of
from tfdbg_arrow.schema.op_traits import READER

__all__ = ["Computed", "Explanation", "Growth", "Reasons", "explain", "explain_event", "find_growth", "read_reasons"]


_MIN_RATIO = 1.2
_MIN_RATIOS = 3
_MIN_GROWTH = 100.0
_MAX_SPREAD = 4.0
"""The largest allowed ratio of the greatest to the smallest growth factor for a growth to count as steady."""
_MIN_LAST = 1000.0
"""Minimum last value. A variable that starts at 0 also grows many times over in its first steps, but stays small."""
_STATE = (
    "Keep the state of the loop from growing with each iteration: use a smaller step size or gain (such as smaller "
    "recurrent weights), or bound the state, for example with tf.tanh or tf.clip_by_value."
)
_STATE_IN_TRAINING = "If it grew only after some steps of training, lower the learning rate or clip the gradients."
_MAX_SHARE_OF_OUTLIERS = 0.1
"""The largest share of the samples that counts as few of them."""
_MAX_ANCESTORS = 300
_MAX_TENSORS = 40

_Key = tuple[int, str, int]


@dataclass(frozen=True, kw_only=True)
class Growth(Displayed):
    """A variable or another tensor whose largest magnitude grew in every step up to a bad value.

    Attributes:
        sentence: What grew, how much, and since when.
        repair: The fix.
        graph_name: The graph of its op.
        op_name: The op.
        layer: The layer that made the op; None outside layers and if it is not known.
        output_slot: Which output of the op.
        is_variable: Whether the op reads a variable.
        first_step: The training step, as marked, in which the growth began; None without marks.
        last_step: The training step of the bad value.
        num_calls: The number of consecutive calls of the graph in which it grew.
        first_max_abs: The largest magnitude before these calls.
        last_max_abs: The largest magnitude at the end.
        factor: The geometric mean of the growth per call.
    """

    sentence: str
    repair: str
    graph_name: str | None
    op_name: str
    layer: str | None
    output_slot: int
    is_variable: bool
    first_step: int | None
    last_step: int | None
    num_calls: int
    first_max_abs: float
    last_max_abs: float
    factor: float


@dataclass(frozen=True, kw_only=True)
class Reasons(Displayed):
    """Why a tensor went bad.

    Attributes:
        explanation: What its op did; None if the counts prove nothing, or if the bad elements came from an input.
        growth: What had grown from step to step until then; None if nothing had, or if magnitudes were not recorded.
    """

    explanation: Explanation | None
    growth: Growth | None

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences, each followed by its repair."""
        found = [each for each in (self.explanation, self.growth) if each is not None]
        return tuple(each.sentence + ("" if each.repair is None else f" {each.repair}") for each in found)


def read_reasons(logdir: Engine | str | Path, tensor: NonFinite | int, *, run_id: str | None = None) -> Reasons:
    """Returns why a recorded tensor went bad.

    Args:
        logdir: An open logdir or its path.
        tensor: What `first_nonfinite` returned, or the tensor's row in tensor_health: its event_index. A missing row or
            a tensor that is not bad has no reasons.
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


def explain_event(
    logdir: Engine, flow: DataFlow, event: TensorEvent, *, run_id: str, is_origin: bool
) -> Explanation | None:
    """Returns why the op of a bad tensor made it bad, or None if the counts prove nothing.

    Args:
        logdir: The logdir.
        flow: The run's data flow. The caller must hold its lock.
        event: The tensor. Its bad elements must not come from an input.
        run_id: The run.
        is_origin: Whether it is proven that they came from no input.
    """
    around = Surroundings(logdir, flow, event, run_id)
    unrecorded = None if is_origin else around.unrecorded_function()
    if unrecorded is not None:
        name, reason = unrecorded
        return Explanation(f"It is a result of {name}, which {reason}.")
    taken = around.inputs_of(event)
    inputs = flow.inputs_of(event)
    writes = [each.write for each in inputs if each.write is not None] if is_origin else []
    label = _label(flow, event)
    forward = flow.labels.forward_op(label)
    made = flow.program_ops.maker(event)
    as_run = Computed(
        output=event,
        inputs=taken,
        is_complete=is_origin or len(taken) == len(inputs),
        forward_type=None if forward is None else forward.op_type,
        made_from=around.inputs_of,
        made_by=around.made_by,
        written_by=writes[0].op_type if len(writes) == 1 else None,
        program_ops=flow.program_ops.op_types(event),
        makers=() if made is None else (made.op.op_type, *made.others),
        is_optimizer=label.role == "optimizer",
        is_in_loss=label.role == "loss",
        is_loss=is_origin and event.shape == () and flow.labels.is_of_loss(event),
        behind=around.behind,
        takers=around.takers,
        is_p_log_p=around.is_p_log_p,
        has_moved_constant=around.has_moved_constant,
        is_norm_of_gradient=around.is_norm_of_gradient,
        bad_gradient_of_masked=around.bad_gradient_of_masked,
        is_literal=Origins(flow, kinds=KINDS).is_literal,
        pool_of_nan=around.pool_of_nan,
        masking_product=around.masking_product,
    )
    explanation = None
    if made is not None and made.ran_as is not None:
        in_program = _in_program(flow, made, as_run, is_origin=is_origin)
        explanation = None if in_program is None else explain(in_program)
    explanation = explain(as_run) if explanation is None else explanation
    if explanation is None or explanation.repair is None:
        return explanation
    is_negative = forward is None and bool(event.num_nan) and not infs(event)
    repair = repair_of_call(*around.op_to_change(), is_negative=is_negative)
    if repair is None and explanation.repair in BEFORE_TRAINING:
        return _of_overflow(explanation.sentence, explanation.repair, around)
    return explanation if repair is None else replace(explanation, repair=repair)


def _of_overflow(sentence: str, repair: str, around: Surroundings) -> Explanation:
    """Returns the explanation of an overflow, with the fix for its loop, for its samples, or for its step."""
    is_before_training = around.is_before_training()
    growth = _growth_in_loop(around.magnitudes_before())
    if growth is not None:
        return Explanation(f"{sentence} {growth}", _STATE if is_before_training else f"{_STATE} {_STATE_IN_TRAINING}")
    samples = around.bad_samples()
    share = 0.0 if samples is None or samples.num_bad is None else samples.num_bad / samples.num_samples
    if is_before_training:
        repair = BEFORE_TRAINING[repair]
    elif repair == OVERFLOW and share == 1 and around.is_after_gradient():
        repair = OVERFLOW_OF_BATCH
    if samples is not None and 0 < share <= _MAX_SHARE_OF_OUTLIERS:
        which, their = ("this sample", "its") if samples.num_bad == 1 else ("these samples", "their")
        repair = (
            f"Look at {which} first: a number in {their} data or label may be far larger than in the others. If none "
            f"is: {repair}"
        )
    return Explanation(sentence, repair)


def _growth_in_loop(magnitudes: Sequence[float | None]) -> str | None:
    """Returns how a tensor grew in a loop until it overflowed, or None if it did not grow or the loop is short.

    Args:
        magnitudes: Its largest magnitude in each iteration before, with None for one that was not recorded.
    """
    if len(magnitudes) < _MIN_RATIOS:
        return None
    over = number_of(len(magnitudes), "iteration")
    known = [magnitude for magnitude in magnitudes if magnitude is not None]
    if len(known) < len(magnitudes):
        return f"The loop computes each result from the one before, and stayed finite for {over}."
    first = next((magnitude for magnitude in known if magnitude > 0), None)
    if first is None or known[-1] < max(*known, _MIN_LAST, first * _MIN_GROWTH):
        return None
    return f"The result grew from {first:.3g} to {known[-1]:.3g} over {over} of the loop."


def _in_program(flow: DataFlow, made: ProgramOp, as_run: Computed, *, is_origin: bool) -> Computed | None:
    """Returns the facts about the program's op, where TensorFlow ran another one; None if its output is not known."""
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


def find_growth(logdir: Engine, flow: DataFlow, event: TensorEvent, *, run_id: str) -> Growth | None:
    """Returns a tensor that a bad tensor was computed from in its call and that grew in every call until then.

    Only considers tensors in graphs for which magnitudes were recorded (FULL_NUMERICS). Prefers variables over
    other tensors, and then the tensor that grew most. Returns None if no tensor grew.

    Args:
        logdir: The logdir.
        flow: The run's data flow. The caller must hold its lock.
        event: The bad tensor.
        run_id: The run.
    """
    if event.execution_index is None:
        return None
    keys = _candidates(flow, event)
    histories = _read_histories(logdir, keys, event, run_id=run_id)
    series = {key: run for key, points in histories.items() if (run := _growing(points))}
    if not series:
        return None
    best = max(series, key=lambda key: (keys[key].op_type == READER, series[key][-1].max_abs / series[key][0].max_abs))
    row = keys[best]
    graph_name = None if row.graph_id is None else flow.graphs.names.get(row.graph_id)
    layer = _label(flow, row).layer
    return _growth(best, series[best], graph_name=graph_name, layer=layer, is_variable=row.op_type == READER)


def _label(flow: DataFlow, event: TensorEvent) -> Label:
    """Returns the label of the op of a tensor. A node that TensorFlow's optimizer made has none."""
    if event.graph_id is not None and event.op_name is not None:
        op = flow.graphs.op(event.graph_id, event.op_name)
        if op is not None and op.made_for is not None:
            return NO_LABEL
    return flow.labels.of(event)


@dataclass(frozen=True)
class _Point:
    step: int | None
    max_abs: float


def _candidates(flow: DataFlow, event: TensorEvent) -> dict[_Key, TensorEvent]:
    """Returns the inputs of the op, and the reads of variables before it in the same call."""
    direct = [row for _, _, row in flow.taken_by(event)]
    found = {key: row for row in direct if (key := _key(row)) is not None}
    seen = {event.event_index}
    waiting = list(direct)
    while waiting and len(seen) < _MAX_ANCESTORS:
        row = waiting.pop(0)
        if row.event_index in seen or row.execution_index != event.execution_index:
            continue
        seen.add(row.event_index)
        key = _key(row)
        if row.op_type == READER:
            if key is not None and len(found) < _MAX_TENSORS:
                found[key] = row
        else:
            waiting += [source for _, _, source in flow.taken_by(row)]
    return found


def _key(row: TensorEvent) -> _Key | None:
    is_measured = row.max_abs_finite is not None and not row.has_inf_or_nan
    if not is_measured or row.graph_id is None or row.op_name is None or row.output_slot is None:
        return None
    return row.graph_id, row.op_name, row.output_slot


def _read_histories(
    logdir: Engine, keys: Iterable[_Key], event: TensorEvent, *, run_id: str
) -> dict[_Key, list[_Point]]:
    """Returns, by tensor, its largest magnitude in each call up to that of a bad tensor. Omits empty histories."""
    wanted = list(keys)
    if not wanted:
        return {}
    condition = " OR ".join(["(graph_id = ? AND op_name = ? AND output_slot = ?)"] * len(wanted))
    rows = logdir.rows(
        "SELECT graph_id, op_name, output_slot, execution_index, max(step), max(max_abs_finite) FROM tensor_health "
        f"WHERE run_id = ? AND execution_index <= ? AND max_abs_finite IS NOT NULL AND ({condition}) "
        "GROUP BY graph_id, op_name, output_slot, execution_index "
        "ORDER BY graph_id, op_name, output_slot, execution_index",
        [run_id, event.execution_index, *(value for key in wanted for value in key)],
    )
    found: dict[_Key, list[_Point]] = {}
    for graph_id, op_name, output_slot, _, step, max_abs in rows:
        found.setdefault((graph_id, op_name, output_slot), []).append(_Point(step, max_abs))
    return found


def _ratios(points: Sequence[_Point]) -> list[float]:
    """Returns the growth factors of the last calls, last one first, as long as the magnitude grew."""
    ratios = []
    for later, earlier in pairwise(reversed(points)):
        if earlier.max_abs <= 0 or later.max_abs < earlier.max_abs * _MIN_RATIO:
            break
        ratios.append(later.max_abs / earlier.max_abs)
    return ratios


def _steady(ratios: list[float]) -> list[float]:
    """Returns the last ratios that are about equal, or all ratios if these are too few."""
    steady = list(takewhile(lambda ratio: max(ratio, ratios[0]) <= min(ratio, ratios[0]) * _MAX_SPREAD**0.5, ratios))
    is_enough = len(steady) >= _MIN_RATIOS and prod(steady) >= _MIN_GROWTH
    return steady if is_enough else ratios


def _growing(points: Sequence[_Point]) -> Sequence[_Point]:
    """Returns the last points, starting before the growth; none if it is short, small or interrupted."""
    ratios = _steady(_ratios(points))
    run = points[-1 - len(ratios) :]
    is_large = len(ratios) >= _MIN_RATIOS and prod(ratios) >= _MIN_GROWTH and run[-1].max_abs >= _MIN_LAST
    return run if is_large else ()


def _growth(
    key: _Key, run: Sequence[_Point], *, graph_name: str | None, layer: str | None, is_variable: bool
) -> Growth:
    _, op_name, output_slot = key
    first, last, num_calls = run[0], run[-1], len(run) - 1
    if is_variable:
        what = f"A variable of the layer {layer}" if layer else f"The variable that {op_name} reads"
    else:
        what = f"The result of {op_name}" + (f" in the layer {layer}" if layer else "")
    return Growth(
        sentence=f"{what} grew {_speed(run)}: its largest magnitude rose from {first.max_abs:.3g} "
        f"to {last.max_abs:.3g}.",
        repair="Lower the learning rate, or clip the gradients.",
        graph_name=graph_name,
        op_name=op_name,
        layer=layer,
        output_slot=output_slot,
        is_variable=is_variable,
        first_step=first.step,
        last_step=last.step,
        num_calls=num_calls,
        first_max_abs=first.max_abs,
        last_max_abs=last.max_abs,
        factor=(last.max_abs / first.max_abs) ** (1 / num_calls),
    )


def _speed(run: Sequence[_Point]) -> str:
    """Returns the speed and start of the growth, such as `about 9 times a step since step 3`."""
    first, last, num_calls = run[0], run[-1], len(run) - 1
    has_steps = first.step is not None and last.step is not None and last.step - first.step == num_calls
    since = f"since step {first.step}" if has_steps else f"over {number_of(num_calls, 'call')}"
    ratios = _ratios(run)
    if max(ratios) > min(ratios) * _MAX_SPREAD:
        return since
    factor = (last.max_abs / first.max_abs) ** (1 / num_calls)
    return f"about {factor:.2g} times a {'step' if has_steps else 'call'} {since}"
