SELECT run_id, graph_id, op_name, op_type, output_slot
FROM derived.op_extremes
WHERE num_tensors >= {min_events}
    AND (
        op_type = 'Sigmoid' AND 4 * min_slope <= {slope} + CAST(0.001 AS DOUBLE)
        OR op_type = 'Tanh' AND max_square >= CAST(0.999 AS DOUBLE) - {slope}
    )
