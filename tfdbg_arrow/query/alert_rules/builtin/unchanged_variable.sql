-- severity: info
-- message: The variable read here kept the same mean, spread and range in all {value:,.0f} reads.
-- parameter: min_events 10.0 Minimum number of reads.
-- One row is one read of a variable with several elements that never changed, in a program where other variables changed.
-- This is intended for frozen weights, but not for weights that no gradient reaches. Needs the mode FULL_NUMERICS.
WITH reads AS (
    SELECT
        run_id, graph_id, op_name, op_type, output_slot,
        min(event_index) AS first_event_index,
        max(event_index) AS last_event_index,
        count(*) AS num_events,
        CASE
            WHEN min(mean_finite) = max(mean_finite)
                AND min(stddev_finite) = max(stddev_finite)
                AND min(min_finite) = max(min_finite)
                AND min(max_finite) = max(max_finite)
            THEN 1 ELSE 0
        END AS is_unchanged
    FROM tensor_health
    WHERE scope = 'graph' AND op_type = 'ReadVariableOp' AND size > 1 AND mean_finite IS NOT NULL
    GROUP BY run_id, graph_id, op_name, op_type, output_slot
),
trained AS (
    SELECT DISTINCT run_id FROM reads WHERE is_unchanged = 0
)
SELECT
    r.run_id,
    r.graph_id,
    r.op_name,
    r.op_type,
    r.output_slot,
    r.first_event_index,
    r.last_event_index,
    r.num_events,
    CAST(r.num_events AS DOUBLE) AS value
FROM reads AS r
JOIN trained AS t ON t.run_id = r.run_id
WHERE r.is_unchanged = 1 AND r.num_events >= {min_events}
