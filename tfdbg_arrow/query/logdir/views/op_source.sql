-- One row is one op of a graph, or one node that TensorFlow's optimizer created, with the line of the user's code that
-- created it.
--   run_id, graph_id, op_name  identify it
--   graph_name     name of the graph
--   op_index       order of creation within the graph, from 0
--   op_type        type of the op
--   num_outputs    number of outputs; NULL for a node that the optimizer created
--   layer, role    the Keras layer or module of the op, and its purpose; NULL if not recorded
--   forward_graph_id, forward_op_name  for a gradient, the op whose gradient it computes, which is also a row of this view
--   file_path      the user's file; NULL if the stack has no frame of the user's code
--   lineno         line number, from 1
--   func           name of the user's function
--   code           text of the line; NULL if the source could not be read
--   stack_trace_id the complete stack
SELECT
    o.run_id,
    o.graph_id,
    g.graph_name,
    o.op_index,
    o.op_name,
    o.op_type,
    o.num_outputs,
    o.layer,
    o.role,
    o.forward_graph_id,
    o.forward_op_name,
    s.file_path,
    s.lineno,
    s.func,
    s.code,
    o.stack_trace_id
FROM recorded_op AS o
JOIN graph AS g ON g.run_id = o.run_id AND g.graph_id = o.graph_id
LEFT JOIN user_frame AS s ON s.run_id = o.run_id AND s.stack_trace_id = o.stack_trace_id
