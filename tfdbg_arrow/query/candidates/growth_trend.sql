-- Geometric means lie between the extremes. The factor allows for rounding.
SELECT run_id, graph_id, op_name, op_type, output_slot
FROM derived.op_digest
WHERE num_tensors >= {min_events} AND max_magnitude >= CAST(0.999 AS DOUBLE) * {growth} * min_magnitude
