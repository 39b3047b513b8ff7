-- severity: info
-- message: It had {value:,.0f} different shapes.
-- parameter: num_shapes 4.0 Minimum number of different shapes.
-- One row is one op output whose shape keeps changing.
SELECT
    run_id,
    graph_id,
    op_name,
    op_type,
    output_slot,
    min(event_index) AS first_event_index,
    max(event_index) AS last_event_index,
    count(*) AS num_events,
    CAST(count(DISTINCT shape) AS DOUBLE) AS value
FROM tensor_health
WHERE scope = 'graph' AND shape IS NOT NULL
GROUP BY run_id, graph_id, op_name, op_type, output_slot
HAVING count(DISTINCT shape) >= {num_shapes}
