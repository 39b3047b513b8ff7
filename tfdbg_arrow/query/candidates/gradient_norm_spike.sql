-- The mean of any norms is at least the least of them. The factor allows for rounding.
SELECT run_id, graph_id, op_name, op_type, output_slot
FROM derived.op_digest
WHERE is_gradient
    AND num_tensors > 10
    AND max_square > 0
    AND max_size * max_square >= CAST(0.999 AS DOUBLE) * {growth} * {growth} * min_size * min_square
