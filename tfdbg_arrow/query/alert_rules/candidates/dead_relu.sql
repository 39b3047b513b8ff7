SELECT run_id, graph_id, op_name, op_type, output_slot
FROM derived.op_extremes
WHERE op_type IN ('Relu', 'Relu6') AND max_zero_share >= {share} AND num_tensors >= {min_events}
