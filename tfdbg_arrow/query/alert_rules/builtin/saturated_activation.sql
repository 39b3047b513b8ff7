-- severity: warning
-- message: It sits at its bounds: on average its slope is {value:.2%} of the greatest.
-- parameter: slope 0.05 Greatest share of the slope.
-- parameter: min_events 5.0 How many of its last tensors.
-- One row is one Sigmoid or Tanh whose last tensors lie at the flat ends, so that no gradient passes. The mean slope is exact:
-- 4 E[y (1 - y)] of Sigmoid, 1 - E[y y] of Tanh. Needs the mode FULL_NUMERICS.
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
