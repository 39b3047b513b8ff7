-- The value that is added, the scalar that multiplies it, and all reads of the variable. If no value is added, the reads
-- alone: the distance between two of them, as points (mean, stddev), bounds the update. The factors allow for rounding. The
-- comparisons with 1e300 find infinite squares, which are clipped to the range of DOUBLE.
WITH large_update AS (
    SELECT DISTINCT p.run_id, p.graph_id, p.u_name, p.u_slot, p.f_name, p.f_slot
    FROM derived.weight_update AS p
    JOIN derived.op_extremes AS u
        ON u.run_id = p.run_id AND u.graph_id = p.graph_id AND u.op_name = p.u_name AND u.output_slot = p.u_slot
    JOIN derived.op_extremes AS v
        ON v.run_id = p.run_id AND v.graph_id = p.graph_id AND v.op_name = p.v_name AND v.output_slot = 0
    LEFT JOIN derived.op_extremes AS f
        ON f.run_id = p.run_id AND f.graph_id = p.graph_id AND f.op_name = p.f_name AND f.output_slot = p.f_slot
    WHERE u.max_square >= CAST(0.999 AS DOUBLE) * {limit} * {limit} * v.min_square / coalesce(f.max_square, 1)
        OR u.max_square >= 1e300 OR f.max_square >= 1e300
),
large AS (
    SELECT p.run_id, p.graph_id, p.u_name, p.u_slot, p.f_name, p.f_slot, p.v_name
    FROM derived.weight_update AS p
    JOIN large_update AS l
        ON l.run_id = p.run_id AND l.graph_id = p.graph_id AND l.u_name = p.u_name AND l.u_slot = p.u_slot
),
moving AS (
    SELECT p.run_id, p.graph_id, p.v_name
    FROM derived.weight_update AS p
    JOIN derived.op_extremes AS v
        ON v.run_id = p.run_id AND v.graph_id = p.graph_id AND v.op_name = p.v_name AND v.output_slot = 0
    WHERE p.u_name IS NULL
        AND (
            4 * (v.max_square - v.min_stddev * v.min_stddev)
            + (v.max_stddev - v.min_stddev) * (v.max_stddev - v.min_stddev)
            >= CAST(0.999 AS DOUBLE) * {limit} * {limit} * v.min_square - 1e-9 * v.max_square
            OR v.max_square >= 1e300
        )
)
SELECT d.run_id, d.graph_id, d.op_name, d.op_type, d.output_slot
FROM derived.op_extremes AS d
JOIN (
    SELECT run_id, graph_id, u_name AS op_name, u_slot AS output_slot FROM large
    UNION
    SELECT run_id, graph_id, f_name AS op_name, f_slot AS output_slot FROM large
    UNION
    SELECT run_id, graph_id, v_name AS op_name, 0 AS output_slot FROM large
    UNION
    SELECT run_id, graph_id, v_name AS op_name, 0 AS output_slot FROM moving
) AS l ON l.run_id = d.run_id AND l.graph_id = d.graph_id AND l.op_name = d.op_name AND l.output_slot = d.output_slot
