-- severity: warning
-- message: Each of its last updates is at least {value:.3g} times as large as the variable itself, by their root mean squares.
-- parameter: limit 0.5 Minimum ratio of an update that is too large.
-- parameter: min_events 5.0 Number of its last updates to examine.
-- parameter: warm_up 10.0 Number of updates before these, in which a variable that began at zero may still grow.
-- One row is one read of a variable whose last updates, which an op adds to it or subtracts from it, are all too large
-- compared with the variable's value as read in the same run of the graph. Variables that only an optimizer or a metric
-- reads are its own state, which may change fast. If the graph reads a variable several times, it is the read whose name
-- comes first. Needs the mode FULL_NUMERICS.
WITH updates AS (
    SELECT
        v.run_id, v.graph_id, v.op_name, v.op_type, v.output_slot, v.event_index, w.op_name AS writer,
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
        AND r.op_type = 'ReadVariableOp' AND coalesce(r.role, '') NOT IN ('optimizer', 'metric')
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
    GROUP BY v.run_id, v.graph_id, v.op_name, v.op_type, v.output_slot, v.event_index, w.op_name
),
recent AS (
    SELECT
        *,
        row_number() OVER (PARTITION BY run_id, graph_id, op_name, writer ORDER BY event_index DESC) AS place,
        count(*) OVER (PARTITION BY run_id, graph_id, op_name, writer) AS num_updates
    FROM updates
),
large AS (
    SELECT
        run_id, graph_id, op_name, op_type, output_slot, writer,
        min(event_index) AS first_event_index,
        max(event_index) AS last_event_index,
        count(*) AS num_events,
        min(ratio) AS value
    FROM recent
    WHERE place <= {min_events} AND num_updates >= {min_events} + {warm_up}
    GROUP BY run_id, graph_id, op_name, op_type, output_slot, writer
    HAVING min(ratio) >= {limit}
),
named AS (
    SELECT *, row_number() OVER (PARTITION BY run_id, graph_id, writer ORDER BY op_name) AS name_place FROM large
)
SELECT run_id, graph_id, op_name, op_type, output_slot, first_event_index, last_event_index, num_events, value
FROM named
WHERE name_place = 1
