"""distributions: the distribution of the elements of tensors over magnitudes, for each column of the training.

One statement adds up the histograms of the selected tensors for each column. The statement returns one row for each
power of two and column, so the result does not grow with the number of tensors.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.asked_runs import asked_runs
from tfdbg_arrow.query.displayed import Displayed
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.info import parse_settings
from tfdbg_arrow.query.logdir.opening import opened
from tfdbg_arrow.query.model_health.answers import Column
from tfdbg_arrow.query.model_health.cells import row_condition
from tfdbg_arrow.query.model_health.columns import Axis, Selection, read_axis, read_columns
from tfdbg_arrow.query.model_health.origin import choose_run
from tfdbg_arrow.query.model_health.reading import MAX_COLUMNS, check_max_columns
from tfdbg_arrow.query.tensor_history import pattern_condition

MAX_BUCKETS = 300
"""Default of the maximum number of buckets. The finite float32 numbers need 277 buckets."""
_LEAST, _GREATEST = -1074, 1023
"""The least and the greatest exponent of a finite number of any dtype."""
Counts = npt.NDArray[np.int64]
_MAX_NAMES = 10_000
"""The maximum number of names that are compared in the search for similar names. More would take seconds."""
_COUNTS = ("num_zero", "num_nan", "num_neg_inf", "num_pos_inf")


@dataclass(frozen=True, kw_only=True, repr=False)
class Distributions(Displayed):
    """The distribution of the elements of the selected tensors, column by column.

    Bucket i counts the finite elements whose magnitude is at least 2**exponents[i] and below
    2**(exponents[i] + bucket_width). The counts of a column are sums over all its tensors.

    Attributes:
        run_id: The run.
        axis: As in LayerHealth, or `event` (`event_index`).
        columns: The columns, in order, as in LayerHealth; only the selected tensors count. A column has no counts if
            none of its tensors has a histogram.
        exponents: The first power of two of each bucket, ascending; empty if all elements are zero, infinite or NaN.
        bucket_width: The number of powers of two that a bucket covers.
        negative: For each column, the number of negative elements in each bucket.
        positive: For each column, the number of positive elements in each bucket.
        num_zero: For each column, the number of elements that are zero.
        num_nan: For each column, the number of elements that are NaN.
        num_neg_inf: For each column, the number of elements that are -infinity.
        num_pos_inf: For each column, the number of elements that are +infinity.
        num_tensors: For each column, the number of tensors that are counted.
        num_without: The number of selected tensors that are not counted because they have no histogram.
        sentence: How the median magnitude changed, and when the first infinity and the first NaN came.
    """

    run_id: str
    axis: str
    columns: tuple[Column, ...]
    exponents: tuple[int, ...]
    bucket_width: int
    negative: tuple[tuple[int, ...], ...]
    positive: tuple[tuple[int, ...], ...]
    num_zero: tuple[int, ...]
    num_nan: tuple[int, ...]
    num_neg_inf: tuple[int, ...]
    num_pos_inf: tuple[int, ...]
    num_tensors: tuple[int, ...]
    num_without: int
    sentence: str

    @property
    def is_known(self) -> bool:
        """Whether any of the tensors has a histogram."""
        return any(self.num_tensors)

    def bounds(self, bucket: int) -> tuple[float, float]:
        """Returns the least magnitude of a bucket, and the magnitude where the next bucket begins."""
        low, high = self.exponents[bucket], self.exponents[bucket] + self.bucket_width
        return math.ldexp(1.0, low), math.ldexp(1.0, high) if high <= _GREATEST else math.inf

    def num_elements(self, column: int) -> int:
        """Returns the number of elements that are counted in a column."""
        finite = sum(self.negative[column]) + sum(self.positive[column])
        others = (self.num_zero, self.num_nan, self.num_neg_inf, self.num_pos_inf)
        return finite + sum(counts[column] for counts in others)


def distributions(
    logdir: Engine | str | Path,
    pattern: str | None = None,
    *,
    layer: str | None = None,
    side: str | None = None,
    run_id: str | None = None,
    positions: tuple[int | None, int | None] = (None, None),
    max_columns: int = MAX_COLUMNS,
    max_buckets: int = MAX_BUCKETS,
) -> Distributions | None:
    """Returns the distribution of the elements of tensors over the training; None if the run recorded no tensors.

    The run must have been recorded with `histograms=True`; otherwise the answer has columns without counts.

    Args:
        logdir: An open logdir or its path.
        pattern: A regular expression that must match the whole `op_name`, `op_name:slot` or op type. None selects all.
        layer: Selects the tensors of this layer (as in `graph_op.layer`) and of the layers inside it, or the tensors of
            ops outside all layers with this role.
        side: With `layer`, selects only its `forward` tensors, or only its `gradient` tensors. None means both.
        run_id: The run, or "all". None means the newest run and the runs of the other processes of its program. Of
            several runs, the answer is about the first run that went bad, or about the last run if no run did.
        positions: The range to show: the first position, and the position after the last. If the first is None, the
            range begins at the start. If the second is None, the range goes to the end.
        max_columns: Maximum number of columns. If there are more positions, each column is a range of equal length.
        max_buckets: Maximum number of buckets. If the magnitudes span more powers of two, each bucket covers several.

    Raises:
        LogdirError: The path is not a readable logdir.
        QueryError: There is no such run or no such tensor, the pattern is not valid, `side` is unknown or is given
            without `layer`, or a number is below 1.
        BrokenPartError: A part cannot be read.
    """
    if side not in (None, "forward", "gradient") or (side is not None and layer is None):
        raise QueryError(f"side is {side!r} and layer is {layer!r}; expected `forward` or `gradient`, of a layer.")
    conditions, parameters = ["h.run_id = ?"], list[object]()
    if pattern is not None:
        condition, parameters = pattern_condition(pattern)
        conditions.append(condition)
    with opened(logdir) as open_:
        run_ids = asked_runs(open_, run_id).run_ids
        run = run_ids[0] if len(run_ids) == 1 else choose_run(open_, run_id)[0]
        if run is None:
            return None
        if layer is not None:
            condition, of_layer = row_condition(layer, side, run_id=run)
            conditions.append(condition)
            parameters += of_layer
        answer = read_distributions(
            open_.of_run(run),
            (" AND ".join(conditions), [run, *parameters]),
            run_id=run,
            positions=positions,
            max_columns=max_columns,
            max_buckets=max_buckets,
        )
        if answer is None and (pattern is not None or layer is not None):
            raise _no_such_tensor(open_.of_run(run), pattern, layer, side, run_id=run)
        return answer


def _no_such_tensor(
    logdir: Engine, pattern: str | None, layer: str | None, side: str | None, *, run_id: str
) -> QueryError:
    """Returns the error for a selection without tensors. The message has the names most similar to the given names."""
    wanted = " and ".join(
        text
        for text in (
            None if pattern is None else f"matches the pattern {pattern!r}",
            None if layer is None else f"belongs to the layer or role {layer!r}",
            None if side is None else f"is on the side {side!r}",
        )
        if text is not None
    )
    near: list[str] = []
    ops = (("tensor_health", "op_name"), ("tensor_health", "op_type"))
    layers = (("graph_op", "layer"), ("execution", "layer"))
    for given, places in ((pattern, ops), (layer, layers)):
        if given is not None:
            names = [
                name
                for table, column in places
                for (name,) in logdir.rows(
                    f"SELECT DISTINCT {column} FROM {table} WHERE run_id = ? AND {column} IS NOT NULL "
                    f"ORDER BY {column} LIMIT {_MAX_NAMES}",
                    [run_id],
                )
            ]
            near += difflib.get_close_matches(given, names)
    similar = f"; similar names: {', '.join(dict.fromkeys(near))}" if near else ""
    return QueryError(f"no recorded tensor of run {run_id} {wanted}{similar}.")


def read_distributions(
    logdir: Engine,
    selection: Selection,
    *,
    run_id: str,
    axis: str | None = None,
    positions: tuple[int | None, int | None] = (None, None),
    max_columns: int = MAX_COLUMNS,
    max_buckets: int = MAX_BUCKETS,
) -> Distributions | None:
    """Returns the distribution of the elements of tensors; None if there are no such tensors.

    Args:
        logdir: The engine.
        selection: The tensors.
        run_id: The run.
        axis: The name of the axis; None means steps if any of the tensors has a step, otherwise executions.
        positions: The first position, and the position after the last, as in `distributions`.
        max_columns: Maximum number of columns.
        max_buckets: Maximum number of buckets.

    Raises:
        QueryError: A number is below 1.
        BrokenPartError: A part cannot be read.
    """
    check_max_columns(max_columns)
    if max_buckets < 1:
        raise QueryError(f"max_buckets is {max_buckets}; expected 1 or more.")
    axis_ = read_axis(logdir, selection, positions=positions, name=axis)
    if axis_ is None:
        return None
    axis_ = axis_.divided(max_columns)
    columns = read_columns(logdir, axis_, selection)
    return distributions_on(logdir, selection, axis_, columns, run_id=run_id, max_buckets=max_buckets)


def distributions_on(
    logdir: Engine,
    selection: Selection,
    axis: Axis,
    columns: tuple[Column, ...],
    *,
    run_id: str,
    max_buckets: int = MAX_BUCKETS,
) -> Distributions:
    """Returns the distribution of the elements of tensors on a given axis.

    Args:
        logdir: The engine.
        selection: The tensors.
        axis: The axis.
        columns: The columns of the axis.
        run_id: The run.
        max_buckets: Maximum number of buckets.

    Raises:
        BrokenPartError: A part cannot be read.
    """
    sums = np.zeros((2 + len(_COUNTS), len(columns)), np.int64)
    for column, *numbers in logdir.rows(_sums_statement(axis, selection), selection[1]):
        sums[:, column] = [number or 0 for number in numbers]
    rows = logdir.rows(_buckets_statement(axis, selection), selection[1])
    exponents, buckets = _as_arrays(rows, num_columns=len(columns))
    width = max(1, -(-len(exponents) // max_buckets))
    starts = np.arange(0, len(exponents), width)
    if len(exponents):
        buckets = np.add.reduceat(buckets, starts, axis=2)
    negative, positive = (tuple(map(tuple, side.tolist())) for side in buckets)
    num_without, num_tensors = sums[:2].tolist()
    counts = dict(zip(_COUNTS, sums[2:], strict=True))
    infinity = _first(counts["num_neg_inf"] + counts["num_pos_inf"])
    medians = {
        column: 2.0 ** min(float(exponents[starts[bucket]] + width / 2), _GREATEST + 0.5)
        for column, bucket in enumerate(median_buckets(buckets.sum(axis=0)))
        if bucket is not None
    }
    return Distributions(
        run_id=run_id,
        axis=axis.name,
        columns=columns,
        exponents=tuple(exponents[starts].tolist()),
        bucket_width=width,
        negative=negative,
        positive=positive,
        num_tensors=tuple(num_tensors),
        num_without=sum(num_without),
        sentence=_sentence(
            axis.name, columns, medians, infinity=infinity, nan=_first(counts["num_nan"]), is_known=any(num_tensors)
        ),
        **{name: tuple(of_columns.tolist()) for name, of_columns in counts.items()},
    )


def no_distribution_sentence(logdir: Engine, run_id: str) -> str:
    """Returns why tensors of a run have no histograms, and how to record some."""
    ((settings,),) = logdir.rows("SELECT settings FROM run WHERE run_id = ? LIMIT 1", [run_id])
    if parse_settings(settings).get("histograms"):
        return (
            "These tensors have no histograms: only floating-point tensors have one, unless they were counted on "
            "another device than the host."
        )
    return (
        "It was not recorded how the elements are distributed. To see it, record with enable(…, histograms=True), or "
        "with tfdbg-arrow run --histograms."
    )


def _sums_statement(axis: Axis, selection: Selection) -> str:
    """Returns the SELECT of (column, tensors without a histogram, tensors with one, _COUNTS of those with one)."""
    has_histogram = "h.histogram_negative IS NOT NULL"
    counts = ", ".join(f"CAST(sum(CASE WHEN {has_histogram} THEN h.{name} END) AS BIGINT)" for name in _COUNTS)
    return (
        f"SELECT {axis.place} AS place, count(CASE WHEN h.histogram_negative IS NULL THEN 1 END), "
        f"count(h.histogram_negative), {counts} FROM tensor_health AS h "
        f"WHERE {selection[0]} AND {axis.condition} GROUP BY {axis.place}"
    )


def _buckets_statement(axis: Axis, selection: Selection) -> str:
    """Returns the SELECT of (column, exponent, negative elements, positive elements) of all buckets."""
    return (
        "SELECT place, first + i AS exponent, CAST(sum(list_at(negative, i)) AS BIGINT), "
        "CAST(sum(list_at(positive, i)) AS BIGINT) FROM (SELECT place, first, negative, positive, explode(places) AS i "
        f"FROM (SELECT {axis.place} AS place, CAST(h.histogram_exponent AS BIGINT) AS first, "
        "h.histogram_negative AS negative, h.histogram_positive AS positive, "
        "list_places(h.histogram_negative) AS places FROM tensor_health AS h "
        f"WHERE {selection[0]} AND {axis.condition} AND h.histogram_exponent IS NOT NULL) AS tensor) AS bucket "
        # Exponents outside the range of all dtypes come from a damaged file, and would need unlimited memory.
        f"WHERE first + i >= {_LEAST} AND first + i <= {_GREATEST} GROUP BY place, first + i"
    )


def median_buckets(counts: Counts) -> list[int | None]:
    """Returns the bucket of the median for each row of counts; None if all counts of a row are 0."""
    sums = counts.cumsum(axis=1)
    return [int(np.searchsorted(row, (row[-1] + 1) // 2)) if len(row) and row[-1] else None for row in sums]


def _first(counts: Counts) -> int | None:
    """Returns the first column with a count above 0; None if all counts are 0."""
    columns = np.flatnonzero(counts)
    return int(columns[0]) if len(columns) else None


def _sentence(
    axis: str,
    columns: Sequence[Column],
    medians: Mapping[int, float],
    *,
    infinity: int | None,
    nan: int | None,
    is_known: bool,
) -> str:
    def at(column: int) -> str:
        return f"{axis} {columns[column].first:,}"

    texts = []
    if medians:
        first, last = min(medians), max(medians)
        text = f"the median magnitude was about {medians[first]:.2g} in {at(first)}"
        if first != last:
            text += f" and about {medians[last]:.2g} in {at(last)}"
        texts.append(text)
    if infinity is not None:
        texts.append(f"the first infinity came in {at(infinity)}")
    if nan is not None:
        texts.append(f"the first NaN came in {at(nan)}")
    if not texts:
        return "No element is finite and not zero." if is_known else "No histogram was recorded."
    text = "; ".join(texts)
    return f"{text[0].upper()}{text[1:]}."


def _as_arrays(rows: Sequence[tuple[int, int, int, int]], *, num_columns: int) -> tuple[Counts, Counts]:
    """Returns consecutive exponents, and the counts as an array of shape (side, column, exponent)."""
    table = np.array([[0 if number is None else number for number in row] for row in rows], np.int64).reshape(-1, 4)
    table = table[(table[:, 2] != 0) | (table[:, 3] != 0)]
    if not len(table):
        return np.zeros(0, np.int64), np.zeros((2, num_columns, 0), np.int64)
    least, greatest = int(table[:, 1].min()), int(table[:, 1].max())
    counts = np.zeros((2, num_columns, greatest - least + 1), np.int64)
    for side in (0, 1):
        counts[side, table[:, 0], table[:, 1] - least] = table[:, 2 + side]
    return np.arange(least, greatest + 1), counts
