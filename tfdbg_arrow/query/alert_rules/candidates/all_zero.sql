-- The rule also needs the outputs of other ops and with fewer tensors, because they may be inputs.
SELECT run_id, graph_id, op_name, op_type, output_slot
FROM derived.op_extremes
WHERE max_nonzero = 0 AND graph_id IS NOT NULL
