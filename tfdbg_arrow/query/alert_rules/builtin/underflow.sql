-- severity: warning
-- message: {value:.1%} of the elements in the last quarter of its tensors are subnormal or zero, and that share grew.
-- parameter: share 0.1 Minimum share of subnormal and zero elements in the last quarter of the tensors.
-- parameter: growth 2.0 Minimum ratio of this share to the share in the first quarter.
-- parameter: min_events 8.0 Minimum number of tensors.
-- One row is one op output whose elements vanish: the share of subnormal and zero elements grows, and some are subnormal.
-- Needs the mode FULL_NUMERICS.
WITH quarters AS (
    SELECT
        run_id, graph_id, op_name, op_type, output_slot, event_index, size, num_zero, num_subnormal,
        ntile(4) OVER (PARTITION BY run_id, graph_id, op_name, output_slot ORDER BY event_index) AS quarter
    FROM tensor_health
    WHERE scope = 'graph' AND num_subnormal IS NOT NULL AND size > 0
),
shares AS (
    SELECT
        run_id, graph_id, op_name, op_type, output_slot,
        min(CASE WHEN quarter = 4 AND num_subnormal > 0 THEN event_index END) AS first_event_index,
        max(CASE WHEN quarter = 4 AND num_subnormal > 0 THEN event_index END) AS last_event_index,
        sum(CASE WHEN num_subnormal > 0 THEN 1 ELSE 0 END) AS num_events,
        count(*) AS num_tensors,
        CAST(sum(CASE WHEN quarter = 1 THEN num_zero + num_subnormal ELSE 0 END) AS DOUBLE)
            / sum(CASE WHEN quarter = 1 THEN size ELSE 0 END) AS before,
        CAST(sum(CASE WHEN quarter = 4 THEN num_zero + num_subnormal ELSE 0 END) AS DOUBLE)
            / nullif(sum(CASE WHEN quarter = 4 THEN size ELSE 0 END), 0) AS now
    FROM quarters
    GROUP BY run_id, graph_id, op_name, op_type, output_slot
)
SELECT
    run_id,
    graph_id,
    op_name,
    op_type,
    output_slot,
    first_event_index,
    last_event_index,
    num_events,
    now AS value
FROM shares
WHERE num_tensors >= {min_events}
    AND first_event_index IS NOT NULL
    AND now >= {share}
    AND now >= before * {growth}
