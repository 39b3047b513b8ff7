SELECT run_id, graph_id, op_name, op_type, output_slot
FROM derived.op_digest
WHERE is_gradient AND max_magnitude >= {limit}
