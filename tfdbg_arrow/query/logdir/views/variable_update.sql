-- One row is one update of a variable, by an op of trained_variable, with the content that the graph read in the same run.
-- Some optimizers compute what they add from a state of their own. Then the next read of the variable gives the smallest
-- update that can have led to its mean and deviation, if nothing between the two reads is missing in the recording.
-- Needs the mode FULL_NUMERICS. Only finite tensors are considered.
--   run_id, graph_id, op_name  the op that changes the variable
--   read_op_name   the op that reads it
--   event_index    the row of the read in tensor_health
--   update_event_index  the row of the tensor that is added; that of the read if there is no such tensor
--   update_step, update_execution_index  the step and the execution of that row
--   update_rms     root mean square of the update, or the smallest that it can have
--   variable_rms   root mean square of the content that was read
--   is_smallest    1 if update_rms is the smallest that the update can have, 0 if it is that of the update
WITH wanted AS (
    SELECT run_id, graph_id, read_op_name AS op_name, 0 AS output_slot FROM trained_variable
    UNION
    SELECT run_id, graph_id, added_op_name, added_output_slot FROM trained_variable WHERE added_op_name IS NOT NULL
    UNION
    SELECT run_id, graph_id, rate_op_name, rate_output_slot FROM trained_variable WHERE rate_op_name IS NOT NULL
),
measured AS (
    SELECT
        h.run_id, h.graph_id, h.op_name, h.output_slot, h.event_index, h.execution_index, h.step,
        h.step_id, h.frame_id, h.iteration, h.call_site, h.mean_finite, h.stddev_finite, h.has_inf_or_nan,
        sqrt(h.mean_finite * h.mean_finite + h.stddev_finite * h.stddev_finite) AS rms
    FROM tensor_health AS h
    JOIN wanted AS n
        ON n.run_id = h.run_id AND n.graph_id = h.graph_id AND n.op_name = h.op_name AND n.output_slot = h.output_slot
    WHERE h.scope = 'graph' AND h.mean_finite IS NOT NULL
),
fixed AS (
    SELECT run_id, graph_id, op_name FROM graph_op WHERE op_type = 'VarHandleOp'
    UNION
    SELECT run_id, graph_id, op_name FROM graph_function_input WHERE is_capture
),
hidden AS (
    SELECT t.run_id, t.graph_id, t.read_op_name, min(t.op_name) AS op_name
    FROM trained_variable AS t
    JOIN fixed AS x ON x.run_id = t.run_id AND x.graph_id = t.graph_id AND x.op_name = t.variable_op_name
    WHERE t.added_op_name IS NULL
        AND t.run_id NOT IN (SELECT run_id FROM capture_stat WHERE stat = 'dropped')
    GROUP BY t.run_id, t.graph_id, t.read_op_name
),
complete AS (
    SELECT
        run_id, execution_index,
        execution_index - row_number() OVER (PARTITION BY run_id ORDER BY execution_index) AS stretch
    FROM execution
),
following AS (
    SELECT
        m.run_id, m.graph_id, d.op_name, m.op_name AS read_op_name, m.event_index, m.step, m.execution_index, c.stretch, m.rms,
        m.mean_finite, m.stddev_finite, m.has_inf_or_nan,
        lead(c.stretch) OVER (PARTITION BY m.run_id, m.graph_id, m.op_name ORDER BY m.event_index) AS next_stretch,
        lead(m.mean_finite) OVER (PARTITION BY m.run_id, m.graph_id, m.op_name ORDER BY m.event_index) AS next_mean,
        lead(m.stddev_finite) OVER (PARTITION BY m.run_id, m.graph_id, m.op_name ORDER BY m.event_index) AS next_stddev,
        lead(m.has_inf_or_nan) OVER (PARTITION BY m.run_id, m.graph_id, m.op_name ORDER BY m.event_index) AS next_bad
    FROM measured AS m
    JOIN hidden AS d ON d.run_id = m.run_id AND d.graph_id = m.graph_id AND d.read_op_name = m.op_name
    JOIN complete AS c ON c.run_id = m.run_id AND c.execution_index = m.execution_index
    WHERE m.output_slot = 0
)
SELECT
    t.run_id,
    t.graph_id,
    t.op_name,
    t.read_op_name,
    v.event_index,
    u.event_index AS update_event_index,
    u.step AS update_step,
    u.execution_index AS update_execution_index,
    CASE WHEN t.rate_op_name IS NULL THEN u.rms ELSE u.rms * f.rms END AS update_rms,
    v.rms AS variable_rms,
    0 AS is_smallest
FROM trained_variable AS t
JOIN measured AS u
    ON u.run_id = t.run_id AND u.graph_id = t.graph_id AND u.op_name = t.added_op_name
    AND u.output_slot = t.added_output_slot
LEFT JOIN measured AS f
    ON f.run_id = t.run_id AND f.graph_id = t.graph_id AND f.op_name = t.rate_op_name
    AND f.output_slot = t.rate_output_slot
    AND f.step_id = u.step_id AND f.frame_id = u.frame_id AND f.iteration = u.iteration AND f.call_site = u.call_site
JOIN measured AS v
    ON v.run_id = t.run_id AND v.graph_id = t.graph_id AND v.op_name = t.read_op_name AND v.output_slot = 0
    AND v.step_id = u.step_id AND v.frame_id = u.frame_id AND v.iteration = u.iteration AND v.call_site = u.call_site
WHERE NOT u.has_inf_or_nan AND NOT v.has_inf_or_nan AND (t.rate_op_name IS NULL OR NOT f.has_inf_or_nan)
UNION ALL
SELECT
    run_id,
    graph_id,
    op_name,
    read_op_name,
    event_index,
    event_index AS update_event_index,
    step AS update_step,
    execution_index AS update_execution_index,
    sqrt(
        (next_mean - mean_finite) * (next_mean - mean_finite)
        + (next_stddev - stddev_finite) * (next_stddev - stddev_finite)
    ) AS update_rms,
    rms AS variable_rms,
    1 AS is_smallest
FROM following
WHERE stretch = next_stretch AND NOT has_inf_or_nan AND NOT next_bad
