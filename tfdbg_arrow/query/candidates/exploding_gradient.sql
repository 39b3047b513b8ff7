SELECT d.run_id, d.graph_id, d.op_name, d.op_type, d.output_slot
FROM derived.op_digest AS d
JOIN gradient_op AS g ON g.run_id = d.run_id AND g.graph_id = d.graph_id AND g.op_name = d.op_name
WHERE d.max_magnitude >= {limit}
