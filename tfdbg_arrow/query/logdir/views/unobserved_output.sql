-- One row is one output of an op of a graph that is not recorded in tensor_health, with the reason.
--   run_id, graph_id, op_name, output_slot  identify it
--   graph_name     the graph's name
--   op_type        the op's type
--   dtype          its dtype; integers, strings and handles cannot be infinite or NaN
--   reason         the column not_recorded_reason of graph_op_output
--   stack_trace_id the Python stack that created the op; NULL if unknown
SELECT
    t.run_id,
    t.graph_id,
    g.graph_name,
    t.op_name,
    o.op_type,
    t.output_slot,
    t.dtype,
    t.not_recorded_reason AS reason,
    o.stack_trace_id
FROM graph_op_output AS t
LEFT JOIN graph_op AS o ON o.run_id = t.run_id AND o.graph_id = t.graph_id AND o.op_name = t.op_name
LEFT JOIN graph AS g ON g.run_id = t.run_id AND g.graph_id = t.graph_id
WHERE NOT t.is_recorded
