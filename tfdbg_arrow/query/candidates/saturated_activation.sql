SELECT run_id, graph_id, op_name, op_type, output_slot
FROM derived.op_digest
WHERE num_tensors >= {min_events}
    AND (op_type = 'Sigmoid' OR op_type = 'Tanh' AND max_square >= CAST(0.999 AS DOUBLE) - {slope})
