"""first_nonfinite and nonfinite: find the op that made a bad value, its inputs and its source line."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.asked_runs import AskedRuns, asking, runs_by_first_bad
from tfdbg_arrow.query.bad_tensor import BadTensorReader
from tfdbg_arrow.query.displayed import Rows
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.culprits import Culprit, Culprits
from tfdbg_arrow.query.flow.effects import Effect
from tfdbg_arrow.query.logdir.opening import opened
from tfdbg_arrow.query.nonfinite_tensor import FunctionCall, NonFinite, TensorContext
from tfdbg_arrow.query.recorded import EFFECTS, KINDS, TensorEvent
from tfdbg_arrow.query.stacks import Frame
from tfdbg_arrow.schema.op_traits import COLLECTIVES

_MAX_TENSORS_OF_OP = 20
"""Maximum number of bad tensors of one op for which the effects are determined."""
_RESULT_FOR_NAN = "the program returns this constant in place of a value that was NaN already"
IsAllowed = Callable[[str | None, str | None], bool]
"""Takes the type and the name of an op (None if it has no name), and returns whether it may make bad values."""


def first_nonfinite(
    logdir: Engine | str | Path,
    *,
    kinds: Iterable[str] = KINDS,
    run_id: str | None = None,
    is_allowed: IsAllowed | None = None,
) -> NonFinite | None:
    """Returns the op that caused bad values: the earliest origin of a bad value that did harm.

    Origins are ranked by their effect: a bad variable ranks before a bad result, and a bad result ranks before a bad
    metric. A bad loss ranks like a bad variable. An origin that did no harm (see `NonFinite.is_expected`) is returned
    only if there is no other origin. Among the origins of the same rank, the first in program order is returned. The
    answer does not depend on the order in which the tensors were recorded.

    A program can leave out the bad value of a forward op, for example with `tf.where`, although the gradient of this op
    is bad. The answer is then the forward op.

    Args:
        logdir: An open logdir or its path.
        kinds: What counts as bad: `nan`, `inf` or both.
        run_id: The run, or "all". None means the newest run and the runs of the other processes of its program. If
            there are several runs, the answer comes from the run with the most harmful origin. Among equally harmful
            origins, the answer comes from the run in which a bad value was recorded first.
        is_allowed: Takes the type and the name of an op (None if the op has no name), and returns whether the op may
            make bad values. Such an op is ignored. If another op makes a new bad value from the values of such an op,
            the other op counts. None means that no op may make bad values.

    Returns:
        The origin. If several workers reduce a tensor together, the origin is the op that created the value, not an op
        that received it. If the recording leaves out tensors and so proves no origin, the result is the first bad
        tensor that has no bad recorded input, and `is_origin` is False. None if no recorded tensor has a value of these
        kinds. In the mode CURT_HEALTH, which only measures has_inf_or_nan, a bad tensor counts for every requested
        kind.

    Raises:
        LogdirError: The path is not a readable logdir.
        QueryError: A kind or the run is unknown.
        BrokenPartError: A part cannot be read.
    """
    wanted = _check_kinds(kinds)
    with asking(logdir, run_id) as (open_, asked):
        if is_allowed is not None:
            return _search(open_, asked, wanted, is_allowed)
        # Keep the answer, because pages and reports ask this question many times.
        answers: dict[tuple[object, ...], NonFinite | None] = open_.kept("first_nonfinite", None, dict)
        key = (wanted, asked.run_ids)
        if key not in answers:
            answers[key] = _search(open_, asked, wanted, None)
        return answers[key]


def _search(logdir: Engine, asked: AskedRuns, kinds: tuple[str, ...], is_allowed: IsAllowed | None) -> NonFinite | None:
    runs = runs_by_first_bad(logdir, kinds, asked)
    reader_of = lru_cache(maxsize=None)(lambda run: _reader(logdir, run, kinds, is_allowed))
    harmful = _candidates(map(reader_of, runs), Culprits.harmful)
    first = _best(harmful, _Candidate.harmful_rank, (0, False))
    if first is None:
        harmless = _candidates(map(reader_of, runs), Culprits.harmless)
        first = _best(harmless, _Candidate.harmless_rank, (False, False))
    return None if first is None else first.describe()


def has_nan_variable(logdir: Engine, *, run_id: str) -> bool:
    """Returns whether an op wrote a NaN to a variable. Variables of metrics do not count.

    This is faster than finding the origin.
    """
    reader = BadTensorReader(logdir, run_id=run_id, kinds=("nan",))
    with reader.flow.lock:
        return any(row.num_nan for batch in reader.sinks.batches("variable") for row in batch)


@dataclass(frozen=True)
class _Candidate:
    """A culprit, and the reader of the run that has the culprit."""

    culprit: Culprit
    reader: BadTensorReader

    def harmful_rank(self) -> tuple[int, bool]:
        """Returns the sort key of a harmful culprit.

        Among culprits with the same effect, those whose values came from other workers sort last.
        """
        return EFFECTS.index(self.culprit.effect.name or EFFECTS[-1]), self._is_received()

    def harmless_rank(self) -> tuple[bool, bool]:
        """Returns the sort key of a culprit that did no known harm. Culprits that may have done harm sort first."""
        return self.culprit.effect.expected_reason is not None, self._is_received()

    def _is_received(self) -> bool:
        event = self.culprit.event
        is_collective = (event.op_type or "").startswith(COLLECTIVES)
        return is_collective and not self.reader.origins.verdict(event).is_origin

    def describe(self) -> NonFinite:
        return self.reader.describe(self.culprit.event, effect=self.culprit.effect, rivals=self.culprit.rivals)


def _reader(logdir: Engine, run_id: str, kinds: tuple[str, ...], is_allowed: IsAllowed | None) -> BadTensorReader:
    if is_allowed is None:
        return BadTensorReader(logdir, run_id=run_id, kinds=kinds)

    def is_allowed_tensor(event: TensorEvent) -> bool:
        maker = reader.flow.program_ops.maker(event)
        if maker is not None and is_allowed(maker.op.op_type, maker.op.op_name):
            return True
        written = reader.flow.as_written(event)
        return is_allowed(event.op_type, event.op_name) or is_allowed(written.op_type, written.op_name)

    reader = BadTensorReader(logdir, run_id=run_id, kinds=kinds, is_allowed=is_allowed_tensor)
    return reader


def _candidates(
    readers: Iterable[BadTensorReader], culprit_of: Callable[[Culprits], Culprit | None]
) -> Iterator[_Candidate]:
    """Yields the culprit of each run; omits runs without a culprit."""
    for reader in readers:
        with reader.flow.lock:
            culprit = culprit_of(reader.culprits)
        if culprit is not None:
            yield _Candidate(culprit, reader)


def _best(
    candidates: Iterable[_Candidate], rank: Callable[[_Candidate], tuple[int, bool]], least: tuple[int, bool]
) -> _Candidate | None:
    """Returns the first culprit with the lowest rank.

    Args:
        candidates: The culprits.
        rank: Returns the rank of a culprit.
        least: The lowest possible rank. The search ends at the first culprit with this rank.
    """
    best: _Candidate | None = None
    for candidate in candidates:
        if best is None or rank(candidate) < rank(best):
            best = candidate
        if rank(best) == least:
            break
    return best


def most_harmful(tensors: Iterable[NonFinite]) -> NonFinite | None:
    """Returns the most harmful of several bad tensors, by the ranks of `first_nonfinite`; None for no tensors.

    If several tensors are equally harmful, returns the first of them.
    """
    ranks = {effect: rank for rank, effect in enumerate(EFFECTS)}
    return min(
        tensors, key=lambda tensor: (tensor.is_expected, ranks.get(tensor.effect or "", len(EFFECTS) - 1)), default=None
    )


def first_nan(logdir: Engine | str | Path, *, run_id: str | None = None) -> NonFinite | None:
    """Returns the op that caused the first NaN. The same as `first_nonfinite` with kinds=("nan",)."""
    return first_nonfinite(logdir, kinds=("nan",), run_id=run_id)


def origins_of(logdir: Engine | str | Path, event_indexes: Iterable[int], *, run_id: str) -> list[NonFinite]:
    """Returns the distinct origins of bad tensors of a run, in the order of the tensors.

    The effects of the origins are not determined: `effect` is None.

    Args:
        logdir: An open logdir or its path.
        event_indexes: The event_index of each bad tensor. Tensors that have no row or are not bad are ignored.
        run_id: The run.

    Raises:
        LogdirError: The path is not a readable logdir.
        BrokenPartError: A part cannot be read.
    """
    origins: dict[int, NonFinite] = {}
    with opened(logdir) as open_:
        reader = BadTensorReader(open_, run_id=run_id, kinds=KINDS)
        for event_index in event_indexes:
            bad = reader.flow.events.bad_events(KINDS, limit=1, after=event_index - 1, before=event_index + 1)
            for event in bad:
                origin = reader.origin_of(event)
                if origin.event_index not in origins:
                    origins[origin.event_index] = reader.describe(origin, effect=None)
    return list(origins.values())


def judged_origins(
    logdir: Engine | str | Path, event_indexes: Iterable[int], *, run_id: str, culprit: NonFinite | None
) -> dict[int, NonFinite | None]:
    """Returns origins of a run with their lines and effects, by event_index. The effects agree with `first_nonfinite`.

    If a bad value did harm in the run, an origin counts as expected only if all bad tensors of its op are expected, or
    if the program wrote the origin as a constant. Otherwise, a later tensor of the op may have done the harm.

    Args:
        logdir: An open logdir or its path.
        event_indexes: The event_index of each tensor. Tensors that have no row are omitted.
        run_id: The run.
        culprit: The result of `first_nonfinite` for the run.

    Returns:
        The origins. The value is None for a tensor that took its bad values from another tensor.

    Raises:
        LogdirError: The path is not a readable logdir.
        BrokenPartError: A part cannot be read.
    """
    origin_of_event: dict[int, NonFinite | None] = {}
    with opened(logdir) as open_:
        reader = BadTensorReader(open_, run_id=run_id, kinds=KINDS)
        with reader.flow.lock:
            for event_index in event_indexes:
                event = reader.flow.events.event(event_index)
                if event is None:
                    continue
                is_passed_on = bool(reader.origins.verdict(event).causes)
                effect = None if is_passed_on else _judged_effect(reader, event, culprit)
                origin_of_event[event_index] = None if is_passed_on else reader.describe(event, effect=effect)
    return origin_of_event


def _judged_effect(reader: BadTensorReader, event: TensorEvent, culprit: NonFinite | None) -> Effect | None:
    """Returns the effect of an origin, or None if a later tensor of the same op may have a different effect."""
    if reader.culprits.beside_constant(event):
        return Effect("absorbed", _RESULT_FOR_NAN)
    effect = reader.effects.of(event)
    if culprit is not None and culprit.is_expected:
        return effect if effect.expected_reason else Effect(effect.name, culprit.expected_reason)
    if effect.expected_reason is None or event.op_type in ("Const", None) or reader.origins.is_literal(event):
        return effect
    tensors = reader.tensors_of_op(event, limit=_MAX_TENSORS_OF_OP)
    are_expected = all(reader.effects.of(tensor).expected_reason is not None for tensor in tensors)
    return effect if are_expected and len(tensors) < _MAX_TENSORS_OF_OP else None


def nonfinite(
    logdir: Engine | str | Path,
    *,
    kinds: Iterable[str] = KINDS,
    run_id: str | None = None,
    limit: int | None = 1000,
) -> Rows[NonFinite]:
    """Returns the tensors that have a bad value, sorted by run and then by event_index.

    Args:
        logdir: An open logdir or its path.
        kinds: What counts as bad: `nan`, `inf` or both.
        run_id: The run, or "all". None means the newest run and the runs of the other processes of its program. The
            runs are sorted by the time of their first bad value.
        limit: Maximum number of tensors; None means all. After the first NaN, nearly every tensor of a training is bad.

    Raises:
        LogdirError: The path is not a readable logdir.
        QueryError: A kind, the run or the limit is invalid.
        BrokenPartError: A part cannot be read.
    """
    wanted = _check_kinds(kinds)
    if limit is not None and limit < 0:
        raise QueryError(f"limit is {limit}; expected 0 or more tensors, or None for all.")
    described: Rows[NonFinite] = Rows()
    with asking(logdir, run_id) as (open_, asked):
        for run in runs_by_first_bad(open_, wanted, asked):
            reader = BadTensorReader(open_, run_id=run, kinds=wanted)
            left = None if limit is None else limit - len(described)
            rows = reader.flow.events.bad_events(wanted, limit=None if left is None else left + 1)
            described.extend(reader.describe(row, effect=reader.own_effect(row)) for row in rows[:left])
            if left is not None and len(rows) > left:
                described.is_cut = True
                break
    return described


def _check_kinds(kinds: Iterable[str]) -> tuple[str, ...]:
    given: tuple[Any, ...] = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    unknown = [kind for kind in given if kind not in KINDS]
    if unknown or not given:
        what = f"kind {unknown[0]!r}" if unknown else "kinds ()"
        raise QueryError(f"{what} is unknown, expected 'nan', 'inf' or both.")
    return tuple(kind for kind in KINDS if kind in given)


def tensor_context(logdir: Engine, event_index: int, *, run_id: str) -> TensorContext:
    """Returns the inputs, the stack and the role of the op that made a recorded tensor. The tensor may be healthy.

    Args:
        logdir: The logdir.
        event_index: The event_index of the tensor's row in tensor_health.
        run_id: The run.

    Raises:
        QueryError: The run has no such row.
        BrokenPartError: A part cannot be read.
    """
    with _tensor(logdir, event_index, run_id=run_id) as (reader, event):
        return reader.context(event)


def tensor_callers(logdir: Engine, event_index: int, *, run_id: str) -> tuple[Frame, ...]:
    """Returns the user's lines that called the function that made a recorded tensor, innermost first.

    If the function is called more than once, these are the lines of the call that made the tensor. The first line is
    the caller of the line `source` of the tensor, see `NonFinite`.

    Args:
        logdir: The logdir.
        event_index: The event_index of the tensor's row in tensor_health.
        run_id: The run.

    Raises:
        QueryError: The run has no such row.
        BrokenPartError: A part cannot be read.
    """
    with _tensor(logdir, event_index, run_id=run_id) as (reader, event):
        return reader.places.callers(event)


def tensor_call(logdir: Engine, event_index: int, *, run_id: str) -> FunctionCall | None:
    """Returns the call from eager code that computed a bad tensor, as in `NonFinite.call`.

    The result is None if the tensor has a training step, or if the call is not known.

    Args:
        logdir: The logdir.
        event_index: The event_index of the tensor's row in tensor_health.
        run_id: The run.

    Raises:
        QueryError: The run has no such row.
        BrokenPartError: A part cannot be read.
    """
    with _tensor(logdir, event_index, run_id=run_id) as (reader, event):
        return reader.describe(event, effect=None).call


def last_call(logdir: Engine, execution_index: int, *, like: FunctionCall, run_id: str) -> FunctionCall | None:
    """Returns the last call of the function of another call up to an execution; None if there is no such call.

    Args:
        logdir: The logdir.
        execution_index: The execution.
        like: The other call.
        run_id: The run.

    Raises:
        BrokenPartError: A part cannot be read.
    """
    reader = BadTensorReader(logdir, run_id=run_id, kinds=KINDS)
    with reader.flow.lock:
        executions = reader.executions_of(like)
    number = bisect_right(executions, execution_index)
    return FunctionCall(like.function, number, executions[number - 1]) if number else None


@contextmanager
def _tensor(logdir: Engine, event_index: int, *, run_id: str) -> Iterator[tuple[BadTensorReader, TensorEvent]]:
    """Yields a reader of the run, with the lock of its data flow, and the row of a tensor."""
    reader = BadTensorReader(logdir, run_id=run_id, kinds=KINDS)
    with reader.flow.lock:
        event = reader.flow.events.event(event_index)
        if event is None:
            raise QueryError(f"event {event_index} of run {run_id} is not a row of tensor_health.")
        yield reader, event
