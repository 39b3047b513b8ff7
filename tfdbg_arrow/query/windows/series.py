"""Series: the values of the tensors of one op over time, in few enough points for a plot."""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.windows.tensors import TensorFilter, filter_condition

AXES = ("event", "step")
"""The possible axes of a series: events in their order, or training steps."""
MAX_BUCKETS = 1000
"""Maximum number of buckets in a series. Each has a least and a greatest value, so there are twice as many points."""
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
    """One bucket of a series, with one or more tensors.

    Attributes:
        first_event_index: Its first tensor.
        last_event_index: Its last tensor.
        first_step: Its least training step, as marked; None if no step was marked.
        last_step: Its greatest training step.
        num_tensors: Number of recorded tensors.
        num_bad: How many hold an infinity or a NaN.
        first_bad_event_index: The first bad tensor; None if none is bad.
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
    """One measured quantity over the buckets of a series. A value is None if it was not measured or does not apply.

    Attributes:
        least: The least value in each bucket.
        greatest: The greatest value in each bucket.
    """

    least: tuple[float | None, ...]
    greatest: tuple[float | None, ...]

    @property
    def is_known(self) -> bool:
        """Whether it was measured anywhere."""
        return any(value is not None for value in self.least)

    @property
    def peak(self) -> float | None:
        """The greatest value of all buckets; None without values."""
        return max((value for value in self.greatest if value is not None), default=None)


@dataclass(frozen=True, kw_only=True)
class TensorSeries:
    """The values of the tensors of one op over time.

    Attributes:
        axis: One of AXES.
        is_exact: Whether every bucket is one tensor (or, with the axis `step`, one step).
        num_tensors: Number of tensors in it.
        num_bad: How many hold an infinity or a NaN.
        num_unmeasured: How many are not known to be bad or not bad.
        num_without_step: Number of tensors left out because their step was not marked; 0 with the axis `event`.
        buckets: The buckets that have a tensor, in order.
        nan: Share of the elements that are NaN, from 0 to 1.
        neg_inf: Share of the elements that are -infinity.
        pos_inf: Share of the elements that are +infinity.
        zero: Share of the elements that are zero.
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
    """Returns the values over time of the tensors that match a filter.

    The count of a bucket includes every bad tensor in it, no matter how many tensors the bucket has.

    Args:
        logdir: The logdir.
        filter_: Selects the tensors.
        run_id: The run.
        axis: One of AXES.
        max_buckets: Maximum number of buckets.

    Raises:
        QueryError: The axis is unknown, or `max_buckets` is below 1.
        BrokenPartError: A part cannot be read.
    """
    if axis not in AXES:
        raise QueryError(f"axis is {axis!r}, expected one of {', '.join(AXES)}.")
    if max_buckets < 1:
        raise QueryError(f"max_buckets is {max_buckets}, expected 1 or more.")
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
