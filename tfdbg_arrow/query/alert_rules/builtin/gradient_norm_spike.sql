-- severity: warning
-- message: The norm of this gradient jumped to {value:,.4g} times the mean of the ten norms before it.
-- parameter: growth 30.0 Minimum ratio of the norm to the mean of the ten norms before it.
-- One row is one output of an op that TensorFlow created for a gradient, whose Euclidean norm jumps. Ops in loops and in
-- functions with several call sites are excluded: their gradient differs from iteration to iteration in a sound training,
-- too. Needs the mode FULL_NUMERICS.
WITH norms AS (
    SELECT
        run_id, graph_id, op_name, op_type, output_slot, event_index,
        sqrt(size * (mean_finite * mean_finite + stddev_finite * stddev_finite)) AS norm,
        max(coalesce(iteration, 0)) OVER (PARTITION BY run_id, graph_id, op_name, output_slot) AS last_iteration,
        min(coalesce(call_site, '')) OVER (PARTITION BY run_id, graph_id, op_name, output_slot) AS first_site,
        max(coalesce(call_site, '')) OVER (PARTITION BY run_id, graph_id, op_name, output_slot) AS last_site
    FROM (
        SELECT h.*
        FROM tensor_health AS h
        JOIN gradient_op AS g ON g.run_id = h.run_id AND g.graph_id = h.graph_id AND g.op_name = h.op_name
        WHERE h.scope = 'graph'
    ) AS gradient
    WHERE mean_finite IS NOT NULL AND NOT has_inf_or_nan
),
jumps AS (
    SELECT
        run_id, graph_id, op_name, op_type, output_slot, event_index, norm,
        CASE WHEN last_iteration = 0 AND first_site = last_site THEN 1 ELSE 0 END AS is_once,
        avg(norm) OVER (
            PARTITION BY run_id, graph_id, op_name, output_slot ORDER BY event_index ROWS BETWEEN 10 PRECEDING AND 1 PRECEDING
        ) AS before,
        row_number() OVER (PARTITION BY run_id, graph_id, op_name, output_slot ORDER BY event_index) AS place
    FROM norms
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
    max(norm / before) AS value
FROM jumps
WHERE place > 10 AND is_once = 1 AND before > 0 AND norm >= before * {growth}
GROUP BY run_id, graph_id, op_name, op_type, output_slot
