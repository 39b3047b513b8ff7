"""Growth: tensors that grew from step to step, or in a loop from iteration to iteration, until an op overflowed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile, pairwise, takewhile
from math import prod

from tfdbg_arrow.query.displayed import Displayed
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.labels import NO_LABEL, Label
from tfdbg_arrow.query.flow.search import rows_behind
from tfdbg_arrow.query.recorded import TensorEvent
from tfdbg_arrow.safe_text import number_of
from tfdbg_arrow.schema.op_traits import READER

_MIN_RATIO = 1.2
"""The smallest growth from one call to the next that counts as growth."""
_MIN_RATIOS = 3
"""The minimum number of consecutive calls or iterations for which a growth must last."""
_MIN_ITERATIONS = 2
"""The minimum number of finite iterations before an overflow. With only one finite iteration, the data may be too
large."""
_MIN_GROWTH = 100.0
"""The minimum total growth over the calls in which the tensor grew."""
_MAX_SPREAD = 4.0
"""A growth counts as steady if its greatest growth factor is at most this many times its smallest growth factor."""
_MIN_LAST = 1000.0
"""The minimum last value. A variable that starts at 0 also grows many times over at first, but its values stay
small."""
_MAX_ANCESTORS = 300
"""Maximum number of tensors in the search for reads of variables. Bounds the time of one answer."""
_MAX_TENSORS = 40
"""Number of inputs and variables at which no more variables are added. Bounds the length of the query."""

_Key = tuple[int, str, int]


@dataclass(frozen=True, kw_only=True)
class Growth(Displayed):
    """A variable or another tensor whose largest magnitude grew in every step up to a bad value.

    Attributes:
        sentence: The tensor that grew, how much it grew, and since when.
        repair: The fix.
        graph_name: The graph of the tensor's op.
        op_name: The op.
        layer: The layer that made the op; None outside layers, or if the layer is not known.
        output_slot: The index of the output of the op.
        is_variable: Whether the op reads a variable.
        first_step: The training step in which the growth began; None if the program marked no steps.
        last_step: The training step of the bad value.
        num_calls: The number of consecutive calls of the graph in which the tensor grew.
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


def find_growth(logdir: Engine, flow: DataFlow, event: TensorEvent, *, run_id: str) -> Growth | None:
    """Of the inputs and variables behind a bad tensor, returns one that grew in every call until the bad tensor.

    Only considers tensors in graphs for which magnitudes were recorded (FULL_NUMERICS). Prefers variables over
    other tensors, and then the tensor that grew most. Returns None if no tensor grew.

    Args:
        logdir: The logdir.
        flow: The run's data flow. The caller must hold the lock of the data flow.
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
    layer = label_of_op(flow, row).layer
    return _growth(best, series[best], graph_name=graph_name, layer=layer, is_variable=row.op_type == READER)


def label_of_op(flow: DataFlow, event: TensorEvent) -> Label:
    """Returns the label of the op of a tensor; NO_LABEL for a node that TensorFlow's optimizer made."""
    if event.graph_id is not None and event.op_name is not None:
        op = flow.graphs.op(event.graph_id, event.op_name)
        if op is not None and op.made_for is not None:
            return NO_LABEL
    return flow.labels.of(event)


def growth_in_loop(magnitudes: Sequence[float | None]) -> str | None:
    """Returns how a tensor grew in a loop until an overflow, or None if the tensor did not grow or the loop is short.

    Args:
        magnitudes: The tensor's largest magnitude in each earlier iteration; None for an iteration that was not
            recorded.
    """
    if len(magnitudes) < _MIN_ITERATIONS:
        return None
    recorded = [magnitude for magnitude in magnitudes if magnitude is not None]
    if len(recorded) < len(magnitudes):
        num_finite = number_of(len(magnitudes), "iteration")
        return f"The loop computes each result from the one before, and stayed finite for {num_finite}."
    grown = list(dropwhile(lambda magnitude: magnitude == 0, recorded))
    if not grown or grown[-1] < max(*grown, _MIN_LAST, grown[0] * _MIN_GROWTH):
        return None
    over = number_of(len(grown), "iteration")
    return f"The result grew from {grown[0]:.3g} to {grown[-1]:.3g} over {over} of the loop."


@dataclass(frozen=True)
class _Point:
    step: int | None
    max_abs: float


def _candidates(flow: DataFlow, event: TensorEvent) -> dict[_Key, TensorEvent]:
    """Returns the inputs of the op, and the reads of variables before the op in the same call."""
    direct = [row for _, _, row in flow.taken_by(event)]
    candidates = {key: row for row in direct if (key := _key(row)) is not None}

    def in_call(rows: Iterable[TensorEvent]) -> Iterator[TensorEvent]:
        return (row for row in rows if row.execution_index == event.execution_index)

    def sources(row: TensorEvent) -> Iterator[TensorEvent]:
        return in_call(source for _, _, source in (() if row.op_type == READER else flow.taken_by(row)))

    for row in rows_behind(in_call(direct), sources, limit=_MAX_ANCESTORS):
        key = _key(row) if row.op_type == READER else None
        if key is not None and len(candidates) < _MAX_TENSORS:
            candidates[key] = row
    return candidates


def _key(row: TensorEvent) -> _Key | None:
    is_measured = row.max_abs_finite is not None and not row.has_inf_or_nan
    if not is_measured or row.graph_id is None or row.op_name is None or row.output_slot is None:
        return None
    return row.graph_id, row.op_name, row.output_slot


def _read_histories(
    logdir: Engine, keys: Iterable[_Key], event: TensorEvent, *, run_id: str
) -> dict[_Key, list[_Point]]:
    """Returns, by tensor, the largest magnitude in each call up to the bad tensor's call. Omits empty histories."""
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
    histories: dict[_Key, list[_Point]] = {}
    for graph_id, op_name, output_slot, _, step, max_abs in rows:
        histories.setdefault((graph_id, op_name, output_slot), []).append(_Point(step, max_abs))
    return histories


def _ratios(points: Sequence[_Point]) -> list[float]:
    """Returns the growth factors of the last calls in which the magnitude grew, the last call first."""
    ratios = []
    for later, earlier in pairwise(reversed(points)):
        if earlier.max_abs <= 0 or later.max_abs < earlier.max_abs * _MIN_RATIO:
            break
        ratios.append(later.max_abs / earlier.max_abs)
    return ratios


def _steady(ratios: list[float]) -> list[float]:
    """Returns the ratios of the last calls that are about equal; all ratios if the equal ratios are few or small."""
    steady = list(takewhile(lambda ratio: max(ratio, ratios[0]) <= min(ratio, ratios[0]) * _MAX_SPREAD**0.5, ratios))
    is_enough = len(steady) >= _MIN_RATIOS and prod(steady) >= _MIN_GROWTH
    return steady if is_enough else ratios


def _growing(points: Sequence[_Point]) -> Sequence[_Point]:
    """Returns the last points, from the point before the growth; no points if the growth is too short or too small."""
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
