-- severity: warning
-- message: All elements of its {value:,.0f} tensors are zero.
-- parameter: min_events 3.0 Minimum number of tensors.
-- One row is one op output with more than one element that only ever held zeros. Ops that create constants or zeros, and
-- reads of variables, are excluded.
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
WHERE scope = 'graph'
    AND num_zero IS NOT NULL
    AND size > 1
    AND op_type NOT IN ('BroadcastTo', 'Const', 'Fill', 'ReadVariableOp', 'Zeros', 'ZerosLike')
GROUP BY run_id, graph_id, op_name, op_type, output_slot
HAVING min(CASE WHEN num_zero = size THEN 1 ELSE 0 END) = 1 AND count(*) >= {min_events}
