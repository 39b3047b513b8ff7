-- One row is one recorded tensor that holds an infinity or a NaN, with the names of its op, graph and device.
--   run_id, event_index, wall_time_ns, step  as in tensor_health
--   scope          `graph`, `execution` or `external`
--   op_type        op type, or the function's name; NULL for an eager tensor that no recorded op created
--   op_name        the op in its graph; NULL outside graphs
--   graph_name     name of that graph; NULL outside graphs
--   output_slot    which output of the op, from 0
--   iteration      loop iteration, from 0; NULL if unknown
--   device_name    device on which it was computed; NULL if unknown
--   layer, role    the Keras layer or module of the op, and its purpose; NULL if not recorded
--   forward_graph_id, forward_op_name  for a gradient, the op whose gradient it computes; NULL for an eager tensor
--   forward_execution_index  for an eager gradient, the execution whose gradient it computes
--   dtype, shape, size, the six counts, first_bad_index and num_bad_slices  as in tensor_health
SELECT
    h.run_id,
    h.event_index,
    h.wall_time_ns,
    h.step,
    h.scope,
    h.op_type,
    h.op_name,
    g.graph_name,
    h.output_slot,
    h.iteration,
    d.device_name,
    coalesce(o.layer, e.layer) AS layer,
    coalesce(o.role, e.role) AS role,
    o.forward_graph_id,
    o.forward_op_name,
    e.forward_execution_index,
    h.dtype,
    h.shape,
    h.size,
    h.num_neg_inf,
    h.num_pos_inf,
    h.num_nan,
    h.num_neg_finite,
    h.num_zero,
    h.num_pos_finite,
    h.first_bad_index,
    h.num_bad_slices
FROM tensor_health AS h
LEFT JOIN graph AS g ON g.run_id = h.run_id AND g.graph_id = h.graph_id
LEFT JOIN device AS d ON d.run_id = h.run_id AND d.device_id = h.device_id
LEFT JOIN recorded_op AS o ON o.run_id = h.run_id AND o.graph_id = h.graph_id AND o.op_name = h.op_name
LEFT JOIN execution AS e
    ON e.run_id = h.run_id AND e.execution_index = h.execution_index AND h.scope = 'execution'
WHERE h.has_inf_or_nan
