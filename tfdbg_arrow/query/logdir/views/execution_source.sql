-- One row is one eager op or function call, with the line of the user's code that ran it.
--   run_id, execution_index  identify it
--   event_index    its position among all events
--   wall_time_ns   when it was recorded, in nanoseconds since 1970-01-01T00:00:00Z
--   op_type        op type, or the function's runtime name
--   graph_name     name of the called function's graph; NULL for an op
--   num_inputs     number of input tensors
--   num_outputs    number of output tensors
--   num_bad        number of recorded tensors of the op, or of the call and everything in it, with an infinity or a NaN
--   layer, role    the Keras layer or module that ran it, and its purpose; NULL if not recorded
--   forward_execution_index  for a gradient, the execution whose gradient it computes, which is also a row of this view
--   file_path      the user's file; NULL if the stack has no frame of the user's code
--   lineno         line number, from 1
--   func           name of the user's function
--   code           text of the line; NULL if the source could not be read
SELECT
    e.run_id,
    e.execution_index,
    e.event_index,
    e.wall_time_ns,
    e.op_type,
    g.graph_name,
    e.num_inputs,
    e.num_outputs,
    coalesce(b.num_bad, 0) AS num_bad,
    e.layer,
    e.role,
    e.forward_execution_index,
    s.file_path,
    s.lineno,
    s.func,
    s.code
FROM execution AS e
LEFT JOIN graph AS g ON g.run_id = e.run_id AND g.graph_id = e.graph_id
LEFT JOIN user_frame AS s ON s.run_id = e.run_id AND s.stack_trace_id = e.stack_trace_id
LEFT JOIN (
    SELECT run_id, execution_index, count(*) AS num_bad
    FROM tensor_health
    WHERE has_inf_or_nan AND scope <> 'external' AND execution_index IS NOT NULL
    GROUP BY run_id, execution_index
) AS b ON b.run_id = e.run_id AND b.execution_index = e.execution_index
