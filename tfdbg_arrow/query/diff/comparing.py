"""How far paired tensors are apart: by shape, dtype and counts, by magnitudes, and by their elements if kept."""

from __future__ import annotations

from tfdbg_arrow.query.diff.tolerance import MAX_RTOL, UNITS, Tolerance, precision_sql
from tfdbg_arrow.query.diff.workspace import Workspace

HARD = 1e300
"""Stands for a difference without a measure: of shapes, classes of dtype, NaN and infinities."""


def compare(work: Workspace, tolerance: Tolerance) -> None:
    """Creates the table `compared` from the tables `pair` and `element_difference`.

    Its columns are those of `pair`, and: `dtype_a`, `dtype_b`, `class` and `size`; `kind` (NULL if nothing could be
    compared); `difference` and the `scale` that it is relative to; `rtol` and `slack` (the tolerance is
    `slack + rtol * scale`); `relative` (difference / scale); `excess` (difference / tolerance); `num_apart` (the
    number of elements that exceed the tolerance or differ in sign).
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
"""One row is a pair and how far it is apart. Counts are only used without magnitudes: rounding may change the sign of
an element next to zero. `is_one_zero`: one run has only zeros and the other none, for example after an underflow."""

_PRECISION_SO_FAR = """
CREATE TABLE precision_so_far AS
SELECT ordinal, max(eps) OVER (ORDER BY ordinal ROWS UNBOUNDED PRECEDING) AS eps_so_far
FROM (
    SELECT ordinal, max(CASE WHEN dtype_a <> dtype_b OR difference > 0 THEN eps ELSE 0 END) AS eps
    FROM measured GROUP BY ordinal
) AS e
"""
"""The coarsest dtype with a difference in an execution or an earlier one. Data flow follows the order of executions,
but not the order of rows."""

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
"""For counts, the tolerance is a share of the elements. If the runs compute in different precision, it is one element
and a quarter of them, because values that nearly cancel can have any sign, and small values underflow to zero."""
