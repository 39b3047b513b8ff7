-- One row is one recorded tensor of a graph, with its graph's name and the line of the user's code that created its op.
--   every column of tensor_health except wall_time, scope, tensor_id, device_id and rank
--   graph_name     name of the graph
--   device_name    device on which it was computed; NULL if unknown
--   layer, role    the Keras layer or module of the op, and its purpose; NULL if not recorded
--   forward_graph_id, forward_op_name  for a gradient, the op whose gradient it computes
--   file_path, lineno, code  the user's line; NULL if the stack has no frame of the user's code
SELECT
    {health_columns},
    g.graph_name,
    d.device_name,
    s.layer,
    s.role,
    s.forward_graph_id,
    s.forward_op_name,
    s.file_path,
    s.lineno,
    s.code
FROM tensor_health AS h
LEFT JOIN graph AS g ON g.run_id = h.run_id AND g.graph_id = h.graph_id
LEFT JOIN device AS d ON d.run_id = h.run_id AND d.device_id = h.device_id
LEFT JOIN op_source AS s ON s.run_id = h.run_id AND s.graph_id = h.graph_id AND s.op_name = h.op_name
WHERE h.scope = 'graph'
