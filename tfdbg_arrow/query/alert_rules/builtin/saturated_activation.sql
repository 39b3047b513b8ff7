-- severity: warning
-- message: It is saturated: its mean slope is {value:.2%} of the maximum slope.
-- parameter: slope 0.05 Maximum mean slope, as a share of the maximum slope.
-- parameter: min_events 5.0 Number of its last tensors to examine.
-- One row is one Sigmoid or Tanh whose last tensors lie at the flat ends, so that no gradient passes. The mean slope is
-- exact: 4 E[y (1 - y)] for Sigmoid, 1 - E[y y] for Tanh. Needs the mode FULL_NUMERICS.
WITH recent AS (
    SELECT
        run_id, graph_id, op_name, op_type, output_slot, event_index,
        CASE op_type
            WHEN 'Sigmoid' THEN 4 * (mean_finite - mean_finite * mean_finite - stddev_finite * stddev_finite)
            ELSE 1 - mean_finite * mean_finite - stddev_finite * stddev_finite
        END AS slope,
        row_number() OVER (PARTITION BY run_id, graph_id, op_name, output_slot ORDER BY event_index DESC) AS place
    FROM tensor_health
    WHERE scope = 'graph' AND op_type IN ('Sigmoid', 'Tanh') AND mean_finite IS NOT NULL AND NOT has_inf_or_nan
)
SELECT
    run_id,
    graph_id,
    op_name,
    op_type,
    output_slot,
    min(event_index) AS first_event_index,
    max(event_index) AS last_event_index,
    count(*) AS num_events,
    max(slope) AS value
FROM recent
WHERE place <= {min_events}
GROUP BY run_id, graph_id, op_name, op_type, output_slot
HAVING count(*) >= {min_events} AND max(slope) <= {slope}
