-- The mean of any norms is at least the least of them. The factor allows for rounding.
SELECT d.run_id, d.graph_id, d.op_name, d.op_type, d.output_slot
FROM derived.op_digest AS d
JOIN gradient_op AS g ON g.run_id = d.run_id AND g.graph_id = d.graph_id AND g.op_name = d.op_name
WHERE d.num_tensors > 10
    AND d.max_size * d.max_square >= CAST(0.999 AS DOUBLE) * {growth} * {growth} * d.min_size * d.min_square
