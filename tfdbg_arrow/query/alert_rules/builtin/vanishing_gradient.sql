-- severity: warning
-- message: No element of this gradient ever exceeded {value:.4g} in magnitude.
-- parameter: limit 0.00000001 Maximum magnitude of a gradient that is too small.
-- parameter: min_events 3.0 Minimum number of tensors.
-- One row is one output of an op that TensorFlow created for a gradient, whose elements are all close to zero. The rule
-- all_zero finds products that are all zero. Sums are excluded, and ops that only hand them on: a sum can cancel out, as
-- the gradient of the bias of an attention's keys always does. Needs the mode FULL_NUMERICS.
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
WHERE max_abs_finite IS NOT NULL
    AND op_type NOT IN ('BiasAddGrad', 'Cast', 'ExpandDims', 'Identity', 'Reshape', 'Squeeze', 'Sum')
GROUP BY run_id, graph_id, op_name, op_type, output_slot
HAVING max(max_abs_finite) <= {limit} AND max(max_abs_finite) > 0 AND count(*) >= {min_events}
