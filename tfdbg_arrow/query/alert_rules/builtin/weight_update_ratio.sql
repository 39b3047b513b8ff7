-- severity: warning
-- message: One update is {value:.3g} times as large as the variable that it changes, by their root mean squares.
-- parameter: limit 0.1 Minimum ratio of an update that is too large.
-- One row is one value that is added to a variable, or subtracted from it, and is too large compared with the variable's
-- value as read in the same run of the graph. Needs the mode FULL_NUMERICS.
WITH updates AS (
    SELECT
        u.run_id, u.graph_id, u.op_name, u.op_type, u.output_slot, u.event_index,
        max(
            sqrt(u.mean_finite * u.mean_finite + u.stddev_finite * u.stddev_finite)
            / sqrt(v.mean_finite * v.mean_finite + v.stddev_finite * v.stddev_finite)
        ) AS ratio
    FROM graph_op AS w
    JOIN graph_op_input AS w_resource
        ON w_resource.run_id = w.run_id AND w_resource.graph_id = w.graph_id AND w_resource.op_name = w.op_name
        AND w_resource.input_index = 0 AND NOT w_resource.is_control
    JOIN graph_op_input AS w_value
        ON w_value.run_id = w.run_id AND w_value.graph_id = w.graph_id AND w_value.op_name = w.op_name
        AND w_value.input_index = 1 AND NOT w_value.is_control
    JOIN graph_op_input AS r_resource
        ON r_resource.run_id = w.run_id AND r_resource.graph_id = w.graph_id
        AND r_resource.source_op_name = w_resource.source_op_name AND NOT r_resource.is_control
    JOIN graph_op AS r
        ON r.run_id = w.run_id AND r.graph_id = w.graph_id AND r.op_name = r_resource.op_name
        AND r.op_type = 'ReadVariableOp'
    JOIN tensor_health AS u
        ON u.run_id = w.run_id AND u.graph_id = w.graph_id
        AND u.op_name = w_value.source_op_name AND u.output_slot = w_value.source_output_slot
    JOIN tensor_health AS v
        ON v.run_id = w.run_id AND v.graph_id = w.graph_id AND v.op_name = r.op_name AND v.output_slot = 0
        AND v.step_id = u.step_id AND v.frame_id = u.frame_id AND v.iteration = u.iteration
        AND v.call_site = u.call_site
    WHERE w.op_type IN ('AssignAddVariableOp', 'AssignSubVariableOp')
        AND NOT u.has_inf_or_nan AND NOT v.has_inf_or_nan
        AND v.max_abs_finite > 0 AND u.mean_finite IS NOT NULL AND v.mean_finite IS NOT NULL
    GROUP BY u.run_id, u.graph_id, u.op_name, u.op_type, u.output_slot, u.event_index
)
SELECT
    run_id,
    graph_id,
    op_name,
    op_type,
    output_slot,
    min(event_index) AS first_event_index,
    max(event_index) AS last_event_index,
    count(*) AS num_events,
    max(ratio) AS value
FROM updates
WHERE ratio >= {limit}
GROUP BY run_id, graph_id, op_name, op_type, output_slot
