SELECT run_id, graph_id, op_name, op_type, output_slot
FROM derived.op_extremes
WHERE is_gradient AND max_magnitude >= {limit}
