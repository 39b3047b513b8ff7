"""Series: what the tensors of one op held over time, in so few points that a picture can hold them."""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.windows.tensors import TensorFilter, filter_condition

AXES = ("event", "step")
"""What a series can go along: the events in their order, or the training steps."""
MAX_BUCKETS = 1000
"""Stretches of a series; each has a least and a greatest value, so that there are twice as many points."""
_SHARE = "CASE WHEN h.size > 0 THEN CAST(h.{} AS DOUBLE) / h.size END"
_MEASURES = {
    "nan": _SHARE.format("num_nan"),
    "neg_inf": _SHARE.format("num_neg_inf"),
    "pos_inf": _SHARE.format("num_pos_inf"),
    "zero": _SHARE.format("num_zero"),
    "max_abs": "h.max_abs_finite",
    "mean_abs": "abs(h.mean_finite)",
    "stddev": "h.stddev_finite",
}


@dataclass(frozen=True, kw_only=True)
class SeriesBucket:
    """One stretch of a series, of one tensor or more.

    Attributes:
        first_event_index: Its first tensor.
        last_event_index: Its last tensor.
        first_step: Least training step in it, as marked; None where none was.
        last_step: Greatest one.
        num_tensors: Recorded tensors.
        num_bad: Those with an infinity or a NaN.
        first_bad_event_index: The first of them; None where none is bad.
    """

    first_event_index: int
    last_event_index: int
    first_step: int | None
    last_step: int | None
    num_tensors: int
    num_bad: int
    first_bad_event_index: int | None


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One thing that was measured, over the stretches of a series; None where it was not, or does not apply.

    Attributes:
        least: The least value in each stretch.
        greatest: The greatest one.
    """

    least: tuple[float | None, ...]
    greatest: tuple[float | None, ...]

    @property
    def is_known(self) -> bool:
        """Whether it was measured anywhere."""
        return any(value is not None for value in self.least)

    @property
    def peak(self) -> float | None:
        """The greatest value of all."""
        return max((value for value in self.greatest if value is not None), default=None)


@dataclass(frozen=True, kw_only=True)
class TensorSeries:
    """What the tensors of one op held over time.

    Attributes:
        axis: One of AXES.
        is_exact: Whether every stretch is one tensor (or, along the steps, one step).
        num_tensors: Tensors in it.
        num_bad: Those with an infinity or a NaN.
        num_unmeasured: Those of which is not known whether they are bad.
        num_without_step: Tensors left out, as they are of no marked training step; 0 along the events.
        buckets: The stretches, in order; those without a tensor are left out.
        nan: Share of the elements that are NaN, from 0 to 1.
        neg_inf: Share that is -infinity.
        pos_inf: Share that is +infinity.
        zero: Share that is zero.
        max_abs: Largest magnitude of a finite element.
        mean_abs: Magnitude of the mean of the finite elements.
        stddev: Standard deviation of the finite elements.
    """

    axis: str
    is_exact: bool
    num_tensors: int
    num_bad: int
    num_unmeasured: int
    num_without_step: int
    buckets: tuple[SeriesBucket, ...]
    nan: Measure
    neg_inf: Measure
    pos_inf: Measure
    zero: Measure
    max_abs: Measure
    mean_abs: Measure
    stddev: Measure


def tensor_series(
    logdir: Engine, filter_: TensorFilter, *, run_id: str, axis: str = "event", max_buckets: int = MAX_BUCKETS
) -> TensorSeries:
    """Returns what the tensors that a filter leaves held over time.

    A bad tensor is in the count of its stretch, however many tensors share it.

    Args:
        logdir: The logdir.
        filter_: Which tensors.
        run_id: The run.
        axis: One of AXES.
        max_buckets: At most so many stretches.

    Raises:
        QueryError: The axis is unknown, or there would be no stretch.
        BrokenPartError: A part cannot be read.
    """
    if axis not in AXES:
        raise QueryError(f"axis is {axis!r}, expected one of {', '.join(AXES)}.")
    if max_buckets < 1:
        raise QueryError(f"max_buckets is {max_buckets}, expected a number from 1 on.")
    place = "h.event_index" if axis == "event" else "h.step"
    condition, parameters = filter_condition(filter_, run_id=run_id)
    source = f"FROM tensor_health AS h WHERE {condition} AND {place}"
    places = place if axis == "event" else f"DISTINCT {place}"
    ((num_tensors, num_bad, num_measured, num_places, low, high),) = logdir.rows(
        "SELECT count(*), count(CASE WHEN h.has_inf_or_nan THEN 1 END), count(h.has_inf_or_nan), "
        f"count({places}), min({place}), max({place}) {source} IS NOT NULL",
        parameters,
    )
    num_without_step = 0
    if axis == "step":
        ((num_without_step,),) = logdir.rows(f"SELECT count(*) {source} IS NULL", parameters)
    is_exact = num_places <= max_buckets
    rows = []
    if num_tensors:
        bucket, given = place, []
        if not is_exact:
            bucket = f"CAST(floor(({place} - ?) * CAST(? AS DOUBLE) / ?) AS BIGINT)"
            given = [low, max_buckets, high - low + 1]
        measures = ", ".join(f"min({text}), max({text})" for text in _MEASURES.values())
        rows = logdir.rows(
            f"SELECT {bucket} AS bucket, min(h.event_index), max(h.event_index), min(h.step), max(h.step), count(*), "
            "count(CASE WHEN h.has_inf_or_nan THEN 1 END), min(CASE WHEN h.has_inf_or_nan THEN h.event_index END), "
            f"{measures} {source} IS NOT NULL GROUP BY 1 ORDER BY 1",
            [*given, *parameters],
        )
    return TensorSeries(
        axis=axis,
        is_exact=is_exact,
        num_tensors=num_tensors,
        num_bad=num_bad,
        num_unmeasured=num_tensors - num_measured,
        num_without_step=num_without_step,
        buckets=tuple(
            SeriesBucket(
                first_event_index=row[1],
                last_event_index=row[2],
                first_step=row[3],
                last_step=row[4],
                num_tensors=row[5],
                num_bad=row[6],
                first_bad_event_index=row[7],
            )
            for row in rows
        ),
        **{
            name: Measure(
                least=tuple(row[8 + 2 * number] for row in rows), greatest=tuple(row[9 + 2 * number] for row in rows)
            )
            for number, name in enumerate(_MEASURES)
        },
    )
