-- Where the means of the first and last quarter, each of a seventh of all at least, lie so far apart, the standard deviation
-- is at least 0.267 times as much. The last term allows for rounding.
SELECT run_id, graph_id, op_name, op_type, output_slot
FROM derived.op_extremes
WHERE graph_id IS NOT NULL
    AND num_logs >= {min_events}
    AND sum_log_square / num_logs - (sum_log / num_logs) * (sum_log / num_logs)
        + CAST(1e-9 AS DOUBLE) * (1 + sum_log_square / num_logs)
        >= power(CAST(0.26 AS DOUBLE) * greatest(ln({growth}), CAST(0 AS DOUBLE)), 2)
