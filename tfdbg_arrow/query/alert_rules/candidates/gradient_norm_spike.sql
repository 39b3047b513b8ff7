-- The mean of norms is at least their minimum. The factor allows for rounding. A norm beyond the range of DOUBLE is infinite in
-- the rule, but clipped in the digest.
SELECT run_id, graph_id, op_name, op_type, output_slot
FROM derived.op_extremes
WHERE is_gradient
    AND num_norms > 10
    AND (max_norm >= CAST(0.999 AS DOUBLE) * {growth} * min_norm OR max_norm >= 1e300 OR max_norm IS NULL)
