WITH
-- The sums of `cells.py`, one row for each row of the map, role and column (`place`). cells.py fills in
--   run              the run, as a literal
--   graph_labels     the labels of graph ops, eager_outputs: the sums of eager op outputs, with labels
--   place            the column of a row h of tensor_health, condition: whether it is on the axis
--   num_finite       the number of finite elements of a row h
--   statistics       the sums over rows h of one op output, sums: the names of these columns, and the sum of squares
--   other            the path of ops outside layers whose role is unknown
--   not_activations  types of ops whose outputs are not activations
--   least_of_mask    the smallest magnitude of the constant of a mask
label AS ({graph_labels}),
family AS (
    -- Graphs that were traced from one function have op outputs in common.
    SELECT g.graph_id, min(g.graph_id) OVER (PARTITION BY g.graph_name, s.file_path, s.lineno) AS family
    FROM graph AS g
    LEFT JOIN user_frame AS s ON s.run_id = g.run_id AND s.stack_trace_id = g.stack_trace_id
    WHERE g.run_id = {run}
),
leaving AS (
    -- An output of a gradient op that an op of another purpose takes.
    SELECT DISTINCT i.graph_id, i.source_op_name AS op_name, i.source_output_slot AS output_slot,
        CASE WHEN t.role = 'optimizer' THEN 1 ELSE 0 END AS is_for_optimizer
    FROM graph_op_input AS i
    JOIN label AS s ON s.graph_id = i.graph_id AND s.op_name = i.source_op_name AND s.is_gradient = 1
    JOIN label AS t ON t.graph_id = i.graph_id AND t.op_name = i.op_name AND t.is_gradient = 0
    WHERE i.run_id = {run} AND NOT i.is_control
    UNION
    SELECT r.graph_id, r.op_name, r.output_slot, 0
    FROM graph_function_output AS r
    JOIN label AS s ON s.graph_id = r.graph_id AND s.op_name = r.op_name AND s.is_gradient = 1
    WHERE r.run_id = {run} AND r.graph_id IN (SELECT graph_id FROM execution WHERE run_id = {run})
),
variable_gradient AS (
    SELECT DISTINCT graph_id, op_name, output_slot
    FROM leaving
    WHERE is_for_optimizer = (SELECT max(is_for_optimizer) FROM leaving)
),
weight_read AS (
    -- The first read, outside the optimizer, of each variable that its graph trains.
    SELECT graph_id, op_name
    FROM (
        SELECT
            r.graph_id, r.op_name,
            row_number() OVER (PARTITION BY r.graph_id, t.variable_op_name ORDER BY r.op_index, r.op_name) AS number
        FROM label AS r
        JOIN (
            SELECT DISTINCT graph_id, variable_op_name, read_op_name FROM trained_variable WHERE run_id = {run}
        ) AS t ON t.graph_id = r.graph_id AND t.read_op_name = r.op_name
        WHERE coalesce(r.role, 'forward') IN ('forward', 'loss') AND r.is_gradient = 0
    ) AS numbered
    WHERE number = 1
),
graph_output AS (
    SELECT
        h.graph_id, h.op_name, h.output_slot, {place} AS place, {num_finite} AS num_finite,
        h.has_inf_or_nan AS is_bad,
        {statistics}
    FROM tensor_health AS h
    WHERE h.run_id = {run} AND {condition} AND h.scope = 'graph'
    GROUP BY h.graph_id, h.op_name, h.output_slot, {place}, {num_finite}, h.has_inf_or_nan
),
eager_output AS ({eager_outputs}),
output AS (
    SELECT
        coalesce(l.kind, 'role') AS kind, coalesce(l.path, '{other}') AS path,
        coalesce(l.is_gradient, 0) AS is_gradient, l.role, coalesce(l.wall_time_ns, 0) AS wall_time_ns,
        coalesce(l.op_index, 0) AS op_index,
        c.family AS group_id, h.op_name, h.output_slot, h.graph_id, h.place, h.num_finite, h.is_bad,
        CASE WHEN coalesce(l.is_gradient, 0) = 0 AND coalesce(l.role, 'forward') = 'forward'
            AND l.op_type NOT IN {not_activations} THEN 1 ELSE 0 END AS is_activation,
        CASE WHEN v.op_name IS NULL THEN 0 ELSE 1 END AS is_variable_gradient,
        CASE WHEN w.op_name IS NULL THEN 0 ELSE 1 END AS is_weight,
        {sums}
    FROM graph_output AS h
    LEFT JOIN label AS l ON l.graph_id = h.graph_id AND l.op_name = h.op_name
    LEFT JOIN family AS c ON c.graph_id = h.graph_id
    LEFT JOIN variable_gradient AS v
        ON v.graph_id = h.graph_id AND v.op_name = h.op_name AND v.output_slot = h.output_slot
    LEFT JOIN weight_read AS w ON w.graph_id = h.graph_id AND w.op_name = h.op_name AND h.output_slot = 0
    UNION ALL
    SELECT
        kind, path, is_gradient, role, wall_time_ns, 0, CASE WHEN scope <> 'external' THEN stack_trace_id END, op_type,
        output_slot, NULL, place, num_finite, is_bad,
        CASE WHEN is_gradient = 0 AND coalesce(role, 'forward') = 'forward' AND op_type NOT IN {not_activations}
            THEN 1 ELSE 0 END,
        0, 0, {sums}
    FROM eager_output
),
mask AS (
    -- An output with the same large magnitude in all of its columns, as scores have that a mask was added to.
    SELECT kind, path, role, group_id, op_name, output_slot
    FROM output
    WHERE is_activation = 1 AND max_abs IS NOT NULL
    GROUP BY kind, path, role, group_id, op_name, output_slot
    HAVING min(max_abs) = max(max_abs) AND max(max_abs) >= {least_of_mask} AND min(place) < max(place)
),
row_mean AS (
    SELECT kind, path, is_gradient, role, place, sum(num_finite * num_means * mean) / sum(num_finite * num_means) AS row_mean
    FROM output
    WHERE num_finite * num_means > 0
    GROUP BY kind, path, is_gradient, role, place
),
cell AS (
    SELECT
        o.kind, o.path, o.is_gradient, o.role, o.place,
        CAST(sum(num_tensors) AS BIGINT) AS num_tensors,
        CAST(sum(CASE WHEN is_bad IS NOT NULL THEN num_tensors ELSE 0 END) AS BIGINT) AS num_measured,
        CAST(sum(CASE WHEN is_bad THEN num_tensors ELSE 0 END) AS BIGINT) AS num_bad,
        sum(num_sized) AS num_sized, sum(num_zero) AS num_zero, max(max_abs) AS max_abs,
        nullif(sum(num_finite * num_means), 0) AS num_elements,
        max(m.row_mean) AS mean,
        sum(num_finite * num_means * (variance + mean_variance + (o.mean - m.row_mean) * (o.mean - m.row_mean)))
            AS squares,
        CAST(sum(CASE WHEN is_bad AND is_variable_gradient = 1 THEN num_tensors ELSE 0 END) AS BIGINT)
            AS num_bad_gradients,
        CAST(sum(CASE WHEN is_bad AND is_weight = 1 THEN num_tensors ELSE 0 END) AS BIGINT) AS num_bad_weights,
        max(CASE WHEN is_activation = 1 AND k.kind IS NULL THEN max_abs END) AS activation_max_abs,
        sum(CASE WHEN is_activation = 1 THEN num_sized END) AS num_activation_sized,
        sum(CASE WHEN is_activation = 1 THEN num_zero END) AS num_activation_zero
    FROM output AS o
    LEFT JOIN row_mean AS m
        ON m.kind = o.kind AND m.path = o.path AND m.is_gradient = o.is_gradient AND m.role IS NOT DISTINCT FROM o.role
        AND m.place = o.place
    LEFT JOIN mask AS k
        ON k.kind = o.kind AND k.path = o.path AND o.is_gradient = 0 AND k.role IS NOT DISTINCT FROM o.role
        AND k.group_id IS NOT DISTINCT FROM o.group_id AND k.op_name IS NOT DISTINCT FROM o.op_name
        AND k.output_slot IS NOT DISTINCT FROM o.output_slot
    GROUP BY o.kind, o.path, o.is_gradient, o.role, o.place
),
square AS (
    -- The mean square sum of each op output.
    SELECT
        kind, path, is_gradient, role, place, group_id, op_name, output_slot, is_variable_gradient, is_weight,
        sum(square_sum) / nullif(sum(num_means), 0) AS square_sum,
        sum(CASE WHEN NOT is_bad THEN square_sum END) / nullif(sum(CASE WHEN NOT is_bad THEN num_means END), 0)
            AS good_square_sum
    FROM output
    GROUP BY kind, path, is_gradient, role, place, group_id, op_name, output_slot, is_variable_gradient, is_weight
),
norm AS (
    SELECT
        kind, path, is_gradient, role, place, sum(square_sum) AS norm_square,
        sum(CASE WHEN is_variable_gradient = 1 THEN good_square_sum END) AS gradient_square,
        sum(CASE WHEN is_weight = 1 THEN good_square_sum END) AS weight_square
    FROM square
    GROUP BY kind, path, is_gradient, role, place
),
made AS (
    SELECT kind, path, is_gradient, role, count(*) AS num_outputs, min(wall_time_ns) AS wall_time_ns, min(graph_id) AS graph_id,
        min(op_index) AS op_index
    FROM (
        SELECT kind, path, is_gradient, role, graph_id, group_id, op_name, output_slot, min(wall_time_ns) AS wall_time_ns,
            min(op_index) AS op_index
        FROM output
        GROUP BY kind, path, is_gradient, role, graph_id, group_id, op_name, output_slot
    ) AS distinct_output
    GROUP BY kind, path, is_gradient, role
)
SELECT
    c.kind, c.path, c.is_gradient, c.role, d.num_outputs, d.wall_time_ns, coalesce(d.graph_id, 0), d.op_index,
    c.place, c.num_tensors, c.num_measured, c.num_bad, c.num_sized, c.num_zero, c.max_abs, c.num_elements, c.mean,
    c.squares, n.norm_square, n.gradient_square, c.num_bad_gradients, n.weight_square, c.num_bad_weights,
    c.activation_max_abs, c.num_activation_sized, c.num_activation_zero
FROM cell AS c
JOIN norm AS n
    ON n.kind = c.kind AND n.path = c.path AND n.is_gradient = c.is_gradient AND n.role IS NOT DISTINCT FROM c.role
    AND n.place = c.place
JOIN made AS d
    ON d.kind = c.kind AND d.path = c.path AND d.is_gradient = c.is_gradient AND d.role IS NOT DISTINCT FROM c.role
