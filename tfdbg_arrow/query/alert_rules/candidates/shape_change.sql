SELECT run_id, graph_id, op_name, op_type, output_slot
FROM derived.op_extremes
WHERE min_shape_hash <> max_shape_hash AND graph_id IS NOT NULL
