-- The first and the last quarter each hold at least a seventh of the tensors. If their means differ by d, the standard
-- deviation is at least 0.267 d. The last term allows for rounding.
SELECT run_id, graph_id, op_name, op_type, output_slot
FROM derived.op_extremes
WHERE graph_id IS NOT NULL
    AND num_logs >= {min_events}
    AND sum_log_square / num_logs - (sum_log / num_logs) * (sum_log / num_logs)
        + CAST(1e-9 AS DOUBLE) * (1 + sum_log_square / num_logs)
        >= power(CAST(0.26 AS DOUBLE) * greatest(ln({growth}), CAST(0 AS DOUBLE)), 2)
