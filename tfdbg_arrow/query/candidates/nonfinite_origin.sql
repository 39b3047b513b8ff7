-- rows: bad
SELECT run_id, graph_id, op_name, op_type, output_slot
FROM derived.op_digest
WHERE num_bad > 0
