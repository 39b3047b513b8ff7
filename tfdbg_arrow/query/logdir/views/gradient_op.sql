-- One row is one op of a graph that TensorFlow created to compute a gradient. It is found by its role or, if no role was
-- recorded, by its name or its graph's name.
--   run_id, graph_id, op_name  identify it
--   graph_name     name of the graph
--   op_type        type of the op
--   layer, role    the Keras layer or module of the op, and its purpose; NULL if not recorded
--   forward_graph_id, forward_op_name  the op whose gradient it computes; NULL if not recorded
SELECT
    o.run_id,
    o.graph_id,
    o.op_name,
    g.graph_name,
    o.op_type,
    o.layer,
    o.role,
    o.forward_graph_id,
    o.forward_op_name
FROM recorded_op AS o
JOIN graph AS g ON g.run_id = o.run_id AND g.graph_id = o.graph_id
WHERE o.role = 'gradient'
    OR o.role IS NULL
        AND (
            substr(g.graph_name, 1, 11) = '__backward_'
            OR substr(o.op_name, 1, 13) = 'gradient_tape'
            OR substr(o.op_name, 1, 10) = 'gradients/'
        )
