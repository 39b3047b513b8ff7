-- severity: warning
-- message: A gradient has an element of magnitude {value:.4g}.
-- parameter: limit 1000.0 Magnitude from which a gradient is too large.
-- One row is one output of an op that TensorFlow made for a gradient, with too large an element. Needs the mode FULL_NUMERICS.
SELECT
    run_id,
    graph_id,
    op_name,
    op_type,
    output_slot,
    min(event_index) AS first_event_index,
    max(event_index) AS last_event_index,
    count(*) AS num_events,
    max(max_abs_finite) AS value
FROM (
    SELECT h.*
    FROM tensor_health AS h
    JOIN gradient_op AS g ON g.run_id = h.run_id AND g.graph_id = h.graph_id AND g.op_name = h.op_name
    WHERE h.scope = 'graph'
) AS gradient
WHERE max_abs_finite >= {limit}
GROUP BY run_id, graph_id, op_name, op_type, output_slot
