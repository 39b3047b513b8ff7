-- One row is one output of one op in one training step, summed up over all calls and iterations of that step.
-- An eager op that ran in several layers or roles has a row for each.
--   run_id, step   the training step as marked; NULL before the first mark
--   graph_id, graph_name, op_name, op_type, output_slot  the output; the first three are NULL for an eager op
--   layer, role    the Keras layer or module of the op, and its purpose; NULL if not recorded
--   num_tensors    number of recorded tensors
--   num_bad        number of these tensors that hold an infinity or a NaN
--   size           total number of elements
--   the six counts, summed up; NULL if not measured
--   num_subnormal  total number of subnormal elements; NULL if not measured
--   min_finite, max_finite, max_abs_finite  least, greatest and largest in magnitude; NULL if not measured
SELECT
    h.run_id,
    h.step,
    h.graph_id,
    g.graph_name,
    h.op_name,
    h.op_type,
    h.output_slot,
    coalesce(o.layer, e.layer) AS layer,
    coalesce(o.role, e.role) AS role,
    count(*) AS num_tensors,
    sum(CASE WHEN h.has_inf_or_nan THEN 1 ELSE 0 END) AS num_bad,
    sum(h.size) AS size,
    sum(h.num_neg_inf) AS num_neg_inf,
    sum(h.num_pos_inf) AS num_pos_inf,
    sum(h.num_nan) AS num_nan,
    sum(h.num_neg_finite) AS num_neg_finite,
    sum(h.num_zero) AS num_zero,
    sum(h.num_pos_finite) AS num_pos_finite,
    sum(h.num_subnormal) AS num_subnormal,
    min(h.min_finite) AS min_finite,
    max(h.max_finite) AS max_finite,
    max(h.max_abs_finite) AS max_abs_finite
FROM tensor_health AS h
LEFT JOIN graph AS g ON g.run_id = h.run_id AND g.graph_id = h.graph_id
LEFT JOIN recorded_op AS o ON o.run_id = h.run_id AND o.graph_id = h.graph_id AND o.op_name = h.op_name
LEFT JOIN execution AS e
    ON e.run_id = h.run_id AND e.execution_index = h.execution_index AND h.scope = 'execution'
WHERE h.scope <> 'external'
GROUP BY h.run_id, h.step, h.graph_id, g.graph_name, h.op_name, h.op_type, h.output_slot,
    coalesce(o.layer, e.layer), coalesce(o.role, e.role)
