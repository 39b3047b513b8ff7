-- severity: warning
-- message: At least {value:.1%} of this rectifier's output is zero, in each of its last tensors.
-- parameter: share 0.99 Minimum share of zeros.
-- parameter: min_events 5.0 Number of its last tensors to examine.
-- One row is one Relu or Relu6 whose last tensors are nearly all zero.
WITH recent AS (
    SELECT
        run_id, graph_id, op_name, op_type, output_slot, event_index,
        CAST(num_zero AS DOUBLE) / size AS share,
        row_number() OVER (PARTITION BY run_id, graph_id, op_name, output_slot ORDER BY event_index DESC) AS place
    FROM tensor_health
    WHERE scope = 'graph' AND op_type IN ('Relu', 'Relu6') AND size > 0 AND num_zero IS NOT NULL
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
    min(share) AS value
FROM recent
WHERE place <= {min_events}
GROUP BY run_id, graph_id, op_name, op_type, output_slot
HAVING count(*) >= {min_events} AND min(share) >= {share}
