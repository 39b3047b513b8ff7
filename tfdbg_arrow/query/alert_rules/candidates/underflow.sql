SELECT run_id, graph_id, op_name, op_type, output_slot
FROM derived.op_extremes
WHERE max_subnormal > 0 AND num_tensors >= {min_events} AND graph_id IS NOT NULL
