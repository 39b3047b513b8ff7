"""Measures the differences of paired tensors: of shape, dtype, counts, magnitudes, and elements if recorded.

Rounding errors of a sum, a product of matrices or a convolution are proportional to the magnitude of the summands, not
to the resulting element. If summands cancel, the error of an element can be many times larger than the element. So the
tolerance of a tensor is one number, `atol + rtol * scale`, where the scale is the largest magnitude of a finite element
in either run.

The default `rtol` is 16 units in the last place (16 * eps) of the coarsest dtype with a difference so far. Accumulating
n numbers loses about sqrt(n) units in practice, and the scale leaves some extra room. "So far" matters because a
float32 tensor that is computed from a float16 tensor is only as exact as the float16 tensor. The default `atol` is the
magnitude where the coarser dtype loses its relative precision. For float16, this is the least subnormal number. For
other dtypes, it is the least normal number, because TensorFlow flushes their subnormal numbers to zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.run_diff.workspace import SIDES, Side, Sides, Workspace
from tfdbg_arrow.query.values import DECODED_DTYPES, Array, decode
from tfdbg_arrow.schema.dtypes import DTYPES

UNITS = 16
"""The default relative tolerance, as a number of units in the last place."""
MAX_RTOL = 0.5
"""The maximum of the default tolerance: 16 units of an eight-bit dtype would exceed the number itself."""
DEFAULT_GROWTH = 10.0
"""The default of `growth`, the limit on how many times a relative difference may grow in one op."""
HARD = 1e300
"""Marks a difference without a measure: of shapes, classes of dtypes, NaN or infinities."""
PRECISIONS = {dtype.name: dtype for dtype in DTYPES if dtype.kind is not None}
"""The dtypes that are compared, by name."""
_BATCH_BYTES = 32 * 2**20
"""Bytes of elements of one run, as float64, that are compared at a time. Bounds the memory."""
_BATCH_PAIRS = 50_000
"""Number of pairs that are compared at a time. Bounds the memory if the tensors are small."""


def precision_sql(fact: str, column: str) -> str:
    """Returns an SQL expression for a fact (`kind`, `eps`, `floor`) about the dtype in a column; NULL for other dtypes.

    The result is an expression and not a table. With a table, a planner might join two large tables by dtype.
    """
    cases = " ".join(f"WHEN '{p.name}' THEN {getattr(p, fact)!r}" for p in PRECISIONS.values())
    return f"CASE {column} {cases} END"


@dataclass(frozen=True)
class Tolerance:
    """The differences that count as rounding.

    Attributes:
        rtol: The tolerance relative to a tensor's largest magnitude; None means that it depends on the dtype.
        atol: The absolute tolerance; None means that it depends on the dtype.
        growth: The relative difference of an op's output may be at most this many times the relative difference of its
            inputs.
    """

    rtol: float | None = None
    atol: float | None = None
    growth: float = DEFAULT_GROWTH

    def __post_init__(self) -> None:
        for name, value in (("rtol", self.rtol), ("atol", self.atol)):
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise QueryError(f"{name} is {value!r}; expected 0 or more, or None for the default of the dtypes.")
        if not (math.isfinite(self.growth) and self.growth >= 1):
            raise QueryError(f"growth is {self.growth!r}; expected a number of 1 or more.")


def compare(work: Workspace, tolerance: Tolerance) -> None:
    """Creates the table `compared` from the tables `pair` and `element_difference`.

    The table has the columns of `pair`, and these columns:

    * `dtype_a`, `dtype_b`, `class` and `size`;
    * `kind`: NULL if nothing could be compared;
    * `difference`, and the `scale` that the difference is relative to;
    * `rtol` and `slack`: the tolerance is `slack + rtol * scale`;
    * `relative`: difference / scale;
    * `excess`: difference / tolerance;
    * `num_apart`: the number of elements that exceed the tolerance or differ in sign.
    """
    work.execute(_MEASURED)
    work.execute(_PRECISION_SO_FAR)
    rtol, floor = f"least({UNITS} * eps_so_far, {MAX_RTOL})", "floor_magnitude"
    if tolerance.rtol is not None:
        rtol = f"CAST({tolerance.rtol!r} AS DOUBLE)"
    if tolerance.atol is not None:
        floor = f"CAST({tolerance.atol!r} AS DOUBLE)"
    work.execute(_COMPARED.format(rtol=rtol, floor=floor, hard=HARD))


_KIND_A, _KIND_B = precision_sql("kind", "a.dtype"), precision_sql("kind", "b.dtype")
_SIGNS = " + ".join(f"abs(a.{name} - b.{name})" for name in ("num_neg_finite", "num_zero", "num_pos_finite"))
_MAGNITUDES = ", ".join(
    f"coalesce(abs(a.{name} - b.{name}), 0)"
    for name in ("min_finite", "max_finite", "mean_finite", "stddev_finite", "max_abs_finite")
)

_MEASURED = f"""
CREATE TABLE measured AS
SELECT event_a, event_b, ordinal, context_pair, site_id, op_id, output_slot, dtype_a, dtype_b, class, size,
    eps, floor_magnitude, kind, is_one_zero AND kind IN ('values', 'magnitudes', 'counts') AS is_one_zero,
    CASE WHEN kind IN ('shape', 'dtype', 'nonfinite') THEN {HARD!r}
        WHEN kind = 'values' THEN element_difference WHEN kind = 'magnitudes' THEN magnitude_difference
        WHEN kind = 'counts' THEN coalesce(num_moved, 0) END AS difference,
    CASE WHEN kind = 'magnitudes' OR (kind = 'values' AND class IN ('float', 'complex')) THEN greatest(scale_a, scale_b)
        ELSE coalesce(size, 1) END AS scale,
    CASE WHEN kind = 'values' THEN num_apart ELSE num_moved END AS num_apart
FROM (
    SELECT *,
        CASE WHEN shape_a <> shape_b OR size_a <> size_b THEN 'shape'
            WHEN class <> class_b THEN 'dtype'
            WHEN is_nonfinite_different OR num_nonfinite > 0 THEN 'nonfinite'
            WHEN element_difference IS NOT NULL THEN 'values'
            WHEN magnitude_difference > 0 OR (magnitude_difference = 0 AND coalesce(num_moved, 0) = 0)
                THEN 'magnitudes'
            WHEN is_health_known THEN 'counts' END AS kind
    FROM (
        SELECT p.event_a, p.event_b, p.ordinal, p.context_pair, p.site_id, p.op_id, p.output_slot,
            a.dtype AS dtype_a, b.dtype AS dtype_b, {_KIND_A} AS class, {_KIND_B} AS class_b,
            a.shape AS shape_a, b.shape AS shape_b, a.size AS size_a, b.size AS size_b,
            coalesce(a.size, b.size) AS size,
            coalesce(greatest({precision_sql("eps", "a.dtype")},
                {precision_sql("eps", "b.dtype")}), 0) AS eps,
            coalesce(greatest({precision_sql("floor", "a.dtype")},
                {precision_sql("floor", "b.dtype")}), 0) AS floor_magnitude,
            a.has_inf_or_nan IS NOT NULL AND b.has_inf_or_nan IS NOT NULL AS is_health_known,
            coalesce(a.num_nan <> b.num_nan, false) OR coalesce(a.num_neg_inf <> b.num_neg_inf, false)
                OR coalesce(a.num_pos_inf <> b.num_pos_inf, false)
                OR coalesce(a.has_inf_or_nan <> b.has_inf_or_nan, false) AS is_nonfinite_different,
            ({_SIGNS}) / 2.0 AS num_moved,
            CASE WHEN a.max_abs_finite IS NOT NULL AND b.max_abs_finite IS NOT NULL THEN greatest({_MAGNITUDES})
                END AS magnitude_difference,
            coalesce(d.scale_a, a.max_abs_finite) AS scale_a, coalesce(d.scale_b, b.max_abs_finite) AS scale_b,
            d.difference AS element_difference, d.num_apart, coalesce(d.num_nonfinite, 0) AS num_nonfinite,
            coalesce({_KIND_A} IN ('float', 'complex') AND coalesce((d.scale_a = 0) <> (d.scale_b = 0),
                (a.num_zero = a.size AND b.num_zero = 0) OR (b.num_zero = b.size AND a.num_zero = 0)), false)
                AND a.size > 0 AS is_one_zero
        FROM pair AS p
        JOIN health_a AS a ON a.event_index = p.event_a
        JOIN health_b AS b ON b.event_index = p.event_b
        LEFT JOIN element_difference AS d ON d.event_a = p.event_a
    ) AS facts
) AS judged
"""
"""Each row is a pair with its difference. Counts are compared only if magnitudes do not differ or were not recorded,
because rounding may change the sign of an element next to zero. `is_one_zero`: one run has only zeros and the other run
has no zeros, for example after an underflow."""

_PRECISION_SO_FAR = """
CREATE TABLE precision_so_far AS
SELECT ordinal, max(eps) OVER (ORDER BY ordinal ROWS UNBOUNDED PRECEDING) AS eps_so_far
FROM (
    SELECT ordinal, max(CASE WHEN dtype_a <> dtype_b OR difference > 0 THEN eps ELSE 0 END) AS eps
    FROM measured GROUP BY ordinal
) AS e
"""
"""The eps of the coarsest dtype with a difference up to each execution. Data flow follows the order of executions, but
not the order of rows."""

_COMPARED = """
CREATE TABLE compared AS
SELECT *,
    CASE WHEN kind IS NULL OR difference = 0 THEN 0
        WHEN difference >= {hard} THEN {hard}
        WHEN is_one_zero OR scale = 0 THEN 1
        ELSE least(difference / scale, {hard}) END AS relative,
    CASE WHEN kind IS NULL OR difference = 0 THEN 0
        WHEN difference >= {hard} THEN {hard}
        WHEN is_one_zero THEN CASE WHEN rtol > 0 THEN 1 / rtol ELSE {hard} END
        WHEN slack + rtol * scale = 0 THEN {hard}
        ELSE least(difference / (slack + rtol * scale), {hard}) END AS excess
FROM (
    SELECT event_a, event_b, ordinal, context_pair, site_id, op_id, output_slot, dtype_a, dtype_b, class, size,
        kind, is_one_zero, difference, scale, num_apart,
        CASE WHEN kind = 'counts' AND is_mixed THEN 0.25 ELSE {rtol} END AS rtol,
        CASE WHEN kind = 'counts' THEN CASE WHEN is_mixed THEN 1 ELSE 0 END
            WHEN class IN ('float', 'complex') THEN {floor} ELSE 0 END AS slack
    FROM (
        SELECT measured.*, eps_so_far, eps_so_far > eps OR dtype_a <> dtype_b AS is_mixed
        FROM measured JOIN precision_so_far ON precision_so_far.ordinal = measured.ordinal
    ) AS m
) AS c
"""
"""For counts, the tolerance is the share `rtol` of the elements. If the runs compute in different precision, the
tolerance is 1 plus a quarter of the elements, because values that nearly cancel can have any sign, and small values
underflow to zero."""


def compare_elements(work: Workspace, sides: Sides, tolerance: Tolerance) -> None:
    """Creates the table `element_difference` from the table `pair`.

    The columns are:

    * `event_a`;
    * `difference`: the greatest absolute difference; for dtypes that are not floating, the number of elements that
      differ;
    * `scale_a` and `scale_b`: the largest magnitudes of finite elements;
    * `num_apart`: the number of elements beyond the tolerance;
    * `num_nonfinite`: the number of elements that are infinite or NaN in one run and different in the other.
    """
    names = ("event_a", "difference", "scale_a", "scale_b", "num_apart", "num_nonfinite")
    work.load("element_difference", names, [], (int, float, float, float, int, int))
    if not all(map(_has_values, sides)):
        return
    eps = 0.0
    for pairs in _batches(work):
        differences, eps = _differences(pairs, sides, eps, tolerance)
        if differences is not None:
            work.append_arrow("element_difference", differences)


def read_element_pair(sides: Sides, event_a: int, event_b: int, dtypes: tuple[str, str]) -> tuple[Array, Array] | None:
    """Returns the elements of a pair as flat arrays, or None if one run did not record them."""
    arrays = []
    for side, event, dtype in zip(sides, (event_a, event_b), dtypes, strict=True):
        table = _values(side, np.array([event], np.int64))
        if not table.num_rows:
            return None
        elements = decode(np.frombuffer(table.column("value")[0].as_py(), np.uint8), dtype)
        if elements is None:
            return None
        arrays.append(elements)
    return arrays[0], arrays[1]


def element_distance(a: Array, b: Array) -> npt.NDArray[np.float64]:
    """Returns the distance of each pair of elements; infinite for different elements if one of them is not finite."""
    if not (np.issubdtype(a.dtype, np.inexact) and np.issubdtype(b.dtype, np.inexact)):
        return np.asarray(a != b, np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    wide = np.complex128 if np.iscomplexobj(a) or np.iscomplexobj(b) else np.float64
    with np.errstate(all="ignore"):
        wide_a, wide_b = np.asarray(a, wide), np.asarray(b, wide)
        distance = np.asarray(np.abs(np.subtract(wide_a, wide_b)), np.float64)
        same = (wide_a == wide_b) | (np.isnan(wide_a) & np.isnan(wide_b))
    distance[~finite] = np.where(same[~finite], 0.0, np.inf)
    return distance


def _has_values(side: Side) -> bool:
    return bool(side.logdir.rows("SELECT 1 FROM tensor_value WHERE run_id = ? LIMIT 1", [side.run_id]))


def _batches(work: Workspace) -> Iterator[pa.Table]:
    """Yields pairs of equal shape whose values fit into memory together, as event_a, event_b, dtype_a and dtype_b.

    The pairs are in the order of A, so that few parts of each table are read twice.
    """
    names = ", ".join(f"'{name}'" for name in sorted(DECODED_DTYPES))
    # Each statement has only one join, so that the planner cannot join by equal shapes.
    work.execute(
        "CREATE OR REPLACE TABLE element_pair AS SELECT p.event_a, p.event_b, h.dtype, h.shape, h.size "
        "FROM pair AS p JOIN health_a AS h ON h.event_index = p.event_a "
        f"WHERE h.size > 0 AND h.dtype IN ({names})"
    )
    work.execute(
        "CREATE OR REPLACE TABLE element_batch AS SELECT event_a, event_b, dtype_a, dtype_b, "
        f"CAST(floor(sum(num_bytes) OVER (ORDER BY event_a) / {_BATCH_BYTES}) AS BIGINT) AS byte_batch, "
        f"CAST(floor(row_number() OVER (ORDER BY event_a) / {_BATCH_PAIRS}) AS BIGINT) AS pair_batch FROM ("
        "SELECT p.event_a, p.event_b, p.dtype AS dtype_a, h.dtype AS dtype_b, 8 * p.size AS num_bytes "
        "FROM element_pair AS p JOIN health_b AS h ON h.event_index = p.event_b "
        f"WHERE p.shape = h.shape AND h.dtype IN ({names}) "
        f"AND {precision_sql('kind', 'p.dtype')} = {precision_sql('kind', 'h.dtype')}) AS e"
    )
    for byte_batch, pair_batch in work.rows("SELECT DISTINCT byte_batch, pair_batch FROM element_batch ORDER BY ALL"):
        yield work.arrow(
            "SELECT event_a, event_b, dtype_a, dtype_b FROM element_batch "
            "WHERE byte_batch = ? AND pair_batch = ? ORDER BY event_a",
            [byte_batch, pair_batch],
        )


def _values(side: Side, events: npt.NDArray[np.int64]) -> pa.Table:
    """Returns event_index and value of the tensors whose values were recorded."""
    return side.logdir.arrow(
        "SELECT event_index, value FROM tensor_value WHERE run_id = $run_id AND event_index >= $first "
        "AND event_index <= $last AND event_index IN (SELECT unnest($events))",
        {"run_id": side.run_id, "first": int(events.min()), "last": int(events.max()), "events": events.tolist()},
    )


def _differences(pairs: pa.Table, sides: Sides, eps: float, tolerance: Tolerance) -> tuple[pa.Table | None, float]:
    """Returns the differences of some pairs, and the largest eps of the dtypes with a difference so far."""
    events = [pairs.column(f"event_{name}").to_numpy() for name in SIDES]
    tables = [_values(side, of_side) for side, of_side in zip(sides, events, strict=True)]
    rows_of_sides = [_rows_of(table, of_side) for table, of_side in zip(tables, events, strict=True)]
    dtypes_of_pairs = list(zip(*(pairs.column(f"dtype_{name}").to_pylist() for name in SIDES), strict=True))
    is_kept = (rows_of_sides[0] >= 0) & (rows_of_sides[1] >= 0)
    groups: dict[tuple[str, str], list[int]] = {}
    for index in np.flatnonzero(is_kept).tolist():
        groups.setdefault(dtypes_of_pairs[index], []).append(index)
    chosen, measured = [], []
    for dtypes, indexes in groups.items():
        members = np.array(indexes, np.int64)
        a, sizes_a = _joined(tables[0], rows_of_sides[0][members], dtypes[0])
        b, sizes_b = _joined(tables[1], rows_of_sides[1][members], dtypes[1])
        if not np.array_equal(sizes_a, sizes_b):
            continue  # values that do not match their shapes, as in a damaged part
        group = _Group(dtypes, a, b, sizes_a)
        chosen.append((members, group))
        if dtypes[0] != dtypes[1] or group.has_difference:
            eps = max(eps, PRECISIONS[dtypes[0]].eps, PRECISIONS[dtypes[1]].eps)
    for members, group in chosen:
        rtol = min(UNITS * eps, MAX_RTOL) if tolerance.rtol is None else tolerance.rtol
        measured.append(group.rows(events[0][members], rtol))
    return (pa.concat_tables(measured) if measured else None), eps


class _Group:
    """The concatenated elements of several pairs with the same dtypes."""

    def __init__(self, dtypes: tuple[str, str], a: Array, b: Array, sizes: npt.NDArray[np.int64]) -> None:
        self._is_exact = PRECISIONS[dtypes[0]].kind not in ("float", "complex")
        self._a, self._b = a, b
        self._sizes = sizes
        self._starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
        self._distance = element_distance(a, b)
        self.has_difference = bool(self._distance.any())

    def rows(self, events: npt.NDArray[np.int64], rtol: float) -> pa.Table:
        starts = self._starts
        if self._is_exact:
            num_apart = np.add.reduceat(self._distance, starts)
            zeros = np.zeros(len(starts))
            return _table(events, num_apart, zeros, zeros, num_apart, zeros)
        is_nonfinite = np.isinf(self._distance)
        distance = np.where(is_nonfinite, 0.0, self._distance)
        scales = [np.maximum.reduceat(_magnitudes(side), starts) for side in (self._a, self._b)]
        limits = np.repeat(rtol * np.maximum(*scales), self._sizes)
        return _table(
            events,
            np.maximum.reduceat(distance, starts),
            scales[0],
            scales[1],
            np.add.reduceat((distance > limits).astype(np.int64), starts),
            np.add.reduceat(is_nonfinite.astype(np.int64), starts),
        )


def _magnitudes(elements: Array) -> npt.NDArray[np.float64]:
    with np.errstate(all="ignore"):
        magnitudes = np.abs(elements).astype(np.float64)
    magnitudes[~np.isfinite(magnitudes)] = 0.0
    return magnitudes


def _table(events: npt.NDArray[np.int64], *columns: npt.NDArray[np.generic]) -> pa.Table:
    names = ("difference", "scale_a", "scale_b", "num_apart", "num_nonfinite")
    kinds = (np.float64, np.float64, np.float64, np.int64, np.int64)
    cells = {name: column.astype(kind) for name, column, kind in zip(names, columns, kinds, strict=True)}
    return pa.table({"event_a": events, **cells})


def _rows_of(table: pa.Table, events: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the row of each event in a table, or -1 if the event has no row."""
    table_events = table.column("event_index").to_numpy()
    if not len(table_events):
        return np.full(len(events), -1, np.int64)
    order = np.argsort(table_events)
    ranks = np.minimum(np.searchsorted(table_events, events, sorter=order), len(table_events) - 1)
    return np.where(table_events[order[ranks]] == events, order[ranks], -1)


def _joined(table: pa.Table, rows: npt.NDArray[np.int64], dtype: str) -> tuple[Array, npt.NDArray[np.int64]]:
    """Returns the concatenated elements of rows of a table, and the number of elements of each row."""
    values = table.column("value").combine_chunks().cast(pa.large_binary()).take(pa.array(rows))
    offsets = np.frombuffer(values.buffers()[1], np.int64)[: len(values) + 1]
    element_buffer = values.buffers()[2]
    raw = np.frombuffer(element_buffer if element_buffer is not None else b"", np.uint8)[offsets[0] : offsets[-1]]
    elements = decode(raw, dtype)
    assert elements is not None
    itemsize = len(raw) // len(elements) if len(elements) else 1
    sizes = pc.binary_length(values).to_numpy() // itemsize
    return elements, sizes.astype(np.int64)
