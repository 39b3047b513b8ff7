-- severity: warning
-- message: A gradient has an element of magnitude {value:.4g}.
-- parameter: limit 1000.0 Minimum magnitude of a gradient that is too large.
-- One row is one output of an op that TensorFlow created for a gradient, with an element that is too large. Constants and
-- integers that were cast are excluded, since they are numbers of elements by which gradients are divided. So are graphs
-- with an IsFinite: they scale the loss, and test the gradients before they use them. Needs the mode FULL_NUMERICS.
WITH counted AS (
    SELECT DISTINCT o.run_id, o.graph_id, o.op_name
    FROM graph_op AS o
    JOIN graph_op_input AS i ON i.run_id = o.run_id AND i.graph_id = o.graph_id AND i.op_name = o.op_name
    JOIN graph_op_output AS s
        ON s.run_id = i.run_id AND s.graph_id = i.graph_id AND s.op_name = i.source_op_name
        AND s.output_slot = i.source_output_slot
    WHERE o.op_type = 'Cast' AND NOT i.is_control AND (substr(s.dtype, 1, 3) = 'int' OR substr(s.dtype, 1, 4) = 'uint')
),
scaled AS (
    SELECT DISTINCT run_id, graph_id FROM graph_op WHERE op_type = 'IsFinite'
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
    max(max_abs_finite) AS value
FROM (
    SELECT h.*
    FROM tensor_health AS h
    JOIN gradient_op AS g ON g.run_id = h.run_id AND g.graph_id = h.graph_id AND g.op_name = h.op_name
    LEFT JOIN counted AS c ON c.run_id = h.run_id AND c.graph_id = h.graph_id AND c.op_name = h.op_name
    LEFT JOIN scaled AS s ON s.run_id = h.run_id AND s.graph_id = h.graph_id
    WHERE h.scope = 'graph' AND h.op_type <> 'Const' AND c.op_name IS NULL AND s.graph_id IS NULL
) AS gradient
WHERE max_abs_finite >= {limit}
GROUP BY run_id, graph_id, op_name, op_type, output_slot
