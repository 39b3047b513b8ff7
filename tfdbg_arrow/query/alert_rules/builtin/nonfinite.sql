-- severity: warning
-- message: Number of its tensors with an infinity or a NaN: {value:,.0f}.
-- One row is one op output that ever held an infinity or a NaN, whether it is an origin or not.
SELECT
    run_id,
    graph_id,
    op_name,
    op_type,
    output_slot,
    min(event_index) AS first_event_index,
    max(event_index) AS last_event_index,
    count(*) AS num_events,
    CAST(count(*) AS DOUBLE) AS value
FROM tensor_health
WHERE has_inf_or_nan
GROUP BY run_id, graph_id, op_name, op_type, output_slot
