-- One row is one data edge of a graph in one run of it: a tensor, and one output of an op that took it as input, if both
-- were recorded in the same call, call site and iteration. Edges over borders (arguments, calls, loops) are not included.
--   run_id, graph_id, step_id, frame_id, iteration, call_site, execution_index  where and when
--   source_event_index, source_op_name, source_op_type, source_output_slot  the input tensor
--   source_layer, source_role  the Keras layer or module of the source op, and its purpose; NULL if not recorded
--   event_index, op_name, op_type, output_slot  the output tensor of the op
--   layer, role    the Keras layer or module of the op, and its purpose; NULL if not recorded
--   input_index    which input of the op the source tensor was
--   source_is_bad, is_bad  whether the tensor holds an infinity or a NaN; NULL if not measured
--   source_num_nan, source_num_inf, num_nan, num_inf  number of such elements; NULL if not measured
SELECT
    b.run_id,
    b.graph_id,
    b.step_id,
    b.frame_id,
    b.iteration,
    b.call_site,
    b.execution_index,
    a.event_index AS source_event_index,
    a.op_name AS source_op_name,
    a.op_type AS source_op_type,
    a.output_slot AS source_output_slot,
    p.layer AS source_layer,
    p.role AS source_role,
    b.event_index,
    b.op_name,
    b.op_type,
    b.output_slot,
    o.layer,
    o.role,
    i.input_index,
    a.has_inf_or_nan AS source_is_bad,
    b.has_inf_or_nan AS is_bad,
    a.num_nan AS source_num_nan,
    a.num_neg_inf + a.num_pos_inf AS source_num_inf,
    b.num_nan,
    b.num_neg_inf + b.num_pos_inf AS num_inf
FROM tensor_health AS b
JOIN graph_op_input AS i
    ON i.run_id = b.run_id AND i.graph_id = b.graph_id AND i.op_name = b.op_name AND NOT i.is_control
JOIN tensor_health AS a
    ON a.run_id = b.run_id
    AND a.graph_id = b.graph_id
    AND a.op_name = i.source_op_name
    AND a.output_slot = i.source_output_slot
    AND a.step_id = b.step_id
    AND a.frame_id = b.frame_id
    AND a.iteration = b.iteration
    AND a.call_site = b.call_site
    AND a.execution_index IS NOT DISTINCT FROM b.execution_index
LEFT JOIN recorded_op AS p ON p.run_id = a.run_id AND p.graph_id = a.graph_id AND p.op_name = a.op_name
LEFT JOIN recorded_op AS o ON o.run_id = b.run_id AND o.graph_id = b.graph_id AND o.op_name = b.op_name
WHERE a.scope = 'graph' AND b.scope = 'graph'
