-- One row is one op that tensor_health can refer to: an op of a graph, or a node that TensorFlow's optimizer created (only
-- with `graphs='executed'`). Such a node has the order, stack, layer and role of the op that it was created for.
--   run_id, graph_id, op_name  identify it
--   made_for       for a node that the optimizer created, the op that it was created for; NULL for an op of the graph
--   op_index       order of creation within the graph, from 0
--   op_type        type of the op
--   num_outputs    number of outputs; NULL for a node that the optimizer created
--   layer, role    the Keras layer or module of the op, and its purpose; NULL if not recorded
--   forward_graph_id, forward_op_name  for a gradient, the op whose gradient it computes
--   stack_trace_id the Python stack that created it
SELECT
    run_id,
    graph_id,
    op_name,
    CAST(NULL AS STRING) AS made_for,
    op_index,
    op_type,
    num_outputs,
    layer,
    role,
    forward_graph_id,
    forward_op_name,
    stack_trace_id
FROM graph_op
UNION ALL
SELECT
    e.run_id,
    e.graph_id,
    e.node_name AS op_name,
    o.op_name AS made_for,
    o.op_index,
    e.op_type,
    NULL AS num_outputs,
    o.layer,
    o.role,
    o.forward_graph_id,
    o.forward_op_name,
    o.stack_trace_id
FROM (
    SELECT run_id, graph_id, node_name, min(op_type) AS op_type, min(made_for) AS made_for
    FROM executed_op
    WHERE op_name IS NULL AND made_for IS NOT NULL
    GROUP BY run_id, graph_id, node_name
) AS e
JOIN graph_op AS o ON o.run_id = e.run_id AND o.graph_id = e.graph_id AND o.op_name = e.made_for
