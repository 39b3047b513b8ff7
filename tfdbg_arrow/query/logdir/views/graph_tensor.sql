-- One row is one recorded tensor of a graph, with its graph's name and the line of the user's code that created its op.
--   every column of tensor_health except the TIMESTAMP of wall_time_ns, and
--   graph_name     name of the graph
--   device_name    device on which it was computed; NULL if unknown
--   layer, role    the Keras layer or module of the op, and its purpose; NULL if not recorded
--   forward_graph_id, forward_op_name  for a gradient, the op whose gradient it computes
--   file_path, lineno, code  the user's line; NULL if the stack has no frame of the user's code
SELECT
    h.run_id,
    h.event_index,
    h.wall_time_ns,
    h.step,
    h.execution_index,
    h.step_id,
    h.frame_id,
    h.iteration,
    h.call_site,
    h.executed_graph_id,
    h.graph_id,
    g.graph_name,
    h.op_name,
    h.op_type,
    h.output_slot,
    d.device_name,
    h.dtype,
    h.shape,
    h.size,
    h.has_inf_or_nan,
    h.num_neg_inf,
    h.num_pos_inf,
    h.num_nan,
    h.num_neg_finite,
    h.num_zero,
    h.num_pos_finite,
    h.min_finite,
    h.max_finite,
    h.mean_finite,
    h.stddev_finite,
    h.max_abs_finite,
    h.num_subnormal,
    h.is_call_inferred,
    h.histogram_exponent,
    h.histogram_negative,
    h.histogram_positive,
    h.first_bad_index,
    h.num_bad_slices,
    h.scalar_value,
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
